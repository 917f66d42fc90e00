"""Cross-entropy as plain sums, so that it can be added up over ranks and batches like the counts."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import torch

from stepless.confusion import sum_rows
from stepless.numerics import Array, cast, log_softmax, namespace, nonzero, ratio, softplus
from stepless.schedules import Schedule
from stepless.tasks import Batch, Task

#: The floor of log p, as in ``F.binary_cross_entropy``.
LOWEST_LOG = -100.0


class Blending(NamedTuple):
    """How much of a loss is cross-entropy.

    Attributes:
        share: The share of cross-entropy, in [0, 1].
        moves: Whether a schedule changes the share.
        fewest: The number of classes below which a multiclass loss has no cross-entropy.
        balanced: Whether every class weighs the same in it.
    """

    share: float = 0.0
    moves: bool = False
    fewest: int = 0
    balanced: bool = False

    def applies(self, task: Task, scores: Array) -> bool:
        """Whether the loss of these scores includes cross-entropy."""
        return (self.moves or self.share > 0) and (task != "multiclass" or scores.shape[1] >= self.fewest)

    def of_kind(self, kind: str) -> Blending:
        """The same with ``"plain"`` or ``"balanced"`` cross-entropy; a kind without effect is an error."""
        if kind not in ("plain", "balanced"):
            raise ValueError(f'cross_entropy must be "plain" or "balanced"; got {kind!r}.')
        if kind != "plain" and not self.share and not self.moves:
            raise ValueError(f"cross_entropy={kind!r} has no effect without a blend; pass blend= or a schedule.")
        return self._replace(balanced=kind == "balanced")


def asked_blending(blend: Any, schedule: Any) -> Blending:
    """The blending given by the arguments ``blend`` and ``schedule``."""
    share = 0.0 if blend is None else blend
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= float(share) <= 1:
        raise ValueError(f"blend is the share of cross-entropy in the loss, a number in [0, 1]; got {blend!r}.")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a stepless.Schedule; got {schedule!r}.")
    moves = schedule is not None and schedule.blend is not None
    if share and moves:
        raise ValueError("blend and a schedule's blend are two answers to one question; give one of them.")
    return Blending(float(share), moves)


def cross_entropy_sums(batch: Batch, task: Task) -> Array:
    """Σ w·cross-entropy and Σ w, for each label and true class: shape ``(2, labels, classes)``."""
    weight = batch.entry_weight()
    if task == "multiclass":
        return _multiclass(batch, weight)
    if batch.logits:
        yes, no = softplus(-batch.scores), softplus(batch.scores)
    else:
        yes, no = -_log(batch.scores), -_log(1 - batch.scores)
    axes = tuple(axis for axis in range(batch.target.ndim) if task == "binary" or axis != 1)
    stack = namespace(batch.scores).stack
    truths = (1 - batch.target, batch.target)
    if weight is not None:
        truths = (truths[0] * weight, truths[1] * weight)
    sums = [stack([(truth * loss).sum(axes), truth.sum(axes)]) for truth, loss in zip(truths, (no, yes), strict=True)]
    return stack(sums, -1).reshape(2, -1, 2)


def _multiclass(batch: Batch, weight: Array | None) -> Array:
    classes = batch.scores.shape[1]
    log_p = log_softmax(batch.scores) if batch.logits else _log(batch.scores)
    if batch.indices():
        true = log_p.gather(1, batch.target.unsqueeze(1)).squeeze(1)
        loss = -true.masked_fill(true == -math.inf, LOWEST_LOG)  # a class ruled out has no gradient either
        each = torch.ones_like(loss) if weight is None else weight.expand_as(loss)
        index = batch.target.reshape(-1)
        sums = [sum_rows(v.reshape(-1), index, classes) for v in (loss * each, each)]
        return torch.stack(sums).unsqueeze(1)
    truth = batch.target if weight is None else batch.target * weight[:, None]
    axes, xp = tuple(axis for axis in range(truth.ndim) if axis != 1), namespace(truth)
    # a class ruled out by -inf costs nothing where the target gives it nothing
    cost = -xp.where(truth == 0, 0.0, xp.where(log_p == -math.inf, LOWEST_LOG, log_p)) * truth
    return xp.stack([cost.sum(axes), truth.sum(axes)])[:, None]


def _log(p: Array) -> Array:
    """The logarithm of p; at 0 it is `LOWEST_LOG`, with a zero instead of an infinite gradient."""
    xp = namespace(p)
    positive = p >= xp.finfo(p.dtype).tiny
    return xp.where(positive, xp.log(xp.where(positive, p, 1.0)), LOWEST_LOG + 0 * p)


def mean_cross_entropy(sums: Array, *, balanced: bool) -> Array:
    """The mean over samples, or with ``balanced`` over class means, and then over labels.

    A label without any weight is left out.
    """
    loss, weight = sums[0], sums[1]
    each = ratio(loss, weight).sum(-1) if balanced else loss.sum(-1)
    counted = cast(nonzero(weight), weight.dtype).sum(-1) if balanced else weight.sum(-1)
    return ratio(ratio(each, counted).sum(), cast(nonzero(counted), weight.dtype).sum())
