"""From the cells of a comparison to its entries: means, intervals, differences, thresholds and probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepless.comparing.cells import Cell, Place
from stepless.comparing.contestants import Contestant
from stepless.comparing.correlated import are_equal, posterior
from stepless.constraints import Constraint
from stepless.metrics import METRICS
from stepless.outcome import Difference, Entry, Threshold
from stepless.registry import Metric
from stepless.rules import decisions
from stepless.tasks import Task

#: From so many rows of the rarest class in every test fold on, contestants that score alike in all folds are alike.
_ENOUGH = 10
#: Less than that, of a metric that is 1 at best, is no difference; of a cost, that share of the baseline's.
_ROPE = 0.01


@dataclass(frozen=True, eq=False)
class Results:
    """The cells of one contestant.

    Attributes:
        contestant: Who it is.
        grid: All cells.
        folds: The fold of each row in each repeat, ``(repeats, rows)``.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
    """

    contestant: Contestant
    grid: Mapping[Place, Cell]
    folds: NDArray[np.int16]
    task: Task

    @cached_property
    def cells(self) -> list[Cell]:
        """Of all folds of all repeats, in order."""
        repeats, folds = len(self.folds), int(self.folds.max()) + 1
        key = self.contestant.key
        return [self.grid[key, repeat, fold] for repeat in range(repeats) for fold in range(folds)]

    @property
    def failed(self) -> str | None:
        """The first sentence, and where it was said, unless it was said of every fold."""
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
        """Why it is no evidence to differ from the baseline by the same in every fold; None where it does not, or is.

        Equal folds have no spread, and the test would take that for certainty. That is right where many rows could have
        gone another way and did not. It is not where there are few of them, or where nothing was decided.

        Args:
            baseline: What it is compared with.
            metric: What is scored.
            fewest: How many rows of the rarest class the poorest test fold has.
        """
        if baseline is self or not are_equal(self._gaps(baseline)):
            return None
        if fewest < _ENOUGH:
            return f"a fold has as few as {fewest} row{'s' * (fewest != 1)} of the rarest class"
        if self.undecided or baseline.undecided:
            return f"{(self if self.undecided else baseline).contestant.name} decides all rows of a fold alike"
        if metric.greater_is_better and not any(cell.score for cell in self.cells):
            return "both score 0 in all of them"
        return None

    def entry(self, baseline: Results, folds: int, metric: Metric, rope: float, fewest: int) -> Entry:
        """What the table says of it.

        Args:
            baseline: What it is compared with.
            folds: In how many parts a repeat divides the rows.
            metric: What is scored.
            rope: Less than that is no difference.
            fewest: How many rows of the rarest class the poorest test fold has.
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
            # where nothing was decided, a fold says no more than one row would
            rows = fewest if fewest < _ENOUGH else 1
            step = _span(metric, scores) / max(rows, 1) if self.doubt(baseline, metric, fewest) else 0.0
            found = posterior(sign * self._gaps(baseline), folds, step)
            gap = Difference(found.mean, found.interval(), *found.split(rope))
        known = posterior(scores, folds, _span(metric, scores) / max(fewest, 1) if fewest < _ENOUGH else 0.0)
        values = np.array([cell.constraints for cell in self.cells])
        return Entry(
            contestant.key,
            contestant.name,
            tuple(scores),
            known.mean,
            within(known.interval(), metric.range),
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
        """Whether a constraint is broken beyond what chance explains: its metric's interval is all on the bad side."""
        for place, constraint in enumerate(constraints):
            known = posterior([cell.constraints[place] for cell in self.cells], folds).interval()
            if constraint.violation(known[1] if constraint.at_least else known[0]) > 0:
                return True
        return False

    def _gaps(self, baseline: Results) -> NDArray[np.float64]:
        """Its scores minus the baseline's, where both are defined."""
        gaps = np.array([a.score - b.score for a, b in zip(self.cells, baseline.cells, strict=True)])
        return gaps[np.isfinite(gaps)]

    def _seconds(self) -> float:
        return float(np.mean([cell.seconds for cell in self.cells]))

    def _threshold(self) -> Threshold:
        with np.errstate(invalid="ignore"):  # between no and yes to everything there is no middle
            middle = np.median(np.array([cell.threshold for cell in self.cells]), axis=0)
        return float(middle) if middle.ndim == 0 else tuple(middle.tolist())

    def _whole(self, what: str) -> NDArray[np.float64]:
        """Of all rows, from the folds of the first repeat."""
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


def _span(metric: Metric, scores: Sequence[float]) -> float:
    """From the worst score to the best; of a metric without bounds, about as much as is scored."""
    low, high = metric.range
    return high - low if math.isfinite(high - low) else max(1.0, abs(float(np.nanmean(scores))))


def within(interval: tuple[float, float], bounds: tuple[float, float]) -> tuple[float, float]:
    """An interval without what cannot be: Student's t knows no bounds, and many metrics do.

    >>> within((0.8, 1.04), (0.0, 1.0))
    (0.8, 1.0)
    """
    low, high = interval
    return max(low, bounds[0]), min(high, bounds[1])


def choose_rope(metric: Metric, baseline: Results) -> float:
    """An absolute one for rates; of what has no scale of its own, a share of the baseline's mean."""
    formula = metric.name not in METRICS and metric.best == 1.0 and metric.greater_is_better
    rate = formula or all(map(math.isfinite, metric.range))
    if rate or baseline.failed is not None:
        return _ROPE
    return _ROPE * abs(float(np.nanmean([cell.score for cell in baseline.cells])))


def unmet(entries: Sequence[Entry], constraints: Sequence[Constraint]) -> list[str]:
    """A sentence for each constraint that does not hold, on average, for some of the contestants."""
    said = []
    for place, constraint in enumerate(constraints):
        missed = [e for e in entries if e.failed is None and constraint.violation(e.constraints[place]) > 0]
        if missed:
            values = ", ".join(f"{e.constraints[place]:.3f} for {e.name}" for e in missed)
            said.append(f"{constraint} holds on the training rows; on rows not seen the mean is {values}.")
    return said
