"""The variables that a function reads besides its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

#: Types of code, which does the same at every call.
CODE = (FunctionType, BuiltinFunctionType, ModuleType, type, np.ufunc)
#: Packages whose names are constants, such as ``math.pi``; those of other modules and classes may be settings.
_SETTLED = ("builtins", "math", "numpy", "torch", __name__.partition(".")[0])


def captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values of the variables a function reads from enclosing functions and its module."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())
    known = function.__globals__
    yield from ((name, known[name]) for name in sorted(_names(function.__code__) & set(known)))


def reads_variables(function: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether a function may compute something else next time, because it reads variables or is an object with state.

    >>> reads_variables(abs), reads_variables(object())
    (False, True)
    """
    if not isinstance(function, FunctionType):
        return not isinstance(function, CODE)
    if id(function) in seen or _is_settled(function.__module__):
        return False
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    read = [*(value for _, value in captured(function)), *(value for value in defaults if not _is_constant(value))]
    names, seen = _names(function.__code__), seen | {id(function)}
    return any(_may_change(value, names, seen) for value in read)


def _may_change(value: Any, names: set[str], seen: frozenset[Any]) -> bool:
    """Whether something that a function reads varies, or one of its attributes of the given names does."""
    if isinstance(value, ModuleType | type):
        settled = _is_settled(value.__name__ if isinstance(value, ModuleType) else value.__module__)
        asked = id(value), frozenset(names)
        if settled or asked in seen:
            return False
        seen |= {asked}
        parts = (value,) if isinstance(value, ModuleType) else value.__mro__
        known = {name for part in parts for name in names & vars(part).keys()}
        return any(_may_change(getattr(value, name), names, seen) for name in known)
    if isinstance(value, FunctionType):
        return bool(names & vars(value).keys()) or reads_variables(value, seen)
    return reads_variables(value, seen)


def _is_settled(module: str | None) -> bool:
    """Whether a module's functions and names stay as they are."""
    return (module or "").partition(".")[0] in _SETTLED


def _is_constant(value: Any) -> bool:
    """Whether a value cannot be changed in place."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (int, float, str, np.generic))


def _names(code: CodeType) -> set[str]:
    """The global names that code and the code nested in it look up."""
    return {*code.co_names}.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
