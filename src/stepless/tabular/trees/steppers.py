"""Boosted trees of LightGBM, XGBoost and CatBoost, grown one round at a time.

Several boosters grow in step, so that their held-out rows can be counted together after each round. LightGBM and
XGBoost can train a single round. CatBoost cannot: it trains in its own thread, which waits after each round for an
order to go on.
"""

from __future__ import annotations

import queue
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stepless.boosting import CatBoostClassesObjective, CatBoostObjective, Library
from stepless.costs import Costs, Floats
from stepless.extras import needs
from stepless.tabular.trees.files import trimmed_lightgbm
from stepless.tabular.trees.members import catboost_bytes

#: From this many rows on, a leaf of LightGBM needs 20 rows, its own default; below, a twentieth of the rows.
_ROWS_FOR_TWENTY = 400
#: The largest value of a LightGBM leaf, before the learning rate. In a leaf of rare positives the curvature is close to
#: 0 and Newton's step is 1/p: one positive in 600 spoils all later rounds. The other libraries have such a limit.
_LARGEST_LEAF = 10.0
#: With several classes, each LightGBM tree sees a share of the rows, and of the columns if there are more than ten:
#: boosters that differ have a better mean. With two classes, or fewer columns, it was no better.
_ROW_SHARE, _COLUMN_SHARE, _FEWEST_COLUMNS = 0.8, 0.7, 10
#: LightGBM's other names of the parameters that we set by default: given two names, it silently ignores one.
_ALIASES = {
    "verbosity": {"verbose"},
    "min_data_in_leaf": {"min_data_per_leaf", "min_data", "min_child_samples", "min_samples_leaf"},
    "max_delta_step": {"max_tree_output", "max_leaf_output"},
    "feature_fraction": {"sub_feature", "colsample_bytree"},
    "bagging_fraction": {"sub_row", "subsample", "bagging"},
    "bagging_freq": {"subsample_freq"},
}

#: Parameters, under all of their names, that users may not set by ``params``, and what to do instead: we set them, or
#: they would end training unnoticed, or they have no effect on a metric's gradients.
_OURS = {
    **dict.fromkeys(
        ("objective", "objective_type", "application", "app", "loss", "loss_function", "obj", "fobj", "metric",
         "metrics", "metric_types", "eval_metric", "custom_metric", "custom_loss", "num_class", "num_classes",
         "classes_count"), "use metric= instead",
    ),
    **dict.fromkeys(
        ("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees", "num_round", "num_rounds", "nrounds",
         "num_boost_round", "n_estimators", "max_iter", "iterations"), "use n_estimators= instead",
    ),
    **dict.fromkeys(("learning_rate", "eta", "shrinkage_rate"), "use learning_rate= instead"),
    **dict.fromkeys(("seed", "random_state", "random_seed"), "use random_state= instead"),
    **dict.fromkeys(
        ("num_threads", "num_thread", "nthread", "nthreads", "thread_count", "n_jobs"), "use n_jobs= instead",
    ),
    **dict.fromkeys(
        ("early_stopping", "early_stopping_round", "early_stopping_rounds", "n_iter_no_change", "od_type", "od_wait",
         "od_pval", "use_best_model", "best_model_min_trees"), "use patience= instead",
    ),
    **dict.fromkeys(
        ("scale_pos_weight", "is_unbalance", "unbalance", "unbalanced_sets", "class_weights", "auto_class_weights"),
        "use sample_weight= of fit instead",
    ),
    "base_score": "leave it out, because trees start from the shares of the classes",
}  # fmt: skip
#: The parameters that select the kind of boosting.
_BOOSTING = ("boosting", "boosting_type", "boost", "booster")


#: The libraries' own errors, by name, because a library may not be installed.
_REFUSALS = {"LightGBMError", "XGBoostError", "CatBoostError"}
#: The source locations in their messages.
_WHERE = re.compile(r"^(\[[\d:]+\] )?\S+\.(h|cc|cpp):\d+: | at \S+\.[ch]pp, line \d+.*")


class NothingToSplitError(ValueError):
    """No column tells the rows apart, so trees cannot split."""

    def __init__(self) -> None:
        super().__init__(
            "boosted trees need a column that tells rows apart, and here none does: each is constant, or differs in too"
            " few rows of a fold. Give other columns, more rows, or a model without trees."
        )


