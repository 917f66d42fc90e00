"""`MetricBooster`: boosted trees of LightGBM, XGBoost or CatBoost that are grown, stopped and cut for a metric."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection
from dataclasses import replace
from numbers import Real
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from stepless.boosting import Library
from stepless.costs import Costs, Floats, Form
from stepless.numerics import is_whole
from stepless.rules import Rule
from stepless.scoring import make_path
from stepless.tabular.ensembles.choosing import Choice, check_cut, choose, expected, foreseeable, leave_some
from stepless.tabular.ensembles.growing import Growth, Watch, grow
from stepless.tabular.ensembles.portfolio import Ensemble, are_draws, make_folds, merge_rows
from stepless.tabular.ensembles.predicting import Predicting
from stepless.tabular.models.model import Model, mean_score
from stepless.tabular.models.preprocessing import fit_features
from stepless.tabular.tables.frames import Table
from stepless.tabular.trees.steppers import Settings, in_our_words, library_module

#: With fewer distinct rows no fold is held out: too few would remain to grow on, and too few would be counted.
_FEWEST = 50
#: A question about all rows is first asked of this many, which usually settle it.
_FIRST_ROWS = 1000


class MetricBooster(Predicting):
    """Gradient boosting for the metric you report.

    `fit` grows boosters on cross-entropy weighted by how much each decision is worth to the metric (`stepless.costs`),
    and on plain cross-entropy. There are ``n_members`` boosters of each form, each grown without one fold of the rows.
    They grow in step: after every round, each scores the rows it has not seen, and the counts of these rows say what
    decisions are worth in the next round. These scores also stop the growth, on the metric itself, calibrate the
    probabilities, and choose the threshold. Predictions are the mean of all boosters.

    No rows are held out if a table has fewer than 50 distinct rows, unless there are ten or more rows per distinct row,
    or if one of two classes has a single row. Then one booster of each form is grown on all rows, with equal rows
    merged and their weights added. The threshold is ½, or with constraints one that meets them on these rows.
    Probabilities are not calibrated, and ``best_score_`` is NaN. Of several classes, one may have a single row, which
    only the trees that it is held out from do not know.

    Args:
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        library: ``"lightgbm"``, ``"xgboost"`` or ``"catboost"``.
        forms: What to grow for, one or more of ``"cost"``, ``"cross_entropy"`` and ``"metric"`` (the soft metric
            itself). With constraints, only plain cross-entropy is used, and the threshold meets them.
        threshold: ``"expected"`` for the threshold (multiclass: offsets) that is best in expectation, if the calibrated
            probabilities of held-out rows are true. It is steadier than the best on their few true labels. With two
            classes it decides no for at least 5 % of these rows and yes for some, if they can be told apart at all.
            ``"tuned"`` for the best on their true labels; ``"expected"`` means this with constraints, and for several
            classes without ``calibrate``. ``"half"`` for ½ (multiclass: the largest score) before calibration.
            ``"auto"`` for the better of the last two on held-out rows. Or the threshold itself: a probability, class
            offsets, or a `stepless.Tuning`.
        n_members: The number of boosters of each form, and of folds. 1 holds out a fifth of the rows once.
        n_estimators: The largest number of rounds.
        learning_rate: The step size of each round.
        patience: Stop after so many rounds without a better metric on held-out rows, and keep the best round. None
            never stops.
        params: Further parameters by the library's own names, such as ``{"num_leaves": 15}``. By default, each
            multiclass tree of LightGBM sees 80 % of the rows, and a part of the columns if there are many.
        average: Multiclass: ``"macro"`` (default), ``"micro"`` or ``"weighted"``.
        subject_to: Constraints, such as ``"precision >= 0.9"``. The threshold meets them on held-out rows. If none are
            held out, it meets them on the training rows, and so hardly on others.
        metric_options: Options of the metric, such as ``{"beta": 2}``, or ``{"maximize": False}`` for a formula.
        pos_label: Binary: the positive class. Default: 1 (or True) of ``{0, 1}`` or ``{-1, 1}``, else the rarer class.
            Beware where scikit-learn numbers the labels before it fits (VotingClassifier, StackingClassifier,
            BaggingClassifier, ``cross_val_predict``): the default is then 1, the last label in sorted order.
        calibrate: Whether to calibrate probabilities on held-out rows. Otherwise those of the cost form are shifted, so
            that ½ is where the metric wants the threshold.
        n_jobs: How many threads the library uses. Default: 1; −1 for all cores.
        random_state: Seed of the folds and of the library's random numbers.

    Attributes:
        rounds_: For each form, how many rounds were kept.
        history_: For each form, the metric on held-out rows after every fifth round, with the sign that makes greater
            better; with constraints, minus the mean cross-entropy. With two classes it is taken at the best threshold,
            unless ``threshold`` is ``"half"``. If no rows are held out, it is that of all rows.

    It also has the attributes of `stepless.tabular.ensembles.predicting.Predicting`.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(400, weights=[0.9], random_state=0)
        >>> model = MetricBooster(metric="f1", n_estimators=20, random_state=0).fit(X, y)
        >>> bool((model.predict(X) == (model.predict_proba(X)[:, 1] >= model.best_threshold_)).all())
        True
    """

    def __init__(
        self,
        metric: Any = "f1",
        library: Library = "lightgbm",
        *,
        forms: Any = ("cost", "cross_entropy"),
        threshold: Any = "expected",
        n_members: int = 5,
        n_estimators: int = 150,
        learning_rate: float = 0.1,
        patience: int | None = 50,
        params: Any = None,
        average: str | None = None,
        subject_to: Any = None,
        metric_options: dict[str, Any] | None = None,
        pos_label: Any = None,
        calibrate: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.metric = metric
        self.library = library
        self.forms = forms
        self.threshold = threshold
        self.n_members = n_members
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.patience = patience
        self.params = params
        self.average = average
        self.subject_to = subject_to
        self.metric_options = metric_options
        self.pos_label = pos_label
        self.calibrate = calibrate
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MetricBooster:
        """Grow the boosters, calibrate them, and choose the threshold. A fit that fails changes nothing.

        Args:
            X: Rows: an array, a list of rows, or a pandas or polars frame. Categories and missing values are handled.
            y: Labels ``(N,)``.
            sample_weight: One weight per row.
        """
        settings = self._settings()
        table, target, weight, rule = self._read(X, y, sample_weight)
        forms = self._forms(rule)
        rule = replace(rule, seed=settings.seed)
        features = fit_features(table, weight)
        matrix = features.matrix(table)
        settings = replace(settings, columns=len(features.columns))
        folds: tuple[NDArray[np.intp], ...] = ()
        n = self._folds(target, rule)
        if n and (_are_distinct(matrix) or are_draws(matrix)):
            folds = make_folds(target, rule.task, n, settings.seed)
            weight = None if weight is None else weight * (len(weight) / weight.sum())
        else:  # here a weight of k must be the same as k rows
            matrix, target, weight = merge_rows(matrix, target, weight)
        path = make_path((rule.resolved,), task=rule.task, average=rule.average)
        with in_our_words(settings):
            growths = [
                grow(
                    matrix, target, weight, Costs(rule.resolved, path.task, len(rule.classes), path.average, form),
                    settings, folds, self.patience, self._watch(),
                )
                for form in forms
            ]  # fmt: skip
        if not any(_tells_apart(growth, folds) for growth in growths):
            warnings.warn(
                f"no tree of {self.library} has found a split, so every row gets the same score and the same decision."
                " It may be that a class has too few rows: give more of them, or let leaves be smaller by params.",
                stacklevel=2,
            )
        choice = self._choose(growths, rule, target, weight, folds)
        if not folds:  # a score of training rows
            choice = replace(choice, option=replace(choice.option, score=math.nan))
        model = self._make_model(
            rule, features, [growth.ensemble.member for growth in growths], [1 / len(growths)] * len(growths),
            self.library, calibration=choice.calibration, threshold=choice.threshold, score=choice.option.score,
        )  # fmt: skip
        if folds and self._named("expected") and rule.task == "binary" and rule.subject_to is None:
            model = _with_both_decisions(model, table, weight, rule.positive)
        self.rounds_ = {form: growth.rounds for form, growth in zip(forms, growths, strict=True)}
        self.history_ = {form: growth.scores for form, growth in zip(forms, growths, strict=True)}
        self._adopt(model, rule)
        return self

    # -----------------------------------------------------------------------------------------------------------------
    # The parts of a fit
    # -----------------------------------------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        if self.library not in get_args(Library):
            known = ", ".join(map(repr, get_args(Library)))
            raise ValueError(f"library must be one of {known}; got {self.library!r}.")
        library_module(self.library)
        for name, least in (("n_estimators", 1), ("n_members", 1), ("patience", 1)):
            value: Any = getattr(self, name)
            if name == "patience" and value is None:
                continue
            if not is_whole(value) or int(value) < least:
                raise ValueError(f"{name} must be a whole number from {least} up; got {value!r}.")
        rate: Any = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < math.inf:
            raise ValueError(f"learning_rate must be a number above 0; got {rate!r}.")
        if self.params is not None and not isinstance(self.params, dict):
            raise TypeError(f"params must be a dict of the library's parameters; got {type(self.params).__name__}.")
        for name in self.params or {}:
            if not isinstance(name, str):
                raise TypeError(f"params must hold the library's parameters by their names; got {name!r} for a name.")
        return Settings(
            self.library, int(self.n_estimators), float(rate), dict(self.params or {}), self._seed(),
            _threads(self.n_jobs),
        )  # fmt: skip

    def _check_task(self, task: str) -> None:
        if task == "multilabel":
            raise ValueError(
                "MetricBooster takes one label per row; for 0 and 1 in several columns use"
                " sklearn.multioutput.MultiOutputClassifier(MetricBooster(…))."
            )

    def _forms(self, rule: Rule) -> tuple[Form, ...]:
        check_cut(self.threshold, rule)
        forms, known = self.forms, get_args(Form)
        listed = isinstance(forms, Collection) and not isinstance(forms, str) and all(isinstance(f, str) for f in forms)
        if not listed or not forms or len(set(forms)) < len(forms) or not set(forms) <= set(known):
            raise ValueError(f"forms must be some of {', '.join(map(repr, known))}; got {forms!r}.")
        return ("cross_entropy",) if rule.subject_to is not None else tuple(forms)

    def _folds(self, target: NDArray[np.int64], rule: Rule) -> int:
        """The number of folds; 0 if no rows can be held out."""
        if rule.task != "binary":  # trees that have not seen one class still tell the others apart
            return int(self.n_members)
        # every booster needs a row of each class
        smallest = int(np.bincount(target).min())
        return min(int(self.n_members), smallest) if smallest > 1 else 0

    def _watch(self) -> Watch:
        if self.subject_to is not None:
            return "loss"
        return "half" if self._named("half") else "cut"

    def _named(self, cut: str) -> bool:
        """Whether ``threshold`` is this name; an array is not compared with one."""
        return isinstance(self.threshold, str) and self.threshold == cut

    def _choose(
        self,
        growths: list[Growth],
        rule: Rule,
        target: NDArray[np.int64],
        weight: Floats | None,
        folds: tuple[NDArray[np.intp], ...],
    ) -> Choice:
        """Calibrate the mean of all forms and choose its threshold."""
        stacked = np.stack([growth.ensemble.held for growth in growths])
        shares = np.full(len(growths), 1 / len(growths))
        if rule.task == "binary":
            held = mean_score(stacked[..., None], shares, "binary")[:, 0]
        else:
            held = mean_score(stacked, shares, "multiclass")
        rows = np.concatenate(folds) if folds else np.arange(len(target))
        numbers = np.repeat(np.arange(len(folds)), [len(fold) for fold in folds]) if folds else np.zeros(len(rows), int)
        y, w = target[rows], None if weight is None else weight[rows]
        free = rule.subject_to is None  # constraints need a threshold that is tuned on true labels
        if self._named("expected") and folds and free and foreseeable(rule, calibrate=self.calibrate):
            return expected(held, rule, y, w, numbers, calibrate=self.calibrate)
        cut: Any = "tuned" if self._named("expected") else self.threshold
        if not folds and free and isinstance(cut, str):
            cut = "half"  # training rows say nothing about the best threshold
        average = Ensemble("average", growths[0].ensemble.member, held)
        return choose([average], rule, y, w, numbers, cut=cut, calibrate=self.calibrate and bool(folds))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _with_both_decisions(model: Model, table: Table, weight: Floats | None, positive: int) -> Model:
    """Move the threshold if all rows get the same decision, since a mean of boosters is less extreme than each."""
    cut = model.threshold
    assert isinstance(cut, float)
    for part in (table.take(np.arange(min(_FIRST_ROWS, table.rows))), table):
        p = model.probabilities(part)[:, positive]
        if (p >= cut).any() and not (p >= cut).all():
            return model
    return replace(model, threshold=leave_some(cut, p, weight))


def _threads(n_jobs: Any) -> int:
    """The number of threads, as joblib counts them: None for one, −1 for all, −2 for all but one."""
    if n_jobs is None:
        return 1
    if not is_whole(n_jobs) or n_jobs == 0:
        raise ValueError(f"n_jobs must be a number of threads, or −1 for all; got {n_jobs!r}.")
    threads = int(n_jobs)
    return threads if threads > 0 else max(1, (os.cpu_count() or 1) + 1 + threads)


def _tells_apart(growth: Growth, folds: Collection[NDArray[np.intp]]) -> bool:
    """Whether any two rows of a fold get different scores; true if no fold has two."""
    if folds and max(map(len, folds)) == 1:
        return True
    ends = np.cumsum([len(fold) for fold in folds])[:-1]
    return any(bool(np.ptp(part, axis=0).any()) for part in np.split(growth.ensemble.held, ends.astype(int)))


def _are_distinct(matrix: NDArray[np.float32]) -> bool:
    """Whether there are enough distinct rows to hold some out."""
    parts = (matrix[:_FIRST_ROWS], matrix)
    return any(len(np.unique(part, axis=0)) >= _FEWEST for part in parts if len(part) >= _FEWEST)
