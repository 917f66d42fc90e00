"""What a run is made of, the same in every process: code as text, and a hash of settings and data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def fingerprint(texts: Iterable[str], data: Iterable[Tensor | NDArray[Any] | None]) -> str:
    """A hash that differs for another task: of settings as text, and of data.

    >>> fingerprint(["f1"], [np.ones(2)]) == fingerprint(["f1"], [np.ones(3)])
    False
    """
    found = hashlib.sha256()
    for text in texts:
        found.update(f"{len(text)}:{text}".encode())
    for values in data:
        if values is None:
            found.update(b"none")
            continue
        tensor = torch.as_tensor(values).detach().cpu().contiguous()
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


#: Values that are the same in every process.
_PLAIN = (str, bytes, bool, int, float, complex, tuple)


def written(thing: Any, seen: dict[int, Any] | None = None) -> str:
    """A value or a piece of code as text.

    Of a function that is what it computes, the values it is bound to, and what it uses of its own module; of what has
    no code of Python's, the name. State other than plain values and code is left out: it may not be the same again.
    """
    if thing is None or isinstance(thing, str | bytes | bool | int | float | complex):
        return repr(thing)
    seen = {} if seen is None else seen
    # equal constants may be one object or two, which differs between processes
    if not isinstance(thing, tuple | frozenset | CodeType):
        if id(thing) in seen:  # functions may call each other
            return "again"
        seen[id(thing)] = thing
    parts = next((parts for kind, parts in _PARTS.items() if isinstance(thing, kind)), _parts_of_object)
    texts = [written(part, seen) for part in parts(thing)]
    # the order of a set is another in every process
    return f"{type(thing).__name__}({', '.join(sorted(texts) if isinstance(thing, frozenset) else texts)})"


def _parts_of_class(kind: type) -> Iterator[Any]:
    yield _name(kind)
    own = [part for part in kind.__mro__ if part.__module__.split(".")[0] not in ("builtins", "torch")]
    yield from (value for part in own for value in vars(part).values() if isinstance(value, FunctionType))


def _parts_of_object(thing: Any) -> Iterator[Any]:
    yield _name(thing)
    if callable(thing):
        yield type(thing)
        state = getattr(thing, "__dict__", {})
        yield from ((name, value) for name, value in state.items() if isinstance(value, _PLAIN) or callable(value))


def _bound(function: FunctionType) -> Iterator[Any]:
    """The values that a function has beside its arguments: defaults, a closure, and globals."""
    yield from (function.__defaults__, function.__kwdefaults__)
    cells = function.__closure__ or ()
    yield from (cell.cell_contents for cell in cells if cell != CellType())
    known = function.__globals__
    for name in sorted(_names(function.__code__) & set(known)):
        value = known[name]
        if isinstance(value, _PLAIN) or getattr(value, "__module__", None) == function.__module__:
            yield name, value


def _names(code: CodeType) -> set[str]:
    """The names that code looks up, and code within it."""
    return {*code.co_names}.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _name(thing: Any) -> str:
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


#: What a thing is made of, by its kind; the first that fits.
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: iter,
    frozenset: iter,
    list: iter,
    dict: dict.items,
    Tensor: lambda values: (values.tolist(),),
    np.ndarray: lambda values: (values.tolist(),),
    CodeType: lambda code: (code.co_code, code.co_names, code.co_varnames, code.co_consts),
    partial: lambda bound: (bound.func, bound.args, bound.keywords),
    MethodType: lambda method: (method.__func__, method.__self__),
    FunctionType: lambda function: (_name(function), function.__code__, *_bound(function)),
    type: _parts_of_class,
}
