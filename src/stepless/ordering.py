"""Metrics of a ranking on samples sorted by score: each exact, and as a smooth surrogate for training.

A metric of a ranking counts pairs, and there are n₊·n₋ of them. They are never written down: on sorted samples, a sum
over pairs of a piecewise polynomial is a handful of prefix sums (`HingeSums`). So everything here takes O(n log n) time
and O(n) memory. Most surrogates compare scores by

    φ(d) = 0 for d ≥ m,   (m − d)² / 4m for |d| < m,   −d for d ≤ −m,         d = sᵢ − sⱼ, i positive, j negative,

a smooth (Huber) hinge. At m = 2 it is close to the pairwise logistic loss log(1 + e^−d). Pairs that are apart by the
margin m have no gradient. However wrong the order of a pair is, its slope stays 1 and does not vanish.

Every function takes sorted samples (`Ranked`), with any number of leading axes (classes), and returns one number per
row. Without positives or without negatives, a surrogate and its gradient are 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from stepless.numerics import constant, ratio


class Ranked(NamedTuple):
    """Samples along the last axis, sorted by score, highest first.

    Attributes:
        depth: Minus the score, ascending.
        positive: The weight of each sample as a positive: weight · target.
        negative: The weight of each sample as a negative: weight · (1 − target).
    """

    depth: Tensor
    positive: Tensor
    negative: Tensor

    def totals(self) -> tuple[Tensor, Tensor]:
        """Return the total weight of the positives and of the negatives."""
        return self.positive.sum(-1), self.negative.sum(-1)

    def mass(self) -> Tensor:
        """Return the weight of each sample and all before it."""
        return (self.positive + self.negative).cumsum(-1)

    def ties(self) -> tuple[Tensor, Tensor]:
        """Return for each sample the indices of the first and the last sample with the same score."""
        depth = self.depth.detach()
        return torch.searchsorted(depth, depth), torch.searchsorted(depth, depth, right=True) - 1

    def curve(self) -> tuple[Tensor, Tensor]:
        """Return true and false positives of the cut below each sample and those tied with it."""
        last = self.ties()[1]
        return self.positive.cumsum(-1).gather(-1, last), self.negative.cumsum(-1).gather(-1, last)


def rank(scores: Tensor, positive: Tensor, negative: Tensor) -> Ranked:
    """Sort samples ``(…, n)`` by score, in float64, because prefix sums in float32 drift and stall at 2^24."""
    wide = torch.float32 if scores.device.type == "mps" else torch.float64  # Apple's devices have no float64
    scores = torch.where(positive + negative != 0, scores, scores.detach())  # no gradient at all without weight
    depth, order = torch.sort(-scores.to(wide), dim=-1)
    return Ranked(depth, positive.to(wide).gather(-1, order), negative.to(wide).gather(-1, order))


class HingeSums:
    """Sums over knots a₁ ≤ … ≤ aₙ of wⱼ · max(0, t − aⱼ)^p, for any t in O(log n).

    From knot to knot, the sums of power p grow by those of lower powers, so p + 1 prefix sums give them all. The
    binomial formula carries them from the knot below t to t. All terms are positive, so nothing cancels, as it would in
    sums of powers of aⱼ itself.

    Shape:
        - knots, weight: ``(…, n)``.
        - t and the result: ``(…, m)``.

    Example:
        >>> knots, weight = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 2.0, 1.0])
        >>> HingeSums(knots, weight, power=2)(torch.tensor([-1.0, 2.0, 4.0]))
        tensor([ 0.,  6., 35.])

    Source: Rust and Hocking (2023) give the sum over all pairs of a squared hinge in O(n log n).
    """

    def __init__(self, knots: Tensor, weight: Tensor, power: int) -> None:
        self.knots, self.power = knots, power
        self.at_knots = [weight.cumsum(-1)]
        gap = knots.diff(dim=-1)
        for p in range(1, power + 1):
            growth = _carry([sums[..., :-1] for sums in self.at_knots], gap, p)
            self.at_knots.append(F.pad(growth.cumsum(-1), (1, 0)))

    def __call__(self, t: Tensor) -> Tensor:
        below = torch.searchsorted(self.knots.detach(), t.detach(), right=True)
        index, reached = (below - 1).clamp(min=0), below > 0
        distance = t - self.knots.gather(-1, index)
        sums = [at_knot.gather(-1, index) for at_knot in self.at_knots]
        return torch.where(reached, _carry(sums, distance, self.power), 0.0)


def _carry(sums: list[Tensor], distance: Tensor, power: int) -> Tensor:
    """Σ_q C(p, q) · sums_q · distance^(p−q), p = ``power``: sums carried on, or their growth if sums_p is left out."""
    total = sums[0]
    for q in range(1, power + 1):
        total = total * distance
        if q < len(sums):
            total = total + math.comb(power, q) * sums[q]
    return total


def huber(d: Tensor, margin: float) -> Tensor:
    """Compute the smooth hinge φ(d) of the module's docstring, as a difference of two squared hinges."""
    return (F.relu(margin - d).square() - F.relu(-margin - d).square()) / (4 * margin)


