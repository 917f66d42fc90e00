"""Launches of a Triton kernel without the look at its arguments that Triton takes each time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

#: What Triton compiles for: a tensor that starts at a multiple of so many bytes.
_ALIGNED = 16


class Launch:
    """A kernel with its grid and constants, for arguments whose types, dtypes and whole numbers stay as they are.

    The first launch compiles the kernel, or finds it; the others start what was compiled. Tensors that are not aligned
    are another kernel to Triton, and go the usual way.

    Args:
        kernel: What ``triton.jit`` made.
        grid: How many programs, three numbers.
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
