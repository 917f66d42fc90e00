"""Parquet files in batches of rows, their columns as numbers or text; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.extras import needs
from stepless.tables.files import Source, TableError, checked_names

with needs("reading Parquet needs pyarrow", "cli", "pyarrow"):
    import pyarrow as pa
    import pyarrow.parquet as pq

Array = NDArray[Any]

#: How many of each unit of time a second has.
_TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def column_names(source: Source) -> list[str]:
    """The names of a file's columns."""
    return checked_names(list(_open(source).schema_arrow.names), source.name)


def batches(
    source: Source, names: Sequence[str], rows: int, as_text: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Array], dict[str, Array]]]:
    """So many rows at a time: the number of the first (from 1), some columns as what they are, and some as text.

    Numbers are float64 with NaN for missing, and so are true and false, and durations in seconds; text, dates and times
    are text in an object array with None for missing. As text, a number has the digits that the file has of it, and
    true is True, as in the CSV of the same table.

    Args:
        source: The file.
        names: The columns to read as what they are.
        rows: How many at a time.
        as_text: The columns to read as text; they may be among the others too.
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
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if pa.types.is_boolean(kind) or (pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if pa.types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if pa.types.is_duration(kind):
        ticks = column.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(ticks / _TICKS[kind.unit])
    return _text(source, name, column)


def _text(source: Source, name: str, column: Any) -> Array:
    kind = column.type
    values = np.empty(len(column), dtype=object)
    if pa.types.is_floating(kind):
        # as numpy writes its own: a float32 in as few digits as tell it from others, which a float64 of it has not
        values[:] = [None if np.isnan(v) else str(v) for v in column.to_numpy(zero_copy_only=False)]
        return values
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        values[:] = [None if v is None else str(v) for v in column.to_pylist()]
        return values
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not text and not pa.types.is_temporal(kind) and not pa.types.is_decimal(kind):
        raise TableError(f"{source.name}, column {name!r} holds {kind}; a table has numbers and text.")
    values[:] = column.cast(pa.string()).to_pylist()
    return values
