"""What the tunings of all tasks share: the job, the data, the result, and the error for infeasible constraints."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from stepless.averaging import Average
from stepless.constraints import Constraint
from stepless.counts import Counts
from stepless.cuts.sweep import ROUNDING, Floats, Sweep, best_entry, merit, score_counts, violation
from stepless.numerics import is_whole
from stepless.registry import Metric

#: How good a rule is: (−violation, merit), compared lexicographically.
Key = tuple[float, float]


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

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The tuned metric, then those of the constraints."""
        return (self.metric, *(c.metric for c in self.constraints))

    def judge(self, values: list[Floats]) -> tuple[Floats | float, Floats]:
        """The violation of the constraints and the merit, from the values of `metrics`."""
        own, *held = values
        return violation(self.constraints, held), merit(self.metric, own)

    def best(self, values: list[Floats], gaps: Floats | None = None) -> tuple[int, Key]:
        """The index and key of the best rule: the first one, or with ``gaps`` the one of equals with the widest gap."""
        broken, merits = self.judge(values)
        broken = np.broadcast_to(broken, merits.shape)
        allowed = np.flatnonzero(broken == broken.min())
        best = allowed[np.argmax(merits[allowed])]
        if gaps is not None and np.isfinite(merits[best]):
            equals = allowed[merits[allowed] >= merits[best] - ROUNDING * abs(merits[best])]
            best = equals[np.argmax(gaps[equals])]
        return int(best), (-float(broken[best]), float(merits[best]))

    def aimed_at(self, constraint: Constraint, others: tuple[Constraint, ...]) -> Job:
        """The job of optimising one constraint's metric subject to others."""
        metric = replace(constraint.metric, greater_is_better=constraint.at_least)
        return replace(self, metric=metric, constraints=others)

    def others(self, constraint: Constraint) -> tuple[Constraint, ...]:
        """All constraints but one."""
        return tuple(c for c in self.constraints if c is not constraint)


@dataclass(frozen=True, eq=False)
class Data(ABC):
    """The data a rule is tuned on: scores ``x``, targets ``y`` and weights ``w``, one per row."""

    job: Job
    x: Floats
    y: np.ndarray[Any, Any]
    w: Floats | None

    @property
    def weight(self) -> Floats:
        """The weights, all 1 if none were given."""
        return np.ones(len(self.x)) if self.w is None else self.w

    @abstractmethod
    def tune(self) -> Tuning:
        """Find the best rule for these rows."""

    @abstractmethod
    def score(self, threshold: Any) -> float:
        """Compute the metric of a rule on these rows."""

    def resample(self, times: Floats) -> Self:
        """Repeat each row the given number of times."""
        kept = times > 0
        return replace(self, x=self.x[kept], y=self.y[kept], w=(times * self.weight)[kept])


class Interval(NamedTuple):
    """Bootstrap intervals of a tuned threshold (one pair, or one per label or class) and of its score on these rows."""

    threshold: Any
    score: tuple[float, float]


