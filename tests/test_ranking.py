"""Losses of a ranking equal their formulas over all pairs, written out here in O(n²); scores equal scikit-learn's."""

import copy
import math
import pickle
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score
from torch.autograd import gradcheck
from torch.nn import functional as F

import stepless as sl
from stepless import presets
from stepless.ordering import HingeSums
from stepless.ranking import find_ranking, score_ranking

NAN, INF = math.nan, math.inf
TASKS = ("binary", "multilabel", "multiclass")
OPTIONS = {
    "auroc": {}, "average_precision": {}, "partial_auroc": {"max_fpr": 0.3}, "recall_at_precision": {"precision": 0.6},
    "precision_at_k": {"k": 7},
}  # fmt: skip
#: Every loss of a ranking: the registry's, and the papers'.
LOSSES = {
    **{name: partial(sl.MetricLoss, name, **options) for name, options in OPTIONS.items()},
    "wmw": presets.wmw,
    "wmw, p = 2": partial(presets.wmw, power=2),
    "soft sets": partial(presets.soft_sets, "auroc"),
}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_ranking = pytest.mark.parametrize("name", OPTIONS)


def draw(n=40, seed=0, ties=True, share=0.4):
    random = np.random.default_rng(seed)
    scores = random.normal(size=n) * 2
    if ties:
        scores[n // 2 :] = scores[n // 2 :].round(0)
    target = (random.random(n) < share).astype(float)
    target[:2] = 0, 1
    return torch.tensor(scores), torch.tensor(target), torch.tensor(random.integers(1, 4, n) / 2)


def gradient(loss_fn, scores, *rest):
    scores = scores.detach().clone().requires_grad_()
    loss = loss_fn(scores, *rest)
    loss.backward()
    return loss.detach(), scores.grad


def test_the_registry_is_covered():
    assert set(OPTIONS) == set(sl.RANKINGS)
    assert all(ranking.summary for ranking in sl.RANKINGS.values())
    assert not {*sl.RANKINGS, *sl.RANKINGS.aliases} & {*sl.METRICS, *sl.METRICS.aliases}


# ---------------------------------------------------------------------------------------------------------------------
# The O(n²) twins
# ---------------------------------------------------------------------------------------------------------------------


def phi(d, m):
    return torch.where(d >= m, 0 * d, torch.where(d <= -m, -d, (m - d) ** 2 / (4 * m)))


def slope(d, m):
    return torch.where(d >= m, 0 * d, torch.where(d <= -m, 1 + 0 * d, (m - d) / (2 * m)))


def pairs(s):
    return s[:, None] - s[None, :]


def mean(values, weight):
    return (weight * values).sum() / weight.sum()


def damped_twin(s, pos, neg, margin, damping):
    rate = (neg * phi(pairs(s), margin)).sum(1) * 4 / margin / neg.sum()
    damping = (neg.sum() / pos.sum()).item() if damping is None else damping
    return mean(torch.log(1 + damping * rate) / math.log(1 + damping) if damping else rate, pos)


def anchored(loss, s, pos, neg, anchor):
    entropy = -(pos * F.logsigmoid(s) + neg * F.logsigmoid(-s)).sum() / (pos + neg).sum()
    return (1 - anchor) * loss + anchor * entropy


def anchored_twin(s, pos, neg, margin, damping, anchor):
    return anchored(damped_twin(s, pos, neg, margin, damping), s, pos, neg, anchor)


def highest(s, neg, max_fpr):
    """The weights of the highest negatives: groups of equal scores from the top, until the budget is spent."""
    left, chosen = max_fpr * neg.sum().item(), torch.zeros_like(neg)
    for score in sorted(set(s.tolist()), reverse=True):
        tied = s == score
        group = neg[tied].sum().item()
        chosen[tied] = neg[tied] * (min(left, group) / group if group else 0.0)
        left -= min(left, group)
    return chosen


def precision_twin(s, pos, neg, margin):
    above = (pos * (pairs(s) <= 0)).sum(1)
    negatives = (neg * phi(pairs(s), margin)).sum(1) * 4 / margin
    return mean(torch.log(1 + negatives / torch.where(pos > 0, above, 1.0)), pos)


def across_twin(s, pos, neg, theta, margin, slopes=None):
    a, b = (pos * phi(s - theta, margin)).sum(), (neg * phi(theta - s, margin)).sum()
    up, down = slopes or ((pos * slope(s - theta, margin)).sum(), (neg * slope(theta - s, margin)).sum())
    up, down = up.detach(), down.detach()
    return (down * a + up * b) / (up + down) if up + down else 0 * a


def midpoint(s, weight, cut):
    """Between a cut and the next lower score that counts."""
    lower = s[(s < cut) & (weight > 0)]
    return (cut + lower.max().item()) / 2 if len(lower) else cut


def cut_of_precision(s, pos, neg, precision, margin):
    cuts = sorted(set(s[(pos + neg) > 0].tolist()), reverse=True)
    counts = [(pos[s >= c].sum().item(), (pos + neg)[s >= c].sum().item(), c) for c in cuts]
    kept = [(tp, c) for tp, mass, c in counts if tp / mass >= precision]
    best = max(kept)[1] if kept else max((tp / mass, c) for tp, mass, c in counts)[1]
    middle = midpoint(s, pos + neg, best)
    following = 2 * middle - best
    return min(middle, following + margin / 2) if kept else max(middle, best - margin / 2)


def cut_of_k(s, pos, neg, k):
    order = s.argsort(descending=True)
    mass = (pos + neg)[order].cumsum(0).tolist()
    inside = [i for i, m in enumerate(mass) if m < k]
    last = min(len(inside), len(mass) - 1)
    beyond = [i for i, m in enumerate(mass) if m > k]
    following = beyond[0] if beyond else last
    return (s[order[last]] + s[order[following]]).item() / 2


def soft_set_twin(s, pos, neg):
    p, step = s.sigmoid(), sl.Linear(delta=0.2)
    curve = [(0.0, 0.0)]
    for tau in sorted(presets.SOFT_SET_THRESHOLDS, reverse=True):
        curve.append((mean(step(p, tau), neg), mean(step(p, tau), pos)))
    curve.append((1.0, 1.0))
    return 1 - sum((b[0] - a[0]) * (b[1] + a[1]) / 2 for a, b in pairwise(curve))


def wmw_twin(s, pos, neg, power):
    return (pos[:, None] * neg * (0.2 - pairs(s.sigmoid())).clamp(min=0) ** power).sum() / (pos.sum() * neg.sum())


M = {name: sl.RANKINGS[name].defaults["margin"] for name in OPTIONS}
PAIRS = dict(sl.RANKINGS["auroc"].defaults)
C = sl.RANKINGS["partial_auroc"].defaults["damping"]
TWINS = {
    "auroc": lambda s, p, n: anchored_twin(s, p, n, **PAIRS),
    "average_precision": lambda s, p, n: anchored(
        precision_twin(s, p, n, M["average_precision"]), s, p, n, sl.RANKINGS["average_precision"].defaults["anchor"]
    ),
    "partial_auroc": lambda s, p, n: damped_twin(s, p, highest(s.detach(), n, 0.3), M["partial_auroc"], C),
    "recall_at_precision": lambda s, p, n: (
        across_twin(
            s, p, n, cut_of_precision(s.detach(), p, n, 0.6, M["recall_at_precision"]), M["recall_at_precision"]
        ) / p.sum()
    ),
    "precision_at_k": lambda s, p, n: (
        across_twin(s, p, n, cut_of_k(s.detach(), p, n, 7), M["precision_at_k"]) / 7
    ),
    "wmw": lambda s, p, n: wmw_twin(s, p, n, 3),
    "wmw, p = 2": lambda s, p, n: wmw_twin(s, p, n, 2),
    "soft sets": soft_set_twin,
}  # fmt: skip


@every_loss
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("spread", [1, 10])
def test_value_and_gradient_equal_the_twin(name, seed, weighted, spread):
    scores, target, weight = draw(seed=seed)
    scores = spread * scores
    weight = weight if weighted else torch.ones_like(weight)
    loss, found = gradient(LOSSES[name](), scores, target, weight if weighted else None)
    expected, wanted = gradient(lambda s: TWINS[name](s, weight * target, weight * (1 - target)), scores)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(
    "options",
    [{"margin": 0.3}, {"margin": 5.0}, *({"damping": c} for c in (None, 0.0, 100.0)), {"anchor": 0.0}, {"anchor": 0.9}],
)
def test_options_of_the_pair_loss(options):
    scores, target, _ = draw()
    expected = anchored_twin(scores, target, 1 - target, **{**PAIRS, **options})
    assert sl.MetricLoss("auroc", **options)(scores, target).item() == pytest.approx(expected.item(), abs=1e-10)


@every_loss
def test_gradcheck(name):
    """The losses at one cut hold it, and the weights of its two sides, still: gradcheck the twin that does so too."""
    scores, target, _ = draw(25, ties=False)
    if name in ("recall_at_precision", "precision_at_k"):
        m = M[name]
        cut = cut_of_precision(scores, target, 1 - target, 0.6, m) if "recall" in name else cut_of_k(
            scores, target, 1 - target, 7
        )  # fmt: skip
        slopes = ((target * slope(scores - cut, m)).sum(), ((1 - target) * slope(cut - scores, m)).sum())
        held = partial(across_twin, pos=target, neg=1 - target, theta=cut, margin=m, slopes=slopes)
        assert gradcheck(held, scores.requires_grad_())
    else:
        assert gradcheck(lambda s: LOSSES[name]()(s, target), scores.requires_grad_())


@given(
    st.lists(st.tuples(st.integers(-6, 6), st.integers(0, 3)), min_size=1, max_size=20),
    st.lists(st.integers(-20, 20), min_size=1, max_size=8),
    st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_hinge_sums(points, queries, power):
    knots, weight = torch.tensor(sorted(points), dtype=torch.float64).unbind(-1)
    t = torch.tensor(queries, dtype=torch.float64) / 2
    expected = (weight * (t[:, None] - knots).clamp(min=0) ** power).sum(-1)
    torch.testing.assert_close(HingeSums(knots.contiguous(), weight.contiguous(), power)(t), expected)


@pytest.mark.parametrize("name", ["recall_at_precision", "precision_at_k"])
@pytest.mark.parametrize("spread", [1.0, 6.0, 40.0])
def test_what_is_not_best_has_a_gradient_however_far_scores_are_apart(name, spread):
    loss_fn = sl.MetricLoss(name, **{"recall_at_precision": {"precision": 0.9}, "precision_at_k": {"k": 5}}[name])
    for seed in range(40):
        random = torch.Generator().manual_seed(seed)
        target = torch.zeros(32).index_fill(0, torch.randperm(32, generator=random)[:9], 1.0)
        scores = spread * torch.randn(32, generator=random) + target
        _, found = gradient(loss_fn, scores, target)
        assert found.abs().max() > 0 or loss_fn.score(scores, target) == 1, seed


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_far_scores_do_not_drown_near_ones(scale):
    """Two scores far off, and the others compared as exactly as before."""
    scores, target, _ = draw(30)
    scores[0], scores[1] = -scale * 50, scale * 50
    for name in ("auroc", "average_precision"):
        expected = TWINS[name](scores, target, 1 - target).item()
        assert sl.MetricLoss(name)(scores, target).item() == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Laws
# ---------------------------------------------------------------------------------------------------------------------


@every_loss
def test_permutation(name):
    scores, target, weight = draw()
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(1))
    loss, slopes = gradient(LOSSES[name](), scores, target, weight)
    again, moved = gradient(LOSSES[name](), scores[order], target[order], weight[order])
    torch.testing.assert_close(again, loss)
    torch.testing.assert_close(moved, slopes[order])


@every_loss
def test_weight_two_is_a_row_twice(name):
    scores, target, _ = draw()
    weight = torch.ones(40, dtype=torch.float64)
    weight[::3] = 2
    twice = weight.long()
    loss_fn = LOSSES[name]()
    repeated = scores.repeat_interleave(twice), target.repeat_interleave(twice)
    torch.testing.assert_close(loss_fn(scores, target, weight), loss_fn(*repeated))
    torch.testing.assert_close(loss_fn.score(scores, target, weight), loss_fn.score(*repeated))


@every_loss
def test_masked_is_filtered_and_so_is_weight_zero(name):
    scores, target, _ = draw()
    kept = torch.arange(40) % 4 != 1
    loss_fn, expected = LOSSES[name](), gradient(LOSSES[name](), scores[kept], target[kept])
    scores[~kept] = torch.linspace(-5, 5, int((~kept).sum()), dtype=torch.float64)
    by_weight = gradient(loss_fn, scores, target, kept.double())
    by_index = gradient(LOSSES[name](ignore_index=-1), scores, torch.where(kept, target, -1))
    for loss, slopes in (by_weight, by_index):
        torch.testing.assert_close(loss, expected[0])
        torch.testing.assert_close(slopes[kept], expected[1])
        assert not slopes[~kept].any()
    ignoring = LOSSES[name](ignore_index=-1)
    torch.testing.assert_close(
        ignoring.score(scores, torch.where(kept, target, -1)), loss_fn.score(scores[kept], target[kept])
    )


@every_loss
def test_soft_targets_are_rows_of_both_classes(name):
    scores, _, _ = draw()
    target = torch.linspace(0, 1, 40, dtype=torch.float64)
    both = torch.cat([scores, scores]), torch.cat([torch.ones(40), torch.zeros(40)]), torch.cat([target, 1 - target])
    torch.testing.assert_close(LOSSES[name]()(scores, target), LOSSES[name]()(*both))
    torch.testing.assert_close(LOSSES[name]().score(scores, target), LOSSES[name]().score(*both))


@every_loss
def test_shift_of_all_scores_changes_nothing(name):
    if name in ("wmw", "wmw, p = 2", "soft sets"):
        pytest.skip("compares probabilities")
    scores, target, _ = draw(ties=False)
    held = name in ("auroc", "average_precision")
    loss_fn = sl.MetricLoss(name, anchor=0.0) if held else LOSSES[name]()  # an anchor holds the level
    loss, slopes = gradient(loss_fn, scores, target)
    assert loss_fn(scores + 3, target).item() == pytest.approx(loss.item())
    assert slopes.sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("options", [{}, {"margin": 0.1}, {"margin": 4.0}])
def test_the_losses_bound_the_metrics(seed, options):
    scores, target, weight = draw(seed=seed)
    for name in ("auroc", "average_precision"):
        loss_fn = sl.MetricLoss(name, anchor=0.0, **options)
        assert loss_fn(scores, target, weight) >= 1 - loss_fn.score(scores, target, weight) - 1e-12


@every_loss
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_class(name, value, dtype):
    scores = torch.randn(9, dtype=dtype)
    loss, slopes = gradient(LOSSES[name](), scores, torch.full((9,), value))
    assert loss.item() == 0
    assert loss.dtype is dtype
    assert not slopes.any()


@every_loss
def test_no_samples_at_all(name):
    loss, slopes = gradient(LOSSES[name](), torch.zeros(0), torch.zeros(0))
    assert (loss.item(), slopes.shape) == (0, (0,))
    loss, slopes = gradient(LOSSES[name](ignore_index=9), torch.randn(4), torch.full((4,), 9.0))
    assert loss.item() == 0
    assert not slopes.any()
    assert LOSSES[name]().score([], []).isnan()


@pytest.mark.parametrize("name", OPTIONS)
def test_no_samples_at_all_of_several_classes(name):
    nothing = torch.zeros(0, 3)
    for average, shape in (("macro", ()), ("none", (3,))):
        scored = sl.score(nothing, nothing, name, task="multilabel", average=average, **OPTIONS[name])
        assert scored.isnan().all()
        assert scored.shape == shape


@every_loss
def test_constant_scores(name):
    loss, slopes = gradient(LOSSES[name](), torch.zeros(10), torch.tensor([0.0, 1.0] * 5))
    assert loss.isfinite()
    assert slopes.isfinite().all()
    assert slopes[1::2].max() < 0 < slopes[::2].min()


@every_loss
@pytest.mark.parametrize("position", [0, 1])  # a negative and a positive
def test_nan_is_never_hidden(name, position):
    scores, target, _ = draw()
    scores[position] = NAN
    assert LOSSES[name]()(scores, target).isnan()
    assert LOSSES[name]()(scores, torch.zeros(40)).isnan()
    with pytest.raises(ValueError, match="scores must not be NaN; 1 of 40"):
        LOSSES[name]().score(scores, target)
    with pytest.raises(ValueError, match="scores must not be NaN"):
        LOSSES[name](validate=True)(scores, target)


@every_ranking
@pytest.mark.parametrize("size", [1e4, 1e30, INF])
def test_huge_scores(name, size):
    scores, target, _ = draw(ties=False)
    loss, slopes = gradient(sl.MetricLoss(name, **OPTIONS[name]), scores.sign() * size + scores, target)
    assert loss.isfinite()
    assert slopes.isfinite().all()
    if size == 1e4:
        assert slopes.any()


@pytest.mark.parametrize("name", ["auroc", "average_precision", "partial_auroc"])
def test_far_misranked_pairs_still_pull(name):
    """One positive, far below many negatives."""
    scores = torch.cat([torch.tensor([-1000.0]), torch.linspace(-1, 1, 200)])
    target = (torch.arange(201) == 0).float()
    _, slopes = gradient(sl.MetricLoss(name, **OPTIONS[name]), scores, target)
    assert slopes[0] < -1e-6


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_precision(name, dtype):
    scores, target, _ = draw()
    scores = scores.to(dtype)
    loss, slopes = gradient(LOSSES[name](), scores, target)
    assert loss.dtype is torch.float32
    assert slopes.dtype is dtype
    assert loss.item() == pytest.approx(LOSSES[name]()(scores.double(), target).item(), rel=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------------------------------

rows = st.lists(
    st.tuples(st.integers(-4, 4), st.booleans(), st.integers(0, 4)), min_size=2, max_size=30
).filter(lambda rows: len({y for _, y, w in rows if w}) == 2)  # fmt: skip


def columns(rows):
    scores, target, weight = (np.array(c, dtype=float) for c in zip(*rows, strict=True))
    return scores / 2, target, weight / 2


def best_recall(target, scores, precision, weight):
    found = precision_recall_curve(target, scores, sample_weight=weight)
    return max((r for p, r in zip(found[0][:-1], found[1][:-1], strict=True) if p >= precision), default=0.0)


@given(rows, st.sampled_from([0.05, 0.3, 0.5, 0.99, 1.0]))
@settings(max_examples=300, deadline=None)
def test_scores_equal_scikit_learn(rows, bound):
    scores, target, weight = columns(rows)
    references = {
        "auroc": ({}, roc_auc_score(target, scores, sample_weight=weight)),
        "average_precision": ({}, average_precision_score(target, scores, sample_weight=weight)),
        "partial_auroc": ({"max_fpr": bound}, roc_auc_score(target, scores, sample_weight=weight, max_fpr=bound)),
        "recall_at_precision": ({"precision": bound}, best_recall(target, scores, bound, weight)),
    }
    for name, (options, expected) in references.items():
        found = sl.MetricLoss(name, **options).score(scores, target, weight)
        assert found.item() == pytest.approx(expected, abs=1e-12), name
        assert found.dtype is torch.float64
        found = score_ranking(sl.RANKINGS[name], scores, target, sample_weight=weight, options=options)
        assert found.item() == pytest.approx(expected, abs=1e-12), name


def top_k(scores, target, k):
    """The mean over all orders of tied scores, which is what sharing the last places gives."""
    cut = np.sort(scores)[::-1][min(k, len(scores)) - 1]
    surely, maybe = target[scores > cut], target[scores == cut]
    return (surely.sum() + maybe.mean() * (min(k, len(scores)) - len(surely))) / min(k, len(scores))


@given(rows, st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_precision_of_the_k_highest(rows, k):
    scores, target, weight = columns(rows)
    found = sl.MetricLoss("precision_at_k", k=k).score(scores, target)
    assert found.item() == pytest.approx(top_k(scores, target, k), abs=1e-12)
    whole = (2 * weight).astype(int)
    found = sl.MetricLoss("precision_at_k", k=k).score(scores, target, whole)
    assert found.item() == pytest.approx(top_k(scores.repeat(whole), target.repeat(whole), k), abs=1e-12)


def test_scores_of_one_class():
    """As in scikit-learn: no AUROC, an average precision of 0 without positives and of 1 without negatives."""
    scores = [0.1, 0.7, 0.3]
    for name in ("auroc", "partial_auroc"):
        for target in ([0, 0, 0], [1, 1, 1]):
            assert sl.MetricLoss(name, **OPTIONS[name]).score(scores, target).isnan()
    assert sl.MetricLoss("ap").score(scores, [0, 0, 0]) == 0
    assert sl.MetricLoss("ap").score(scores, [1, 1, 1]) == 1
    assert sl.MetricLoss("recall_at_precision", precision=0.5).score(scores, [0, 0, 0]).isnan()
    assert sl.MetricLoss("recall_at_precision", precision=0.9).score(scores, [1, 0, 0]) == 0
    assert sl.MetricLoss("precision_at_k", k=2).score(scores, [0, 0, 0]) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Tasks
# ---------------------------------------------------------------------------------------------------------------------


def draw_task(task, n=60, seed=0):
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 3, generator=random, dtype=torch.float64)
    if task == "multiclass":
        return logits, torch.randint(3, (n,), generator=random)
    return logits, (torch.rand(n, 3, generator=random) < 0.4).double()


def log_odds(logits):
    p = logits.softmax(1)
    return p.log() - (1 - p).log()


@every_loss
def test_multilabel_is_the_mean_of_the_labels(name):
    logits, target = draw_task("multilabel")
    weight = torch.rand(60, dtype=torch.float64)
    alone = [LOSSES[name]()(logits[:, k], target[:, k], weight) for k in range(3)]
    torch.testing.assert_close(LOSSES[name](task="multilabel")(logits, target, weight), sum(alone) / 3)
    weighted = LOSSES[name](task="multilabel", weight=[1, 2, 5])(logits, target, weight)
    torch.testing.assert_close(weighted, (alone[0] + 2 * alone[1] + 5 * alone[2]) / 8)


@every_ranking
def test_multiclass_is_the_mean_of_each_class_against_the_rest(name):
    logits, target = draw_task("multiclass")
    loss_fn = sl.MetricLoss(name, **OPTIONS[name])
    alone = [loss_fn(log_odds(logits)[:, k], target == k) for k in range(3)]
    found = sl.MetricLoss(name, task="multiclass", **OPTIONS[name])(logits, target)
    torch.testing.assert_close(found, sum(alone) / 3)
    one_hot = torch.nn.functional.one_hot(target).double()
    torch.testing.assert_close(sl.MetricLoss(name, task="multiclass", **OPTIONS[name])(logits, one_hot), found)


def test_class_weights_weigh_the_samples_of_a_class():
    logits, target = draw_task("multiclass")
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    plain, weighted = (sl.MetricLoss("ap", task="multiclass", weight=w) for w in (None, weight.tolist()))
    torch.testing.assert_close(weighted(logits, target), plain(logits, target, weight[target]))
    torch.testing.assert_close(weighted.score(logits, target), plain.score(logits, target, weight[target]))


def test_two_classes_are_a_binary_task_and_its_mirror_image():
    logits, target = draw_task("binary")
    logits, target = logits[:, :2], target[:, 0].long()
    z = logits[:, 1] - logits[:, 0]
    loss_fn = sl.MetricLoss("auroc")
    both = (loss_fn(z, target) + loss_fn(-z, 1 - target)) / 2
    torch.testing.assert_close(sl.MetricLoss("auroc", task="multiclass")(logits, target), both)


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_several_classes_equal_scikit_learn(seed):
    logits, target = draw_task("multiclass", seed=seed)
    weight = torch.rand(60, dtype=torch.float64)
    p = logits.softmax(1)
    expected = roc_auc_score(target, p, multi_class="ovr", sample_weight=weight)
    assert sl.MetricLoss("auroc", task="multiclass").score(logits, target, weight).item() == pytest.approx(expected)
    of_p = sl.MetricLoss("auroc", task="multiclass", inputs="probabilities").score(p, target, weight)
    assert of_p.item() == pytest.approx(expected)
    expected = average_precision_score(target, p, sample_weight=weight)
    assert sl.MetricLoss("ap", task="multiclass").score(logits, target, weight).item() == pytest.approx(expected)

    logits, target = draw_task("multilabel", seed=seed)
    for name, reference in (("auroc", roc_auc_score), ("ap", average_precision_score)):
        found = sl.MetricLoss(name, task="multilabel").score(logits, target, weight)
        assert found.item() == pytest.approx(reference(target, logits, average="macro", sample_weight=weight))
        each = score_ranking(
            find_ranking(name), logits, target, sample_weight=weight, options={}, task="multilabel", average="none"
        )
        assert each.numpy() == pytest.approx(reference(target, logits, average=None, sample_weight=weight))


def test_a_class_that_is_not_there_is_left_out():
    logits, target = draw_task("multiclass")
    target = target % 2
    one = sl.MetricLoss("auroc")
    alone = [one(log_odds(logits)[:, k], target == k) for k in range(2)]
    loss_fn = sl.MetricLoss("auroc", task="multiclass")
    torch.testing.assert_close(loss_fn(logits, target), sum(alone) / 2)
    p = logits.softmax(1)
    scores = [roc_auc_score(target == k, p[:, k]) for k in range(2)]
    assert loss_fn.score(logits, target).item() == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("task", TASKS)
@every_ranking
def test_pixels_are_samples(name, task):
    random = torch.Generator().manual_seed(0)
    shape = (4, 5, 6) if task == "binary" else (4, 3, 5, 6)
    logits = torch.randn(shape, generator=random)
    target = torch.randint(3, (4, 5, 6), generator=random) if task == "multiclass" else (logits > 0.3).long()
    weight = torch.rand(4, 5, 6, generator=random)
    flat = logits.reshape(-1) if task == "binary" else logits.movedim(1, -1).reshape(-1, 3)
    flat_target = target.movedim(1, -1).reshape(-1, 3) if task == "multilabel" else target.reshape(-1)
    loss_fn = sl.MetricLoss(name, task=task, **OPTIONS[name])
    torch.testing.assert_close(loss_fn(logits, target, weight), loss_fn(flat, flat_target, weight.reshape(-1)))
    torch.testing.assert_close(
        loss_fn.score(logits, target, weight), loss_fn.score(flat, flat_target, weight.reshape(-1))
    )


@pytest.mark.parametrize("task", TASKS)
@every_loss
def test_probabilities_are_taken_to_log_odds(name, task):
    if name == "soft sets" and task == "multiclass":
        pytest.skip("soft sets have no multiclass form")
    logits, target = draw_task(task)
    p = logits.softmax(1) if task == "multiclass" else logits.sigmoid()
    if task == "binary":
        logits, target, p = logits[:, 0], target[:, 0], p[:, 0]
    found = LOSSES[name](task=task, inputs="probabilities")(p, target)
    torch.testing.assert_close(found, LOSSES[name](task=task)(logits, target))


def test_probabilities_of_0_and_1():
    p = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-20, 1e-10])
    loss, slopes = gradient(sl.MetricLoss("auroc", inputs="probabilities"), p, torch.tensor([0, 1, 1, 0, 1, 0]))
    assert loss.isfinite()
    assert slopes.isfinite().all()
    assert slopes[4] < 0 < slopes[5], "small probabilities are told apart"


