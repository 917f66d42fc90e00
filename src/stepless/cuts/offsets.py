"""Class offsets: the multiclass counterpart of a threshold, by coordinate ascent.

A sample goes to class argmax(log p − o). Along one offset, with the others fixed, each sample changes its class at one
value, so one sort gives the metric at every value that matters (`stepless.cuts.moves`), and the best along that
coordinate is exact. The search cycles through the classes until nothing improves. It starts from zero offsets, from the
log frequencies of the classes, and from a few random offsets; as the first start is plain argmax, the result never
scores below it. With few rows, every decision that any two offsets can produce is tried too; with three classes, these
are all the decisions there are.

Constraints come first: as long as they are violated, the search reduces the violation. If it ends with one, it starts
again from where each constraint's own metric is best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from stepless.averaging import evaluate
from stepless.constraints import Constraint
from stepless.counts import cells_of, counts_of
from stepless.cuts.moves import Integers, Moves, find_moves, separates, values_along
from stepless.cuts.sweep import Floats
from stepless.cuts.tuning import Data, Job, Key, Tuning, improves, infeasible
from stepless.numerics import as_tuple

#: The most numbers that an exhaustive search over two offsets may hold.
_LARGEST_TRY = 200_000
#: The most rows among which duplicates are merged before that search is considered.
_MOST_ROWS = 1_000
#: The most numbers that the counts along one offset may hold, and how many values of it are scored in any case.
_LARGEST_TABLE, _FEWEST = 100_000, 64
#: A search usually ends after a few rounds, when one changes nothing.
_ROUNDS = 20

Found = tuple[Floats, Key]


@dataclass(frozen=True)
class Problem:
    """What is fixed during a search: log-probabilities, true classes, weights and the job."""

    log_p: Floats
    target: Integers
    weight: Floats
    job: Job

    @cached_property
    def size(self) -> int:
        """How many numbers one value of an offset takes, for the job's largest metric."""
        sizes = {"class": 4 * self.classes, "joint": 4 * self.classes, "matrix": self.classes**2}
        return max(1 if separates(metric) else sizes[metric.kind] for metric in self.job.metrics)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.log_p.shape[1]

    def decide(self, offsets: Floats) -> Integers:
        """The class of each sample, the lowest index on ties."""
        return np.argmax(self.log_p - offsets, -1)

    def matrices(self, decided: Integers) -> Floats:
        """The confusion matrices ``(sets, K, K)`` of sets of decisions ``(sets, rows)``."""
        k, sets = self.classes, len(decided)
        index = (np.arange(sets)[:, None] * k + self.target) * k + decided
        weight = np.broadcast_to(self.weight, index.shape).ravel()
        return np.bincount(index.ravel(), weight, sets * k * k).reshape(sets, k, k).astype(np.float64)

    def values(self, decided: Integers) -> list[Floats]:
        """The job's metrics of sets of decisions ``(sets, rows)``."""
        table = self.matrices(decided)[:, None, None]  # (sets, thresholds, units, K, K)
        average = self.job.average
        return [np.asarray(evaluate(m, table, "multiclass", average, matrix=True)[:, 0, 0]) for m in self.job.metrics]

    def along(self, moves: Moves) -> list[Floats]:
        """The job's metrics along one offset."""
        return [values_along(moves, metric, self.job.average) for metric in self.job.metrics]

    def key(self, offsets: Floats) -> Key:
        """The key of the decisions that these offsets make, ties included."""
        return self.job.best(self.values(self.decide(offsets)[None]))[1]


def search(problem: Problem, rng: np.random.Generator) -> Found:
    """The best offsets found, and their key."""
    found = _search_once(problem, rng)
    if found[1][0] < 0:
        for constraint in problem.job.constraints:
            aimed = replace(problem, job=problem.job.aimed_at(constraint, problem.job.others(constraint)))
            found = _better(found, _ascend(problem, _search_once(aimed, rng)[0]))
    return found


def _search_once(problem: Problem, rng: np.random.Generator) -> Found:
    frequency = np.bincount(problem.target, problem.weight, problem.classes)
    prior = np.log(np.maximum(frequency, 1e-12 * frequency.sum()) / frequency.sum())
    found = _ascend(problem, np.zeros(problem.classes))  # wins ties, so offsets stay 0 if that suffices
    found = _better(found, _ascend(problem, prior - prior.mean()))
    for _ in range(problem.job.restarts):
        found = _better(found, _ascend(problem, rng.normal(size=problem.classes)))
    return _ascend_pairs(problem, found)


def _better(found: Found, other: Found) -> Found:
    return other if other[1] > found[1] else found


def _ascend(problem: Problem, offsets: Floats) -> Found:
    """Improve one offset at a time until no single one improves."""
    offsets = offsets.astype(np.float64)
    shifted, key = problem.log_p - offsets, problem.key(offsets)
    for _ in range(_ROUNDS):
        before = key
        for k in range(problem.classes):
            moves = find_moves(problem.log_p, shifted, problem.target, problem.weight, k)
            offset, promised = _best_along(problem, moves)
            if not improves(promised, key):
                continue
            trial = offsets.copy()
            trial[k] = offset
            trial_key = problem.key(trial)
            if trial_key > key:
                offsets, key = trial, trial_key
                shifted[:, k] = problem.log_p[:, k] - trial[k]
        if key == before:
            break
    return _centred(problem, (offsets, key))


