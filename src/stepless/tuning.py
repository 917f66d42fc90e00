"""What a tuning is asked for and what it found, whatever the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stepless.averaging import Average
from stepless.constraints import Constraint
from stepless.counts import Counts
from stepless.registry import Metric
from stepless.sweep import Floats, Sweep, best_entry, merit, score_counts, violation


@dataclass(frozen=True)
class Job:
    """What is to be tuned."""

    metric: Metric
    constraints: tuple[Constraint, ...]
    task: str
    average: Average
    inputs: str
    restarts: int
    random_state: int


class Interval(NamedTuple):
    """A bootstrap interval of a tuned threshold (one pair, or one a label or class) and of its score."""

    threshold: Any
    score: tuple[float, float]


@dataclass(frozen=True)
class Tuning:
    """What `tune_threshold` found. Pass it as ``threshold=`` to `stepless.score` or `stepless.MetricLoss`.

    Attributes:
        threshold: Say yes where score ≥ threshold. Multilabel: one a label. Multiclass: one offset a class, to be
            subtracted from the log-probabilities before the argmax.
        score: The metric there, on the data it was tuned on: what was chosen, not what to expect of new data.
        counts: The confusion counts there; one entry a label or class where there are several.
        task: The task.
        inputs: What the scores are.
        sweeps: The counts at every cut: of the scores, or of each label. Empty for multiclass.
    """

    threshold: Any
    score: float
    counts: Counts = field(compare=False)
    task: str
    inputs: str
    sweeps: tuple[Sweep, ...] = field(repr=False, compare=False)
    metric: Metric = field(repr=False, compare=False)
    _again: Callable[[Floats], Tuning] = field(repr=False, compare=False)
    _score_at: Callable[[Any, Floats], float] = field(repr=False, compare=False)
    _rows: int = field(repr=False, compare=False)

    def curve(self, label: int = 0) -> tuple[Floats, Floats]:
        """Thresholds, descending, and the metric at each: of the binary scores, or of one label."""
        if not self.sweeps:
            raise ValueError("multiclass has offsets and no threshold, so there is no curve over it.")
        swept = self.sweeps[label]
        return swept.thresholds, score_counts(self.metric, swept.counts)

    def interval(self, n_boot: int = 200, *, confidence: float = 0.95, random_state: int = 0) -> Interval:
        """Percentile intervals over resampled rows.

        The threshold is tuned anew on each resample; the score is that of *this* threshold on the resample.
        """
        if n_boot < 2 or not 0 < confidence < 1:
            raise ValueError(f"n_boot must be at least 2 and confidence in (0, 1); got {n_boot} and {confidence}.")
        rng = np.random.default_rng(random_state)
        thresholds, scores = [], []
        for _ in range(n_boot):
            times = rng.multinomial(self._rows, np.full(self._rows, 1 / self._rows)).astype(float)
            scores.append(self._score_at(self.threshold, times))
            try:
                thresholds.append(self._again(times).threshold)
            except (
                ValueError
            ):  # a resample may have one class only, or no feasible cut: it says nothing of the threshold
                continue
        ends = [(1 - confidence) / 2, (1 + confidence) / 2]
        if not thresholds:
            raise ValueError(
                "no resample could be tuned: too few rows of one class, or the constraints hold too rarely."
            )
        low, high = np.quantile(np.array(thresholds, dtype=float), ends, axis=0, method="nearest")
        score = np.quantile(np.array(scores), ends)
        pairs = (float(low), float(high)) if np.ndim(low) == 0 else tuple(zip(low.tolist(), high.tolist(), strict=True))
        return Interval(pairs, (float(score[0]), float(score[1])))

    def __float__(self) -> float:
        return float(self.threshold)


def best_cut(job: Job, swept: Sweep, counts: Counts) -> int:
    """The best entry of a sweep whose counts may include those of other labels."""
    merits = merit(job.metric, score_counts(job.metric, counts))
    broken: Floats | float = 0.0
    if job.constraints:
        values = [score_counts(c.metric, counts) for c in job.constraints]
        broken = violation(job.constraints, values)
        if np.min(broken) > 0:
            raise infeasible(job.constraints, values)
    return best_entry(swept, merits, broken)


def infeasible(constraints: tuple[Constraint, ...], values: list[Floats], *, searched: bool = False) -> ValueError:
    """The error that says what could be had instead: over every cut, or where a search ended."""
    attainable = []
    for constraint, value in zip(constraints, values, strict=True):
        best = np.nanmax(value) if constraint.at_least else np.nanmin(value)
        word = "found" if searched else "attainable"
        attainable.append(f"the best {word} {constraint.metric.name} is {best:.6g}")
    wanted = " and ".join(map(str, constraints))
    together = " (each by itself, but not together)" if len(constraints) > 1 and not searched else ""
    none = "no threshold was found that meets" if searched else "no threshold meets"
    return ValueError(f"{none} {wanted}: {', '.join(attainable)}{together}.")
