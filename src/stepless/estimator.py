"""`MetricClassifier`: a scikit-learn classifier that is trained, chosen and cut for the metric it is named for."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepless.ensembles.choosing import Choice, Combine, Pool, check_cut, choose, given_cut
from stepless.ensembles.lineup import TREES, check_names, fit_others, lineup
from stepless.ensembles.portfolio import (
    CANDIDATES,
    Ensemble,
    Goal,
    Rows,
    are_draws,
    automatic_plan,
    fit_ensembles,
    make_folds,
    merge_rows,
)
from stepless.ensembles.predicting import Predicting
from stepless.extras import needs
from stepless.models.members import Factory
from stepless.models.model import Model, library_versions
from stepless.models.preprocessing import Features, fit_features
from stepless.networks.nets import HIDDEN, Architecture
from stepless.networks.training import History, Plan, Report
from stepless.numerics import is_whole
from stepless.params import json_params
from stepless.progress_bars import progress_bar
from stepless.rules import Rule
from stepless.tables.frames import Table
from stepless.trees.steppers import library_module

with needs("MetricClassifier needs scikit-learn", "sklearn", "sklearn"):
    from sklearn.utils import check_random_state

#: In tables of up to so many rows equal ones are made one, which makes a weight of k the same as k rows, exactly;
#: unless they are draws from few kinds.
_SMALL = 1000


@dataclass(frozen=True, eq=False)
class _Fit:
    """Everything a fit leaves behind; it is put in place at once, when all of it is there.

    Attributes:
        model: What predicts.
        rule: How labels and decisions are read and scored.
        choice: How the model came about.
        shares: What each candidate counts.
        history: Of the training.
        weights: Of all networks, for a fit that goes on from here.
        nets: The losses, the folds and the shape of these networks.
        seed: Of the folds, which stay when training goes on: what a network has seen must not be held out from it.
        turns: How many fits have gone into the networks.
        pool: What `MetricClassifier.partial_fit` goes on with.
    """

    model: Model
    rule: Rule
    choice: Choice
    shares: dict[str, float]
    history: History
    weights: dict[str, Tensor]
    nets: tuple[Any, ...]
    seed: int
    turns: int
    pool: Pool | None


class MetricClassifier(Predicting):
    """A classifier for the metric you report.

    `fit` trains small networks on cross-entropy and on an even mixture of it and the metric, a linear model, and, where
    LightGBM is installed, boosted trees, grown on cross-entropy and on cross-entropy weighted by what decisions are
    worth to the metric. Each has ``n_members`` of its kind, which leave out a fold of rows in turn. The rows that a
    member has not seen say what each kind counts in the mean of all, calibrate the probabilities, and say where to cut
    them for the metric. Numbers are standardised, categories made columns, and missing values handled, for numpy
    arrays, pandas and polars alike. In tables of up to 1,000 rows a weight of k is the same as k rows, exactly, unless
    rows are of so few kinds that there are ten or more of each; there and in larger tables it is but for chance.

    Args:
        metric: A name of `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        model: ``"mlp"``, ``"linear"``, or a factory of a ``torch.nn.Module``, called without arguments or with the
            numbers of inputs and outputs.
        hidden: The widths of an mlp's layers.
        candidates: Who takes part, some of `stepless.ensembles.lineup.NAMES`: losses of the networks
            (``"cross_entropy"``, ``"mixture"``, ``"metric"``, ``"blend"``, ``"cost_weighted"``), ``"linear"``,
            ``"trees"``, ``"sampled_trees"`` (of a part of the rows and columns each) and ``"cost_trees"``. None for
            those that suit the table. One that does not go with the metric is left out (costs have no samples average).
            Networks alone take part with ``warm_start``, from the first fit on, in `partial_fit`, and where ``model``
            is a factory.
        combine: ``"stack"`` for the mean of all, weighted so that held-out rows are most likely; ``"best"`` for the one
            with the best metric on held-out rows, or their plain average where that is better.
        threshold: ``"expected"`` for the threshold (multiclass: offsets) that is best if every held-out row is of a
            class with the probability that it is calibrated to, which is steadier than the best on their few true
            labels; of two classes it leaves out at least 5 % of these rows, and says yes to some, so that it is never
            the same for everybody. ``"tuned"`` for the best on their labels, ``"half"`` for ½ (the largest
            probability) of what the members say before it is calibrated, ``"auto"`` for whichever of the two does
            better on held-out rows. For several classes or labels without ``calibrate``, and for a samples average,
            ``"expected"`` is ``"auto"``; with constraints both are ``"tuned"``. Or the threshold itself: a
            probability, one a label, offsets of the classes, or what `stepless.tune_threshold` found.
        n_members: Members of each kind, and so folds; 1 holds out a fifth of the rows once.
        average: Multiclass and multilabel: ``"macro"`` (default), ``"micro"``, ``"weighted"``, or ``"samples"``.
        subject_to: Constraints, as in ``"precision >= 0.9"``.
        metric_options: Options of the metric, as in ``{"beta": 2}``, or ``{"maximize": False}`` for a formula.
        pos_label: Binary: which class is the positive one. By default 1 or True where there is one (``{0, 1}``,
            ``{-1, 1}``), otherwise the rarer class.
        preprocess: Whether columns are standardised and categories and missing values handled. Without it, every column
            is a number, none is missing, and networks see them as they are.
        calibrate: Whether probabilities are calibrated on held-out rows.
        epochs: Passes over the rows; by default scaled to the number of rows.
        batch_size: Rows a step; by default scaled to the number of rows.
        learning_rate: Of AdamW; it falls to 0 along a cosine.
        weight_decay: Of AdamW; by default the less, the more rows there are.
        dropout: The share of hidden units that rest in a step.
        early_stopping: Whether a network stops when a tenth of its training rows, held out for that, gets no better.
        patience: For how many epochs it may get no better.
        warm_start: Whether `fit` goes on from the networks of the last fit. Networks alone can: a linear model and
            trees take no part, in the first fit either.
        device: Where to train: ``"cpu"``, ``"cuda"``, …; predictions are made on the CPU.
        checkpoint: A file that keeps the state of the training: a fit that was killed goes on from there when it is
            started again on the same data with the same settings. Not for `partial_fit` and ``warm_start``.
        verbose: Whether to show a progress bar.
        random_state: Seed of folds, weights and batches; the same seed gives the same model, bit by bit.

    Attributes:
        weights_: What each candidate counts in the mean that decides.
        best_candidate_: ``"stack"``, ``"average"``, or the one candidate that decides.
        options_: Every way to decide that was tried, with its metric on held-out rows.
        history_: What happened in each epoch: ``train`` and ``held`` losses, ``(epochs, networks)``.

    Those of `stepless.ensembles.predicting.Predicting` as well. A loaded model has those alone.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(400, weights=[0.9], random_state=0)
        >>> model = MetricClassifier(metric="f1", epochs=20, random_state=0).fit(X, y)
        >>> bool((model.predict(X) == (model.predict_proba(X)[:, 1] >= model.best_threshold_)).all())
        True
    """

    def __init__(
        self,
        metric: Any = "f1",
        *,
        model: Any = "mlp",
        hidden: tuple[int, ...] = (64, 64),
        candidates: tuple[str, ...] | None = None,
        combine: str = "stack",
        threshold: Any = "expected",
        n_members: int = 5,
        average: str | None = None,
        subject_to: Any = None,
        metric_options: dict[str, Any] | None = None,
        pos_label: Any = None,
        preprocess: bool = True,
        calibrate: bool = True,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 3e-3,
        weight_decay: float | None = None,
        dropout: float = 0.0,
        early_stopping: bool = False,
        patience: int = 20,
        warm_start: bool = False,
        device: str = "cpu",
        checkpoint: Any = None,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.metric = metric
        self.model = model
        self.hidden = hidden
        self.candidates = candidates
        self.combine = combine
        self.threshold = threshold
        self.n_members = n_members
        self.average = average
        self.subject_to = subject_to
        self.metric_options = metric_options
        self.pos_label = pos_label
        self.preprocess = preprocess
        self.calibrate = calibrate
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.early_stopping = early_stopping
        self.patience = patience
        self.warm_start = warm_start
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state

    # -----------------------------------------------------------------------------------------------------------------
    # Fitting
    # -----------------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MetricClassifier:
        """Train, choose, calibrate and cut. A fit that fails leaves everything as it was.

        Args:
            X: Rows: an array, a list of rows, or a pandas or polars frame.
            y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
            sample_weight: One weight a row.
        """
        last = self._before("warm_start=True goes") if self.warm_start else None
        table, target, weight, rule = self._read(X, y, sample_weight)
        if last is not None:
            target, rule = self._go_on(last.rule, target, rule)
        self._settle(self._train(table, target, weight, rule, last))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> MetricClassifier:
        """Go on with more rows: one pass over them, unless ``epochs`` says otherwise.

        Networks alone can go on: a linear model and trees take no part. The preprocessing and the positive class are
        those of the first call. The threshold and the calibration follow the held-out scores of the last 20,000 rows,
        each as it was when the row came. Rows should be new: one that comes again may be scored by a network that has
        seen it.

        Args:
            X: Rows.
            y: Their labels.
            classes: All classes there will be, for the first call, where ``y`` may lack some.
            sample_weight: One weight a row.
        """
        last = self._before("partial_fit goes")
        left = {name: share for name, share in getattr(self, "weights_", {}).items() if name not in CANDIDATES}
        if left:
            warnings.warn(
                f"partial_fit goes on with networks alone: {', '.join(left)}, which have {sum(left.values()):.0%} of"
                " the weight, are left out from here on. Fit anew on all rows to keep them.",
                stacklevel=2,
            )
        known = last.rule.classes if last is not None and last.rule.task != "multilabel" else classes
        table, target, weight, rule = self._read(X, y, sample_weight, known)
        if last is not None:
            given = rule if classes is None else replace(rule, classes=np.unique(classes))
            target, rule = self._go_on(last.rule, target, given)
        epochs = 1 if self.epochs is None else self.epochs
        self._settle(self._train(table, target, weight, rule, last, epochs=epochs, pooled=True))
        return self

    def _before(self, what: str) -> _Fit | None:
        """The fit that came before, to go on from."""
        if hasattr(self, "model_") and not hasattr(self, "_last"):
            raise ValueError(
                f"{what} on from all networks of a fit; a loaded model has only those that predict. Fit a new one."
            )
        return getattr(self, "_last", None)

    def _go_on(self, old: Rule, target: NDArray[np.int64], rule: Rule) -> tuple[NDArray[np.int64], Rule]:
        """Target and rule with the positive class of the networks there are; they must be for the same classes."""
        if (rule.task, rule.classes.tolist()) != (old.task, old.classes.tolist()):
            raise ValueError(
                f"training goes on from {old.task} networks for the classes {old.classes.tolist()[:10]}; got a"
                f" {rule.task} task with {rule.classes.tolist()[:10]}. Begin anew with clone(estimator).fit(…)."
            )
        if rule.positive == old.positive:
            return target, rule
        if self.pos_label is not None:
            known = old.classes.tolist()[old.positive]
            raise ValueError(f"training goes on from networks whose pos_label is {known!r}; got {self.pos_label!r}.")
        return 1 - target, replace(rule, positive=old.positive)  # another class is rarer among these rows

    def _train(
        self,
        table: Table,
        target: NDArray[np.int64],
        weight: NDArray[np.float64] | None,
        rule: Rule,
        last: _Fit | None,
        *,
        epochs: int | None = None,
        pooled: bool = False,
    ) -> _Fit:
        """A fit, from data that are known to be good."""
        self._check_settings(rule)
        if self.checkpoint is not None and (pooled or self.warm_start):
            raise ValueError(
                "a checkpoint keeps one fit from its beginning; partial_fit and warm_start=True go on from the fit"
                " before, which it does not hold. Leave checkpoint out, or fit anew."
            )
        features = self._features(table, weight, last)
        matrix = features.matrix(table)
        if len(matrix) <= _SMALL and not are_draws(matrix):
            matrix, target, weight = merge_rows(matrix, target, weight)
        weight = None if weight is None else weight * (len(weight) / weight.sum())
        seed, turns = (self._seed(), 0) if last is None else (last.seed, last.turns + 1)
        rule = replace(rule, seed=seed)
        outputs = 1 if rule.task == "binary" else len(rule.classes)
        goal = Goal(rule.resolved, rule.task, outputs, rule.average, rule.subject_to)
        net = self._net(features.width, outputs)
        folds = self._folds(table.rows, target, rule)
        alone = last is not None or pooled or bool(self.warm_start) or not isinstance(net, Architecture)
        names = lineup(self.candidates, rule, len(matrix), networks_alone=alone)
        losses = tuple(name for name in names if name in CANDIDATES)
        nets = (losses, len(folds), net)
        if last is not None and nets != last.nets:
            raise ValueError(
                "training goes on with the networks there are: candidates, n_members, model, hidden and dropout must"
                " be those of the fit before. Set them back, or begin anew with clone(estimator).fit(…)."
            )
        plan = self._plan(len(matrix) - len(folds[0]), epochs)
        with _progress(self.verbose, plan) as report:
            trained = fit_ensembles(
                matrix, target, weight, goal, losses, net, plan, folds, seed + turns,
                stop_share=0.1 if self.early_stopping else 0.0, start=None if last is None else last.weights,
                device=self.device, checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
                report=report,
            )  # fmt: skip
        others = fit_others(
            names, matrix, target, weight, goal, rule, plan, folds, seed, self.device, len(features.columns)
        )
        ensembles = [*trained.ensembles, *others]
        rows = np.concatenate(folds)
        pool = Pool(
            np.stack([e.held for e in ensembles]),
            target[rows],
            None if weight is None else weight[rows],
            np.repeat(np.arange(len(folds)), [len(fold) for fold in folds]),
        )
        if pooled:
            pool = pool.after(last.pool if last is not None else None)
        choice = choose(
            [replace(e, held=scores) for e, scores in zip(ensembles, pool.scores, strict=True)],
            rule, pool.target, pool.weight, pool.folds,
            cut=self.threshold, combine=self.combine, calibrate=self.calibrate,  # type: ignore[arg-type]
        )  # fmt: skip
        model = self._make_model(features, ensembles, choice, rule)
        weights = dict(zip((e.name for e in ensembles), choice.option.weights, strict=True))
        return _Fit(
            model, rule, choice, weights, trained.history, trained.tensors, nets, seed, turns, pool if pooled else None
        )

    def _make_model(self, features: Features, ensembles: list[Ensemble], choice: Choice, rule: Rule) -> Model:
        used = [(e.member, w) for e, w in zip(ensembles, choice.option.weights, strict=True) if w > 0]
        grown = any(e.name in TREES and w > 0 for e, w in zip(ensembles, choice.option.weights, strict=True))
        score = choice.option.score
        return Model(
            task=rule.task,
            classes=rule.classes,
            positive=rule.positive if rule.task == "binary" else None,
            metric=rule.resolved.name,
            features=features,
            members=tuple(member for member, _ in used),
            weights=tuple(w for _, w in used),
            calibration=choice.calibration,
            threshold=choice.threshold,
            versions={**library_versions(), **({"lightgbm": library_module("lightgbm").__version__} if grown else {})},
            settings={
                "estimator": type(self).__name__,
                "params": json_params(self),
                "score": None if math.isnan(score) else score,
            },
        )

    def _settle(self, fitted: _Fit) -> None:
        """Put what was fitted in place."""
        self._last = fitted
        self.options_, self.history_ = fitted.choice.options, fitted.history
        self.best_candidate_, self.weights_ = fitted.choice.option.name, fitted.shares
        self._adopt(fitted.model, fitted.rule)

    # -----------------------------------------------------------------------------------------------------------------
    # Settings
    # -----------------------------------------------------------------------------------------------------------------

    def _check_settings(self, rule: Rule) -> None:
        """Raise for settings that cannot work, before anything is trained."""
        check_names(self.candidates)
        if self.combine not in get_args(Combine):
            raise ValueError(f"combine must be one of {', '.join(map(repr, get_args(Combine)))}; got {self.combine!r}.")
        members: Any = self.n_members
        if not is_whole(members) or members < 1:
            raise ValueError(f"n_members must be a whole number from 1 up; got {members!r}.")
        if isinstance(self.model, torch.nn.Module):
            name = type(self.model).__name__
            raise ValueError(
                f"model must be a factory, which builds a new network for every member; got one {name} that is built"
                f" already. Pass a function that builds it, as in model=lambda: {name}(…)."
            )
        if not (self.model in ("mlp", "linear") if isinstance(self.model, str) else callable(self.model)):
            raise ValueError(f'model must be "mlp", "linear", or a factory of a torch.nn.Module; got {self.model!r}.')
        if self.checkpoint is not None and not isinstance(self.random_state, Integral):
            raise ValueError(
                "a checkpoint is for one seed: pass random_state a whole number, so that the fit that goes on is the"
                f" fit that was begun; got {self.random_state!r}."
            )
        if not isinstance(self.checkpoint, str | os.PathLike | None):
            raise ValueError(f"checkpoint must be the path of a file; got {self.checkpoint!r}.")
        device: Any = self.device
        if isinstance(device, bool) or not isinstance(device, str | torch.device | int):
            raise ValueError(f'device must be the name of one, such as "cpu" or "cuda"; got {device!r}.')
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:  # the latter where torch was built without the device
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"device={self.device!r} cannot be used: {reason}") from None
        check_cut(self.threshold, rule.subject_to)
        if not isinstance(self.threshold, str):
            given_cut(self.threshold, rule)  # which raises now, and not after the fit

    def _features(self, table: Table, weight: NDArray[np.float64] | None, last: _Fit | None) -> Features:
        if last is None:
            return fit_features(table, weight, enabled=bool(self.preprocess))
        last.model.features.check(table, type(self).__name__)
        return last.model.features

    def _folds(self, rows: int, target: NDArray[np.int64], rule: Rule) -> tuple[Rows, ...]:
        """The rows that each network is not trained on, of distinct rows where these are fewer than there were."""
        if rows < self.n_members:
            raise ValueError(
                f"{rows} rows cannot be held out in {self.n_members} folds; give more rows, or lower n_members."
            )
        parts = self.n_members if self.n_members == 1 else min(int(self.n_members), len(target))
        return make_folds(target, rule.task, parts, rule.seed)

    def _net(self, inputs: int, outputs: int) -> Architecture | Factory:
        """The shape of the networks, or what makes them."""
        hidden: Any = self.hidden
        if isinstance(hidden, tuple | list | np.ndarray):
            hidden = tuple(int(width) if isinstance(width, Integral) else width for width in hidden)
        if self.model != "mlp" and (hidden != HIDDEN or self.dropout):
            raise ValueError('hidden and dropout are for model="mlp", and would have no effect; leave them out.')
        if self.model == "mlp" and hidden == ():
            raise ValueError('hidden must hold the width of a layer or more; got none. Use model="linear" for that.')
        if self.model == "mlp":
            return Architecture("mlp", inputs, outputs, hidden, _number(self.dropout))
        if self.model == "linear":
            return Architecture("linear", inputs, outputs)
        return self.model

    def _plan(self, rows: int, epochs: int | None) -> Plan:
        """How to train on so many rows."""
        numbers: dict[str, Any] = {
            "epochs": self.epochs if epochs is None else epochs,
            "batch_size": self.batch_size,
            "patience": self.patience if self.early_stopping else None,
        }
        whole = {name: int(n) if isinstance(n, Integral) else n for name, n in numbers.items()}
        rate, decay = _number(self.learning_rate), _number(self.weight_decay)
        return automatic_plan(rows, **whole, learning_rate=rate, weight_decay=decay)

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            check_random_state(self.random_state)  # which refuses what is no seed
            return int(self.random_state) % 2**31
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self.preprocess)
        tags.classifier_tags.multi_label = True
        return tags


def _number(value: Any) -> Any:
    """A number of numpy's as one of Python's; anything else as it is, for who takes it to judge."""
    return float(value) if isinstance(value, np.floating | np.integer) else value


@contextmanager
def _progress(shown: bool, plan: Plan) -> Iterator[Report | None]:
    """What is told of each epoch: a progress bar, or nothing."""
    if not shown:
        yield None
        return
    with progress_bar(plan.epochs, "training") as move:
        told = "training"

        def report(epoch: int, _: int, losses: NDArray[np.float64]) -> None:
            nonlocal told
            told = f"training, loss {losses.mean():.4f}"
            move(epoch, told)

        yield report
        move(plan.epochs, told)  # all may have stopped early
