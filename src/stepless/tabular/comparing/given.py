"""Read and check the arguments of `stepless.compare`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.metrics import METRICS
from stepless.numerics import is_whole
from stepless.ranking import is_ranking
from stepless.registry import Metric
from stepless.rules import Rule, positive_class
from stepless.tabular.tables.frames import Table, is_missing, read_table
from stepless.targets import read_target
from stepless.tasks import Task

#: Up to this many rows there are two repeats by default; with more, one is enough.
_SMALL = 10_000


def read_rows(X: Any, feature_names: Sequence[str] | None) -> Table:
    """Read the rows, with names for the columns if they are given."""
    table = read_table(X)
    if feature_names is None:
        return table
    names = tuple(map(str, feature_names))
    if len(names) != table.width or len(set(names)) < len(names):
        raise ValueError(
            f"feature_names must be {table.width} different names, one a column; got {len(names)},"
            f" {len(set(names))} of them different."
        )
    return replace(table, names=names)


def read_labels(y: Any) -> tuple[tuple[str, ...] | None, Task, Any]:
    """Return the names of the labels (if y is a frame), the task, and the labels as an array without missing values."""
    names = tuple(map(str, y.columns)) if hasattr(y, "columns") else None
    values = y.to_numpy() if hasattr(y, "to_numpy") else y
    values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values, names = values[:, 0], None
    if values.dtype == object:
        absent = list(map(is_missing, values.flat))
        if any(absent):
            raise ValueError(
                f"y must have a label in every row; {sum(absent)} are missing. Leave out the rows without one."
            )
        values = np.array(values.tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `make_rule` checks for too many classes itself
        task, values = read_target(values)
    return names, task, values


def make_rule(
    found: Task,
    asked: Task | None,
    y: NDArray[Any],
    metric: Any,
    maximize: bool | None,
    metric_options: Mapping[str, Any],
    subject_to: Any,
    average: str | None,
    pos_label: Any,
    seed: int,
    groups: NDArray[np.int64] | None = None,
) -> Rule:
    """Return how labels are encoded and decisions scored; raise for what cannot be compared."""
    if is_ranking(metric):
        raise ValueError(f"compare needs a metric that scores decisions, as 'f1' does; {metric!r} scores a ranking.")
    if average == "none":
        raise ValueError('contestants are compared by one score; average="none" gives one for each class.')
    if found == "multilabel":
        classes = np.arange(y.shape[1])
    else:
        classes, counts = np.unique(y, return_counts=True)
        if len(classes) < 2:
            raise ValueError(f"y has one class only ({classes[0] if len(classes) else 'none'}): nothing to decide.")
        if 2 * len(classes) > max(4, len(y)):
            raise ValueError(
                f"y has {len(classes)} different values in {len(y)} rows: these are no classes. Compare needs a target"
                " with few values, each in many rows."
            )
        found = "binary" if len(classes) == 2 else "multiclass"
        if found == "binary" and counts.min() < 2:
            raise ValueError(
                f"class {classes.tolist()[counts.argmin()]!r} has a single row: held out, none is left to learn from."
                " Each class needs 2 rows at least, and tens of them for an answer."
            )
        if found == "binary" and groups is not None:
            _check_groups(classes, y, groups)
    if asked is not None and asked != found:
        raise ValueError(f"task={asked!r} does not fit y, which is that of a {found} task; leave task out.")
    if found != "binary" and pos_label is not None:
        raise ValueError(f"pos_label={pos_label!r} has no effect on a {found} task; leave it out.")
    positive = positive_class(classes, y, pos_label) if found == "binary" else 0
    named = isinstance(metric, Metric) or (isinstance(metric, str) and metric.strip() in METRICS)
    options = dict(metric_options)
    if maximize is not None and not (named and maximize):
        options["maximize"] = maximize
    rule = Rule(found, classes, positive, "predict_proba", metric, options, subject_to, average, seed)
    rule.check()
    return rule


def counted_rows(
    table: Table, y: NDArray[Any], sample_weight: Any, groups: Any
) -> tuple[Table, NDArray[Any], NDArray[np.float64] | None, NDArray[np.int64] | None]:
    """Check weights and groups, and leave out the rows of weight 0 everywhere."""
    weight, codes = _read_weight(sample_weight, table.rows), _read_groups(groups, table.rows)
    if weight is None or weight.all():
        return table, y, weight, codes
    kept = np.flatnonzero(weight)
    return table.take(kept), y[kept], weight[kept], None if codes is None else codes[kept]


def _read_weight(sample_weight: Any, rows: int) -> NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    try:
        weight = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("sample_weight must be numbers, one a row.") from None
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight must be one number per row, ({rows},); got {weight.shape}.")
    if not np.isfinite(weight).all() or weight.min() < 0 or not weight.any():
        raise ValueError("sample_weight must be finite, nowhere below 0, and above it somewhere.")
    return weight


def _read_groups(groups: Any, rows: int) -> NDArray[np.int64] | None:
    """Return the groups as integers; each row without one is a group of its own."""
    if groups is None:
        return None
    values = np.asarray(groups.to_numpy() if hasattr(groups, "to_numpy") else groups)
    if values.shape != (rows,):
        raise ValueError(f"groups must be one a row, ({rows},); got {values.shape}.")
    texts = np.array([str(value) for value in values.tolist()])
    absent = np.array(list(map(is_missing, values.tolist())), bool)
    codes = np.unique(texts, return_inverse=True)[1].astype(np.int64)
    codes[absent] = codes.max(initial=0) + 1 + np.arange(absent.sum())
    return codes


def _check_groups(classes: NDArray[Any], y: NDArray[Any], codes: NDArray[np.int64]) -> None:
    """Raise if one of two classes is in a single group, so that without the fold of that there is nothing to decide."""
    for place, label in enumerate(classes.tolist()):
        if len(np.unique(codes[y == classes[place]])) < 2:
            raise ValueError(
                f"all rows of class {label!r} are in one group: held out, none is left to learn from. Each class needs"
                " 2 groups at least, and tens of them for an answer."
            )


def read_counts(folds: Any, repeats: Any, seed: Any, rows: int) -> tuple[int, int]:
    """Check the number of folds, repeats and the seed; return folds and repeats."""
    for what, value, least in (
        ("folds", folds, 2),
        ("repeats", 1 if repeats is None else repeats, 1),
        ("seed", seed, 0),
    ):
        if not is_whole(value) or int(value) < least:
            raise ValueError(f"{what} must be a whole number from {least} up; got {value!r}.")
    if rows < folds:
        raise ValueError(f"{rows} rows cannot be divided into {folds} folds; give more rows, or lower folds.")
    if repeats is None:
        repeats = 2 if rows <= _SMALL else 1
    return int(folds), int(repeats)


def class_names(rule: Rule) -> list[Any]:
    """Return the classes in the order of the encoded target."""
    classes = rule.classes.tolist()
    if rule.task == "binary":
        return [classes[1 - rule.positive], classes[rule.positive]]
    return classes
