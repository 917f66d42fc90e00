"""Counts that divide and take roots safely at zero, for users' formulas.

A plain ``tp / (tp + fp)`` then has the same value and gradient at zero as the registered metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepless.numerics import Array, maximum, ratio, root


class SafeFormula:
    """A user's function of ``(tp, fp, fn, tn)``, called with counts that divide and take roots safely."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
        result = self.function(SafeCount(tp), SafeCount(fp), SafeCount(fn), SafeCount(tn))
        return result.value if isinstance(result, SafeCount) else result


#: torch's functions that divide 1 by something, and what they divide it by.
_INVERSES: dict[Callable[..., Any], Callable[[Any], Any]] = {torch.reciprocal: lambda x: x, torch.rsqrt: root}


class SafeCount:
    """A count in a user's formula: arithmetic as usual, but ``x / 0`` is 0 and √0 has a zero gradient.

    torch's own functions (``torch.sqrt``, ``torch.minimum`` …) accept it and treat division and roots the same way.
    """

    def __init__(self, value: Array) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [_value(a) for a in args]
        if func in (torch.div, torch.true_divide, torch.divide, Tensor.div, Tensor.__truediv__) and not kwargs:
            return cls(ratio(*plain))
        if func in _INVERSES:
            return cls(ratio(1.0, _INVERSES[func](plain[0])))
        if func is torch.sqrt:
            return cls(root(plain[0]))
        if func in (torch.pow, torch.float_power) and isinstance(plain[-1], (int, float)) and not kwargs:
            return cls(power(*plain))
        named = {k: _value(v) for k, v in (kwargs or {}).items()}
        if isinstance(counts := _first_count(args), np.ndarray | np.generic):  # while tuning thresholds
            result = func(*map(_as_tensors, plain), **named)
            return cls(result.numpy().astype(counts.dtype)) if isinstance(result, Tensor) else result
        result = func(*plain, **named)
        return cls(result) if isinstance(result, Tensor) else result

    def __add__(self, other: Any) -> SafeCount:
        return SafeCount(self.value + _value(other))

    def __sub__(self, other: Any) -> SafeCount:
        return SafeCount(self.value - _value(other))

    def __rsub__(self, other: Any) -> SafeCount:
        return SafeCount(_value(other) - self.value)

    def __mul__(self, other: Any) -> SafeCount:
        return SafeCount(self.value * _value(other))

    def __truediv__(self, other: Any) -> SafeCount:
        return SafeCount(ratio(self.value, _value(other) + 0 * self.value))

    def __rtruediv__(self, other: Any) -> SafeCount:
        return SafeCount(ratio(_value(other), self.value))

    def __pow__(self, exponent: float) -> SafeCount:
        return SafeCount(power(self.value, exponent))

    def __neg__(self) -> SafeCount:
        return SafeCount(-self.value)

    def __abs__(self) -> SafeCount:
        return SafeCount(abs(self.value))

    def sqrt(self) -> SafeCount:
        """The safe square root."""
        return SafeCount(root(self.value))

    def _refuse(self, *_: Any) -> bool:
        raise ValueError(
            "a formula cannot branch on a count: it has no gradient there. Use arithmetic, sl.minimum or sl.maximum."
        )

    __radd__ = __add__
    __rmul__ = __mul__
    __bool__ = __gt__ = __lt__ = __ge__ = __le__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


def for_formulas(function: Callable[..., Array]) -> Callable[..., Array]:
    """Let a function of arrays accept `SafeCount` too."""

    @wraps(function)
    def accepting(*args: Any, **options: Any) -> Any:
        if are_safe(args):
            return SafeCount(function(*map(_value, args), **options))
        return function(*args, **options)

    return accepting


def are_safe(args: tuple[Any, ...]) -> bool:
    """Whether any argument is a `SafeCount`."""
    return any(isinstance(arg, SafeCount) for arg in args)


def _first_count(args: Any) -> Any:
    """The array of the first count among arguments, which may be in a list, as for torch.stack."""
    for arg in args:
        if isinstance(arg, SafeCount):
            return arg.value
        if isinstance(arg, (tuple, list)) and (found := _first_count(arg)) is not None:
            return found
    return None


def _as_tensors(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map(_as_tensors, x))
    return torch.as_tensor(x) if isinstance(x, (np.ndarray, np.generic)) else x


def _value(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(_value(v) for v in x)
    return x.value if isinstance(x, SafeCount) else x


def power(base: Array, exponent: float) -> Array:
    """``base ** exponent``, by `root` for an exponent below 1 and by `ratio` for a negative one."""
    if exponent < 0:
        return ratio(1.0, power(base, -exponent))
    if 0 < exponent < 1:
        return root(base, 1 / exponent)
    if exponent % 1:  # 0 for a negative base, like a root
        base = maximum(base, 0.0)
    return float(base) ** exponent if isinstance(base, int) else base**exponent
