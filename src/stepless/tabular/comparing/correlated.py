"""The Bayesian correlated t-test: what the scores of folds of one data set say about their mean, or a difference.

Training sets of different folds share rows, so their scores are not independent, and the plain t-test is
overconfident. With a correlation of ρ = 1/folds between any two of them (Nadeau and Bengio, 2003), the posterior of the
mean is Student's t with n − 1 degrees of freedom, centred on the mean of the n scores, with the squared scale
s² (1/n + ρ/(1 − ρ)) (Corani and Benavoli, 2015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepless.extras import needs

with needs("comparing needs SciPy, which comes with scikit-learn", "sklearn", "scipy"):
    from scipy import special


@dataclass(frozen=True)
class Posterior:
    """The posterior of a mean: Student's t-distribution.

    Attributes:
        mean: Its centre.
        scale: Its scale; 0 if all scores are equal and leave no doubt.
        freedom: Its degrees of freedom.
    """

    mean: float
    scale: float
    freedom: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the central interval that contains the mean with this probability.

        Args:
            level: The probability.
        """
        half = float(special.stdtrit(self.freedom, (1 + level) / 2)) * self.scale if self.scale else 0.0
        return self.mean - half, self.mean + half

    def above(self, value: float) -> float:
        """Return the probability that the mean exceeds a value."""
        if not self.scale:
            return float(self.mean > value)
        # the mirrored lower tail: 1 − P would lose small probabilities to rounding
        return float(special.stdtr(self.freedom, (self.mean - value) / self.scale))

    def split(self, rope: float) -> tuple[float, float, float]:
        """Return the probabilities that the mean is above, within and below the rope: better, same, worse.

        Args:
            rope: Half the width of the region of practical equivalence around 0.
        """
        better = self.above(rope)
        worse = Posterior(-self.mean, self.scale, self.freedom).above(rope)
        return better, max(0.0, 1.0 - better - worse), worse


def posterior(values: Sequence[float] | Any, folds: int, step: float = 0.0, least: float = 0.0) -> Posterior:
    """Return the posterior of the mean of the scores of all folds, or of their paired differences.

    Args:
        values: One number per fold and repeat; those that are not finite are left out.
        folds: The number of folds in a repeat.
        step: How much one row changes the score of a fold. Equal values get the variance they would have if one row
            had changed one of them; with 0, equal values leave no doubt.
        least: The same for values that differ: their variance is taken to be no less than one row's, because folds
            with few rows that count may agree by chance.

    Example:
        >>> found = posterior([0.02, 0.05, 0.03, 0.06, 0.04], folds=5)
        >>> round(found.mean, 3), [round(p, 3) for p in found.split(rope=0.01)]
        (0.04, [0.976, 0.019, 0.005])
    """
    given = np.asarray(values, np.float64)
    given = given[np.isfinite(given)]
    if len(given) < 2:
        return Posterior(float(given.mean()) if len(given) else math.nan, math.nan, 1)
    correlation = 1 / folds
    # the variance of n values, one of which differs from the rest by a step, is step² / n
    variance = step**2 / len(given) if are_equal(given) else max(float(given.var(ddof=1)), least**2 / len(given))
    scale = math.sqrt(variance * (1 / len(given) + correlation / (1 - correlation)))
    return Posterior(float(given.mean()), scale, len(given) - 1)


def are_equal(values: Sequence[float] | Any) -> bool:
    """Whether values differ by rounding only.

    >>> are_equal([0.1 + 0.2, 0.3]), are_equal([0.3, 0.31])
    (True, False)
    """
    given = np.asarray(values, np.float64)
    return len(given) < 2 or bool(np.ptp(given) <= 1e-12 * max(1.0, float(np.abs(given).max())))
