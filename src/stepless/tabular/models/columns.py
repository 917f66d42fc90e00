"""The preprocessing of one column of a `Table`: `Number`, `Category`, `AsIs`, and how each is fitted and applied."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.tables.frames import Table

Array: TypeAlias = NDArray[Any]

# |x − mean| ≤ scale·√n in training, so this clips nothing there; at prediction it keeps float32 finite.
LIMIT = 1e6
# The scale of a column of one value: it sends every value to 0, since nothing was learned about any other.
CONSTANT = float(np.finfo(np.float64).max)
_TINY = float(np.finfo(np.float64).tiny)
# The limit of the second part of a column; the values beyond it are those that hid the others.
NEAR = 10.0
# A column has a second part if mean and scale merge a third of its values or more. Of the 4219 columns of numbers in
# the tables of our benchmarks none loses more than 0.05 of them.
_MERGED = 1 / 3
# Two numbers with a smaller relative difference are one number, rounded in two ways.
_ROUNDING = 2.0**-40
_ROWS_SAMPLED = 1 << 14


@dataclass(frozen=True)
class Number:
    """A column of numbers, standardised: ``(x − mean) / scale`` in float64, within ±`LIMIT`, then float32.

    A value far from all others, such as 2147483647 for missing, makes the scale so large that float32 cannot tell the
    others apart. Such a column has a second mean and scale, those of the others; x standardised by them, within
    ±`NEAR`, is added. So the others differ again, the far value stays small enough for a net, and the order is kept.

    Args:
        mean: What is subtracted.
        scale: The divisor, above 0; `CONSTANT` for a column of one value.
        fill: What replaces a missing value before standardising: the median.
        flag: Whether a second column is 1 where the value was missing, 0 elsewhere.
        inner: The second mean and scale, or None.

    Example:
        >>> Number(mean=2.0, scale=4.0, fill=2.0, flag=False).width
        1
    """

    kind: ClassVar[str] = "number"
    mean: float
    scale: float
    fill: float
    flag: bool
    inner: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "fill"):
            object.__setattr__(self, name, _finite(getattr(self, name), name))
        if self.inner is not None:
            if not isinstance(self.inner, tuple) or len(self.inner) != 2:
                raise ValueError(f"inner must be a mean and a scale; got {short(self.inner)}")
            object.__setattr__(self, "inner", (_finite(self.inner[0], "mean"), _finite(self.inner[1], "scale")))
        for scale in (self.scale, *(self.inner or ())[1:]):
            if scale <= 0:
                raise ValueError(f"the scale of a column must be above 0; got {scale}")
        _check_bool(self.flag, "flag")

    @property
    def width(self) -> int:
        return 1 + self.flag

    def titles(self, name: str) -> list[str]:
        return [name, f"{name} (missing)"][: self.width]

    def write(self, table: Table, i: int, out: Array) -> None:
        values = numbers_of(table, i)
        missing = np.isnan(values)
        out[:, 0] = _both_parts(np.where(missing, self.fill, values), self.mean, self.scale, self.inner)
        if self.flag:
            out[:, 1] = missing

    def to_json(self) -> dict[str, Any]:
        entry = {"kind": self.kind, "mean": self.mean, "scale": self.scale, "fill": self.fill, "flag": self.flag}
        # Left out where there is none, as in files older than this entry.
        return entry if self.inner is None else {**entry, "inner": list(self.inner)}


@dataclass(frozen=True)
class Category:
    """A column of categories, as one 0/1 column for each level, then one for other levels, then one for missing.

    Args:
        levels: The levels with a column of their own.
        other: Whether there is a column for all other levels. Without it, an unseen level is 0 everywhere.
        missing: Whether missing values have a column of their own. Without it, they are an unseen level.

    Example:
        >>> Category(levels=("red", "green"), other=True, missing=False).titles("colour")
        ['colour=red', 'colour=green', 'colour (other)']
    """

    kind: ClassVar[str] = "category"
    levels: tuple[str, ...]
    other: bool
    missing: bool

    def __post_init__(self) -> None:
        if not isinstance(self.levels, tuple) or not all(isinstance(level, str) for level in self.levels):
            raise ValueError(f"the levels of a category must be text; got {short(self.levels)}")
        if len(set(self.levels)) < len(self.levels):
            raise ValueError(f"the levels of a category must differ; got {short(self.levels)}")
        _check_bool(self.other, "other")
        _check_bool(self.missing, "missing")

    @property
    def width(self) -> int:
        return len(self.levels) + self.other + self.missing

    def titles(self, name: str) -> list[str]:
        rest = [f"{name} (other)"] * self.other + [f"{name} (missing)"] * self.missing
        return [f"{name}={level}" for level in self.levels] + rest

    def write(self, table: Table, i: int, out: Array) -> None:
        places: dict[str | None, int] = {level: place for place, level in enumerate(self.levels)}
        unseen = len(self.levels) if self.other else -1
        places[None] = len(self.levels) + self.other if self.missing else unseen
        codes = np.fromiter(map(places.get, table.text(i), repeat(unseen)), dtype=np.intp, count=table.rows)
        rows = np.flatnonzero(codes >= 0)
        out[rows, codes[rows]] = 1.0

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "levels": list(self.levels), "other": self.other, "missing": self.missing}


@dataclass(frozen=True)
class AsIs:
    """A column of numbers that is not changed, for preprocessing switched off; missing values and text are errors.

    Example:
        >>> AsIs().width
        1
    """

    kind: ClassVar[str] = "as_is"

    @property
    def width(self) -> int:
        return 1

    def titles(self, name: str) -> list[str]:
        return [name]

    def write(self, table: Table, i: int, out: Array) -> None:
        if table.kinds[i] != "number":
            raise ValueError(f"preprocessing is switched off, but {table.label(i)} holds text: switch it on")
        values = table.column(i)
        if np.isnan(values).any():
            raise ValueError(
                f"Input X contains NaN.\n{table.label(i)[0].upper()}{table.label(i)[1:]} has missing values and "
                "preprocessing, which fills them, is switched off: switch it on or fill them."
            )
        with np.errstate(over="ignore"):  # an overflow is infinite, which is checked next
            out[:, 0] = values
        if np.isinf(out[:, 0]).any():
            raise ValueError("Input X contains infinity or a value too large for dtype('float32').")

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind}


Column: TypeAlias = Number | Category | AsIs


def fit_number(values: Array, weight: Array | None) -> Number:
    """Fit the standardisation of a column of numbers; NaN is missing, and every weight is above 0.

    Example:
        >>> fit_number(np.array([1.0, 3.0]), None)
        Number(mean=2.0, scale=1.0, fill=2.0, flag=False, inner=None)
    """
    values = values.astype(np.float64, copy=False)
    known = ~np.isnan(values)
    flag = not known.all()
    if flag:
        values, weight = values[known], None if weight is None else weight[known]
    if not len(values):
        return Number(0.0, CONSTANT, 0.0, flag=False)  # always missing: a flag would be constant
    mean, scale = _mean_and_scale(values, weight)
    return Number(mean, scale, _median(values, weight), flag, _fit_inner(values, weight, mean, scale))


def _mean_and_scale(values: Array, weight: Array | None) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    centre, half = low / 2 + high / 2, high / 2 - low / 2
    if half < _TINY:
        return low, CONSTANT
    # Rescaled to ±1, where squares neither overflow nor underflow.
    unit = (values - centre) / half
    mean = float(np.average(unit, weights=weight))
    deviation = math.sqrt(float(np.average((unit - mean) ** 2, weights=weight)))
    scale = half * deviation
    return centre + half * mean, scale if scale >= _TINY else CONSTANT


def _fit_inner(values: Array, weight: Array | None, mean: float, scale: float) -> tuple[float, float] | None:
    """A second mean and scale for the values that the first merge; None if the first keep enough values apart."""
    step = -(-len(values) // _ROWS_SAMPLED)
    values, weight = values[::step], None if weight is None else weight[::step]
    levels = np.unique(values)
    halves = levels / 2  # their differences do not overflow
    levels = levels[np.append(True, np.diff(halves) > _ROUNDING * np.maximum(abs(halves[1:]), abs(halves[:-1])))]
    apart, gaps = _apart(levels, mean, scale, None), len(levels) - 1
    if gaps - apart < _MERGED * gaps or gaps < 2:
        return None
    # Start where a quarter of the levels are closest together, however many rows the far values have, and widen.
    few = max(2, len(levels) // 4)
    widths = levels[few - 1 :] / 2 - levels[: len(levels) - few + 1] / 2
    first = int(widths.argmin())
    distance, radius = abs(values / 2 - levels[first + few // 2] / 2), max(float(widths[first]), _TINY)
    best, inner = apart, None
    while not (near := distance <= radius).all():
        tried = _mean_and_scale(values[near], None if weight is None else weight[near])
        found = _apart(levels, mean, scale, tried)
        if found > apart and found >= best:
            best, inner = found, tried
        radius *= 16
    return inner


def _apart(levels: Array, mean: float, scale: float, inner: tuple[float, float] | None) -> int:
    """How many of these ascending values differ from the one before as float32 once they are standardised."""
    result = _both_parts(levels, mean, scale, inner).astype(np.float32)
    return int(np.count_nonzero(result[1:] != result[:-1]))


def _median(values: Array, weight: Array | None) -> float:
    """The weighted median; between two rows their mean."""
    if weight is None:
        low, high = (len(values) - 1) // 2, len(values) // 2
        ordered = np.partition(values, (low, high))
    else:
        order = np.argsort(values)
        ordered, upto = values[order], np.cumsum(weight[order])
        # Rounding may have moved a sum of weights off the middle between two rows.
        below, above = upto[-1] * (0.5 - 1e-12), upto[-1] * (0.5 + 1e-12)
        low, high = int(np.searchsorted(upto, below)), int(np.searchsorted(upto, above, side="right"))
    one, two = float(ordered[low]), float(ordered[high])
    return one if one == two else one / 2 + two / 2  # halved first: the sum of the two may overflow


def fit_category(values: Array, weight: Array | None, max_levels: int) -> Category:
    """Fit the most frequent levels of a column, sorted; None is missing, and every weight is above 0.

    Of equally frequent levels the first in sorted order is taken; sums of weights that differ by rounding are equal.

    Example:
        >>> fit_category(np.array(["b", "a", "b", None], dtype=object), None, max_levels=1)
        Category(levels=('b',), other=True, missing=True)
    """
    found: dict[str | None, int] = {}
    codes = np.fromiter((found.setdefault(value, len(found)) for value in values), dtype=np.intp, count=len(values))
    counts = np.bincount(codes, weights=weight)
    descending = np.argsort(-counts)
    below = np.diff(counts[descending]) < -_ROUNDING * counts[descending[:-1]]
    ranks = np.empty_like(descending)
    ranks[descending] = np.append(0, np.cumsum(below))
    ranked = sorted((ranks[code], level) for level, code in found.items() if level is not None)
    levels = tuple(sorted(level for _, level in ranked[:max_levels]))
    return Category(levels, other=len(ranked) > max_levels, missing=None in found)


def numbers_of(table: Table, i: int) -> Array:
    """Column ``i`` in float64, with NaN for missing; text is an error, unless all of it is missing."""
    values = table.column(i)
    if table.kinds[i] == "number":
        return values.astype(np.float64, copy=False)
    for value in values:
        if value is not None:
            raise ValueError(f"{table.label(i)} held numbers when the model was fitted; got text such as {value!r}")
    return np.full(table.rows, np.nan)


def _standardised(values: Array, mean: Any, scale: Any, limit: float) -> Array:
    with np.errstate(over="ignore"):  # an overflow is clipped to the limit
        result = values - mean
        result /= scale
    return np.clip(result, -limit, limit, out=result)


def _both_parts(values: Array, mean: float, scale: float, inner: tuple[float, float] | None) -> Array:
    result = _standardised(values, mean, scale, LIMIT)
    return result if inner is None else result + _standardised(values, *inner, NEAR)


def numbers_writer(columns: Sequence[Number]) -> Callable[[Table, Array], None]:
    """A function that does what `Number.write` does for all columns at once."""
    mean, scale, fill = (np.array([getattr(column, name) for column in columns]) for name in ("mean", "scale", "fill"))
    flag = np.array([column.flag for column in columns])
    places = np.arange(len(columns)) + np.cumsum(flag) - flag
    inner = {i: column.inner for i, column in enumerate(columns) if column.inner is not None}

    def write(part: Table, out: Array) -> None:
        values = part.matrix().astype(np.float64, copy=False)
        missing = np.isnan(values)
        filled = np.where(missing, fill, values)
        result = _standardised(filled, mean, scale, LIMIT)
        for i, second in inner.items():
            result[:, i] += _standardised(filled[:, i], *second, NEAR)
        if flag.any():
            out[:, places] = result
            out[:, places[flag] + 1] = missing[:, flag]
        else:
            out[:] = result

    return write


def column_from_json(value: Any) -> Column:
    """Read the column that `to_json` wrote; raise a ValueError for anything else.

    Example:
        >>> column_from_json({"kind": "as_is"})
        AsIs()
    """
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == Number.kind:
        entry = json_entry(value, "a column of numbers", ("kind", "mean", "scale", "fill", "flag"), ("inner",))
        inner = tuple(json_list(entry["inner"], "inner")) if "inner" in entry else None
        return Number(entry["mean"], entry["scale"], entry["fill"], entry["flag"], inner)
    if kind == Category.kind:
        entry = json_entry(value, "a column of categories", ("kind", "levels", "other", "missing"))
        return Category(tuple(json_list(entry["levels"], "levels")), entry["other"], entry["missing"])
    if kind == AsIs.kind:
        json_entry(value, "a column as it is", ("kind",))
        return AsIs()
    raise ValueError(f"a column must be a dictionary of kind 'number', 'category' or 'as_is'; got {short(value)}")


def json_entry(value: Any, what: str, keys: tuple[str, ...], more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check that a value is a dictionary with these keys, and of others only those in ``more``."""
    if not isinstance(value, dict) or set(value) - {*more} != set(keys):
        raise ValueError(f"{what} must be a dictionary with the keys {', '.join(keys)}; got {short(value)}")
    return value


def json_list(value: Any, what: str) -> list[Any]:
    """Check that a value is a list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list; got {short(value)}")
    return value


def _finite(value: Any, what: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an int too large for a float
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"the {what} of a column must be a finite number; got {short(value)}")


def _check_bool(value: Any, what: str) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be true or false; got {short(value)}")


def short(value: Any) -> str:
    """Shorten a value for an error message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a value of type {type(value).__name__}"
