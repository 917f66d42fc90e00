"""From a file and the options of a command to what a comparison or a fit takes: features, target, weights, groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.commands.console import grid, note, notes
from stepless.tables.cells import CellError, numbers, shown
from stepless.tables.files import Source, TableError, did_you_mean
from stepless.tables.frames import Table
from stepless.tables.reading import Described, Loaded, load_table

Array = NDArray[Any]

#: A target of numbers may have so many different values and still be classes; of whole numbers even more, if each has
#: as many rows on average.
_FEW_CLASSES = 20
_YES_NO = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0}
#: What pandas calls an index without a name when it writes Parquet: the numbers of rows, which tell nothing of them.
_INDEX = re.compile(r"__index_level_\d+__")
#: Of a wide table so many columns are shown, those with something to say first.
_SHOWN = 24


@dataclass(frozen=True, eq=False)
class Labels:
    """Several labels of 0 and 1, with their names: as much of a frame as `stepless.compare` asks of a target."""

    columns: tuple[str, ...]
    values: Array

    def to_numpy(self) -> Array:
        """The values ``(N, labels)``."""
        return self.values


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked about a table.

    Attributes:
        name: Of the table.
        X: The features.
        y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
        features: The features' names.
        labels: The labels' names, where there are several.
        positive: The positive class, if one was named.
        weight: Of the rows.
        groups: Of the rows: those of a group stay together.
        columns: What the features are.
    """

    name: str
    X: Table
    y: Array
    features: tuple[str, ...]
    labels: tuple[str, ...] | None
    positive: Any
    weight: Array | None
    groups: Array | None
    columns: tuple[Described, ...]

    @property
    def target(self) -> Any:
        """The target as `stepless.compare` takes it, several labels with their names."""
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
    """Read a table and take it apart.

    Args:
        source: The file.
        target: The column to predict, or several with commas between them.
        positive: The positive class, as text.
        weight: A column of weights.
        groups: A column of groups.
        drop: Columns to leave out.
        task: What the user says it is.
    """
    # the target and groups are read as they are written: 01 is not 1, true is not 1 either, and of long numbers every
    # digit counts; what is dropped may be anything
    plain = [name for part in (target, groups or target) for name in (part, *parts(part)) if name != weight]
    unread = [name for part in drop for name in (part, *parts(part)) if name not in (*plain, weight)]
    table = load_table(source, as_text=[*plain, *unread], unread=unread)
    targets = [target] if target in table.columns else parts(target)
    for name in targets or [target]:  # of a comma alone there are none
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
        features,
        labels,
        None if labels else positive_of(table, targets[0], y, positive),
        None if weight is None else weights_of(table, weight),
        None if groups is None else _groups(table, groups),
        tuple(table.describe(features)),
    )


def _check_count(table: Loaded, name: str, classes: int, positive: str | None, task: str | None) -> None:
    """Raise for options that do not go with so many classes."""
    if positive is not None and classes > 2:
        raise TableError(f"--positive is for two classes; {table.file}, column {name!r} has {classes}.")
    if task is not None and task != ("binary" if classes == 2 else "multiclass"):
        raise TableError(f"--task {task} does not fit {table.file}, column {name!r}, which has {classes} classes.")


def show_columns(problem: Problem) -> None:
    """Say on standard error what the columns were taken for."""
    kinds = [column.kind for column in problem.columns]
    rows, width = problem.y.shape[0], len(kinds)
    count, categories = kinds.count("number"), kinds.count("category")
    note(f"{problem.name}: {rows:,} rows, {width:,} columns ({count:,} of numbers, {categories:,} of categories)")
    columns = sorted(problem.columns, key=lambda c: not c.note) if width > _SHOWN else list(problem.columns)
    cells = [
        (c.name if len(c.name) <= 40 else c.name[:39] + "…", c.kind, f"{c.missing:,}", f"{c.distinct:,}", c.note)
        for c in columns[:_SHOWN]
    ]
    notes().print(grid(("column", "taken as", "missing", "distinct", ""), cells, right=(2, 3)))
    if width > _SHOWN:
        note(f"… and {width - _SHOWN:,} columns more")


def parts(text: str) -> list[str]:
    """Names with commas between them.

    >>> parts("a, b")
    ['a', 'b']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def classes_of(table: Loaded, name: str) -> Array:
    """The labels: whole numbers where each is written as Python writes one, otherwise text as it is written."""
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
        return cells  # 1.0, +1 and 01 stay as they are, so that predictions are spelt as the table is
    return cells.astype(np.int64)


def _numbers(distinct: Sequence[str]) -> Array | None:
    """Labels as numbers; None where one is a word, as true is."""
    try:
        return None if any(label.lower() in ("true", "false") for label in distinct) else numbers(distinct)
    except CellError:
        return None


def _complete(table: Loaded, name: str) -> Array:
    """A column without missing values."""
    values = table.columns[name]
    missing = np.array([v is None for v in values]) if values.dtype == object else np.isnan(values)
    if missing.any():
        row = int(np.flatnonzero(missing)[0]) + 1
        more = f" ({int(missing.sum()):,} rows in all)" if missing.sum() > 1 else ""
        raise TableError(f"{table.file}, row {row}, column {name!r} has no value{more}. Leave out such rows.")
    return values


def yes_no_of(table: Loaded, name: str) -> Array:
    """One of several labels as 0 and 1."""
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
    """The different labels in order: that of numbers if all are, though they be written 2.0 and 10.0."""
    classes: list[Any] = np.unique(y).tolist()
    values = _numbers([str(label) for label in classes])
    return classes if values is None else [classes[place] for place in np.argsort(values, kind="stable")]


def positive_of(table: Loaded, name: str, y: Array, positive: str | None) -> Any:
    """The class that was named, as the labels have it; where none was, 1 or true, if that is written as text."""
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
    """Of text for 0 and 1, -1 and 1, or false and true: that for 1, which is positive where these are no text."""
    try:
        values = numbers(classes).tolist()
    except CellError:
        return None
    return classes[values.index(1)] if sorted(values) in ([0, 1], [-1, 1]) else None


def weights_of(table: Loaded, name: str) -> Array:
    """A column of weights."""
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
    """A sentence on the first cell that is no number, where others are."""
    return f" Row {table.odd[name][0]} holds {shown(table.odd[name][1])}." if name in table.odd else ""


def _groups(table: Loaded, name: str) -> Array:
    return np.unique(_complete(table, name).astype(str), return_inverse=True)[1]