def test_a_class_ruled_out():
    logits, target = draw_task("multiclass")
    logits[:10, 0] = -INF
    target[:10] = 1
    loss, slopes = gradient(sl.MetricLoss("auroc", task="multiclass"), logits, target)
    assert loss.isfinite()
    assert slopes.isfinite().all()


def test_log_odds_where_a_probability_rounds_to_1():
    logits = torch.tensor([[60.0, 0.0, 1.0], [50.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    _, slopes = gradient(sl.MetricLoss("auroc", task="multiclass"), logits, torch.tensor([1, 0, 0, 2]))
    assert slopes[0, 0] > 0 > slopes[1, 0]


# ---------------------------------------------------------------------------------------------------------------------
# Names, settings, bad input
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "name"),
    [("auc", "auroc"), ("roc_auc", "auroc"), ("ap", "average_precision"), ("pauc", "partial_auroc")],
)
def test_aliases(alias, name):
    assert sl.MetricLoss(alias, **OPTIONS[name]).metric.name == name


def build(*args, **settings):
    return lambda: sl.MetricLoss(*args, **settings)


def apply(*args):
    return lambda: sl.MetricLoss("auroc")(*args)


BAD = {
    "misspelt": (build("aurco"), ValueError, "unknown metric 'aurco'; did you mean 'auroc'"),
    "near names of both": (build("average_recision"), ValueError, "did you mean 'average_precision', 'precision'"),
    "unlike any": (build("zzzzqq"), ValueError, "known are .*recall.*mcc.*auroc"),
    "no max_fpr": (build("pauc"), TypeError, r"needs the option 'max_fpr', as in MetricLoss\(\"partial_auroc\", max_"),
    "no k": (build("precision_at_k"), TypeError, "needs the option 'k'"),
    "max_fpr of 0": (build("pauc", max_fpr=0), ValueError, r"max_fpr must lie in \(0, 1\]; got 0"),
    "max_fpr NaN": (build("pauc", max_fpr=NAN), ValueError, "max_fpr must .*got nan"),
    "precision of 2": (build("recall_at_precision", precision=2), ValueError, "precision must lie in .*got 2"),
    "k of 0": (build("precision_at_k", k=0), ValueError, "k must be an integer of at least 1; got 0"),
    "k a fraction": (build("precision_at_k", k=1.5), ValueError, "k must be an integer .*got 1.5"),
    "margin 0": (build("auroc", margin=0), ValueError, "margin must be a number above 0; got 0"),
    "margin as text": (build("auroc", margin="1"), ValueError, "margin must .*got '1'"),
    "damping negative": (build("auroc", damping=-1), ValueError, "damping must .*got -1"),
    "option of another": (build("ap", max_fpr=0.1), TypeError, "'average_precision' has no option 'max_fpr'; it has"),
    "setting misspelt": (build("auroc", treshold=0.4), TypeError, "no option 'treshold'; did you mean 'threshold'"),
    "step": (build("auroc", step="linear"), ValueError, "step='linear' has no effect on 'auroc', which ranks"),
    "threshold": (build("auroc", threshold=0.5), ValueError, "threshold=0.5 has no effect on 'auroc'"),
    "overlap": (build("auroc", overlap="min"), ValueError, "overlap='min' has no effect"),
    "per_image": (build("auroc", per_image=True), ValueError, "per_image=True has no effect"),
    "subject_to": (build("auroc", subject_to="recall >= 0.9"), ValueError, "subject_to=.* has no effect"),
    "blend": (build("auroc", blend=0.5), ValueError, "blend=0.5 has no effect on 'auroc'; pass anchor=, its own share"),
    "blend, no anchor": (build("precision_at_k", k=3, blend=0.5), ValueError, "add cross-entropy to the loss yourself"),
    "schedule": (build("auroc", schedule=sl.Schedule()), ValueError, "schedule=.* has no effect"),
    "memory": (build("auroc", memory=sl.Memory()), ValueError, "memory=.* has no effect on 'auroc', which has no sums"),
    "sync": (build("auroc", sync=True), ValueError, "'auroc' compares samples .* pass sync=False for .* own batch"),
    "gradients": (build("auroc", gradients="sum"), ValueError, "gradients='sum' has no effect on 'auroc'"),
    "maximize": (build("auroc", maximize=False), ValueError, "'auroc' is always maximised"),
    "average of one class": (build("auroc", average="macro"), ValueError, "no effect on a binary task"),
    "average": (build("auroc", task="multiclass", average="micro"), ValueError, "macro mean; got average='micro'"),
    "no average": (build("auroc", task="multiclass", average="none"), ValueError, "macro mean; got average='none'"),
    "weight": (build("auroc", weight=[1, 2]), ValueError, "for binary use sample_weight"),
    "weight negative": (build("auroc", task="multilabel", weight=[1, -2]), ValueError, "not negative; got"),
    "weight of two of three": (
        lambda: sl.MetricLoss("auroc", task="multilabel", weight=[1, 2])(torch.zeros(4, 3), torch.zeros(4, 3)),
        ValueError, "one entry for each of the 3 labels; got 2",
    ),
    "ignore_index": (build("auroc", ignore_index=0.5), TypeError, "ignore_index must be an integer; got 0.5"),
    "task": (build("auroc", task="multi"), ValueError, "task must be one of"),
    "lengths": (apply(torch.zeros(3), torch.zeros(4)), ValueError, r"shape \(3,\); got \(4,\)"),
    "weights": (apply(torch.zeros(3), torch.zeros(3), torch.ones(4)), ValueError, "sample_weight must have one entry"),
    "integers": (apply(torch.arange(3), torch.zeros(3)), TypeError, "floating-point scores; got int64"),
    "class out of range": (
        lambda: sl.MetricLoss("auroc", task="multiclass")(torch.zeros(2, 3), torch.tensor([0, 7])),
        ValueError, r"class indices in \[0, 3\); got 7",
    ),
    "score option of the loss": (
        lambda: score_ranking(sl.RANKINGS["auroc"], [0.1], [1], options={"margin": 1.0}), TypeError,
        "'margin' of 'auroc' is for its loss",
    ),
    "score threshold": (
        lambda: score_ranking(sl.RANKINGS["auroc"], [0.1], [1], options={}, threshold=0.5), ValueError, "has no effect",
    ),
    "score target": (lambda: sl.MetricLoss("auroc").score([0.1, 0.2], [0, 2]), ValueError, "targets must be 0 or 1"),
    "states": (lambda: sl.MetricLoss("auroc").measure(torch.zeros(2), torch.zeros(2)), TypeError, "no sums of batches"),
    "soft sets of another": (lambda: presets.soft_sets("ap"), ValueError, 'soft sets have "auroc" with the linear'),
    "soft sets, sigmoid": (lambda: presets.soft_sets("auroc", step="sigmoid"), ValueError, "linear step; got"),
    "wmw power": (lambda: presets.wmw(power=0), ValueError, "power must be an integer of at least 1; got 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    attempt, error, sentence = BAD[case]
    with pytest.raises(error, match=sentence):
        attempt()


def test_every_setting_of_a_metric_loss_is_known():
    """A setting that is new to MetricLoss must be given a meaning here, or refused."""
    import inspect

    from stepless.ranking import _WITHOUT_EFFECT, make_ranker

    settings = set(inspect.signature(sl.MetricLoss.__init__).parameters)
    taken = set(inspect.signature(make_ranker).parameters) - {"options", "training", "settings"}
    assert settings - {"self", "options", "validate"} == taken | set(_WITHOUT_EFFECT)


def test_repr():
    assert repr(sl.MetricLoss("auc")) == "MetricLoss('auroc')"
    found = repr(sl.MetricLoss("pauc", max_fpr=0.1, task="multilabel", weight=[1, 2]))
    assert found == "MetricLoss('partial_auroc', max_fpr=0.1, task='multilabel', weight=(1.0, 2.0))"


# ---------------------------------------------------------------------------------------------------------------------
# What torch does to a loss, and what a loss is for
# ---------------------------------------------------------------------------------------------------------------------


@every_loss
def test_copies_and_checkpoints(name):
    loss_fn = LOSSES[name]()
    scores, target, _ = draw()
    for again in (copy.deepcopy(loss_fn), pickle.loads(pickle.dumps(loss_fn))):
        assert again(scores, target) == loss_fn(scores, target)
        assert isinstance(again, sl.MetricLoss)
    loss_fn.load_state_dict(copy.deepcopy(loss_fn).state_dict())
    loss_fn.advance(0.5)
    assert loss_fn.violations(scores, target) == {}
    functional = sl.metric_loss(scores, target, loss_fn.metric, **dict(loss_fn.metric.options))
    assert functional == loss_fn(scores, target)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param(name, task, marks=() if place % 3 == TASKS.index(task) else pytest.mark.full)
        for place, name in enumerate(LOSSES)
        for task in TASKS
    ],
)
def test_compile(name, task):
    if name == "soft sets" and task == "multiclass":
        pytest.skip("soft sets have no multiclass form")
    torch._dynamo.reset()
    logits, target = draw_task(task, n=20)
    loss_fn = LOSSES[name](task=task)
    loss, slopes = gradient(loss_fn, logits, target)
    again, compiled = gradient(torch.compile(loss_fn, backend="aot_eager", fullgraph=True), logits, target)
    torch.testing.assert_close(again, loss)
    torch.testing.assert_close(compiled, slopes)


@every_loss
def test_gradients_as_a_function(name):
    scores, target, _ = draw()
    loss_fn = LOSSES[name]()
    torch.testing.assert_close(
        torch.func.grad(lambda s: loss_fn(s, target))(scores), gradient(loss_fn, scores, target)[1]
    )


def test_autocast_does_not_count_in_half_precision():
    scores, target, _ = draw()
    expected = sl.MetricLoss("auroc")(scores.float(), target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sl.MetricLoss("auroc")(scores.float(), target) == expected


@every_loss
def test_memory_is_linear(name):
    """Four times the samples, about four times the memory; all pairs of the smaller batch alone would take 1 GB."""

    def peak(n):
        random = torch.Generator().manual_seed(0)
        scores = torch.randn(n, generator=random, requires_grad=True)
        target = (torch.rand(n, generator=random) < 0.3).float()
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            LOSSES[name]()(scores, target).backward()
        events = profile.profiler.kineto_results.events()
        held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"])
        return held.max()

    small, large = peak(25_000), peak(100_000)
    assert large < 5 * small
    assert large < 100_000 * 8 * 60, "sixty arrays of float64"


@pytest.mark.full
@every_loss
def test_two_hundred_thousand_scores(name):
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(200_000, generator=random)
    loss, slopes = gradient(LOSSES[name](), scores, (torch.rand(200_000, generator=random) < 0.3).float())
    assert loss.isfinite()
    assert slopes.isfinite().all()


@every_ranking
def test_training_improves_the_metric(name):
    torch.manual_seed(0)
    x = torch.randn(600, 6)
    target = (x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * torch.randn(600) > 1.5).float()
    options = {**OPTIONS[name], **({"k": 60} if name == "precision_at_k" else {})}
    loss_fn = sl.MetricLoss(name, **options)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1), torch.nn.Flatten(0))
    before = loss_fn.score(model(x).detach(), target).item()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        loss_fn(model(x), target).backward()
        optimizer.step()
    after = loss_fn.score(model(x).detach(), target).item()
    assert after > max(before + 0.2, 0.75)


