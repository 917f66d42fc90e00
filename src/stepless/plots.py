"""Plots of curves and tunings with matplotlib. Each function draws on an Axes and returns it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepless.curves import CostCurve, MetricCurve, NetBenefit, PrecisionRecall, Roc
from stepless.cuts.sweep import Floats, score_counts, violation
from stepless.cuts.tuning import Tuning
from stepless.extras import needs

with needs("stepless.plots needs matplotlib", "plots", "matplotlib"):
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes

_GUIDE: dict[str, Any] = {"color": "0.6", "linestyle": "--", "linewidth": 1.0}


def plot_roc(curve: Roc, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw a ROC curve, with its area and the diagonal that chance would give.

    Args:
        curve: The result of `stepless.curves.roc`.
        ax: The Axes to draw on. Default: a new figure.
        line: Keyword arguments of ``Axes.plot``, such as ``color`` or ``label``.

    Example:
        >>> from stepless import curves
        >>> plot_roc(curves.roc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])).get_xlabel()
        'false positive rate'
    """
    ax = _axes(ax, "false positive rate", "true positive rate")
    ax.plot([0, 1], [0, 1], **_GUIDE)
    ax.plot(curve.fpr, curve.tpr, **{"label": f"area {curve.area:.3f}", **line})
    ax.set_aspect("equal")
    return _finish(ax)


def plot_precision_recall(curve: PrecisionRecall, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw precision against recall as steps, with the average precision and the prevalence.

    Args:
        curve: The result of `stepless.curves.precision_recall`.
        ax: The Axes to draw on. Default: a new figure.
        line: Keyword arguments of ``Axes.plot``.

    Example:
        >>> from stepless import curves
        >>> plot_precision_recall(curves.precision_recall([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])).get_ylabel()
        'precision'
    """
    ax = _axes(ax, "recall", "precision")
    ax.axhline(float(curve.precision[-1]), **_GUIDE)  # the precision of accepting every row is the prevalence
    # between two points the curve keeps the later one's precision, as average precision counts it
    label = f"average precision {curve.average_precision:.3f}"
    ax.plot(curve.recall, curve.precision, **{"drawstyle": "steps-pre", "label": label, **line})
    ax.set_ylim(-0.02, 1.02)
    return _finish(ax)


def plot_metric(curve: MetricCurve, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw a metric against the threshold.

    Args:
        curve: The result of `stepless.curves.metric_curve`.
        ax: The Axes to draw on. Default: a new figure.
        line: Keyword arguments of ``Axes.plot``.

    Example:
        >>> from stepless import curves
        >>> plot_metric(curves.metric_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], "mcc")).get_ylabel()
        'mcc'
    """
    return _against_threshold(curve.thresholds, curve.values, curve.name, ax, line)


def plot_cost(curve: CostCurve, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw the mean cost of a decision against the threshold.

    Args:
        curve: The result of `stepless.curves.cost_curve`.
        ax: The Axes to draw on. Default: a new figure.
        line: Keyword arguments of ``Axes.plot``.

    Example:
        >>> from stepless import curves
        >>> plot_cost(curves.cost_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], [[0, 1], [5, 0]])).get_ylabel()
        'mean cost of a decision'
    """
    return _against_threshold(curve.thresholds, curve.cost, "mean cost of a decision", ax, line)


def plot_net_benefit(curve: NetBenefit, ax: Axes | None = None, **line: Any) -> Axes:
    """Draw a decision curve, with those of treating all and treating none.

    Args:
        curve: The result of `stepless.curves.net_benefit_curve`.
        ax: The Axes to draw on. Default: a new figure.
        line: Keyword arguments of ``Axes.plot``.

    Example:
        >>> from stepless import curves
        >>> plot_net_benefit(curves.net_benefit_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])).get_ylabel()
        'net benefit'
    """
    ax = _axes(ax, "threshold probability", "net benefit")
    ax.plot(curve.thresholds, curve.treat_all, **{**_GUIDE, "label": "treat all"})
    ax.plot(curve.thresholds, curve.treat_none, **{**_GUIDE, "linestyle": ":", "label": "treat none"})
    ax.plot(curve.thresholds, curve.net_benefit, **{"label": "model", **line})
    top = max(float(curve.net_benefit.max()), float(curve.treat_all.max()), 0.01)
    ax.set_ylim(-0.15 * top, 1.1 * top)  # the curve of treating all falls without bound
    return _finish(ax)


def plot_tuning(tuning: Tuning, ax: Axes | None = None, *, label: int = 0, **line: Any) -> Axes:
    """Draw the metric against the threshold, and mark the chosen threshold.

    Thresholds at which the constraints do not hold are shaded grey.

    Args:
        tuning: The result of `stepless.tune_threshold`, or ``model.tuning_``, for a binary or multilabel task.
        ax: The Axes to draw on. Default: a new figure.
        label: Which label to draw, for a multilabel task.
        line: Keyword arguments of ``Axes.plot``.

    Example:
        >>> from stepless import tune_threshold
        >>> tuning = tune_threshold([0.125, 0.5, 0.25, 0.75], [0, 0, 1, 1], "f1")
        >>> plot_tuning(tuning).get_legend().get_texts()[0].get_text()
        'threshold 0.1875'
    """
    thresholds, values = tuning.curve(label)
    chosen = tuning.threshold[label] if isinstance(tuning.threshold, tuple) else tuning.threshold
    ax = _against_threshold(thresholds, values, tuning.metric.name, ax, line)
    height = float(values[thresholds == chosen][0])
    low, high = ax.get_xlim()
    where = min(max(chosen, low), high)  # a threshold of ±inf is marked at the edge
    ax.axvline(where, **_GUIDE)
    _shade_forbidden(ax, tuning, label)
    ax.plot([where], [height], "o", color="C3", clip_on=False, label=f"threshold {chosen:.4g}", zorder=3)
    ax.set_xlim(low, high)
    return _finish(ax)


def _shade_forbidden(ax: Axes, tuning: Tuning, label: int) -> None:
    job, swept = tuning.data.job, tuning.sweeps[label]
    if not job.constraints or job.average not in ("macro", "weighted"):  # the constraints apply to all labels jointly
        return
    broken = violation(job.constraints, [score_counts(c.metric, swept.counts) for c in job.constraints])
    # an entry covers all thresholds between two scores; adjacent entries form one span
    edges = np.clip(np.concatenate([[np.inf], swept.scores, [-np.inf]]), *ax.get_xlim())
    changes = np.flatnonzero(np.diff(np.concatenate([[False], np.asarray(broken) > 0, [False]])))
    for start, end in changes.reshape(-1, 2):
        ax.axvspan(edges[end], edges[start], color="0.93", linewidth=0, zorder=0)


def _against_threshold(thresholds: Floats, values: Floats, name: str, ax: Axes | None, line: dict[str, Any]) -> Axes:
    ax = _axes(ax, "threshold", name)
    finite = np.isfinite(thresholds)
    ax.plot(thresholds[finite], values[finite], **{"drawstyle": "steps-mid", **line})
    return _finish(ax)


def _axes(ax: Axes | None, x: str, y: str) -> Axes:
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    ax.set(xlabel=x, ylabel=y)
    return ax


def _finish(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=False)
    return ax
