"""`Table`: the rows of a numpy array, a pandas or polars frame or a list, as columns of numbers and of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import chain
from numbers import Complex, Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepless.extras import needs

with needs("reading tables needs narwhals", "sklearn", "narwhals"):
    import narwhals as nw
    from narwhals.exceptions import DuplicateError

Kind: TypeAlias = Literal["number", "category"]
Array: TypeAlias = NDArray[Any]

_VALUES_AT_ONCE = 1 << 18
_NUMBERS = "fiub"  # the kinds of numpy types that are numbers: float, signed, unsigned, bool
_DATES = (date, time, timedelta, np.datetime64, np.timedelta64)
# The types of missing values in pandas and numpy; by name, since pandas need not be installed.
_ABSENT = ("NoneType", "NAType", "NaTType", "MaskedConstant")
# Types of pandas that are categories by the text they print as: of cut columns, and of months.
_NAMED = ("Interval", "Period")
_RESHAPE = (
    "Reshape your data either using array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) "
    "if it contains a single sample."
)
# Beyond this a float no longer holds every integer, so writing it as one would claim digits it does not have.
_LARGEST_WHOLE = 2.0**53


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a classifier's input, with a column for each feature; made by `read_table`.

    Arrays are not copied if that can be avoided, so a change to the array given is a change to the table.

    Args:
        names: The columns' names; None if the input had none.
        kinds: For each column ``"number"`` or ``"category"``.
        rows: How many rows there are.
        data: One 2-D array of numbers, or one array for each column: numbers, or text in an object array with None for
            missing. Numbers that would not be the same text as floats are in object arrays too.

    Example:
        >>> table = read_table([[1.5, "a"], [2.5, None]])
        >>> table.kinds
        ('number', 'category')
        >>> table.column(1)
        array(['a', None], dtype=object)
    """

    names: tuple[str, ...] | None
    kinds: tuple[Kind, ...]
    rows: int
    data: Array | tuple[Array, ...]

    def __len__(self) -> int:
        return self.rows

    @property
    def width(self) -> int:
        """How many columns there are."""
        return len(self.kinds)

    def column(self, i: int) -> Array:
        """Column ``i``: floats with NaN for missing, or text in an object array with None for missing."""
        values = self._raw(i)
        return _floats(values) if self.kinds[i] == "number" else values

    def text(self, i: int) -> Array:
        """Column ``i`` as text whatever its kind; the text of a value does not depend on the other values."""
        values = self._raw(i)
        return _texts(values.tolist(), self.label(i)) if self.kinds[i] == "number" else values

    def label(self, i: int) -> str:
        """What an error calls column ``i``."""
        return column_label(self.names, i)

    def part(self, start: int, stop: int) -> Table:
        """Rows ``start`` to ``stop``, without a copy."""
        return self._rows_of(slice(start, stop))

    def take(self, rows: Array | Sequence[int]) -> Table:
        """The rows of these indices, or those where a mask is True, copied."""
        return self._rows_of(np.asarray(rows))

    def matrix(self) -> Array:
        """All columns, which must be numbers, as one 2-D array of floats; not copied if they were given as one."""
        if isinstance(self.data, np.ndarray):
            return _floats(self.data)
        for i, kind in enumerate(self.kinds):
            if kind != "number":
                raise ValueError(f"a matrix needs numbers alone; {self.label(i)} holds text")
        columns = [_floats(values) for values in self.data]
        return np.stack(columns, axis=1, dtype=np.result_type(*columns))

    def _raw(self, i: int) -> Array:
        return self.data[:, i] if isinstance(self.data, np.ndarray) else self.data[i]

    def _rows_of(self, rows: slice | Array) -> Table:
        data = self.data[rows] if isinstance(self.data, np.ndarray) else tuple(values[rows] for values in self.data)
        return Table(self.names, self.kinds, len(data if isinstance(data, np.ndarray) else data[0]), data)


def column_label(names: Sequence[str] | None, i: int) -> str:
    """The words for column ``i`` in an error, with its name if it has one.

    Example:
        >>> column_label(["age"], 0), column_label(None, 0)
        ("column 'age'", 'column 0')
    """
    return f"column {i}" if names is None else f"column {names[i]!r}"


