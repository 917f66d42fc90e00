"""The base of our scikit-learn classifiers: reading rows and labels, and all that a fitted `Model` does."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stepless.boosting import Library
from stepless.extras import needs
from stepless.params import check_savable, from_json, json_params
from stepless.ranking import is_ranking
from stepless.rules import Rule, positive_class, read_options
from stepless.tabular.models.calibration import Calibration
from stepless.tabular.models.members import Member
from stepless.tabular.models.model import Model, library_versions
from stepless.tabular.models.preprocessing import Features
from stepless.tabular.tables.frames import Table, read_table
from stepless.tabular.trees.steppers import library_module
from stepless.targets import read_target, read_weight

with needs("stepless's estimators need scikit-learn", "sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_consistent_length, check_is_fitted


#: The checks of scikit-learn's `check_estimator` that our classifiers may fail, with reasons, for its
#: ``expected_failed_checks``. With ``threshold="half", calibrate=False``, `stepless.MetricClassifier` passes them all.
EXPECTED_FAILED_CHECKS = {
    "check_classifiers_train": (
        "it asks for the class of the largest probability; to decide by the tuned threshold instead is what this"
        " classifier is for. scikit-learn excuses its own TunedThresholdClassifierCV from it."
    )
}


class Predicting(ClassifierMixin, BaseEstimator):
    """Base class of the classifiers whose fit begins with `_read` and ends in `_adopt`.

    Attributes:
        model_: The fitted `stepless.tabular.models.model.Model`, which predicts and is saved.
        classes_: The classes. Multilabel: the numbers of the labels.
        pos_label_: The positive class; None if the task is not binary.
        best_threshold_: The threshold of `predict_proba`. Multilabel: one per label. Multiclass: the class offsets.
        best_score_: The metric on held-out rows, of what was chosen for being best there, so it is optimistic.
        n_features_in_, feature_names_in_: The columns of `fit`.
    """

    def predict(self, X: Any) -> Any:
        """Predict labels ``(N,)``, or 0 and 1 ``(N, labels)``."""
        table = self._table(X)
        return self.model_.labels(table)

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities: ``(N, classes)``, in the order of `classes_`, or ``(N, labels)``."""
        table = self._table(X)
        return self.model_.probabilities(table)

    def decision_function(self, X: Any) -> Any:
        """Compute how far each row is on the side of yes. Values above 0 are decided yes, and no value is 0.

        Binary ``(N,)`` and multilabel ``(N, labels)``: probability − threshold, where an infinite threshold counts as
        −1 or 2, so that values still rank the rows. As in scikit-learn, yes is ``classes_[1]``; if ``pos_label_`` is
        the other class, the sign is flipped. Multiclass ``(N, classes)``: log p − offset, of which the largest decides.
        """
        table = self._table(X)
        decision = self.model_.decision(table)
        if self.model_.task == "multiclass":
            return decision
        # a row on the threshold is decided yes, so its value must be above 0
        decision = np.where(decision == 0, np.finfo(np.float64).smallest_subnormal, decision)
        return -decision if self.model_.positive == 0 else decision

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the metric of the decisions. Greater is better: the sign of a cost or an error rate is flipped."""
        table = self._table(X)
        rule = self._rule
        if rule.metric is None:
            raise ValueError(
                f"the metric of this model, {self.model_.metric}, was a function; that is code, and so it was not"
                " saved. Score what predict gives, for example with stepless.score."
            )
        check_consistent_length(X, y)
        target = rule.encode(read_target(y, rule.task)[1])
        value = rule.score(self.model_.decide(table), target, read_weight(sample_weight, table.rows))
        return value if rule.resolved.greater_is_better else -value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model as a folder that `stepless.load` reads. It holds no code.

        Args:
            path: The folder. A model that is there is replaced when the new one is complete.
        """
        from stepless.tabular.persist import save_model  # noqa: PLC0415 - needs safetensors

        check_is_fitted(self)
        check_savable(self)
        save_model(self.model_, path)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write everything from raw columns to labels as one ONNX graph. This needs the extra ``onnx``.

        Args:
            path: The file.
        """
        from stepless.tabular.export import to_onnx  # noqa: PLC0415 - needs an extra

        check_is_fitted(self)
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"to_onnx needs a folder that exists; {Path(path).parent} does not. Make it first.")
        to_onnx(self.model_, path)

    @classmethod
    def from_model(cls, model: Model) -> Self:
        """Return the fitted estimator of a model that was saved and loaded."""
        params = model.settings.get("params", {})
        if not isinstance(params, dict):
            raise ValueError(f"the parameters of an estimator must be a dict; got {str(params)[:100]}.")
        try:
            params = from_json(params)
        except RecursionError:
            raise ValueError("the parameters of an estimator are nested too deeply to be ones that we wrote.") from None
        known = inspect.signature(cls.__init__).parameters
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in params.items() if k in known}
        made = cls(**{"metric": model.metric, **given})
        rule = Rule(
            model.task, model.classes, model.positive or 0, "predict_proba", params.get("metric"),
            read_options(params.get("metric_options")), params.get("subject_to"), params.get("average"), 0,
        )  # fmt: skip
        made._adopt(model, rule)
        return made

    def _read(
        self, X: Any, y: Any, sample_weight: Any, classes: Any = None
    ) -> tuple[Table, NDArray[np.int64], NDArray[np.float64] | None, Rule]:
        """Check the arguments of `fit`; return rows, encoded target, weights and rule, without rows of weight 0.

        ``classes`` are all classes, if ``y`` may lack some.
        """
        params: Any = self
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        table = read_table(X)
        task, y = read_target(y)
        self._check_task(task)
        check_consistent_length(X, y)
        weight = read_weight(sample_weight, table.rows)
        if weight is not None:
            kept = np.flatnonzero(weight)
            if len(kept) < table.rows:
                table, y, weight = table.take(kept), y[kept], weight[kept]
        if task == "multilabel":
            found = np.arange(y.shape[1])
        else:
            found = np.unique(y if classes is None else classes)
            task = "binary" if len(found) == 2 else "multiclass"
            if len(found) < 2:
                raise ValueError(f"y has one class only ({', '.join(map(str, found))}): there is nothing to decide.")
        if task != "binary" and params.pos_label is not None:
            raise ValueError(f"pos_label={params.pos_label!r} has no effect on a {task} task; leave it out.")
        positive = positive_class(found, y, params.pos_label) if task == "binary" else 0
        if params.average == "none":
            raise ValueError('a classifier is chosen by one score; average="none" gives one for each class.')
        if is_ranking(params.metric):
            raise ValueError(
                f"{type(self).__name__} decides, so its metric must score decisions, as 'f1' does; {params.metric!r}"
                " scores a ranking. Train on that with stepless.MetricLoss."
            )
        rule = Rule(
            task, found, positive, "predict_proba", params.metric, read_options(params.metric_options),
            params.subject_to, params.average, 0,
        )  # fmt: skip
        rule.check()
        return table, rule.encode(y), weight, rule

    def _check_task(self, task: str) -> None:
        """Raise if this classifier does not support the task."""

    def _seed(self) -> int:
        """The seed of a fit: ``random_state``, or a number drawn from it."""
        state: Any = self.random_state
        random = check_random_state(state)  # raises for what is not a seed
        return int(state if isinstance(state, Integral) else random.randint(2**31 - 1)) % 2**31

    def _make_model(
        self, rule: Rule, features: Features, members: Sequence[Member], weights: Sequence[float],
        library: Library | None, *, calibration: Calibration, threshold: float | tuple[float, ...], score: float,
    ) -> Model:  # fmt: skip
        """The model of a fit; ``library`` is that of its trees, if there are any."""
        versions = library_versions()
        if library is not None:
            versions[library] = str(library_module(library).__version__)
        return Model(
            task=rule.task,
            classes=rule.classes,
            positive=rule.positive if rule.task == "binary" else None,
            metric=rule.resolved.name,
            features=features,
            members=tuple(members),
            weights=tuple(weights),
            calibration=calibration,
            threshold=threshold,
            versions=versions,
            settings={
                "estimator": type(self).__name__,
                "params": json_params(self),
                "score": None if math.isnan(score) else score,
            },
        )

    def _adopt(self, model: Model, rule: Rule) -> None:
        """Set the fitted attributes from a model."""
        self.model_, self._rule = model, rule
        self.classes_ = rule.classes
        self.pos_label_ = rule.classes.tolist()[rule.positive] if rule.task == "binary" else None
        self.best_threshold_ = np.array(model.threshold) if isinstance(model.threshold, tuple) else model.threshold
        score = model.settings.get("score")
        self.best_score_ = math.nan if score is None else score
        self.n_features_in_ = len(model.features.columns)
        if model.features.names is not None:
            self.feature_names_in_ = np.array(model.features.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _table(self, X: Any) -> Table:
        check_is_fitted(self)
        table = read_table(X)
        self.model_.features.check(table, type(self).__name__)
        return table

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        return text if getattr(self, "pos_label_", None) is None else f"{text} with pos_label_={self.pos_label_!r}"
