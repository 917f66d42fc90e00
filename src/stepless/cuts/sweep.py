"""Confusion counts at every distinct cut of a set of scores, from one sort."""

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

#: Relative tolerance for values that differ only in the order in which weights were summed.
ROUNDING = 1e-12
#: How many cuts are scored at a time.
_PART = 1 << 14


@dataclass(frozen=True)
class Sweep:
    """Counts of the decisions "score ≥ cut", from the cut that accepts no row to the one that accepts all.

    Attributes:
        scores: The m distinct scores, descending.
        tp: The m + 1 true positives; entry k accepts the k highest distinct scores.
        fp: The m + 1 false positives.

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
        """All four cells at every entry."""
        return self.at(slice(None))

    def at(self, entries: Any) -> Counts:
        """All four cells at one entry or several."""
        tp, fp = self.tp[entries], self.fp[entries]
        # with the running sums' own last values as totals, the last fn and tn are exactly 0
        return Counts(tp, fp, self.tp[-1] - tp, self.fp[-1] - fp)

    def parts(self) -> Iterator[slice]:
        """The entries in slices small enough that a formula's intermediate arrays stay in the processor's cache."""
        return (slice(start, start + _PART) for start in range(0, len(self.tp), _PART))

    @property
    def thresholds(self) -> Floats:
        """The threshold of each entry: midway between the scores on either side, ±inf at the ends."""
        inner = midpoints(self.scores[1:], self.scores[:-1])
        return np.concatenate([[np.inf], inner, [-np.inf]]).astype(np.float64)

    def threshold(self, entry: int) -> float:
        """The threshold of one entry."""
        if entry == 0:
            return float("inf")
        if entry == len(self.scores):
            return float("-inf")
        return float(midpoints(self.scores[entry : entry + 1], self.scores[entry - 1 : entry])[0])


def sweep(scores: Floats, target: NDArray[Any], weight: Floats | None = None) -> Sweep:
    """Sort once and accumulate; ``target`` holds the share of each row that is positive, usually 0 or 1."""
    order = np.argsort(scores)[::-1]
    scores, target, weight = scores[order], target[order], None if weight is None else weight[order]
    del order  # the sums below reuse its memory: fresh pages cost more than the sums themselves
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
    """0, then the weighted sum up to and including each value."""
    sums = np.zeros(len(values) + 1)
    if weight is None and values.dtype == np.bool_ and len(values) < 2**31:
        sums[1:] = np.cumsum(values, dtype=np.int32)  # takes a fifth of the time
    else:
        np.cumsum(values if weight is None else values * weight, out=sums[1:])
    return sums


def reachable(swept: Sweep) -> Sweep:
    """Replace the first entry if the highest score is inf, which no threshold rejects."""
    if len(swept.scores) == 0 or swept.scores[0] != np.inf:
        return swept
    return replace(swept, tp=np.append(swept.tp[1], swept.tp[1:]), fp=np.append(swept.fp[1], swept.fp[1:]))


def midpoints(lower: Floats, upper: Floats) -> Floats:
    """Thresholds between neighbouring scores that still separate them after rounding to the scores' precision."""
    with np.errstate(invalid="ignore"):  # −inf and inf have no middle
        middle = (lower / 2 + upper / 2).astype(lower.dtype)
    return np.where(middle > lower, middle, upper)


def outcomes(yes: NDArray[np.bool_], truth: NDArray[Any]) -> Counts:
    """Each decision's share in the four cells; ``truth`` holds the share of each that is positive."""
    return Counts(yes * truth, yes * (1 - truth), ~yes * truth, ~yes * (1 - truth))


def score_counts(metric: Metric, counts: Counts) -> Floats:
    """Compute the metric of many binary decisions at once, from arrays of counts."""
    if metric.kind == "class":
        return np.asarray(metric(*counts))
    # with classes and cells as the slow axes in memory, sums over them add whole arrays
    tp, fp, fn, tn = (np.asarray(c) for c in counts)
    if metric.kind == "matrix":
        matrix = np.stack([tn, fp, fn, tp]).reshape(2, 2, *tp.shape)
        return np.asarray(metric(np.moveaxis(matrix, (0, 1), (-2, -1))))
    both = ((tn, tp), (fn, fp), (fp, fn), (tp, tn))
    return np.asarray(metric(*(np.moveaxis(np.stack(pair), 0, -1) for pair in both)))


def merit(metric: Metric, values: Floats) -> Floats:
    """Orient values so that greater is better; an undefined value becomes −inf."""
    signed = values if metric.greater_is_better else -values
    return np.where(np.isnan(signed), -np.inf, signed)


def violation(constraints: tuple[Constraint, ...], values: list[Floats]) -> Floats | float:
    """Sum of the amounts by which constraints are violated; 0 where all hold."""
    total: Floats | float = 0.0
    for constraint, value in zip(constraints, values, strict=True):
        excess = constraint.violation(value)
        limit = ROUNDING * max(1.0, abs(constraint.bound))
        total = total + np.where(np.isnan(excess), np.inf, np.where(excess > limit, excess, 0.0))
    return total


def _near(merits: Floats) -> NDArray[np.bool_]:
    """Which merits equal the highest up to rounding, which must not decide between them."""
    best = merits.max()
    return np.asarray(merits >= best - ROUNDING * abs(best)) if np.isfinite(best) else merits == best


def best_entry(swept: Sweep, merits: Floats, broken: Floats | float = 0.0) -> int:
    """The entry of highest merit among the least broken; among equals, the one with the widest gap around its cut.

    New scores near a cut may fall on either side of it, so a cut through a wide gap is the safest of equals, and one
    that decides all rows alike is the last resort. If all entries are equal (a label without positives has an F1 of 0
    at every cut), the scores carry no information, and the answer is no for every row.
    """
    if isinstance(broken, float):
        equals = np.flatnonzero(_near(merits))
        if len(equals) == len(merits):
            return 0
    else:
        allowed = np.flatnonzero(broken <= np.min(broken) + ROUNDING)
        equals = allowed[_near(merits[allowed])]
    inner = equals[(equals > 0) & (equals < len(swept.scores))]
    if len(inner) == 0:
        return int(equals[0])
    with np.errstate(over="ignore"):
        return int(inner[np.argmax(swept.scores[inner - 1] - swept.scores[inner])])
