"""Who takes part: from a problem and a goal to decisions on the test rows of every fold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fits import Fits, Scores
from goals import Goal
from losses import on_metric
from problems import SEED
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import make_scorer
from sklearn.model_selection import TunedThresholdClassifierCV

import stepless as sl


@dataclass(frozen=True, eq=False)
class Outcome:
    """Decisions on the test rows of each fold, and the processor seconds that each fold's fit took."""

    decided: list[np.ndarray]
    seconds: list[float]


Contestant = Callable[[Fits, Goal], Outcome]


class Known(ClassifierMixin, BaseEstimator):
    """A classifier of row numbers that has its scores already; what it is fitted on is for its classes alone."""

    def __init__(self, table: Any = None) -> None:
        self.table = table

    def fit(self, X: Any, y: Any) -> Known:
        """Nothing but the classes is learned."""
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The scores of these rows."""
        found = self.table[np.asarray(X)[:, 0]]
        return np.column_stack([1 - found, found]) if found.ndim == 1 else found


def at_half(kind: str) -> Contestant:
    """The class that is more likely than not, or the likeliest."""
    return lambda fits, goal: _plain(fits, goal, fits.test(kind))


def tuned(kind: str) -> Contestant:
    """A threshold by TunedThresholdClassifierCV, or offsets and thresholds of labels by `stepless.TunedThreshold`."""

    def run(fits: Fits, goal: Goal) -> Outcome:
        scores, problem = fits.both(kind), fits.problem
        decided, seconds = [], []
        for fold, (seen, held) in enumerate(problem.folds):
            begun = time.process_time()
            place = {row: i for i, row in enumerate(seen)}
            splits = [tuple(np.array([place[row] for row in part]) for part in split) for split in problem.inner[fold]]
            model = _tuner(Known(scores.table[fold]), goal, splits)
            decided.append(model.fit(seen[:, None], problem.target[seen]).predict(held[:, None]))
            seconds.append(scores.seconds + time.process_time() - begun)
        return Outcome(decided, seconds)

    return run


def _tuner(model: Known, goal: Goal, splits: Any) -> Any:
    if goal.task == "binary":
        return TunedThresholdClassifierCV(model, scoring=make_scorer(goal.score_counts), cv=splits)
    return sl.TunedThreshold(
        model, goal.metric, average=goal.average, cv=splits, nested=None, metric_options=goal.options,
        random_state=SEED,
    )  # fmt: skip


def trained_on(make: Callable[..., sl.MetricLoss]) -> Contestant:
    """A net trained on the metric in a plain loop, at ½."""
    return lambda fits, goal: _plain(fits, goal, fits.on_loss(on_metric(goal.loss(make), goal.task)))


def ours(kind: type, **settings: Any) -> Contestant:
    """An estimator of the package with its defaults but for these settings, given the columns as they are."""

    def run(fits: Fits, goal: Goal) -> Outcome:
        problem, decided, seconds = fits.problem, [], []
        for seen, held in problem.folds:
            begun = time.process_time() + fits.shared.saved  # what another fit has spent counts for this one too
            options = {"average": goal.average, "metric_options": goal.options or None, "random_state": SEED}
            model = kind(goal.metric, **options, **settings)
            model.fit(problem.features.iloc[seen], problem.target[seen])
            decided.append(model.predict(problem.features.iloc[held]))
            seconds.append(time.process_time() + fits.shared.saved - begun)
        return Outcome(decided, seconds)

    return run


def _plain(fits: Fits, goal: Goal, scores: Scores) -> Outcome:
    folds = [scores.table[fold, held] for fold, (_, held) in enumerate(fits.problem.folds)]
    decide = (lambda p: p.argmax(1)) if goal.task == "multiclass" else (lambda p: (p >= 0.5).astype(np.int64))
    return Outcome([decide(p) for p in folds], [scores.seconds] * len(folds))


def soft_f1(metric: str, **settings: Any) -> sl.MetricLoss:
    """The metric of probabilities as they are, as in soft F1."""
    return sl.MetricLoss(metric, step=sl.Identity(), **settings)


def blended(share: float) -> Callable[..., sl.MetricLoss]:
    """The metric with this share of cross-entropy, which of three classes and more is ½ by default."""
    return lambda metric, **settings: sl.MetricLoss(metric, blend=share, **settings)


_NETWORKS: dict[str, Contestant] = {
    "cross-entropy": at_half("cross-entropy"),
    "cross-entropy, tuned": tuned("cross-entropy"),
}
CONTESTANTS: dict[str, dict[str, Contestant]] = {
    "binary": {
        **_NETWORKS,
        "class-weighted": at_half("class-weighted"),
        "focal": at_half("focal"),
        "SMOTE": at_half("SMOTE"),
        "AnyLoss": trained_on(sl.presets.anyloss),
        "SOL": trained_on(sl.presets.score_oriented),
        "soft sets": trained_on(sl.presets.soft_sets),
        "MetricLoss": trained_on(sl.MetricLoss),
        "logistic regression, balanced": at_half("logistic regression, balanced"),
        "LightGBM": at_half("LightGBM"),
        "LightGBM, tuned": tuned("LightGBM"),
        "LightGBM, is_unbalance": at_half("LightGBM, is_unbalance"),
        "XGBoost, tuned": tuned("XGBoost"),
        "CatBoost, tuned": tuned("CatBoost"),
        "MetricClassifier": ours(sl.MetricClassifier),
        "MetricBooster": ours(sl.MetricBooster),
    },
    "multiclass": {
        **_NETWORKS,
        "class-weighted": at_half("class-weighted"),
        "focal": at_half("focal"),
        "logit adjustment": at_half("logit adjustment"),
        "soft F1": trained_on(soft_f1),
        "SOL": trained_on(sl.presets.score_oriented),
        "EAST": trained_on(sl.presets.east),
        "MetricLoss": trained_on(sl.MetricLoss),
        "MetricLoss, blend=0": trained_on(blended(0.0)),
        "MetricLoss, blend=0.4": trained_on(blended(0.4)),
        "LightGBM": at_half("LightGBM"),
        "LightGBM, tuned": tuned("LightGBM"),
        "MetricClassifier": ours(sl.MetricClassifier),
        "MetricBooster": ours(sl.MetricBooster),
    },
    "multilabel": {
        **_NETWORKS,
        "MetricLoss": trained_on(sl.MetricLoss),
        "MetricLoss, blend=½": trained_on(blended(0.5)),
        "MetricClassifier": ours(sl.MetricClassifier),
    },
}
#: Ours with something left out, on binary sets: what each part of the recipe contributes.
PARTS: dict[str, Contestant] = {
    "MetricClassifier, cross-entropy alone, at ½": ours(
        sl.MetricClassifier, candidates=("cross_entropy",), threshold="half"
    ),
    "MetricClassifier, cross-entropy alone": ours(sl.MetricClassifier, candidates=("cross_entropy",)),
    "MetricClassifier, the mixture alone": ours(sl.MetricClassifier, candidates=("mixture",)),
    "MetricClassifier, networks alone": ours(sl.MetricClassifier, candidates=("cross_entropy", "mixture")),
    "MetricClassifier, without trees": ours(sl.MetricClassifier, candidates=("cross_entropy", "mixture", "linear")),
    "MetricClassifier, without the metric's losses": ours(
        sl.MetricClassifier, candidates=("cross_entropy", "linear", "trees", "sampled_trees")
    ),
    "MetricClassifier, without sampled trees": ours(
        sl.MetricClassifier, candidates=("cross_entropy", "mixture", "linear", "trees", "cost_trees")
    ),
    "MetricClassifier, the best instead of all": ours(sl.MetricClassifier, combine="best"),
    "MetricClassifier, always at ½": ours(sl.MetricClassifier, threshold="half"),
    "MetricClassifier, a tuned cut": ours(sl.MetricClassifier, threshold="tuned"),
    "MetricBooster, cross-entropy alone": ours(sl.MetricBooster, forms=("cross_entropy",)),
    "MetricBooster, costs alone": ours(sl.MetricBooster, forms=("cost",)),
    "MetricBooster, tuned cut": ours(sl.MetricBooster, threshold="tuned"),
}
