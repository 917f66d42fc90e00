"""Curves over all thresholds of binary scores: ROC, precision–recall, a metric, a cost, the net benefit.

Each curve is a named tuple of arrays of one length, from the highest threshold (no row is positive) to the lowest (all
are). Thresholds lie midway between two distinct scores, as those of `tune_threshold` do; at the ends they are ±inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepless.cuts.sweep import Floats, Sweep, score_counts, sweep
from stepless.formula import resolve
from stepless.metrics import METRICS
from stepless.ranking import find_ranking
from stepless.registry import Metric
from stepless.thresholds import tune_threshold


class Roc(NamedTuple):
    """A ROC curve: false and true positive rates at each threshold."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats

    @property
    def area(self) -> float:
        """The area under the curve: AUROC."""
        return float(np.trapezoid(self.tpr, self.fpr))


class PrecisionRecall(NamedTuple):
    """A precision–recall curve. At the highest threshold, where no row is positive, the precision is 1."""

    precision: Floats
    recall: Floats
    thresholds: Floats

    @property
    def average_precision(self) -> float:
        """The average precision: Σ precision · increase of recall."""
        return float((np.diff(self.recall) * self.precision[1:]).sum())


class MetricCurve(NamedTuple):
    """The values of a metric at each threshold, and its name."""

    thresholds: Floats
    values: Floats
    name: str


class CostCurve(NamedTuple):
    """The mean cost of a decision at each threshold."""

    thresholds: Floats
    cost: Floats


class NetBenefit(NamedTuple):
    """A decision curve: net benefit of the model, of treating all and of treating none, by threshold probability."""

    thresholds: Floats
    net_benefit: Floats
    treat_all: Floats
    treat_none: Floats


def roc(scores: Any, target: Any, sample_weight: Any = None) -> Roc:
    """Compute the ROC curve at every distinct cut, as ``sklearn.metrics.roc_curve(drop_intermediate=False)`` does.

    Args:
        scores: ``(N,)``, any numbers.
        target: ``(N,)`` of 0 and 1; both must occur.
        sample_weight: One weight per row.

    Example:
        >>> curve = roc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        >>> curve.fpr, curve.tpr
        (array([0. , 0. , 0.5, 0.5, 1. ]), array([0. , 0.5, 0.5, 1. , 1. ]))
        >>> curve.area
        0.75
    """
    swept = _sweep(scores, target, sample_weight, ranked=True)
    return Roc(_value("fpr", swept), _value("recall", swept), swept.thresholds)


def precision_recall(scores: Any, target: Any, sample_weight: Any = None) -> PrecisionRecall:
    """Compute precision and recall at every distinct cut, as ``sklearn.metrics.precision_recall_curve`` does, reversed.

    Args:
        scores: ``(N,)``, any numbers.
        target: ``(N,)`` of 0 and 1; both must occur.
        sample_weight: One weight per row.

    Example:
        >>> curve = precision_recall([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        >>> curve.precision.round(2), curve.recall
        (array([1.  , 1.  , 0.5 , 0.67, 0.5 ]), array([0. , 0.5, 0.5, 1. , 1. ]))
    """
    swept = _sweep(scores, target, sample_weight, ranked=True)
    return PrecisionRecall(_value("precision", swept, zero_division=1.0), _value("recall", swept), swept.thresholds)


def metric_curve(
    scores: Any,
    target: Any,
    metric: str | Metric | Callable[..., Any] = "f1",
    sample_weight: Any = None,
    *,
    maximize: bool | None = None,
    **options: Any,
) -> MetricCurve:
    """Compute a metric at every distinct cut.

    Args:
        scores: ``(N,)``, any numbers.
        target: ``(N,)`` of 0 and 1; both must occur.
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        sample_weight: One weight per row.
        maximize: For formulas only: whether greater is better.
        options: Options of the metric, such as ``beta``.

    Example:
        >>> curve = metric_curve([0.125, 0.5, 0.25, 0.75], [0, 0, 1, 1], "f1")
        >>> curve.thresholds, curve.values.round(2)
        (array([   inf, 0.625 , 0.375 , 0.1875,   -inf]), array([0.  , 0.67, 0.5 , 0.8 , 0.67]))
    """
    ranking = find_ranking(metric)
    if ranking is not None:
        raise ValueError(
            f"{ranking.name!r} reads the order of the scores, and so is the same at every threshold; for its value use"
            " stepless.score."
        )
    resolved = resolve(metric, maximize=maximize, **options)
    swept = _sweep(scores, target, sample_weight)
    return MetricCurve(swept.thresholds, score_counts(resolved, swept.counts), resolved.name)


