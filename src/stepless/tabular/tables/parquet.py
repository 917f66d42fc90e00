"""Parquet files in batches of rows, with columns as numbers or text; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.extras import needs
from stepless.tabular.tables.files import Source, TableError, checked_names

with needs("reading Parquet needs pyarrow", "cli", "pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

Array = NDArray[Any]

_UNITS_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
#: Digits of a second that only say the unit, and a midnight, which is how a column of dates is often kept.
_SPARE_DIGITS = r"(?:\.0+|(\.[0-9]*[1-9])0+)(Z|[+-][0-9]{4})?$"
_MIDNIGHT = r"^([0-9]{4}-[0-9]{2}-[0-9]{2}) 00:00:00$"


def shape(source: Source) -> tuple[int, dict[str, bool]]:
    """The number of a file's rows, and its columns: for each whether it holds integers, or true and false."""
    file = _open(source)
    names = checked_names(list(file.schema_arrow.names), source.name)
    types = [t.value_type if pa.types.is_dictionary(t) else t for t in file.schema_arrow.types]
    whole = [pa.types.is_integer(t) or pa.types.is_boolean(t) for t in types]
    return file.metadata.num_rows, dict(zip(names, whole, strict=True))


def batches(
    source: Source, names: Sequence[str], rows: int, as_text: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Array], dict[str, Array]]]:
    """Read this many rows at a time: the number of the first (from 1), some columns by their type, and some as text.

    By their type, numbers are float64 with NaN for missing, and so are true and false, and durations in seconds; text,
    dates and times are text in an object array with None for missing. As text, a number has the digits it has in the
    file, and true is True, as in the CSV of the same table; a time does not depend on the unit in which the file keeps
    it, and a midnight is a date.

    Args:
        source: The file.
        names: The columns to read by their type.
        rows: How many rows to read at a time.
        as_text: The columns to read as text, which may be among the others too.
    """
    first = 1
    try:
        for batch in _open(source).iter_batches(rows, columns=list(dict.fromkeys([*names, *as_text]))):
            columns = dict(zip(batch.schema.names, map(_decoded, batch.columns), strict=True))
            plain = {name: _plain(source, name, columns[name]) for name in names}
            yield first, plain, {name: _text(source, name, columns[name]) for name in as_text}
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise source.damaged(error) from None


def _open(source: Source) -> Any:
    try:
        return pq.ParquetFile(source.seekable())
    except (pa.ArrowException, OSError) as error:
        raise source.damaged(error) from None


def _decoded(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _plain(source: Source, name: str, column: Any) -> Array:
    kind, is_duration = column.type, pa.types.is_duration(column.type)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (is_number or is_duration or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        return _text(source, name, column)
    if is_duration or pa.types.is_boolean(kind):  # which do not become floats at once
        column = column.cast(pa.int64() if is_duration else pa.uint8())
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values / _UNITS_PER_SECOND[kind.unit] if is_duration else values)


def _text(source: Source, name: str, column: Any) -> Array:
    kind = column.type
    if pa.types.is_floating(kind):
        # as numpy writes them: a float32 in as few digits as identify it, fewer than the same number as float64 has
        values = column.to_numpy(zero_copy_only=False)
        return np.array([None if np.isnan(value) else str(value) for value in values], dtype=object)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return np.array([None if value is None else str(value) for value in column.to_pylist()], dtype=object)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not text and not pa.types.is_temporal(kind) and not pa.types.is_decimal(kind):
        raise TableError(
            f"{source.name}, column {name!r} holds {kind}; a table has numbers and text. Leave the column out, or make"
            " such columns of it."
        )
    written = column.cast(pa.string())
    if pa.types.is_temporal(kind):
        written = pc.replace_substring_regex(written, _SPARE_DIGITS, r"\1\2")
        written = pc.replace_substring_regex(written, _MIDNIGHT, r"\1")
    return np.array(written.to_pylist(), dtype=object)
