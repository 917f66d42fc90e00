"""Constraints as text: ``"precision >= 0.9"``, ``"fpr <= 0.01"``, several joined by ``and`` or in a sequence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepless.formula import resolve
from stepless.metrics import METRICS
from stepless.numerics import Array
from stepless.registry import Metric

_FORM = re.compile(r"^(?P<metric>[^<>=,]+?)\s*(?P<sign>>=|<=)\s*(?P<bound>[-+.\deE]+)$", re.DOTALL)


@dataclass(frozen=True)
class Constraint:
    """A metric held above or below a bound."""

    metric: Metric
    at_least: bool
    bound: float

    def violation(self, value: Array) -> Array:
        """How far ``value`` is on the wrong side of the bound; negative where the constraint holds."""
        return self.bound - value if self.at_least else value - self.bound

    def __str__(self) -> str:
        return f"{self.metric.name} {'>=' if self.at_least else '<='} {self.bound:g}"


def parse_constraints(subject_to: str | Constraint | Sequence[str | Constraint] | None) -> tuple[Constraint, ...]:
    """Read constraints from text.

    >>> [str(c) for c in parse_constraints("precision >= 0.9 and fpr <= 0.01")]
    ['precision >= 0.9', 'fpr <= 0.01']
    """
    if subject_to is None:
        return ()
    if isinstance(subject_to, (str, Constraint)):
        subject_to = [subject_to]
    if not isinstance(subject_to, Sequence):
        raise _not_text(subject_to)
    parsed: list[Constraint] = []
    for entry in subject_to:
        if isinstance(entry, Constraint):
            parsed.append(entry if isinstance(entry.metric, Metric) else replace(entry, metric=resolve(entry.metric)))
            continue
        if not isinstance(entry, str):
            raise _not_text(entry)
        parsed.extend(_parse(part) for part in re.split(r"\band\b", entry))
    return tuple(parsed)


def _not_text(entry: object) -> TypeError:
    return TypeError(f'subject_to must be text such as "precision >= 0.9"; got {type(entry).__name__}.')


def _parse(text: str) -> Constraint:
    match = _FORM.match(text.strip())
    try:
        bound = float(match["bound"]) if match else None
    except ValueError:
        bound = None
    if match is None or bound is None:
        raise ValueError(
            f'a constraint is a metric, ">=" or "<=", and a number, as in "precision >= 0.9"; got {text.strip()!r}.'
        )
    metric = resolve(match["metric"])
    at_least = match["sign"] == ">="
    known = metric.name in METRICS  # the best of a formula that grows with the data is not known beforehand
    beyond = bound > metric.best if metric.greater_is_better else bound < metric.best
    if known and beyond and at_least == metric.greater_is_better:
        raise ValueError(f"{text.strip()!r} can never hold: the best {metric.name} is {metric.best:g}.")
    return Constraint(metric, at_least, bound)
