"""Class offsets: the multiclass counterpart of a threshold, by coordinate ascent.

A sample goes to class argmax(log p − o). Along one offset, with the others fixed, each sample changes its class at one
value, so one sort gives the counts at every value that matters; the best is exact along that coordinate. The search
goes round the classes until nothing improves, from no offsets, from the classes' frequencies and from a few random
starts. It never ends below the score of its first start, which is plain argmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.averaging import evaluate
from stepless.counts import counts_of
from stepless.numerics import as_tuple
from stepless.sweep import Floats, merit, violation
from stepless.tuning import Job, Tuning, infeasible

Integers = NDArray[np.integer[Any]]

#: How many candidates × classes (× classes, for the matrix) one coordinate looks at; more are thinned out evenly.
_LARGEST_TABLE = 4_000_000
_ROUNDS = 20

#: From tables (candidates, K, 4) or (candidates, K, K) to a key for each candidate: (−violation, merit).
Judge = Callable[[Floats], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Problem:
    """What is fixed during a search: log-probabilities, true classes, weights, and how a table is judged."""

    log_p: Floats
    target: Integers
    weight: Floats
    matrix: bool
    judge: Judge

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.log_p.shape[1]

    def decide(self, offsets: Floats) -> Integers:
        """The class of each sample, the lowest index on ties."""
        return np.argmax(self.log_p - offsets, 1)

    def table(self, decided: Integers) -> Floats:
        """The counts of one set of decisions: cells (K, 4), or the matrix (K, K)."""
        k = self.classes
        matrix: Floats = np.bincount(self.target * k + decided, self.weight, k * k).reshape(k, k).astype(np.float64)
        return matrix if self.matrix else _cells(matrix.diagonal(), matrix.sum(0), matrix.sum(1))


def search(problem: Problem, restarts: int, rng: np.random.Generator) -> tuple[Floats, tuple[float, float]]:
    """The best offsets found, and their key."""
    frequency = np.bincount(problem.target, problem.weight, problem.classes)
    prior = np.log(np.maximum(frequency, 1e-12 * frequency.sum()) / frequency.sum())
    starts = [np.zeros(problem.classes), prior - prior.mean()]
    starts += [rng.normal(size=problem.classes) for _ in range(restarts)]
    found = [_ascend(problem, start) for start in starts]
    best = max(
        range(len(found)), key=lambda i: found[i][1]
    )  # the first of equals, and so no offsets where they suffice
    return found[best]


def _ascend(problem: Problem, offsets: Floats) -> tuple[Floats, tuple[float, float]]:
    offsets = offsets.astype(np.float64)
    key = _key(problem, problem.table(problem.decide(offsets)))
    for _ in range(_ROUNDS):
        before = key
        for k in range(problem.classes):
            candidates, tables = _along(problem, offsets, k)
            broken, merits = problem.judge(tables)
            best = np.lexsort((merits, -broken))[-1]
            trial = offsets.copy()
            trial[k] = candidates[best]
            trial_key = _key(problem, problem.table(problem.decide(trial)))  # as it will be decided, ties and all
            if trial_key > key:
                offsets, key = trial, trial_key
        if key == before:
            break
    centred = offsets - offsets.mean()
    centred_key = _key(problem, problem.table(problem.decide(centred)))
    return (centred, centred_key) if centred_key >= key else (offsets, key)


def _key(problem: Problem, table: Floats) -> tuple[float, float]:
    broken, merits = problem.judge(table[None])
    return -float(broken[0]), float(merits[0])


def _along(problem: Problem, offsets: Floats, k: int) -> tuple[Floats, Floats]:
    """Values for the offset of class ``k`` and the counts at each, from "never k" to "always k"."""
    shifted = problem.log_p - offsets
    shifted[:, k] = -np.inf
    rival = np.argmax(shifted, 1)
    turning = problem.log_p[:, k] - shifted[np.arange(len(rival)), rival]  # below this offset the sample goes to k
    order = np.argsort(-turning, kind="stable")
    turning = turning[order]
    last = np.flatnonzero(turning[1:] != turning[:-1])
    size = problem.classes * (problem.classes if problem.matrix else 4)
    keep = max(2, _LARGEST_TABLE // size)
    if len(last) > keep:
        last = last[np.linspace(0, len(last) - 1, keep).astype(int)]
    finite = np.isfinite(turning[last]) & np.isfinite(turning[last + 1])
    last = last[finite]
    ends = turning[np.isfinite(turning)]
    high, low = (ends[0] + 1, ends[-1] - 1) if len(ends) else (1.0, -1.0)
    values = np.concatenate([[high], (turning[last] + turning[last + 1]) / 2, [low]])
    moved = np.concatenate(
        [[(turning == np.inf).sum()], last + 1, [np.isfinite(turning).sum() + (turning == np.inf).sum()]]
    ).astype(int)
    return values, _tables(problem, k, rival, order, moved)


def _tables(problem: Problem, k: int, rival: Integers, order: Integers, moved: Integers) -> Floats:
    """Counts after the first ``moved`` samples of ``order`` went from their rival class to class ``k``."""
    classes, target, weight = problem.classes, problem.target[order], problem.weight[order]
    away = rival[order]
    # which candidate a sample belongs to: the first one that has moved it
    group = np.searchsorted(moved, np.arange(len(order)), side="right")
    inside = group < len(moved)
    group, target, weight, away = group[inside], target[inside], weight[inside], away[inside]
    start, to_k = problem.table(rival), np.full_like(group, k)
    if problem.matrix:
        change = np.zeros((len(moved), classes, classes))
        np.add.at(change, (group, target, away), -weight)
        np.add.at(change, (group, target, to_k), weight)
        return np.maximum(start + np.cumsum(change, 0), 0.0)
    predicted, tp = np.zeros((len(moved), classes)), np.zeros((len(moved), classes))
    np.add.at(predicted, (group, away), -weight)
    np.add.at(predicted, (group, to_k), weight)
    np.add.at(tp, (group, away), -weight * (target == away))
    np.add.at(tp, (group, to_k), weight * (target == k))
    support = start[:, 0] + start[:, 2]
    tp = np.maximum(start[:, 0] + np.cumsum(tp, 0), 0.0)
    predicted = np.maximum(start[:, 0] + start[:, 1] + np.cumsum(predicted, 0), 0.0)
    return _cells(tp, predicted, support)


def _cells(tp: Floats, predicted: Floats, support: Floats) -> Floats:
    fp, fn = np.maximum(predicted - tp, 0.0), np.maximum(support - tp, 0.0)
    return np.stack([tp, fp, fn, np.maximum(support.sum() - tp - fp - fn, 0.0)], -1)


def tune_offsets(job: Job, log_p: Floats, y: np.ndarray[Any, Any], w: Floats | None) -> Tuning:
    """One offset a class, to be subtracted from the log-probabilities before the argmax."""
    metrics = (job.metric, *(c.metric for c in job.constraints))
    matrix = any(m.kind == "matrix" for m in metrics)

    def values(tables: Floats) -> list[Floats]:
        table = tables[:, None, None]  # (candidates, thresholds, units, K, …)
        return [np.asarray(evaluate(m, table, "multiclass", job.average, matrix=matrix)[:, 0, 0]) for m in metrics]

    def judge(tables: Floats) -> tuple[Floats, Floats]:
        own, *held = values(tables)
        broken = np.broadcast_to(violation(job.constraints, held), own.shape)
        return np.asarray(broken), merit(job.metric, own)

    weight = np.ones(len(y)) if w is None else w
    problem = Problem(log_p, y, weight, matrix, judge)
    found, key = search(problem, job.restarts, np.random.default_rng(job.random_state))
    table = problem.table(problem.decide(found))
    if key[0] < 0:
        raise infeasible(job.constraints, values(table[None])[1:], searched=True)

    def again(times: Floats) -> Tuning:
        kept = times > 0
        quick = replace(job, restarts=0)
        return tune_offsets(quick, log_p[kept], y[kept], (weight * times)[kept])

    def score_at(threshold: Any, times: Floats) -> float:
        resampled = Problem(log_p, y, weight * times, matrix, judge)
        return float(values(resampled.table(resampled.decide(np.array(threshold)))[None])[0][0])

    cells = table if not matrix else Problem(log_p, y, weight, False, judge).table(problem.decide(found))
    value = float(values(table[None])[0][0])
    return Tuning(
        as_tuple(found), value, counts_of(cells), job.task, job.inputs, (), job.metric, again, score_at, len(y)
    )
