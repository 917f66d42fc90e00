"""The Lagrangian of constraints: hard counts give its value, smooth counts its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stepless.constraints import Constraint
from stepless.numerics import Array, clip, logit, namespace
from stepless.steps import Promise, Step, Threshold

#: In each training batch a multiplier grows by this times the violation, up to the cap.
_RATE, _CAP = 1.0, 100.0
#: A constraint has a gradient until it holds by this margin, so that training does not end one sample short of it.
_MARGIN = 0.01
#: The weight of the gradient through `FarReaching`, relative to that through the loss's own step.
_FAR = 2.0
#: Logit margins are clipped here, because infinity over infinity is NaN.
_FARTHEST = 1e18


@dataclass(frozen=True)
class FarReaching(Step):
    """½ + ½·m/(1 + |m|) of m = logit p − logit τ, whose slope falls off so slowly that every row has a gradient.

    It approximates a decision poorly, so it is not in `stepless.STEPS`. Constraints use it for rows so far from the
    threshold that the loss's own step has no gradient there.

    >>> import torch
    >>> FarReaching()(torch.tensor([0.0, 0.5, 0.9]), 0.5)
    tensor([0.0000, 0.5000, 0.8436])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset({Promise.HALF, Promise.ENDS})

    def __call__(self, p: Array, tau: Threshold) -> Array:
        xp = namespace(p)
        inside = (p >= xp.finfo(p.dtype).tiny) & (p < 1)
        return xp.where(inside, self.from_logits(logit(xp.where(inside, p, 0.5)), tau), p)

    def from_logits(self, z: Array, tau: Threshold) -> Array:
        margin = clip(z - logit(tau), -_FARTHEST, _FARTHEST)
        return 0.5 + 0.5 * margin / (1 + abs(margin))


def relative_excess(constraints: Sequence[Constraint], values: Sequence[Tensor]) -> Tensor:
    """How far each value violates its bound, relative to values or bounds above 1, as of formulas that count rows."""
    return torch.stack([
        constraint.violation(value) / value.detach().abs().clamp(min=max(1.0, abs(constraint.bound)))
        for constraint, value in zip(constraints, values, strict=True)
    ])  # fmt: skip


def pull(multipliers: Tensor, hard: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """What constraints add to a loss, given their excess by hard counts and by two kinds of smooth counts.

    Hard counts decide the value and whether a constraint is active. The gradient comes from the smooth counts of the
    loss's own step and of `FarReaching`, which also reaches rows that the network is confidently wrong about.
    """
    slope = near + _FAR * far
    return (multipliers * (hard.clamp(min=0) + (hard > -_MARGIN) * (slope - slope.detach()))).sum()


def grow(multipliers: Tensor, excess: Tensor) -> Tensor:
    """The multipliers after a batch: those of violated constraints grow."""
    return (multipliers + torch.where(excess > 0, _RATE * excess, 0.0)).clamp(max=_CAP)
