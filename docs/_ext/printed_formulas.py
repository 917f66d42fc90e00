"""A metric's formula as MathML, traced from the function itself by calling it with symbolic terms.

Safe division and roots are printed as plain ones, because the page states the values at 0/0 beside the formula. A term
can also be evaluated, so that a test compares what is printed with what is computed.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepless.registry import Metric

#: The symbols of options.
GREEK = {"alpha": "α", "beta": "β", "threshold_probability": "p"}
#: The index of classes in formulas that read all of them.
CLASS = "k"
_LOOSE, _PRODUCT, _TIGHT, _WHOLE = 1, 2, 3, 4  # how tightly a term binds
#: Operations that need no parentheses, because they are drawn around their parts.
_AROUND = {
    "/": ("<mfrac>", "</mfrac>"),
    "√": ("<msqrt>", "</msqrt>"),
    "≠0": ("<mrow><mo>[</mo>", "<mo>≠</mo><mn>0</mn><mo>]</mo></mrow>"),
}


@dataclass(frozen=True, eq=False)
class Term:
    """An operation and its operands: terms, numbers or a name.

    >>> tp, fp = Term("name", ("tp",)), Term("name", ("fp",))
    >>> (2 * tp / (tp + fp)).value({"tp": 3.0, "fp": 1.0})
    1.5
    """

    operation: str
    parts: tuple[Any, ...]

    @staticmethod
    def __array_namespace__() -> Any:
        return Terms

    def __add__(self, other: Any) -> Term:
        if _same(other, 0):
            return self
        if isinstance(other, Term) and _same(self, other):
            return 2 * self
        return Term("+", (self, other))

    def __radd__(self, other: Any) -> Any:
        return self if _same(other, 0) else other if _same(self, 0) else Term("+", (other, self))

    def __sub__(self, other: Any) -> Term:
        return Term("−", (self, other))

    def __rsub__(self, other: Any) -> Term:
        return Term("−", (other, self))

    def __mul__(self, other: Any) -> Term:
        return Term("·", (self, other))

    def __rmul__(self, other: Any) -> Any:
        return 0.0 if _same(other, 0) else Term("·", (other, self))

    def __truediv__(self, other: Any) -> Term:
        return Term("/", (self, other))

    def __rtruediv__(self, other: Any) -> Term:
        return Term("/", (other, self))

    def __pow__(self, exponent: Any) -> Term:
        return Term("^", (self, exponent))

    def __lt__(self, other: Any) -> bool:
        return True  # options are assumed to be valid

    def __gt__(self, other: Any) -> bool:
        return True

    @property
    def shape(self) -> tuple[Size]:
        """One axis, over the classes."""
        return (Size("name", ("K",)),)

    def sum(self, axis: int) -> Term:
        """Sum over the classes."""
        return Term("Σ", (self,))

    def __getitem__(self, place: Any) -> Term:
        return Term("Π", (self,))  # the last step of `numerics.product`: see Size

    def value(self, counts: Mapping[str, Any]) -> Any:
        """Evaluate the term; counts are numbers, or lists with one number per class."""
        return _value(self, counts)

    def mathml(self) -> str:
        """Return the formula as HTML for the page."""
        return f'<div class="formula"><math displaystyle="true">{_mathml(self)}</math></div>'


class Size(Term):
    """The number of classes; never above 1, so that `stepless.numerics.product` goes straight to its last step."""

    def __gt__(self, other: Any) -> bool:
        return False


class Terms:
    """The functions of an array library that formulas call."""

    @staticmethod
    def abs(x: Term) -> Term:
        """Return the term itself: no count is below 0."""
        return x

    @staticmethod
    def less(x: Term, value: float) -> Term:
        """Compare with a bound near 0, which is printed as 0."""
        return Term("=0", (x,))

    @staticmethod
    def logical_not(x: Term) -> Term:
        """Negate a comparison with 0."""
        return Term("≠0", x.parts)

    @staticmethod
    def greater(x: Term, value: float) -> Term:
        """Compare with 0: counts are never below it."""
        return Term("≠0", (x,))

    @staticmethod
    def where(condition: Term, yes: Any, no: Any) -> Any:
        """Return the branch where the formula is defined."""
        return yes

    @staticmethod
    def sqrt(x: Term) -> Term:
        """The square root."""
        return Term("√", (x,))


def printed(metric: Metric) -> Term | None:
    """Return the formula of a metric of counts, or None for one of the whole matrix, which is described in words."""
    if metric.kind == "matrix":
        return None
    options = {name: Term("name", (GREEK[name],)) for name in metric.defaults if name in GREEK}
    counts = [Term("name", (name,)) for name in ("tp", "fp", "fn", "tn")]
    result = _with_n(metric.function(*counts, **options))
    plain = _in_counts(result)
    return plain if _same_value(plain, result) else result


def _in_counts(term: Any) -> Any:
    """Replace shares of n by counts: some formulas are computed in shares, to keep float32's digits."""
    if not isinstance(term, Term):
        return term
    if term.operation == "/" and [getattr(part, "operation", "") for part in term.parts] == ["name", "name"]:
        return term.parts[0] if term.parts[1].parts == ("n",) else term
    return Term(term.operation, tuple(_in_counts(part) for part in term.parts))


