"""Tables from files: CSV, TSV and Parquet, compressed or not, whole for training and in chunks for predicting.

What a column is, is told from all of its rows, and the same reader that fills a table for training reads the rows to
predict, as what the model was trained on. A file of text is therefore read twice: once to tell, once to take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tables.cells import CellError, Guess, are_dates, formatted, numbers, words
from stepless.tables.files import Rows, Source, TableError, did_you_mean
from stepless.tables.frames import Kind, Table

Array = NDArray[Any]

#: How many cells are taken at a time, and how many rows at most.
_CELLS, _ROWS = 1 << 19, 1 << 15
#: In a table of so many rows a category that differs in each of them is taken for a name of the row.
_FEW = 50


@dataclass(frozen=True)
class Described:
    """A column as it was read, for people.

    Attributes:
        name: Of the column.
        kind: ``"number"`` or ``"category"``.
        missing: How many values are missing.
        distinct: How many different ones there are.
        note: What is worth knowing about it, or nothing.
    """

    name: str
    kind: Kind
    missing: int
    distinct: int
    note: str = ""


@dataclass(frozen=True, eq=False)
class Loaded:
    r"""A whole table.

    Attributes:
        file: Its name.
        stem: Its name without folder and suffixes.
        columns: For each name, numbers with NaN for missing, or text with None for missing.
        rows: How many rows there are.
        odd: For categories that were numbers but for one cell: the row, the cell, and how many numbers came with it.
        decimal_comma: Whether 1,5 is one and a half.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("age,city\n31,Ulm\n,Bonn\n")
        ...     file.flush()
        ...     table = load_table(Source(file.name))
        >>> [(column.name, column.kind, column.missing) for column in table.describe()]
        [('age', 'number', 1), ('city', 'category', 0)]
    """

    file: str
    stem: str
    columns: Mapping[str, Array]
    rows: int
    odd: Mapping[str, tuple[int, str, int]]
    decimal_comma: bool = False

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return list(self.columns)

    def kind(self, name: str) -> Kind:
        """What a column is."""
        return "category" if self.columns[name].dtype == object else "number"

    def column(self, name: str, purpose: str) -> Array:
        """A column by its name; a `TableError` with the nearest name where there is none."""
        if name not in self.columns:
            raise TableError(f"{self.file} has no column {name!r} {purpose}.{did_you_mean(name, self.names)}")
        return self.columns[name]

    def table(self, names: Sequence[str]) -> Table:
        """Some columns as what estimators take."""
        return _table(self.columns, {name: self.kind(name) for name in names})

    def describe(self, names: Sequence[str] | None = None) -> list[Described]:
        """What the columns are, and what is worth knowing about them."""
        return [self._describe(name) for name in (self.columns if names is None else names)]

    def _describe(self, name: str) -> Described:
        values, kind = self.columns[name], self.kind(name)
        there = [v for v in values if v is not None] if kind == "category" else values[~np.isnan(values)]
        distinct: Any = list(dict.fromkeys(there)) if kind == "category" else np.unique(there)
        note = ""
        if len(distinct) == 0:
            note = "nothing but missing values"
        elif len(distinct) == 1:
            note = "the same in every row"
        elif kind == "category" and are_dates(distinct[:1000]):
            note = "dates, taken as categories; a number such as the year or the days since an event says more"
        elif kind == "category" and (cell := formatted(distinct[:1000], decimal_comma=self.decimal_comma)):
            note = f"numbers written as {cell[:40]!r}, taken as categories; write them plainly, as in 1234.5"
        elif name in self.odd and self.odd[name][2] > 0:
            row, cell, _ = self.odd[name]
            note = f"holds numbers, and {cell[:40]!r} in row {row}; so it is taken as categories"
        elif self._names_rows(kind, values, len(distinct)):
            note = "differs in every row; if it only names the rows, drop it"
        return Described(name, kind, self.rows - len(there), len(distinct), note)

    def _names_rows(self, kind: Kind, values: Array, distinct: int) -> bool:
        if distinct < self.rows or self.rows < _FEW:
            return False
        return kind == "category" or bool((np.abs(np.diff(values)) == 1).all())


def load_table(source: Source, as_text: Sequence[str] = (), unread: Collection[str] = ()) -> Loaded:
    """Read a whole table.

    Args:
        source: The file.
        as_text: Columns that are categories whatever they hold, if the file has them.
        unread: Columns of Parquet whose values nobody wants: they may be of types that a table has not.
    """
    if source.is_parquet:
        names = _parquet_names(source)
        apart = [name for name in names if name in as_text and name not in unread]
        others = [name for name in names if name not in as_text and name not in unread]
        parts = [{**plain, **text} for _, plain, text in _batches(source, others, apart)]
        for part in parts:
            rows = len(next(iter(part.values())))
            part.update({name: np.full(rows, None, object) for name in names if name in unread})
        found = {name: np.concatenate([part[name] for part in parts]) for name in (names if parts else ())}
        return _loaded(source, found, {})
    guesses = _guess(source, as_text)
    kinds = {name: guess.kind for name, guess in guesses.items()}
    chunks = [columns for _, columns, _ in _text_chunks(source, kinds, ())]
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]) if chunks else np.empty(0) for name in kinds}
    odd = {name: (*guess.odd, guess.found) for name, guess in guesses.items() if guess.odd is not None}
    return _loaded(source, columns, odd, decimal_comma=any(guess.decimal_comma for guess in guesses.values()))


def _loaded(
    source: Source, columns: dict[str, Array], odd: Mapping[str, tuple[int, str, int]], *, decimal_comma: bool = False
) -> Loaded:
    rows = len(next(iter(columns.values()), ()))
    if not columns:
        raise TableError(f"{source.name} has no columns.")
    if rows == 0:
        raise TableError(f"{source.name} has a header and no rows.")
    for name, values in columns.items():
        _check_finite(source, values, name, 1)
    return Loaded(source.name, source.stem, columns, rows, odd, decimal_comma)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows to predict: the columns of a model, and others as text, to be written beside the predictions."""

    table: Table
    kept: dict[str, list[str]]


