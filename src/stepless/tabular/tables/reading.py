"""Tables from files: CSV, TSV and Parquet, compressed or not, whole for training and in chunks for predicting.

The kind of a column follows from all of its rows, so a file of text is read twice for training: once to find the kinds,
once for the values. The same reader reads the rows to predict, with the kinds that the model was trained on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.tables.cells import CellError, Guess, are_dates, formatted, numbers, words
from stepless.tabular.tables.files import Rows, Source, TableError, did_you_mean
from stepless.tabular.tables.frames import Kind, Table, object_array

Array = NDArray[Any]

#: The most cells and the most rows read at a time.
_CELLS, _ROWS = 1 << 19, 1 << 15
#: From this many rows on, a category that differs in each of them is taken for a name of the row.
_ROWS_WITH_NAMES = 50


@dataclass(frozen=True)
class Described:
    """A column as it was read, to be shown to the user.

    Attributes:
        name: The column's name.
        kind: ``"number"`` or ``"category"``.
        missing: How many values are missing.
        distinct: How many distinct values there are.
        note: What is worth knowing about it, or empty.
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
        file: The file's name.
        stem: The same without folder and suffixes.
        columns: For each name, numbers with NaN for missing, or text with None for missing.
        rows: How many rows there are.
        odd: For columns of categories, the first cell that is no number: its row, its text, and how many numbers were
            seen up to it.
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
        """The kind of a column."""
        return "category" if self.columns[name].dtype == object else "number"

    def column(self, name: str, purpose: str) -> Array:
        """A column by its name; raise a `TableError` with the nearest name where there is none."""
        if name not in self.columns:
            raise TableError(f"{self.file} has no column {name!r} {purpose}.{did_you_mean(name, self.names)}")
        return self.columns[name]

    def table(self, names: Sequence[str]) -> Table:
        """Some columns as the `Table` that estimators take."""
        return _table(self.columns, {name: self.kind(name) for name in names})

    def describe(self, names: Sequence[str] | None = None) -> list[Described]:
        """Describe these columns, by default all."""
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
        if distinct < self.rows or self.rows < _ROWS_WITH_NAMES:
            return False
        return kind == "category" or bool((np.abs(np.diff(values)) == 1).all())


def load_table(
    source: Source,
    as_text: Collection[str] = (),
    unread: Collection[str] = (),
    needed: Collection[str] | None = None,
) -> Loaded:
    """Read a whole table.

    Args:
        source: The file.
        as_text: Columns that are categories whatever they hold, if the file has them.
        unread: Columns that nobody needs, so they may hold what a table cannot.
        needed: If given, all other columns are as those of ``unread``.
    """
    columns: dict[str, Array]
    guesses: dict[str, Guess] = {}
    if source.is_parquet:
        from stepless.tabular.tables import parquet  # noqa: PLC0415 - needs pyarrow

        rows, names = parquet.shape(source)
        unread = {*unread, *(set(names) - set(names if needed is None else needed))}
        text = [name for name in names if name in as_text and name not in unread]
        others = [name for name in names if name not in as_text and name not in unread]
        parts = [{**plain, **as_is} for _, plain, as_is in parquet.batches(source, others, _rows_of(len(names)), text)]
        columns = {name: np.full(rows, None, object) if name in unread else _joined(parts, name) for name in names}
    else:
        guesses = _guess(source, {*as_text, *unread}, needed)
        kinds = {name: guess.kind for name, guess in guesses.items()}
        parts = [part for part, _ in _text_chunks(source, kinds, ())]
        columns = {name: _joined(parts, name) for name in kinds}
    if not columns:
        raise TableError(f"{source.name} has no columns.")
    rows = len(next(iter(columns.values())))
    if rows == 0:
        raise TableError(f"{source.name} has a header and no rows.")
    for name, values in columns.items():
        _check_finite(source, values, name, 1)
    odd = {name: (*guess.odd, guess.found) for name, guess in guesses.items() if guess.odd is not None}
    decimal_comma = any(guess.decimal_comma for guess in guesses.values())
    return Loaded(source.name, source.stem, columns, rows, odd, decimal_comma)


