"""A metric in whatever form the user has it: a name, a formula as text, or a Python callable.

Text goes through a parser that knows a short list of things and refuses everything else, pointing at the character;
it never reaches `eval`. A callable is given counts whose division and square root are safe at zero, so a plain
``tp / (tp + fp)`` has the same value and gradient there as our own formulas.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepless.counts import Counts
from stepless.metrics import METRICS
from stepless.numerics import Array, maximum, minimum, ratio, root
from stepless.registry import Metric, is_share, snake_case

_COUNTS = ("tp", "fp", "fn", "tn")
_SHARES: dict[str, Callable[[Counts], Array]] = {
    "n": lambda c: c.total,
    "prevalence": lambda c: ratio(c.support, c.total),
}
_FUNCTIONS: dict[str, tuple[int, Callable[..., Array]]] = {
    "sqrt": (1, root),
    "abs": (1, abs),
    "min": (2, minimum),
    "max": (2, maximum),
}
_LONGEST, _DEEPEST, _LARGEST, _STEEPEST, _LONGEST_NAME = 1000, 50, 1e300, 16, 60

#: What comes first in an operation, by the name its node has for it.
_FIRST_PARTS: dict[type[ast.expr], str] = {
    ast.BinOp: "left", ast.Compare: "left", ast.IfExp: "body", ast.Attribute: "value", ast.Subscript: "value",
    ast.NamedExpr: "target",
}  # fmt: skip

Evaluate = Callable[[Counts], Array]


def with_costs_of_decisions(metric: Metric, positive: int) -> Metric:
    """The metric with a 2×2 matrix of costs, which is written in the order of two classes, in that of no and yes.

    Args:
        metric: Any; one without such a matrix stays as it is.
        positive: The place of the class that is yes.

    Example:
        >>> with_costs_of_decisions(METRICS["cost"].bind(costs=[[0, 10], [1, 0]]), 0).option("costs")
        ((0, 1), (10, 0))
    """
    costs = dict(metric.options).get("costs")
    if positive == 1 or not isinstance(costs, tuple) or [len(row) for row in costs if isinstance(row, tuple)] != [2, 2]:
        return metric
    return metric.bind(costs=[row[::-1] for row in costs[::-1]])


def resolve(metric: Any, *, maximize: bool | None = None, **options: Any) -> Metric:
    """The `Metric` that a user means by a name, a text formula, a callable or a `Metric`.

    Args:
        metric: What to score by.
        maximize: For formulas only: whether greater is better. None: unless it is less where most decisions are right
            than where most are wrong; so a formula that counts errors is minimised.
        options: For named metrics only: their options, such as ``beta``.

    Example:
        >>> resolve("f_beta", beta=2)
        Metric(name='f_beta', best=1.0, greater_is_better=True, kind='class', options=(('beta', 2),))
        >>> resolve("5*fn + fp").greater_is_better
        False
    """
    if maximize is not None and not isinstance(maximize, bool):
        raise TypeError(f"maximize must be True or False; got {maximize!r}.")
    if isinstance(metric, str) and metric.strip() in METRICS:
        metric = METRICS[metric.strip()]
    if isinstance(metric, Metric):
        if maximize is not None and maximize != metric.greater_is_better:
            direction = "maximised" if metric.greater_is_better else "minimised"
            raise ValueError(f"metric {metric.name!r} is always {direction}; maximize= is for formulas of your own.")
        bound = metric.bind(**options)
        _check_options(bound)
        return bound
    if options:
        raise TypeError(f"a formula has no options; got {', '.join(map(repr, options))}. Write the value into it.")
    if isinstance(metric, str):
        name = metric.strip()
        if (name.isidentifier() and name not in names()) or snake_case(name[:_LONGEST_NAME]) in METRICS:
            raise ValueError(METRICS.unknown(name[:_LONGEST_NAME]))
    elif not callable(metric):
        raise TypeError(
            "metric must be a name such as 'f1', a formula as text, or a function of (tp, fp, fn, tn);"
            f" got {type(metric).__name__}."
        )
    if torch.compiler.is_compiling():
        made: Metric = getattr(_MADE, _make_ahead(metric, maximize))
        return made
    return _make(metric, maximize)


def _make(formula: str | Callable[..., Any], maximize: bool | None) -> Metric:
    if isinstance(formula, str):
        return _probed(formula.strip(), parse(formula), maximize)
    return _probed(getattr(formula, "__name__", type(formula).__name__), SafeFormula(formula), maximize)


class _Made:
    """The formulas of functional losses that are compiled, by name. Each is an attribute: that torch can guard."""


_MADE = _Made()


def _make_ahead(formula: str | Callable[..., Any], maximize: bool | None) -> str:
    """Make a metric while torch traces, which would not take the making itself, and tell its name in `_MADE`."""
    name = f"{formula if isinstance(formula, str) else id(formula)} {maximize}"  # what is kept keeps its id
    if not hasattr(_MADE, name):
        setattr(_MADE, name, _make(formula, maximize))
    return name


# what torch.compiler.assume_constant_result does, which imports the compiler: seconds, for who may never compile
_make_ahead._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check_options(metric: Metric) -> None:
    """Try the options when they are given, not in the first batch: every number in range, and the formula computes."""
    for name, value in metric.options:
        default = metric.defaults[name]
        if isinstance(default, float):
            wanted = "be a number or nan" if name == "zero_division" else "be a finite number that is not negative"
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or (name != "zero_division" and not 0 <= value < math.inf):
                raise ValueError(f"{name} must {wanted}; got {value!r}.")
        if name == "costs" and value is not None:
            rows = value if isinstance(value, tuple) else (value,)
            flat = [cost for row in rows for cost in (row if isinstance(row, tuple) else (row,))]
            if not all(isinstance(cost, int | float) and math.isfinite(cost) for cost in flat):
                raise ValueError(f"costs must be finite; got {value!r}.")
            if not isinstance(value, tuple) or any(not isinstance(r, tuple) or len(r) != len(rows) for r in rows):
                raise ValueError(f"costs must be K×K for K classes (rows the truth); got {value!r}.")
    if metric.name == "cost" and metric.options:
        return  # how many classes there are is known at the first batch only
    cells = torch.ones(2, 2, dtype=torch.float64)
    metric(*(cells,) if metric.kind == "matrix" else Counts(cells, cells, cells, cells))


#: Counts (tp, fp, fn, tn) on which a formula is tried: all decisions right, most of them right, most of them wrong.
_PROBE = ((1.0, 0.0, 0.0, 1.0), (8.0, 1.0, 2.0, 9.0), (1.0, 9.0, 7.0, 3.0))


@torch.inference_mode(False)
@torch.enable_grad()
def _probed(name: str, function: Callable[..., Array], maximize: bool | None) -> Metric:
    """Make a metric of a formula, after checking that it is a scalar function of the counts that has a gradient."""
    try:
        probe = torch.tensor(_PROBE, dtype=torch.float64, device="cpu", requires_grad=True)
        value = function(*probe.unbind(-1))
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"the formula {name!r} could not be computed from (tp, fp, fn, tn): {type(error).__name__}: {error}."
            " It must be arithmetic on the four counts."
        ) from error
    if not isinstance(value, Tensor) or value.shape != (len(_PROBE),):
        got = (
            f"shape {tuple(value.shape)} for shape ({len(_PROBE)},)"
            if isinstance(value, Tensor)
            else f"a {type(value).__name__}"
        )
        raise ValueError(f"the formula {name!r} must give one number for each entry of (tp, fp, fn, tn); got {got}.")
    if not value.requires_grad or not torch.autograd.grad(value.sum(), probe, retain_graph=True)[0].any():
        raise ValueError(
            f"the formula {name!r} has no gradient with respect to the counts; use no comparison or rounding in it, nor"
            " .item() or .detach()."
        )
    if isinstance(function, SafeFormula):  # a text treats each entry by itself
        alone = torch.stack([function(*counts).sum() for counts in probe.detach()[:, :, None]])
        if not torch.allclose(alone, value.detach(), equal_nan=True):
            raise ValueError(
                f"the formula {name!r} must treat each entry of (tp, fp, fn, tn) by itself: they are those of other"
                " classes, labels or images."
            )
    best, good, bad = value.tolist()
    if maximize is None:
        maximize = not good < bad
    return Metric(name, function, best if math.isfinite(best) else 0.0, maximize, bounded=is_share(function))


# ---------------------------------------------------------------------------------------------------------------------
# Callables
# ---------------------------------------------------------------------------------------------------------------------


class SafeFormula:
    """A user's function of ``(tp, fp, fn, tn)``, called with counts that divide and take roots safely."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
        result = self.function(SafeCount(tp), SafeCount(fp), SafeCount(fn), SafeCount(tn))
        return result.value if isinstance(result, SafeCount) else result


