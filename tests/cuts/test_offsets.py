"""One offset per class: never below argmax, and on small problems against every decision that offsets can reach."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from tests.brute_force import INF, Draw, binary, classes, count, equal, sign_of

MULTICLASS = ["f1", "precision", "accuracy", "balanced_accuracy", "g_mean", "mcc", "weighted_kappa", "error_rate"]


def log(p):
    with np.errstate(divide="ignore"):
        return np.log(p)


def between(points):
    """One number between any two neighbouring finite points, and one beyond each end."""
    points = np.unique(points[np.isfinite(points)])
    if len(points) == 0:
        return np.zeros(1)
    return np.concatenate([[points[0] - 1], (points[1:] + points[:-1]) / 2, [points[-1] + 1]])


def reachable(log_p):
    """All decisions ``(sets, rows)`` that three offsets can lead to.

    With offsets (0, a, b) a row changes its class only across the lines a = log p₁/p₀, b = log p₂/p₀ and b − a = log
    p₂/p₁. The first number runs through the intervals between all crossings, the second through those between lines.
    """
    with np.errstate(invalid="ignore"):
        one, two, last = log_p[:, 1] - log_p[:, 0], log_p[:, 2] - log_p[:, 0], log_p[:, 2] - log_p[:, 1]
        crossings = np.concatenate([one, np.subtract.outer(two, last).ravel()])
    offsets = np.array([(0, a, b) for a in between(crossings) for b in between(np.concatenate([two, a + last]))])
    return np.unique((log_p - offsets[:, None]).argmax(2), axis=0)


def score_classes(decided, target, metric, weight=None):
    one_hot = np.eye(3)[decided]
    return sl.score(
        one_hot, target, metric, task="multiclass", inputs="probabilities", sample_weight=weight
    ).item()  # fmt: skip


def best_reachable(log_p, target, metric, weight=None):
    sign = sign_of(metric)
    return sign * max(sign * score_classes(decided, target, metric, weight) for decided in reachable(log_p))


def assert_offsets_decide_as_they_say(tuned, p, target, metric, weight=None):
    decided = (log(p) - np.array(tuned.threshold)).argmax(1)
    assert score_classes(decided, target, metric, weight) == equal(tuned.score)
    one_hot = np.eye(3)
    np.testing.assert_array_equal(tuned.counts, count(one_hot[decided], one_hot[target], weight))
    settings = {"task": "multiclass", "inputs": "probabilities", "sample_weight": weight}
    assert sl.score(p, target, metric, threshold=tuned, **settings).item() == equal(tuned.score)


def tune_classes(p, target, metric, weight=None, **options):
    return sl.tune_threshold(
        p, target, metric, sample_weight=weight, task="multiclass", inputs="probabilities", **options
    )


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("metric", MULTICLASS)
def test_offsets_against_every_decision_they_can_reach(metric, zeros):
    """Guaranteed: never below argmax, and no offset alone improves it. On problems this small it is the best of all."""
    sign = sign_of(metric)
    for seed in range(20):
        p, target, weight = classes(seed, rows=6, zeros=zeros)
        tuned = tune_classes(p, target, metric, weight)
        assert_offsets_decide_as_they_say(tuned, p, target, metric, weight)
        assert sign * tuned.score >= sign * score_classes(p.argmax(1), target, metric, weight) - 1e-12
        best = best_reachable(log(p), target, metric, weight)
        assert tuned.score == equal(best)


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("metric", ["f1", "accuracy", "mcc", "weighted_kappa"])
def test_no_offset_alone_improves_the_result(metric, zeros):
    for seed in range(40):
        p, target, weight = classes(seed, zeros=zeros)
        tuned = tune_classes(p, target, metric, weight)
        shifted = log(p) - np.array(tuned.threshold)
        for k in range(3):
            others = np.delete(shifted, k, 1).max(1)
            for change in between(shifted[:, k] - others):
                decided = np.where(np.arange(3) == k, shifted - change, shifted).argmax(1)
                assert score_classes(decided, target, metric, weight) <= tuned.score + 1e-12


def test_a_certain_row_does_not_hide_what_an_offset_can_do():
    """Rows 0 and 4 are class 1 whatever the offsets; a search that believes otherwise misses the last row's class."""
    p = [[0, 1, 0], [1, 0, 0], [0.25, 0, 0.75], [0, 0, 1], [0, 1, 0], [2**-7, 2**-7, 1 - 2**-6]]
    p, target = np.array(p, float), np.array([0, 0, 2, 2, 0, 1])
    assert best_reachable(log(p), target, "accuracy") == equal(4 / 6)
    assert tune_classes(p, target, "accuracy").score == equal(4 / 6)


@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8, 10]), st.sampled_from(["f1", "precision", "accuracy"]))
@settings(max_examples=250, deadline=None)
def test_ties_never_cost_a_decision(seed, parts, metric):
    """Probabilities that are multiples of ¼, ⅛ or ⅒ tie in every way; the result is what it says, ties and all."""
    rng = np.random.default_rng(seed)
    p, target = rng.multinomial(parts, [1 / 3] * 3, 8) / parts, rng.integers(0, 3, 8)
    target[:2] = 0, 1
    assert_ties_do_not_matter(p, target, metric)


def assert_ties_do_not_matter(p, target, metric, weight=None):
    tuned = tune_classes(p, target, metric, weight)
    assert tuned.score >= score_classes(p.argmax(1), target, metric, weight) - 1e-12
    assert_offsets_decide_as_they_say(tuned, p, target, metric, weight)


