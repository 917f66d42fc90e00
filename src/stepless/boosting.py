"""Any metric as a training objective and for early stopping, for LightGBM, XGBoost and CatBoost.

`stepless.costs` has the mathematics; this module adapts it to each library. Scores are raw: log-odds, or one score per
class before the softmax. A library neither chooses their start nor turns them into probabilities for a custom
objective, so use `Objective.initial` and `Objective.link`.

LightGBM and XGBoost pass all rows at once. CatBoost passes blocks of rows, so its objective adds up their counts and
uses those of the last full pass. Every pass must be over the same rows (``boosting_type="Plain"``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stepless.costs import Costs, Floats, Form
from stepless.formula import resolve
from stepless.numerics import is_whole
from stepless.ranking import find_ranking
from stepless.registry import Metric
from stepless.scoring import make_path
from stepless.tasks import Task

Library = Literal["lightgbm", "xgboost", "catboost"]

#: LightGBM's own binary objectives, with which it passes probabilities to a metric, not raw scores.
_PROBABILITY_OBJECTIVES = ("binary", "cross_entropy", "xentropy")


def objective(
    metric: str | Metric | Callable[..., Any],
    library: Library = "lightgbm",
    *,
    task: Task = "binary",
    classes: int | None = None,
    average: str | None = None,
    form: Form = "cost",
    target: Any = None,
    sample_weight: Any = None,
    maximize: bool | None = None,
    **options: Any,
) -> Objective:
    """Make an objective that trains boosted trees for a metric.

    Args:
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        library: ``"lightgbm"``, ``"xgboost"`` or ``"catboost"``.
        task: ``"binary"``, with targets 0 and 1, or ``"multiclass"``, with targets 0 … K − 1.
        classes: Multiclass: the number of classes.
        average: Multiclass: ``"macro"`` (default), ``"micro"`` or ``"weighted"``.
        form: ``"cost"`` for cross-entropy, weighted by how much each decision is worth to the metric at the present
            counts; ``"metric"`` for the soft metric itself; ``"cross_entropy"`` for plain cross-entropy.
        target: CatBoost only, which needs all rows in advance: the training target.
        sample_weight: CatBoost only: the weights of the training rows, if there are any.
        maximize: For formulas only: whether greater is better. By default this is found by trying the formula.
        options: Options of the metric, such as ``beta``.

    Returns:
        An object to pass to LightGBM as ``params["objective"]``, to XGBoost as ``obj`` (to the scikit-learn class of
        either as ``objective``), or to CatBoost as ``loss_function``.

    Example:
        >>> import lightgbm as lgb
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 3))
        >>> y = (X[:, 0] + rng.normal(size=500) > 1.5).astype(int)
        >>> f1 = objective("f1")
        >>> data = lgb.Dataset(X, y, init_score=np.full(500, f1.initial(y)[0]))
        >>> trees = lgb.train({"objective": f1, "verbose": -1, "num_threads": 1}, data, 20)
        >>> p = f1.link(f1.initial(y)[0] + trees.predict(X))
        >>> p.shape, bool(((p >= 0) & (p <= 1)).all())
        ((500, 2), True)
    """
    costs = _costs(metric, task, classes, average, form, maximize, options)
    _check_library(library)
    if library == "catboost":
        if target is None:
            raise ValueError(
                "CatBoost shows an objective blocks of rows, so it must know the rows beforehand: pass target= (and"
                " sample_weight=, where there is one)."
            )
        y, weight = _read_given(costs, target, sample_weight)
        return (CatBoostObjective if task == "binary" else CatBoostClassesObjective)(costs, y, weight)
    if target is not None or sample_weight is not None:
        raise ValueError(f"{library} hands over all rows by itself; leave target and sample_weight out.")
    return RowsObjective(costs)


def evaluation(
    metric: str | Metric | Callable[..., Any],
    library: Library = "lightgbm",
    *,
    task: Task = "binary",
    classes: int | None = None,
    average: str | None = None,
    maximize: bool | None = None,
    **options: Any,
) -> Evaluation:
    """Make an evaluation metric for early stopping: the metric of decisions at ½, or of the most probable class.

    Args:
        metric: As for `objective`.
        library: ``"lightgbm"``, ``"xgboost"`` or ``"catboost"``.
        task: ``"binary"`` or ``"multiclass"``.
        classes: Multiclass: the number of classes.
        average: Multiclass: ``"macro"`` (default), ``"micro"`` or ``"weighted"``.
        maximize: For formulas only: whether greater is better. By default this is found by trying the formula.
        options: Options of the metric.

    Returns:
        An object to pass to LightGBM as ``feval``, to XGBoost as ``custom_metric`` (to the scikit-learn class of
        either as ``eval_metric``), or to CatBoost as ``eval_metric``. It reads raw scores. With objectives of their own
        LightGBM and XGBoost pass probabilities instead, so train for `objective`, if need be with
        ``form="cross_entropy"``. Its value is the metric's own; pass its ``maximize`` to XGBoost's ``EarlyStopping``.

    Example:
        >>> check = evaluation("f1", "catboost")
        >>> check.get_final_error(*check.evaluate([[1.0, -1.0, 2.0]], [1, 0, 0], None))
        0.6666666666666666
    """
    _check_library(library)
    return Evaluation(_costs(metric, task, classes, average, "cost", maximize, options), library)


class Objective:
    """Base class of the objectives.

    Args:
        costs: The metric in the form that boosting needs.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    @property
    def __name__(self) -> str:
        """What XGBoost and LightGBM call it."""
        return f"stepless_{self.costs.form}"

    def initial(self, target: Any, sample_weight: Any = None) -> Floats:
        """Compute the scores to start from: ``(1,)``, the prior log-odds, or ``(K,)``, the log class shares."""
        return self.costs.initial(*_read_given(self.costs, target, sample_weight))

    def link(self, scores: Any) -> Floats:
        """Turn raw scores into class probabilities, ``(N, K)``."""
        return self.costs.link(np.asarray(scores, np.float64))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.costs.metric.name!r}, form={self.costs.form!r})"


