"""From counts to scores: give each kind of metric the counts it reads, and average over classes."""

from __future__ import annotations

import math
from typing import Literal

from stepless.counts import both_classes, cells_of, counts_of, matrix_of
from stepless.numerics import Array, constant, namespace, nonzero, ratio
from stepless.registry import Metric
from stepless.tasks import Task

Average = Literal["macro", "micro", "weighted", "samples", "none"]


def evaluate(
    metric: Metric,
    table: Array,
    task: Task,
    average: Average,
    *,
    matrix: bool = False,
    label_weight: tuple[float, ...] | None = None,
) -> Array:
    """Score each threshold and unit of a table of counts.

    Args:
        metric: The metric, its options bound.
        table: Cells ``(…, T, units, classes, 4)``, or with ``matrix`` confusion matrices ``(…, T, units, K, K)``.
        task: Which task the counts come from.
        average: How classes are averaged; with ``samples`` each unit is one sample and has one class.
        matrix: Whether the table holds the K×K matrices of a multiclass task.
        label_weight: Weights of the labels in a macro mean.

    Returns:
        Scores ``(…, T, units)``, or ``(…, T, units, classes)`` with ``average="none"``.
    """
    if matrix:
        if metric.kind == "matrix":
            return metric(table)
        table = cells_of(table)
    if metric.kind == "joint" and task == "multiclass":
        return metric(*counts_of(table))
    if average == "micro":
        table = table.sum(-2)[..., None, :]
    if metric.kind == "matrix":
        scores = metric(matrix_of(table))
    elif metric.kind == "joint":
        scores = metric(*counts_of(both_classes(table)))
    else:
        scores = metric(*counts_of(table))
    if average == "none":
        return scores
    labels = scores.shape[-1]
    if label_weight is not None and len(label_weight) != labels:
        raise ValueError(f"weight must have one entry for each of the {labels} labels; got {len(label_weight)}.")
    if labels == 1:
        return scores[..., 0]
    return _mean(scores, table, metric, average, label_weight)


def _mean(
    scores: Array, table: Array, metric: Metric, average: Average, label_weight: tuple[float, ...] | None
) -> Array:
    xp = namespace(scores)
    weight = None
    if average == "weighted":
        weight = table[..., 0] + table[..., 2]
    elif label_weight is not None:
        weight = constant(label_weight, scores) + 0 * scores
    absent = undefined(metric, scores, table)
    if absent is not None:
        scores = xp.where(absent, 0.0, scores)
        weight = xp.where(absent, 0.0, 1.0 + 0 * scores if weight is None else weight)
    if weight is None:
        return scores.mean(-1)
    if average == "weighted":  # without any support, all defined classes count alike, as in scikit-learn
        equal = 1.0 + 0 * scores if absent is None else xp.where(absent, 0.0, 1.0)
        weight = xp.where(nonzero(weight.sum(-1))[..., None], weight, equal)
    return ratio((scores * weight).sum(-1), weight.sum(-1), 0.0 if absent is None else math.nan)


def undefined(metric: Metric, scores: Array, table: Array) -> Array | None:
    """Where ``zero_division=nan`` made a score NaN; None if the metric has no such option set.

    NaN counts, which come from NaN inputs, do not count as undefined: their NaN must stay visible.
    """
    if not metric.marks_undefined:
        return None
    xp = namespace(scores)
    inner = table.shape[scores.ndim :]
    broken = xp.isnan(table.reshape(*scores.shape, math.prod(inner)) if inner else table).any(-1)
    return xp.isnan(scores) & ~broken
