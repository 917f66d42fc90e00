"""Every metric of the confusion matrix, each written once.

A metric is one pure function of ``(tp, fp, fn, tn)`` with keyword-only options, and the decorator says what cannot be
read off the formula: its best value, its direction, and which counts it reads.

- ``kind="class"``: the formula of one class; `stepless.averaging` averages it over classes.
- ``kind="joint"``: the formula reads all classes at once along the last axis; a yes/no decision has two classes.
- ``kind="matrix"``: the formula reads the whole confusion matrix ``(..., K, K)``, rows the truth, columns the decision.

Nothing here imports an array library: operators, ``.sum(-1)`` and `stepless.numerics` are all there is, so the
same text serves torch, numpy and JAX. To add a metric, write one function; see CONTRIBUTING.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar, get_args

from stepless.numerics import Array, constant, nonzero, product, ratio, root
from stepless.registry import Kind, Metric, Registry, is_even, is_share

Formula = TypeVar("Formula", bound=Callable[..., Array])

METRICS: Registry[Metric] = Registry("metric")


def metric(
    *misplaced: object,
    best: float | None = None,
    greater_is_better: bool = True,
    kind: Kind = "class",
    aliases: tuple[str, ...] = (),
    source: str = "",
    worst: float | None = None,
) -> Callable[[Formula], Formula]:
    """Register a function of the confusion counts as a metric under its own name, and return it unchanged.

    Args:
        misplaced: Leave empty. ``@metric`` without parentheses raises an error that explains how to register it.
        best: The score of perfect decisions. The loss is the distance from it.
        greater_is_better: False for costs and error rates.
        kind: What the function reads: one ``"class"``, all classes on the last axis (``"joint"``) or the ``"matrix"``.
        aliases: Other names.
        source: Where it was published.
        worst: The worst possible score, if there is one. The default ``blend`` of `stepless.MetricLoss` depends on
            whether scores lie within [−1, 1]; for a metric of all classes, or with options, that needs ``worst``.

    Example:
        >>> import stepless as sl
        >>> @sl.metric(best=1.0)
        ... def mean_of_both(tp, fp, fn, tn):
        ...     '''Mean of precision and recall.'''
        ...     return (sl.ratio(tp, tp + fp) + sl.ratio(tp, tp + fn)) / 2
        >>> sl.score([2.0, -1.0, 3.0], [1, 1, 0], "mean_of_both").item()
        0.5
    """
    if misplaced or best is None:
        raise TypeError("a metric is registered by @metric(best=…), with the score of a perfect decision.")
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}; got {kind!r}.")
    _check_ends(best, worst, greater_is_better)

    def register(formula: Formula) -> Formula:
        if not hasattr(formula, "__name__"):
            raise TypeError(f"a metric is a function with a name of its own; got {formula!r}. Write it with def.")
        even = is_even(formula, kind)
        made = Metric(formula.__name__, formula, best, greater_is_better, kind, source, worst, even=even)
        if worst is None and kind == "class" and not made.defaults and is_share(formula):  # options could widen it
            made = replace(made, bounded=True)
        METRICS.add(made.name, made, aliases)
        return formula

    return register


def _check_ends(best: Any, worst: Any, greater_is_better: Any) -> None:
    """Raise unless best and worst score are numbers and agree on the direction."""
    for name, value in (("best", best), ("worst", worst)):
        number = isinstance(value, Real) and math.isfinite(float(value))
        if not number and not (name == "worst" and value is None):
            raise ValueError(f"{name} must be a finite number; got {value!r}.")
    if not isinstance(greater_is_better, bool):
        raise TypeError(f"greater_is_better must be True or False; got {greater_is_better!r}.")
    if worst is not None and worst != best and (worst < best) != greater_is_better:
        raise ValueError(
            f"best={best} and worst={worst} contradict greater_is_better={greater_is_better}; pass"
            f" greater_is_better={not greater_is_better}, or exchange them."
        )


# ---------------------------------------------------------------------------------------------------------------------
# One class
# ---------------------------------------------------------------------------------------------------------------------


@metric(best=1.0, worst=0.0, aliases=("ppv", "positive_predictive_value"), source="Powers 2011")
def precision(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the positive decisions that are right: tp / (tp + fp)."""
    return ratio(tp, tp + fp, zero_division)


