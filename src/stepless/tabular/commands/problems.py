"""Read the table of a command and split it into features, target, weights and groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.commands.console import grid, note, notes
from stepless.tabular.outcome import clip
from stepless.tabular.tables.cells import CellError, numbers, shown
from stepless.tabular.tables.files import Source, TableError, did_you_mean
from stepless.tabular.tables.frames import Table
from stepless.tabular.tables.reading import Described, Loaded, load_table

Array = NDArray[Any]

#: A target of numbers may have this many distinct values and count as classes; whole numbers even more, if each has
#: this many rows on average.
_FEW_CLASSES = 20
_YES_NO = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0}
#: How pandas names an unnamed index in Parquet: row numbers, which are no feature.
_INDEX = re.compile(r"__index_level_\d+__")
#: The most columns of a table to show, those with a note first.
_SHOWN = 24


@dataclass(frozen=True, eq=False)
class Labels:
    """A multilabel target with names: the part of a data frame that `stepless.compare` needs."""

    columns: tuple[str, ...]
    values: Array

    def to_numpy(self) -> Array:
        """The values ``(N, labels)``."""
        return self.values


@dataclass(frozen=True, eq=False)
class Problem:
    """A table split into what a comparison or a fit needs.

    Attributes:
        name: Name of the table.
        X: The features.
        y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
        labels: Multilabel: the names of the labels.
        positive: The positive class, if one was named.
        weight: The row weights.
        groups: The group of each row.
        columns: Descriptions of the features.
    """

    name: str
    X: Table
    y: Array
    labels: tuple[str, ...] | None
    positive: Any
    weight: Array | None
    groups: Array | None
    columns: tuple[Described, ...]

    @property
    def target(self) -> Any:
        """The target for `stepless.compare`."""
        return self.y if self.labels is None else Labels(self.labels, self.y)


def read_problem(
    source: Source,
    target: str,
    *,
    positive: str | None = None,
    weight: str | None = None,
    groups: str | None = None,
    drop: Sequence[str] = (),
    task: str | None = None,
) -> Problem:
    """Read a table and split it.

    Args:
        source: The file.
        target: The column to predict, or several, separated by commas.
        positive: The positive class, as text.
        weight: A column of weights.
        groups: A column of groups.
        drop: Columns to leave out.
        task: The task that the target must be; None for any.
    """
    # target and groups are read as text, in which 01 and true differ from 1 and every digit of a long number counts;
    # dropped columns may hold anything
    plain = [name for part in (target, groups or target) for name in (part, *parts(part)) if name != weight]
    unread = [name for part in drop for name in (part, *parts(part)) if name not in (*plain, weight)]
    table = load_table(source, as_text=plain, unread=unread)
    targets = [target] if target in table.columns else parts(target)
    for name in targets or [target]:  # there are no parts if it is only a comma
        table.column(name, "for the target")
    if len(set(targets)) < len(targets):
        raise TableError(f"the target names a column twice: {target}.")
    dropped = [name for part in drop for name in ([part] if part in table.columns else parts(part))]
    for name in dropped:
        table.column(name, "to drop")
        if name in targets:
            raise TableError(f"the column {name!r} cannot be the target and dropped as well.")
    for other, what in ((weight, "weights"), (groups, "groups")):
        if other is not None:
            table.column(other, f"for the {what}")
            if other in targets:
                raise TableError(f"the column {other!r} cannot be the target and the {what} as well.")
    aside = {*targets, *dropped, weight, groups}
    features = tuple(name for name in table.names if name not in aside and not _INDEX.fullmatch(name))
    if not features:
        raise TableError(f"{table.file} has no columns left to predict {target!r} from.")
    labels: tuple[str, ...] | None = None
    if len(targets) > 1 or task == "multilabel":
        y: Array = np.stack([yes_no_of(table, name) for name in targets], 1)
        labels = tuple(targets)
        if task not in (None, "multilabel"):
            raise TableError(f"--task {task} has one target; {target!r} names {len(targets)}.")
        if positive is not None:
            raise TableError("--positive is for one target with two classes; several targets are 0 and 1.")
    else:
        y = classes_of(table, targets[0])
        _check_count(table, targets[0], len(np.unique(y)), positive, task)
    return Problem(
        table.stem,
        table.table(features),
        y,
        labels,
        None if labels else positive_of(table, targets[0], y, positive),
        None if weight is None else weights_of(table, weight),
        None if groups is None else _groups(table, groups),
        tuple(table.describe(features)),
    )


def _check_count(table: Loaded, name: str, classes: int, positive: str | None, task: str | None) -> None:
    """Raise for options that do not fit this number of classes."""
    if positive is not None and classes > 2:
        raise TableError(f"--positive is for two classes; {table.file}, column {name!r} has {classes}.")
    if task is not None and task != ("binary" if classes == 2 else "multiclass"):
        raise TableError(f"--task {task} does not fit {table.file}, column {name!r}, which has {classes} classes.")


def show_columns(problem: Problem) -> None:
    """Print the inferred type of each column on standard error."""
    kinds = [column.kind for column in problem.columns]
    rows, width = problem.y.shape[0], len(kinds)
    count, categories = kinds.count("number"), kinds.count("category")
    note(f"{problem.name}: {rows:,} rows, {width:,} columns ({count:,} of numbers, {categories:,} of categories)")
    columns = sorted(problem.columns, key=lambda c: not c.note) if width > _SHOWN else list(problem.columns)
    cells = [(clip(c.name, 40), c.kind, f"{c.missing:,}", f"{c.distinct:,}", c.note) for c in columns[:_SHOWN]]
    notes().print(grid(("column", "taken as", "missing", "distinct", ""), cells, right=(2, 3)))
    if width > _SHOWN:
        note(f"… and {width - _SHOWN:,} more columns")


def parts(text: str) -> list[str]:
    """Split names separated by commas.

    >>> parts("a, b")
    ['a', 'b']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def classes_of(table: Loaded, name: str) -> Array:
    """Return the labels: integers if all are written as Python writes them, otherwise the text of the table."""
    cells = _complete(table, name)
    distinct = sorted(set(cells))
    if len(distinct) < 2:
        raise TableError(
            f"{table.file}, column {name!r} has one class only ({distinct[0]!r}): there is nothing to decide."
        )
    values = _numbers(distinct)
    whole = values is not None and bool((values % 1 == 0).all())
    many = len(distinct) > _FEW_CLASSES
    fewest = 2 if values is None else _FEW_CLASSES if whole else table.rows + 1
    if many and table.rows < fewest * len(distinct):
        raise TableError(
            f"{table.file}, column {name!r} has {len(distinct):,} different values in {table.rows:,} rows: it is a"
            " quantity or a name, and not a few classes. Choose another target, or make classes of it."
        )
    if values is None or not whole or (np.abs(values) >= 2.0**53).any():
        return cells
    if any(str(int(value)) != label for value, label in zip(values, distinct, strict=True)):
        return cells  # 1.0, +1 and 01 stay text, so that predictions are spelled as in the table
    return cells.astype(np.int64)


