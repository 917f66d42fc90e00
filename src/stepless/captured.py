"""The variables that a function reads besides its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

#: Types of code, which does the same at every call.
CODE = (FunctionType, BuiltinFunctionType, ModuleType, type, np.ufunc)


def captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values of the variables a function reads from enclosing functions and its module."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())
    known = function.__globals__
    yield from ((name, known[name]) for name in sorted(_names(function.__code__) & set(known)))


def reads_variables(function: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a function may compute something else next time, because it reads variables or is an object with state.

    >>> reads_variables(abs), reads_variables(object())
    (False, True)
    """
    if not isinstance(function, FunctionType):
        return not isinstance(function, CODE)
    if id(function) in seen or (function.__module__ or "").partition(".")[0] == __name__.partition(".")[0]:
        return False  # this package's functions read constants only
    return any(reads_variables(value, seen | {id(function)}) for _, value in captured(function))


def _names(code: CodeType) -> set[str]:
    """The global names that code and the code nested in it look up."""
    return {*code.co_names}.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