def _huber_sums(ranked: Ranked, weight: Tensor, margin: float) -> Tensor:
    """Σⱼ wⱼ φ(sᵢ − sⱼ) for each sample i."""
    sums = HingeSums(ranked.depth, weight, power=2)
    return (sums(ranked.depth + margin) - sums(ranked.depth - margin)) / (4 * margin)


def _over_positives(ranked: Ranked, values: Tensor, negatives: Tensor) -> Tensor:
    """The weighted mean of the positives' values; 0 where there are none, or no negatives to compare them with."""
    mean = ratio((ranked.positive * values).sum(-1), ranked.positive.sum(-1))
    return torch.where(negatives != 0, mean, 0.0 * mean)  # 0 · mean, so that it stays on the graph


def _damped_pairs(ranked: Ranked, negative: Tensor, margin: float, damping: float | None) -> Tensor:
    """The damped pairs of `anchored_pairs` against negatives of the given weights."""
    negatives = negative.sum(-1)
    rate = ratio(_huber_sums(ranked, negative, margin) * (4 / margin), negatives.unsqueeze(-1))
    if damping is None:
        imbalance = ratio(negatives, ranked.positive.sum(-1), 1.0).unsqueeze(-1)
        rate = ratio(torch.log1p(imbalance * rate), torch.log1p(imbalance))
    elif damping > 0:
        rate = torch.log1p(damping * rate) / math.log1p(damping)
    return _over_positives(ranked, rate, negatives)


# ---------------------------------------------------------------------------------------------------------------------
# AUROC
# ---------------------------------------------------------------------------------------------------------------------


def auroc(ranked: Ranked) -> Tensor:
    """Area under the ROC curve: how often a positive is ranked above a negative. Ties count half."""
    return partial_auroc(ranked, max_fpr=1.0)


def partial_auroc(ranked: Ranked, *, max_fpr: float) -> Tensor:
    """Area under the ROC curve up to a false positive rate, standardised so that chance is ½ and the best 1."""
    (tp, fp), (positives, negatives) = ranked.curve(), ranked.totals()
    tpr = F.pad(ratio(tp, positives.unsqueeze(-1)), (1, 0))
    fpr = F.pad(ratio(fp, negatives.unsqueeze(-1)), (1, 0))
    # each piece of the curve as far as max_fpr, where it is cut off on a straight line
    width = fpr.clamp(max=max_fpr).diff(dim=-1)
    inside = ratio(width, fpr.diff(dim=-1))
    area = (width * (tpr[..., :-1] + tpr.diff(dim=-1) * inside / 2)).sum(-1)
    if max_fpr < 1:
        chance = max_fpr**2 / 2
        area = (1 + (area - chance) / (max_fpr - chance)) / 2
    return torch.where(positives * negatives != 0, area, math.nan)