def cost_curve(scores: Any, target: Any, costs: Sequence[Sequence[float]], sample_weight: Any = None) -> CostCurve:
    """Compute the mean cost of a decision at every distinct cut.

    Args:
        scores: ``(N,)``, any numbers.
        target: ``(N,)`` of 0 and 1; both must occur.
        costs: A 2×2 table, ``costs[true][decided]``.
        sample_weight: One weight per row.

    Example:
        >>> curve = cost_curve([0.125, 0.5, 0.25, 0.75], [0, 0, 1, 1], [[0, 1], [5, 0]])
        >>> curve.cost
        array([2.5 , 1.25, 1.5 , 0.25, 0.5 ])
    """
    swept = _sweep(scores, target, sample_weight)
    return CostCurve(swept.thresholds, _value("cost", swept, costs=costs))


def net_benefit_curve(scores: Any, target: Any, sample_weight: Any = None, *, thresholds: Any = None) -> NetBenefit:
    """Compute the decision curve: the net benefit of acting on the model, for each threshold probability.

    A threshold probability p means that a false alarm costs p / (1 − p) times what a hit is worth. It is the decision
    threshold too, so the scores must be probabilities, and for the curve to mean anything, calibrated ones.

    Args:
        scores: ``(N,)``, probabilities.
        target: ``(N,)`` of 0 and 1; both must occur.
        sample_weight: One weight per row.
        thresholds: The threshold probabilities, in (0, 1). Default: 0.01, 0.02, …, 0.99.

    Source: Vickers and Elkin 2006.

    Example:
        >>> curve = net_benefit_curve([0.2, 0.6, 0.3, 0.9], [0, 0, 1, 1], thresholds=[0.25, 0.5])
        >>> curve.net_benefit.round(3), curve.treat_all.round(3)
        (array([0.417, 0.   ]), array([0.333, 0.   ]))
    """
    points = np.arange(1, 100) / 100 if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    if points.ndim != 1 or not ((points > 0) & (points < 1)).all():
        raise ValueError(f"thresholds must be a flat sequence of probabilities in (0, 1); got {thresholds!r}.")
    swept = _sweep(scores, target, sample_weight, inputs="probabilities")
    entries = np.searchsorted(-swept.scores, -points, side="right")  # how many distinct scores reach the threshold
    all_rows = np.full(len(points), len(swept.scores))

    def benefit(chosen: Any) -> Floats:
        counts = swept.at(chosen)
        metrics = (METRICS["net_benefit"].bind(threshold_probability=float(p)) for p in points)
        return np.array([metric(*(cell[i] for cell in counts)) for i, metric in enumerate(metrics)])

    return NetBenefit(points, benefit(entries), benefit(all_rows), np.zeros(len(points)))


def _sweep(scores: Any, target: Any, sample_weight: Any, inputs: str = "scores", *, ranked: bool = False) -> Sweep:
    """Counts at every cut, inputs checked by `tune_threshold`; ``ranked`` also counts a cut above a score of inf."""
    tuned = tune_threshold(scores, target, "accuracy", sample_weight=sample_weight, inputs=inputs)
    return sweep(tuned.data.x, tuned.data.y, tuned.data.w) if ranked else tuned.sweeps[0]


def _value(name: str, swept: Sweep, **options: Any) -> Floats:
    return score_counts(resolve(name, **options), swept.counts)
