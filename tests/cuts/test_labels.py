"""One threshold per label: what trying every combination of cuts finds, exactly where it is guaranteed."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from tests.brute_force import CHOICES, INF, Draw, count, draws, equal, every_cut, holds, labels, score_each, sign_of


@given(draws, st.sampled_from(list(CHOICES)), st.sampled_from(["macro", "weighted"]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_labels_that_separate_are_tuned_one_by_one(draw, choice, average, constrained):
    scores, target, weight = labels(draw)
    metric, options = CHOICES[choice]
    subject_to = "fpr <= 0.4" if constrained else None  # which "no to every row" always meets
    tuned = sl.tune_threshold(scores, target, metric, subject_to, weight, task="multilabel", average=average, **options)
    best, sign = [], sign_of(metric, **options)
    for x, y in zip(scores.T, target.T, strict=True):
        decisions = x[:, None] >= every_cut(x)
        values = sign * score_each(decisions, y, metric, weight, **options)
        best.append(values[holds(subject_to, decisions, y, weight)[0]].max() if constrained else values.max())
    support = target.sum(0) if weight is None else weight @ target
    by_support = average == "weighted" and support.any()
    assert sign * tuned.score == equal(np.average(best, weights=support if by_support else None))
    yes = scores >= np.array(tuned.threshold)
    np.testing.assert_array_equal(tuned.counts, count(yes, target, weight))
    assert not constrained or all(holds(subject_to, yes[:, [j]], target[:, j], weight)[0].all() for j in range(2))


def test_a_label_without_positives_is_answered_no():
    """Its F1 is 0 at every cut, so the scores carry no information, and every yes would be wrong."""
    scores, target = np.array([[0.1, 0.9], [0.8, 0.3], [0.6, 0.5]]), np.array([[0, 0], [1, 0], [1, 0]])
    assert sl.tune_threshold(scores, target, "f1", task="multilabel").threshold == (equal(0.35), INF)


def score_micro(decisions, target, metric, weight=None):
    """Micro scores of decisions ``(sets, rows, labels)``."""
    weight = None if weight is None else np.repeat(weight, target.shape[1])
    return score_each(decisions.reshape(len(decisions), -1).T, target.ravel(), metric, weight)


def score_samples(decisions, target, metric, weight=None):
    """Sample-averaged scores of decisions ``(sets, rows, labels)``: each row a problem of its own."""
    each = [score_each(decisions[:, i].T, target[i], metric) for i in range(len(target))]
    return np.average(each, axis=0, weights=weight)


JOINT = {"micro": score_micro, "samples": score_samples}


def every_combination(scores):
    """Decisions (sets, rows, labels) of every combination of the labels' cuts."""
    return np.array([scores >= np.array(cuts) for cuts in itertools.product(*map(every_cut, scores.T))])


@given(draws, st.sampled_from(["f1", "jaccard", "accuracy", "cost", "precision", "recall", "fdr"]))
@settings(max_examples=150, deadline=None)
def test_micro_is_exact_for_a_quotient_of_linear_functions(draw, metric):
    """Guaranteed: where no label alone can improve a/b, a − (a/b)·b is at its maximum in every label, so in all."""
    scores, target, weight = labels(draw)
    tuned = sl.tune_threshold(scores, target, metric, None, weight, task="multilabel", average="micro")
    sign = sign_of(metric)
    best = (sign * score_micro(every_combination(scores), target, metric, weight)).max()
    assert sign * tuned.score == equal(best)


@given(draws, st.integers(2, 4), st.sampled_from(["f1", "mcc", "g_mean", "jaccard", "precision"]))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("average", JOINT)
def test_a_joint_search_is_never_below_its_starts(average, draw, columns, metric):
    """Guaranteed for every metric: neither the labels' own best cuts nor the best common cut scores better."""
    scores, target, weight = labels(draw, columns)
    assert_not_below_its_starts(scores, target, weight, metric, average)


def assert_not_below_its_starts(scores, target, weight, metric, average):
    tuned = sl.tune_threshold(scores, target, metric, None, weight, task="multilabel", average=average)
    own = sl.tune_threshold(scores, target, metric, None, weight, task="multilabel").threshold
    tried = np.array([scores >= cut for cut in [np.array(own), *every_cut(scores)]])
    assert tuned.score >= JOINT[average](tried, target, metric, weight).max() - 1e-12
    yes = scores >= np.array(tuned.threshold)
    assert tuned.score == equal(JOINT[average](yes[None], target, metric, weight)[0])
    np.testing.assert_array_equal(tuned.counts, count(yes, target, weight))


def test_the_best_common_cut_of_samples_is_that_of_the_samples_score():
    """The cut that is best for the micro score, or without the weights, is another one here, and a worse start."""
    scores = np.array([[0.375, 0.625], [0.375, 0.75], [0.25, 0.5], [0.75, 0.375]])
    target, weight = np.array([[1, 1], [0, 1], [1, 1], [1, 1]]), np.array([12.0, 5.0, 1.0, 13.0])
    assert_not_below_its_starts(scores, target, weight, "precision", "samples")


