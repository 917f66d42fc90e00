"""Parquet files in batches of rows, their columns as numbers or text; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.table_files import Source, TableError, checked_names

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pyarrow":
        raise
    raise ModuleNotFoundError('reading Parquet needs pyarrow: pip install "stepless[cli]"', name="pyarrow") from None

Array = NDArray[Any]


def column_names(source: Source) -> list[str]:
    """The names of a file's columns."""
    return checked_names(list(_open(source).schema_arrow.names), source.name)


def batches(source: Source, names: list[str], rows: int) -> Iterator[tuple[int, dict[str, Array]]]:
    """So many rows at a time, with the number of the first (from 1).

    Numbers are float64 with NaN for missing, and so are true and false; text, dates and times are text in an object
    array with None for missing.

    Args:
        source: The file.
        names: The columns to read.
        rows: How many at a time.
    """
    first = 1
    try:
        for batch in _open(source).iter_batches(rows, columns=names):
            found = zip(batch.schema, batch.columns, strict=True)
            columns = {field.name: _plain(source, field.name, column) for field, column in found}
            yield first, {name: columns[name] for name in names}
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise source.damaged(error) from None


def _open(source: Source) -> Any:
    try:
        return pq.ParquetFile(source.seekable())
    except (pa.ArrowException, OSError) as error:
        raise source.damaged(error) from None


def _plain(source: Source, name: str, column: Any) -> Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if pa.types.is_boolean(kind) or (pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if pa.types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not text and not pa.types.is_temporal(kind):
        raise TableError(f"{source.name}, column {name!r} holds {kind}; a table has numbers and text.")
    values = np.empty(len(column), dtype=object)
    values[:] = column.cast(pa.string()).to_pylist()
    return values
