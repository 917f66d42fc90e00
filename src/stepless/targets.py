"""Labels and weights as scikit-learn's users give them, checked and read as arrays."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from stepless.extras import needs
from stepless.tasks import Task

with needs("stepless's estimators need scikit-learn", "sklearn", "sklearn"):
    from sklearn.utils import column_or_1d
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight

_TASKS: dict[str, Task] = {"binary": "binary", "multiclass": "multiclass", "multilabel-indicator": "multilabel"}


def read_target(y: Any, task: Task | None = None) -> tuple[Task, Any]:
    """Convert labels to an array, and find their task unless it is given."""
    y = _without_objects(y.toarray() if hasattr(y, "toarray") else y)
    if task is None:
        kind = type_of_target(y, input_name="y")
        check_classification_targets(y)
        if kind not in _TASKS:
            raise ValueError(f"y must hold one label per row, or 0 and 1 for each label; got {kind}.")
        task = _TASKS[kind]
    if task != "multilabel":
        return task, column_or_1d(y, warn=True)
    y = np.asarray(y)
    if y.ndim != 2 or not np.isin(y, (0, 1)).all():
        raise ValueError(f"multilabel y must hold 0 and 1, one column per label; got {np.unique(y)[:3]}, {y.ndim}-d.")
    return task, y


def read_weight(sample_weight: Any, rows: int) -> Any:
    """Check the weights, one per row; None if there are none."""
    if sample_weight is None:
        return None
    weight = _check_sample_weight(sample_weight, np.empty((rows, 1)), ensure_non_negative=True)
    if not weight.any():  # older versions of scikit-learn do not check this
        raise ValueError("Sample weights must contain at least one non-zero number.")
    with np.errstate(over="ignore"):
        if not np.isfinite(weight.sum()):  # counts would be infinite
            raise ValueError("Sample weights must have a finite sum; divide them by the largest.")
    return weight


def _without_objects(y: Any) -> Any:
    """Convert labels of dtype object to bools, numbers or texts; raise if any are missing or of different kinds."""
    try:
        values = np.asarray(y)
    except ValueError:  # rows of different lengths: scikit-learn raises a better error
        return y
    if values.dtype != object or not values.ndim:
        # scikit-learn would turn a table library's extension types into floats
        return y if isinstance(getattr(y, "dtype", values.dtype), np.dtype) else values
    labels = list(values.flat)
    if any(map(_is_missing, labels)):
        raise ValueError("Input y contains NaN. Leave out the rows that have no label.")
    if labels and all(isinstance(label, Real | np.bool_) for label in labels):
        return np.array(labels).reshape(values.shape)
    texts = [label for label in labels if isinstance(label, str)]
    if texts and len(texts) < len(labels):
        kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
        raise ValueError(f"y must hold labels of one kind, all texts or all numbers; got {kinds}. Use y.astype(str).")
    return y


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
