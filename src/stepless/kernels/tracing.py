"""Formulas as straight-line code: trace a formula once, then compute its value and gradient on plain numbers.

Torch takes microseconds for every scalar operation, and a metric has a few dozen of them. So a formula is called once
with symbols that record the operations on a tape. The tape, forwards for the value and backwards for the derivatives,
becomes a Python function of four floats. Conditionals (``where``) are evaluated in each call, so zeros are treated as
in the formula itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

Differentiated = tuple[float, float, float, float, float]


class Tape:
    """The operations of one formula: for each value its expression, and its derivative by each value it reads.

    A value is *wide* if it is one number per class. What is computed from a wide value is wide too, except its sum.
    """

    def __init__(self) -> None:
        self.expressions: list[str] = []
        self.partials: list[list[tuple[int, str]]] = []
        self.wide: list[bool] = []
        self._written: dict[str, Symbol] = {}

    def write(self, expression: str, partials: list[tuple[Any, str]], *, wide: bool | None = None) -> Symbol:
        """Record an operation, once; ``partials`` pairs each operand with the expression of its derivative."""
        if expression in self._written:
            return self._written[expression]
        self.wide.append(any(self.wide[i] for i in _read(expression)) if wide is None else wide)
        self.expressions.append(expression)
        self.partials.append([(x.index, partial) for x, partial in partials if isinstance(x, Symbol)])
        return self._written.setdefault(expression, Symbol(self, len(self.expressions) - 1))

    def lines(self, result: int) -> list[str]:
        """Return the assignments that a value needs, in order."""
        needed = {result}
        for i in range(result, -1, -1):
            if i in needed:
                needed |= set(_read(self.expressions[i]))
        return [f"v{i} = {self.expressions[i]}" for i in sorted(needed)]


class Symbol:
    """A number that is not known yet."""

    __array_ufunc__ = None  # makes numpy use the operators defined here
    __slots__ = ("index", "tape")

    def __init__(self, tape: Tape, index: int) -> None:
        self.tape, self.index = tape, index

    def __str__(self) -> str:
        return f"v{self.index}"

    @staticmethod
    def __array_namespace__() -> Any:
        return Symbols

    def __add__(self, other: Any) -> Symbol:
        return self.tape.write(" + ".join(sorted((str(self), _text(other)))), [(self, "1.0"), (other, "1.0")])

    def __sub__(self, other: Any) -> Symbol:
        return self.tape.write(f"{self} - {_text(other)}", [(self, "1.0"), (other, "-1.0")])

    def __rsub__(self, other: Any) -> Symbol:
        return self.tape.write(f"{_text(other)} - {self}", [(other, "1.0"), (self, "-1.0")])

    def __mul__(self, other: Any) -> Symbol:
        either_way = " * ".join(sorted((str(self), _text(other))))
        return self.tape.write(either_way, [(self, _text(other)), (other, str(self))])

    def __truediv__(self, other: Any) -> Symbol:
        quotient, by = f"v{len(self.tape.expressions)}", _text(other)
        return self.tape.write(f"{self} / {by}", [(self, f"1.0 / {by}"), (other, f"-{quotient} / {by}")])

    def __rtruediv__(self, other: Any) -> Symbol:
        return Symbols.constant(self, other) / self

    def __pow__(self, exponent: float) -> Symbol:
        value, power = f"v{len(self.tape.expressions)}", float(exponent)
        # powers are the slowest operation, and the derivative of a root needs no second one
        derivative = f"0.5 / {value}" if power == 0.5 else f"{power!r} * power({self}, {power - 1.0!r})"
        return self.tape.write(f"power({self}, {power!r})", [(self, derivative)])

    def __neg__(self) -> Symbol:
        return self.tape.write(f"-{self}", [(self, "-1.0")])

    def __gt__(self, other: Any) -> Symbol:
        return _compare(self, ">", other)

    def __lt__(self, other: Any) -> Symbol:
        return _compare(self, "<", other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return _compare(self, "!=", other)

    def __abs__(self) -> Symbol:
        return self.tape.write(f"where({self} < 0.0, -{self}, {self})", [(self, f"where({self} < 0.0, -1.0, 1.0)")])

    def sum(self, axis: int) -> Symbol:
        """Return the sum of a wide value over the classes."""
        if axis != -1 or not self.tape.wide[self.index]:
            raise TypeError("only a number per class can be summed, over the classes")
        return self.tape.write(f"total({self})", [(self, "1.0")], wide=False)

    def __bool__(self) -> bool:
        raise TypeError("a formula cannot branch on a symbol")

    __radd__, __rmul__ = __add__, __mul__
    __hash__ = object.__hash__


class Symbols:
    """The array namespace of symbols and numpy arrays of them, with the functions that formulas use."""

    stack, flip, concatenate = staticmethod(np.stack), staticmethod(np.flip), staticmethod(np.concatenate)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        """Return ``yes`` where the condition holds, else ``no``."""
        return _each(_where, condition, yes, no)

    @staticmethod
    def less(x: Any, value: float) -> Any:
        """Return whether ``x`` is below a number."""
        return _each(lambda s: s < value, x)

    @staticmethod
    def logical_not(x: Any) -> Any:
        """Return whether a condition does not hold."""
        return _each(lambda s: 1.0 - s, x)

    @staticmethod
    def abs(x: Any) -> Any:
        """Return the absolute value."""
        return _each(abs, x)

    @staticmethod
    def greater(x: Any, value: float) -> Any:
        """Return whether ``x`` is above a number."""
        return _each(lambda s: s > value, x)

    @staticmethod
    def asarray(values: Any, dtype: Any) -> Any:
        """Return numbers as an array."""
        return np.array(values, dtype=dtype)

    @staticmethod
    def sqrt(x: Any) -> Any:
        """Return the square root."""
        return _each(lambda s: s**0.5, x)

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        """Return the smaller number; NaN if either is NaN."""
        return _each(lambda s, t: _where(_compare(s, "!=", s), s, _where(_compare(s, "<", t), s, t)), a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        """Return the larger number; NaN if either is NaN."""
        return _each(lambda s, t: _where(_compare(s, "!=", s), s, _where(_compare(s, ">", t), s, t)), a, b)

    @staticmethod
    def constant(like: Symbol, value: float) -> Symbol:
        """Record a number."""
        return like.tape.write(_text(value), [])


def _compare(a: Any, sign: str, b: Any) -> Symbol:
    """Record a comparison as a number, 1 or 0, so that formulas can count it."""
    tape = a.tape if isinstance(a, Symbol) else b.tape
    return tape.write(f"where({_text(a)} {sign} {_text(b)}, 1.0, 0.0)", [])


def _where(condition: Symbol, yes: Any, no: Any) -> Symbol:
    holds = f"{condition} != 0.0"
    partials = [(yes, f"where({holds}, 1.0, 0.0)"), (no, f"where({holds}, 0.0, 1.0)")]
    return condition.tape.write(f"where({holds}, {_text(yes)}, {_text(no)})", partials)


def _each(function: Callable[..., Any], *args: Any) -> Any:
    if not any(isinstance(arg, np.ndarray) for arg in args):
        return function(*args)
    return np.frompyfunc(function, len(args), 1)(*args)


def _read(expression: str) -> list[int]:
    """The indices of the values that an expression reads."""
    return [int(i) for i in re.findall(r"\bv(\d+)\b", expression)]


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Symbol) else f"({float(value)!r})"


def differentiated(formula: Callable[[Any], Any], *, arrays: bool = False) -> Callable[..., Differentiated]:
    """Return a function of four floats or arrays: value and partial derivatives of a scalar formula of cells ``(4,)``.

    >>> of = differentiated(lambda cells: cells[0] / (cells[0] + cells[1]))
    >>> of(3.0, 1.0, 0.0, 0.0)
    (0.75, 0.0625, -0.1875, 0.0, 0.0)
    """
    lines, results = straight_line(formula)
    source = "\n    ".join(["def of(tp, fp, fn, tn):", *lines, f"return {', '.join(results)}"])
    if not arrays:
        return _compiled(_branching(source), power=_power)
    return np.errstate(all="ignore")(_compiled(source, where=np.where, power=np.power))


def differentiated_classes(formula: Callable[[Any], Any], classes: int) -> Callable[..., tuple[Any, ...]]:
    """Do the same for a formula that reads the cells of all classes at once; the result takes four arrays.

    >>> of = differentiated_classes(lambda cells: cells[0].sum(-1) / (cells[0] + cells[2]).sum(-1), classes=2)
    >>> value, tp, *_ = of(np.array([3.0, 1.0]), np.zeros(2), np.array([1.0, 3.0]), np.zeros(2))
    >>> float(value), tp.tolist()
    (0.5, [0.0625, 0.0625])
    """
    lines, results = straight_line(formula, joint=True)
    source = "\n    ".join(["def of(tp, fp, fn, tn):", *lines, f"return {', '.join(results)}"])
    names = {"where": np.where, "power": np.power, "total": np.sum, "zero": np.zeros(classes)}
    return np.errstate(all="ignore")(_compiled(source, **names))


def over_labels(formula: Callable[[Any], Any]) -> Callable[..., tuple[float, list[float], list[float]] | None]:
    """Return a loop over few labels, from their sums to the weighted sum of the formula's values.

    The loop takes rows ``(tp, predicted, support, total)``, weights, the factors left out of the sums
    (`stepless.steps.Factors`) and the relative rounding of the sums. It also returns ∂loss/∂decision of each label for
    false alarms and for hits.

    A difference below the rounding of its sums is set to 0, because 0/0 must not become a ratio of rounding errors. If
    less than a share ``few`` of a label is negative, or decided so, the differences have too few digits left, and the
    loop returns None.

    >>> of = over_labels(lambda cells: cells[0] + 2 * cells[1])
    >>> of([(3.0, 4.0, 5.0, 9.0)], [1.0], (1.0, 1.0), 1e-7)
    (5.0, [2.0], [1.0])
    """
    lines, (value, tp, fp, fn, tn) = straight_line(formula)
    head = (
        "def of(labels, weights, factors, eps, few=0.0):",
        "    loss, alarms, hits, (scale, steepness) = 0.0, [], [], factors",
        "    for (tp, predicted, support, total), weight in zip(labels, weights, strict=True):",
    )
    cells = (
        "tp, predicted = scale * tp, scale * predicted",
        "if total - support < few * total or total - predicted < few * total:",
        "    return None",
        "fp, fn, tn = predicted - tp, support - tp, total - support - predicted + tp",
        *(
            f"{cell} = 0.0 if abs({cell}) < eps * {noise} else {cell}"
            for cell, noise in (("fp", "predicted"), ("fn", "support"), ("tn", "total"))
        ),
    )
    tail = (
        f"loss += weight * ({value})",
        "weight *= steepness",
        f"alarms.append(weight * (({fp}) - ({tn})))",
        f"hits.append(weight * (({tp}) - ({fn})))",
    )
    body = [f"        {line}" for line in (*cells, *lines, *tail)]
    return _compiled(_branching("\n".join([*head, *body, "    return loss, alarms, hits"])), power=_power)


def _branching(source: str) -> str:
    """Replace conditionals and powers by Python's own, because calls would cost more than the arithmetic."""
    source = re.sub(r"\bpower\((v\d+), ([^()]+)\)", r"(\1 ** \2 if \1 > 0.0 else power(\1, \2))", source)
    source = re.sub(r"\b0\.5 / (v\d+)", r"0.5 / \1 if \1 else inf", source)  # Python's division by 0 raises
    source = re.sub(r"\bwhere\((v\d+) != 0\.0,", r"where(\1,", source)  # a number is true if it is not 0
    return re.sub(r"\bwhere\(([^,]+), ([^,]+), (\([^()]*\)|[^,()]+)\)", r"(\2 if \1 else \3)", source)