@dataclass(frozen=True)
class Settings:
    """How trees are grown.

    Attributes:
        library: The library.
        rounds: The largest number of rounds.
        learning_rate: The step size of each round.
        params: Further parameters, by the library's own names.
        seed: Seed of the library's random numbers.
        threads: The number of threads.
        columns: The number of columns of the table. Default: that of the matrix, which has one for each category.
    """

    library: Library
    rounds: int = 150
    learning_rate: float = 0.1
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    threads: int = 1
    columns: int | None = None

    def __post_init__(self) -> None:
        for name in self.params:
            if name in _OURS:
                raise ValueError(f"params may not hold {name!r}: {_OURS[name]}.")
            if name in _BOOSTING and str(self.params[name]).lower() == "dart":
                raise ValueError(
                    f"params may not hold {name}={self.params[name]!r}: its later rounds change the earlier trees, so"
                    f" the rounds that are kept would not be those that were scored. Leave {name!r} out."
                )


@dataclass(frozen=True)
class Rows:
    """The rows of one booster: its training rows, and the matrix of its held-out rows, which may be empty."""

    matrix: NDArray[np.float32]
    target: NDArray[np.int64]
    weight: Floats | None
    held: NDArray[np.float32]


class Stepper(Protocol):
    """A booster that grows a round at a time."""

    def step(self, worth: Floats) -> tuple[Floats, Floats]:
        """Grow a round for this worth; return the scores of the training rows and of the held-out rows after it."""
        ...

    @property
    def initial(self) -> Floats:
        """The scores before the first round: one number, or one per class."""
        ...

    def finish(self, rounds: int) -> bytes:
        """The first rounds as the library writes them. A CatBoost booster cannot grow further after this."""
        ...

    def close(self) -> None:
        """Release what growing needs."""
        ...


def library_module(library: Library) -> ModuleType:
    """Import the library; the error says how to install it."""
    with needs(f"boosting with {library} needs it", library, library):
        return import_module(library)


def _unknown(library: str, name: str, known: Iterable[str] = ()) -> ValueError:
    near = get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"params must hold parameters of {library}; it has none named {name!r}.{hint}")


@contextmanager
def in_our_words(settings: Settings) -> Iterator[None]:
    """Raise a library's error about a user's parameters as a ValueError in our own words."""
    try:
        yield
    except Exception as error:
        if not settings.params or type(error).__name__ not in _REFUSALS:
            raise
        said = _WHERE.sub("", str(error).strip().splitlines()[0]).strip(" .")
        raise ValueError(
            f"params must hold what {settings.library} takes; got {dict(settings.params)}, and it says: {said}."
        ) from error


def make_stepper(costs: Costs, rows: Rows, settings: Settings) -> Stepper:
    """Make a booster without trees."""
    kinds: dict[str, Callable[[Costs, Rows, Settings], Stepper]]
    kinds = {"lightgbm": _LightGBM, "xgboost": _XGBoost, "catboost": _CatBoost}
    return kinds[settings.library](costs, rows, settings)


class _Base:
    def __init__(self, costs: Costs, rows: Rows, settings: Settings) -> None:
        self.costs, self.settings = costs, settings
        # without the matrix, of which every library keeps its own copy
        self.target, self.weight, self.watched = rows.target, rows.weight, bool(len(rows.held))
        self.library = library_module(settings.library)
        self.initial = costs.initial(rows.target, rows.weight)

    def _start(self, rows: int) -> Floats:
        return np.tile(self.initial, (rows, 1)) if self.costs.outputs > 1 else np.full(rows, self.initial[0])

    def _derivatives(self, scores: Floats, worth: Floats) -> tuple[Floats, Floats]:
        return self.costs.derivatives(scores, self.target, self.weight, worth)

    def close(self) -> None:
        pass


def _shares(columns: int, params: Mapping[str, Any]) -> dict[str, float]:
    """LightGBM's sampling parameters for several classes. GOSS samples rows by itself."""
    shares = {"feature_fraction": max(_COLUMN_SHARE, min(1.0, _FEWEST_COLUMNS / columns))}
    goss = any(str(params.get(name)).lower() == "goss" for name in ("data_sample_strategy", *_BOOSTING))
    return shares if goss else {**shares, "bagging_fraction": _ROW_SHARE, "bagging_freq": 1}


