"""`MetricClassifier`: a scikit-learn classifier that is trained, combined and thresholded for a metric."""

from __future__ import annotations

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

from stepless.numerics import is_whole
from stepless.rules import Rule
from stepless.tabular.ensembles.choosing import Choice, Combine, Pool, check_cut, choose
from stepless.tabular.ensembles.lineup import TREES, check_names, fit_others, lineup
from stepless.tabular.ensembles.portfolio import (
    CANDIDATES,
    Goal,
    Rows,
    are_draws,
    automatic_plan,
    fit_ensembles,
    make_folds,
    merge_rows,
)
from stepless.tabular.ensembles.predicting import Predicting
from stepless.tabular.models.members import Factory
from stepless.tabular.models.model import Model
from stepless.tabular.models.preprocessing import Features, fit_features
from stepless.tabular.networks.nets import HIDDEN, Architecture
from stepless.tabular.networks.training import History, Plan, Report
from stepless.tabular.progress_bars import progress_bar
from stepless.tabular.tables.frames import Table

#: In tables of up to this many rows, equal rows are merged, so that a weight of k is exactly the same as k rows; except
#: if there are so many equal rows that they are draws (`are_draws`).
_SMALL = 1000


@dataclass(frozen=True, eq=False)
class _Fit:
    """The result of a fit; the estimator adopts it at once, when it is complete.

    Attributes:
        model: What predicts.
        rule: How labels and decisions are read and scored.
        choice: The options that were compared, and the best.
        shares: The weight of each candidate.
        history: The training history.
        weights: The weights of all networks, for a fit that continues from here.
        nets: The losses, the number of folds and the shape of these networks.
        seed: Seed of the folds. They stay when training continues: rows that a network has seen must not be held out.
        turns: How many fits the networks have continued through.
        pool: The held-out scores that `MetricClassifier.partial_fit` adds to.
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
    """A classifier that is trained, combined and thresholded for the metric you report.

    `fit` trains small networks, on cross-entropy and on an even mixture of it and the metric; a linear model; and, if
    LightGBM is installed, boosted trees, on cross-entropy and on cross-entropy weighted by how much each decision is
    worth to the metric. There are ``n_members`` models of each kind, each trained without one fold of the rows. The
    rows that models have not seen determine the weight of each kind in the mean of all, calibrate the probabilities,
    and choose the threshold. Numbers are standardised, categories become 0/1 columns, and missing values are handled,
    for numpy arrays, pandas and polars alike. In tables of up to 1,000 rows, a weight of k is exactly the same as k
    rows, unless there are ten or more rows per distinct row; then, and in larger tables, it is the same up to chance.

    Args:
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        model: ``"mlp"``, ``"linear"``, or a factory of a ``torch.nn.Module``, called without arguments or with the
            numbers of inputs and outputs.
        hidden: The layer widths of an mlp.
        candidates: Which kinds of models take part, from `stepless.tabular.ensembles.lineup.NAMES`: losses of the
            networks (``"cross_entropy"``, ``"mixture"``, ``"metric"``, ``"blend"``, ``"cost_weighted"``), ``"linear"``,
            ``"trees"``, ``"sampled_trees"`` (each from a part of the rows and columns) and ``"cost_trees"``. Default:
            those that suit the table. One that does not suit the metric is left out (costs have no samples average).
            Only networks take part in `partial_fit`, with ``warm_start`` (from the first fit on), and if ``model`` is a
            factory.
        combine: ``"stack"`` for a weighted mean of all, with the weights that make the held-out rows most likely;
            ``"best"`` for the candidate with the best metric on held-out rows, or the plain mean if that is better.
        threshold: ``"expected"`` for the threshold (multiclass: offsets) that is best in expectation, if the calibrated
            probabilities of held-out rows are true. It is steadier than the best on their few true labels. With two
            classes it decides no for at least 5 % of these rows and yes for some, if they can be told apart at all.
            ``"tuned"`` for the best on their true labels, ``"half"`` for ½ (multiclass: the largest probability) before
            calibration, ``"auto"`` for the better of these two on held-out rows. For several classes or labels without
            ``calibrate``, and for a samples average, ``"expected"`` means ``"auto"``. With constraints, both mean
            ``"tuned"``. Or the threshold itself: a probability, one per label, class offsets, or a `stepless.Tuning`.
        n_members: The number of models of each kind, and of folds. 1 holds out a fifth of the rows once.
        average: Over classes: ``"macro"`` (default), ``"micro"``, ``"weighted"``, or ``"samples"`` (multilabel only).
        subject_to: Constraints, such as ``"precision >= 0.9"``.
        metric_options: Options of the metric, such as ``{"beta": 2}``, or ``{"maximize": False}`` for a formula.
        pos_label: Binary: the positive class. Default: 1 (or True) of ``{0, 1}`` or ``{-1, 1}``, else the rarer class.
            Beware where scikit-learn numbers the labels before it fits (VotingClassifier, StackingClassifier,
            BaggingClassifier, ``cross_val_predict``): the default is then 1, the last label in sorted order.
        preprocess: Whether to standardise numbers and handle categories and missing values. Without it, columns must be
            numbers without missing values, and are used unchanged.
        calibrate: Whether to calibrate probabilities on held-out rows.
        epochs: Passes over the rows. Default: depends on the number of rows.
        batch_size: Rows per step. Default: depends on the number of rows.
        learning_rate: Of AdamW. It falls to 0 along a cosine.
        weight_decay: Of AdamW. Default: smaller for more rows.
        dropout: The share of hidden units that are dropped in a step.
        early_stopping: Whether a network stops when a tenth of its rows, held out for this, stop getting better.
        patience: Early stopping: for how many epochs there may be no improvement.
        warm_start: Whether `fit` continues from the networks of the last fit. Only networks can: a linear model and
            trees take no part, not even in the first fit.
        device: Where to train: ``"cpu"``, ``"cuda"``, …. Predictions are made on the CPU.
        checkpoint: A file that keeps the state of the training. A fit that was killed continues from it if it is
            started again on the same data with the same settings. Not for `partial_fit` and ``warm_start``.
        verbose: Whether to show a progress bar.
        random_state: Seed of folds, weights and batches. The same seed gives the same model, bit by bit, on one machine
            with one number of threads.

    Attributes:
        weights_: The weight of each candidate in the mean that decides.
        best_candidate_: ``"stack"``, ``"average"``, or the one candidate that decides.
        options_: Every way to decide that was tried, with its metric on held-out rows.
        history_: The ``train`` and ``held`` losses of each epoch, ``(epochs, networks)``.

    It also has the attributes of `stepless.tabular.ensembles.predicting.Predicting`. A loaded model has only those.

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
        """Train the candidates, combine and calibrate them, and choose the threshold. A fit that fails changes nothing.

        Args:
            X: Rows: an array, a list of rows, or a pandas or polars frame.
            y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
            sample_weight: One weight per row.
        """
        last = self._before("warm_start=True goes") if self.warm_start else None
        table, target, weight, rule = self._read(X, y, sample_weight)
        if last is not None:
            target, rule = self._go_on(last.rule, target, rule)
        self._settle(self._train(table, target, weight, rule, last))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> MetricClassifier:
        """Continue training on more rows: one pass over them, unless ``epochs`` is given.

        Only networks can continue; a linear model and trees take no part. The preprocessing and the positive class stay
        those of the first call. Threshold and calibration follow the held-out scores of the last 20,000 rows, each as
        it was when the row came. Pass only new rows: one that comes again may be scored by a network that has seen it.

        Args:
            X: Rows.
            y: Their labels.
            classes: All classes there will be. Needed in the first call if ``y`` may lack some.
            sample_weight: One weight per row. Threshold and calibration weigh the rows of all calls against each other;
                rows without weights have 1.
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
        """The previous fit, or None."""
        if hasattr(self, "model_") and not hasattr(self, "_last"):
            raise ValueError(
                f"{what} on from all networks of a fit; a loaded model has only those that predict. Fit a new one."
            )
        return getattr(self, "_last", None)

    def _go_on(self, old: Rule, target: NDArray[np.int64], rule: Rule) -> tuple[NDArray[np.int64], Rule]:
        """Target and rule with the positive class of the previous fit, which must have had the same classes."""
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
        """Fit to data that have been checked."""
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
        own_weight = weight
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
        if last is not None and len(folds) < min(last.nets[1], self.n_members):
            raise ValueError(
                f"training goes on with {last.nets[1]} networks of each loss, each without one fold of the rows, and"
                f" there are {len(matrix)} distinct rows; give as many distinct rows, or more."
            )
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
        weighed = pool.weight
        if pooled:  # in which the rows of one call are weighed against those of another
            pool = replace(pool, weight=None if own_weight is None else own_weight[rows])
            pool = pool.after(last.pool if last is not None else None)
            weighed = None if pool.weight is None else pool.weight * (len(pool.weight) / pool.weight.sum())
        choice = choose(
            [replace(e, held=scores) for e, scores in zip(ensembles, pool.scores, strict=True)],
            rule, pool.target, weighed, pool.folds,
            cut=self.threshold, combine=self.combine, calibrate=self.calibrate,  # type: ignore[arg-type]
        )  # fmt: skip
        used = [(e, w) for e, w in zip(ensembles, choice.option.weights, strict=True) if w > 0]
        model = self._make_model(
            rule, features, [e.member for e, _ in used], [w for _, w in used],
            "lightgbm" if any(e.name in TREES for e, _ in used) else None,
            calibration=choice.calibration, threshold=choice.threshold, score=choice.option.score,
        )  # fmt: skip
        shares = dict(zip((e.name for e in ensembles), choice.option.weights, strict=True))
        return _Fit(
            model, rule, choice, shares, trained.history, trained.tensors, nets, seed, turns, pool if pooled else None
        )

    def _settle(self, fitted: _Fit) -> None:
        """Set all fitted attributes."""
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
        except (RuntimeError, AssertionError) as error:  # the latter if torch was built without the device
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"device={self.device!r} cannot be used: {reason}") from None
        check_cut(self.threshold, rule)

    def _features(self, table: Table, weight: NDArray[np.float64] | None, last: _Fit | None) -> Features:
        if last is None:
            return fit_features(table, weight, enabled=bool(self.preprocess))
        last.model.features.check(table, type(self).__name__)
        return last.model.features

    def _folds(self, rows: int, target: NDArray[np.int64], rule: Rule) -> tuple[Rows, ...]:
        """Divide the rows of the target, which may have been merged to fewer than the table's, into folds."""
        if rows < self.n_members:
            raise ValueError(
                f"{rows} rows cannot be held out in {self.n_members} folds; give more rows, or lower n_members."
            )
        parts = self.n_members if self.n_members == 1 else min(int(self.n_members), len(target))
        return make_folds(target, rule.task, parts, rule.seed)

    def _net(self, inputs: int, outputs: int) -> Architecture | Factory:
        """The shape of the networks, or their factory."""
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
        """The plan for networks with this many training rows."""
        numbers: dict[str, Any] = {
            "epochs": self.epochs if epochs is None else epochs,
            "batch_size": self.batch_size,
            "patience": self.patience if self.early_stopping else None,
        }
        whole = {name: int(n) if isinstance(n, Integral) else n for name, n in numbers.items()}
        rate, decay = _number(self.learning_rate), _number(self.weight_decay)
        return automatic_plan(rows, **whole, learning_rate=rate, weight_decay=decay)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self.preprocess)
        tags.classifier_tags.multi_label = True
        return tags


def _number(value: Any) -> Any:
    """Convert a numpy number to a Python one; leave anything else for the receiver to check."""
    return float(value) if isinstance(value, np.floating | np.integer) else value


@contextmanager
def _progress(shown: bool, plan: Plan) -> Iterator[Report | None]:
    """Yield what reports each epoch: a progress bar if shown, else None."""
    if not shown:
        yield None
        return
    with progress_bar(plan.epochs, "training") as move:
        text = "training"

        def report(epoch: int, _: int, losses: NDArray[np.float64]) -> None:
            nonlocal text
            text = f"training, loss {losses.mean():.4f}"
            move(epoch, text)

        yield report
        move(plan.epochs, text)  # all networks may have stopped early