def read_table(X: Any, *, what: str = "X") -> Table:
    """Read a numpy array, a frame of pandas, polars or pyarrow, or a list of lists as a `Table`.

    Text is a category, and so is any column of a categorical type. A column of objects holds numbers if all of them are
    (bool and Decimal too), otherwise categories, its numbers written as text: 2 and 2.0 are both ``"2"``. None, NaN,
    ``pandas.NA`` and masked values are missing. A column of objects that are all missing counts as numbers. The same
    data give the same table whatever holds them. A table is returned as it is.

    Args:
        X: The rows.
        what: The name of the rows in errors.

    Example:
        >>> import pandas as pd
        >>> table = read_table(pd.DataFrame({"age": [31, None], "city": ["Ulm", None]}))
        >>> table.names, table.kinds, table.rows
        (('age', 'city'), ('number', 'category'), 2)
    """
    if isinstance(X, Table):
        return X
    if hasattr(X, "tocsr"):
        raise TypeError(
            f"Sparse data was passed for {what}, but dense data is required. "
            "Use '.toarray()' to convert to a dense numpy array."
        )
    if isinstance(X, np.matrix):
        raise TypeError("np.matrix is not supported. Please convert to a numpy array with np.asarray.")
    try:
        frame = nw.from_native(X, pass_through=True, allow_series=True)
    except DuplicateError as error:
        raise ValueError(f"the columns of {what} need different names. {error}") from None
    if isinstance(frame, nw.LazyFrame):
        raise TypeError(f"{what} is a lazy frame, whose rows are not there yet: call .collect() on it first")
    if isinstance(frame, nw.Series):
        raise ValueError(
            f"Expected a 2-dimensional container but got {type(X)} instead. Pass a DataFrame containing a single row "
            "(i.e. single sample) or a single column (i.e. single feature) instead."
        )
    return _read_frame(frame, what) if isinstance(frame, nw.DataFrame) else _read_array(X, what)


def _read_array(X: Any, what: str) -> Table:
    array = _as_array(X)
    kind = array.dtype.kind
    if kind == "c":
        raise _complex_error(array)
    if array.ndim < 2:
        got = "1D" if array.ndim else "scalar"
        raise ValueError(f"Expected 2D array, got {got} array instead:\narray={array}.\n{_RESHAPE}")
    if array.ndim > 2:
        raise ValueError(f"Found array with dim {array.ndim}, while dim <= 2 is required.")
    _check_shape(array.shape)
    if kind in _NUMBERS:
        array = _checked(array, what)
        return Table(None, ("number",) * array.shape[1], array.shape[0], array)
    if kind in "Mm":
        raise _date_error("the array")
    if kind not in "OUT":
        raise TypeError(f"a table needs numbers or text; got an array of {array.dtype}")
    return _table(None, [_read_objects(values, f"column {i}", what) for i, values in enumerate(array.astype(object).T)])


def _as_array(X: Any) -> Array:
    if isinstance(X, np.ma.MaskedArray):
        if X.dtype.kind != "f":
            array = X.data.astype(object)
            array[np.ma.getmaskarray(X)] = None
            return array
        return np.ma.filled(X, np.nan)
    array = np.asarray(X)
    if array.dtype.kind in "US" and not hasattr(X, "dtype"):
        # numpy has turned the numbers of a list with some text, such as [1.5, "a"], into text.
        array = np.asarray(X, dtype=object)
    listed = isinstance(X, list | tuple) and array.ndim == 2 and array.dtype.kind in "fiu"
    if listed and _needs_objects(set(map(type, chain.from_iterable(X))), array):
        # numpy has turned the bools and integers of a list with some floats, such as [1.5, True], into floats.
        array = np.asarray(X, dtype=object)
    return array


def _read_frame(frame: nw.DataFrame[Any], what: str) -> Table:
    _check_shape(frame.shape)
    names = _names(frame.columns)
    block = _one_block(frame)
    if block is not None:
        block = _checked(block, what)
        return Table(names, ("number",) * block.shape[1], block.shape[0], block)
    labels = [column_label(frame.columns, i) for i in range(frame.shape[1])]
    return _table(names, [_read_series(frame[:, i], label, what) for i, label in enumerate(labels)])


def _table(names: tuple[str, ...] | None, columns: Sequence[tuple[Kind, Array]]) -> Table:
    kinds, data = zip(*columns, strict=True)
    return Table(names, kinds, len(data[0]), data)


def _one_block(frame: nw.DataFrame[Any]) -> Array | None:
    """The values of a pandas frame whose columns share a numpy type, which pandas often keeps as one array."""
    if not frame.implementation.is_pandas():
        return None
    native = frame.to_native()
    dtypes = set(native.dtypes)
    dtype = dtypes.pop()
    if dtypes or not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS:
        return None
    return np.asarray(native.to_numpy())


def _read_series(series: nw.Series[Any], label: str, what: str) -> tuple[Kind, Array]:
    dtype = series.dtype
    if dtype.is_temporal():
        raise _date_error(label)
    if dtype.is_nested() or dtype == nw.Binary:
        raise _type_error(label, str(dtype))
    # narwhals calls a pandas column of objects text if all of them are text or missing, even if all are missing.
    declared = getattr(series.to_native(), "dtype", None) != np.dtype(object)
    if dtype in (nw.Categorical, nw.Enum) or (dtype == nw.String and declared):
        # As a list, since the array made of a pyarrow dictionary loses its missing values.
        return "category", _texts(series.to_list(), label)
    if dtype in (nw.Decimal, nw.Int128, nw.UInt128):
        return _read_objects(object_array(series.to_list()), label, what)
    values = series.to_numpy()
    if dtype.is_integer() and values.dtype.kind == "f" and _needs_objects({int}, values):
        values = object_array(series.to_list())  # integers of which some are missing came as floats
    if values.dtype.kind == "c":
        raise _complex_error(values)
    if values.dtype.kind in _NUMBERS:
        return "number", _checked(values, what)
    return _read_objects(values, label, what)


