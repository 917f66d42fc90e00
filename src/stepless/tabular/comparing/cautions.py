"""Warnings about data that may not support the verdict of a comparison, found before anything is fitted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.extras import needs
from stepless.tabular.outcome import Column
from stepless.tabular.tables.cells import are_dates, formatted, is_number
from stepless.tabular.tables.frames import Table
from stepless.tasks import Task

with needs("compare needs scikit-learn", "sklearn", "sklearn"):
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

#: With fewer rows of a class, a single one of them changes the score of a fold noticeably.
_FEW = 50
#: The smallest share of rows with a duplicate in another fold that is worth a warning.
_EQUAL_SHARE = 0.01
#: A single column with this balanced accuracy is the target under another name, or a consequence of it.
_TELLS = 0.995
#: With few rows one held-out error is forgiven, because a row next to the cut may fall on the wrong side; but no
#: balanced accuracy below this.
_NEARLY = 0.98
#: A cut without an error among this many rows of each class is not luck.
_PERFECT = 20
#: Beyond it numbers are scaled for the trees of scikit-learn, which compute with float32.
_LARGE = 1e30
#: How many rows are examined for leaks, and how many of each class are needed.
_EXAMINED, _FEWEST = 5000, 5
#: A column with more categories than this is more likely an identifier than a feature.
_LEVELS = 50
_NAMES = re.compile(
    r"(?:^|[_\W])(?:ids?|uuid|guid|key|user|patient|subject|person|customer|client|account|household|family|session"
    r"|device|group|cluster|site|participant|student|employee)(?:$|[_\W])|Id$|ID$",
    re.IGNORECASE,
)
#: How many columns or classes one kind of warning names.
_SHOWN = 5
#: Fewer folds than this, over all repeats, support hardly any conclusion.
_FOLDS = 5


def describe_columns(table: Table) -> tuple[Column, ...]:
    """Describe the columns: name, kind, number of missing and of distinct values.

    Example:
        >>> from stepless.tabular.tables.frames import read_table
        >>> describe_columns(read_table([[1.5, "a"], [2.5, None]]))[1]
        Column(name='1', kind='category', missing=1, distinct=1)
    """
    described = []
    for i in range(table.width):
        codes = _codes(table, i)
        missing = int((codes < 0).sum())
        name = str(i) if table.names is None else table.names[i]
        described.append(Column(name, table.kinds[i], missing, int(codes.max(initial=-1)) + 1))
    return tuple(described)


def find_cautions(
    table: Table,
    columns: Sequence[Column],
    target: NDArray[np.int64],
    task: Task,
    names: Sequence[Any],
    folds: NDArray[np.integer[Any]],
    *,
    asked: int | None = None,
    grouped: bool = False,
) -> list[str]:
    """Return a sentence for everything that makes a comparison on these data doubtful.

    Args:
        table: The rows.
        columns: From `describe_columns`.
        target: 0 and 1, class indices, or 0 and 1 for each label.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        names: Names of the classes (binary: negative, positive) or of the labels.
        folds: The fold of each row in each repeat, ``(repeats, rows)``.
        asked: How many folds were requested; None for as many as there are.
        grouped: Whether the folds keep groups of rows together.
    """
    parts = int(folds.max()) + 1
    asked = parts if asked is None else asked
    texts = {i: _some_texts(table, i) for i, c in enumerate(columns) if c.kind == "category"}
    dated = [i for i, found in texts.items() if columns[i].distinct > _LEVELS and are_dates(found)]
    written = {i: text for i, found in texts.items() if i not in dated and (text := _formatted(found)) is not None}
    vast = [i for i, c in enumerate(columns) if c.kind == "number" and _is_vast(table.column(i))]
    told_apart = [c for i, c in enumerate(columns) if i not in vast]
    found = [
        *_lowered_folds(target, task, names, parts, asked, grouped=grouped),
        *_few_folds(folds.shape[0] * parts, lowered=parts < asked),
        *_few_rows(target, task, names, parts),
        *_absent_classes(target, task, names, folds),
        *_constant_columns(told_apart, table.rows),
        *_vast_columns([columns[i].name for i in vast]),
        *_target_columns(table, columns, target, task, names),
        *_formatted_columns(columns, written),
        *_dated_columns([columns[i].name for i in dated]),
        *([] if grouped else _group_columns(table, columns, {*written, *vast, *dated})),
    ]
    return found + _equal_rows(table, target, folds)


def _presence(target: NDArray[np.int64], task: Task, names: Sequence[Any]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Each class or label as text, and a mask of its rows."""
    if task == "multilabel":
        return [(f"label {name!r}", target[:, i] == 1) for i, name in enumerate(names)]
    return [(f"class {name!r}", target == i) for i, name in enumerate(names)]


