"""Turn the cells of a comparison into entries: means, intervals, differences, thresholds and probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepless.constraints import Constraint
from stepless.metrics import METRICS
from stepless.registry import Metric
from stepless.rules import Rule, decisions
from stepless.tabular.comparing.cells import Cell, Place
from stepless.tabular.comparing.contestants import Contestant
from stepless.tabular.comparing.correlated import are_equal, posterior
from stepless.tabular.outcome import Difference, Entry, Threshold
from stepless.tasks import Task

#: With this many rows of the rarest class in every test fold, scores that hardly differ between folds are evidence.
ENOUGH = 10
#: The rope: absolute for metrics whose best value is 1, for costs as a share of the baseline's mean.
_ROPE = 0.01
#: How far rounding may take a score beyond the bounds of its metric.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Results:
    """The cells of one contestant.

    Attributes:
        contestant: The contestant.
        grid: All cells of all contestants.
        folds: The fold of each row in each repeat, ``(repeats, rows)``.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
    """

    contestant: Contestant
    grid: Mapping[Place, Cell]
    folds: NDArray[np.int16]
    task: Task

    @cached_property
    def cells(self) -> list[Cell]:
        """Its cells of all folds of all repeats, in order."""
        repeats, folds = len(self.folds), int(self.folds.max()) + 1
        key = self.contestant.key
        return [self.grid[key, repeat, fold] for repeat in range(repeats) for fold in range(folds)]

    @property
    def failed(self) -> str | None:
        """The first error message, and the fold it is from unless every fold failed."""
        cells = self.cells
        failed = [cell for cell in cells if cell.failed is not None]
        if not failed:
            return (
                None if any(math.isfinite(cell.score) for cell in cells) else "the metric is undefined on every fold."
            )
        first = failed[0]
        where = "" if len(failed) == len(cells) else f"repeat {first.repeat + 1}, fold {first.fold + 1}: "
        return f"{where}{first.failed}"

    @cached_property
    def undecided(self) -> bool:
        """Whether it decides all rows of a fold alike, in every fold of the first repeat."""
        return all(_alike(cell, self.task) for cell in self.cells if cell.probabilities is not None)

    def doubt(self, baseline: Results, metric: Metric, fewest: int) -> str | None:
        """Return why an equal difference from the baseline in every fold is no evidence; None if it is or differs.

        Equal differences have no variance, which the test takes for certainty. That is right if many rows could have
        been decided otherwise and were not. It is wrong if there are few such rows, or if nothing was decided.

        Args:
            baseline: The results of the baseline.
            metric: The metric that is scored.
            fewest: The smallest number of rows of the rarest class in a test fold.
        """
        if baseline is self or not are_equal(self._gaps(baseline)):
            return None
        if fewest < ENOUGH:
            return f"a fold has as few as {fewest} row{'s' * (fewest != 1)} of the rarest class"
        if self.undecided or baseline.undecided:
            return f"{(self if self.undecided else baseline).contestant.name} decides all rows of a fold alike"
        if metric.greater_is_better and not any(cell.score for cell in self.cells):
            return "both score 0 in all of them"
        return None

    def row_effect(self, rule: Rule, target: NDArray[np.int64], weight: NDArray[np.float64] | None) -> float:
        """Return how much the score of a fold changes, on average, if one row of its rarest class is decided otherwise.

        Args:
            rule: How decisions are scored.
            target: 0 and 1, class indices, or 0 and 1 for each label; of all rows.
            weight: The weights of all rows.
        """
        effects = []
        for cell in self.cells:
            if cell.probabilities is not None:
                rows = self.folds[cell.repeat] == cell.fold
                decided, truth = decisions(cell.probabilities, cell.threshold, self.task), target[rows]
                changed, w = _with_one_row_changed(decided, truth), None if weight is None else weight[rows]
                effects.append(abs(rule.score(changed, truth, w) - rule.score(decided, truth, w)))
        known = [effect for effect in effects if math.isfinite(effect)]
        return float(np.mean(known)) if known else 0.0

    def entry(
        self, baseline: Results, folds: int, metric: Metric, rope: float, fewest: int, row_effect: float = 0.0
    ) -> Entry:
        """Return its entry in the outcome.

        Args:
            baseline: The results of the baseline.
            folds: The number of folds in a repeat.
            metric: The metric that is scored.
            rope: Contestants that differ by no more than this count as equal.
            fewest: The smallest number of rows of the rarest class in a test fold.
            row_effect: How much one row of the rarest class changes the score of a fold, if there are few such rows.
        """
        sign = 1.0 if metric.greater_is_better else -1.0
        contestant, failed = self.contestant, self.failed
        if failed is not None:
            shape = (0,) if self.task == "binary" else (0, 0)
            return Entry(
                contestant.key, contestant.name, (), math.nan, (math.nan, math.nan), self._seconds(), (), None, None,
                np.empty(shape), None, failed,
            )  # fmt: skip
        scores = [cell.score for cell in self.cells]
        gap = None
        if baseline is not self and baseline.failed is None:
            # if nothing was decided, a fold tells no more than a single row would
            rows = fewest if fewest < ENOUGH else 1
            step = _span(metric, scores) / max(rows, 1) if self.doubt(baseline, metric, fewest) else 0.0
            found = posterior(sign * self._gaps(baseline), folds, step, row_effect)
            gap = Difference(found.mean, found.interval(), *found.split(rope))
        step = _span(metric, scores) / max(fewest, 1) if fewest < ENOUGH else 0.0
        known = posterior(scores, folds, step, row_effect)
        values = np.array([cell.constraints for cell in self.cells])
        return Entry(
            contestant.key,
            contestant.name,
            tuple(scores),
            known.mean,
            within(known.interval(), _bounds(metric, scores)),
            self._seconds(),
            tuple(cell.threshold for cell in self.cells),
            self._threshold(),
            gap,
            self._whole("probabilities"),
            None if self.cells[0].raw is None else self._whole("raw"),
            None,
            tuple(values.mean(0).tolist()) if values.size else (),
        )

    def breaks(self, constraints: Sequence[Constraint], folds: int) -> bool:
        """Whether a constraint is broken beyond chance: the whole interval of its metric violates it."""
        for place, constraint in enumerate(constraints):
            known = posterior([cell.constraints[place] for cell in self.cells], folds).interval()
            if constraint.violation(known[1] if constraint.at_least else known[0]) > 0:
                return True
        return False

    def _gaps(self, baseline: Results) -> NDArray[np.float64]:
        """Its scores minus those of the baseline, where both are defined."""
        gaps = np.array([a.score - b.score for a, b in zip(self.cells, baseline.cells, strict=True)])
        return gaps[np.isfinite(gaps)]

    def _seconds(self) -> float:
        return float(np.mean([cell.seconds for cell in self.cells]))

    def _threshold(self) -> Threshold:
        with np.errstate(invalid="ignore"):  # the median of −∞ and ∞ is NaN
            middle = np.median(np.array([cell.threshold for cell in self.cells]), axis=0)
        return float(middle) if middle.ndim == 0 else tuple(middle.tolist())

    def _whole(self, what: str) -> NDArray[np.float64]:
        """An array of the cells for all rows, from the folds of the first repeat."""
        first = [cell for cell in self.cells if cell.repeat == 0]
        parts = [getattr(cell, what) for cell in first]
        whole = np.empty((self.folds.shape[1], *parts[0].shape[1:]))
        for cell, part in zip(first, parts, strict=True):
            whole[self.folds[0] == cell.fold] = part
        return whole


def _alike(cell: Cell, task: Task) -> bool:
    """Whether all rows of the cell's fold are decided alike."""
    decided = decisions(cell.probabilities, cell.threshold, task)
    return bool((decided == decided[:1]).all())