def anchored_pairs(ranked: Ranked, *, margin: float = 4.0, damping: float | None = None, anchor: float = 0.5) -> Tensor:
    """AUROC: a smooth, damped count of the negatives above each positive, and cross-entropy as an anchor.

    (1 − a) · Σᵢ wᵢ log(1 + c·Fᵢ) / log(1 + c) / Σᵢ wᵢ + a · Σ w · cross-entropy / Σ w, where a is ``anchor`` and i runs
    over the positives. Fᵢ = Σ₋ wⱼ φ(sᵢ − sⱼ) · 4/m / Σ₋ wⱼ, summed over the negatives, is the false positive rate at
    the positive i, counted smoothly. φ is a smooth hinge with ``margin`` m: 0 for d ≥ m, (m − d)² / 4m for |d| < m, and
    −d for d ≤ −m. Because φ(0) = m/4 and the logarithm is concave, the first term is at least 1 − AUROC.

    Damping keeps a few positives that look like negatives from outweighing all others. Its strength c is ``damping``,
    by default the number of negatives per positive, Σ₋ w / Σ₊ w; then c·Fᵢ counts the negatives above a positive as
    precision does. c = 0 is the plain mean over pairs. AUROC leaves level and scale of the scores free. Cross-entropy
    fixes them, which ranks few positives better.

    Source: φ is convex and differentiable with φ'(0) < 0, so its mean over pairs is consistent with AUROC (Gao and
    Zhou, 2015), and so is cross-entropy (Agarwal, 2014). Damping and anchor are ours; see benchmarks/ranking.
    """
    return _anchored(ranked, _damped_pairs(ranked, ranked.negative, margin, damping), anchor)


def _anchored(ranked: Ranked, loss: Tensor, anchor: float) -> Tensor:
    """The loss with a share of cross-entropy, which likewise is 0 without positives or without negatives."""
    if anchor == 0:
        return loss
    entropy = ranked.positive * F.softplus(ranked.depth) + ranked.negative * F.softplus(-ranked.depth)
    positives, negatives = ranked.totals()
    mean = ratio(entropy.sum(-1), positives + negatives)
    return (1 - anchor) * loss + anchor * torch.where(positives * negatives != 0, mean, 0.0 * mean)


def wmw(ranked: Ranked, *, margin: float = 0.2, power: int = 3) -> Tensor:
    """AUROC as Wilcoxon, Mann and Whitney count it: the mean over pairs of max(0, γ − (pᵢ − pⱼ))^q, p probabilities.

    ``margin`` is γ and ``power`` is q. The paper uses the sum; the mean does not grow with the batch.

    Source: Yan et al., ICML 2003. All pairs in O(n log n): see `HingeSums`.
    """
    sums, negatives = HingeSums(ranked.depth, ranked.negative, power), ranked.negative.sum(-1)
    return _over_positives(ranked, ratio(sums(ranked.depth + margin), negatives.unsqueeze(-1)), negatives)


def soft_set_area(ranked: Ranked, *, thresholds: tuple[float, ...], delta: float = 0.2) -> Tensor:
    """AUROC of soft sets: 1 − the area under (FPR(τ), TPR(τ)) over thresholds τ, from (0, 0) to (1, 1).

    TPR(τ) = Σ₊ w H(p, τ) / Σ₊ w and FPR(τ) = Σ₋ w H(p, τ) / Σ₋ w of probabilities p, with the linear Heaviside H of
    `stepless.Linear`. The area is that of the trapezoids between neighbouring thresholds. H only bends at b = τ − τ_m/2
    and c = τ + τ_m/2, so its sum over n samples is a sum of hinges, and T thresholds cost O(T log n):

        H(p, τ) = m₁ p + (m₂ − m₁) (p − b)₊ + (m₃ − m₂) (p − c)₊,  slopes m₁ = δ/b, m₂ = (1 − 2δ)/τ_m, m₃ = δ/(1 − c).

    Source: Tsoi et al., NeurIPS 2022, which has the integral; the trapezoids and the end points are ours.
    """
    table = []
    for tau in sorted(thresholds, reverse=True):
        width = min(tau, 1 - tau)
        b, c = tau - width / 2, tau + width / 2
        slopes = (delta / b, (1 - 2 * delta) / width, delta / (1 - c))
        table.append((slopes[0], slopes[1] - slopes[0], slopes[2] - slopes[1], -b, -c))
    start, at_b, at_c, b_depth, c_depth = constant(table, ranked.depth).unbind(-1)

    def rate(weight: Tensor) -> Tensor:
        hinges = HingeSums(ranked.depth, weight, power=1)
        every = torch.zeros_like(weight[..., :1])  # one row of bends for each class
        linear = -(weight * ranked.depth).sum(-1, keepdim=True)
        sums = start * linear + at_b * hinges(every + b_depth) + at_c * hinges(every + c_depth)
        between = ratio(sums, weight.sum(-1, keepdim=True))
        return F.pad(F.pad(between, (1, 0)), (0, 1), value=1.0)  # nothing is decided positive, …, everything is

    tpr, fpr = rate(ranked.positive), rate(ranked.negative)
    area = (fpr.diff(dim=-1) * (tpr[..., 1:] + tpr[..., :-1]) / 2).sum(-1)
    positives, negatives = ranked.totals()
    return torch.where(positives * negatives != 0, 1 - area, 0.0 * area)