def _same_value(a: Any, b: Any) -> bool:
    counts = {"tp": [7.0, 11.0], "fp": [2.0, 3.0], "fn": [3.0, 2.0], "tn": [11.0, 7.0]}
    options = {"α": 0.3, "β": 1.7, "p": 0.2, "K": 2.0}
    return bool(np.allclose(_value(a, {**counts, **options}), _value(b, {**counts, **options}), rtol=1e-12))


def _with_n(term: Any) -> Any:
    """Replace the sum of all four cells by n."""
    if not isinstance(term, Term):
        return term
    if term.operation == "+" and sorted(_summands(term)) == ["fn", "fp", "tn", "tp"]:
        return Term("name", ("n",))
    return Term(term.operation, tuple(_with_n(part) for part in term.parts))


def _summands(term: Any) -> list[str]:
    if isinstance(term, Term) and term.operation == "+":
        return [name for part in term.parts for name in _summands(part)]
    return [str(term.parts[0])] if isinstance(term, Term) and term.operation == "name" else ["?"]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Term) and isinstance(b, Term):
        return (
            a.operation == b.operation
            and len(a.parts) == len(b.parts)
            and all(_same(x, y) for x, y in zip(a.parts, b.parts, strict=True))
        )
    return not isinstance(a, Term) and not isinstance(b, Term) and a == b


def _value(term: Any, counts: Mapping[str, Any]) -> Any:
    if not isinstance(term, Term):
        return term
    if term.operation == "name":
        return _n(counts) if term.parts[0] == "n" else counts[term.parts[0]]
    values = [_value(part, counts) for part in term.parts]
    if term.operation in ("Σ", "Π"):
        return sum(values[0]) if term.operation == "Σ" else math.prod(values[0])
    wide = [len(value) for value in values if isinstance(value, list)]
    if wide:
        columns = [value if isinstance(value, list) else [value] * wide[0] for value in values]
        return [_number(term.operation, row) for row in zip(*columns, strict=True)]
    return _number(term.operation, values)


def _n(counts: Mapping[str, Any]) -> Any:
    cells = [counts[name] for name in ("tp", "fp", "fn", "tn")]
    return [sum(row) for row in zip(*cells, strict=True)] if isinstance(cells[0], list) else sum(cells)


def _number(operation: str, of: Any) -> float:
    a, b = (*of, 0.0)[:2]
    return {
        "+": lambda: a + b, "−": lambda: a - b, "·": lambda: a * b, "/": lambda: a / b, "^": lambda: a**b,
        "√": lambda: math.sqrt(a), "≠0": lambda: float(a != 0),
    }[operation]()  # fmt: skip


def _tightness(term: Any) -> int:
    if not isinstance(term, Term):
        return _WHOLE
    held = {"+": _LOOSE, "−": _LOOSE, "·": _PRODUCT, "Σ": _PRODUCT, "Π": _PRODUCT, "name": _WHOLE, "≠0": _WHOLE}
    return held.get(term.operation, _TIGHT)


def _mathml(term: Any, at_least: int = 0) -> str:
    inner = _bare(term)
    return f"<mrow><mo>(</mo>{inner}<mo>)</mo></mrow>" if _tightness(term) < at_least else inner


def _bare(term: Any) -> str:
    if not isinstance(term, Term):
        return f"<mn>{term:g}</mn>"
    parts = term.parts
    around = _AROUND.get(term.operation)
    if around is not None:
        return around[0] + "".join(f"<mrow>{_mathml(part)}</mrow>" for part in parts) + around[1]
    if term.operation == "name":
        upright = ' mathvariant="normal"' if len(parts[0]) > 1 else ""
        return f"<mi{upright}>{html.escape(parts[0])}</mi>"
    if term.operation == "^":
        return f"<msup><mrow>{_mathml(parts[0], _WHOLE)}</mrow><mrow>{_exponent(parts[1])}</mrow></msup>"
    if term.operation in ("Σ", "Π"):
        sign = {"Σ": "∑", "Π": "∏"}[term.operation]
        return f"<mrow><munder><mo>{sign}</mo><mi>{CLASS}</mi></munder>{_mathml(parts[0], _PRODUCT)}</mrow>"
    return _between(term)


def _between(term: Term) -> str:
    """A sum, a difference or a product."""
    floor = _PRODUCT if term.operation == "·" else 0
    right = _PRODUCT if term.operation == "−" else floor
    sign = '<mspace width="0.17em"/>' if term.operation == "·" else f"<mo>{term.operation}</mo>"
    return f"<mrow>{_mathml(term.parts[0], floor)}{sign}{_mathml(term.parts[1], right)}</mrow>"


def _exponent(term: Any) -> str:
    if isinstance(term, Term) and term.operation == "/":
        return f"{_mathml(term.parts[0])}<mo>/</mo>{_mathml(term.parts[1])}"
    return _mathml(term)