def _with_one_row_changed(decided: NDArray[Any], target: NDArray[np.int64]) -> NDArray[Any]:
    """The decisions with that on one row of the rarest class made wrong, or right if none is right."""
    changed = decided.copy()
    if target.ndim == 2:  # labels
        column = int(np.argmin(target.sum(0)))
        changed[:, column] = _with_one_row_changed(decided[:, column], target[:, column])
        return changed
    classes, counts = np.unique(target, return_counts=True)
    by_size = classes[::-1][np.argsort(counts[::-1], kind="stable")]  # of equally frequent classes the last is rarer
    of_rare = np.flatnonzero(target == by_size[0])
    hits = of_rare[decided[of_rare] == by_size[0]]
    if len(hits):
        changed[hits[0]] = by_size[-1] if len(classes) > 1 else not by_size[0]
    else:
        changed[of_rare[0]] = by_size[0]
    return changed


def _span(metric: Metric, scores: Sequence[float]) -> float:
    """The range of the metric; if that is unbounded, the size of the mean score, but at least 1."""
    low, high = metric.range
    return high - low if math.isfinite(high - low) else max(1.0, abs(float(np.nanmean(scores))))


def _bounds(metric: Metric, scores: Sequence[float]) -> tuple[float, float]:
    """The bounds of a metric as far as they hold for these scores.

    That of a formula is what a perfect prediction scores, which may depend on the rows, and which decisions may
    surpass where the user has said that less is better, or more.
    """
    low, high = metric.range if _has_one_best(metric) else (-math.inf, math.inf)
    return (
        low if np.nanmin(scores) >= low - _ROUNDING else -math.inf,
        high if np.nanmax(scores) <= high + _ROUNDING else math.inf,
    )


def _has_one_best(metric: Metric) -> bool:
    """Whether a perfect prediction scores the same for any rows, as in a rate, and unlike in a number of hits."""
    if metric.name in METRICS:
        return True
    rows, none = torch.tensor([2.0, 30.0, 7.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    return bool(torch.allclose(metric(rows, none, none, rows.flip(0)), torch.full_like(none, metric.best)))


def within(interval: tuple[float, float], bounds: tuple[float, float]) -> tuple[float, float]:
    """Clip an interval to the bounds of a metric, which Student's t does not know.

    >>> within((0.8, 1.04), (0.0, 1.0))
    (0.8, 1.0)
    """
    low, high = interval
    return max(low, bounds[0]), min(high, bounds[1])


def choose_rope(metric: Metric, baseline: Results) -> float:
    """Return the rope: absolute for rates; for metrics without a fixed scale, a share of the baseline's mean."""
    formula = metric.name not in METRICS and metric.best == 1.0 and metric.greater_is_better
    rate = (formula and _has_one_best(metric)) or all(map(math.isfinite, metric.range))
    if rate or baseline.failed is not None:
        return _ROPE
    return _ROPE * abs(float(np.nanmean([cell.score for cell in baseline.cells])))


def unmet(entries: Sequence[Entry], constraints: Sequence[Constraint]) -> list[str]:
    """Return a sentence for each constraint that some contestants violate on average."""
    said = []
    for place, constraint in enumerate(constraints):
        missed = [e for e in entries if e.failed is None and constraint.violation(e.constraints[place]) > 0]
        if missed:
            values = ", ".join(f"{e.constraints[place]:.3f} for {e.name}" for e in missed)
            said.append(f"{constraint} holds on the training rows; on rows not seen the mean is {values}.")
    return said
