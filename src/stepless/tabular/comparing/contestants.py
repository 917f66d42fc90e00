"""The contestants of `stepless.compare`: ways to make a classifier for a metric, each of which can be fitted and saved.

All networks share one architecture and one budget, and so do all boosted trees. The threshold of ``metric`` and
``cost_weighted`` is tuned like that of the baseline, on held-out rows, so they differ from it in training only.
``boosting_metric`` and ``automatic`` are `stepless.MetricBooster` and `stepless.MetricClassifier` with their defaults:
the latter stacks networks, a linear model and, if LightGBM is installed, trees, and both use the threshold with the
best expected metric. A fit chooses its threshold on rows that it holds out itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.rules import positive_class
from stepless.tabular.booster import MetricBooster
from stepless.tabular.ensembles.predicting import Predicting
from stepless.tabular.estimator import MetricClassifier
from stepless.tabular.models.calibration import Identity
from stepless.tabular.models.preprocessing import fit_features
from stepless.tabular.tables.frames import read_table
from stepless.tasks import Task

BASELINE = "cross_entropy_tuned"


@dataclass(frozen=True)
class Aim:
    """What every contestant is fitted for.

    Attributes:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        metric: A name, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        options: Options of the metric.
        subject_to: Constraints.
        average: How classes or labels are averaged.
        pos_label: Binary: the positive class.
        seed: Seed of all random numbers.
    """

    task: Task
    metric: Any = "f1"
    options: Mapping[str, Any] | None = None
    subject_to: Any = None
    average: str | None = None
    pos_label: Any = None
    seed: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of our estimators."""
        return {
            "metric": self.metric,
            "metric_options": dict(self.options) if self.options else None,
            "subject_to": self.subject_to,
            "average": self.average,
            "pos_label": self.pos_label if self.task == "binary" else None,
            "random_state": self.seed,
        }


@dataclass(frozen=True)
class Fit:
    """A way to fit, which several contestants may share.

    Attributes:
        build: Makes the unfitted estimator.
        method: Fits the estimator to rows, target and weights; None to call its `fit`.
        cost: Rough relative time: costly fits are started first.
        kin: Fits with the same kin share models and run in one task.
    """

    build: Callable[[Aim], Predicting]
    method: Callable[[Predicting, Any, Any, Any], Predicting] | None = None
    cost: float = 1.0
    kin: str | None = None

    def __call__(self, aim: Aim, X: Any, y: Any, sample_weight: Any = None, *, verbose: bool = False) -> Predicting:
        """Return the fitted estimator; ``verbose`` shows a progress bar where the estimator has one."""
        estimator = self.build(aim)
        if verbose and "verbose" in estimator.get_params():
            estimator.set_params(verbose=True)
        if self.method is not None:
            return self.method(estimator, X, y, sample_weight)
        return estimator.fit(X, y, sample_weight)


@dataclass(frozen=True)
class Contestant:
    """One way to make a classifier.

    Attributes:
        key: Its name in calls and files.
        name: Its name in tables.
        fit: A key of `FITS`. Contestants that share a fit differ only in the threshold.
        half: Whether it decides at ½ (multiclass: by the largest probability), which ignores constraints.
        on_metric: Whether training uses the metric, and not the choice of the threshold alone.
        tasks: The tasks it supports.
        needs: The package it needs, and the extra that installs it.
    """

    key: str
    name: str
    fit: str
    half: bool = False
    on_metric: bool = False
    tasks: tuple[Task, ...] = ("binary", "multiclass", "multilabel")
    needs: tuple[str, str] | None = None

    def available(self) -> bool:
        """Whether the package it needs is installed."""
        return self.needs is None or find_spec(self.needs[0]) is not None

    def why_not(self, task: Task, *, constrained: bool) -> ValueError | ModuleNotFoundError | None:
        """Return the error that explains why it cannot take part, if it cannot."""
        if task not in self.tasks:
            return ValueError(f"{self.name} is for {' and '.join(self.tasks)} tasks; this one is {task}.")
        if self.half and constrained:
            return ValueError(f"{self.name} decides at ½, and constraints are met by moving the threshold.")
        if not self.available():
            assert self.needs is not None
            package, extra = self.needs
            return ModuleNotFoundError(f'{self.name} needs {package}: pip install "stepless[{extra}]"', name=package)
        return None


def _network(**settings: Any) -> Callable[[Aim], Predicting]:
    return lambda aim: MetricClassifier(**{**aim.arguments, **settings})