class _LightGBM(_Base):
    def __init__(self, costs: Costs, rows: Rows, settings: Settings) -> None:
        super().__init__(costs, rows, settings)
        self._check_names()
        leaf = max(1, min(20, len(rows.target) * 20 // _ROWS_FOR_TWENTY))
        defaults = {
            "verbosity": -1, "min_data_in_leaf": leaf, "min_data_in_bin": min(3, leaf), "deterministic": True,
            "force_col_wise": True, "max_delta_step": _LARGEST_LEAF, "feature_pre_filter": False,
            **(_shares(settings.columns or rows.matrix.shape[1], settings.params) if costs.outputs > 1 else {}),
        }  # fmt: skip
        params = {
            **{name: value for name, value in defaults.items() if not _ALIASES.get(name, set()) & set(settings.params)},
            **settings.params, "objective": "none", "metric": "none", "learning_rate": settings.learning_rate,
            "seed": settings.seed, "num_threads": settings.threads, "num_class": costs.outputs,
        }  # fmt: skip
        # gradients include the weights
        data = self.library.Dataset(rows.matrix, rows.target, init_score=self._start(len(rows.target)), params=params)
        data.construct()
        if not any(data.feature_num_bin(column) > 1 for column in range(rows.matrix.shape[1])):
            raise NothingToSplitError  # LightGBM itself would fail with an unclear message
        self.booster = self.library.Booster(params, data)
        self.grown: list[int] = []
        if len(rows.held):
            held = self.library.Dataset(
                rows.held,
                np.zeros(len(rows.held)),
                reference=data,
                init_score=self._start(len(rows.held)),
                params=params,
            )
            self.booster.add_valid(held, "held")

    def step(self, worth: Floats) -> tuple[Floats, Floats]:
        seen: dict[str, Floats] = {}

        def differentiate(scores: Floats, _: Any) -> tuple[Floats, Floats]:
            return self._derivatives(scores, worth)

        def record(name: str) -> Any:
            def evaluate(scores: Floats, _: Any) -> tuple[str, float, bool]:
                seen[name] = np.array(scores, np.float64)
                return name, 0.0, True

            return evaluate

        self.booster.update(fobj=differentiate)
        self.grown.append(self.booster.current_iteration())  # a round in which nothing is split leaves no tree
        if self.watched:
            self.booster.eval_valid(record("held"))
        else:
            self.booster.eval_train(record("own"))
        nothing = self._start(0)
        return seen.get("own", nothing), seen.get("held", nothing)

    def _check_names(self) -> None:
        """Raise for an unknown parameter; LightGBM ignores it with no more than a line in its log."""
        known = getattr(self.library.basic, "_ConfigAliases", None)  # there is no public list
        if known is None or not self.settings.params:
            return
        names = {name for aliases in known._get_all_param_aliases().values() for name in aliases}
        for name in self.settings.params:
            if name not in names:
                raise _unknown("lightgbm", name, names)

    def finish(self, rounds: int) -> bytes:
        return trimmed_lightgbm(self.booster.model_to_string(num_iteration=self.grown[rounds - 1])).encode()


class _XGBoost(_Base):
    def __init__(self, costs: Costs, rows: Rows, settings: Settings) -> None:
        super().__init__(costs, rows, settings)
        several = {"objective": "multi:softprob", "num_class": costs.classes} if costs.outputs > 1 else {}
        params = {
            "verbosity": 1 if settings.params else 0,  # its warnings name unknown parameters
            **settings.params, "objective": "binary:logitraw", **several, "base_score": 0.0,
            "learning_rate": settings.learning_rate, "seed": settings.seed, "nthread": settings.threads,
            "disable_default_eval_metric": 1,
        }  # fmt: skip
        self.data, self.held = (
            self.library.DMatrix(m, base_margin=self._start(len(m)), nthread=settings.threads) if len(m) else None
            for m in (rows.matrix, rows.held)
        )
        self.booster = self.library.Booster(params, [d for d in (self.data, self.held) if d is not None])
        self.own, self.round = self._start(len(rows.target)), 0

    def step(self, worth: Floats) -> tuple[Floats, Floats]:
        gradient, hessian = self._derivatives(self.own, worth)
        with self._listening() if self.settings.params and not self.round else nullcontext():
            self.booster.boost(self.data, self.round, grad=gradient, hess=hessian)
        self.round += 1
        self.own = self._read(self.data)
        return self.own, self._start(0) if self.held is None else self._read(self.held)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Raise for unknown parameters, which XGBoost reports in a warning of the first round."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
        for warning in said:
            unused = re.search(r'Parameters: \{ "(\w+)"', str(warning.message))
            if unused:
                raise _unknown("xgboost", unused[1])
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def _read(self, data: Any) -> Floats:
        return self.booster.predict(data, output_margin=True).astype(np.float64)

    def finish(self, rounds: int) -> bytes:
        return bytes(self.booster[:rounds].save_raw("json"))


class _CatBoost(_Base):
    def __init__(self, costs: Costs, rows: Rows, settings: Settings) -> None:
        super().__init__(costs, rows, settings)
        kind = _GivenWorth if costs.outputs == 1 else _GivenClassesWorth
        self.objective = kind(costs, rows.target, rows.weight)
        self.watch = _Watch(self.watched)
        several = {"classes_count": costs.classes} if costs.outputs > 1 else {}
        params = {
            "boosting_type": "Plain", **settings.params, **several, "loss_function": self.objective,
            "eval_metric": self.watch, "iterations": settings.rounds, "learning_rate": settings.learning_rate,
            "random_seed": settings.seed, "thread_count": settings.threads, "logging_level": "Silent",
            "allow_writing_files": False, "use_best_model": False, "metric_period": 1,
        }  # fmt: skip
        if params["boosting_type"] != "Plain":
            raise ValueError('CatBoost trains for a metric with boosting_type="Plain" alone, where all rows count.')
        pool = self.library.Pool
        # CatBoost needs every class in the target: for a missing one, add a row of weight 0
        lacking = np.setdiff1d(np.arange(costs.classes), rows.target)
        matrix, target, weight = rows.matrix, rows.target, rows.weight
        if len(lacking):
            weight = np.append(np.ones(len(target)) if weight is None else weight, np.zeros(len(lacking)))
            matrix, target = np.append(matrix, matrix[[0] * len(lacking)], 0), np.append(target, lacking)
        self.pools = [pool(matrix, target, weight=weight, baseline=self._start(len(target)))]
        if len(rows.held):  # this target is never used
            zeros = np.arange(len(rows.held)) % costs.classes
            self.pools.append(pool(rows.held, zeros, baseline=self._start(len(rows.held))))
        self.model = self.library.CatBoost(params)
        self.thread = threading.Thread(target=self._train, name="stepless-catboost", daemon=True)

    def step(self, worth: Floats) -> tuple[Floats, Floats]:
        self.objective.worth = worth
        if self.thread.ident is None:
            with warnings.catch_warnings():  # numba would not make our objective faster
                warnings.filterwarnings("ignore", "Failed to import numba")
                self.thread.start()
                seen = self.watch.reports.get()
        else:
            self.watch.orders.put(True)
            seen = self.watch.reports.get()
        if isinstance(seen, BaseException):
            raise NothingToSplitError() if "All features are either constant" in str(seen) else seen
        own, held = (self._join(scores) for scores in seen)
        return own[: len(self.target)], held

    def finish(self, rounds: int) -> bytes:
        self.close()
        if self.model.tree_count_ > rounds:
            self.model.shrink(ntree_end=rounds)
        return catboost_bytes(self.model)

    def close(self) -> None:
        if self.thread.is_alive():
            self.watch.orders.put(False)
            self.thread.join()

    def _join(self, scores: Any) -> Floats:
        if scores is None:
            return self._start(0)
        return np.array(scores[0], np.float64) if self.costs.outputs == 1 else np.stack(scores, 1).astype(np.float64)

    def _train(self) -> None:
        try:
            self.model.fit(
                self.pools[0], eval_set=self.pools[1] if len(self.pools) > 1 else None, callbacks=[self.watch]
            )
        except BaseException as error:  # raised again by `step`
            self.watch.reports.put(error)
        else:  # so that `step` does not wait for another round for ever
            self.watch.reports.put(
                ValueError(
                    "CatBoost must grow as many rounds as it is asked for, and stopped by itself. Leave out of params"
                    " what stops it, and use patience= instead."
                )
            )


class _GivenWorth(CatBoostObjective):
    """An objective whose worth is set from outside, counted on rows that CatBoost does not pass to it."""

    def _note(self, scores: Floats, target: NDArray[np.int64], weight: Floats | None) -> None:
        pass

    def __deepcopy__(self, memo: Any) -> _GivenWorth:
        """Return itself: CatBoost copies its parameters, and this object must stay the one it uses."""
        return self


class _GivenClassesWorth(CatBoostClassesObjective, _GivenWorth):
    """The same for several classes."""


class _Watch:
    """A CatBoost metric and callback that reports scores after each round and waits for an order to go on.

    CatBoost evaluates the metric on its training rows first, then on the held-out rows.
    """

    def __init__(self, held: bool) -> None:
        self.reports: queue.Queue[Any] = queue.Queue()
        self.orders: queue.Queue[bool] = queue.Queue()
        self.wanted = 2 if held else 1
        self.seen: list[Any] = []
        self.go_on = True

    def __deepcopy__(self, memo: Any) -> _Watch:
        """Return itself, as above."""
        return self

    def is_max_optimal(self) -> bool:
        """Required by CatBoost; nothing depends on it."""
        return True

    def evaluate(self, approxes: Any, target: Any, weight: Any) -> tuple[float, float]:
        """Report the scores once all are there, and wait for an order."""
        self.seen.append([np.array(a) for a in approxes])
        if len(self.seen) == self.wanted:
            self.reports.put((self.seen[0], self.seen[1] if self.wanted == 2 else None))
            self.seen = []
            self.go_on = self.orders.get()
        return 0.0, 1.0

    def get_final_error(self, error: float, weight: float) -> float:
        """Required by CatBoost; nothing depends on it."""
        return error

    def after_iteration(self, info: Any) -> bool:
        """Whether to continue."""
        return self.go_on
