"""`Features`: the map of a `Table` to the float32 matrix that members read, which JSON can hold."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.models.columns import (
    CONSTANT,
    LIMIT,
    AsIs,
    Category,
    Column,
    Number,
    column_from_json,
    fit_category,
    fit_number,
    json_entry,
    json_list,
    numbers_writer,
    short,
)
from stepless.tabular.tables.frames import Table

Array: TypeAlias = NDArray[Any]

__all__ = ["CONSTANT", "LIMIT", "MAX_LEVELS", "AsIs", "Category", "Column", "Features", "Number", "fit_features"]

MAX_LEVELS = 64
_MAX_WIDTH = 1_000_000
_VALUES_AT_ONCE = 1 << 17
_VALUES_IN_FIT = 1 << 23


@dataclass(frozen=True)
class Features:
    """The map of each column of a table to columns of a float32 matrix; made by `fit_features`.

    Args:
        names: The names of the table's columns; None if it had none.
        columns: The preprocessing of each column.

    Example:
        >>> from stepless.tabular.tables.frames import read_table
        >>> features = fit_features(read_table([[1.0, "a"], [3.0, "b"]]))
        >>> features.feature_names_out
        ('x0', 'x1=a', 'x1=b')
        >>> features.matrix(read_table([[3.0, "a"], [None, "c"]]))
        array([[1., 1., 0.],
               [0., 0., 0.]], dtype=float32)
        >>> Features.from_json(features.to_json()) == features
        True
    """

    names: tuple[str, ...] | None
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("features need at least one column; got none")
        if self.names is not None and len(self.names) != len(self.columns):
            raise ValueError(f"features need a name a column; got {len(self.names)} for {len(self.columns)} columns")
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise ValueError(f"the names of columns must differ; got {short(self.names)}")
        if not 1 <= self.width <= _MAX_WIDTH:
            raise ValueError(f"features must be 1 to {_MAX_WIDTH} columns wide; got {self.width}")

    @property
    def width(self) -> int:
        """The number of columns of the matrix."""
        return sum(column.width for column in self.columns)

    @property
    def feature_names_out(self) -> tuple[str, ...]:
        """The names of the matrix's columns."""
        names = self.names or [f"x{i}" for i in range(len(self.columns))]
        return tuple(title for name, column in zip(names, self.columns, strict=True) for title in column.titles(name))

    def check(self, table: Table, owner: str = "Features") -> None:
        """Raise scikit-learn's errors unless a table has the fitted columns; warn if only one side has names.

        Args:
            table: The rows to predict.
            owner: The name of the model in errors.
        """
        self._check_columns(table, owner)
        if table.names is None and self.names is not None:
            message = f"X does not have valid feature names, but {owner} was fitted with feature names"
            warnings.warn(message, UserWarning, stacklevel=2)
        if table.names is not None and self.names is None:
            message = f"X has feature names, but {owner} was fitted without feature names"
            warnings.warn(message, UserWarning, stacklevel=2)

    def matrix(self, table: Table) -> NDArray[np.float32]:
        """The float32 matrix (rows, width) of a table, which is checked as in `check`, without warnings."""
        self._check_columns(table, "Features")
        out = np.zeros((table.rows, self.width), dtype=np.float32)
        write = self._writer(table)
        step = max(1, _VALUES_AT_ONCE // self.width)  # so that the memory beside the matrix stays small
        for start in range(0, table.rows, step):
            write(table.part(start, start + step), out[start : start + step])
        return out

    def to_json(self) -> dict[str, Any]:
        """The features as a dictionary that JSON holds without loss."""
        names = None if self.names is None else list(self.names)
        return {"names": names, "columns": [column.to_json() for column in self.columns]}

    @classmethod
    def from_json(cls, value: Any) -> Features:
        """Read the features that `to_json` wrote; raise a ValueError for anything else."""
        entry = json_entry(value, "features", ("names", "columns"))
        names = entry["names"]
        if names is not None:
            names = tuple(json_list(names, "names"))
            if not all(isinstance(name, str) for name in names):
                raise ValueError(f"the names of columns must be text; got {short(names)}")
        return cls(names, tuple(column_from_json(column) for column in json_list(entry["columns"], "columns")))

    def _writer(self, table: Table) -> Callable[[Table, Array], None]:
        numbers = [column for column in self.columns if isinstance(column, Number)]
        if len(numbers) == len(self.columns) and set(table.kinds) == {"number"}:
            return numbers_writer(numbers)

        def write(part: Table, out: Array) -> None:
            place = 0
            for i, column in enumerate(self.columns):
                column.write(part, i, out[:, place : place + column.width])
                place += column.width

        return write

    def _check_columns(self, table: Table, owner: str) -> None:
        if self.names is not None and table.names is not None and self.names != table.names:
            raise ValueError(_names_message(self.names, table.names))
        if table.width != len(self.columns):
            raise ValueError(
                f"X has {table.width} features, but {owner} is expecting {len(self.columns)} features as input."
            )


def fit_features(
    table: Table, sample_weight: Array | None = None, *, enabled: bool = True, max_levels: int = MAX_LEVELS
) -> Features:
    """Fit the preprocessing of every column of a table.

    Numbers are standardised, with a second part where far values would merge the others. Missing numbers are filled
    with the median and, if there are any, flagged in a column of their own. Categories get a column for each of their
    ``max_levels`` most frequent levels, one for all others, and one for missing. A row of weight k counts as k rows,
    one of weight 0 as none.

    Args:
        table: The rows to learn from.
        sample_weight: A weight for each row.
        enabled: False to leave numbers unchanged; then text and missing values are errors.
        max_levels: The most levels of a category with a column of their own.

    Example:
        >>> from stepless.tabular.tables.frames import read_table
        >>> fit_features(read_table([[1.0], [3.0], [None]])).columns
        (Number(mean=2.0, scale=1.0, fill=2.0, flag=True, inner=None),)
    """
    if isinstance(max_levels, bool) or not isinstance(max_levels, int) or max_levels < 1:
        raise ValueError(f"max_levels must be an integer from 1; got {max_levels!r}")
    if not enabled:
        features = Features(table.names, (AsIs(),) * table.width)
        for start in range(0, table.rows, _VALUES_AT_ONCE):
            features.matrix(table.part(start, start + _VALUES_AT_ONCE))
        return features
    weight = _weights(sample_weight, table.rows)
    if weight is not None and not weight.all():
        table, weight = table.take(weight > 0), weight[weight > 0]
    return Features(
        table.names,
        tuple(
            fit_number(values, weight) if kind == "number" else fit_category(values, weight, max_levels)
            for kind, values in zip(table.kinds, _columns(table), strict=True)
        ),
    )


def _weights(sample_weight: Array | None, rows: int) -> Array | None:
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight must have one weight per row, shape ({rows},); got shape {weight.shape}")
    if not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise ValueError("sample_weight must be finite, not below 0, and above 0 somewhere")
    # Scaled so that the sum is finite, by a power of 2 so that integers still add up without rounding.
    return np.ldexp(weight, -math.frexp(weight.max())[1])


def _columns(table: Table) -> Iterator[Array]:
    """The columns one by one; those of one array are copied in groups, since a copy of one reads the whole array."""
    if isinstance(table.data, tuple):
        yield from (table.column(i) for i in range(table.width))
        return
    group = max(1, _VALUES_IN_FIT // table.rows)
    for start in range(0, table.width, group):
        yield from np.ascontiguousarray(table.data[:, start : start + group].T, dtype=np.float64)


def _names_message(fitted: Sequence[str], got: Sequence[str]) -> str:
    message = "The feature names should match those that were passed during fit.\n"
    unseen, gone = sorted(set(got) - set(fitted)), sorted(set(fitted) - set(got))
    for names, sentence in (
        (unseen, "Feature names unseen at fit time:"),
        (gone, "Feature names seen at fit time, yet now missing:"),
    ):
        if names:
            shown = [f"- {name}\n" for name in names[:5]] + ["- ...\n"] * (len(names) > 5)
            message += f"{sentence}\n" + "".join(shown)
    if not unseen and not gone:
        message += "Feature names must be in the same order as they were in fit.\n"
    return message