#: What torch's functions divide 1 by.
_INVERSES: dict[Callable[..., Any], Callable[[Any], Any]] = {torch.reciprocal: lambda x: x, torch.rsqrt: root}


class SafeCount:
    """A count in a user's formula: arithmetic as usual, but ``x / 0`` is 0 and √0 has a zero gradient.

    torch's own functions (``torch.sqrt``, ``torch.minimum`` …) accept it and treat division and roots the same way.
    """

    def __init__(self, value: Array) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [_value(a) for a in args]
        if func in (torch.div, torch.true_divide, torch.divide, Tensor.div, Tensor.__truediv__):
            return cls(ratio(*plain[:2]))
        if func in _INVERSES:
            return cls(ratio(1.0, _INVERSES[func](plain[0])))
        if func is torch.sqrt:
            return cls(root(plain[0]))
        if func in (torch.pow, torch.float_power) and isinstance(plain[1], int | float):
            return cls(_power(plain[0], plain[1]))
        named = {k: _value(v) for k, v in (kwargs or {}).items()}
        if isinstance(counts := _first_count(args), np.ndarray | np.generic):  # where thresholds are tuned
            result = func(*map(_as_tensors, plain), **named)
            return cls(result.numpy().astype(counts.dtype)) if isinstance(result, Tensor) else result
        result = func(*plain, **named)
        return cls(result) if isinstance(result, Tensor) else result

    def __add__(self, other: Any) -> SafeCount:
        return SafeCount(self.value + _value(other))

    def __sub__(self, other: Any) -> SafeCount:
        return SafeCount(self.value - _value(other))

    def __rsub__(self, other: Any) -> SafeCount:
        return SafeCount(_value(other) - self.value)

    def __mul__(self, other: Any) -> SafeCount:
        return SafeCount(self.value * _value(other))

    def __truediv__(self, other: Any) -> SafeCount:
        return SafeCount(ratio(self.value, _value(other) + 0 * self.value))

    def __rtruediv__(self, other: Any) -> SafeCount:
        return SafeCount(ratio(_value(other), self.value))

    def __pow__(self, exponent: float) -> SafeCount:
        return SafeCount(_power(self.value, exponent))

    def __neg__(self) -> SafeCount:
        return SafeCount(-self.value)

    def __abs__(self) -> SafeCount:
        return SafeCount(abs(self.value))

    def sqrt(self) -> SafeCount:
        """The safe square root."""
        return SafeCount(root(self.value))

    def _refuse(self, *_: Any) -> bool:
        raise ValueError(
            "a formula cannot branch on a count: it has no gradient there. Use arithmetic, sl.minimum or sl.maximum."
        )

    __radd__ = __add__
    __rmul__ = __mul__
    __bool__ = __gt__ = __lt__ = __ge__ = __le__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