def _lowered_folds(
    target: NDArray[np.int64], task: Task, names: Sequence[Any], folds: int, asked: int, *, grouped: bool
) -> list[str]:
    if folds == asked:
        return []
    has = f"the rarest class is in {folds} groups"
    if not grouped:
        rarest = next(name for name, rows in _presence(target, task, names) if rows.sum() == folds)
        has = f"{rarest} has {folds} rows"
    return [
        f"{has}, so there are {folds} folds and not {asked}: in a fold without it, a metric that asks for it would be"
        " 0/0."
    ]


def _few_folds(folds: int, *, lowered: bool) -> list[str]:
    if folds >= _FOLDS:
        return []
    more = "repeat them" if lowered else f"take {_FOLDS} or more, or repeat them,"
    return [f"the answer rests on {folds} folds, which differ by chance: {more} before you rely on it."]


def _few_rows(target: NDArray[np.int64], task: Task, names: Sequence[Any], folds: int) -> list[str]:
    counts = {name: int(rows.sum()) for name, rows in _presence(target, task, names)}
    few = sorted((n, name) for name, n in counts.items() if 0 < n < _FEW)
    if not few:
        return []
    n, name = few[0]
    have = "has" if len(few) == 2 else "have"
    others = f" (and {len(few) - 1} more {have} fewer than {_FEW})" if len(few) > 1 else ""
    each = str(n // folds) if n % folds == 0 else f"{n // folds} or {n // folds + 1}"
    return [
        f"{name} has {n} row{'s' * (n != 1)}, {each} a fold{others}: a single row changes a fold's score noticeably,"
        " so only large differences can be seen."
    ]


def _absent_classes(
    target: NDArray[np.int64], task: Task, names: Sequence[Any], folds: NDArray[np.integer[Any]]
) -> list[str]:
    parts = int(folds.max()) + 1
    said = []
    for name, rows in _presence(target, task, names):
        lacking = sum(int((np.bincount(fold[rows], minlength=parts) == 0).sum()) for fold in folds)
        mend = "Lower folds, or give more of its rows." if rows.any() else "No row has it: leave it out."
        if lacking:
            said.append(
                f"{name} is missing from {lacking} of {folds.shape[0] * parts} test folds, whose scores say nothing"
                f" about it: a metric that is 0/0 there counts as 0, and lowers the mean. {mend}"
            )
    return said[:_SHOWN]


def _is_vast(values: NDArray[Any]) -> bool:
    """Whether a column holds whole numbers, some of them too large for float64 to tell neighbours apart."""
    known = values[~np.isnan(values)]
    return len(known) > 0 and bool((np.abs(known) >= 2.0**53).any()) and bool((known % 1 == 0).all())


def _vast_columns(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    them = "it" if len(names) == 1 else "them"
    return [
        f"{_listed(names, 'holds', 'hold')} whole numbers of 16 digits and more, of which only the first can be told"
        f" apart. If they name something, drop {them}, or pass {them} as groups."
    ]


def _constant_columns(columns: Sequence[Column], rows: int) -> list[str]:
    same = [c.name for c in columns if c.distinct == 0 or (c.distinct == 1 and c.missing == 0 and rows > 1)]
    if not same:
        return []
    return [f"{_listed(same)} the same value in every row, and tell{'s' * (len(same) == 1)} nothing."]


def _target_columns(
    table: Table, columns: Sequence[Column], target: NDArray[np.int64], task: Task, names: Sequence[Any]
) -> list[str]:
    rows = np.arange(len(target))
    if len(rows) > _EXAMINED:
        rows = np.sort(np.random.default_rng(0).choice(rows, _EXAMINED, replace=False))
    if task == "multilabel":
        goals = [(f"label {name!r}", target[rows, i]) for i, name in enumerate(names)]
    else:
        goals = [("the target", target[rows])]
    said = []
    for what, goal in goals:
        present, counts = np.unique(goal, return_counts=True)
        if len(present) < 2 or counts.min() < _FEWEST:
            continue
        telling = [
            column.name
            for i, column in enumerate(columns)
            if column.distinct > 1 and _tells(table, i, column, rows, goal)
        ]
        if telling:
            said.append(
                f"{_listed(telling, 'nearly equals', 'nearly equal')} {what}: by itself it tells the classes apart. If"
                " it is not known before the target is, drop it."
            )
    return said[:_SHOWN]


def _tells(table: Table, i: int, column: Column, rows: NDArray[Any], goal: NDArray[np.int64]) -> bool:
    """Whether one column alone separates the classes, measured by balanced accuracy."""
    classes = int(goal.max()) + 1
    if column.kind == "category":
        codes = _codes(table, i)[rows] + 1
        if column.distinct > _LEVELS:
            return False
        counts = np.zeros((column.distinct + 1, classes))
        np.add.at(counts, (codes, goal), 1)
        share = counts / np.maximum(counts.sum(0), 1)
        return bool(balanced_accuracy_score(goal, share.argmax(1)[codes]) >= _TELLS)
    values = table.column(i)[rows].astype(np.float64)
    sizes = np.unique(goal, return_counts=True)[1]
    cut = _best_cut(values, goal)
    if cut == 1 and len(sizes) == 2 and sizes.min() >= _PERFECT:
        return True
    # a class between two others needs two cuts, each of which shows half; only then is a tree worth its time
    if cut < 0.5 * _TELLS:
        return False
    # a leaf for each class and one to spare: a deeper tree would memorise noise
    largest = np.nanmax(np.abs(values), initial=0)
    if largest > _LARGE:
        values = values / largest
    tree = DecisionTreeClassifier(max_leaf_nodes=classes + 1, class_weight="balanced", random_state=0)
    # shuffled, because in a sorted file a fold of neighbouring rows would hold values that no other fold has
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    decided = cross_val_predict(tree, values.reshape(-1, 1), goal, cv=folds)
    one_error = 1 - 1 / (len(sizes) * sizes.min())
    return bool(balanced_accuracy_score(goal, decided) >= max(_NEARLY, min(_TELLS, one_error - 1e-9)))


def _best_cut(values: NDArray[np.float64], goal: NDArray[np.int64]) -> float:
    """How well one cut of the values separates any class from the rest: from 0, not at all, to 1, without error."""
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.diff(values[order], append=np.inf) != 0)
    best = 0.0
    for k in np.unique(goal):
        here = goal[order] == k
        inside = np.cumsum(here)[ends] / here.sum()
        outside = np.cumsum(~here)[ends] / (~here).sum()
        best = max(best, float(np.abs(inside - outside).max()))
    return best


def _some_texts(table: Table, i: int) -> list[str]:
    """The distinct texts of a category, thinned out if there are very many."""
    texts = sorted({str(value).strip() for value in table.column(i).tolist() if value is not None})
    return texts[:: max(1, len(texts) // _EXAMINED)]


def _formatted(texts: Sequence[str]) -> str | None:
    """A text that keeps a column of numbers from being read as such: a formatted number, or no number at all."""
    if (otherwise := formatted(texts)) is not None:
        return otherwise
    plain = [text for text in texts if is_number(text)]
    # whole numbers may be identifiers such as 007; numbers with a fraction are not
    fractions = sum("." in text for text in plain)
    return next((text for text in texts if text not in plain), None) if 2 * fractions > len(texts) else None


def _formatted_columns(columns: Sequence[Column], written: Mapping[int, str]) -> list[str]:
    said = []
    for i, text in list(written.items())[:_SHOWN]:
        if formatted([text]) is not None:
            what, mend = f"formatted numbers, such as {text!r}, which make", "write plain numbers, as in 1234.5"
        else:
            what, mend = f"numbers and the text {text[:40]!r}, which makes", "make that a missing value"
        said.append(f"column {columns[i].name!r} holds {what} it one of categories: {mend}.")
    return said


def _dated_columns(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"{_listed(names, 'holds', 'hold')} dates or times, each of them a category, and nothing is known of a new one:"
        " write numbers, such as the year, the day of the week, or the days since an event."
    ]


def _group_columns(table: Table, columns: Sequence[Column], written: Collection[int]) -> list[str]:
    groups, identifiers = [], []
    for i, column in enumerate(columns):
        present = table.rows - column.missing
        if column.distinct < 2 or present == 0 or i in written:
            continue
        named = _NAMES.search(column.name) is not None
        category = column.kind == "category"
        whole = category or _is_whole(table.column(i))
        counting = whole and not category and bool((np.diff(table.column(i)) == 1).all())
        each = present / column.distinct  # rows per value
        if column.distinct == present and present >= 20 and (category or (named and whole) or counting):
            identifiers.append(column.name)
        elif (named and whole and each > 1 and column.distinct >= 10) or (
            category and column.distinct > _LEVELS and 1.5 <= each <= 20
        ):
            groups.append(column.name)
    said = []
    if groups:
        said.append(
            f"{_listed(groups, 'looks', 'look')} like the name of a group, with several rows each. If rows of a group"
            " resemble each other and new data will bring new groups, pass it as groups, and drop it from the columns."
        )
    if identifiers:
        them = "it" if len(identifiers) == 1 else "them"
        said.append(f"{_listed(identifiers)} a different value in every row, and can only be memorised; drop {them}.")
    return said


def _equal_rows(table: Table, target: NDArray[np.int64], folds: NDArray[np.integer[Any]]) -> list[str]:
    keys = [np.unique(_codes(table, i), return_inverse=True)[1] for i in range(table.width)]
    keys += [np.asarray(part) for part in target.reshape(len(target), -1).T]
    place = np.zeros(len(target), np.int64)
    for key in keys:
        # the rank of a pair stays below rows², which fits 64 bits for any table that fits into memory
        place = np.unique(place * (int(key.max()) + 1) + key, return_inverse=True)[1]
        if int(place.max()) + 1 == len(place):
            return []
    fold = folds[0].astype(np.int64)
    low, high = np.full(int(place.max()) + 1, 2**15), np.full(int(place.max()) + 1, -1)
    np.minimum.at(low, place, fold)
    np.maximum.at(high, place, fold)
    across = int((low != high)[place].sum())
    if across < max(2, _EQUAL_SHARE * len(place)):
        return []
    return [
        f"{across} rows ({across / len(place):.0%}) have a duplicate, target included, in another fold, so models are"
        " tested on rows that they were trained on. If these are the same case twice, drop the duplicates; if they"
        " belong together, pass groups."
    ]


def _codes(table: Table, i: int) -> NDArray[np.int64]:
    """Codes of the values of a column, from 0; −1 for a missing value."""
    values = table.column(i)
    missing = values == None if table.kinds[i] == "category" else np.isnan(values)  # noqa: E711 - elementwise
    codes = np.full(len(values), -1, np.int64)
    kept = values[~missing]
    codes[~missing] = np.unique(kept.astype(str) if kept.dtype == object else kept, return_inverse=True)[1]
    return codes


def _is_whole(values: NDArray[Any]) -> bool:
    finite = values[np.isfinite(values)]
    return bool((finite == np.round(finite)).all())


def _listed(names: Sequence[str], one: str = "has", many: str = "have") -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return f"column {shown} {one}" if len(names) == 1 else f"columns {shown} {many}"