@dataclass(frozen=True)
class Tuning:
    """The result of `tune_threshold`. Pass it as ``threshold=`` to `stepless.score` or `stepless.MetricLoss`.

    It can be copied and pickled if its metric can: a name or a text formula can, a lambda cannot.

    Attributes:
        threshold: Decide yes if score ≥ threshold. Multilabel: one per label. Multiclass: one offset per class, to be
            subtracted from the log-probabilities before the argmax.
        score: The metric at this threshold on the tuning data. It was chosen there, so it is optimistic for new data.
        counts: The confusion counts at this threshold, with one entry per label or class if there are several.
        task: The task.
        inputs: What the scores are: ``"scores"``, ``"probabilities"`` or ``"logits"``.
        sweeps: The counts at every cut, one sweep for binary scores or one per label. Empty for multiclass.
        metric: The metric that was tuned.
        data: The data it was tuned on.
    """

    threshold: Any
    score: float
    counts: Counts = field(compare=False)
    task: str
    inputs: str
    sweeps: tuple[Sweep, ...] = field(repr=False, compare=False)
    metric: Metric = field(repr=False, compare=False)
    data: Data = field(repr=False, compare=False)

    def curve(self, label: int = 0) -> tuple[Floats, Floats]:
        """Return the thresholds, descending, and the metric at each, for binary scores or for one label."""
        if not self.sweeps:
            raise ValueError("multiclass has offsets and no threshold, so there is no curve over it.")
        if not 0 <= label < len(self.sweeps):
            raise ValueError(f"label must be one of the {len(self.sweeps)} there are, counted from 0; got {label}.")
        swept = self.sweeps[label]
        return swept.thresholds, score_counts(self.metric, swept.counts)

    def interval(self, n_boot: int = 200, *, confidence: float = 0.95, random_state: int = 0) -> Interval:
        """Compute bootstrap percentile intervals of the threshold and the score.

        On each of ``n_boot`` resamples of the rows, the threshold is tuned again, and the score is that of *this*
        threshold. Resamples that cannot be tuned do not count for the threshold; if most cannot, there is a warning.

        These are the rows that the threshold was chosen on. So the score's interval is optimistic, as `score` is, and
        holds the score of new rows less often than ``confidence`` says. For that score, tune on some rows and score
        others; ``nested_score_`` of `stepless.TunedThreshold` does.
        """
        if not is_whole(n_boot) or n_boot < 2 or not 0 < confidence < 1:
            raise ValueError(f"n_boot must be at least 2 and confidence in (0, 1); got {n_boot} and {confidence}.")
        rng, size = np.random.default_rng(random_state), len(self.data.x)
        thresholds, scores = [], []
        for _ in range(n_boot):
            resampled = self.data.resample(rng.multinomial(size, np.full(size, 1 / size)).astype(float))
            scores.append(resampled.score(self.threshold))
            try:
                thresholds.append(resampled.tune().threshold)
            except ValueError:
                continue  # one class only, or no feasible cut
        ends = [(1 - confidence) / 2, (1 + confidence) / 2]
        if not thresholds:
            raise ValueError(
                "no resample could be tuned: too few rows of one class, or the constraints hold too rarely."
            )
        if 2 * len(thresholds) < n_boot:
            warnings.warn(
                f"only {len(thresholds)} of {n_boot} resamples could be tuned, because the others had too few rows of"
                " one class or the constraints could not be met: the threshold is less certain than its interval says.",
                stacklevel=2,
            )
        defined = np.array(scores)[~np.isnan(scores)]
        if len(defined) < n_boot:
            warnings.warn(
                f"the metric is undefined on {n_boot - len(defined)} of {n_boot} resamples: the interval of the score"
                " is that of the others.",
                stacklevel=2,
            )
        low, high = np.quantile(np.array(thresholds, dtype=float), ends, axis=0, method="nearest")
        score = np.quantile(defined, ends) if len(defined) else (math.nan, math.nan)
        pairs = (float(low), float(high)) if np.ndim(low) == 0 else tuple(zip(low.tolist(), high.tolist(), strict=True))
        return Interval(pairs, (float(score[0]), float(score[1])))

    def __float__(self) -> float:
        if isinstance(self.threshold, tuple):
            each = "offset per class" if self.task == "multiclass" else "threshold per label"
            raise TypeError(f"a {self.task} tuning has one {each}, and so is no single number; see its threshold.")
        return float(self.threshold)


def improves(trial: Key, key: Key) -> bool:
    """Whether a key is better by more than the rounding of sums taken in another order."""
    for new, old in zip(trial, key, strict=True):
        if not math.isclose(new, old, rel_tol=ROUNDING):
            return new > old
    return False


def best_cut(job: Job, swept: Sweep) -> int:
    """The best entry of a sweep."""
    merits, broken = np.empty(len(swept.tp)), np.zeros(len(swept.tp) if job.constraints else 1)
    for part in swept.parts():
        counts = swept.at(part)
        violated, merits[part] = job.judge([score_counts(metric, counts) for metric in job.metrics])
        if job.constraints:
            broken[part] = violated
    if broken.min() > 0:
        raise infeasible(job, lambda constraint, others: _best_value(swept, constraint, others))
    return best_entry(swept, merits, broken if job.constraints else 0.0)


def _best_value(swept: Sweep, constraint: Constraint, others: tuple[Constraint, ...]) -> float:
    """The best value of a constraint's metric over the cuts at which others hold; NaN if there is none."""
    values = score_counts(constraint.metric, swept.counts)
    held = violation(others, [score_counts(c.metric, swept.counts) for c in others]) == 0
    values = values[held & ~np.isnan(values)]
    if len(values) == 0:
        return math.nan
    return float(values.max() if constraint.at_least else values.min())


#: The best value of a constraint's metric where others hold, NaN if they never do.
BestValue = Callable[[Constraint, tuple[Constraint, ...]], float]


def infeasible(job: Job, best: BestValue, *, searched: bool = False) -> ValueError:
    """The error that states the best attainable values: over every cut, or the best that a search found."""
    word = "found" if searched else "attainable"
    none = "no threshold was found that meets" if searched else "no threshold meets"
    wanted = " and ".join(map(str, job.constraints))

    def say(constraint: Constraint, value: float) -> str:
        name = constraint.metric.name
        return f"the best {word} {name} is {value:.6g}" if not math.isnan(value) else f"{name} is undefined throughout"

    alone = [(c, best(c, ())) for c in job.constraints]
    hopeless = [(c, value) for c, value in alone if not c.violation(value) <= 0]
    if len(alone) == 1:
        return ValueError(f"{none} {wanted}: {say(*alone[0])}.")
    if hopeless:
        said = " and ".join(f"{say(c, value)}, which misses {c} even by itself" for c, value in hopeless)
        return ValueError(f"{none} {wanted}: {said}.")
    given = [(c, best(c, job.others(c))) for c in job.constraints]
    said = ", and ".join(
        f"where {' and '.join(map(str, job.others(c)))} hold{'s' * (len(alone) == 2)}, {say(c, value)}"
        for c, value in given
        if not math.isnan(value)
    )
    said = said or ", ".join(say(c, value) for c, value in alone)
    return ValueError(f"{none} {wanted}: each can be met by itself, but not together; {said}.")
