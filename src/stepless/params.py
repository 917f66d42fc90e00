"""The parameters of an estimator as JSON can hold them: what a saved model remembers of how it was made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: Parameters of where and how a fit runs, which say nothing of the model.
_PASSING = ("checkpoint", "device", "verbose", "n_jobs")


def json_params(estimator: Any) -> dict[str, Any]:
    """The parameters that JSON can hold; functions and other code are left out.

    Example:
        >>> from types import SimpleNamespace
        >>> json_params(SimpleNamespace(get_params=lambda deep: {"metric": "f1", "hidden": (8, 8), "model": len}))
        {'metric': 'f1', 'hidden': [8, 8]}
    """
    plain = {}
    for name, given in estimator.get_params(deep=False).items():
        value = _plain(given)
        if name not in _PASSING and _is_json(value):
            plain[name] = value
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(part) for name, part in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool | int)