def _read_objects(values: Array, label: str, what: str) -> tuple[Kind, Array]:
    """A column of Python objects: numbers if there is nothing else, otherwise text."""
    types = set(map(type, values))
    for kind in types:
        if kind.__name__ not in _ABSENT and not issubclass(kind, str | Real | Decimal | np.bool_):
            raise _unusable(kind, label, values)
    if any(issubclass(kind, str) for kind in types):
        return "category", _texts(values, label)
    known = object_array([None if is_missing(value) else value for value in values])
    try:
        numbers = _checked(_floats(known), what)
    except OverflowError:  # an int too large for a float
        raise _infinity_error(what, np.dtype(np.float64)) from None
    return "number", known if _needs_objects(types, numbers) else numbers


def _needs_objects(types: set[type], values: Array) -> bool:
    """Whether numbers of these types would be other text as floats: True is not "1", and long ids would be rounded.

    Where they are categories, their text must not depend on whether other rows of the column hold text.
    """
    if any(issubclass(kind, bool | np.bool_) for kind in types):
        return True
    if values.dtype.kind != "f" or not any(issubclass(kind, Integral) for kind in types):
        return False
    return bool((np.abs(values) >= _LARGEST_WHOLE).any())


def object_array(values: Sequence[Any]) -> Array:
    """A 1-D array of objects, whatever they are.

    >>> object_array(["a", None])
    array(['a', None], dtype=object)
    """
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _texts(values: Iterable[Any], label: str) -> Array:
    return object_array([value if type(value) is str else _text(value, label) for value in values])


def _text(value: Any, label: str) -> str | None:
    """A value as the name of a category; None where it is missing."""
    if is_missing(value):
        return None
    if isinstance(value, str | bool | np.bool_) or type(value).__name__ in _NAMED:
        return str(value)
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) <= _LARGEST_WHOLE else repr(number)
    raise _unusable(type(value), label, value)


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, NaN, or what pandas and numpy have in their place."""
    if type(value).__name__ in _ABSENT:
        return True
    if isinstance(value, Decimal):  # comparing a signalling NaN raises
        return value.is_nan()
    return isinstance(value, Real) and value != value  # noqa: PLR0124 - true of NaN alone


def _floats(values: Array) -> Array:
    """The values as float32 or float64, not copied if they are one of these; None among objects becomes NaN."""
    if values.dtype.kind == "O":
        return values.astype(np.float64)
    return values.astype(np.result_type(values.dtype, np.float32), copy=False)


def _checked(values: Array, what: str) -> Array:
    """Check that numbers are finite or missing, and narrow them to at most 64 bits."""
    if values.dtype.kind != "f":
        return values
    if values.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # an overflow is infinite, which is checked next
            values = values.astype(np.float64)
    rows = max(1, _VALUES_AT_ONCE // max(1, values[:1].size))
    for start in range(0, len(values), rows):
        if np.isinf(values[start : start + rows]).any():
            raise _infinity_error(what, values.dtype)
    return values


def _check_shape(shape: tuple[int, ...]) -> None:
    for size, unit in zip(shape, ("sample", "feature"), strict=True):
        if size == 0:
            raise ValueError(f"Found array with 0 {unit}(s) (shape={shape}) while a minimum of 1 is required.")


def _names(columns: Sequence[Any]) -> tuple[str, ...] | None:
    types = sorted({type(name).__qualname__ for name in columns})
    if types == ["str"]:
        return tuple(columns)
    if "str" in types:
        raise TypeError(
            "Feature names are only supported if all input features have string names, but your input has "
            f"{types} as feature name / column name types. Convert them all to strings, by using "
            "X.columns = X.columns.astype(str) for example."
        )
    return None


def _unusable(kind: type, label: str, value: Any) -> Exception:
    if issubclass(kind, _DATES) or kind.__name__ == "Period":
        return _date_error(label)
    if issubclass(kind, Complex):
        return _complex_error(value)
    return _type_error(label, kind.__name__)


def _type_error(label: str, got: str) -> TypeError:
    return TypeError(f"{label}: argument must be a string or a number, not {got!r}")


def _date_error(label: str) -> TypeError:
    return TypeError(
        f"{label} holds dates or times: turn them into numbers first, such as the year, the day of the week, or the "
        "days since an event"
    )


def _complex_error(values: Any) -> ValueError:
    return ValueError(f"Complex data not supported\n{values}\n")


def _infinity_error(what: str, dtype: np.dtype[Any]) -> ValueError:
    return ValueError(f"Input {what} contains infinity or a value too large for {dtype!r}.")
