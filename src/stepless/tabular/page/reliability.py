"""Calibration of probabilities: predicted against observed, and three scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepless.cuts.sweep import Floats

_TINY = 1e-15  # keeps the log loss finite if the probability of what happened was 0


class Reliability(NamedTuple):
    """Groups of rows with similar probabilities, from low to high.

    Attributes:
        predicted: The mean probability of each group.
        observed: The share of positives in each group.
        weight: The total weight of each group.
    """

    predicted: Floats
    observed: Floats
    weight: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: the mean absolute difference of predicted and observed."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.weight))


def reliability(probabilities: Floats, target: Floats, weight: Floats | None = None, groups: int = 10) -> Reliability:
    """Compare predicted and observed shares in groups of about equal size; equal probabilities stay together.

    Args:
        probabilities: ``(n,)``.
        target: ``(n,)`` of 0 and 1.
        weight: One positive weight per row.
        groups: The most groups.

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
    total, predicted, observed = (x.astype(np.float64) for x in sums)
    full = total > 0
    return Reliability(predicted[full] / total[full], observed[full] / total[full], total[full])


def brier(probabilities: Floats, target: Floats, weight: Floats | None = None) -> float:
    """Return the mean squared difference of probability and target.

    >>> brier(np.array([0.5, 1.0]), np.array([0, 1]))
    0.125
    """
    return float(np.average((probabilities - target) ** 2, weights=weight))


def log_loss(probabilities: Floats, target: Floats, weight: Floats | None = None) -> float:
    """Return the mean of −log of the probability given to what happened.

    >>> round(log_loss(np.array([0.5, 1.0]), np.array([0, 1])), 4)
    0.3466
    """
    given = np.where(target == 1, probabilities, 1 - probabilities)
    return float(np.average(-np.log(np.maximum(given, _TINY)), weights=weight))
