"""The Bayesian correlated t-test: what scores of the folds of one data set say about a mean, or about a difference.

Training sets of different folds share rows, so their scores are not independent, and the plain t-test is too sure. With
a correlation of ρ = 1/folds between any two of them (Nadeau and Bengio, 2003), the posterior of the mean is Student's t
with n − 1 degrees of freedom, centred on the mean of the n scores, with the squared scale s² (1/n + ρ/(1 − ρ)) (Corani
and Benavoli, 2015).
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
    """Student's t: what is known about a mean.

    Attributes:
        mean: Its centre.
        scale: Its scale; 0 where all scores are equal, and that is to be believed.
        freedom: Its degrees of freedom.
    """

    mean: float
    scale: float
    freedom: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The mean lies in here with this probability.

        Args:
            level: The probability.
        """
        half = float(special.stdtrit(self.freedom, (1 + level) / 2)) * self.scale if self.scale else 0.0
        return self.mean - half, self.mean + half

    def above(self, value: float) -> float:
        """The probability that the mean is more than a value."""
        if not self.scale:
            return float(self.mean > value)
        # the lower tail of what is mirrored: 1 − P would lose small probabilities to rounding
        return float(special.stdtr(self.freedom, (self.mean - value) / self.scale))

    def split(self, rope: float) -> tuple[float, float, float]:
        """The probabilities that the mean is above the rope, within it, and below it: better, same, worse.

        Args:
            rope: Half the width of the region of practical equivalence around 0.
        """
        better = self.above(rope)
        worse = Posterior(-self.mean, self.scale, self.freedom).above(rope)
        return better, max(0.0, 1.0 - better - worse), worse


def posterior(values: Sequence[float] | Any, folds: int, step: float = 0.0) -> Posterior:
    """What the scores of all folds of all repeats, or their paired differences, say about their mean.

    Args:
        values: One number for each fold of each repeat; those that are not finite are left out.
        folds: In how many parts a repeat divides the rows.
        step: By how much one row moves a fold. Values that are all equal spread as if it had moved one of them; by 0,
            equal values leave no doubt.

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
    # of n values of which one differs from the rest by a step, the variance is step² / n
    variance = step**2 / len(given) if are_equal(given) else float(given.var(ddof=1))
    scale = math.sqrt(variance * (1 / len(given) + correlation / (1 - correlation)))
    return Posterior(float(given.mean()), scale, len(given) - 1)


def are_equal(values: Sequence[float] | Any) -> bool:
    """Whether values differ by rounding alone.

    >>> are_equal([0.1 + 0.2, 0.3]), are_equal([0.3, 0.31])
    (True, False)
    """
    given = np.asarray(values, np.float64)
    return len(given) < 2 or bool(np.ptp(given) <= 1e-12 * max(1.0, float(np.abs(given).max())))