def _joined(parts: Sequence[Mapping[str, Array]], name: str) -> Array:
    return np.concatenate([part[name] for part in parts]) if parts else np.empty(0)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows to predict: the columns of a model, and others as text, to be written beside the predictions."""

    table: Table
    kept: dict[str, list[str]]


def read_chunks(source: Source, kinds: Mapping[str, Kind], keep: Sequence[str] = ()) -> Iterator[Chunk]:
    """Read a table in chunks of rows, in bounded memory, with columns of given kinds.

    Other columns are passed over; the order of columns does not matter.

    Args:
        source: The file.
        kinds: The columns to read, and their kinds.
        keep: Columns to hand on as text.
    """
    if not source.is_parquet:
        for columns, kept in _text_chunks(source, kinds, keep):
            yield Chunk(_table(columns, kinds), kept)
        return
    from stepless.tabular.tables import parquet  # noqa: PLC0415 - needs pyarrow

    _, there = parquet.shape(source)
    _check_wanted(source, list(there), [*kinds, *keep])
    # as floats, long integers would lose digits, and true would be 1
    exact = [name for name, kind in kinds.items() if kind == "category" and there[name]]
    others = [name for name in kinds if name not in exact]
    step = _rows_of(len(kinds) + len(keep))
    for first, plain, text in parquet.batches(source, others, step, [*exact, *keep]):
        columns = {
            name: text[name] if name in exact else _as_kind(source, plain[name], name, kind, first)
            for name, kind in kinds.items()
        }
        yield Chunk(_table(columns, kinds), {name: ["" if v is None else v for v in text[name]] for name in keep})


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


def _guess(source: Source, as_text: Collection[str], needed: Collection[str] | None) -> dict[str, Guess]:
    """Find the kinds of the columns of a file of text from all rows; what nobody needs stays text."""
    rows = Rows(source)
    try:
        comma = rows.delimiter == ";"
        guessed = set(rows.header if needed is None else needed) - set(as_text)
        guesses = {name: Guess(decimal_comma=comma, number=name in guessed) for name in rows.header}
        for first, chunk in rows.chunks(_rows_of(len(rows.header))):
            for guess, cells in zip(guesses.values(), zip(*chunk, strict=True), strict=True):
                guess.look(cells, first)
    finally:
        rows.close()
    return guesses


def _text_chunks(
    source: Source, kinds: Mapping[str, Kind], keep: Sequence[str]
) -> Iterator[tuple[dict[str, Array], dict[str, list[str]]]]:
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
                    columns[name] = (
                        numbers(own, decimal_comma=rows.delimiter == ";")
                        if kind == "number"
                        else object_array(words(own))
                    )
                except CellError as error:
                    raise _misplaced(source, first, name, error) from None
            yield columns, {name: list(cells[places[name]]) for name in keep}
    finally:
        rows.close()


def _rows_of(width: int) -> int:
    return max(1, min(_ROWS, _CELLS // max(1, width)))


def _misplaced(source: Source, first: int, name: str, error: CellError) -> TableError:
    return TableError(f"{source.name}, row {first + error.place}, column {name!r} {error}.")


# ---------------------------------------------------------------------------------------------------------------------
# Parquet
# ---------------------------------------------------------------------------------------------------------------------


def _check_finite(source: Source, values: Array, name: str, first: int) -> None:
    if values.dtype != object and np.isinf(values).any():
        row = first + int(np.flatnonzero(np.isinf(values))[0])
        raise TableError(f"{source.name}, row {row}, column {name!r} holds an infinite value, which is no number.")


def _as_kind(source: Source, values: Array, name: str, kind: Kind, first: int) -> Array:
    """A column as the kind that a model takes it for; numbers that are categories to it become text."""
    _check_finite(source, values, name, first)
    if kind == "number" and values.dtype == object:
        try:
            return numbers(["" if value is None else value for value in values])
        except CellError as error:
            raise _misplaced(source, first, name, error) from None
    if kind == "category" and values.dtype != object:
        return Table((name,), ("number",), len(values), (values,)).text(0)
    return values
