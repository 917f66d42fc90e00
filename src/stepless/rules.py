"""Translate labels and an estimator's scores for `tune_threshold`, and tuned decisions back into labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepless.constraints import parse_constraints
from stepless.cuts.tuning import Tuning
from stepless.formula import resolve, with_costs_of_decisions
from stepless.registry import Metric
from stepless.scoring import make_path, score
from stepless.tasks import SUM_TOLERANCE, Task
from stepless.thresholds import tune_threshold

#: If two class counts differ by at most this share of the rows, which one is rarer may change from fold to fold.
_NEAR_EVEN = 0.02


@dataclass(frozen=True)
class Rule:
    """How labels and scores are read, tuned and scored: what a fit settles apart from the estimator and its threshold.

    Attributes:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        classes: The labels, in the estimator's order.
        positive: Binary: the index of the positive label.
        method: The estimator's method that gives scores.
        metric: The tuned metric, as the user gave it.
        options: Its options.
        subject_to: Constraints.
        average: How classes are averaged.
        seed: The seed of the search for class offsets.
    """

    task: Task
    classes: Any
    positive: int
    method: str
    metric: Any
    options: dict[str, Any]
    subject_to: Any
    average: str | None
    seed: int

    @property
    def resolved(self) -> Metric:
        """The metric with its options bound and, if binary, its costs in the order negative, positive."""
        metric = resolve(self.metric, **self.options)
        return with_costs_of_decisions(metric, self.positive) if self.task == "binary" else metric

    def check(self) -> None:
        """Raise for a metric, constraints and an average that do not fit together, before anything is fitted."""
        constraints = parse_constraints(self.subject_to)
        make_path((self.resolved, *(c.metric for c in constraints)), task=self.task, average=self.average)

    def encode(self, y: Any) -> Any:
        """Convert labels to what `tune_threshold` takes: 0 and 1, or class indices."""
        if self.task == "multilabel":
            return y.astype(np.int64)
        found, inverse = np.unique(y, return_inverse=True)
        index = self._index(found)[inverse]
        return (index == self.positive).astype(np.int64) if self.task == "binary" else index

    def name(self, decided: Any) -> Any:
        """Convert decisions to labels."""
        if self.task == "multilabel":
            return decided.astype(np.int64)
        return self.classes[np.where(decided, self.positive, 1 - self.positive) if self.task == "binary" else decided]

    def read(self, estimator: Any, X: Any) -> Any:
        """Compute scores: of the positive class ``(N,)``, of classes ``(N, K)`` or of labels ``(N, labels)``."""
        response = getattr(estimator, self.method)(X)
        seen = getattr(estimator, "classes_", self.classes)
        if self.task == "multilabel":
            if isinstance(response, list):  # one array of class probabilities per label
                response = np.stack([_yes(np.asarray(p), c) for p, c in zip(response, seen, strict=True)], 1)
            return self._in_range(np.asarray(response))
        response = self._in_range(np.asarray(response))
        if response.ndim == 1:  # the decision function of a binary classifier
            response = np.stack([-response, response], 1)
        if response.shape[1] != len(seen):
            raise ValueError(
                f"{self.method} must give one column for each of the {len(seen)} classes; got {response.shape[1]}."
            )
        # a class that is missing from a training fold is never predicted there
        missing = 0.0 if self.method == "predict_proba" else -math.inf
        scores = np.full((len(response), len(self.classes)), missing, np.result_type(response, np.float32))
        scores[:, self._index(np.asarray(seen))] = response
        return scores[:, self.positive] if self.task == "binary" else scores

    def check_scores(self, scores: Any, estimator: Any) -> None:
        """Raise if an estimator's ``predict_proba`` gives numbers that are not probabilities."""
        if self.method != "predict_proba" or not len(scores) or np.isnan(scores).any():  # `tune_threshold` refuses NaN
            return
        name, (low, high) = type(estimator).__name__, (scores.min(), scores.max())
        if low < 0 or high > 1:
            raise ValueError(
                f"predict_proba of {name} must give probabilities, from 0 to 1; it gives numbers from {low:.3g} to"
                f" {high:.3g}. LightGBM's gives raw scores if the objective is a function: use MetricBooster, or a"
                " subclass whose predict_proba is the objective's link of them."
            )
        sums = scores.sum(1) if self.task == "multiclass" else np.ones(1)
        far = sums[np.abs(sums - 1) > SUM_TOLERANCE]
        if len(far):
            raise ValueError(
                f"predict_proba of {name} must give probabilities that sum to 1 in each row; in {len(far)} of"
                f" {len(sums)} rows they do not, as in one of {far[0]:.3g}."
            )

    def tune(self, held: Held) -> Tuning:
        """Find the best threshold, thresholds or offsets for these scores."""
        inputs = "probabilities" if self.method == "predict_proba" else "scores"
        return tune_threshold(
            held.scores, held.target, self.resolved, self.subject_to, held.weight, task=self.task, average=self.average,
            inputs="logits" if self.task == "multiclass" and inputs == "scores" else inputs, random_state=self.seed,
        )  # fmt: skip

    def decide(self, scores: Any, threshold: Any) -> Any:
        """Decide: booleans ``(N,)`` or ``(N, labels)``, or class indices."""
        return decisions(scores, threshold, self.task, probabilities=self.method == "predict_proba")

    def score(self, decided: Any, target: Any, weight: Any = None) -> float:
        """Compute the metric of decisions, as probabilities of 0 and 1."""
        sure = np.eye(len(self.classes))[decided] if self.task == "multiclass" else decided.astype(np.float64)
        return score(
            sure, target, self.resolved, sample_weight=weight, task=self.task, average=self.average,
            inputs="probabilities",
        ).item()  # fmt: skip

    def _in_range(self, response: Any) -> Any:
        """Clip probabilities that rounding took just outside [0, 1]."""
        inside = np.clip(response, 0, 1) if self.method == "predict_proba" else response
        return inside if np.allclose(inside, response, rtol=0, atol=1e-6) else response

    def _index(self, labels: Any) -> Any:
        places = {label: place for place, label in enumerate(self.classes.tolist())}
        unknown = [label for label in labels.tolist() if label not in places]
        if unknown:
            raise ValueError(f"y has labels the estimator does not know: {unknown[:3]}; it knows {list(places)[:10]}.")
        return np.array([places[label] for label in labels.tolist()], dtype=np.int64)