def _compiled(source: str, **functions: Any) -> Callable[..., Any]:
    names: dict[str, Any] = {"nan": math.nan, "inf": math.inf, **functions}
    exec(source, names)  # generated from a tape, never a user's text
    return names["of"]


def _power(base: float, exponent: float) -> float:
    """Compute a power as numpy does; Python's would turn complex, or raise."""
    if base > 0:
        return base**exponent
    with np.errstate(all="ignore"):
        return float(np.power(base, exponent))


def straight_line(formula: Callable[[Any], Any], *, joint: bool = False) -> tuple[list[str], list[str]]:
    """Return the formula as assignments, and the names or expressions of its value and four partial derivatives.

    They read tp, fp, fn and tn, and call ``where(condition, yes, no)`` and ``power(base, exponent)``. With ``joint``
    the cells are wide: the code also calls ``total(x)``, the sum over classes, and reads ``zero``, a 0 for each class.
    """
    tape = Tape()
    cells = np.empty(4, dtype=object)
    cells[:] = [tape.write(name, [], wide=joint) for name in ("tp", "fp", "fn", "tn")]
    traced = formula(cells)
    result = (traced.item() if isinstance(traced, np.ndarray) else traced).index
    if tape.wide[result]:
        raise TypeError("a formula of all classes returns one number, not one per class")
    lines = tape.lines(result)
    adjoints: dict[int, list[str]] = {result: ["1.0"]}
    for i in range(result, 3, -1):
        onward = [(j, partial) for j, partial in tape.partials[i] if partial != _text(0.0)]
        if i not in adjoints or not onward:
            continue
        spread = " + zero" * tape.wide[i]  # one derivative per class, so that a sum over classes counts them all
        change = " + ".join(adjoints[i]) + spread
        if not _PLAIN.fullmatch(change):
            lines.append(f"d{i} = {change}")
            change = f"d{i}"
        for j, partial in onward:
            carried = _carried(change, partial)
            summed = tape.wide[i] and not tape.wide[j]
            adjoints.setdefault(j, []).append(f"total({carried})" if summed else carried)
    return lines, [f"v{result}", *(" + ".join([*adjoints.get(i, ["0.0"]), *["zero"] * joint]) for i in range(4))]


_PLAIN = re.compile(r"d\d+|\(?-?1\.0\)?")  # a name or a number, for which no variable is needed


def _carried(change: str, partial: str) -> str:
    """The chain rule: multiply the expressions of two derivatives, simplified where possible."""
    if partial in ("1.0", "-1.0"):
        return change if partial == "1.0" else f"(-{change})"
    if chosen := re.fullmatch(r"where\(([^,]+), (1\.0, 0\.0|0\.0, 1\.0)\)", partial):
        return f"where({chosen[1]}, {chosen[2].replace('1.0', change)})"
    if partial.startswith("1.0 / "):
        return f"{change} {partial.removeprefix('1.0 ')}"
    return f"{change} * ({partial})"