def highest_pairs(ranked: Ranked, *, max_fpr: float, margin: float = 2.0, damping: float = 10.0) -> Tensor:
    """Partial AUROC: damped pairs as for AUROC, but only against the share ``max_fpr`` of highest negatives.

    Fᵢ = Σ₋ vⱼ φ(sᵢ − sⱼ) · 4/m / Σ₋ vⱼ, where v is the weight of the negatives down to the share ``max_fpr`` of it: all
    of the higher ones, a fraction of those tied with the last, none below. This choice is not differentiated.

    Source: the partial AUROC of Narasimhan and Agarwal (2013), which also ranks against the highest negatives.
    """
    first, last = ranked.ties()
    through = ranked.negative.cumsum(-1)
    before = F.pad(through, (1, 0)).gather(-1, first)
    tied = through.gather(-1, last) - before
    budget = max_fpr * ranked.negative.sum(-1, keepdim=True)
    share = ratio((budget - before).clamp(min=0).minimum(tied), tied)
    return _damped_pairs(ranked, ranked.negative * share, margin, damping)


# ---------------------------------------------------------------------------------------------------------------------
# Average precision
# ---------------------------------------------------------------------------------------------------------------------


def average_precision(ranked: Ranked) -> Tensor:
    """Mean over the positives of the precision at the cut below each; 0 without positives, as in scikit-learn."""
    tp, fp = ranked.curve()
    return ratio((ranked.positive * ratio(tp, tp + fp)).sum(-1), ranked.positive.sum(-1))


def log_precisions(ranked: Ranked, *, margin: float = 2.0, anchor: float = 0.0) -> Tensor:
    """Average precision: the mean over positives of −log of a lower bound of the precision.

    (1 − a) · Σᵢ wᵢ log(1 + Nᵢ / Pᵢ) / Σᵢ wᵢ + a · Σ w · cross-entropy / Σ w, where a is ``anchor`` and i runs over the
    positives. Pᵢ = Σ₊ wⱼ [sⱼ ≥ sᵢ] counts the positives at or above the positive i, and Nᵢ = Σ₋ wⱼ φ(sᵢ − sⱼ) · 4/m
    counts the negatives there smoothly, with φ as for AUROC. φ(0) = m/4, so Nᵢ is at least the exact count, and the
    first term at least 1 − AP. Pᵢ is not differentiated. The logarithm keeps a slope for positives with many negatives
    above them, which in 1 − P/(P + N) would vanish as 1/N². Cross-entropy, if any, fixes the scores as for AUROC.
    """
    above, _ = ranked.curve()
    negatives = _huber_sums(ranked, ranked.negative, margin) * (4 / margin)
    above = torch.where(ranked.positive != 0, above, 1.0)  # others do not count, but must not divide by 0
    loss = _over_positives(ranked, torch.log1p(negatives / above), ranked.negative.sum(-1))
    return _anchored(ranked, loss, anchor)


# ---------------------------------------------------------------------------------------------------------------------
# One cut
# ---------------------------------------------------------------------------------------------------------------------


def _reached(found: Tensor, precision: float) -> Tensor:
    """Whether a precision is reached, up to the rounding of sums of weights."""
    return found >= precision - 8 * torch.finfo(found.dtype).eps


def recall_at_precision(ranked: Ranked, *, precision: float) -> Tensor:
    """Greatest recall of all cuts with at least the given precision; 0 if there is none."""
    tp, fp = ranked.curve()
    positives = ranked.positive.sum(-1)
    best = torch.where(_reached(ratio(tp, tp + fp), precision), tp, 0.0).amax(-1)
    return torch.where(positives != 0, ratio(best, positives), math.nan)


