"""Fitting the map of a calibration to out-of-fold scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.models.calibration import BEND, CAP, Calibration, Curve, Curves, Floats, Temperature, bent

#: The most pieces of a curve, and the fewest rows of the rarer class for each of them.
_PIECES, _ROWS_PER_PIECE = 8, 10
#: The strength of the prior on the slopes, and the most groups that scores are put into.
_STRENGTH, _GROUPS = 0.5, 4096


def fit_calibration(scores: Any, target: Any, weight: Any = None, task: str = "binary") -> Calibration:
    """Fit the map that turns scores into probabilities to out-of-fold scores.

    Args:
        scores: Binary ``(N,)`` and multilabel ``(N, L)``: logits; multiclass ``(N, K)``: log-probabilities. They may be
            infinite.
        target: ``(N,)`` or ``(N, L)`` of 0 and 1, or ``(N,)`` class indices.
        weight: ``(N,)``, or None. Only its ratios matter.
        task: ``"binary"``, ``"multilabel"`` or ``"multiclass"``.

    Example:
        >>> over_confident = np.array([-8.0, -8.0, -8.0, -8.0, 8.0, 8.0, 8.0, 8.0] * 50)
        >>> target = np.array([0, 0, 0, 1, 0, 1, 1, 1] * 50)
        >>> calibration = fit_calibration(over_confident, target)
        >>> calibration.probabilities([-8.0, 8.0]).round(2)
        array([0.25, 0.75])
    """
    s, y = np.asarray(scores, np.float64), np.asarray(target)
    if task not in ("binary", "multilabel", "multiclass"):
        raise ValueError(f"task must be binary, multilabel or multiclass; got {task!r}.")
    shape = s.shape[:1] if task == "multiclass" else s.shape
    if s.ndim != (1 if task == "binary" else 2) or y.shape != shape or s.size == 0:
        raise ValueError(f"{task} scores and targets do not go together: their shapes are {s.shape} and {y.shape}.")
    if np.isnan(s).any():
        raise ValueError("scores must be numbers to be calibrated; got NaN. Did training diverge?")
    w = np.ones(len(s)) if weight is None else np.asarray(weight, np.float64)
    if w.shape != (len(s),) or not (np.isfinite(w).all() and (w >= 0).all() and w.sum() > 0):
        raise ValueError(f"weight must be {len(s)} finite numbers of 0 or more, not all 0; got shape {w.shape}.")
    w = w / w.max()
    kept = w > 1e-12  # smaller weights change nothing, and would round to 0 below
    s, y, w = s[kept], y[kept], w[kept]
    w = w * (w.sum() / (w @ w))  # now they sum to the effective number of rows
    if task == "multiclass":
        return _fit_temperature(s, y.astype(np.int64), w)
    columns = zip(s.reshape(len(s), -1).T, y.reshape(len(s), -1).T, strict=True)
    return Curves(task, tuple(_fit_curve(column, yes.astype(bool), w) for column, yes in columns))


# ---------------------------------------------------------------------------------------------------------------------
# Fits
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """Rows of neighbouring scores merged: their mean score, and the weights of positives and of negatives."""

    score: Floats
    positive: Floats
    negative: Floats


def _fit_curve(s: Floats, y: NDArray[np.bool_], w: Floats) -> Curve:
    """Fit a straight line (Platt 1999), then a slope for each piece of it.

    Each slope has a Gamma prior with its mode at the line's slope: with few rows the line stays, and no slope reaches
    0. Targets are Platt's (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), which keep logits finite for one class or a perfect split.
    """
    groups = _group(bent(s), y, w)
    points = _points(groups)
    base = math.log((groups.positive.sum() + 1) / (groups.negative.sum() + 1))
    middle, line = _slopes(groups, points[[0, -1]], (base, 0.05), prior=1.0, strength=1.0)
    middle, slopes = _slopes(groups, points, (middle, line[0]), prior=line[0], strength=_STRENGTH)
    logits = np.concatenate([[0.0], np.cumsum(slopes * np.diff(points))])
    logits += middle - np.interp(0.0, points, logits)
    # The ramp keeps logits increasing where they are clipped and where a slope rounds to 0.
    logits = np.clip(logits, 0.1 - CAP, CAP - 0.1) + np.linspace(-1e-3, 1e-3, len(points))
    return Curve(tuple(points.tolist()), tuple(logits.tolist()))


def _group(s: Floats, y: NDArray[np.bool_], w: Floats) -> _Groups:
    order = np.argsort(s, kind="stable")
    s, y, w = s[order], y[order], w[order]
    positive, negative = np.where(y, w, 0.0), np.where(y, 0.0, w)
    _, group = np.unique(
        s if len(s) <= _GROUPS else np.floor(_GROUPS * _reached(positive, negative)), return_inverse=True
    )
    total, *sums = (np.bincount(group, x).astype(np.float64) for x in (w, w * s, positive, negative))
    return _Groups(sums[0] / total, sums[1], sums[2])


def _reached(positive: Floats, negative: Floats) -> Floats:
    """The share of the rows up to each score, with both classes weighted alike."""
    mass = np.cumsum(positive) / max(positive.sum(), 1e-300) + np.cumsum(negative) / max(negative.sum(), 1e-300)
    return mass / mass[-1]


def _points(groups: _Groups) -> Floats:
    """Where pieces meet: the two infinities, the least and greatest score, and as many quantiles as the rows allow."""
    rarer = min(groups.positive.sum(), groups.negative.sum())
    pieces = min(_PIECES, max(1, int(rarer / _ROWS_PER_PIECE)))
    reached = _reached(groups.positive, groups.negative)
    inner = groups.score[np.searchsorted(reached, np.arange(1, pieces) / pieces)]
    inner = np.unique(np.concatenate([groups.score[[0, -1]], inner]))
    inner = inner[np.abs(inner) < 2 * BEND - 1e-3]
    inner = inner[np.diff(inner, prepend=-np.inf) > 1e-6]
    return np.concatenate([[-2 * BEND], inner, [2 * BEND]])


def _slopes(
    groups: _Groups, points: Floats, start: tuple[float, float], prior: float, strength: float
) -> tuple[float, Floats]:
    """The logit of a score of 0 and the slope of each piece, by Newton's method from the straight line ``start``."""
    yes, no = groups.positive.sum(), groups.negative.sum()
    high, low = (yes + 1) / (yes + 2), 1 / (no + 2)
    hits = groups.positive * high + groups.negative * low
    total = groups.positive + groups.negative
    ramps = np.clip(groups.score[:, None] - points[:-1], 0.0, np.diff(points))
    ramps -= np.clip(-points[:-1], 0.0, np.diff(points))
    design = np.concatenate([np.ones((len(total), 1)), ramps], 1)

    def cost(x: Floats) -> float:
        z = design @ x
        relative = x[1:] / prior
        return float(total @ np.logaddexp(0.0, z) - hits @ z + strength * (relative - np.log(relative)).sum())

    x = np.concatenate([[start[0]], np.full(len(points) - 1, start[1])])
    now = cost(x)
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ x, -500, 500)))
        gradient = design.T @ (total * p - hits)
        gradient[1:] += strength * (1 / prior - 1 / x[1:])
        curvature = design.T @ (design * (total * p * (1 - p))[:, None])
        curvature[np.diag_indices(len(x))] += np.concatenate([[1e-9], strength / x[1:] ** 2])
        step = -np.linalg.solve(curvature, gradient)
        falling = step[1:] < 0
        size = min(1.0, 0.9 * float(np.min(-x[1:][falling] / step[1:][falling], initial=np.inf)))
        while (then := cost(x + size * step)) > now + 1e-4 * size * float(gradient @ step) and size > 1e-10:
            size /= 2
        if then >= now:
            break
        done = now - then < 1e-10 * (1 + abs(now))
        x, now = x + size * step, then
        if done:
            break
    return float(x[0]), x[1:]


def _fit_temperature(s: Floats, y: NDArray[np.int64], w: Floats) -> Temperature:
    """The most probable temperature under a prior around 1, by golden-section search over its logarithm."""
    rows = np.arange(len(s))

    def cost(log_t: float) -> float:
        log_p = Temperature(math.exp(log_t)).log_probabilities(s)
        return float(-(w @ log_p[rows, y])) + math.exp(-log_t) + log_t

    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(0.02), math.log(50.0)
    left, right = high - golden * (high - low), low + golden * (high - low)
    costs = cost(left), cost(right)
    while high - low > 1e-3:
        if costs[0] <= costs[1]:
            high, right, left = right, left, right - golden * (right - low)
            costs = cost(left), costs[0]
        else:
            low, left, right = left, right, left + golden * (high - left)
            costs = costs[1], cost(right)
    return Temperature(math.exp((low + high) / 2))