@every_ranking
def test_a_class_that_is_certain_because_all_others_are_ruled_out(name):
    logits = torch.tensor([[1.0, -math.inf], [0.2, 0.3], [0.1, 0.5]], requires_grad=True)
    sl.MetricLoss(name, task="multiclass", **OPTIONS[name])(logits, torch.tensor([0, 1, 0])).backward()
    assert logits.grad.isfinite().all()


def test_equal_weights_do_not_cost_a_precision_that_is_reached():
    scores, target = np.arange(10.0, 0, -1), [1, 1, 0, 1, 1, 1, 1, 1, 1, 1]
    weight = np.full(10, 1 / 3)  # nine thirds of ten thirds are less than 0.9 by a rounding
    found = sl.score(scores, target, "recall_at_precision", precision=0.9, sample_weight=weight)
    assert found == sl.score(scores, target, "recall_at_precision", precision=0.9) == 1


@pytest.mark.full
def test_one_ranking_compiles_after_another():
    scores, target = torch.randn(64), (torch.rand(64) > 0.5).float()
    for name in ("auroc", "average_precision", "auroc"):
        loss_fn = sl.MetricLoss(name)
        compiled = torch.compile(loss_fn, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(scores, target), loss_fn(scores, target))


def test_options_may_be_numbers_of_numpy():
    scores, target = torch.randn(8), torch.tensor([1, 0] * 4)
    assert sl.MetricLoss("precision_at_k", k=np.int64(3))(scores, target) == sl.MetricLoss("precision_at_k", k=3)(
        scores, target
    )
