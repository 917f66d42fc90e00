"""Cross-entropy as plain sums, so that a blend of it with a metric merges like everything else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stepless.confusion import sum_rows
from stepless.numerics import ratio
from stepless.tasks import Batch, Task

#: The floor of a logarithm of a probability, as in ``F.binary_cross_entropy``.
_LOWEST_LOG = -100.0


def cross_entropy_sums(batch: Batch, task: Task) -> Tensor:
    """Σ w·cross-entropy and Σ w, for each label and true class: shape ``(2, labels, classes)``."""
    weight = batch.entry_weight
    if task == "multiclass":
        return _multiclass(batch, weight)
    if batch.logits:
        yes, no = F.softplus(-batch.scores), F.softplus(batch.scores)
    else:
        yes, no = -_log(batch.scores), -_log(1 - batch.scores)
    axes = [axis for axis in range(batch.target.dim()) if task == "binary" or axis != 1]
    truths = (1 - batch.target, batch.target)
    if weight is not None:
        truths = (truths[0] * weight, truths[1] * weight)
    sums = [
        torch.stack([(truth * loss).sum(axes), truth.sum(axes)]) for truth, loss in zip(truths, (no, yes), strict=True)
    ]
    return torch.stack(sums, -1).view(2, -1, 2)


def _multiclass(batch: Batch, weight: Tensor | None) -> Tensor:
    classes = batch.scores.shape[1]
    log_p = torch.log_softmax(batch.scores, 1) if batch.logits else _log(batch.scores)
    if batch.indices:
        loss = -log_p.gather(1, batch.target.unsqueeze(1)).squeeze(1)
        each = torch.ones_like(loss) if weight is None else weight.expand_as(loss)
        index = batch.target.reshape(-1)
        sums = [sum_rows(v.reshape(-1), index, classes) for v in (loss * each, each)]
        return torch.stack(sums).unsqueeze(1)
    truth = batch.target if weight is None else batch.target * weight.unsqueeze(1)
    axes = [axis for axis in range(truth.dim()) if axis != 1]
    # a class ruled out by -inf costs nothing where the target gives it nothing
    cost = torch.where(truth == 0, 0.0, -log_p) * truth
    return torch.stack([cost.sum(axes), truth.sum(axes)]).unsqueeze(1)


def _log(p: Tensor) -> Tensor:
    """Logarithm of p, its floor at 0, and there a zero gradient instead of an infinite one."""
    positive = p >= torch.finfo(p.dtype).tiny
    return torch.where(positive, torch.log(torch.where(positive, p, 1.0)), _LOWEST_LOG + 0 * p)


def mean_cross_entropy(sums: Tensor, *, balanced: bool) -> Tensor:
    """The mean over samples, or with ``balanced`` the mean of the class means; then the mean over labels."""
    loss, weight = sums
    if not balanced:
        return ratio(loss.sum(-1), weight.sum(-1)).mean()
    return ratio(ratio(loss, weight).sum(-1), (weight != 0).sum(-1)).mean()
