"""`TunedThreshold`: a scikit-learn classifier that tunes the decisions of another one for a metric."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from stepless.extras import needs
from stepless.held_out import check_rows, cross_fit, divide, pool, refit_fold, score_fold
from stepless.params import json_params
from stepless.ranking import is_ranking
from stepless.rules import Held, Rule, positive_class, read_options
from stepless.targets import read_target, read_weight
from stepless.tasks import Task

with needs("stepless's estimators need scikit-learn", "sklearn", "sklearn"):
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit, check_cv
    from sklearn.utils import Bunch, check_random_state, get_tags, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.parallel import Parallel, delayed
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, has_fit_parameter

_METHODS = ("predict_proba", "decision_function")
#: The parameters that a saved model takes from the tuned classifier; its others come from the estimator.
_METRIC_PARAMS = ("metric", "metric_options", "subject_to", "average", "pos_label")


def _has(method: str) -> Callable[[Any], bool]:
    return lambda self: hasattr(getattr(self, "estimator_", self.estimator), method)


class TunedThreshold(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier that tunes the threshold of another one for a metric, on scores of rows it was not trained on.

    `fit` scores the training rows out of fold, pools the scores, tunes on them over every cut (`tune_threshold`), and
    then fits the estimator on all rows. `predict` decides yes if the score is at least the threshold (binary), does the
    same for each label with a threshold of its own (multilabel), or takes the class argmax(log p − offset)
    (multiclass).

    `best_score_` is the best of many scores on the data it was chosen on, so it is too high. `nested_score_` is the
    estimate for new data. By default, each fold is decided by what was tuned on the other folds' scores. This needs no
    fit, but those scores come from models that have seen the fold, so a little optimism may remain. ``nested="full"``
    repeats the whole procedure without the fold, including the fits.

    Args:
        estimator: A classifier with ``predict_proba`` or ``decision_function``.
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        subject_to: Constraints, such as ``"precision >= 0.9"``.
        average: Over classes: ``"macro"`` (default), ``"micro"``, ``"weighted"``, or ``"samples"`` (multilabel only).
        cv: The number of folds (None: 5), a share in (0, 1) to hold out once, a splitter, splits, or ``"prefit"``: the
            estimator is fitted already, on other data than is passed to `fit`, and is used unchanged, whatever
            ``refit`` is.
        pos_label: Binary: the positive class. Default: 1 (or True) of ``{0, 1}`` or ``{-1, 1}``, else the rarer class.
            Beware where scikit-learn numbers the labels before it fits (VotingClassifier, StackingClassifier,
            BaggingClassifier, ``cross_val_predict``): the default is then 1, the last label in sorted order.
        response_method: ``"predict_proba"``, ``"decision_function"``, or ``"auto"`` for the first one that exists.
        refit: Whether to fit on all rows at the end. False keeps the model of a ``cv`` that splits once.
        nested: How to compute `nested_score_`: ``"cross-fit"``, ``"full"``, or None for not at all.
        metric_options: Options of the metric, such as ``{"beta": 2}``, or ``{"maximize": False}`` for a formula.
        random_state: Seed of the folds, which are not shuffled without it, and of the search for class offsets.
        n_jobs: How many folds are fitted in parallel.

    Attributes:
        estimator_: The fitted classifier.
        best_threshold_: The threshold. Multilabel: one per label. Multiclass: the class offsets.
        best_score_: The metric at this threshold, on the scores it was tuned on.
        nested_score_: The estimate for new data: the metric of the decisions of all nested folds together. NaN, with a
            warning, if a fold could not be tuned.
        nested_scores_: The metric on each nested fold.
        tuning_: The details of the tuning, a `stepless.Tuning`.
        classes_: The classes, as the estimator has them.
        pos_label_: The positive class; None if the task is not binary.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = make_classification(400, weights=[0.9], class_sep=0.6, random_state=0)
        >>> model = TunedThreshold(LogisticRegression(), metric="f1").fit(X, y)
        >>> bool(model.best_threshold_ < 0.5), bool(model.nested_score_ < model.best_score_)
        (True, True)
    """

    def __init__(
        self,
        estimator: Any,
        metric: Any = "f1",
        *,
        subject_to: Any = None,
        average: str | None = None,
        cv: Any = 5,
        pos_label: Any = None,
        response_method: str = "auto",
        refit: bool = True,
        nested: str | None = "cross-fit",
        metric_options: dict[str, Any] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.metric = metric
        self.subject_to = subject_to
        self.average = average
        self.cv = cv
        self.pos_label = pos_label
        self.response_method = response_method
        self.refit = refit
        self.nested = nested
        self.metric_options = metric_options
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> TunedThreshold:
        """Tune on out-of-fold scores, then fit the estimator on all rows. A fit that fails changes nothing.

        Args:
            X: Rows, as the estimator accepts them.
            y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
            sample_weight: One weight per row, for the tuning and, if it accepts weights, for the estimator.
            fit_params: Passed to the estimator's `fit`. With scikit-learn's metadata routing, also to the splitter.
        """
        X, y = indexable(X, y)
        task, y = read_target(y)
        weight = read_weight(sample_weight, len(y))
        routed = self._route(weight, fit_params)
        rule = self._make_rule(task, X, y, weight, routed.estimator.fit)
        splits = self._split(X, y, rule, routed.splitter.split)
        self._check_nested()

        out = Parallel(n_jobs=self.n_jobs)(
            delayed(score_fold)(self.estimator, rule, X, y, train, test, routed.estimator.fit, keep=not self.refit)
            for train, test in splits
        )
        held = pool(rule, [scores for scores, _ in out], [test for _, test in splits], y, weight)
        tuning = rule.tune(held)
        nested_scores, nested_score = self._nest(rule, held, splits, X, y, {**fit_params, "sample_weight": weight})
        if isinstance(self.cv, str):
            estimator = self.estimator
        elif self.refit:
            estimator = clone(self.estimator).fit(X, y, **routed.estimator.fit)
        else:
            estimator = out[0][1]

        self.estimator_ = estimator
        self.classes_ = getattr(estimator, "classes_", rule.classes)
        self.pos_label_ = rule.classes.tolist()[rule.positive] if rule.task == "binary" else None
        self.best_threshold_ = np.array(tuning.threshold) if isinstance(tuning.threshold, tuple) else tuning.threshold
        self.best_score_ = tuning.score
        self.nested_scores_, self.nested_score_ = nested_scores, nested_score
        self.tuning_ = tuning
        self._rule = rule
        return self

    def predict(self, X: Any) -> Any:
        """Predict labels ``(N,)``, or 0 and 1 ``(N, labels)``, with the tuned threshold, thresholds or offsets."""
        check_is_fitted(self)
        return self._rule.name(self._rule.decide(self._rule.read(self.estimator_, X), self.best_threshold_))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the metric of the decisions. Greater is better: the sign of a cost or an error rate is flipped."""
        check_is_fitted(self)
        rule = self._rule
        check_consistent_length(X, y)
        target = rule.encode(read_target(y, rule.task)[1])
        decided = rule.decide(rule.read(self.estimator_, X), self.best_threshold_)
        value = rule.score(decided, target, read_weight(sample_weight, len(target)))
        return value if rule.resolved.greater_is_better else -value

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Call ``predict_proba`` of the fitted estimator."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> Any:
        """Call ``predict_log_proba`` of the fitted estimator."""
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(X)

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Call ``decision_function`` of the fitted estimator."""
        check_is_fitted(self)
        return self.estimator_.decision_function(X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save a tuned `stepless.MetricClassifier` or `stepless.MetricBooster` with the tuned threshold as its own.

        `stepless.load` returns it as the estimator that was tuned, with the metric it was tuned for.

        Args:
            path: The folder.
        """
        check_is_fitted(self)
        rule, model = self._rule, getattr(self.estimator_, "model_", None)
        name = type(self.estimator_).__name__
        if model is None or not hasattr(model, "threshold"):
            raise TypeError(f"save is for a tuned MetricClassifier or MetricBooster; this one tunes a {name}.")
        if rule.method != "predict_proba":
            raise ValueError(
                f"a saved model decides by probabilities; this threshold is one of {rule.method}. Fit with"
                ' response_method="predict_proba".'
            )
        if rule.task == "binary" and rule.positive != model.positive:
            raise ValueError(
                f"a saved model has one positive class; it is {self.pos_label_!r} here and"
                f" {self.estimator_.pos_label_!r} for the {name}. Give both the same pos_label."
            )
        own = json_params(self)
        params = {**model.settings.get("params", {}), **{name: own.get(name) for name in _METRIC_PARAMS}}
        if "metric" not in own:
            del params["metric"]
        settings = {**model.settings, "params": params, "score": self.best_score_}
        threshold = self.tuning_.threshold
        decided = copy(self.estimator_).set_params(**{name: getattr(self, name) for name in _METRIC_PARAMS})
        decided.model_ = replace(model, metric=rule.resolved.name, threshold=threshold, settings=settings)
        decided.save(path)

    @property
    def n_features_in_(self) -> int:
        """The number of features that the estimator has seen, if it says so."""
        return self.estimator_.n_features_in_

    @property
    def feature_names_in_(self) -> Any:
        """The names of these features, if there were any."""
        return self.estimator_.feature_names_in_

    def get_metadata_routing(self) -> Any:
        """Route metadata to the estimator's `fit` and the splitter's `split`. ``sample_weight`` is also used here."""
        return (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
            .add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        )

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags = inner.classifier_tags
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        return text if getattr(self, "pos_label_", None) is None else f"{text} with pos_label_={self.pos_label_!r}"

    # -----------------------------------------------------------------------------------------------------------------
    # The parts of a fit
    # -----------------------------------------------------------------------------------------------------------------

    def _make_rule(self, task: Task, X: Any, y: Any, weight: Any, params: dict[str, Any]) -> Rule:
        """Check what can be checked before anything is fitted, and settle how labels and scores are read."""
        if self.average == "none":
            raise ValueError('a threshold is tuned for one score; average="none" gives one for each class.')
        classes = np.unique(y)
        if task != "multilabel":
            counted = classes if weight is None else np.unique(y[weight > 0])
            if len(counted) < 2:
                raise ValueError(f"y has one class only ({', '.join(map(str, counted))}): there is nothing to decide.")
        if isinstance(self.cv, str) and self.cv == "prefit":
            try:
                check_is_fitted(self.estimator)
            except NotFittedError:
                raise NotFittedError('cv="prefit" needs an estimator that is fitted already.') from None
            if task != "multilabel":
                classes = np.asarray(getattr(self.estimator, "classes_", classes))
                task = "binary" if len(classes) == 2 else "multiclass"
        if task != "binary" and self.pos_label is not None:
            raise ValueError(f"pos_label={self.pos_label!r} has no effect on a {task} task; leave it out.")
        positive = positive_class(classes, y, self.pos_label, weight) if task == "binary" else 0
        seed = 0 if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        options = read_options(self.metric_options)
        if is_ranking(self.metric):
            raise ValueError(
                f"a threshold is tuned for a metric that scores decisions, as 'f1' does; {self.metric!r} scores a"
                " ranking, which no threshold changes."
            )
        rule = Rule(task, classes, positive, "", self.metric, options, self.subject_to, self.average, seed)
        rule.check()
        return replace(rule, method=self._method(X, y, params))

    def _method(self, X: Any, y: Any, params: dict[str, Any]) -> str:
        """The estimator's method that gives scores."""
        wanted = _METHODS if self.response_method == "auto" else (self.response_method,)
        if not set(wanted) <= set(_METHODS):
            raise ValueError(f'response_method must be "auto", {_METHODS[0]!r} or {_METHODS[1]!r}; got {wanted[0]!r}.')
        estimator = self.estimator
        if not any(hasattr(estimator, method) for method in wanted) and is_classifier(estimator):
            estimator = clone(estimator).fit(X, y, **params)  # a StackingClassifier has no methods before its fit
        for method in wanted:
            if hasattr(estimator, method):
                return method
        raise TypeError(
            f"a threshold needs scores: the estimator must have {' or '.join(wanted)};"
            f" {type(self.estimator).__name__} has not."
        )

    def _route(self, weight: Any, fit_params: dict[str, Any]) -> Any:
        """Split the metadata between the estimator's `fit` and the splitter's `split`."""
        if get_config()["enable_metadata_routing"]:
            return process_routing(self, "fit", sample_weight=weight, **fit_params)
        if weight is not None and has_fit_parameter(self.estimator, "sample_weight"):
            fit_params = {**fit_params, "sample_weight": weight}
        elif weight is not None:
            warnings.warn(
                f"{type(self.estimator).__name__}.fit takes no sample_weight: it is used for the tuning alone.",
                stacklevel=3,
            )
        return Bunch(estimator=Bunch(fit=fit_params), splitter=Bunch(split={}))

    def _split(self, X: Any, y: Any, rule: Rule, params: dict[str, Any]) -> list[tuple[Any, Any]]:
        if isinstance(self.cv, str):
            if self.cv != "prefit":
                raise ValueError(f'cv must be a number, a splitter, splits or "prefit"; got {self.cv!r}.')
            return [(None, np.arange(len(y)))]
        cv, stratify = 5 if self.cv is None else self.cv, rule.task != "multilabel"
        if isinstance(cv, Integral):
            if stratify:
                check_rows(y, int(cv))
            if self.random_state is not None:
                folds = StratifiedKFold if stratify else KFold
                cv = folds(cv, shuffle=True, random_state=self.random_state)
        elif isinstance(cv, Real):
            once = StratifiedShuffleSplit if stratify else ShuffleSplit
            cv = once(n_splits=1, test_size=float(cv), random_state=self.random_state)
        try:
            splits = list(check_cv(cv, y, classifier=True).split(X, y, **params))
        except ValueError as error:
            if "groups" not in str(error) or get_config()["enable_metadata_routing"]:
                raise
            raise ValueError(
                f"{error} Groups reach cv by scikit-learn's metadata routing alone: call"
                " sklearn.set_config(enable_metadata_routing=True), or pass the splits themselves, as in"
                f" cv=list({type(cv).__name__}().split(X, y, groups))."
            ) from error
        if not splits:
            raise ValueError("cv must make at least one split into training and test rows; it makes none.")
        if not self.refit and len(splits) > 1:
            raise ValueError(f"refit=False keeps the model of a single split; cv makes {len(splits)} of them.")
        return splits

    def _check_nested(self) -> None:
        if self.nested not in ("cross-fit", "full", None):
            raise ValueError(f'nested must be "cross-fit", "full" or None; got {self.nested!r}.')
        splits_again = self.cv is None or isinstance(self.cv, Real) or hasattr(self.cv, "split")
        if self.nested == "full" and (isinstance(self.cv, str) or not splits_again):
            raise ValueError(
                'nested="full" splits the training part of each fold once more, so cv must be a number or a splitter;'
                f" got {self.cv if isinstance(self.cv, str) else type(self.cv).__name__}."
            )

    def _nest(
        self, rule: Rule, held: Held, splits: list[tuple[Any, Any]], X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[Any, float]:
        """The metric on each nested fold, and on the decisions of all folds together."""
        if self.nested is None:
            return np.array([]), math.nan
        if self.nested == "cross-fit":
            held = held if len(splits) > 1 else divide(rule, held)
            outcomes = [cross_fit(rule, held, fold) for fold in range(int(held.folds.max()) + 1)]
        else:
            inner = clone(self).set_params(nested=None, n_jobs=None, refit=True)
            if rule.task == "binary":
                inner.set_params(pos_label=rule.classes[rule.positive])
            outcomes = Parallel(n_jobs=self.n_jobs)(
                delayed(refit_fold)(clone(inner), rule, X, y, train, held.rows[held.folds == fold], params)
                for fold, (train, _) in enumerate(splits)
            )
        scores, decided, failed = np.full(len(outcomes), math.nan), np.zeros_like(held.target), ""
        for fold, outcome in enumerate(outcomes):
            here = held.folds == fold
            if isinstance(outcome, ValueError):
                failed = failed or f"without fold {fold}, {outcome}"
            elif here.any():
                part = held.part(here)
                decided[here] = outcome
                scores[fold] = rule.score(outcome, part.target, part.weight)
        if failed:
            warnings.warn(f"nested_score_ is NaN: {failed}", stacklevel=3)
        return scores, math.nan if failed else rule.score(decided, held.target, held.weight)
