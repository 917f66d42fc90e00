"""Division, roots and comparisons that keep their gradients finite, for any array type.

A metric divides counts that may be zero. Masking *after* the division (``where(b == 0, 0, a / b)``) repairs the
value but still sends NaN backwards, so the denominator is repaired first. The functions dispatch on the array's own
type: torch, numpy, JAX and plain numbers share one formula. The other functions that steps and counts need are here
too, as torch's own for tensors, and for every other library built from the few that all of them have.
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
import torch

Array = Any  #: a tensor, an ndarray, a JAX array or a number; the formulas use operators only

#: Anything smaller counts as 0. The soft counts of an absent class can be as small as 1e-38 in float32: their
#: reciprocals overflow, and infinity times a zero slope is NaN. One limit for every precision and library, so that all
#: code paths of a loss agree.
NOTHING = 1e-35


def namespace(x: Array) -> Any:
    """The module whose functions work on ``x``: torch, numpy, or the array's own namespace."""
    if isinstance(x, torch.Tensor):
        return torch
    if isinstance(x, np.ndarray) and x.dtype == object:  # an array of symbols
        return x.flat[0].__array_namespace__()
    return x.__array_namespace__() if hasattr(x, "__array_namespace__") else np


def nonzero(x: Array) -> Array:
    """Where ``x`` differs from 0 by at least `NOTHING`. True for NaN, so that it stays visible."""
    if isinstance(x, (int, float)):
        return not -NOTHING < x < NOTHING
    xp = namespace(x)
    return xp.logical_not(xp.less(xp.abs(x), NOTHING))


def ratio(numerator: Array, denominator: Array, zero_division: float = 0.0) -> Array:
    """Divide safely: ``zero_division`` where the denominator is 0, and a finite gradient everywhere.

    >>> ratio(torch.tensor([1.0, 0.0]), torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    defined = nonzero(denominator)
    if isinstance(defined, bool):
        return numerator / denominator if defined else zero_division + 0 * numerator
    if _is_all(defined):
        return numerator / denominator
    xp = namespace(defined)
    divided = jax_quotient() if getattr(xp, "__name__", "") == "jax.numpy" else operator.truediv
    return xp.where(defined, divided(numerator, xp.where(defined, denominator, 1.0)), zero_division)


@lru_cache(maxsize=1)
def jax_quotient() -> Any:
    """Division for JAX whose derivative does not square the denominator, as JAX's own does: 1e-20² is 0."""
    import jax  # noqa: PLC0415 - needed for JAX arrays only
    from jax import numpy as jnp  # noqa: PLC0415

    @jax.custom_jvp
    def quotient(a: Any, b: Any) -> Any:
        return a / b

    @quotient.defjvp
    def derivative(given: Any, changes: Any) -> Any:
        (_, b), (da, db) = given, changes
        result = quotient(*given)
        return result, quotient(da - result * db, b)

    def divided(a: Any, b: Any) -> Any:
        a, b = jnp.broadcast_arrays(a, b)  # a custom derivative needs one shape and dtype
        dtype = jnp.result_type(a, b, float)
        return quotient(a.astype(dtype), b.astype(dtype))

    return divided


def _is_all(mask: Array) -> bool:
    """Whether a numpy mask is all true. Other libraries' masks are not read: that could wait for a device or trace."""
    return isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and bool(mask.all())


def root(x: Array, degree: float = 2.0) -> Array:
    """Take a root safely: ``x ** (1 / degree)`` where x > 1e-35, elsewhere 0 with a zero, not infinite, gradient.

    >>> root(torch.tensor([9.0, 0.0]))
    tensor([3., 0.])
    """
    if isinstance(x, (int, float)):
        return float(x) ** (1.0 / degree) if x > NOTHING else 0.0 * x
    xp = namespace(x)
    positive = xp.greater(x, NOTHING)
    whole = _is_all(positive)
    base = x if whole else xp.where(positive, x, 1.0)
    power = xp.sqrt(base) if degree == 2 else base ** (1.0 / degree)
    return power if whole else xp.where(positive, power, 0.0 * x)  # 0 · x, so that NaN stays NaN


