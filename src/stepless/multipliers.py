"""How constraints pull a loss, and how their multipliers grow: a Lagrangian whose value is that of the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stepless.constraints import Constraint
from stepless.numerics import Array, clip, logit, namespace
from stepless.steps import Promise, Step, Threshold

#: A multiplier grows by this times what its constraint lacks in each training batch, up to the cap.
_RATE, _CAP = 1.0, 100.0
#: A constraint pulls until it holds by this much, so that the last step does not end a sample short of it.
_MARGIN = 0.01
#: How hard it pulls what is far from the threshold, times how hard it pulls what is near.
_FAR = 2.0
#: A score farther than this from the threshold is no farther: infinity over infinity is NaN.
_FARTHEST = 1e18


@dataclass(frozen=True)
class FarReaching(Step):
    """½ + ½·m/(1 + |m|) of m = logit p − logit τ: it falls off so slowly that no row is beyond its reach.

    A poor stand-in for a decision, so it is not among `stepless.STEPS`: a constraint pulls with it what a steeper step
    has let go.

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
    """How far each value is beyond its constraint's bound, as a share of what is above 1: a formula may count rows."""
    return torch.stack([
        constraint.violation(value) / value.detach().abs().clamp(min=max(1.0, abs(constraint.bound)))
        for constraint, value in zip(constraints, values, strict=True)
    ])  # fmt: skip


def pull(multipliers: Tensor, hard: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """What constraints add to a loss, from their excess by hard counts and by two kinds of smooth ones.

    The value and the activity come from the decisions themselves, the direction from smooth counts: those of the loss,
    and those of `FarReaching`, which reaches rows of which the loss has made a network wrongly sure.
    """
    slope = near + _FAR * far
    return (multipliers.clone() * (hard.clamp(min=0) + (hard > -_MARGIN) * (slope - slope.detach()))).sum()


def grow(multipliers: Tensor, excess: Tensor) -> Tensor:
    """The multipliers after a batch: what is violated will pull harder."""
    return (multipliers + torch.where(excess > 0, _RATE * excess, 0.0)).clamp(max=_CAP)