@pytest.mark.parametrize("metric", ["f1", "mcc", "jaccard", "precision"])
@pytest.mark.parametrize("average", JOINT)
def test_a_joint_search_usually_finds_the_best_combination(average, metric):
    """Not guaranteed, but it should find the best of all combinations in four small problems of five."""
    found = []
    for seed in range(30):
        scores, target, weight = labels(Draw(seed, rows=7, levels=5, weighted=seed % 2 == 0))
        tuned = sl.tune_threshold(scores, target, metric, None, weight, task="multilabel", average=average)
        best = JOINT[average](every_combination(scores), target, metric, weight).max()
        assert tuned.score <= best + 1e-12
        found.append(tuned.score >= best - 1e-12)
    assert np.mean(found) >= 0.8


@given(draws, st.sampled_from(["f1", "mcc", "recall"]), st.sampled_from(["precision >= 0.75", "recall >= 0.6"]))
@settings(max_examples=200, deadline=None)
def test_constraints_on_micro_scores(draw, metric, constraint):
    """Guaranteed for a constraint that is a quotient of linear functions: it is met wherever it can be."""
    scores, target, weight = labels(draw)
    every = every_combination(scores).reshape(-1, scores.size).T
    weights = None if weight is None else np.repeat(weight, 2)
    feasible, best = holds(constraint, every, target.ravel(), weights)
    tune = {"sample_weight": weight, "task": "multilabel", "average": "micro"}
    if not feasible.any():
        with pytest.raises(ValueError, match=f"{constraint}: the best [a-z]+ [a-z]+ is {best:.6g}"):
            sl.tune_threshold(scores, target, metric, constraint, **tune)
        return
    tuned = sl.tune_threshold(scores, target, metric, constraint, **tune)
    yes = (scores >= np.array(tuned.threshold)).reshape(-1, 1)
    assert holds(constraint, yes, target.ravel(), weights)[0].all()


PAIRS = ["precision >= 0.6 and recall >= 0.6", "recall >= 0.7 and fpr <= 0.4", "mcc >= 0.3", "precision >= 0.75"]


@given(draws, st.sampled_from(["f1", "mcc", "recall"]), st.sampled_from(PAIRS), st.integers(2, 3))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("average", JOINT)
def test_small_problems_with_constraints_are_solved(average, draw, metric, subject_to, columns):
    """Where every combination of cuts can be tried, the best that is allowed is found, and an error is right."""
    scores, target, weight = labels(replace(draw, rows=min(draw.rows, 6)), columns)
    every = every_combination(scores)
    feasible = np.ones(len(every), bool)
    for name, sign, bound in re.findall(r"(\w+) (>=|<=) ([\d.]+)", subject_to):
        values = JOINT[average](every, target, name, weight)
        by = 1e-12  # weights add up to less than a bound that they meet
        feasible &= values >= float(bound) - by if sign == ">=" else values <= float(bound) + by
    tune = {"sample_weight": weight, "task": "multilabel", "average": average}
    if not feasible.any():
        with pytest.raises(ValueError, match="no threshold was found that meets"):
            sl.tune_threshold(scores, target, metric, subject_to, **tune)
        return
    best = JOINT[average](every[feasible], target, metric, weight).max()
    assert sl.tune_threshold(scores, target, metric, subject_to, **tune).score == equal(best)


def test_a_frontier_of_many_labels_meets_constraints():
    """Neither the labels' own best cuts nor a common one meet both bounds here; cuts at one price do."""
    rng = np.random.default_rng(0)
    target = (rng.random((400, 8)) < np.linspace(0.05, 0.6, 8)).astype(int)
    scores = target * rng.uniform(0.5, 3, 8) + rng.normal(size=(400, 8)) + 3 * np.arange(8)
    subject_to = "precision >= 0.8 and recall >= 0.5"
    tuned = sl.tune_threshold(scores, target, "f1", subject_to, task="multilabel", average="micro")
    tp, fp, fn, _ = (cell.sum() for cell in tuned.counts)
    assert tp / (tp + fp) >= 0.8
    assert tp / (tp + fn) >= 0.5


def test_rows_without_a_defined_score_are_left_out_of_the_samples_mean():
    """As `score` leaves them out: a row without positives, and without positive decisions, has no F1."""
    rng = np.random.default_rng(0)
    scores, target = rng.random((6, 3)), rng.integers(0, 2, (6, 3))
    target[0] = 0
    settings = {"task": "multilabel", "average": "samples", "inputs": "probabilities", "zero_division": math.nan}
    tuned = sl.tune_threshold(scores, target, "f1", **settings)
    assert sl.score(scores, target, "f1", threshold=tuned, **settings).item() == equal(tuned.score)
