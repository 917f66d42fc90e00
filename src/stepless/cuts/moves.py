"""A metric at every value of one class offset, from one sort.

As the offset of class k falls, one sample after another leaves its rival class for k. Each move changes the counts of
these two classes only, so a mean over classes changes in one class's score besides that of k. For n rows and K classes,
the sort costs O(n log n + n K) and the scores O(n), against O(n K) if all counts were scored at every value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.averaging import Average, evaluate
from stepless.cuts.sweep import Floats
from stepless.registry import Metric

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Moves:
    """Samples in the order in which they move to class ``k`` as its offset falls, and the offsets between the moves.

    Attributes:
        k: The class.
        classes: The number of classes.
        away: The class that each sample leaves.
        target: The true class of each sample.
        weight: The weight of each sample.
        offsets: Values of the offset, from "never k" to "always k".
        moved: How many samples have moved at each offset.
        gaps: The width of the interval around each offset in which nothing moves; 0 at the ends.
    """

    k: int
    classes: int
    away: Integers
    target: Integers
    weight: Floats
    offsets: Floats
    moved: Integers
    gaps: Floats

    def at(self, entries: Integers) -> Moves:
        """The same moves at some of the offsets."""
        return replace(self, offsets=self.offsets[entries], moved=self.moved[entries], gaps=self.gaps[entries])


def find_moves(log_p: Floats, shifted: Floats, target: Integers, weight: Floats, k: int) -> Moves:
    """Find the moves along the offset of class ``k``; ``shifted`` is log p minus all offsets."""
    classes = log_p.shape[1]
    own = shifted[:, k].copy()
    shifted[:, k] = -np.inf
    rival = np.argmax(shifted, 1)
    turning = log_p[:, k] - shifted[np.arange(len(rival)), rival]  # below this offset the sample moves to k
    shifted[:, k] = own
    order = np.argsort(turning)[::-1]
    turning = turning[order]
    first, end = int((turning == np.inf).sum()), int((turning > -np.inf).sum())
    finite = turning[first:end]
    last = np.flatnonzero(finite[1:] != finite[:-1])
    high, low = (finite[0] + 1, finite[-1] - 1) if len(finite) else (1.0, -1.0)
    offsets = np.concatenate([[high], (finite[last] + finite[last + 1]) / 2, [low]])
    moved = np.concatenate([[first], first + last + 1, [end]])
    gaps = np.concatenate([[0.0], finite[last] - finite[last + 1], [0.0]])
    return Moves(k, classes, rival[order], target[order], weight[order], offsets, moved, gaps)


def separates(metric: Metric) -> bool:
    """Whether the metric is a mean of one score per class, with no class left out for an undefined score."""
    mark = metric.option("zero_division")
    return metric.kind == "class" and (mark is None or not math.isnan(mark))


def values_along(moves: Moves, metric: Metric, average: Average) -> Floats:
    """Compute the metric at each offset."""
    if metric.kind == "matrix":
        return np.asarray(metric(_matrices(moves)))
    if separates(metric):
        values = _micro(moves, metric) if average == "micro" else _mean(moves, metric, average)
        if np.isfinite(values).all():  # one infinite or NaN score would spoil the rest of the running sum
            return values
    counts = _counts(moves)
    if metric.kind == "joint":
        return np.asarray(metric(*counts))
    return np.asarray(evaluate(metric, np.stack(counts, -1)[:, None, None], "multiclass", average)[:, 0, 0])


def _micro(moves: Moves, metric: Metric) -> Floats:
    total = moves.weight.sum()
    gained = moves.weight * ((moves.target == moves.k) * 1.0 - (moves.target == moves.away))
    tp = (moves.weight * (moves.target == moves.away)).sum() + _sums(gained)[moves.moved]
    tp = np.clip(tp, 0.0, total)
    return np.asarray(metric(tp, total - tp, total - tp, (moves.classes - 2) * total + tp))


def _mean(moves: Moves, metric: Metric, average: Average) -> Floats:
    k, classes, away, weight = moves.k, moves.classes, moves.away, moves.weight
    support = np.bincount(moves.target, weight, classes)
    total = support.sum()
    share = support / total if average == "weighted" else np.full(classes, 1 / classes)

    def score(tp: NDArray[Any], fp: NDArray[Any], of: Any) -> Floats:
        fn, tn = np.maximum(support[of] - tp, 0.0), np.maximum(total - support[of] - fp, 0.0)
        return np.asarray(metric(tp, fp, fn, tn) * share[of])

    right = weight * (moves.target == away)
    before = score(np.bincount(away, right, classes), np.bincount(away, weight - right, classes), slice(None))
    # samples grouped by class: the counts that are left to the class after each has gone
    by_class = np.argsort(away.astype(np.int16 if classes < 2**15 else np.int64), kind="stable")
    of = away[by_class]
    starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
    ends = np.repeat(np.append(starts[1:], len(of)), np.diff(np.append(starts, len(of))))
    after = score(_left(right[by_class], ends), _left((weight - right)[by_class], ends), of)
    change = np.empty_like(after)
    change[by_class] = np.diff(after, prepend=0.0)
    change[by_class[starts]] = after[starts] - before[of[starts]]
    change[away == k] = 0.0  # a sample that no other class can have was in k all along
    hits = weight * (moves.target == k)
    own = score(_sums(hits)[moves.moved], _sums(weight - hits)[moves.moved], k)
    return np.delete(before, k).sum() + _sums(change)[moves.moved] + own


def _left(values: Floats, ends: Integers) -> Floats:
    """Sums of the entries that follow in the same group, exactly 0 if there are none."""
    following = np.append(np.cumsum(values[::-1])[::-1], 0.0)
    return following[1:] - following[ends]


def _sums(values: Floats) -> Floats:
    """0, then the running sums."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _counts(moves: Moves) -> tuple[Floats, Floats, Floats, Floats]:
    """The four cells of all classes, each ``(offsets, K)``."""
    group, target, weight, away = _grouped(moves)
    classes, sets, of_k = moves.classes, len(moves.moved), target == moves.k

    def sums(column: Integers, values: Floats) -> Floats:
        counted = np.bincount(group * classes + column, values, sets * classes).reshape(sets, classes)
        return np.cumsum(counted, 0)

    right = moves.weight * (moves.target == moves.away)
    tp = np.bincount(moves.away, right, classes) - sums(away, weight * (target == away))
    predicted = np.bincount(moves.away, moves.weight, classes) - sums(away, weight)
    tp[:, moves.k] = np.cumsum(np.bincount(group, weight * of_k, sets))
    predicted[:, moves.k] = np.cumsum(np.bincount(group, weight, sets))
    support = np.bincount(moves.target, moves.weight, classes)
    tp = np.maximum(tp, 0.0)
    fp, fn = np.maximum(predicted - tp, 0.0), np.maximum(support - tp, 0.0)
    return tp, fp, fn, np.maximum(support.sum() - tp - fp - fn, 0.0)


def _matrices(moves: Moves) -> Floats:
    """The confusion matrices ``(offsets, K, K)``."""
    group, target, weight, away = _grouped(moves)
    classes, sets = moves.classes, len(moves.moved)
    start = np.bincount(moves.target * classes + moves.away, moves.weight, classes**2)
    index = (group * classes + target) * classes
    come, gone = (np.bincount(index + to, weight, sets * classes**2).reshape(sets, -1) for to in (moves.k, away))
    return np.maximum(start + np.cumsum(come - gone, 0), 0.0).reshape(sets, classes, classes)


def _grouped(moves: Moves) -> tuple[Integers, Integers, Floats, Integers]:
    """The samples that move, each with the first offset at which it has moved."""
    inside = int(moves.moved[-1])
    group = np.searchsorted(moves.moved, np.arange(inside), side="right")
    return group, moves.target[:inside], moves.weight[:inside], moves.away[:inside]
