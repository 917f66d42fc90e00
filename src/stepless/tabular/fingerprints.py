"""Fingerprints of runs, the same in every process: code as text, and a hash of settings and data."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepless.captured import CODE, captured


def fingerprint(texts: Iterable[str], data: Iterable[Tensor | NDArray[Any] | None]) -> str:
    """A hash of settings, as text, and of data.

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


def written(thing: Any, seen: dict[int, Any] | None = None) -> str:
    """A value or a piece of code as text.

    A function is written as its code, the values bound to it, and what it uses of its own module; an object as its
    class and its state; anything without Python code as its name. Of a network's attributes only settings and code are
    written, since its weights may differ from process to process.
    """
    if thing is None or isinstance(thing, str | bytes | bool | int | float | complex):
        return repr(thing)
    if isinstance(thing, np.generic):
        return f"{thing.dtype}({thing.item()!r})"
    seen = {} if seen is None else seen
    # whether equal constants are one object or two differs between processes
    if not isinstance(thing, tuple | frozenset | CodeType):
        if id(thing) in seen:  # such as functions that call each other
            return "again"
        seen[id(thing)] = thing
    parts = next((parts for kind, parts in _PARTS.items() if isinstance(thing, kind)), _parts_of_object)
    texts = [written(part, seen) for part in parts(thing)]
    # the order of a set differs between processes
    return f"{type(thing).__name__}({', '.join(sorted(texts) if isinstance(thing, frozenset | set) else texts)})"


def _parts_of_class(kind: type) -> Iterator[Any]:
    yield _name(kind)
    own = [part for part in kind.__mro__ if part.__module__.split(".")[0] not in ("builtins", "torch")]
    yield from (value for part in own for value in vars(part).values() if isinstance(value, FunctionType))


def _parts_of_object(thing: Any) -> Iterator[Any]:
    yield _name(thing)
    if isinstance(thing, ModuleType):
        return
    yield type(thing)
    state = {name: getattr(thing, name) for name in _slots(type(thing)) if hasattr(thing, name)}
    state |= getattr(thing, "__dict__", {})
    for name, value in state.items():
        if not isinstance(thing, nn.Module) or isinstance(value, _SETTINGS) or callable(value):
            yield name, value
    if not state:  # an object of compiled code may hold its state elsewhere
        with suppress(Exception):  # there are many kinds of errors where something cannot be pickled
            yield pickle.dumps(thing)


#: The types of a network's attributes that are settings, which are the same in every process.
_SETTINGS = (str, bytes, bool, int, float, complex, tuple)


def _slots(kind: type) -> Iterator[str]:
    for part in kind.__mro__:
        slots = vars(part).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _parts_of_array(values: NDArray[Any] | Tensor) -> Iterator[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16
    yield str(values.dtype)
    yield values.shape
    yield values.tolist() if values.dtype == object else hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def _bound(function: FunctionType) -> Iterator[Any]:
    """The values that a function has beside its arguments: its defaults, and what it captures."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for name, value in captured(function):
        if not isinstance(value, CODE) or getattr(value, "__module__", None) == function.__module__:
            yield name, value


def _name(thing: Any) -> str:
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


#: The parts of a thing, by the first type that it is an instance of.
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: iter,
    frozenset: iter,
    set: iter,
    list: iter,
    dict: dict.items,
    Tensor: _parts_of_array,
    np.ndarray: _parts_of_array,
    CodeType: lambda code: (code.co_code, code.co_names, code.co_varnames, code.co_consts),
    partial: lambda bound: (bound.func, bound.args, bound.keywords),
    MethodType: lambda method: (method.__func__, method.__self__),
    FunctionType: lambda function: (_name(function), function.__code__, *_bound(function)),
    type: _parts_of_class,
}