def precision_at_k(ranked: Ranked, *, k: int) -> Tensor:
    """Share of positives among the k highest scores, or all if there are fewer. Ties for the last place share it."""
    mass, (first, last) = ranked.mass(), ranked.ties()
    size = mass[..., -1:].clamp(max=k)
    index = torch.searchsorted(mass, size).clamp(max=mass.shape[-1] - 1)
    first, last = first.gather(-1, index), last.gather(-1, index)
    before, tp_before = (F.pad(sums, (1, 0)).gather(-1, first) for sums in (mass, ranked.positive.cumsum(-1)))
    tp_through = ranked.positive.cumsum(-1).gather(-1, last)
    tp = tp_before + (tp_through - tp_before) * ratio(size - before, mass.gather(-1, last) - before)
    return torch.where(size != 0, ratio(tp, size), math.nan).squeeze(-1)


def across_cut(ranked: Ranked, theta: Tensor, margin: float) -> Tensor:
    """Loss of metrics with a single cut: what positives lack to be above the cut, and negatives to be below it.

    (S₋ · A + S₊ · B) / (S₊ + S₋) with A = Σ₊ w φ(s − θ), B = Σ₋ w φ(θ − s), S₊ = Σ₊ w |φ'(s − θ)| and
    S₋ = Σ₋ w |φ'(θ − s)|. The cut θ (``theta`` is its depth) and the sums S are not differentiated. The weights S make
    the gradient of a common shift of all scores 0, because the cut would shift too: a positive is moved up as much as
    negatives can be moved down, and vice versa.
    """
    rise, fall = theta - ranked.depth, ranked.depth - theta  # s − θ of the positives, θ − s of the negatives
    lacking = [(ranked.positive * huber(rise, margin)).sum(-1), (ranked.negative * huber(fall, margin)).sum(-1)]
    slopes = [
        (weight * (F.relu(margin - d) - F.relu(-margin - d))).sum(-1).detach()
        for weight, d in ((ranked.positive, rise), (ranked.negative, fall))
    ]
    return ratio(slopes[1] * lacking[0] + slopes[0] * lacking[1], slopes[0] + slopes[1])


@torch.no_grad()
def _around_cut(ranked: Ranked, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The depths of the last of the highest samples, of weight ``mass (…, 1)``, and of the next lower one."""
    through = ranked.mass()
    # found by weight, not by index: samples without weight must not move the cut
    ends = [torch.searchsorted(through, mass, right=right) for right in (False, True)]
    last = ends[0].clamp(max=through.shape[-1] - 1)
    following = torch.where(ends[1] < through.shape[-1], ends[1], last)
    return ranked.depth.gather(-1, last), ranked.depth.gather(-1, following)


def cut_at_precision(ranked: Ranked, *, precision: float, margin: float = 2.0) -> Tensor:
    """Recall at a precision: the loss `across_cut`, divided by the weight of the positives.

    The cut is the one with the greatest recall among those with at least this precision, or if there is none, the one
    with the greatest precision. It lies midway to the next score, but at most half a margin from the samples that
    matter: the next negatives, which positives below have to pass, or if the precision is not reached, the last
    positive, which has to pass negatives above.
    """
    positives = ranked.positive.sum(-1)
    with torch.no_grad():
        tp, mass = ranked.curve()[0], ranked.mass().gather(-1, ranked.ties()[1])
        found = ratio(tp, mass)
        enough = _reached(found, precision)
        best = torch.where(enough, 1 + ratio(tp, positives.unsqueeze(-1)), found).argmax(-1, keepdim=True)
        last, following = _around_cut(ranked, mass.gather(-1, best))
        middle = (last + following) / 2
        near = torch.where(
            enough.gather(-1, best), middle.maximum(following - margin / 2), middle.minimum(last + margin / 2)
        )
    return ratio(across_cut(ranked, near, margin), positives)


def cut_at_k(ranked: Ranked, *, k: int, margin: float = 2.0) -> Tensor:
    """Precision at k: the loss `across_cut` of the cut below the k highest scores, divided by k."""
    mass = torch.full_like(ranked.depth[..., :1], k)
    last, following = _around_cut(ranked, mass)
    return across_cut(ranked, (last + following) / 2, margin) / k