def _best_along(problem: Problem, moves: Moves) -> tuple[float, Key]:
    """The best offset of one class and its key; if all values take too much memory, search coarsely, then finely."""
    keep = max(_FEWEST, _LARGEST_TABLE // problem.size)
    if len(moves.moved) <= 2 * keep:
        best, key = problem.job.best(problem.along(moves), moves.gaps)
        return float(moves.offsets[best]), key
    # the values that few samples have passed, where the best usually is, and a sample of the others
    few = np.unique(
        np.append(np.arange(keep // 2), np.linspace(keep // 2, len(moves.moved) - 1, keep // 2).astype(int))
    )
    best, key = problem.job.best(problem.along(moves.at(few)), moves.gaps[few])
    low, high = few[max(best - 1, 0)], few[min(best + 1, len(few) - 1)]
    near = np.unique(np.linspace(low, high, min(keep, high - low + 1)).astype(int))
    best_near, key_near = problem.job.best(problem.along(moves.at(near)), moves.gaps[near])
    if key_near > key:
        return float(moves.offsets[near[best_near]]), key_near
    return float(moves.offsets[few[best]]), key


def _centred(problem: Problem, found: Found) -> Found:
    """The offsets shifted to a mean of 0, unless rounding makes them worse."""
    centred = found[0] - found[0].mean()
    key = problem.key(centred)
    return (centred, key) if key >= found[1] else found


def _ascend_pairs(problem: Problem, found: Found) -> Found:
    """Improve two offsets at a time over every decision they can produce, if that is cheap."""
    if problem.classes < 3 or len(problem.target) > _MOST_ROWS:
        return found
    problem = _merged(problem)
    rows, classes = problem.log_p.shape
    tries = (rows**2 + rows + 1) * (2 * rows + 1) * classes * (classes - 1) / 6
    if tries * rows * classes > _LARGEST_TRY:
        return found
    pairs = list(combinations(range(classes), 2))
    for _ in range(_ROUNDS):
        before = found[1]
        for pair in pairs[-1:] if classes == 3 else pairs:
            tried = _try_pair(problem, found[0], *pair)
            best, key = problem.job.best(problem.values(problem.decide(tried[:, None])))
            if key > found[1]:
                found = tried[best], key
        if found[1] == before or classes == 3:  # two of three offsets reach every decision
            break
    return _centred(problem, found)


def _merged(problem: Problem) -> Problem:
    """The same problem with equal rows merged and their weights summed."""
    alike = np.column_stack([problem.log_p, problem.target])
    rows, index = np.unique(alike, axis=0, return_inverse=True)
    weight = np.bincount(index.ravel(), problem.weight).astype(np.float64)
    return replace(problem, log_p=rows[:, :-1], target=rows[:, -1].astype(np.int64), weight=weight)


def _try_pair(problem: Problem, offsets: Floats, j: int, k: int) -> Floats:
    """Offsets that produce every decision that varying those of classes ``j`` and ``k`` can produce.

    A row changes its class only across its own lines o_j = a, o_k = b and o_k − o_j = b − a. The first offset takes one
    value between any two crossings of these lines, and for each, the second takes one value between any two lines.
    """
    shifted = problem.log_p - offsets
    shifted[:, [j, k]] = -np.inf
    with np.errstate(invalid="ignore"):  # a class ruled out by −inf has no line
        one, two = (problem.log_p[:, c] - shifted.max(1) for c in (j, k))
        apart = problem.log_p[:, k] - problem.log_p[:, j]
        crossings = np.concatenate([one, np.subtract.outer(two, apart).ravel()])
    tried = [(a, b) for a in _between(crossings) for b in _between(np.concatenate([two, a + apart]))]
    every = np.repeat(offsets[None], len(tried), 0)
    every[:, [j, k]] = tried
    return every


def _between(points: Floats) -> Floats:
    """One number between any two neighbouring finite points, and one beyond each end."""
    points = np.unique(points[np.isfinite(points)])
    if len(points) == 0:
        return np.zeros(1)
    return np.concatenate([[points[0] - 1], (points[1:] + points[:-1]) / 2, [points[-1] + 1]])


class ClassData(Data):
    """Log-probabilities ``(N, K)`` and true classes."""

    def tune(self) -> Tuning:
        """Find one offset per class, to be subtracted from the log-probabilities before the argmax."""
        if len(np.unique(self.y)) < 2:
            raise ValueError(f"the target has one class only ({self.y[0]}): no offsets can be told from others.")
        problem, job = self._problem(), self.job
        rng = np.random.default_rng(job.random_state)
        offsets, key = search(problem, rng)
        if key[0] < 0:
            raise infeasible(job, lambda c, others: _best_found(problem, c, others, rng), searched=True)
        counts = counts_of(cells_of(problem.matrices(problem.decide(offsets)[None])[0]))
        return Tuning(as_tuple(offsets), self.score(offsets), counts, job.task, job.inputs, (), job.metric, self)

    def score(self, threshold: Any) -> float:
        """Compute the metric of the decisions that these offsets make."""
        problem = self._problem()
        return float(problem.values(problem.decide(np.array(threshold))[None])[0][0])

    def resample(self, times: Floats) -> ClassData:
        """Repeat each row the given number of times, and tune without random starts."""
        sample = super().resample(times)
        return replace(sample, job=replace(self.job, restarts=0))

    def _problem(self) -> Problem:
        return Problem(self.x, self.y, self.weight, self.job)


def _best_found(
    problem: Problem, constraint: Constraint, others: tuple[Constraint, ...], rng: np.random.Generator
) -> float:
    """The best value found of a constraint's metric where others hold; NaN if they could not be met."""
    aimed = replace(problem, job=problem.job.aimed_at(constraint, others))
    offsets, key = _search_once(aimed, rng)
    return math.nan if key[0] < 0 else float(aimed.values(aimed.decide(offsets)[None])[0][0])
