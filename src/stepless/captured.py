"""What a function reads beside its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

#: Code, which is the same whenever it is called.
CODE = (FunctionType, BuiltinFunctionType, ModuleType, type, np.ufunc)


def captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables around a function that it reads, by name: those of the functions it stands in, and globals."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())
    known = function.__globals__
    yield from ((name, known[name]) for name in sorted(_names(function.__code__) & set(known)))


def reads_variables(function: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a function may compute something else the next time: it reads a variable, or is an object with its own.

    >>> reads_variables(abs), reads_variables(object())
    (False, True)
    """
    if not isinstance(function, FunctionType):
        return not isinstance(function, CODE)
    if id(function) in seen or (function.__module__ or "").partition(".")[0] == __name__.partition(".")[0]:
        return False  # our own read constants
    return any(reads_variables(value, seen | {id(function)}) for _, value in captured(function))


def _names(code: CodeType) -> set[str]:
    """The names that code looks up, and code within it."""
    return {*code.co_names}.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
