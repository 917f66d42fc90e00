"""A metric in whatever form the user has it: a name, a formula as text, or a Python callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepless.counts import Counts
from stepless.formula_text import names, parse
from stepless.metrics import METRICS
from stepless.numerics import Array
from stepless.registry import Metric, is_even, is_share, snake_case
from stepless.safe_counts import SafeFormula

#: How much of an unknown name an error repeats.
_LONGEST_NAME = 60

#: What each kind of metric gives for counts of shape (2, 2), and for what.
_GIVES: dict[str, tuple[tuple[int, ...], str]] = {
    "class": ((2, 2), "entry of (tp, fp, fn, tn)"),
    "joint": ((2,), "row of (tp, fp, fn, tn), whose last axis holds the classes"),
    "matrix": ((), "matrix, in the last two axes"),
}


def with_costs_of_decisions(metric: Metric, positive: int) -> Metric:
    """Reorder a metric's 2×2 matrix of costs from the order of the classes to negative, positive.

    Args:
        metric: Any metric. One without such a matrix is returned unchanged.
        positive: The index of the positive class.

    Example:
        >>> with_costs_of_decisions(METRICS["cost"].bind(costs=[[0, 10], [1, 0]]), 0).option("costs")
        ((0, 1), (10, 0))
    """
    costs = dict(metric.options).get("costs")
    if positive == 1 or not isinstance(costs, tuple) or [len(row) for row in costs if isinstance(row, tuple)] != [2, 2]:
        return metric
    return metric.bind(costs=[row[::-1] for row in costs[::-1]])


def resolve(metric: Any, *, maximize: bool | None = None, **options: Any) -> Metric:
    """Return the `Metric` for a name, a text formula, a callable or a `Metric`.

    Args:
        metric: What to score by.
        maximize: For formulas only: whether greater is better. By default a formula is maximised, unless its value is
            lower for mostly right decisions than for mostly wrong ones; so a formula that counts errors is minimised.
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
    known: Any = getattr(metric, "__name__", None)
    if known in METRICS and METRICS[known].function is metric:  # a registered function stands for its metric
        metric = METRICS[known]
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
    with torch._C._DisableFuncTorch():  # within vmap or grad, too, a formula is tried on plain numbers
        if isinstance(formula, str):
            return _probed(formula.strip(), parse(formula), maximize)
        return _probed(getattr(formula, "__name__", type(formula).__name__), SafeFormula(formula), maximize)


class _Made:
    """The formulas of compiled functional losses, as attributes, which torch.compile can guard."""


_MADE = _Made()


def _make_ahead(formula: str | Callable[..., Any], maximize: bool | None) -> str:
    """Make a metric outside of torch.compile's trace and return its name in `_MADE`."""
    name = f"{formula if isinstance(formula, str) else id(formula)} {maximize}"  # kept alive, so its id stays unique
    if not hasattr(_MADE, name):
        setattr(_MADE, name, _make(formula, maximize))
    return name


# as torch.compiler.assume_constant_result does, which takes seconds because it imports the compiler
_make_ahead._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check_options(metric: Metric) -> None:
    """Check that numeric options are in range and that the formula accepts them, before the first batch."""
    for name, value in metric.options:
        default = metric.defaults[name]
        if isinstance(default, float):
            wanted = "be a number or nan" if name == "zero_division" else "be a finite number that is not negative"
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or (name != "zero_division" and not 0 <= value < math.inf):
                raise ValueError(f"{name} must {wanted}; got {value!r}.")
        if name == "costs" and value is not None:
            rows = value if isinstance(value, tuple) else (value,)
            flat = [cost for row in rows for cost in (row if isinstance(row, tuple) else (row,))]
            if not all(isinstance(cost, (int, float)) and math.isfinite(cost) for cost in flat):
                raise ValueError(f"costs must be finite; got {value!r}.")
            if not isinstance(value, tuple) or any(not isinstance(r, tuple) or len(r) != len(rows) for r in rows):
                raise ValueError(f"costs must be K×K for K classes (rows the truth); got {value!r}.")
    if metric.name == "cost" and metric.options:
        return  # the number of classes is unknown before the first batch
    cells = torch.ones(2, 2, dtype=torch.float64)
    scores = metric(*(cells,) if metric.kind == "matrix" else Counts(cells, cells, cells, cells))
    shape, each = _GIVES[metric.kind]
    if not isinstance(scores, Tensor) or scores.shape != shape:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise ValueError(f"metric {metric.name!r} must give one number for each {each}; got {got} for shape (2, 2).")


#: Counts (tp, fp, fn, tn) to try formulas on: all right, mostly right, mostly wrong.
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
        cause = f"{type(error).__name__}: {error}".rstrip(".")
        raise ValueError(
            f"the formula {name!r} could not be computed from (tp, fp, fn, tn): {cause}. It must be arithmetic on the"
            " four counts."
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
    if isinstance(function, SafeFormula):  # a text formula is always elementwise
        alone = torch.stack([function(*counts).sum() for counts in probe.detach()[:, :, None]])
        if not torch.allclose(alone, value.detach(), equal_nan=True):
            raise ValueError(
                f"the formula {name!r} must treat each entry of (tp, fp, fn, tn) by itself: they are those of other"
                " classes, labels or images."
            )
    best, good, bad = value.tolist()
    if maximize is None:
        maximize = not good < bad
    best = best if math.isfinite(best) else 0.0
    return Metric(name, function, best, maximize, bounded=is_share(function), even=is_even(function, "class"))
