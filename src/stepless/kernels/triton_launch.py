"""Launches of a Triton kernel that skip the inspection of its arguments after the first time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

#: Triton compiles for tensors whose address is a multiple of this many bytes.
_ALIGNED = 16


class Launch:
    """A kernel with its grid and constants, for arguments whose types, dtypes and integers never change.

    The first launch compiles the kernel, the others start it at once. For tensors that are not aligned Triton needs
    another kernel, so they are launched the usual way.

    Args:
        kernel: A function decorated with ``triton.jit``.
        grid: The number of programs along three axes.
        constants: The kernel's ``tl.constexpr`` arguments, which come last and in order, and Triton's own such as
            ``num_warps``.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], constants: dict[str, Any]) -> None:
        self.kernel, self.grid, self.constants = kernel, grid, constants
        self.values = tuple(v for k, v in constants.items() if k in kernel.arg_names)
        self.start: Any = None

    def __call__(self, *arguments: Any) -> None:
        aligned = all(a.data_ptr() % _ALIGNED == 0 for a in arguments if isinstance(a, Tensor))
        if self.start is not None and aligned:
            self.start(*arguments, *self.values)
            return
        compiled = self.kernel[self.grid](*arguments, **self.constants)
        if aligned and compiled is not None:  # Triton's interpreter compiles nothing
            self.start = compiled[self.grid]
