"""Formulas as text: a parser that accepts a short list of syntax and points at the first character of anything else.

No text ever reaches `eval`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from stepless.counts import Counts
from stepless.metrics import METRICS
from stepless.numerics import Array, maximum, minimum, ratio, root
from stepless.safe_counts import power

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
_LONGEST, _DEEPEST, _LARGEST, _STEEPEST = 1000, 50, 1e300, 16

#: The field that holds the leftmost part of a node, if the node begins with another.
_FIRST_PARTS: dict[type[ast.expr], str] = {
    ast.BinOp: "left", ast.Compare: "left", ast.IfExp: "body", ast.Attribute: "value", ast.Subscript: "value",
    ast.NamedExpr: "target",
}  # fmt: skip

Evaluate = Callable[[Counts], Array]


def names() -> tuple[str, ...]:
    """The names a text formula may use: the counts, and the rates derived from them."""
    rates = [name for name in (*METRICS, *METRICS.aliases) if METRICS[name].kind == "class"]
    return (*_COUNTS, *_SHARES, *rates)


class TextFormula:
    """A parsed formula, called like any metric, and pickled as its text."""

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
    """Parse a formula of the counts, such as ``"tp / (tp + fp + 2*fn)"``. Raises `ValueError` for anything unknown.

    >>> parse("2*tp / (2*tp + fp + fn)")(3.0, 1.0, 1.0, 5.0)
    0.75
    """
    return TextFormula(text)


class _Parser:
    """A compiler of syntax trees into nested closures; any kind of node that is not on the list is an error."""

    def __init__(self, text: str) -> None:
        self.text = text

    def parse(self) -> Evaluate:
        if len(self.text) > _LONGEST:
            raise ValueError(f"a formula may have {_LONGEST} characters; this one has {len(self.text)}.")
        odd = next((i for i, c in enumerate(self.text) if not (" " <= c <= "~" or c in "\n\t")), None)
        if odd is not None:
            raise self._error("a formula is written in plain printable characters", odd)
        # One line and no leading space, so that a position in it is a position in what the user typed.
        self.text = self.text.replace("\n", " ").replace("\t", " ").strip()
        if "#" in self.text:  # Python would drop the rest of what is now one line
            raise self._error("a formula has no comments", self.text.index("#"))
        try:
            tree = ast.parse(self.text, mode="eval")
        except SyntaxError as error:
            if not self.text:
                raise ValueError("the formula is empty; write one, such as 2*tp / (2*tp + fp + fn).") from None
            at = error.offset - 1 if error.offset else len(self.text)  # no offset: the text ends too early
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
        """The position of a node's operator or, if it does not begin with another node, its own."""
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
            return lambda c: power(left(c), exponent)
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
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