def product(x: Array) -> Array:
    """The product over the last axis, taken in pairs: the backward of torch's ``prod`` waits for the device."""
    while x.shape[-1] > 1:
        odd = x[..., x.shape[-1] // 2 * 2 :]
        x = x[..., : x.shape[-1] // 2 * 2 : 2] * x[..., 1::2]
        x = namespace(x).concatenate([x, odd], -1) if odd.shape[-1] else x
    return x[..., 0]


def minimum(a: Array, b: Array) -> Array:
    """Return the smaller of two arrays or numbers, element by element."""
    return _extremum(a, b, "minimum", min)


def maximum(a: Array, b: Array) -> Array:
    """Return the larger of two arrays or numbers, element by element."""
    return _extremum(a, b, "maximum", max)


def unstack(x: Array) -> tuple[Array, ...]:
    """The entries of the last axis, one array each."""
    if isinstance(x, torch.Tensor):
        return x.unbind(-1)
    return tuple(x[..., i] for i in range(x.shape[-1]))


def identity(matrix: Array) -> Array:
    """True on the diagonal of the last two axes."""
    size = matrix.shape[-1]
    if isinstance(matrix, torch.Tensor):
        return torch.eye(size, dtype=torch.bool, device=matrix.device)
    return namespace(matrix).eye(size, dtype=bool)


def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """``x`` kept within bounds; on a bound its gradient is 1, as in torch."""
    if isinstance(x, torch.Tensor):
        return torch.clamp(x, low, high)
    where = namespace(x).where
    x = x if low is None else where(x < low, low, x)
    return x if high is None else where(x > high, high, x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), without an exponential that overflows: infinity times a zero slope is NaN."""
    if isinstance(x, torch.Tensor):
        return torch.sigmoid(x)
    xp = namespace(x)
    positive = xp.greater_equal(x, 0)
    small = xp.exp(xp.where(positive, -x, x))
    return xp.where(positive, 1.0, small) / (1 + small)


def logit(p: Array) -> Array:
    """The inverse of `sigmoid`, inside (0, 1)."""
    if isinstance(p, torch.Tensor):
        return torch.logit(p)
    if isinstance(p, (int, float)):
        return math.log(p) - math.log1p(-p)
    xp = namespace(p)
    return xp.log(p) - xp.log1p(-p)


def softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    if isinstance(x, torch.Tensor):
        return torch.nn.functional.softplus(x)
    return namespace(x).logaddexp(x, 0.0 * x)


def softmax(x: Array) -> Array:
    """The softmax along axis 1."""
    if isinstance(x, torch.Tensor):
        return torch.softmax(x, 1)
    shares = namespace(x).exp(x - detached(x.max(1))[:, None])
    return shares / shares.sum(1)[:, None]


def log_softmax(x: Array) -> Array:
    """The logarithm of the softmax along axis 1."""
    if isinstance(x, torch.Tensor):
        return torch.log_softmax(x, 1)
    xp = namespace(x)
    x = x - detached(x.max(1))[:, None]
    return x - xp.log(xp.exp(x).sum(1))[:, None]


def largest_two(x: Array) -> Array:
    """The two largest entries along axis 1."""
    return x.topk(2, dim=1).values if isinstance(x, torch.Tensor) else namespace(x).sort(x, 1)[:, -2:]


def last(x: Array, axis: int) -> Array:
    """``x`` with an axis moved to the end; torch's ``moveaxis`` does not work under ``vmap``."""
    return x.movedim(axis, -1) if isinstance(x, torch.Tensor) else namespace(x).moveaxis(x, axis, -1)


def detached(x: Array) -> Array:
    """The same values without gradients."""
    if isinstance(x, torch.Tensor):
        return x.detach()
    xp = namespace(x)
    if getattr(xp, "__name__", "") == "jax.numpy":
        from jax.lax import stop_gradient  # noqa: PLC0415 - needed for JAX arrays only

        return stop_gradient(x)
    return xp.stop_gradient(x) if hasattr(xp, "stop_gradient") else x


def cast(x: Array, dtype: Any) -> Array:
    """``x`` in another dtype."""
    return x.to(dtype) if isinstance(x, torch.Tensor) else x.astype(dtype)


def is_floating(x: Array) -> bool:
    """Whether the dtype is a floating-point one."""
    return x.is_floating_point() if isinstance(x, torch.Tensor) else "float" in str(x.dtype)


def ones(shape: Any, like: Array, dtype: Any) -> Array:
    """Ones in the library and on the device of ``like``."""
    if isinstance(like, torch.Tensor):
        return torch.ones(shape, dtype=dtype, device=like.device)
    return namespace(like).ones(shape, dtype=dtype)


def _extremum(a: Array, b: Array, name: str, of_numbers: Any) -> Array:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return of_numbers(a, b)
    xp = namespace(b if isinstance(a, (int, float)) else a)
    if xp is torch:  # torch.minimum takes tensors only
        tensor = a if isinstance(a, torch.Tensor) else b
        a, b = (x if isinstance(x, torch.Tensor) else torch.full_like(tensor, x) for x in (a, b))
    return getattr(xp, name)(a, b)


def constant(values: Any, like: Array, dtype: Any = None) -> Array:
    """Nested numbers as an array in the library and on the device of ``like``, by default in its dtype.

    On an accelerator the array is cached, because each copy from the host makes it wait.
    """
    dtype = dtype or like.dtype
    if not isinstance(like, torch.Tensor):
        return namespace(like).asarray(values, dtype=dtype)
    if like.device.type == "cpu" or torch.compiler.is_compiling() or type(like) is not torch.Tensor:
        return torch.tensor(as_tuple(values), dtype=dtype, device=like.device)
    return _kept_constant(as_tuple(values), dtype, like.device)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # cached during an evaluation, it may be needed in training
def _kept_constant(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def check_unmasked(values: Any, name: str) -> None:
    """Raise for a numpy array with masked entries, which would be counted."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise TypeError(
            f"{name} must be a plain array; it has masked entries, which would be counted as they are. Leave them out."
        )


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or numpy, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_tuple(values: Any) -> Any:
    """Nested sequences, arrays or tensors as nested tuples of numbers, which can be hashed and compared."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    return tuple(as_tuple(v) for v in values) if isinstance(values, (list, tuple, range)) else values