def _numbers(distinct: Sequence[str]) -> Array | None:
    """Return labels as numbers; None if one is a word, such as true."""
    try:
        return None if any(label.lower() in ("true", "false") for label in distinct) else numbers(distinct)
    except CellError:
        return None


def _complete(table: Loaded, name: str) -> Array:
    """Return a column; raise if a value is missing."""
    values = table.columns[name]
    missing = np.array([v is None for v in values]) if values.dtype == object else np.isnan(values)
    if missing.any():
        row = int(np.flatnonzero(missing)[0]) + 1
        more = f" ({int(missing.sum()):,} rows in all)" if missing.sum() > 1 else ""
        raise TableError(f"{table.file}, row {row}, column {name!r} has no value{more}. Leave out such rows.")
    return values


def yes_no_of(table: Loaded, name: str) -> Array:
    """Return one of several labels as 0 and 1."""
    cells = _complete(table, name)
    found = [_YES_NO.get(str(cell).lower()) for cell in cells]
    if None in found:
        row = found.index(None)
        raise TableError(
            f"{table.file}, row {row + 1}, column {name!r} holds {shown(str(cells[row]))}; one of several targets is 0"
            " or 1."
        )
    return np.array(found, dtype=np.int64)


def sorted_classes(y: Array) -> list[Any]:
    """Return the distinct labels in order, which is numeric if all are numbers, even if they are stored as text."""
    classes: list[Any] = np.unique(y).tolist()
    values = _numbers([str(label) for label in classes])
    return classes if values is None else [classes[place] for place in np.argsort(values, kind="stable")]


def positive_of(table: Loaded, name: str, y: Array, positive: str | None) -> Any:
    """Return the named class as the labels have it; without a name, the text for 1 or true, if there is one."""
    classes = np.unique(y).tolist()
    if positive is None:
        return _usual(classes) if y.dtype == object else None
    for known in classes:
        if str(known) == positive:
            return known
    known_text = [str(known) for known in classes]
    near = did_you_mean(positive, known_text).replace("The columns are", "Its classes are")
    raise TableError(f"{table.file}, column {name!r} has no class {positive!r}.{near}")


def _usual(classes: Sequence[str]) -> str | None:
    """Return the text for 1 of classes that are texts for 0 and 1, −1 and 1, or false and true."""
    try:
        values = numbers(classes).tolist()
    except CellError:
        return None
    return classes[values.index(1)] if sorted(values) in ([0, 1], [-1, 1]) else None


def weights_of(table: Loaded, name: str) -> Array:
    """Return a column of weights."""
    if table.columns[name].dtype == object:
        raise TableError(f"{table.file}, column {name!r} holds text; weights are numbers.{odd_cell(table, name)}")
    values = _complete(table, name)
    if (values < 0).any():
        row = int(np.flatnonzero(values < 0)[0])
        raise TableError(f"{table.file}, row {row + 1}, column {name!r} holds {values[row]:g}; a weight is 0 or more.")
    if not values.any():
        raise TableError(f"{table.file}, column {name!r}: every weight is 0.")
    return values


def odd_cell(table: Loaded, name: str) -> str:
    """Return a sentence about the first cell that is not a number in a column of numbers, if there is one."""
    return f" Row {table.odd[name][0]} holds {shown(table.odd[name][1])}." if name in table.odd else ""


def _groups(table: Loaded, name: str) -> Array:
    return np.unique(_complete(table, name).astype(str), return_inverse=True)[1]
