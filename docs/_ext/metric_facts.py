"""Facts about a metric, found by computing them: its range, its values at 0/0, and notes on its gradient."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import torch
from printed_formulas import printed

import stepless as sl
from stepless.averaging import evaluate
from stepless.registry import Metric

#: The range is taken over every table of these counts.
CELLS = (0.0, 1.0, 2.0, 10.0)
#: What a batch may lack, each with examples of counts (tp, fp, fn, tn).
LACKING: dict[str, list[tuple[float, float, float, float]]] = {
    "no rows": [(0, 0, 0, 0)],
    "no positives": [(0, 0, 0, 3), (0, 2, 0, 3), (0, 3, 0, 0)],
    "no negatives": [(3, 0, 0, 0), (3, 0, 2, 0), (0, 0, 3, 0)],
    "no positive decisions": [(0, 0, 0, 3), (0, 0, 2, 3), (0, 0, 3, 0)],
    "no negative decisions": [(3, 0, 0, 0), (2, 3, 0, 0), (0, 3, 0, 0)],
    "no right decisions": [(0, 3, 0, 0), (0, 2, 3, 0), (0, 0, 3, 0)],
    "neither positives nor positive decisions": [(0, 0, 0, 3)],
    "neither negatives nor negative decisions": [(3, 0, 0, 0)],
}
_ONE_CLASS = {"positives": torch.zeros(3), "negatives": torch.ones(3)}  #: by the class that is missing
_SCORES = torch.tensor([-1.0, 0.5, 1.5], dtype=torch.float64)


def value(metric: Metric, *cells: float) -> float:
    """Compute the metric of a yes/no decision with these counts."""
    table = torch.tensor(cells, dtype=torch.float64).reshape(1, 1, 1, 4)
    return float(evaluate(metric, table, "binary", "macro"))


def value_range(metric: Metric) -> tuple[str, str]:
    """Return the least and the greatest value over all tables of `CELLS`.

    >>> value_range(sl.METRICS["mcc"]), value_range(sl.METRICS["gilbert"])
    (('−1', '1'), ('−1/3', '1'))
    """
    values = [value(metric, *cells) for cells in itertools.product(CELLS, repeat=4)][1:]  # without that of no rows
    return number(min(values)), number(max(values))


def number(value: float) -> str:
    """Format a value, as a fraction where it is a simple one."""
    if math.isnan(value):
        return "NaN"
    nearest = Fraction(value).limit_denominator(12)
    exact = abs(float(nearest) - value) < 1e-9
    return (str(nearest) if exact else f"{value:.3g}").replace("-", "−")


def at_nothing(metric: Metric) -> str:
    """Say what the metric is where its formula divides by 0.

    >>> print(at_nothing(sl.METRICS["f1"]))
    0 with no rows, or neither positives nor positive decisions.
    >>> print(at_nothing(sl.METRICS["markedness"]))
    −1 with no rows. With no positive decisions, or no negative decisions, the fraction that is 0/0 counts as 0.
    """
    lacks: dict[str, set[str]] = {}
    told: set[tuple[float, float, float, float]] = set()
    for lack, tables in LACKING.items():
        if not told.issuperset(tables) and all(_is_undefined(metric, cells) for cells in tables):
            lacks[lack] = {number(value(metric, *cells)) for cells in tables}
            told.update(tables)
    return _said(lacks)


def _said(lacks: dict[str, set[str]]) -> str:
    """Phrase what is lacking, grouped by the resulting value."""
    by_value: dict[str, list[str]] = {}
    for lack, values in lacks.items():
        by_value.setdefault(values.copy().pop() if len(values) == 1 else "", []).append(lack)
    rest = by_value.pop("", [])
    sentences = [f"{known} with {', or '.join(causes)}." for known, causes in by_value.items()]
    if rest:  # the value depends on the other counts
        sentences.append(f"With {', or '.join(rest)}, the fraction that is 0/0 counts as 0.")
    return " ".join(sentences)


def _is_undefined(metric: Metric, cells: tuple[float, float, float, float]) -> bool:
    """Whether the formula divides by 0; that of a matrix metric, if a perfect decision misses the best value."""
    term, (tp, fp, fn, tn) = printed(metric), cells
    if term is None:
        return not any(cells) or (fp == fn == 0 and value(metric, *cells) != metric.best)
    both = {"tp": [tp, tn], "fp": [fp, fn], "fn": [fn, fp], "tn": [tn, tp]}  # as the two classes see it
    one = dict(zip(("tp", "fp", "fn", "tn"), cells, strict=True))
    try:
        term.value({**(both if metric.kind == "joint" else one), "α": 0.5, "β": 1.0, "p": 0.5, "K": 2.0})
    except ZeroDivisionError:
        return True
    return False


def gradient_notes(metric: Metric) -> list[str]:
    """Describe the gradient in batches of one class, and where it is unbounded."""
    loss_fn = sl.MetricLoss(metric)
    notes = [_silence([kind for kind, target in _ONE_CLASS.items() if _unmoved(loss_fn, target)])]
    if metric.kind != "matrix" and _steep(metric):
        notes.append("Its slope grows without bound as what is under a root approaches 0, and is taken as 0 there.")
    return notes


def _silence(silent: list[str]) -> str:
    if silent:
        return f"A batch without {' or without '.join(silent)} has no gradient, and teaches nothing."
    return "A batch without positives, or without negatives, still has a gradient."


def _unmoved(loss_fn: sl.MetricLoss, target: torch.Tensor) -> bool:
    scores = _SCORES.clone().requires_grad_()
    loss_fn(scores, target.double()).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all(), f"{loss_fn} has a gradient that is not finite"
    return bool((scores.grad.abs() < 1e-12).all())  # up to rounding


def _steep(metric: Metric) -> bool:
    def slope(tp: float, fp: float) -> float:
        cells = torch.tensor([tp, fp, 1.0 - tp, 2.0], dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(evaluate(metric, cells.reshape(1, 1, 1, 4), "binary", "macro"), cells)
        return float(found[0].abs())

    # as tp approaches 0, with and without false positives
    return any(slope(1e-10, fp) > 100 * slope(1e-4, fp) for fp in (1.0, 0.0))


def ranking_range(name: str, **options: Any) -> tuple[str, str]:
    """Return the least score of the worst order and the greatest of the best one, for few positives and many.

    >>> ranking_range("auroc"), ranking_range("average_precision"), ranking_range("precision_at_k", k=2)
    (('0', '1'), ('0', '1'), ('0', '1'))
    """
    rows = 100_000  # average precision approaches 0 only if positives are rare
    targets = [torch.arange(rows) < positives for positives in (1, 10, rows // 2)]
    scores = [[float(sl.score(sign * y.double(), y, name, **options)) for y in targets] for sign in (-1.0, 1.0)]
    return number(round(min(scores[0]), 4)), number(max(scores[1]))


def ranking_at_nothing(name: str, **options: Any) -> str:
    """Say what the score of a ranking is where one class is missing.

    >>> ranking_at_nothing("auroc"), ranking_at_nothing("average_precision")
    ('NaN with no positives, or no negatives.', '0 with no positives. 1 with no negatives.')
    """
    return _said(
        {
            f"no {kind}": {number(float(sl.score(_SCORES, target.int(), name, **options)))}
            for kind, target in _ONE_CLASS.items()
        }
    )


def ranking_gradient_notes(name: str, **options: Any) -> list[str]:
    """Describe the gradient of a ranking in a batch of one class, and for far pairs."""
    loss_fn = sl.MetricLoss(name, **options)
    silent = [kind for kind, target in _ONE_CLASS.items() if _unmoved(loss_fn, target)]
    return [
        _silence(silent),
        "A pair that is far apart in the wrong order still has a gradient." if _pulls(loss_fn) else "",
    ]


def _pulls(loss_fn: sl.MetricLoss) -> bool:
    scores = torch.tensor([-50.0, 50.0, 60.0, 55.0], dtype=torch.float64, requires_grad=True)
    loss_fn(scores, torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)).backward()
    return bool(scores.grad is not None and scores.grad[0].abs() > 1e-6)