def test_centring_the_offsets_flips_no_tie():
    """log ⅝ − log ⅜ and its like tie after offsets; the last bit of a mean must not decide then."""
    p = np.array([[5, 0, 3], [4, 3, 1], [1, 5, 2], [4, 0, 4], [2, 2, 4]]) / 8
    assert_ties_do_not_matter(p, np.array([0, 2, 0, 0, 2]), "f1", np.array([1.0, 1.0, 3.0, 1.0, 4.0]))


@pytest.mark.parametrize("seed", range(20))
def test_float32_logits_decide_in_float32_as_in_float64(seed):
    """Rounded logits differ from each other by multiples of 0.1 up to float32's last bits, which must not decide."""
    rng = np.random.default_rng(seed)
    logits, target = (rng.integers(-20, 20, (12, 3)) / 10).astype(np.float32), rng.integers(0, 3, 12)
    target[:2] = 0, 1
    settings = {"task": "multiclass", "inputs": "logits"}
    tuned = sl.tune_threshold(logits, target, "f1", **settings)
    assert sl.score(logits, target, "f1", threshold=tuned, **settings).item() == equal(tuned.score)


def test_logits_and_their_probabilities_have_the_same_offsets():
    p, target, weight = classes(0, rows=30)
    shift = np.arange(30.0)[:, None]  # which no decision depends on
    logits = sl.tune_threshold(log(p) + shift, target, "f1", None, weight, task="multiclass", inputs="logits")
    np.testing.assert_allclose(logits.threshold, tune_classes(p, target, "f1", weight).threshold, atol=1e-9)


def test_a_class_ruled_out_stays_ruled_out():
    logits = np.array([[-INF, 1.0, 0.0], [2.0, -INF, 0.0], [0.0, 1.0, -INF], [-INF, -1.0, 0.5]])
    tuned = sl.tune_threshold(logits, [1, 2, 1, 2], "accuracy", task="multiclass", inputs="logits")
    assert np.isfinite(tuned.threshold).all()
    assert tuned.score == 1
    tuned = sl.tune_threshold(logits, [0, 1, 2, 0], "accuracy", task="multiclass", inputs="logits")
    assert tuned.score == 0


def test_two_classes_are_a_threshold():
    """Of two classes the second is decided where log p₁ − log p₀ is above a cut, which the binary sweep finds."""
    for seed in range(20):
        scores, target, weight = binary(Draw(seed, rows=12, levels=12, weighted=seed % 2 == 0))
        logits = np.c_[np.zeros(12), scores]
        tuned = sl.tune_threshold(logits, target, "mcc", None, weight, task="multiclass", inputs="logits")
        assert tuned.score == equal(sl.tune_threshold(scores, target, "mcc", None, weight).score)


def test_the_search_follows_its_seed():
    p, target, weight = classes(1, rows=60)
    first, second = (tune_classes(p, target, "f1", weight).threshold for _ in range(2))
    assert first == second
    more = [tune_classes(p, target, "f1", weight, restarts=n).score for n in (0, 4, 16)]
    assert more == sorted(more)


PAIRS = ["precision >= 0.6", "precision >= 0.5 and recall >= 0.5", "f1 >= 0.55 and fpr <= 0.2", "cost <= 0.4"]


@given(st.integers(0, 2**32 - 1), st.integers(3, 8), st.booleans(), st.sampled_from(PAIRS))
@settings(max_examples=60, deadline=None)
def test_small_problems_with_constraints_are_solved(seed, rows, zeros, subject_to):
    """Every decision of three classes is tried: the best that is allowed is found, and an error is right."""
    p, target, weight = classes(seed, rows=rows, zeros=zeros)
    reached, feasible = reachable(log(p)), True
    for name, sign, bound in re.findall(r"(\w+) (>=|<=) ([\d.]+)", subject_to):
        values = np.array([score_classes(decided, target, name, weight) for decided in reached])
        feasible &= values >= float(bound) if sign == ">=" else values <= float(bound)
    if not feasible.any():
        with pytest.raises(ValueError, match="no threshold was found that meets"):
            tune_classes(p, target, "f1", weight, subject_to=subject_to)
        return
    best = max(score_classes(decided, target, "f1", weight) for decided in reached[feasible])
    tuned = tune_classes(p, target, "f1", weight, subject_to=subject_to)
    assert tuned.score == equal(best)
    assert_offsets_decide_as_they_say(tuned, p, target, "f1", weight)


def test_a_constraint_may_read_the_matrix():
    for seed in range(10):
        p, target, weight = classes(seed, rows=20, concentration=0.5)
        free = tune_classes(p, target, "cost", weight)
        bound = round(free.score * 1.2, 3)
        tuned = tune_classes(p, target, "f1", weight, subject_to=f"cost <= {bound}")
        decided = (log(p) - np.array(tuned.threshold)).argmax(1)
        assert score_classes(decided, target, "cost", weight) <= bound


def test_costs_move_the_decisions():
    """Missing class 2 costs 20 and all other errors 1: it is decided more often than it is most probable."""
    p, target, _ = classes(0, rows=300)
    costs = ((0, 1, 1), (1, 0, 1), (20, 20, 0))
    tuned = tune_classes(p, target, "cost", costs=costs)
    plain = sl.score(p, target, "cost", task="multiclass", inputs="probabilities", costs=costs).item()
    assert tuned.score < plain
    assert tuned.threshold[2] == min(tuned.threshold)
