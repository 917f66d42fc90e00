"""Metrics as JavaScript, traced from their Python formulas, so that both compute the same.

A metric is called with symbols (`stepless.kernels.tracing`) in place of counts and averaged by `stepless.averaging`;
the recorded arithmetic is printed as a JavaScript function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepless.averaging import Average, evaluate
from stepless.kernels.tracing import Symbol, Tape
from stepless.metrics import METRICS
from stepless.registry import Metric
from stepless.tasks import Task

#: Definitions that the traced code needs.
PRELUDE = "const where = (holds, yes, no) => holds ? yes : no, power = Math.pow, nan = NaN, inf = Infinity;"

#: The most characters of all formulas together; those of many classes are long, as each class has its own lines.
LONGEST = 300_000


@dataclass(frozen=True)
class Formula:
    """A traced metric: assignments to ``v0, v1, …`` and the name of the result.

    The lines read ``c``, the counts tp, fp, fn, tn of each class in turn, or ``m``, the K×K matrix row by row, and
    ``p``, the costs of a false alarm and of a miss.
    """

    lines: tuple[str, ...]
    result: str

    @property
    def javascript(self) -> str:
        """A function of ``(c, m, p)``."""
        body = ",".join(line.replace(" = ", "=", 1) for line in self.lines)
        return f"(c,m,p)=>{{const {body};return {self.result}}}"


class _Share(Symbol):
    """A symbol that passes the check of a metric for a value strictly between 0 and 1."""

    __slots__ = ()

    def __gt__(self, other: Any) -> Any:
        return True

    def __lt__(self, other: Any) -> Any:
        return True


def trace(metric: Metric, classes: int = 1, task: Task = "binary", average: Average = "macro") -> Formula | None:
    """Trace a metric of the counts of all classes; None if it does more than arithmetic.

    In ``cost`` and ``net_benefit`` the costs of errors stay variables, except in multiclass tasks and if their options
    are bound.

    >>> trace(METRICS["precision"]).lines[:3]
    ('v0 = c[0]', 'v1 = c[1]', 'v4 = v0 + v1')
    """
    tape = Tape()
    matrix = task == "multiclass" and metric.kind == "matrix"
    size = classes if matrix else 4
    table = np.empty(classes * size, dtype=object)
    table[:] = [tape.write(f"{'m' if matrix else 'c'}[{i}]", []) for i in range(classes * size)]
    try:
        priced = _priced(metric, tape) if task != "multiclass" else metric
        traced = evaluate(priced, table.reshape(1, 1, classes, size), task, average, matrix=matrix)
    except (TypeError, AttributeError, ValueError):
        return None
    result = traced.item() if isinstance(traced, np.ndarray) else traced
    if not isinstance(result, Symbol):
        return None
    return Formula(tuple(tape.lines(result.index)), str(result))


#: Options that set the costs of errors.
_PRICES = {"costs", "threshold_probability"}


def is_priced(metric: Metric) -> bool:
    """Whether the metric depends on costs of errors that are not bound."""
    return bool(_PRICES & set(metric.defaults)) and METRICS.get(metric.name) == metric


def _priced(metric: Metric, tape: Tape) -> Metric:
    if not is_priced(metric):
        return metric
    alarm, miss = tape.write("p[0]", []), tape.write("p[1]", [])
    if "costs" in metric.defaults:
        return metric.bind(costs=((0.0, alarm), (miss, 0.0)))
    share = np.array([_Share(tape, (alarm / (alarm + miss)).index)])  # an array, because it is multiplied with arrays
    return replace(metric, options=(("threshold_probability", share),))


def script(formulas: Sequence[Formula | None]) -> str:
    """Return a JavaScript array of functions, with null for None."""
    return "[" + ",\n".join("null" if f is None else f.javascript for f in formulas) + "]"
