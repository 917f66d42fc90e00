"""What a tuning offers besides its threshold: the curve over all cuts, and intervals from resampled rows."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import stepless as sl
from tests.brute_force import binary, draws, score_each

TASKS = ("binary", "multilabel", "multiclass")


def tune(task, p, target, **settings):
    return sl.tune_threshold(p, target, "f1", task=task, inputs="probabilities", **settings)


@given(draws)
@settings(max_examples=50, deadline=None)
def test_the_curve_holds_every_cut(draw):
    scores, target, weight = binary(draw)
    tuned = sl.tune_threshold(scores, target, "f1", None, weight)
    thresholds, values = tuned.curve()
    assert (np.diff(thresholds) < 0).all()
    assert values.max() == tuned.score
    np.testing.assert_allclose(values, score_each(scores[:, None] >= thresholds, target, "f1", weight), atol=1e-12)
    (swept,) = tuned.sweeps
    assert [swept.threshold(entry) for entry in range(len(thresholds))] == thresholds.tolist()


def noisy(task, rows, seed=0):
    """Probabilities that tell the classes apart, but not well."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 3, rows) if task == "multiclass" else rng.integers(0, 2, (rows, 2))
    signal = np.eye(3)[target] if task == "multiclass" else target
    scores = torch.tensor(signal + rng.normal(size=signal.shape))
    if task == "binary":
        scores, target = scores[:, 0], target[:, 0]
    return (scores.softmax(1) if task == "multiclass" else scores.sigmoid()).numpy(), target


@pytest.mark.parametrize("task", TASKS)
def test_an_interval_is_what_resampled_rows_give(task):
    """The reference draws rows repeatedly and tunes on them."""
    p, target = noisy(task, 40)
    tuned = tune(task, p, target)
    interval = tuned.interval(25, confidence=0.8, random_state=7)
    rng, thresholds, scores = np.random.default_rng(7), [], []
    for _ in range(25):
        rows = np.arange(40).repeat(rng.multinomial(40, np.full(40, 1 / 40)))
        thresholds.append(tune(task, p[rows], target[rows], restarts=0).threshold)  # on resamples no random starts
        again = sl.score(p[rows], target[rows], "f1", task=task, inputs="probabilities", threshold=tuned)
        scores.append(again.item())
    low, high = np.quantile(thresholds, [0.1, 0.9], axis=0, method="nearest")
    np.testing.assert_allclose(np.array(interval.threshold).T, [low, high], atol=1e-12)
    np.testing.assert_allclose(interval.score, np.quantile(scores, [0.1, 0.9]), atol=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_an_interval_usually_holds_the_point(task):
    inside = []
    for seed in range(10):
        p, target = noisy(task, 60, seed)
        tuned = tune(task, p, target)
        interval = tuned.interval(40)
        assert interval.score[0] <= interval.score[1]
        ends = np.reshape(interval.threshold, (-1, 2))
        point = np.ravel(tuned.threshold)
        assert len(ends) == len(point)
        inside.append(interval.score[0] <= tuned.score <= interval.score[1])
        inside.extend((ends[:, 0] <= point) & (point <= ends[:, 1]))
    assert np.mean(inside) >= 0.8


def test_an_interval_of_few_resamples_gives_a_warning():
    """A class of one row is in 63 % of the resamples, and three such classes in 25 %."""
    target = np.r_[np.arange(3), np.zeros(20, int)]
    tuned = tune("multiclass", np.eye(3)[target], target, subject_to="recall >= 0.99", zero_division=0)
    with pytest.warns(UserWarning, match=r"only \d+ of 50 resamples could be tuned, .* less certain than its interval"):
        tuned.interval(50)


@pytest.mark.parametrize("task", TASKS)
def test_an_interval_follows_its_seed(task):
    p, target = noisy(task, 40)
    tuned = tune(task, p, target)
    assert tuned.interval(20) == tuned.interval(20)
    assert tuned.interval(20) != tuned.interval(20, random_state=1)


def test_an_interval_is_wider_for_fewer_rows():
    def widths(rows):
        intervals = [tune("binary", *noisy("binary", rows, seed)).interval(50) for seed in range(5)]
        return np.mean([np.ptp([i.threshold, i.score], axis=1) for i in intervals], axis=0)

    assert (widths(50) > 1.5 * widths(800)).all()


def test_an_interval_leaves_out_resamples_that_cannot_be_tuned():
    """The one positive of three rows is missing from 8 resamples of 27, which say nothing of the threshold."""
    tuned = sl.tune_threshold([0.1, 0.2, 0.9], [0, 0, 1], "f1")
    low, high = tuned.interval(50).threshold
    assert 0.1 < low <= high < 0.9


@pytest.mark.parametrize("task", TASKS)
def test_results_can_be_compared(task):
    p, target = noisy(task, 40)
    assert tune(task, p, target) == tune(task, p, target)
    assert tune(task, p, target) != tune(task, p[:-5], target[:-5])


def module_metric(tp, fp, fn, tn):
    return tp / (tp + fp + fn)


METRICS = ["f1", "tp / (tp + fp + 2*fn)", module_metric, sl.METRICS["f_beta"].bind(beta=2.0)]


@pytest.mark.parametrize("metric", METRICS, ids=["name", "text", "function", "bound"])
@pytest.mark.parametrize("task", TASKS)
def test_a_tuning_can_be_pickled_and_copied(task, metric):
    p, target = noisy(task, 40)
    bound = "tp + tn >= 2"  # a constraint that is a formula goes along
    tuned = sl.tune_threshold(p, target, metric, bound, task=task, inputs="probabilities")
    for again in (pickle.loads(pickle.dumps(tuned)), copy.deepcopy(tuned), copy.copy(tuned)):
        assert again == tuned
        assert again.interval(10) == tuned.interval(10)
        np.testing.assert_array_equal(again.counts, tuned.counts)
        if task != "multiclass":
            np.testing.assert_array_equal(again.curve(), tuned.curve())


def test_a_tuning_for_a_lambda_cannot_be_pickled():
    tuned = sl.tune_threshold([0.1, 0.9], [0, 1], lambda tp, fp, fn, tn: tp / (tp + fp + fn))
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"[Cc]an't pickle"):
        pickle.dumps(tuned)


def test_resamples_without_a_score_give_a_warning():
    scores = np.arange(30.0)
    tuned = sl.tune_threshold(scores, scores % 29 == 0, "precision", zero_division=math.nan)
    assert tuned.threshold > 28  # yes to one row, which a resample may lack
    with pytest.warns(UserWarning, match=r"the metric is undefined on \d+ of 50 resamples"):
        interval = tuned.interval(50)
    assert np.isfinite(interval.score).all()
