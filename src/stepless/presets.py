"""Losses with the settings of published papers, for comparison and to reproduce results.

They are not the defaults: on small tables, trained as published, they lose to cross-entropy with a tuned threshold.
Further keyword arguments are those of `stepless.MetricLoss`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import Any

from stepless import ordering
from stepless.loss import MetricLoss
from stepless.ranking import RANKINGS, find_ranking
from stepless.schedules import Schedule
from stepless.steps import Identity, Linear, LogitSigmoid, RaisedCosine, Sigmoid

#: The sigmoid of a larger logit is nearly 0 or 1, which is no threshold.
_FARTHEST = 36.0
#: The thresholds *Bridging the Gap* averages over.
SOFT_SET_THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(1, 10))


def anyloss(metric: str = "f1", *, amplification: float = 73.0, **settings: Any) -> MetricLoss:
    """AnyLoss (Han, Moniz and Chawla, KDD 2024): the decision is σ(L(p − ½)), with ``amplification`` L.

    >>> anyloss("g_mean")
    MetricLoss('g_mean', step=Sigmoid(k=73.0))
    """
    return _make("anyloss", metric, settings, step=Sigmoid(k=amplification))


def soft_sets(metric: str = "f1", *, step: str = "linear", **settings: Any) -> MetricLoss:
    """*Bridging the Gap* (Tsoi et al., NeurIPS 2022): the mean of the soft-set metric over τ = 0.1, …, 0.9.

    ``step`` is ``"linear"`` (δ = 0.2) or ``"sigmoid"`` (k = 10). The metric ``"auroc"`` is the area under the curve
    through the points of these thresholds and the end points (0, 0) and (1, 1).
    """
    steps = {"linear": Linear(delta=0.2), "sigmoid": Sigmoid(k=10.0)}
    if step not in steps:
        raise ValueError(f'soft sets have the steps "linear" and "sigmoid"; got {step!r}.')
    if settings.keys() & {"threshold", "thresholds"}:
        raise ValueError("soft sets average over thresholds of their own, 0.1 to 0.9; for others use MetricLoss.")
    if settings.get("task") == "multiclass":
        raise ValueError("soft sets decide by thresholds, and a multiclass task has none; use presets.east there.")
    ranking = find_ranking(metric)
    if ranking is not None:
        if ranking.name != "auroc" or step != "linear":
            raise ValueError(f'of the rankings, soft sets have "auroc" with the linear step; got {metric!r}, {step!r}.')
        area = replace(ranking, surrogate=ordering.soft_set_area, scale="probabilities")
        return MetricLoss(area, thresholds=SOFT_SET_THRESHOLDS, **settings)
    thresholds: Any = SOFT_SET_THRESHOLDS
    if settings.get("task") == "multilabel":  # rows, because a flat sequence would be one threshold per label
        thresholds = [(tau,) for tau in thresholds]
    return _make("soft_sets", metric, settings, step=steps[step], threshold=thresholds)


def east(metric: str = "f1", *, anneal_until: float = 1.0, **settings: Any) -> MetricLoss:
    """EAST (Li et al., 2025), built from its abstract; its formulas, schedule and numbers were not available.

    A dynamic threshold for each sample, a soft-set confusion matrix over all classes, and annealing from cross-entropy
    to the metric until progress ``anneal_until``. Call ``advance(step / total_steps)`` while training.
    """
    schedule = Schedule(until=anneal_until)
    return _make("east", metric, settings, task="multiclass", step=Linear(delta=0.1), schedule=schedule)


def score_oriented(
    metric: str = "f1", *, prior: str = "raised_cosine", delta: float | None = None, **settings: Any
) -> MetricLoss:
    """Score-oriented losses (Marchetti et al., 2022): the threshold is random, and the decision is its CDF.

    ``prior`` is ``"raised_cosine"`` on [½ − δ, ½ + δ], with ``delta`` 0.1 by default, or ``"uniform"``, for which the
    decision is the probability itself.
    """
    if prior not in ("raised_cosine", "uniform"):
        raise ValueError(f'a score-oriented loss has the priors "raised_cosine" and "uniform"; got {prior!r}.')
    if prior == "uniform" and delta is not None:
        raise ValueError(f'delta has no effect with prior="uniform", which is as wide as can be; got {delta}.')
    step = Identity() if prior == "uniform" else RaisedCosine() if delta is None else RaisedCosine(delta=delta)
    return _make("score_oriented", metric, settings, step=step)


def sigmoid_f1(*, sharpness: float = 1.0, offset: float = 0.0, **settings: Any) -> MetricLoss:
    """sigmoidF1 (Bénédict et al., 2021): macro F1 over labels, with the decision σ(S·(z − E)) for a logit z.

    ``sharpness`` is S and ``offset`` is E.
    """
    if not _is_number(sharpness) or not 0 < sharpness < math.inf:
        raise ValueError(f"sharpness must lie above 0 and be finite; got {sharpness}.")
    if not _is_number(offset) or not abs(offset) < _FARTHEST:
        raise ValueError(f"offset is a logit between {-_FARTHEST:g} and {_FARTHEST:g}; got {offset}.")
    threshold = 1 / (1 + math.exp(-offset))
    step = LogitSigmoid(temperature=1 / sharpness)
    return _make("sigmoid_f1", "f1", settings, task="multilabel", step=step, threshold=threshold)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def wmw(*, margin: float = 0.2, power: int = 3, **settings: Any) -> MetricLoss:
    """The Wilcoxon–Mann–Whitney loss for AUROC (Yan et al., 2003), which penalises pairs closer than a margin.

    The mean of max(0, γ − (pᵢ − pⱼ))^q over positives i and negatives j, with ``margin`` γ and ``power`` q, exactly and
    in O(n log n).

    >>> wmw()
    MetricLoss('auroc', surrogate=wmw, margin=0.2, power=3)
    """
    pairs = replace(RANKINGS["auroc"], surrogate=ordering.wmw, scale="probabilities")
    return MetricLoss(pairs, margin=margin, power=power, **settings)


def _make(preset: str, metric: str, settings: dict[str, Any], **fixed: Any) -> MetricLoss:
    """The loss with the settings of the preset and those of the user, which must not be the same ones."""
    twice = sorted(settings.keys() & fixed.keys())
    if twice:
        raise TypeError(f"presets.{preset} sets {' and '.join(twice)} itself; for another value use MetricLoss.")
    return MetricLoss(metric, **fixed, **settings)
