"""How far probabilities can be trusted: what was said against what happened, and three numbers for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepless.cuts.sweep import Floats

_TINY = 1e-15  # a probability of 0 that was wrong would make the log loss infinite


class Reliability(NamedTuple):
    """Groups of rows of like probability, from low to high.

    Attributes:
        predicted: The mean probability of each group.
        observed: The share of positives in it.
        weight: How many rows it has, by weight.
    """

    predicted: Floats
    observed: Floats
    weight: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of what was said from what happened."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.weight))


def reliability(probabilities: Floats, target: Floats, weight: Floats | None = None, groups: int = 10) -> Reliability:
    """What was said against what happened, in groups of about as many rows each; rows of one probability stay together.

    Args:
        probabilities: ``(n,)``.
        target: ``(n,)`` of 0 and 1.
        weight: One weight a row, more than 0.
        groups: How many groups, at most.

    Example:
        >>> found = reliability(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]), groups=2)
        >>> found.predicted, found.observed
        (array([0.15, 0.85]), array([0., 1.]))
    """
    weight = np.ones(len(target)) if weight is None else np.asarray(weight, dtype=np.float64)
    distinct, place = np.unique(probabilities, return_inverse=True)
    mass = np.bincount(place, weight, len(distinct))
    middle = np.cumsum(mass) - mass / 2
    group = np.minimum((groups * middle / mass.sum()).astype(np.int64), groups - 1)[place]
    sums = (np.bincount(group, x, groups) for x in (weight, weight * probabilities, weight * target))
    total, said, true = (x.astype(np.float64) for x in sums)
    full = total > 0
    return Reliability(said[full] / total[full], true[full] / total[full], total[full])


def brier(probabilities: Floats, target: Floats, weight: Floats | None = None) -> float:
    """The mean squared distance of the probability from 0 or 1.

    >>> brier(np.array([0.5, 1.0]), np.array([0, 1]))
    0.125
    """
    return float(np.average((probabilities - target) ** 2, weights=weight))


def log_loss(probabilities: Floats, target: Floats, weight: Floats | None = None) -> float:
    """The mean of −log of what was said of what happened.

    >>> round(log_loss(np.array([0.5, 1.0]), np.array([0, 1])), 4)
    0.3466
    """
    said = np.where(target == 1, probabilities, 1 - probabilities)
    return float(np.average(-np.log(np.maximum(said, _TINY)), weights=weight))
