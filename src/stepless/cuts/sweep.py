"""The confusion counts at every distinct cut of a set of scores, from one sort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.constraints import Constraint
from stepless.counts import Counts
from stepless.registry import Metric

Floats = NDArray[np.floating[Any]]

#: By so much values may differ that are equal but for the order in which weights were added up.
ROUNDING = 1e-12
#: So many cuts are scored at a time.
_PART = 1 << 14


@dataclass(frozen=True)
class Sweep:
    """Counts of the decisions "score ≥ cut", cut by cut from "nobody" to "everybody".

    Attributes:
        scores: The m distinct scores, descending.
        tp: The m + 1 true positives; entry k says yes to the k highest distinct scores.
        fp: The false positives there.

    Example:
        >>> swept = sweep(np.array([0.9, 0.4, 0.4, 0.1]), np.array([1, 0, 1, 0]))
        >>> swept.tp, swept.thresholds
        (array([0., 1., 2., 2.]), array([ inf, 0.65, 0.25, -inf]))
    """

    scores: Floats
    tp: Floats
    fp: Floats

    @cached_property
    def counts(self) -> Counts:
        """All four cells of every entry."""
        return self.at(slice(None))

    def at(self, entries: Any) -> Counts:
        """All four cells of one entry, or of some."""
        tp, fp = self.tp[entries], self.fp[entries]
        # the totals are the sums' own ends, so that the last cells are empty to the bit
        return Counts(tp, fp, self.tp[-1] - tp, self.fp[-1] - fp)

    def parts(self) -> Iterator[slice]:
        """The entries, so many at a time that what a formula makes of them stays in the processor's cache."""
        return (slice(start, start + _PART) for start in range(0, len(self.tp), _PART))

    @property
    def thresholds(self) -> Floats:
        """The cut of each entry: midway between the last score above it and the next below, ±inf at the ends."""
        inner = midpoints(self.scores[1:], self.scores[:-1])
        return np.concatenate([[np.inf], inner, [-np.inf]]).astype(np.float64)

    def threshold(self, entry: int) -> float:
        """The cut of one entry."""
        if entry == 0:
            return float("inf")
        if entry == len(self.scores):
            return float("-inf")
        return float(midpoints(self.scores[entry : entry + 1], self.scores[entry - 1 : entry])[0])


def sweep(scores: Floats, target: NDArray[Any], weight: Floats | None = None) -> Sweep:
    """Sort once and add up: ``target`` holds the share of each row that is positive, usually 0 or 1."""
    order = np.argsort(scores)[::-1]
    scores, target, weight = scores[order], target[order], None if weight is None else weight[order]
    del order  # what comes next takes its memory: fresh pages cost more than sums
    tp = _running(target, weight)
    if target.dtype != np.bool_:
        fp = _running(1 - target, weight)
    elif weight is not None:
        fp = _running(~target, weight)
    else:
        fp = np.arange(len(tp), dtype=np.float64)
        fp -= tp
    ends = np.append(scores[1:] != scores[:-1], True)  # the last row of each distinct score
    if ends.all():
        return Sweep(scores, tp, fp)
    last = np.flatnonzero(ends)
    entries = np.append(0, last + 1)
    return Sweep(scores[last], tp[entries], fp[entries])


def _running(values: NDArray[Any], weight: Floats | None) -> NDArray[np.float64]:
    """0, and the weighted sum up to each value."""
    sums = np.zeros(len(values) + 1)
    if weight is None and values.dtype == np.bool_ and len(values) < 2**31:
        sums[1:] = np.cumsum(values, dtype=np.int32)  # takes a fifth of the time
    else:
        np.cumsum(values if weight is None else values * weight, out=sums[1:])
    return sums


def reachable(swept: Sweep) -> Sweep:
    """The sweep as thresholds can decide: where the highest score is inf, none says no to it."""
    if len(swept.scores) == 0 or swept.scores[0] != np.inf:
        return swept
    return replace(swept, tp=np.append(swept.tp[1], swept.tp[1:]), fp=np.append(swept.fp[1], swept.fp[1:]))


def midpoints(lower: Floats, upper: Floats) -> Floats:
    """Numbers between two scores that decide as ``upper`` does even after rounding to the scores' own precision."""
    with np.errstate(invalid="ignore"):  # −inf and inf have no middle
        middle = (lower / 2 + upper / 2).astype(lower.dtype)
    return np.where(middle > lower, middle, upper)


def score_counts(metric: Metric, counts: Counts) -> Floats:
    """The metric of many yes/no decisions at once, from arrays of counts."""
    if metric.kind == "class":
        return np.asarray(metric(*counts))
    # classes and cells are the slow axes in memory: sums over them add whole arrays
    tp, fp, fn, tn = (np.asarray(c) for c in counts)
    if metric.kind == "matrix":
        matrix = np.stack([tn, fp, fn, tp]).reshape(2, 2, *tp.shape)
        return np.asarray(metric(np.moveaxis(matrix, (0, 1), (-2, -1))))
    both = ((tn, tp), (fn, fp), (fp, fn), (tp, tn))
    return np.asarray(metric(*(np.moveaxis(np.stack(pair), 0, -1) for pair in both)))


def merit(metric: Metric, values: Floats) -> Floats:
    """Values turned so that more is better; an undefined one is the worst."""
    signed = values if metric.greater_is_better else -values
    return np.where(np.isnan(signed), -np.inf, signed)


def violation(constraints: tuple[Constraint, ...], values: list[Floats]) -> Floats | float:
    """How far, in sum, the constraints are from holding; 0 where all hold."""
    total: Floats | float = 0.0
    for constraint, value in zip(constraints, values, strict=True):
        excess = constraint.violation(value)
        limit = ROUNDING * max(1.0, abs(constraint.bound))
        total = total + np.where(np.isnan(excess), np.inf, np.where(excess > limit, excess, 0.0))
    return total


def _near(merits: Floats) -> NDArray[np.bool_]:
    """Which are the highest but for rounding, which must not choose among equals."""
    best = merits.max()
    return np.asarray(merits >= best - ROUNDING * abs(best)) if np.isfinite(best) else merits == best


def best_entry(swept: Sweep, merits: Floats, broken: Floats | float = 0.0) -> int:
    """The entry of the highest merit among the least broken; of equals the one with the widest gap around its cut.

    Scores that fall near a cut may fall on its other side next time. A cut through a wide gap is the safest of equals,
    and one that decides all alike is the last resort. Where all entries are equals (a label without positives has an
    F1 of 0 at every cut) the scores say nothing, and the answer is no.
    """
    first = int(swept.scores[0] == np.inf)  # no threshold says no to a score of inf
    if isinstance(broken, float) and _near(merits).all():
        return first
    if isinstance(broken, float):
        equals = first + np.flatnonzero(_near(merits[first:]))
    else:
        allowed = first + np.flatnonzero(broken[first:] <= np.min(broken[first:]) + ROUNDING)
        equals = allowed[_near(merits[allowed])]
    inner = equals[(equals > 0) & (equals < len(swept.scores))]
    if len(inner) == 0:
        return int(equals[0])
    with np.errstate(over="ignore"):
        return int(inner[np.argmax(swept.scores[inner - 1] - swept.scores[inner])])