@metric(best=1.0, worst=0.0, aliases=("sensitivity", "tpr", "true_positive_rate", "hit_rate"), source="Powers 2011")
def recall(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the positives that are found: tp / (tp + fn)."""
    return ratio(tp, tp + fn, zero_division)


@metric(best=1.0, worst=0.0, aliases=("tnr", "true_negative_rate", "selectivity"), source="Powers 2011")
def specificity(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the negatives that are recognised: tn / (tn + fp)."""
    return ratio(tn, tn + fp, zero_division)


@metric(best=1.0, worst=0.0, aliases=("negative_predictive_value",), source="Powers 2011")
def npv(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the negative decisions that are right: tn / (tn + fn)."""
    return ratio(tn, tn + fn, zero_division)


@metric(best=0.0, worst=1.0, greater_is_better=False, aliases=("false_positive_rate", "fallout"), source="Powers 2011")
def fpr(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the negatives that raise a false alarm: fp / (fp + tn)."""
    return ratio(fp, fp + tn, zero_division)


@metric(
    best=0.0, worst=1.0, greater_is_better=False, aliases=("false_negative_rate", "miss_rate"), source="Powers 2011"
)
def fnr(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the positives that are missed: fn / (fn + tp)."""
    return ratio(fn, fn + tp, zero_division)


@metric(best=0.0, worst=1.0, greater_is_better=False, aliases=("false_discovery_rate",), source="Powers 2011")
def fdr(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the positive decisions that are wrong: fp / (fp + tp)."""
    return ratio(fp, fp + tp, zero_division)


@metric(best=0.0, worst=1.0, greater_is_better=False, aliases=("fomr",), source="Powers 2011")
def false_omission_rate(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Share of the negative decisions that are wrong: fn / (fn + tn)."""
    return ratio(fn, fn + tn, zero_division)


@metric(best=1.0, worst=0.0, aliases=("dice", "f_score", "sorensen"), source="van Rijsbergen 1979; Dice 1945")
def f1(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Harmonic mean of precision and recall: 2 tp / (2 tp + fp + fn)."""
    twice = tp + tp
    return ratio(twice, twice + fp + fn, zero_division)


@metric(best=1.0, worst=0.0, aliases=("fbeta",), source="van Rijsbergen 1979")
def f_beta(tp: Array, fp: Array, fn: Array, tn: Array, *, beta: float = 1.0, zero_division: float = 0.0) -> Array:
    """F1 with recall ``beta`` times as important as precision: (1+β²) tp / ((1+β²) tp + β² fn + fp)."""
    b2 = beta**2
    return ratio((1 + b2) * tp, (1 + b2) * tp + b2 * fn + fp, zero_division)


@metric(best=1.0, worst=0.0, aliases=("iou", "csi", "threat_score", "critical_success_index"), source="Jaccard 1901")
def jaccard(tp: Array, fp: Array, fn: Array, tn: Array, *, zero_division: float = 0.0) -> Array:
    """Intersection over union of the decided and the true positives: tp / (tp + fp + fn)."""
    return ratio(tp, tp + fp + fn, zero_division)


@metric(best=1.0, worst=0.0, source="Tversky 1977")
def tversky(
    tp: Array, fp: Array, fn: Array, tn: Array, *, alpha: float = 0.5, beta: float = 0.5, zero_division: float = 0.0
) -> Array:
    """Overlap, with weights ``alpha`` of false positives and ``beta`` of false negatives: tp / (tp + α fp + β fn)."""
    return ratio(tp, tp + alpha * fp + beta * fn, zero_division)


@metric(best=1.0, worst=-1.0, aliases=("delta_p",), source="Powers 2011")
def markedness(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """How reliably decisions indicate the truth: precision + npv − 1."""
    return ratio(tp, tp + fp) + ratio(tn, tn + fn) - 1


@metric(best=1.0, worst=0.0, aliases=("fm", "fmi"), source="Fowlkes and Mallows 1983")
def fowlkes_mallows(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Geometric mean of precision and recall: tp / √((tp + fp)(tp + fn))."""
    # a root each: the product of two sums overflows float32 far earlier
    return ratio(tp, root(tp + fp) * root(tp + fn))


@metric(best=1.0, worst=-1 / 3, aliases=("ets", "gss", "equitable_threat_score"), source="Gilbert 1884; Schaefer 1990")
def gilbert(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Jaccard without the hits expected by chance: (tp − e) / (tp + fp + fn − e), where e = (tp + fp)(tp + fn) / n."""
    # tp − e is (tp tn − fp fn) / n, which does not cancel where nearly all samples are positive
    n = tp + fp + fn + tn
    beyond_chance = tp * ratio(tn, n) - fp * ratio(fn, n)
    return ratio(beyond_chance, beyond_chance + fp + fn)


@metric(best=1.0, worst=0.0, source="Sitarz 2022")
def p4(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Harmonic mean of precision, recall, specificity and npv: 4 tp tn / (4 tp tn + (tp + tn)(fp + fn))."""
    # in shares of the total, because a product of two counts loses float32's last digits past 4,096²
    n = tp + fp + fn + tn
    tp, fp, fn, tn = ratio(tp, n), ratio(fp, n), ratio(fn, n), ratio(tn, n)
    return ratio(4 * tp * tn, 4 * tp * tn + (tp + tn) * (fp + fn))


@metric(best=1.0, source="Vickers and Elkin 2006")
def net_benefit(tp: Array, fp: Array, fn: Array, tn: Array, *, threshold_probability: float = 0.5) -> Array:
    """Benefit per sample, if a false positive costs the odds of ``threshold_probability``: tp/n − fp/n · p/(1−p).

    Its maximum is the prevalence, so the loss reaches 0 only if every sample is positive.
    """
    if not 0.0 < threshold_probability < 1.0:
        raise ValueError(f"threshold_probability must lie strictly between 0 and 1; got {threshold_probability}.")
    odds = threshold_probability / (1 - threshold_probability)
    return ratio(tp - odds * fp, tp + fp + fn + tn)


# ---------------------------------------------------------------------------------------------------------------------
# All classes at once
# ---------------------------------------------------------------------------------------------------------------------


@metric(kind="joint", best=1.0, worst=0.0, aliases=("acc",), source="Powers 2011")
def accuracy(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Share of the samples that are decided correctly. Multilabel: share of the labels, 1 − Hamming loss."""
    return ratio(tp.sum(-1), (tp + fn).sum(-1))


@metric(
    kind="joint",
    best=0.0,
    worst=1.0,
    greater_is_better=False,
    aliases=("zero_one_loss", "hamming_loss"),
    source="Powers 2011",
)
def error_rate(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Share of the samples that are decided wrongly. Multilabel: the Hamming loss."""
    return ratio(fn.sum(-1), (tp + fn).sum(-1))


@metric(kind="joint", best=1.0, worst=0.0, source="Brodersen et al. 2010")
def balanced_accuracy(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Mean recall of the classes that have support."""
    return ratio(ratio(tp, tp + fn).sum(-1), nonzero(tp + fn).sum(-1))


@metric(
    kind="joint",
    best=1.0,
    worst=-1.0,
    aliases=("tss", "youden_j", "bookmaker", "true_skill_statistic"),
    source="Youden 1950",
)
def informedness(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Balanced accuracy rescaled so that chance scores 0: for two classes, recall + specificity − 1."""
    chance = ratio(1 + 0 * tp.sum(-1), nonzero(tp + fn).sum(-1))
    return ratio(balanced_accuracy(tp, fp, fn, tn) - chance, 1 - chance)


@metric(
    kind="joint",
    best=1.0,
    worst=0.0,
    aliases=("gmean", "geometric_mean"),
    source="Kubat and Matwin 1997; Sun et al. 2006",
)
def g_mean(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Geometric mean of the recalls of all K classes: for two classes, √(recall · specificity)."""
    # a root each, then the product: the product of many recalls underflows float32
    return product(root(ratio(tp, tp + fn), degree=tp.shape[-1]))


@metric(kind="joint", best=1.0, worst=-1.0, aliases=("phi", "matthews_corrcoef"), source="Matthews 1975; Gorodkin 2004")
def mcc(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Correlation of decision and truth: Σ(tp tn − fp fn) / √(Σ(tp+fp)(tn+fn) · Σ(tp+fn)(tn+fp)), sums over classes."""
    # Gorodkin's s² − Σp² is Σp(s − p) here: no cancellation, and for two classes the sums are Matthews' own products.
    decided, true = ((tp + fp) * (tn + fn)).sum(-1), ((tp + fn) * (tn + fp)).sum(-1)
    # a root each: the product of four sums overflows float32 past ~4e9
    return ratio((tp * tn - fp * fn).sum(-1), root(decided) * root(true))


@metric(kind="joint", best=1.0, worst=-1.0, aliases=("kappa",), source="Cohen 1960")
def cohen_kappa(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Accuracy corrected for agreement by chance: (p_o − p_e) / (1 − p_e)."""
    # (s c − Σ p t) and (s² − Σ p t), each written as a sum of products that does not cancel
    return ratio((tp * tn - fp * fn).sum(-1), ((tp + fp) * (fp + tn)).sum(-1))


@metric(
    kind="joint", best=1.0, worst=-1.0, aliases=("hss", "heidke_skill_score"), source="Heidke 1926; Doswell et al. 1990"
)
def heidke(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    """Skill of a forecast relative to chance: an older name of Cohen's kappa."""
    return cohen_kappa(tp, fp, fn, tn)


# ---------------------------------------------------------------------------------------------------------------------
# The whole matrix
# ---------------------------------------------------------------------------------------------------------------------


@metric(kind="matrix", best=1.0, worst=-1.0, source="Cohen 1968")
def weighted_kappa(matrix: Array, *, weights: str = "quadratic") -> Array:
    """Kappa for ordered classes: an error by d classes counts d (``weights="linear"``) or d² (``"quadratic"``)."""
    if weights not in ("linear", "quadratic"):
        raise ValueError(f'weights must be "linear" or "quadratic"; got {weights!r}.')
    true, decided = matrix.sum(-1), matrix.sum(-2)
    index = constant(tuple(range(matrix.shape[-1])), matrix)
    distance = abs(index[:, None] - index)
    penalty = distance if weights == "linear" else distance * distance
    by_chance = true[..., :, None] * ratio(decided, decided.sum(-1)[..., None])[..., None, :]
    expected = (penalty * by_chance).sum(-1).sum(-1)
    return ratio(expected - (penalty * matrix).sum(-1).sum(-1), expected)


@metric(kind="matrix", best=0.0, greater_is_better=False, aliases=("expected_cost",), source="Elkan 2001")
def cost(matrix: Array, *, costs: Sequence[Sequence[float]] | None = None) -> Array:
    """Mean cost of a decision: ``costs[true][decided]`` per sample; without ``costs``, every error costs 1.

    Rows and columns are in the order of the classes: 0 and 1 in a loss, and ``classes_`` in an estimator, whichever of
    them is the positive one.
    """
    classes = matrix.shape[-1]
    if costs is None:
        costs = [[float(true != decided) for decided in range(classes)] for true in range(classes)]
    if (
        not isinstance(costs, Sequence)
        or [len(row) if isinstance(row, Sequence) else 0 for row in costs] != [classes] * classes
    ):
        raise ValueError(f"costs must be {classes}×{classes} for {classes} classes (rows the truth); got {costs!r}.")
    return ratio((constant(costs, matrix) * matrix).sum(-1).sum(-1), matrix.sum(-1).sum(-1))
