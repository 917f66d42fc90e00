"""Constraints as text: ``"precision >= 0.9"``, ``"fpr <= 0.01"``, several joined by ``and`` or in a sequence."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepless.formula import resolve
from stepless.metrics import METRICS
from stepless.numerics import Array
from stepless.ranking import find_ranking
from stepless.registry import Metric

_FORM = re.compile(r"^(?P<metric>[^<>=]+?)\s*(?P<sign>>=|<=)\s*(?P<bound>[-+.\deE]+)$", re.DOTALL)


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric: ``metric >= bound`` if ``at_least``, otherwise ``metric <= bound``."""

    metric: Metric
    at_least: bool
    bound: float

    def violation(self, value: Array) -> Array:
        """Return how far ``value`` is on the wrong side of the bound: 0 or less if the constraint holds."""
        return self.bound - value if self.at_least else value - self.bound

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.metric.options)
        name = f"{self.metric.name}({options})" if options else self.metric.name
        return f"{name} {'>=' if self.at_least else '<='} {self.bound:.12g}"


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
            parsed.append(entry if isinstance(entry.metric, Metric) else replace(entry, metric=_resolved(entry.metric)))
            continue
        if not isinstance(entry, str):
            raise _not_text(entry)
        parsed.extend(_parse(part) for part in re.split(r"\band\b", entry))
    for constraint in parsed:
        _check(constraint)
    return tuple(parsed)


def _check(constraint: Constraint) -> None:
    """Raise if the bound is not finite, or if no score or every score meets it."""
    if constraint.at_least not in (True, False):  # text would be true, and so "<=" a lower bound
        raise TypeError(f'at_least must be True (">=") or False ("<="); got {constraint.at_least!r}.')
    if not hasattr(constraint.bound, "__float__"):
        raise TypeError(f"the bound of a constraint must be a finite number; got {constraint.bound!r}.")
    if not math.isfinite(constraint.bound):
        raise ValueError(f"the bound of a constraint must be a finite number; got {constraint}.")
    metric = constraint.metric
    if metric.name not in METRICS:  # the range of a formula is unknown
        return
    least, most = metric.range
    easiest, hardest = (most, least) if constraint.at_least else (least, most)
    word = {easiest: "worst", hardest: "worst", metric.best: "best"}
    if constraint.violation(easiest) > 0:
        raise ValueError(f"'{constraint}' can never hold: the {word[easiest]} {metric.name} is {easiest:g}.")
    if constraint.violation(hardest) < 0:
        raise ValueError(f"'{constraint}' always holds: the {word[hardest]} {metric.name} is {hardest:g}.")


def _resolved(metric: str | Metric) -> Metric:
    ranking = find_ranking(metric)
    if ranking is not None:
        raise ValueError(
            f"a constraint is about decisions, and {ranking.name!r} about the order of scores; constrain a metric of"
            " the counts, such as recall."
        )
    return resolve(metric)


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
    return Constraint(_resolved(match["metric"]), match["sign"] == ">=", bound)
