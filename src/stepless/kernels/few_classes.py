"""The loss of a small multiclass batch on the CPU, fused into one autograd node, in numpy.

For a few scores, calls of torch would cost more than the arithmetic. Arrays have one row per class, as in
`stepless.kernels.classes`, which counts the large batches. The plain path remains the reference in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepless.confusion import class_cells, decide_class
from stepless.cross_entropy import LOWEST_LOG, cross_entropy_sums, mean_cross_entropy
from stepless.kernels.nodes import Node, Objective, loss_in_one_node
from stepless.kernels.tracing import differentiated_classes
from stepless.steps import Identity
from stepless.tasks import Batch, check_classes


def fused_class_loss(batch: Batch, objective: Objective) -> Tensor:
    """Compute the loss of a batch of logits and class indices in one autograd node."""
    return loss_in_one_node(batch, objective, _NODE)


def plain_loss(batch: Batch, objective: Objective) -> Tensor:
    """Compute the same loss by the plain path, for second derivatives."""
    cells = class_cells(batch, decide_class(batch, objective.step, None), "batch")[0, 0]
    loss = objective.of(cells.T) if objective.joint else objective.of(cells).mean()
    if not objective.blend:
        return loss
    entropy = mean_cross_entropy(cross_entropy_sums(batch, "multiclass"), balanced=objective.balanced)
    return (1 - objective.blend) * loss + objective.blend * entropy


@np.errstate(all="ignore")  # NaN and infinity propagate without warnings, as in torch
def _differentiated(scores: Tensor, batch: Batch, objective: Objective, *, wanted: bool) -> tuple[float, Tensor | None]:
    """Compute the loss and, if ``wanted``, its gradient."""
    classes, blend = scores.shape[1], objective.blend
    z = np.moveaxis(scores.detach().numpy(), 1, 0)
    shape, z = z.shape, z.reshape(classes, -1)
    index = batch.target.numpy().reshape(-1)
    if index.min() < 0 or index.max() >= classes:
        check_classes(batch)
    own, w = (index, _count_up_to(len(index))), _weights(batch)

    top = z.max(0)
    p = np.exp(z - top)
    total = p.sum(0)
    p /= total
    if isinstance(objective.step, Identity):
        h, steep, scale = p, p, w
    else:
        tau = np.partition(p, classes - 2, axis=0)[-2:].sum(0) / 2
        h, steep, factors = objective.step.linearise_few_rows(p, tau)
        whole = h.sum(0)
        h /= whole  # h · (1/h) may differ from 1
        steep *= p
        scale = z.dtype.type(factors.slope / factors.decision) / whole
        if w is not None:
            scale *= w
    hit = h[own]
    loss, alarm, right, support = _judge(h, hit, own, w, objective)
    if blend:
        pull = _rates(support, objective)[index]
        pull = pull if w is None else pull * w
        true = z[own]
        entropy = np.log(total) - (true - top)  # in this order: log(total) + top would lose log(total) for large scores
        ruled_out = true == -np.inf
        entropy[ruled_out] = -LOWEST_LOG
        loss = (1 - blend) * loss + float((entropy * pull).sum())
    if not wanted:
        return loss, None

    alarm, right = ((1 - blend) * worth.astype(z.dtype) for worth in (alarm, right))
    right, mean = right[index], 0.0
    if h is not p:  # the decisions of a sample are normalised, so constant factors cancel
        h[own] = 0.0
        mean = alarm @ h + right * hit
    gradient = (alarm[:, None] - mean) * steep
    gradient[own] = (right - mean) * steep[own]  # not by a difference, which would lose digits for a frequent class
    gradient -= p * gradient.sum(0)  # through the softmax
    if scale is not None:
        gradient *= scale
    if blend:
        rate = np.where(ruled_out, 0.0, pull).astype(z.dtype)
        gradient += p * rate
        gradient[own] -= rate
    return loss, torch.from_numpy(np.ascontiguousarray(np.moveaxis(gradient.reshape(shape), 0, 1)))


def _judge(h: Any, hit: Any, own: Any, w: Any, objective: Objective) -> tuple[float, Any, Any, Any]:
    """Return the metric's loss, ∂loss/∂decision of each class for false alarms and hits, and the classes' supports."""
    classes, (index, _) = len(h), own
    tp, fn = (np.bincount(index, part if w is None else part * w, classes) for part in (hit, 1 - hit))
    fp, tn = (_of_others(part, own, w) for part in (h, 1 - h))
    if objective.joint:
        value, *slopes = _of_all(objective.of, classes)(tp, fp, fn, tn)
        loss = float(value)
    else:
        value, *slopes = objective.differentiate_each(tp, fp, fn, tn)
        loss, slopes = float(np.mean(value)), [slope / classes for slope in slopes]
    by_tp, by_fp, by_fn, by_tn = slopes
    each = np.zeros(classes)  # a derivative that is the same for all classes may be a number
    return loss, by_fp - by_tn + each, by_tp - by_fn + each, tp + fn


def _rates(support: Any, objective: Objective) -> Any:
    """The weight in the loss of the cross-entropy of one row, for each class."""
    rows = support * np.count_nonzero(support) if objective.balanced else np.full_like(support, support.sum())
    return np.where(rows == 0, 0.0, objective.blend / rows)


def _of_others(part: Any, own: Any, w: Any) -> Any:
    """For each class, the sum over the samples of all other classes."""
    others = part.copy() if w is None else part * w
    others[own] = 0.0
    return others.sum(1, dtype=np.float64)


def _weights(batch: Batch) -> Any:
    """The weight of each sample; None if all are 1, as in a batch that ignores nothing."""
    weight = batch.entry_weight()
    if weight is None:
        return None
    each = weight.expand_as(batch.target).detach().numpy().reshape(-1)
    return None if (each == 1).all() else each


@lru_cache(maxsize=8)
def _count_up_to(length: int) -> Any:
    return np.arange(length)


@lru_cache(maxsize=64)
def _of_all(of: Callable[[Any], Any], classes: int) -> Callable[..., tuple[Any, ...]]:
    return differentiated_classes(of, classes)


_NODE = Node(_differentiated, plain_loss)
