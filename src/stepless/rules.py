"""From labels and an estimator's scores to what `tune_threshold` takes, and from what it finds back to labels."""

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
from stepless.tasks import Task
from stepless.thresholds import tune_threshold

#: Classes whose counts differ by no more than this share of the rows may change places from one fold to the next.
_NEAR_EVEN = 0.02


@dataclass(frozen=True)
class Rule:
    """How labels and scores are read, tuned and scored: all that a fit settles but the estimator and its threshold.

    Attributes:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        classes: The labels, in the estimator's order.
        positive: The place of the positive one, for a binary task.
        method: The estimator's method that scores.
        metric: What is tuned, as the user gave it.
        options: Its options.
        subject_to: Constraints.
        average: How classes are averaged.
        seed: Of the search for class offsets.
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
        """The metric, as it is for no and yes of two classes."""
        metric = resolve(self.metric, **self.options)
        return with_costs_of_decisions(metric, self.positive) if self.task == "binary" else metric

    def check(self) -> None:
        """Raise for a metric, constraints or an average that do not go together, before anything is fitted."""
        constraints = parse_constraints(self.subject_to)
        make_path((self.resolved, *(c.metric for c in constraints)), task=self.task, average=self.average)

    def encode(self, y: Any) -> Any:
        """Labels as what `tune_threshold` takes: 0 and 1, or class indices."""
        if self.task == "multilabel":
            return y.astype(np.int64)
        found, inverse = np.unique(y, return_inverse=True)
        index = self._index(found)[inverse]
        return (index == self.positive).astype(np.int64) if self.task == "binary" else index

    def name(self, decided: Any) -> Any:
        """Decisions as labels."""
        if self.task == "multilabel":
            return decided.astype(np.int64)
        return self.classes[np.where(decided, self.positive, 1 - self.positive) if self.task == "binary" else decided]

    def read(self, estimator: Any, X: Any) -> Any:
        """The estimator's scores: of the positive class ``(N,)``, of the classes ``(N, K)`` or of the labels."""
        response = getattr(estimator, self.method)(X)
        seen = getattr(estimator, "classes_", self.classes)
        if self.task == "multilabel":
            if isinstance(response, list):  # one array of class probabilities a label
                response = np.stack([_yes(np.asarray(p), c) for p, c in zip(response, seen, strict=True)], 1)
            return self._in_range(np.asarray(response))
        response = self._in_range(np.asarray(response))
        if response.ndim == 1:  # a decision function of two classes
            response = np.stack([-response, response], 1)
        if response.shape[1] != len(seen):
            raise ValueError(
                f"{self.method} must give one column for each of the {len(seen)} classes; got {response.shape[1]}."
            )
        # a class that a fold has not seen has no chance there
        missing = 0.0 if self.method == "predict_proba" else -math.inf
        scores = np.full((len(response), len(self.classes)), missing, np.result_type(response, np.float32))
        scores[:, self._index(np.asarray(seen))] = response
        return scores[:, self.positive] if self.task == "binary" else scores

    def tune(self, held: Held) -> Tuning:
        """The best threshold, thresholds or offsets on these scores."""
        inputs = "probabilities" if self.method == "predict_proba" else "scores"
        return tune_threshold(
            held.scores, held.target, self.resolved, self.subject_to, held.weight, task=self.task, average=self.average,
            inputs="logits" if self.task == "multiclass" and inputs == "scores" else inputs, random_state=self.seed,
        )  # fmt: skip

    def decide(self, scores: Any, threshold: Any) -> Any:
        """Yes or no, ``(N,)`` or ``(N, labels)``, or class indices."""
        return decisions(scores, threshold, self.task, probabilities=self.method == "predict_proba")

    def score(self, decided: Any, target: Any, weight: Any = None) -> float:
        """The metric of decisions: a decision is a probability of 0 or 1."""
        sure = np.eye(len(self.classes))[decided] if self.task == "multiclass" else decided.astype(np.float64)
        return score(
            sure, target, self.resolved, sample_weight=weight, task=self.task, average=self.average,
            inputs="probabilities",
        ).item()  # fmt: skip

    def _in_range(self, response: Any) -> Any:
        """Without the rounding that takes a probability just outside [0, 1]."""
        inside = np.clip(response, 0, 1) if self.method == "predict_proba" else response
        return inside if np.allclose(inside, response, rtol=0, atol=1e-6) else response

    def _index(self, labels: Any) -> Any:
        places = {label: place for place, label in enumerate(self.classes.tolist())}
        unknown = [label for label in labels.tolist() if label not in places]
        if unknown:
            raise ValueError(f"y has labels the estimator does not know: {unknown[:3]}; it knows {list(places)[:10]}.")
        return np.array([places[label] for label in labels.tolist()], dtype=np.int64)


class Held(NamedTuple):
    """Out-of-fold scores, pooled: their targets and weights, which rows they are of, and in which fold."""

    scores: Any
    target: Any
    weight: Any
    rows: Any
    folds: Any

    def part(self, where: Any) -> Held:
        """Some of the rows."""
        return Held(*(None if array is None else array[where] for array in self))


def positive_class(classes: Any, y: Any, pos_label: Any, weight: Any = None) -> int:
    """The place of the positive one of two classes.

    It is the one the user names; else 1 or True of {0, 1}, {−1, 1} or {False, True}; else the rarer one in ``y``, rows
    of weight 0 left out. Where none is clearly rarer a warning says so: other rows may make the other one positive.

    Example:
        >>> positive_class(np.array(["bad", "good"]), np.array(["good", "bad", "good"]), None)
        0
    """
    known = classes.tolist()
    if pos_label is not None:
        if pos_label not in known:
            raise ValueError(f"pos_label must be one of the classes {known}; got {pos_label!r}.")
        return int(known.index(pos_label))
    if set(known) in ({0, 1}, {-1, 1}):  # and False and True, which equal 0 and 1
        return int(known.index(1))
    counted = y if weight is None else y[weight > 0]
    first, second = (int((counted == label).sum()) for label in classes)
    if abs(first - second) <= _NEAR_EVEN * len(counted):
        warnings.warn(
            f"classes {known[0]!r} and {known[1]!r} are nearly as frequent ({first} and {second} rows), and the rarer"
            " one is taken for positive; pass pos_label to say which one is meant.",
            stacklevel=2,
        )
    return int(second <= first)


def read_options(options: Any) -> dict[str, Any]:
    """The options of a metric as the user gave them, or none.

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
    """The column of class 1; a label that was never 1 in training has none."""
    where = np.flatnonzero(np.asarray(classes) == 1)
    return probabilities[:, where[0]] if len(where) else np.zeros(len(probabilities))


def decisions(scores: Any, threshold: Any, task: Task, *, probabilities: bool = True) -> Any:
    """Yes or no, or class indices, of scores at a threshold, or with one offset a class.

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