class RowsObjective(Objective):
    """Objective for LightGBM and XGBoost, called with ``(scores, data)`` or as in scikit-learn ``(target, scores)``."""

    def __call__(self, first: Any, second: Any, sample_weight: Any = None) -> tuple[Floats, Floats]:
        """Compute gradient and hessian of all rows. XGBoost passes weights by this name, LightGBM by position."""
        scores, target, weight = _arguments(first, second, sample_weight)
        y, w = _read(self.costs, target, weight)
        z = _shaped(self.costs, scores, len(y))
        worth = self.costs.worth_at(z, y, w)
        return self.costs.derivatives(z, y, w, worth)


class CatBoostObjective(Objective):
    """Objective for CatBoost with two classes. It holds the counts of the last full pass over the rows."""

    def __init__(self, costs: Costs, target: NDArray[np.int64], weight: Floats | None) -> None:
        super().__init__(costs)
        start = np.tile(costs.initial(target, weight), (len(target), 1))
        self.rows = len(target)
        self.worth = costs.worth_at(start[:, 0] if costs.task == "binary" else start, target, weight)
        self._forget()

    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> Any:
        """Called by CatBoost for a block of rows. Returns derivatives of what it maximises, ``(rows, 2)``."""
        y, w = _read(self.costs, targets, weights)
        z = np.asarray(approxes, np.float64)
        gradient, hessian = self.costs.derivatives(z, y, w, self.worth)
        self._note(z, y, w)
        return -np.stack([gradient, hessian], 1)

    def _note(self, scores: Floats, target: NDArray[np.int64], weight: Floats | None) -> None:
        self._blocks.append((scores, target, np.ones(len(target)) if weight is None else weight))
        self._seen += len(target)
        if self._seen >= self.rows:
            self.worth = self.costs.worth_at(*map(np.concatenate, zip(*self._blocks, strict=True)))
            self._forget()

    def _forget(self) -> None:
        # counted together at the end, because rows of several classes come one by one
        self._blocks: list[tuple[Any, ...]] = []
        self._seen = 0


class CatBoostClassesObjective(CatBoostObjective):
    """Objective for CatBoost with several classes, whose rows come one by one."""

    def calc_ders_multi(self, approxes: Any, target: Any, weight: Any) -> tuple[Any, Any]:
        """Called by CatBoost for a row. Returns derivatives ``(K,)`` and ``(K, K)`` of what it maximises."""
        z, y = np.asarray(approxes, np.float64), np.array([int(target)])
        w = np.array([float(weight)])
        gradient, _ = self.costs.derivatives(z[None], y, w, self.worth)
        hessian = self.costs.curvature(z, int(target), float(weight), self.worth)
        self._note(z[None], y, w)
        return (-gradient[0]).tolist(), (-hessian).tolist()