class Held(NamedTuple):
    """Pooled out-of-fold scores with the targets, weights, row indices and folds they belong to."""

    scores: Any
    target: Any
    weight: Any
    rows: Any
    folds: Any

    def part(self, where: Any) -> Held:
        """Select rows."""
        return Held(*(None if array is None else array[where] for array in self))


def positive_class(classes: Any, y: Any, pos_label: Any, weight: Any = None) -> int:
    """Find the index of the positive one of two classes.

    It is ``pos_label`` if given; else 1 or True of {0, 1}, {−1, 1} or {False, True}; else the rarer class in ``y``,
    without rows of weight 0. If neither is clearly rarer, a warning says so, as other rows may make the other positive.

    Example:
        >>> positive_class(np.array(["bad", "good"]), np.array(["good", "bad", "good"]), None)
        0
    """
    known = classes.tolist()
    if pos_label is not None:
        if pos_label not in known:
            raise ValueError(
                f"pos_label must be one of the classes {known}; got {pos_label!r}.{_numbered(known, pos_label)}"
            )
        return int(known.index(pos_label))
    if set(known) in ({0, 1}, {-1, 1}):  # also {False, True}
        return int(known.index(1))
    counted = y if weight is None else y[weight > 0]
    first, second = (int((counted == label).sum()) for label in classes)
    positive = int(second <= first)
    if abs(first - second) <= _NEAR_EVEN * len(counted):
        warnings.warn(
            f"classes {known[0]!r} and {known[1]!r} are about equally frequent ({first} and {second} rows), and"
            f" {known[positive]!r} is taken for positive; pass pos_label to say which one is meant.",
            stacklevel=2,
        )
    return positive


def _numbered(known: list[Any], pos_label: Any) -> str:
    """A hint for labels of text that may have been numbered on their way to us."""
    if known != [0, 1] or not isinstance(pos_label, str):
        return ""
    return (
        " Some of scikit-learn (VotingClassifier, StackingClassifier, BaggingClassifier, cross_val_predict) numbers the"
        " labels in sorted order before it fits: there, pass the number, 0 or 1."
    )


def read_options(options: Any) -> dict[str, Any]:
    """Check the options of a metric and return them as a dict.

    Example:
        >>> read_options(None), read_options({"beta": 2})
        ({}, {'beta': 2})
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise TypeError(
            f'metric_options must be a dict of the metric\'s options, as in {{"beta": 2}}; got {options!r}.'
        )
    return dict(options)


def _yes(probabilities: Any, classes: Any) -> Any:
    """The column of class 1, or zeros for a label that was never 1 in training."""
    where = np.flatnonzero(np.asarray(classes) == 1)
    return probabilities[:, where[0]] if len(where) else np.zeros(len(probabilities))


def decisions(scores: Any, threshold: Any, task: Task, *, probabilities: bool = True) -> Any:
    """Decide: booleans by a threshold, or class indices by one offset per class.

    >>> decisions(np.array([0.2, 0.7]), 0.5, "binary")
    array([False,  True])
    >>> decisions(np.array([[0.6, 0.4], [0.9, 0.1]]), [1.0, 0.0], "multiclass")
    array([1, 0])
    """
    if task != "multiclass":
        return scores >= np.asarray(threshold)
    if probabilities:
        with np.errstate(divide="ignore"):
            scores = np.log(scores.astype(np.float64))
    return np.argmax(scores - np.asarray(threshold), 1)
