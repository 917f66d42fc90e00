"""Keras tensors behind the operators and methods that the formulas use, each a call of ``keras.ops``.

The backends' own tensors differ in the operators and methods they have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from stepless.numerics import jax_quotient

#: JAX's derivative of a quotient squares the denominator, which may be as small as 1e-35.
_divide = jax_quotient() if keras.backend.backend() == "jax" else ops.true_divide


class KerasArray:
    """A tensor of any Keras backend as an array.

    Args:
        value: The tensor.

    Example:
        >>> x = KerasArray(ops.convert_to_tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> (2 * x).sum(-1).value.tolist()
        [6.0, 14.0]
    """

    __array_ufunc__ = None  # numpy scalars defer to __radd__ and its like
    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def __array_namespace__() -> Any:
        return NAMESPACE

    @property
    def shape(self) -> tuple[int | UnknownSize, ...]:
        """The size of each axis."""
        return tuple(
            UnknownSize(self.value, axis) if size is None else size for axis, size in enumerate(self.value.shape)
        )

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.value.shape)

    @property
    def dtype(self) -> str:
        """The name of the dtype, the same for all backends."""
        return keras.backend.standardize_dtype(self.value.dtype)

    @property
    def mT(self) -> KerasArray:  # noqa: N802 - the array API's name
        """The last two axes swapped."""
        return KerasArray(ops.swapaxes(self.value, -2, -1))

    def astype(self, dtype: Any) -> KerasArray:
        """Convert to another dtype."""
        return KerasArray(ops.cast(self.value, dtype))

    def reshape(self, *shape: Any) -> KerasArray:
        """Return the same values in another shape."""
        return KerasArray(ops.reshape(self.value, _plain(shape[0] if isinstance(shape[0], tuple) else shape)))

    def diagonal(self, offset: int, first: int, second: int) -> KerasArray:
        """Return the diagonal of two axes, as the last axis."""
        return KerasArray(ops.diagonal(self.value, offset, first, second))

    def __getitem__(self, key: Any) -> KerasArray:
        return KerasArray(self.value[key])

    def __rsub__(self, other: Any) -> KerasArray:
        return KerasArray(ops.subtract(_plain(other), self.value))

    def __rtruediv__(self, other: Any) -> KerasArray:
        return KerasArray(_divide(_plain(other), self.value))

    sum, mean, max, any = (
        lambda self, axis=None, _of=function: KerasArray(_of(self.value, axis=axis))
        for function in (ops.sum, ops.mean, ops.max, ops.any)
    )
    __neg__, __abs__, __invert__ = (
        lambda self, _of=function: KerasArray(_of(self.value))
        for function in (ops.negative, ops.absolute, ops.logical_not)
    )
    __add__, __sub__, __mul__, __truediv__, __pow__, __matmul__, __and__, __or__ = (
        lambda self, other, _of=function: KerasArray(_of(self.value, _plain(other)))
        for function in (
            ops.add, ops.subtract, ops.multiply, _divide, ops.power, ops.matmul, ops.logical_and,
            ops.logical_or,
        )
    )  # fmt: skip
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = (  # type: ignore[assignment]
        lambda self, other, _of=function: KerasArray(_of(self.value, _plain(other)))
        for function in (ops.less, ops.less_equal, ops.greater, ops.greater_equal, ops.equal, ops.not_equal)
    )
    __radd__, __rmul__ = __add__, __mul__


class UnknownSize:
    """The size of an axis that TensorFlow learns only when a graph runs, such as the batch size.

    Two unknown sizes compare equal, as in TensorFlow; if they differ after all, the graph fails when it runs.

    Args:
        tensor: The tensor.
        axis: Which of its axes.
    """

    __slots__ = ("axis", "tensor")

    def __init__(self, tensor: Any, axis: int) -> None:
        self.tensor, self.axis = tensor, axis

    @property
    def value(self) -> Any:
        """The size, as a tensor of the graph."""
        return ops.shape(self.tensor)[self.axis]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownSize)

    def __hash__(self) -> int:
        return hash(UnknownSize)

    def __mul__(self, other: Any) -> Any:
        return self if other == 1 else math.nan  # the product is unknown, and equals no size

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return "None"  # as TensorFlow shows it


class _Namespace:
    """The functions of ``keras.ops`` on `KerasArray`, and those that Keras lacks or names differently."""

    float32 = "float32"

    def __getattr__(self, name: str) -> Callable[..., KerasArray]:
        function = getattr(ops, name)
        return lambda *args, **options: KerasArray(function(*map(_plain, args), **options))

    @staticmethod
    def asarray(values: Any, dtype: Any) -> KerasArray:
        """Make an array of nested numbers."""
        return KerasArray(ops.convert_to_tensor(np.asarray(values), dtype=dtype))

    @staticmethod
    def logaddexp(first: KerasArray, second: KerasArray) -> KerasArray:
        """Compute log(e^first + e^second); TensorFlow's gradient of Keras's own is wrong where the two are equal."""
        return second + KerasArray(ops.softplus((first - second).value))

    @staticmethod
    def promote_types(first: Any, second: Any) -> str:
        """Return the dtype that holds both."""
        return keras.backend.result_type(first, second)

    @staticmethod
    def finfo(dtype: str) -> Any:
        """Return the limits of a dtype."""
        return np.finfo(dtype)


NAMESPACE = _Namespace()


def _plain(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(map(_plain, x))
    return x.value if isinstance(x, KerasArray | UnknownSize) else x