def read_chunks(source: Source, kinds: Mapping[str, Kind], keep: Sequence[str] = ()) -> Iterator[Chunk]:
    """The rows of a table in chunks, in bounded memory, its columns read as what they are told to be.

    Columns that are not asked for are passed over; their order does not matter.

    Args:
        source: The file.
        kinds: The columns that are wanted, and what they are.
        keep: Columns to hand on as text.
    """
    if source.is_parquet:
        _check_wanted(source, _parquet_names(source), [*kinds, *keep])
        for first, plain, text in _batches(source, list(kinds), keep):
            columns = {name: _typed(source, plain[name], name, kind, first) for name, kind in kinds.items()}
            kept = {name: ["" if value is None else value for value in text[name]] for name in keep}
            yield Chunk(_table(columns, kinds), kept)
        return
    for _, columns, kept in _text_chunks(source, kinds, keep):
        yield Chunk(_table(columns, kinds), kept)


def _table(columns: Mapping[str, Array], kinds: Mapping[str, Kind]) -> Table:
    data = tuple(columns[name] for name in kinds)
    return Table(tuple(kinds), tuple(kinds.values()), len(data[0]), data)


def _check_wanted(source: Source, there: Sequence[str], wanted: Sequence[str]) -> None:
    known = set(there)
    absent = [name for name in dict.fromkeys(wanted) if name not in known]
    if len(absent) > 1:
        shown = ", ".join(map(repr, absent[:5])) + ", …" * (len(absent) > 5)
        raise TableError(f"{source.name} lacks {len(absent)} of the columns that are needed: {shown}.")
    if absent:
        raise TableError(f"{source.name} has no column {absent[0]!r}.{did_you_mean(absent[0], list(there))}")


# ---------------------------------------------------------------------------------------------------------------------
# Text
# ---------------------------------------------------------------------------------------------------------------------


def _guess(source: Source, as_text: Sequence[str]) -> dict[str, Guess]:
    """What the columns of a file of text are, from all rows."""
    rows = Rows(source)
    try:
        comma = rows.delimiter == ";"
        guesses = {name: Guess(decimal_comma=comma, number=name not in as_text) for name in rows.header}
        for first, chunk in rows.chunks(_rows_of(len(rows.header))):
            for (name, guess), cells in zip(guesses.items(), zip(*chunk, strict=True), strict=True):
                try:
                    guess.look(cells, first)
                except CellError as error:
                    raise _misplaced(source, first, name, error) from None
    finally:
        rows.close()
    return guesses


def _text_chunks(
    source: Source, kinds: Mapping[str, Kind], keep: Sequence[str]
) -> Iterator[tuple[int, dict[str, Array], dict[str, list[str]]]]:
    rows = Rows(source)
    try:
        _check_wanted(source, rows.header, [*kinds, *keep])
        places = {name: place for place, name in enumerate(rows.header)}
        for first, chunk in rows.chunks(_rows_of(len(rows.header))):
            cells = list(zip(*chunk, strict=True))
            columns: dict[str, Array] = {}
            for name, kind in kinds.items():
                own = cells[places[name]]
                try:
                    values = numbers(own, decimal_comma=rows.delimiter == ";") if kind == "number" else _objects(own)
                except CellError as error:
                    raise _misplaced(source, first, name, error) from None
                columns[name] = values
            yield first, columns, {name: list(cells[places[name]]) for name in keep}
    finally:
        rows.close()


def _rows_of(width: int) -> int:
    return max(1, min(_ROWS, _CELLS // max(1, width)))


def _objects(cells: Sequence[str]) -> Array:
    values = np.empty(len(cells), dtype=object)
    values[:] = words(cells)
    return values


def _misplaced(source: Source, first: int, name: str, error: CellError) -> TableError:
    return TableError(f"{source.name}, row {first + error.place}, column {name!r} {error}.")


# ---------------------------------------------------------------------------------------------------------------------
# Parquet
# ---------------------------------------------------------------------------------------------------------------------


def _parquet_names(source: Source) -> list[str]:
    from stepless.tables.parquet import column_names  # noqa: PLC0415 - needs pyarrow

    return column_names(source)


def _batches(
    source: Source, names: Sequence[str], as_text: Sequence[str]
) -> Iterator[tuple[int, dict[str, Array], dict[str, Array]]]:
    from stepless.tables.parquet import batches  # noqa: PLC0415 - needs pyarrow

    return batches(source, names, _rows_of(len(names) + len(as_text)), as_text)


def _check_finite(source: Source, values: Array, name: str, first: int) -> None:
    if values.dtype != object and np.isinf(values).any():
        row = first + int(np.flatnonzero(np.isinf(values))[0])
        raise TableError(f"{source.name}, row {row}, column {name!r} holds an infinite value, which is no number.")


def _typed(source: Source, values: Array, name: str, kind: Kind, first: int) -> Array:
    """A column as what a model takes it for; numbers that it takes for categories are written as text."""
    _check_finite(source, values, name, first)
    if kind == "number" and values.dtype == object:
        try:
            return numbers(["" if value is None else value for value in values])
        except CellError as error:
            raise _misplaced(source, first, name, error) from None
    if kind == "category" and values.dtype != object:
        return Table((name,), ("number",), len(values), (values,)).text(0)
    return values