def _trees(**settings: Any) -> Callable[[Aim], Predicting]:
    return lambda aim: MetricBooster(**{**aim.arguments, **settings})


def balanced_weights(y: NDArray[Any], sample_weight: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """Return weights with the same total for each class, and the same total over all rows as before.

    Example:
        >>> balanced_weights(np.array([0, 0, 0, 1]))
        array([0.66666667, 0.66666667, 0.66666667, 2.        ])
    """
    weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    classes, place = np.unique(y, return_inverse=True)
    totals = np.bincount(place, weight, minlength=len(classes))
    share = np.divide(weight.sum() / len(classes), totals, out=np.zeros(len(classes)), where=totals > 0)
    return weight * share[place]


def _class_weighted(estimator: Predicting, X: Any, y: Any, sample_weight: Any) -> Predicting:
    return _unscored(estimator.fit(X, y, balanced_weights(np.asarray(y), sample_weight)))


def _oversampled(estimator: Predicting, X: Any, y: Any, sample_weight: Any) -> Predicting:
    """Fit on the rows plus SMOTE's synthetic ones; the model still reads the columns of X."""
    from imblearn.over_sampling import SMOTE  # noqa: PLC0415 - needs an extra

    if sample_weight is not None:
        raise ValueError("SMOTE makes new rows, for which there are no weights; leave out SMOTE or the weights.")
    table = read_table(X)
    features = fit_features(table)
    smallest = int(np.unique(np.asarray(y), return_counts=True)[1].min())
    if smallest < 2:
        raise ValueError("SMOTE draws rows between two of a class; one class has a single row.")
    classes = np.unique(np.asarray(y))
    if len(classes) == 2:  # chosen on the original rows: after SMOTE no class is rarer
        positive = positive_class(classes, np.asarray(y), estimator.get_params()["pos_label"])
        estimator.set_params(pos_label=classes.tolist()[positive])
    seed: Any = estimator.get_params()["random_state"]
    sampler = SMOTE(k_neighbors=min(5, smallest - 1), random_state=seed)
    matrix, target = sampler.fit_resample(features.matrix(table), np.asarray(y))
    estimator.fit(matrix, target)
    params = {**estimator.model_.settings.get("params", {}), "preprocess": True}
    model = replace(estimator.model_, features=features, settings={**estimator.model_.settings, "params": params})
    return _unscored(type(estimator).from_model(model))


def _unscored(estimator: Predicting) -> Predicting:
    """Drop the score of the fit, whose held-out rows were reweighted or synthetic."""
    model = estimator.model_
    return type(estimator).from_model(replace(model, settings={**model.settings, "score": None}))


#: No threshold to choose at ½, and no calibration, for which reweighted or synthetic held-out rows are useless.
_PLAIN = {"candidates": ("cross_entropy",), "threshold": "half", "calibrate": False}

#: All fits, by key.
FITS: dict[str, Fit] = {
    "automatic": Fit(_network(), cost=4.0, kin="trees"),
    "boosting_metric": Fit(_trees(), cost=2.0, kin="trees"),
    "metric": Fit(_network(candidates=("metric",), threshold="tuned"), cost=1.2),
    "cost_weighted": Fit(_network(candidates=("cost_weighted",), threshold="tuned"), cost=1.1),
    "cross_entropy": Fit(_network(candidates=("cross_entropy",), threshold="tuned"), cost=1.0),
    "class_weighted": Fit(_network(**_PLAIN), _class_weighted, cost=1.0),
    "boosting": Fit(_trees(forms=("cross_entropy",), threshold="tuned"), cost=0.7, kin="trees"),
    "smote": Fit(_network(**_PLAIN, preprocess=False), _oversampled, cost=1.6),
}

_ONE_LABEL: tuple[Task, ...] = ("binary", "multiclass")
_TREES: dict[str, Any] = {"tasks": _ONE_LABEL, "needs": ("lightgbm", "lightgbm")}

#: All contestants, by key.
CONTESTANTS: dict[str, Contestant] = {
    c.key: c
    for c in (
        Contestant("cross_entropy", "cross-entropy at ½", "cross_entropy", half=True),
        Contestant(BASELINE, "cross-entropy + tuned threshold", "cross_entropy"),
        Contestant("class_weighted", "class-weighted cross-entropy", "class_weighted", half=True, tasks=_ONE_LABEL),
        Contestant("metric", "trained on the metric", "metric", on_metric=True),
        Contestant("cost_weighted", "cost-weighted by the metric", "cost_weighted", on_metric=True),
        Contestant("automatic", "stack of several models", "automatic", on_metric=True),
        Contestant("boosting_tuned", "boosting + tuned threshold", "boosting", **_TREES),
        Contestant("boosting_metric", "boosting on the metric", "boosting_metric", on_metric=True, **_TREES),
        Contestant("smote", "SMOTE + cross-entropy", "smote", half=True, tasks=_ONE_LABEL, needs=("imblearn", "smote")),
    )
}

#: The contestants that take part by default.
DEFAULT = tuple(key for key in CONTESTANTS if key != "smote")


def check_names(keys: Sequence[str]) -> None:
    """Raise for a key that is no contestant's."""
    for key in keys:
        if key not in CONTESTANTS:
            raise ValueError(f"unknown contestant {key!r}; known are {', '.join(CONTESTANTS)}.")


def choose_contestants(
    task: Task,
    *,
    constrained: bool = False,
    contestants: Sequence[str] | None = None,
    extra: Sequence[str] = (),
    without: Sequence[str] = (),
) -> tuple[list[Contestant], list[str]]:
    """Return the contestants that take part, and a sentence for each default one that cannot.

    The baseline always takes part. Naming a contestant that cannot take part is an error.

    Args:
        task: The task.
        constrained: Whether there are constraints.
        contestants: Keys; None for the default ones.
        extra: Keys to add.
        without: Keys to leave out.

    Example:
        >>> [c.key for c in choose_contestants("multilabel", contestants=["metric"])[0]]
        ['cross_entropy_tuned', 'metric']
    """
    for given in (contestants or (), extra, without):
        if isinstance(given, str):
            raise TypeError(f"contestants, extra and without take keys in a list; got the text {given!r}.")
        check_names(given)
    if BASELINE in without:
        raise ValueError(f"{BASELINE} is what the others are compared with; it cannot be left out.")
    named = [*(contestants or ()), *extra]
    wanted = {*(DEFAULT if contestants is None else contestants), *extra, BASELINE} - set(without)
    chosen, left_out = [], []
    for key, contestant in CONTESTANTS.items():
        if key not in wanted:
            continue
        reason = contestant.why_not(task, constrained=constrained)
        if reason is None:
            chosen.append(contestant)
        elif key in named:
            raise reason
        else:
            left_out.append(f"{key} was left out: {reason}")
    return chosen, left_out


def at_half(estimator: Predicting) -> Predicting:
    """Return the same fitted classifier, uncalibrated and with decisions at ½ or by the largest probability.

    Args:
        estimator: A `stepless.MetricClassifier` or `stepless.MetricBooster`.
    """
    model = estimator.model_
    outputs = len(model.classes)
    half = {"binary": 0.5, "multiclass": (0.0,) * outputs, "multilabel": (0.5,) * outputs}[model.task]
    params = {**model.settings.get("params", {}), "threshold": "half", "calibrate": False}
    settings = {**model.settings, "params": params, "score": None}
    plain = replace(model, calibration=Identity(model.task), threshold=half, settings=settings)  # type: ignore[arg-type]
    return type(estimator).from_model(plain)


def fit_contestant(
    key: str, aim: Aim, X: Any, y: Any, sample_weight: Any = None, *, verbose: bool = False
) -> Predicting:
    """Fit one contestant: a classifier that predicts and saves to a model folder.

    Args:
        key: Key of the contestant.
        aim: What to fit it for.
        X: Rows: an array, a pandas or polars frame, or a `stepless.tabular.tables.frames.Table`.
        y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
        sample_weight: One weight per row.
        verbose: Whether to show a progress bar, where the estimator has one.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(200, weights=[0.8], random_state=0)
        >>> fit_contestant("cross_entropy", Aim("binary"), X, y).best_threshold_
        0.5
    """
    check_names((key,))
    contestant = CONTESTANTS[key]
    reason = contestant.why_not(aim.task, constrained=aim.subject_to is not None)
    if reason is not None:
        raise reason
    return read_fit(contestant, FITS[contestant.fit](aim, X, y, sample_weight, verbose=verbose))


def read_fit(contestant: Contestant, fitted: Predicting) -> Predicting:
    """Return a contestant's own classifier from a fit that it may share with others."""
    return at_half(fitted) if contestant.half and fitted.get_params()["threshold"] != "half" else fitted
