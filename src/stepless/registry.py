"""Registries of named objects, and `Metric`, which the registry of metrics holds."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch

from stepless.counts import cells_of, counts_of
from stepless.numerics import Array, as_tuple
from stepless.safe_counts import are_safe, for_formulas

#: Settings of losses and scores, to suggest for an option that a metric does not have.
SETTINGS = (
    "task", "average", "inputs", "step", "threshold", "ignore_index", "weight", "per_image", "overlap", "blend",
    "cross_entropy", "schedule", "subject_to", "maximize", "validate", "sample_weight",
)  # fmt: skip

T = TypeVar("T")
Kind = Literal["class", "joint", "matrix"]


def snake_case(name: str) -> str:
    """A name in the spelling of the registries.

    >>> snake_case("Balanced-Accuracy"), snake_case("f1 score")
    ('balanced_accuracy', 'f1')
    """
    return name.strip().lower().replace("-", "_").replace(" ", "_").removesuffix("_score")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names and aliases to objects that suggests the nearest names for an unknown one."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._things: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._reserved: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        """Forbid names that are used elsewhere."""
        self._reserved.update(names)

    def add(self, name: str, thing: T, aliases: Iterable[str] = ()) -> None:
        """Register ``thing``. A name or alias that is taken is an error."""
        if isinstance(aliases, str):
            raise TypeError(f"aliases must be a sequence of names, as in ({aliases!r},); got the text {aliases!r}.")
        for taken in (name, *aliases):
            if taken in self or taken in self._reserved:
                raise ValueError(f"{self._noun} {taken!r} is registered already; choose another name.")
        self._things[name] = thing
        self._aliases.update(dict.fromkeys(aliases, name))

    @property
    def aliases(self) -> Mapping[str, str]:
        """Every alias with the name it stands for."""
        return dict(self._aliases)

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[self._aliases.get(name, name)]
        except KeyError:
            raise KeyError(self.unknown(name)) from None

    def unknown(self, name: str) -> str:
        """The error message for a name that is not registered."""
        near = difflib.get_close_matches(snake_case(name), [*self._things, *self._aliases], n=3, cutoff=0.5)
        if near:
            return f"unknown {self._noun} {name!r}; did you mean {', '.join(map(repr, near))}?"
        return f"unknown {self._noun} {name!r}; known are {', '.join(self._things)}."

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._noun}s: {', '.join(self)}>"


#: Counts (tp, fp, fn, tn) to try formulas on: all right, mostly right, mostly wrong, and extremes.
_TABLES = (
    (1.0, 0.0, 0.0, 1.0), (8.0, 1.0, 2.0, 9.0), (1.0, 9.0, 7.0, 3.0), (0.0, 1e3, 1.0, 1.0), (0.0, 1.0, 1e3, 1.0),
    (1.0, 1e3, 1e3, 1.0), (1e3, 1.0, 1.0, 0.0), (0.0, 1.0, 1.0, 1e3),
)  # fmt: skip


@torch.no_grad()
def is_share(formula: Callable[..., Any]) -> bool:
    """Whether a formula of one class stays within [−1, 1] for any number of rows (tried on examples, not proved).

    >>> is_share(lambda tp, fp, fn, tn: tp / (tp + fp + fn)), is_share(lambda tp, fp, fn, tn: tp - fp)
    (True, False)
    """
    tables = torch.tensor(_TABLES, dtype=torch.float64, device="cpu")
    try:
        few, many = (torch.as_tensor(formula(*counts.unbind(-1))) for counts in (tables, 10 * tables))
        return bool((few.abs() <= 1).all()) and torch.allclose(few, many)
    except Exception:  # the error is raised where the formula is used
        return False


#: A confusion matrix of three classes, rows the truth, and factors that change the class frequencies.
_DECISIONS = ((5.0, 2.0, 1.0), (1.0, 6.0, 2.0), (2.0, 1.0, 4.0))
_TIMES = (1.0, 3.0, 0.5)


@torch.no_grad()
def is_even(formula: Callable[..., Any], kind: Kind) -> bool:
    """Whether a formula's scores do not depend on the class frequencies (tried on an example, not proved).

    >>> is_even(lambda tp, fp, fn, tn: tp / (tp + fn), "class"), is_even(lambda tp, fp, fn, tn: tp / (tp + fp), "class")
    (True, False)
    """
    matrix, times = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in (_DECISIONS, _TIMES))
    tables = matrix, matrix * times[:, None]
    try:
        as_it_is, rescaled = (formula(*(t,) if kind == "matrix" else counts_of(cells_of(t))) for t in tables)
        return torch.allclose(as_it_is, rescaled)
    except Exception:  # the error is raised where the formula is used
        return False


@dataclass(frozen=True)
class Metric:
    """A metric: a pure function of the confusion counts, with its best value, direction and kind.

    Attributes:
        name: The metric's name.
        function: ``f(tp, fp, fn, tn, **options)``, or ``f(matrix, **options)`` for ``kind="matrix"``.
        best: The score of perfect decisions.
        greater_is_better: Whether a greater score is better.
        kind: Which counts the function reads: one ``"class"``, all classes (``"joint"``) or the whole ``"matrix"``.
        source: Where the formula was published.
        worst: The worst possible score; None if there is none or it is unknown.
        options: The keyword arguments fixed by :meth:`bind`, as pairs.
        bounded: Whether scores lie within [−1, 1] for any number of rows.
        even: Whether scores do not depend on the class frequencies, as recall does not.
    """

    name: str
    function: Callable[..., Array] = field(repr=False)
    best: float = 1.0
    greater_is_better: bool = True
    kind: Kind = "class"
    source: str = field(default="", repr=False)
    worst: float | None = field(default=None, repr=False)
    options: tuple[tuple[str, Any], ...] = ()
    bounded: bool = field(default=False, repr=False)
    even: bool = field(default=False, repr=False)
    #: Whether undefined scores are NaN. A field of its own, because torch.compile treats a bool as a constant but a
    #: numeric option as a variable.
    marks_undefined: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        mark = self.option("zero_division")
        object.__setattr__(self, "marks_undefined", isinstance(mark, float) and mark != mark)  # noqa: PLR0124 - NaN
        if self.worst is not None:
            object.__setattr__(self, "bounded", max(abs(self.best), abs(self.worst)) <= 1)

    def __call__(self, *counts: Array) -> Array:
        if not are_safe(counts):
            return self.function(*counts, **dict(self.options))
        if self.kind != "class":
            raise ValueError(f"{self.name} reads the counts of all classes, and a formula has those of one.")
        return for_formulas(self.function)(*counts, **dict(self.options))

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def defaults(self) -> dict[str, Any]:
        """The metric's options with their default values."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def option(self, name: str) -> Any:
        """Return the value of an option, bound or default; None if the metric has no such option."""
        return dict(self.options).get(name, self.defaults.get(name))

    def bind(self, **options: Any) -> Metric:
        """Return the metric with options fixed, as in ``METRICS["f_beta"].bind(beta=2)``."""
        if not options:
            return self
        known = self.defaults
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, [*known, *SETTINGS], n=2)
                hint = f"did you mean {' or '.join(map(repr, near))}?"
                if name in SETTINGS:
                    hint = "it is a setting of MetricLoss that has no effect here; leave it out."
                elif not near:
                    hint = f"it has {', '.join(map(repr, known))}." if known else "it has none."
                raise TypeError(f"metric {self.name!r} has no option {name!r}; {hint}")
        pairs = {**dict(self.options), **{name: as_tuple(value) for name, value in options.items()}}
        # is_even tried the defaults; zero_division affects only classes without rows
        even = self.even and all(name == "zero_division" or value == known[name] for name, value in pairs.items())
        return replace(self, options=tuple(sorted(pairs.items())), even=even)

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest possible score; infinite where no bound is known."""
        end = -math.inf if self.greater_is_better else math.inf
        return tuple(sorted((self.best, end if self.worst is None else self.worst)))  # type: ignore[return-value]

    def distance(self, score: Array) -> Array:
        """Return how far ``score`` is from the best one. This is the loss."""
        return self.best - score if self.greater_is_better else score - self.best