class Evaluation:
    """A metric of decisions, in the form that a library expects.

    Args:
        costs: The metric in the form that boosting needs.
        library: Which library calls it.
    """

    def __init__(self, costs: Costs, library: Library) -> None:
        self.costs, self.library = costs, library

    @property
    def __name__(self) -> str:
        """What XGBoost and LightGBM call it. XGBoost writes it into a line that it splits at spaces and colons."""
        name = self.costs.metric.name
        return name if self.library == "lightgbm" else "".join(name.replace(":", " ").split())

    @property
    def maximize(self) -> bool:
        """Whether greater is better."""
        return self.costs.metric.greater_is_better

    def __call__(self, first: Any, second: Any, sample_weight: Any = None) -> Any:
        """Return name and value, and for LightGBM whether greater is better; to XGBClassifier the value alone."""
        own = (getattr(second, "params", None) or {}).get("objective")
        if self.costs.task == "binary" and own in _PROBABILITY_OBJECTIVES:
            raise ValueError(
                f"an evaluation reads raw scores, and LightGBM, with its own objective={own!r}, shows probabilities."
                ' Pass stepless.boosting.objective(metric, form="cross_entropy") as the objective instead.'
            )
        value = self._value(*_arguments(first, second, sample_weight))
        if self.library == "lightgbm":
            return self.__name__, value, self.maximize
        return (self.__name__, value) if hasattr(second, "get_label") else value

    def is_max_optimal(self) -> bool:
        """Called by CatBoost: whether greater is better."""
        return self.maximize

    def evaluate(self, approxes: Sequence[Any], target: Any, weight: Any) -> tuple[float, float]:
        """Called by CatBoost: the value, and the weight to divide it by."""
        scores = approxes[0] if self.costs.task == "binary" else np.stack([np.asarray(a) for a in approxes], 1)
        return self._value(scores, target, weight), 1.0

    def get_final_error(self, error: float, weight: float) -> float:
        """Called by CatBoost: the final value."""
        return error / weight

    def _value(self, scores: Any, target: Any, weight: Any) -> float:
        y, w = _read(self.costs, target, weight)
        value = self.costs.score(_shaped(self.costs, scores, len(y)), y, w)
        return value if self.maximize else -value


def _check_library(library: str) -> None:
    if library not in get_args(Library):
        raise ValueError(f"library must be one of {', '.join(map(repr, get_args(Library)))}; got {library!r}.")


def _costs(
    metric: Any,
    task: Task,
    classes: int | None,
    average: str | None,
    form: Form,
    maximize: bool | None,
    options: dict[str, Any],
) -> Costs:
    if find_ranking(metric) is not None:
        raise ValueError(f"boosting is for metrics of decisions, and {metric!r} is one of the order of scores.")
    resolved = resolve(metric, maximize=maximize, **options)
    path = make_path((resolved,), task=task, average=average)
    if classes is None and task == "multiclass":
        raise ValueError('task="multiclass" needs to know how many classes there are: pass classes=.')
    if classes is not None and task != "multiclass":
        raise ValueError('classes= is for task="multiclass"; a binary task has two.')
    if classes is not None and not is_whole(classes):
        raise ValueError(f"classes must be a whole number; got {classes!r}.")
    return Costs(resolved, path.task, classes or 2, path.average, form)


def _arguments(first: Any, second: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Scores, target and weights of a call with ``(scores, data)`` or, as in scikit-learn, ``(target, scores)``."""
    if not hasattr(second, "get_label"):
        return second, first, sample_weight
    weight = second.get_weight()
    return first, second.get_label(), None if weight is None or len(weight) == 0 else weight


def _read(costs: Costs, target: Any, weight: Any) -> tuple[NDArray[np.int64], Floats | None]:
    """Convert targets to class indices and weights to floats, as a library passes them in every iteration."""
    given = np.asarray(target)
    try:
        with np.errstate(invalid="ignore"):
            y = given.astype(np.int64)
    except (TypeError, ValueError):  # of text, or of None
        y = np.full(given.shape, -1)
    if given.ndim != 1 or not np.array_equal(y, given) or y.min(initial=0) < 0 or y.max(initial=0) >= costs.classes:
        shown = given[:5].tolist() if given.ndim == 1 else f"an array of the shape {given.shape}"
        raise ValueError(f"the target must hold class indices 0 … {costs.classes - 1}, one a row; got {shown}.")
    return y, None if weight is None else np.asarray(weight, np.float64)


def _read_given(costs: Costs, target: Any, sample_weight: Any) -> tuple[NDArray[np.int64], Floats | None]:
    """Convert targets and weights as the user passes them, once, and so with every check."""
    y, w = _read(costs, target, sample_weight)
    if len(y) == 0:
        raise ValueError("the target is empty: there are no rows to count.")
    if w is not None and w.shape != y.shape:
        raise ValueError(f"sample_weight must have one entry per row, shape {y.shape}; got {w.shape}.")
    if w is not None and not ((np.isfinite(w) & (w >= 0)).all() and w.any()):
        raise ValueError("sample_weight must be finite and not negative, with at least one entry above 0.")
    return y, w


def _shaped(costs: Costs, scores: Any, rows: int) -> Floats:
    z = np.asarray(scores, np.float64)
    wanted = (rows,) if costs.task == "binary" else (rows, costs.classes)
    if z.shape != wanted and z.size == rows * costs.outputs:
        # LightGBM, if it flattens, does so class by class
        z = z.reshape(wanted, order="F")
    if z.shape != wanted:
        raise ValueError(f"scores must have the shape {wanted}; got {z.shape}. Did you pass num_class?")
    return z
