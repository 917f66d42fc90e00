"""The metrics as JavaScript: each formula traced once, so that the report's page computes what Python computes.

No formula is typed a second time. A metric is called with symbols (`stepless.kernels.tracing`) in place of counts,
averaged by `stepless.averaging` as ever, and the arithmetic that it wrote down is printed as a function of the page.
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

#: What traced code calls, as JavaScript.
PRELUDE = "const where = (holds, yes, no) => holds ? yes : no, power = Math.pow, nan = NaN, inf = Infinity;"

#: How long all formulas together may be; those of many classes are long, because each class has its own lines.
LONGEST = 300_000


@dataclass(frozen=True)
class Formula:
    """A traced metric: assignments to ``v0, v1, …`` and the name of the result.

    They read ``c``, the cells tp, fp, fn, tn of one class after the other, or ``m``, the K×K matrix row by row, and
    ``p``, what a false alarm and a miss cost.
    """

    lines: tuple[str, ...]
    result: str

    @property
    def javascript(self) -> str:
        """A function of ``(c, m, p)``."""
        body = ",".join(line.replace(" = ", "=", 1) for line in self.lines)
        return f"(c,m,p)=>{{const {body};return {self.result}}}"


class _Share(Symbol):
    """A symbol that is known to lie strictly between 0 and 1, for a metric that checks it."""

    __slots__ = ()

    def __gt__(self, other: Any) -> Any:
        return True

    def __lt__(self, other: Any) -> Any:
        return True


def trace(metric: Metric, classes: int = 1, task: Task = "binary", average: Average = "macro") -> Formula | None:
    """The metric of the counts of all classes, as straight-line code; None if it does more than arithmetic.

    What a false alarm and a miss cost is left open in ``cost`` and ``net_benefit``, unless they have options bound or
    there are more than two classes to mistake for each other.

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


#: Options that say what errors cost.
_PRICES = {"costs", "threshold_probability"}


def is_priced(metric: Metric) -> bool:
    """Whether the metric's value depends on what errors cost, and nobody has said what they do."""
    return bool(_PRICES & set(metric.defaults)) and METRICS.get(metric.name) == metric


def _priced(metric: Metric, tape: Tape) -> Metric:
    if not is_priced(metric):
        return metric
    alarm, miss = tape.write("p[0]", []), tape.write("p[1]", [])
    if "costs" in metric.defaults:
        return metric.bind(costs=((0.0, alarm), (miss, 0.0)))
    share = np.array([_Share(tape, (alarm / (alarm + miss)).index)])  # an array, to be multiplied with arrays
    return replace(metric, options=(("threshold_probability", share),))


def script(formulas: Sequence[Formula | None]) -> str:
    """An array of functions, null where there is none."""
    return "[" + ",\n".join("null" if f is None else f.javascript for f in formulas) + "]"
