"""The losses of *Bridging the Gap*: as the paper has them, by `stepless`'s presets, and as its code was released."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import stepless as sl

#: The thresholds the paper trains on, and averages over.
TAUS = tuple(round(0.1 * i, 1) for i in range(1, 10))


class Each:
    """A loss of one trial, for every trial at once."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], *, device: str = "cpu") -> None:
        self._loss = loss.to(device) if isinstance(loss, sl.MetricLoss) else loss
        self._vmapped = torch.func.vmap(self._loss)

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        return self._vmapped(scores, target)

    def advance(self, progress: float) -> None:
        if isinstance(self._loss, sl.MetricLoss):
            self._loss.advance(progress)


def make(name: str, device: str = "cpu") -> Each:
    """A loss by its name: ``f1``, ``f2``, ``accuracy``, ``auroc``, ``wmw``, ``bce``, or ``released_…`` of the first."""
    if name.startswith("released_"):
        return Each(RELEASED[name.removeprefix("released_")])
    if name == "bce":
        return Each(F.binary_cross_entropy_with_logits)
    if name == "wmw":
        return Each(sl.presets.wmw(), device=device)
    if name in {"f2", "f3"}:
        return Each(sl.presets.soft_sets("f_beta", beta=float(name[1])), device=device)
    return Each(sl.presets.soft_sets(name), device=device)


# ---------------------------------------------------------------------------------------------------------------------
# As released
# ---------------------------------------------------------------------------------------------------------------------


def _counts(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Soft counts at each threshold as the released code has them.

    Each of the four cells turns the threshold around by a rule of its own. Off τ = ½ the decision then jumps at τ, and
    tp + fn is no longer the number of positives.
    """
    p, step = z.sigmoid()[:, None], sl.Linear(delta=0.2)
    tau = torch.linspace(0.1, 0.9, 9, dtype=z.dtype, device=z.device)
    positive = (y > 0)[:, None]
    above, below = p > tau, p < tau
    tp = step(p, torch.where(above, tau, 1 - tau))
    fn = step(1 - p, torch.where(below, 1 - tau, tau))
    fp = step(p, torch.where(below, tau, 1 - tau))
    tn = step(1 - p, torch.where(below, 1 - tau, tau))
    return tuple(torch.where(cell, soft, 0.0).sum(0)
                 for cell, soft in ((positive, tp), (positive, fn), (~positive, fp), (~positive, tn)))  # fmt: skip


def _f1(z: Tensor, y: Tensor) -> Tensor:
    tp, fn, fp, _ = _counts(z, y)
    precision, recall = tp / (tp + fp + 1e-7), tp / (tp + fn + 1e-7)
    return 1 - (2 * precision * recall / (precision + recall + 1e-7)).mean()


def _accuracy(z: Tensor, y: Tensor) -> Tensor:
    tp, fn, fp, tn = _counts(z, y)
    return 1 - ((tp + tn) / (tp + fn + fp + tn)).mean()


def _auroc(z: Tensor, y: Tensor) -> Tensor:
    """The area between the first and the last threshold alone: without the ends (0, 0) and (1, 1)."""
    tp, fn, fp, tn = _counts(z, y)
    fpr, order = torch.sort(fp / (fp + tn + 1e-7))
    tpr = (tp / (tp + fn + 1e-7)).gather(0, order)
    return 1 - (fpr.diff() * (tpr[1:] + tpr[:-1]) / 2).sum()


def _wmw(z: Tensor, y: Tensor) -> Tensor:
    """Pairs of positives with positives, of logits: the negatives have no part in it."""
    total = torch.zeros((), dtype=z.dtype, device=z.device)
    for part, positive in zip(z.split(1024), (y > 0).to(z.dtype).split(1024), strict=True):
        short = (0.2 - (part[:, None] - part[None])).relu() ** 3
        total = total + (short * positive[:, None] * positive[None]).sum()
    return total / -(-len(z) // 1024)


RELEASED = {"f1": _f1, "accuracy": _accuracy, "auroc": _auroc, "wmw": _wmw}
