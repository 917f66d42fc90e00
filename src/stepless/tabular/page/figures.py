"""Turn an `Outcome` into the data of the report's page: curves on common grids, counts at cuts, and formulas.

The page has a bounded size whatever the data: cuts, points of curves, rows of a multiclass sample and lengths of names
are limited, and the page says what was left out.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepless.constraints import Constraint, parse_constraints
from stepless.counts import Counts
from stepless.cuts.sweep import Floats, score_counts, sweep
from stepless.formula import resolve, with_costs_of_decisions
from stepless.metrics import METRICS
from stepless.registry import Metric
from stepless.scoring import score
from stepless.tabular.outcome import Entry, Outcome, Threshold, clip, format_metric
from stepless.tabular.page.formulas import LONGEST, Formula, is_priced, script, trace
from stepless.tabular.page.reliability import brier, log_loss, reliability
from stepless.tasks import Task

_CUTS = 600  # cuts of one label, over all contestants
_ALL_CUTS = 24_000  # cuts × labels × contestants
_POINTS = 161  # points of a curve
_UNITS = 12  # classes or labels with curves of their own
_SAMPLE_BYTES = 700_000  # size of a multiclass sample
_LONGEST_TEXT = 160


@dataclass(frozen=True)
class PageData:
    """The data of the page, to be embedded as JSON, and its formulas as JavaScript."""

    held: dict[str, Any]
    formulas: str


def page_data(outcome: Outcome) -> PageData:
    """Return the data and formulas of the page.

    Args:
        outcome: The result of `stepless.compare`.
    """
    entries = shown(outcome)
    metrics, all_formulas, one_formulas = _formulas(outcome)
    held = {
        "task": outcome.task,
        "metric": metric_name(outcome),
        "average": None if outcome.task == "binary" else _average(outcome),
        "asked": outcome.average if outcome.average not in (None, _average(outcome)) else None,
        "classes": class_names(outcome),
        "contestants": [
            {
                "name": short(entry.name),
                "mean": _number(entry.mean),
                "interval": list(map(_number, entry.interval)),
                "scores": list(map(_number, entry.scores)),
                "baseline": entry.key == outcome.baseline,
                "winner": entry.key == outcome.winner,
                "tuned": _tuned(entry.threshold, outcome),
            }
            for entry in entries
        ],
        "metrics": [
            {
                "name": _titled(metric),
                "summary": metric.summary,
                "better": 1 if metric.greater_is_better else -1,
                "chosen": i == 0
                and chosen_metric(outcome) is not None
                and outcome.average in (None, _average(outcome)),
                "priced": is_priced(metric) and outcome.task != "multiclass",
            }
            for i, metric in enumerate(metrics)
        ],
        "constraints": [
            {"text": str(c), "atLeast": c.at_least, "bound": c.bound, "formula": len(metrics) + i}
            for i, c in enumerate(_constraints(outcome))
        ],
        "curves": [_curves(outcome, entries, unit) for unit in curve_units(outcome)],
        "explorer": _explorer(outcome, entries) if entries and metrics else None,
    }
    one = "[]" if outcome.task == "binary" else script(one_formulas)  # binary: the same as all
    formulas = f"{{all:{script(all_formulas)},one:{one}}}"
    return PageData(held, formulas)


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


def shown(outcome: Outcome) -> list[Entry]:
    """Return the contestants that have curves: those with probabilities for every row."""
    whole = [e for e in outcome.entries if e.failed is None and len(e.probabilities) == len(outcome.target)]
    return [e for e in whole if np.isfinite(e.probabilities).all()]


def short(text: object) -> str:
    """Return a name from the data as text of bounded length."""
    return clip(str(text), _LONGEST_TEXT)


def class_names(outcome: Outcome) -> list[str]:
    """Return the names of the classes (binary: negative, positive) or labels."""
    if outcome.task == "multilabel":
        names = outcome.labels or tuple(f"label {i}" for i in range(outcome.target.shape[1]))
        return [short(name) for name in names]
    if outcome.task == "binary":
        negative = next((c for c in outcome.classes if c != outcome.positive), "negative")
        return [short(negative), short(outcome.positive)]
    return [short(name) for name in outcome.classes]


def chosen_metric(outcome: Outcome) -> Metric | None:
    """Return the metric of the comparison; None if it was a function and the outcome was read from a file."""
    if outcome.resolved is not None:
        return outcome.resolved
    try:
        named = outcome.metric.strip() in METRICS
        metric = resolve(outcome.metric, maximize=None if named else outcome.maximize, **outcome.metric_options)
    except (ValueError, TypeError, KeyError):
        return None
    if outcome.task != "binary" or outcome.positive not in outcome.classes:
        return metric
    return with_costs_of_decisions(metric, outcome.classes.index(outcome.positive))


def metric_name(outcome: Outcome) -> str:
    """Return the metric with its options, for display."""
    metric = chosen_metric(outcome)
    if metric is None:
        return short(outcome.metric)
    return short(format_metric(metric.name, {**dict(metric.options), **outcome.metric_options}))


def _titled(metric: Metric) -> str:
    return short(format_metric(metric.name, dict(metric.options)))


def _constraints(outcome: Outcome) -> tuple[Constraint, ...]:
    return parse_constraints(outcome.subject_to)


# ---------------------------------------------------------------------------------------------------------------------
# Formulas
# ---------------------------------------------------------------------------------------------------------------------


def _formulas(outcome: Outcome) -> tuple[list[Metric], list[Formula | None], list[Formula | None]]:
    """The metrics to show, the chosen one first, and their formulas: of all classes together, and of a single one."""
    task: Task = outcome.task  # type: ignore[assignment]
    classes = 1 if task == "binary" else len(class_names(outcome))
    average = _average(outcome)
    chosen = chosen_metric(outcome)
    left, metrics, together, alone = LONGEST, list[Metric](), list[Formula | None](), list[Formula | None]()
    for metric in ([] if chosen is None else [chosen]) + [m for m in METRICS.values() if m != chosen]:
        formula = _fitting(metric, classes, task, average, left)
        if formula is not None:
            left -= len(formula.javascript)
            metrics.append(metric)
            together.append(formula)
            alone.append(None if task == "binary" else trace(metric))
    for constraint in _constraints(outcome):
        together.append(_fitting(constraint.metric, classes, task, average, LONGEST))
        alone.append(None)
    return metrics, together, alone


def _average(outcome: Outcome) -> Any:
    """The average of the explorer: that of the comparison, unless it cannot be computed from counts."""
    return outcome.average if outcome.average in ("macro", "micro", "weighted") else "macro"


def _fitting(metric: Metric, classes: int, task: Task, average: Any, longest: int) -> Formula | None:
    """The formula of a metric; None if it would be longer than this."""
    # an estimate of the length, as tracing many classes takes long
    if 20 * classes * (classes if metric.kind == "matrix" and task == "multiclass" else 4) > longest:
        return None
    formula = trace(metric, classes, task, average)
    return None if formula is None or len(formula.javascript) > longest else formula


# ---------------------------------------------------------------------------------------------------------------------
# Curves
# ---------------------------------------------------------------------------------------------------------------------


def curve_units(outcome: Outcome) -> list[int]:
    """Return the classes or labels with curves of their own: the most frequent ones, in order; binary: the positive."""
    if outcome.task == "binary":
        return [1]
    count = len(class_names(outcome))
    sizes = [unit_target(outcome, unit).sum() for unit in range(count)]
    return sorted(sorted(range(count), key=lambda unit: -sizes[unit])[:_UNITS])


def unit_target(outcome: Outcome, unit: int) -> Floats:
    """Return 0 and 1 for one class or label against the rest."""
    if outcome.task == "multilabel":
        return outcome.target[:, unit].astype(np.float64)
    return (outcome.target == unit).astype(np.float64)


def unit_scores(probabilities: Floats, unit: int) -> Floats:
    """Return the probability of one class or label."""
    return probabilities if probabilities.ndim == 1 else probabilities[:, unit]


def _ranked(metric: str, entry: Entry, outcome: Outcome, unit: int) -> float:
    """A ranking metric of one class or label; NaN if all rows are of one class."""
    target = unit_target(outcome, unit)
    if len(np.unique(target)) < 2:
        return math.nan
    scores = unit_scores(entry.probabilities, unit)
    return score(scores, target, metric, sample_weight=outcome.weight, inputs="probabilities").item()


def _curves(outcome: Outcome, entries: list[Entry], unit: int) -> dict[str, Any]:
    """ROC, precision–recall and reliability of one class or label, for all contestants on the same grids."""
    target = unit_target(outcome, unit)
    # squared for more points at low rates, which matter if positives are rare
    rates, recalls = np.linspace(0, 1, _POINTS) ** 2, np.linspace(0, 1, _POINTS)
    found = []
    for entry in entries:
        swept = sweep(unit_scores(entry.probabilities, unit), target, outcome.weight)
        fpr, recall = score_counts(METRICS["fpr"], swept.counts), score_counts(METRICS["recall"], swept.counts)
        precision = score_counts(METRICS["precision"].bind(zero_division=1.0), swept.counts)
        first = np.minimum(np.searchsorted(recall, np.maximum(recalls, 1e-12)), len(recall) - 1)
        found.append(
            {
                "roc": _rounded(np.interp(rates, fpr, recall)),
                "precision": _rounded(precision[first]),
                "area": _number(_ranked("auroc", entry, outcome, unit)),
                "averagePrecision": _number(_ranked("average_precision", entry, outcome, unit)),
                "after": _reliability(outcome, entry.probabilities, unit),
                "before": None if entry.raw is None else _reliability(outcome, entry.raw, unit),
            }
        )
    prevalence = float(np.average(target, weights=outcome.weight))
    return {
        "unit": unit,
        "rates": _rounded(rates, 6),
        "recalls": _rounded(recalls),
        "prevalence": _number(prevalence),
        "contestants": found,
    }


def _reliability(outcome: Outcome, probabilities: Floats, unit: int) -> dict[str, Any]:
    scores, target = unit_scores(probabilities, unit), unit_target(outcome, unit)
    found = reliability(scores, target, outcome.weight)
    return {
        "predicted": _rounded(found.predicted, 5),
        "observed": _rounded(found.observed, 5),
        "error": _number(found.error),
        "brier": _number(brier(scores, target, outcome.weight)),
        "logLoss": _number(log_loss(scores, target, outcome.weight)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# The explorer
# ---------------------------------------------------------------------------------------------------------------------


def _explorer(outcome: Outcome, entries: list[Entry]) -> dict[str, Any]:
    if outcome.task == "multiclass":
        return _sample(outcome, entries)
    units = [1] if outcome.task == "binary" else list(range(len(class_names(outcome))))
    most = min(_CUTS, max(40, _ALL_CUTS // (len(units) * len(entries))))
    return {"units": [_unit(outcome, entries, unit, most) for unit in units]}


def _unit(outcome: Outcome, entries: list[Entry], unit: int, most: int) -> dict[str, Any]:
    """The counts of one label at cuts that all contestants share, from 0 to 1."""
    target = unit_target(outcome, unit)
    place = 0 if outcome.task == "binary" else unit
    scores = [unit_scores(entry.probabilities, unit) for entry in entries]
    tuned = [_cut(entry.threshold, place) for entry in entries]
    cuts = _common_cuts(scores, target, outcome.weight, [t for t in tuned if t is not None], most)
    counted = [counts_at(s, target, outcome.weight, cuts) for s in scores]
    all_positive = counted[0]  # at the first cut, which is 0
    return {
        "cuts": cuts.tolist(),
        "positive": _plain(all_positive.tp[0]),
        "negative": _plain(all_positive.fp[0]),
        "tp": [list(map(_plain, counts.tp)) for counts in counted],
        "fp": [list(map(_plain, counts.fp)) for counts in counted],
    }


def counts_at(scores: Floats, target: Floats, weight: Floats | None, cuts: Floats) -> Counts:
    """Return the counts at each cut, where scores of at least the cut are decided positive.

    >>> counts_at(np.array([0.2, 0.6, 0.9]), np.array([0.0, 0.0, 1.0]), None, np.array([0.0, 0.6, 1.0])).fp
    array([2., 1., 0.])
    """
    weight = np.ones(len(target)) if weight is None else weight
    order = np.argsort(scores)[::-1]
    tp = np.concatenate([[0.0], np.cumsum((weight * target)[order])])
    fp = np.concatenate([[0.0], np.cumsum((weight * (1 - target))[order])])
    reached = np.searchsorted(-scores[order], -cuts, side="right")
    return Counts(tp[reached], fp[reached], tp[-1] - tp[reached], fp[-1] - fp[reached])


def _common_cuts(scores: list[Floats], target: Floats, weight: Floats | None, fixed: list[float], most: int) -> Floats:
    """Every distinct cut of every contestant, or as many as allowed, spread evenly over its positives and negatives."""
    each = max(most // len(scores), 10)
    found = []
    for values in scores:
        swept = sweep(values, target, weight)
        inner = swept.thresholds[1:-1]
        if len(inner) > each:
            tp, fp = swept.tp[1:-1], swept.fp[1:-1]
            passed = tp / max(swept.tp[-1], 1e-300) + fp / max(swept.fp[-1], 1e-300)
            inner = inner[np.unique(np.searchsorted(passed, np.linspace(passed[0], passed[-1], each)))]
        found.append(inner)
    even = np.arange(1, 100) / 100 if most >= 200 else np.arange(1, 20) / 20
    # rounded to five digits for a smaller page; the counts are computed at the rounded cuts
    spread = [float(f"{cut:.5g}") for cut in np.concatenate(found)]
    return np.unique(np.clip([0.0, 0.5, 1.0, *fixed, *even, *spread], 0.0, 1.0))


def _sample(outcome: Outcome, entries: list[Entry]) -> dict[str, Any]:
    """Log-probabilities of a multiclass task, of all rows or of a sample, weighted to stand for all."""
    classes = len(outcome.classes)
    most = max(100, _SAMPLE_BYTES * 3 // (16 * classes * len(entries)))
    given = np.ones(len(outcome.target)) if outcome.weight is None else outcome.weight
    rows, weight = _stratified(outcome.target, given, most, np.random.default_rng(outcome.seed))
    sampled = len(rows) < len(outcome.target)
    logs = [np.log(np.maximum(entry.probabilities[rows], 1e-30)).astype("<f4") for entry in entries]
    return {
        "rows": len(rows),
        "of": len(outcome.target),
        "target": base64.b64encode(outcome.target[rows].astype("<u2").tobytes()).decode(),
        "weight": None if outcome.weight is None and not sampled else _rounded(weight, 8),
        "logs": [base64.b64encode(log.tobytes()).decode() for log in logs],
    }


def _stratified(target: Any, weight: Floats, most: int, rng: np.random.Generator) -> tuple[Any, Floats]:
    """Sample about ``most`` rows, in proportion to the classes but ten of each at least, with the weight of each."""
    if len(target) <= most:
        return np.arange(len(target)), weight
    chosen, stands = [], []
    for c in np.unique(target):
        members = np.flatnonzero(target == c)
        size = min(len(members), max(10, round(most * len(members) / len(target))))
        picked = np.sort(rng.choice(members, size, replace=False))
        chosen.append(picked)
        stands.append(weight[picked] * (weight[members].sum() / max(weight[picked].sum(), 1e-300)))
    return np.concatenate(chosen), np.concatenate(stands)


# ---------------------------------------------------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------------------------------------------------


def _cut(threshold: Threshold | None, place: int) -> float | None:
    """The threshold of one label, clipped to [0, 1], beyond which decisions do not change."""
    cut = threshold[place] if isinstance(threshold, tuple) else threshold
    return None if cut is None or math.isnan(cut) else min(max(float(cut), 0.0), 1.0)


def _tuned(threshold: Threshold | None, outcome: Outcome) -> list[float | None] | None:
    """The thresholds or offsets of the explorer's sliders."""
    if threshold is None:
        return None
    if outcome.task == "multiclass":
        return [_number(o) for o in threshold] if isinstance(threshold, tuple) else None
    return [_cut(threshold, i) for i in range(len(threshold) if isinstance(threshold, tuple) else 1)]


def _number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _plain(value: float) -> float | int:
    """A count, as an integer if it is one."""
    return int(value) if float(value).is_integer() else float(f"{value:.10g}")


def _rounded(values: Floats, digits: int = 4) -> list[float | None]:
    return [round(v, digits) if math.isfinite(v) else None for v in values.tolist()]
