"""The parameters of an estimator as JSON, which are saved with its model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Parameters of where and how a fit runs, which do not change the model.
_NOT_SAVED = ("checkpoint", "device", "verbose", "n_jobs")
#: Parameters that may be code, which is not saved; a loaded model raises where it would need it.
_MAY_BE_CODE = ("metric", "model")
#: The key of a number that JSON cannot hold.
_MARK = "$float"
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def json_params(estimator: Any) -> dict[str, Any]:
    """The parameters that JSON can hold, with arrays as nested lists; functions and other code are left out.

    Example:
        >>> from types import SimpleNamespace
        >>> json_params(SimpleNamespace(get_params=lambda deep: {"metric": "f1", "hidden": (8, 8), "model": len}))
        {'metric': 'f1', 'hidden': [8, 8]}
    """
    plain = {}
    for name, given in estimator.get_params(deep=False).items():
        # of a Tuning only its threshold, since it also holds the data it was tuned on
        value = _plain(given.threshold if name == "threshold" and hasattr(given, "threshold") else given)
        if name not in _NOT_SAVED and _is_json(value):
            plain[name] = value
    return plain


def from_json(value: Any) -> Any:
    """Restore a value of `json_params`, with the numbers that JSON cannot hold.

    Example:
        >>> from_json({"beta": 2, "zero_division": {"$float": "nan"}})
        {'beta': 2, 'zero_division': nan}
    """
    if isinstance(value, list):
        return [from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    number = value.get(_MARK)
    if len(value) == 1 and isinstance(number, str) and number in _NUMBERS:
        return _NUMBERS[number]
    return {name: from_json(part) for name, part in value.items()}


def check_savable(estimator: Any, names: Sequence[str] | None = None) -> None:
    """Raise if JSON cannot hold the metric's options, and warn of other parameters that will not be saved.

    Args:
        estimator: The estimator to save.
        names: The parameters to save; by default all.
    """
    kept, given = json_params(estimator), estimator.get_params(deep=False)
    wanted = given if names is None else names
    lost = [name for name in wanted if name not in (*kept, *_NOT_SAVED, *_MAY_BE_CODE)]
    if "metric_options" in lost and "metric" in kept:
        raise ValueError(
            "a saved model has metric_options that are numbers, texts, and lists and arrays of them; got"
            f" {str(given['metric_options'])[:200]}. Without them it would score another metric."
        )
    if lost:
        said = ", ".join(f"{name} ({type(given[name]).__name__})" for name in lost)
        warnings.warn(f"a saved model keeps parameters that JSON can hold; not kept: {said}.", stacklevel=3)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist()) if value.dtype.kind not in "mM" else value
    if isinstance(value, float) and not math.isfinite(value):
        return {_MARK: str(value)}
    return value


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(part) for name, part in value.items())
    return value is None or isinstance(value, str | bool | int | float)