def for_formulas(function: Callable[..., Array]) -> Callable[..., Array]:
    """Let a function of arrays take the counts of a user's formula as well."""

    @wraps(function)
    def accepting(*args: Any, **options: Any) -> Any:
        if any(isinstance(arg, SafeCount) for arg in args):
            return SafeCount(function(*map(_value, args), **options))
        return function(*args, **options)

    return accepting


def _first_count(args: Any) -> Any:
    """The array that the first count among arguments holds; they may stand in a list, as for torch.stack."""
    for arg in args:
        if isinstance(arg, SafeCount):
            return arg.value
        if isinstance(arg, tuple | list) and (found := _first_count(arg)) is not None:
            return found
    return None


def _as_tensors(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return type(x)(map(_as_tensors, x))
    return torch.as_tensor(x) if isinstance(x, np.ndarray | np.generic) else x


def _value(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(_value(v) for v in x)
    return x.value if isinstance(x, SafeCount) else x


def _power(base: Array, exponent: float) -> Array:
    if exponent < 0:
        return ratio(1.0, _power(base, -exponent))
    if 0 < exponent < 1:
        return root(base, 1 / exponent)
    if exponent % 1:  # of less than 0 it is none, as a root is
        base = maximum(base, 0.0)
    return float(base) ** exponent if isinstance(base, int) else base**exponent


# ---------------------------------------------------------------------------------------------------------------------
# Text
# ---------------------------------------------------------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """The names a text formula may use: the counts, and the rates derived from them."""
    rates = [name for name in (*METRICS, *METRICS.aliases) if METRICS[name].kind == "class"]
    return (*_COUNTS, *_SHARES, *rates)


class TextFormula:
    """A parsed formula, called like any metric. It keeps its text, which is all that is pickled."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._evaluate = _Parser(text).parse()

    def __call__(self, tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
        return self._evaluate(Counts(tp, fp, fn, tn))

    def __reduce__(self) -> tuple[type[TextFormula], tuple[str]]:
        return TextFormula, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextFormula) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def parse(text: str) -> TextFormula:
    """Parse a formula of the counts, such as ``"tp / (tp + fp + 2*fn)"``; anything unknown is a `ValueError`.

    >>> parse("2*tp / (2*tp + fp + fn)")(*torch.tensor([3.0, 1.0, 1.0, 5.0]))
    tensor(0.7500)
    """
    return TextFormula(text)


class _Parser:
    """Turn a syntax tree into nested closures; every node that is not on the list is an error."""

    def __init__(self, text: str) -> None:
        self.text = text

    def parse(self) -> Evaluate:
        if len(self.text) > _LONGEST:
            raise ValueError(f"a formula may have {_LONGEST} characters; this one has {len(self.text)}.")
        odd = next((i for i, c in enumerate(self.text) if not (" " <= c <= "~" or c in "\n\t")), None)
        if odd is not None:
            raise self._error("a formula is written in plain printable characters", odd)
        # One line and no leading space, so that a position in it is a position in what the user typed.
        self.text = self.text.replace("\n", " ").replace("\t", " ")
        self.text = self.text.strip()
        try:
            tree = ast.parse(self.text, mode="eval")
        except SyntaxError as error:
            if not self.text:
                raise ValueError("the formula is empty; write one, such as 2*tp / (2*tp + fp + fn).") from None
            at = error.offset - 1 if error.offset else len(self.text)  # it says nothing where something is missing
            raise self._error("the formula cannot be read", at) from None
        except (RecursionError, MemoryError):
            raise ValueError(f"the formula {self.text[:40]!r} is nested too deeply.") from None
        return self._node(tree.body, 0)

    def _error(self, problem: str, at: int) -> ValueError:
        return ValueError(f"{problem}, at character {at + 1}:\n  {self.text}\n  {' ' * at}^")

    def _node(self, node: ast.expr, depth: int) -> Evaluate:
        if depth > _DEEPEST:
            raise self._error("the formula is nested too deeply", node.col_offset)
        if isinstance(node, ast.Constant):
            return self._number(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            operand = self._node(node.operand, depth + 1)
            return (lambda c: -operand(c)) if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp):
            return self._operation(node, depth)
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        raise self._error(
            "a formula has numbers, counts, rates, + - * / ** and sqrt, abs, min, max, but nothing else", self._at(node)
        )

    def _at(self, node: ast.expr) -> int:
        """Where a node is what it is: behind its first part, where it begins with one."""
        part = _FIRST_PARTS.get(type(node))
        first = getattr(node, part) if part else None
        if first is None or first.end_col_offset is None:
            return node.col_offset
        behind = self.text[first.end_col_offset :]
        return first.end_col_offset + len(behind) - len(behind.lstrip(" )"))

    def _number(self, node: ast.Constant) -> Evaluate:
        number = _as_number(node)
        if number is None or abs(number) > _LARGEST:
            raise self._error("a constant in a formula must be a finite number", node.col_offset)
        return lambda c: number

    def _name(self, node: ast.Name) -> Evaluate:
        name = node.id
        if name in _COUNTS:
            index = _COUNTS.index(name)
            return lambda c: c[index]
        if name in _SHARES:
            return _SHARES[name]
        if name in METRICS and METRICS[name].kind == "class":
            rate = METRICS[name]
            return lambda c: rate(*c)
        known = f"{', '.join(_COUNTS)}, n, prevalence, and rates such as precision and recall"
        if name in METRICS:
            reads = f"{name} reads the counts of all classes, and a formula has those of one"
            raise self._error(f"{reads}; write it out of {known}", node.col_offset)
        raise self._error(f"unknown name {name!r} (a formula may use {known})", node.col_offset)

    def _operation(self, node: ast.BinOp, depth: int) -> Evaluate:
        left = self._node(node.left, depth + 1)
        if isinstance(node.op, ast.Pow):
            exponent = self._exponent(node.right)
            return lambda c: _power(left(c), exponent)
        right = self._node(node.right, depth + 1)
        if isinstance(node.op, ast.Add):
            return lambda c: left(c) + right(c)
        if isinstance(node.op, ast.Sub):
            return lambda c: left(c) - right(c)
        if isinstance(node.op, ast.Mult):
            return lambda c: left(c) * right(c)
        if isinstance(node.op, ast.Div):
            return lambda c: ratio(left(c), right(c) + 0 * c.tp)
        raise self._error("a formula knows the operators + - * / ** only", self._at(node))

    def _exponent(self, node: ast.expr) -> float:
        sign = 1.0
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -1.0, node.operand
        number = _as_number(node)
        if number is None or not 0 < number <= _STEEPEST:
            raise self._error(f"an exponent must be a number up to {_STEEPEST}", node.col_offset)
        return sign * number

    def _call(self, node: ast.Call, depth: int) -> Evaluate:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name not in _FUNCTIONS or node.keywords:
            raise self._error("a formula may call sqrt(x), abs(x), min(x, y) and max(x, y) only", node.func.col_offset)
        arity, function = _FUNCTIONS[name]
        if len(node.args) != arity:
            raise self._error(
                f"{name} takes {arity} argument{'s' * (arity != 1)}, got {len(node.args)}", node.col_offset
            )
        arguments = [self._node(argument, depth + 1) for argument in node.args]
        return lambda c: function(*(argument(c) for argument in arguments))


def _as_number(node: ast.expr) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
