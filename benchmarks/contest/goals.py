"""What is reported: the metrics of the contest, as names, losses and hard scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import stepless as sl


@dataclass(frozen=True)
class Goal:
    """A metric of a task.

    Attributes:
        label: What the page calls it.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        metric: A name of `stepless.METRICS`.
        average: Over classes or labels.
        options: Of the metric.
    """

    label: str
    task: str
    metric: str
    average: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def loss(self, make: Callable[..., sl.MetricLoss] = sl.MetricLoss) -> sl.MetricLoss:
        """The metric as a loss, by `stepless.MetricLoss` or a preset."""
        settings = {} if make is sl.presets.east else {"task": self.task}
        return make(self.metric, **settings, **({"average": self.average} if self.average else {}), **self.options)

    def score(self, decided: np.ndarray, target: np.ndarray) -> float:
        """The metric of hard decisions, in the form of the target."""
        given = np.eye(int(target.max()) + 1)[decided] if self.task == "multiclass" else decided.astype(float)
        return float(
            sl.score(given, target, self.metric, task=self.task, average=self.average, inputs="probabilities",
                     **self.options)
        )  # fmt: skip

    def score_counts(self, target: np.ndarray, decided: np.ndarray) -> float:
        """The same for a binary task, from counts alone, for scikit-learn to call many times."""
        n, yes, true, both = len(target), decided.sum(), target.sum(), (target * decided).sum()
        tp, fp, fn, tn = map(float, (both, yes - both, true - both, n - yes - true + both))
        metric = sl.METRICS[self.metric].bind(**self.options)
        if metric.kind == "joint":  # reads the counts of both classes
            return float(metric(*np.array([[tn, tp], [fn, fp], [fp, fn], [tp, tn]])))
        return float(metric(tp, fp, fn, tn))


GOALS = {
    "binary": (
        Goal("F1", "binary", "f1"),
        Goal("F2", "binary", "f_beta", options={"beta": 2.0}),
        Goal("MCC", "binary", "mcc"),
        Goal("balanced accuracy", "binary", "balanced_accuracy"),
        Goal("G-mean", "binary", "g_mean"),
    ),
    "multiclass": (
        Goal("macro F1", "multiclass", "f1", "macro"),
        Goal("MCC", "multiclass", "mcc"),
        Goal("quadratic kappa", "multiclass", "weighted_kappa"),
    ),
    "multilabel": (
        Goal("macro F1", "multilabel", "f1", "macro"),
        Goal("micro F1", "multilabel", "f1", "micro"),
    ),
}
