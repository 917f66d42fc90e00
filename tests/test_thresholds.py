"""`tune_threshold` finds what trying every cut finds, its result decides as it says, and bad input is refused.

What holds for several labels alone is in `cuts/test_labels.py`, for several classes alone in `cuts/test_offsets.py`.
"""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix_at_thresholds

import stepless as sl
from stepless.constraints import Constraint
from stepless.cuts.sweep import sweep

from .brute_force import (
    CHOICES,
    INF,
    Draw,
    binary,
    classes,
    count,
    draws,
    equal,
    every_cut,
    holds,
    labels,
    score_each,
    sign_of,
)

CONSTRAINTS = ["precision >= 0.75", "recall >= 0.6", "fpr <= 0.25", "accuracy >= 0.7", "fp + fn <= 2.5", "npv >= 0.5"]


# ---------------------------------------------------------------------------------------------------------------------
# Binary
# ---------------------------------------------------------------------------------------------------------------------


def assert_decides_as_it_says(tuned, scores, target, weight, metric, options):
    """Counts and score of a binary tuning are those of "score ≥ threshold"."""
    yes = scores >= tuned.threshold
    assert list(tuned.counts) == count(yes, target, weight)
    assert score_each(yes[:, None], target, metric, weight, **options)[0] == equal(tuned.score)


def assert_says_what_can_be_had(error, subject_to, held, decisions, target, weight):
    """The best value of each constraint that no cut meets; if there is none, of each where the others hold."""
    hopeless = [i for i, (ok, _) in enumerate(held) if not ok.any()]
    assert error.count("even by itself") == (len(hopeless) if len(held) > 1 else 0)
    assert ("each can be met by itself, but not together" in error) == (not hopeless)
    for i, constraint in enumerate(subject_to):
        others = np.all([np.ones(decisions.shape[1], bool), *(ok for j, (ok, _) in enumerate(held) if j != i)], axis=0)
        name = re.split(" [<>]= ", constraint)[0]
        if i in hopeless:
            assert f"the best attainable {name} is {held[i][1]:.6g}" in error
        elif not hopeless and others.any():
            _, best = holds(constraint, decisions[:, others], target, weight)
            assert f"the best attainable {name} is {best:.6g}" in error


@given(draws, st.sampled_from(list(CHOICES)), st.sets(st.sampled_from(CONSTRAINTS), max_size=3).map(sorted))
@settings(max_examples=1500, deadline=None)
def test_equals_trying_every_cut(draw, choice, subject_to):
    scores, target, weight = binary(draw)
    metric, options = CHOICES[choice]
    decisions = scores[:, None] >= every_cut(scores)
    held = [holds(constraint, decisions, target, weight) for constraint in subject_to]
    feasible = np.all([np.ones(decisions.shape[1], bool), *(ok for ok, _ in held)], axis=0)

    if not feasible.any():
        with pytest.raises(ValueError, match="no threshold meets") as error:
            sl.tune_threshold(scores, target, metric, subject_to, weight, **options)
        assert_says_what_can_be_had(str(error.value), subject_to, held, decisions, target, weight)
        return

    tuned = sl.tune_threshold(scores, target, metric, subject_to, weight, **options)
    values = score_each(decisions, target, metric, weight, **options)
    sign = sign_of(metric, **options)
    assert sign * tuned.score == equal((sign * values[feasible]).max())
    assert_decides_as_it_says(tuned, scores, target, weight, metric, options)
    yes = (scores >= tuned.threshold)[:, None]
    assert all(holds(constraint, yes, target, weight)[0].all() for constraint in subject_to)


def test_an_undefined_score_is_the_worst():
    """With zero_division=nan, "no to every row" has no precision, so any cut that has one is better."""
    tuned = sl.tune_threshold([0.9, 0.5, 0.1], [0, 1, 0], "precision", zero_division=math.nan)
    assert tuned.score == 0.5
    assert tuned.threshold == equal(0.3)


def test_a_constraint_goes_before_a_score_that_is_defined():
    """Only "no to every row" has no false alarm. Its precision is undefined, but no other cut is allowed."""
    scores, target = np.array([0.9, 0.8, 0.7, 0.2]), [0, 1, 0, 1]
    tuned = sl.tune_threshold(scores, target, "precision", "fpr <= 0", zero_division=math.nan)
    assert holds("fpr <= 0", (scores >= tuned.threshold)[:, None], target)[0].all()


@given(draws)
@settings(max_examples=200, deadline=None)
def test_the_sweep_equals_scikit_learn(draw):
    scores, target, weight = binary(draw)
    target = (target > 0.5).astype(int)
    weight = None if weight is None else weight + 0.25  # scikit-learn leaves out rows without weight
    swept = sweep(scores, target.astype(bool), weight)
    tn, fp, fn, tp, cuts = confusion_matrix_at_thresholds(target, scores, sample_weight=weight)
    np.testing.assert_array_equal(swept.scores, cuts)
    for ours, theirs in zip(swept.counts, (tp, fp, fn, tn), strict=True):
        np.testing.assert_array_equal(ours[1:], theirs)
    assert [c[0] for c in swept.counts] == [0, 0, tp[-1], fp[-1]]  # nobody, which scikit-learn leaves out


@pytest.mark.parametrize("metric", sl.METRICS)
@pytest.mark.parametrize("subject_to", [None, "recall >= 0.3"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_are_scored_in_parts(monkeypatch, metric, subject_to, weighted):
    """Many scores are scored part by part; where the parts end makes no difference."""
    rng = np.random.default_rng(0)
    target = rng.random(200) < 0.3
    scores, weight = np.round(rng.normal(target, 1.0), 1), rng.integers(1, 4, 200) if weighted else None
    whole = sl.tune_threshold(scores, target, metric, subject_to, weight)
    monkeypatch.setattr("stepless.cuts.sweep._PART", 7)
    assert sl.tune_threshold(scores, target, metric, subject_to, weight) == whole


def test_the_threshold_is_midway_to_the_next_lower_score():
    assert sl.tune_threshold([1.0, 2.0, 4.0, 9.0], [0, 0, 1, 1], "f1").threshold == 3.0


@pytest.mark.parametrize(("metric", "threshold"), [("recall", -INF), ("fpr", INF)])
def test_yes_or_no_to_all_is_an_infinite_threshold(metric, threshold):
    """The lowest score is a positive and the highest a negative: no cut between scores finds all, or spares all."""
    tuned = sl.tune_threshold([3.0, 2.0, 1.0], [0, 0, 1], metric)
    assert (tuned.threshold, tuned.score) == (threshold, sl.METRICS[metric].best)


def test_of_equals_the_widest_gap_is_cut():
    """Three cuts make two errors each; around the one at 0.5 is the most room for new scores."""
    scores = [0.1, 0.2, 0.25, 0.75, 0.8, 0.9]
    tuned = sl.tune_threshold(scores, [0, 1, 0, 1, 0, 1], "accuracy")
    assert tuned.threshold == 0.5


@pytest.mark.parametrize(("metric", "threshold", "score"), [("f1", -INF, 0.4), ("accuracy", INF, 0.75)])
def test_constant_scores_leave_yes_or_no_to_all(metric, threshold, score):
    tuned = sl.tune_threshold(np.full(4, 0.3), [1, 0, 0, 0], metric)
    assert (tuned.threshold, tuned.score) == (threshold, equal(score))


def test_constant_scores_of_labels_and_classes():
    """Labels: yes or no to all of each. Classes: all rows go to one, and the best of them is found."""
    tuned = sl.tune_threshold(np.full((4, 2), 0.3), [[1, 0], [1, 0], [1, 0], [0, 1]], "accuracy", task="multilabel")
    assert (tuned.threshold, tuned.score) == ((-INF, INF), equal(0.75))
    tuned = sl.tune_threshold(np.full((4, 3), 1 / 3), [0, 2, 2, 1], "accuracy", task="multiclass", inputs="logits")
    assert (tuned.score, list(tuned.counts.tp)) == (equal(0.5), [0, 0, 2])


@pytest.mark.parametrize("metric", ["f1", "recall", "accuracy"])
def test_labels_of_one_class_are_tuned(metric):
    """A label without positives is answered no, and one without negatives by whatever scores best: yes to all."""
    scores = np.c_[[0.1, 0.4, 0.35, 0.8], [0.5, 0.2, 0.9, 0.3]]
    tuned = sl.tune_threshold(scores, np.c_[np.zeros(4), np.ones(4)], metric, task="multilabel")
    assert tuned.threshold == (INF, -INF)


def test_every_form_of_the_same_data_gives_the_same():
    scores, target, weight = binary(Draw(3, rows=12, levels=6, weighted=True))
    expected = sl.tune_threshold(scores, target, "mcc", None, weight)
    for make in (torch.tensor, np.ndarray.tolist, lambda values: values[:, None] if values is not weight else values):
        assert sl.tune_threshold(make(scores), make(target), "mcc", None, make(weight)) == expected
    assert sl.tune_threshold(torch.tensor(scores, requires_grad=True), target == 1, "mcc", None, weight) == expected
    assert sl.tune_threshold(scores[::-1], target[::-1], "mcc", None, weight[::-1]) == expected
    assert float(expected) == expected.threshold


# ---------------------------------------------------------------------------------------------------------------------
# Precision
# ---------------------------------------------------------------------------------------------------------------------


def assert_separates(scores, target):
    """A perfect cut stays perfect whether it is compared as a Python number or in the scores' own precision."""
    tuned = sl.tune_threshold(scores, target, "accuracy")
    assert tuned.score == 1
    for threshold in (tuned.threshold, scores.dtype.type(tuned.threshold)):
        np.testing.assert_array_equal(scores >= threshold, target.astype(bool))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_neighbouring_numbers_are_told_apart(width):
    dtype = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    top = float(np.finfo(dtype).max)

    @given(st.floats(-top, top, width=width, exclude_max=True))
    @settings(max_examples=200, deadline=None)
    def holds_at(value):
        low = dtype(value)
        high = np.nextafter(low, dtype(INF))
        assert_separates(np.array([low, high, low, high]), np.array([0, 1, 0, 1]))

    holds_at()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_farthest_numbers_are_told_apart(dtype):
    top = np.finfo(dtype).max
    assert_separates(np.array([-top, top]), np.array([0, 1]))


@given(draws, st.sampled_from(["f1", "mcc", "accuracy", "fpr", "precision"]))
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_infinite_scores_are_scores(draw, metric):
    scores, target, weight = binary(draw)
    rng = np.random.default_rng(draw.seed)
    scores = np.where(rng.random(draw.rows) < 0.3, rng.choice([-INF, INF], draw.rows), scores)
    values = score_each(scores[:, None] >= every_cut(scores), target, metric, weight)
    tuned = sl.tune_threshold(scores, target, metric, None, weight)
    assert tuned.score == equal(values.min() if metric == "fpr" else values.max())
    assert_decides_as_it_says(tuned, scores, target, weight, metric, {})


def test_no_threshold_says_no_to_a_score_of_infinity():
    with pytest.raises(ValueError, match=r"no threshold meets fpr <= 0.1: the best attainable fpr is 0.5"):
        sl.tune_threshold([INF, 1.0, 0.0], [0, 1, 0], "recall", subject_to="fpr <= 0.1")
    scores, target = np.array([[INF, INF], [1.0, INF], [0.0, 3.0]]), np.array([[0, 0], [0, 0], [0, 1]])
    for average in ("macro", "micro", "samples"):
        tuned = sl.tune_threshold(scores, target, "accuracy", task="multilabel", average=average)
        assert tuned.score == 0.5
        yes = scores >= np.array(tuned.threshold)
        np.testing.assert_array_equal(tuned.counts.fp, (yes & (target == 0)).sum(0))


# ---------------------------------------------------------------------------------------------------------------------
# The result goes back into score and MetricLoss
# ---------------------------------------------------------------------------------------------------------------------


def task_of(task, inputs, dtype, seed=0):
    """Arguments of a tuning: scores as `inputs`, targets, and the task."""
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.integers(-24, 25, (30, 3)) / 8, dtype=dtype)
    if task == "multiclass":
        # off the lattice: a tie after offsets is decided by the last bit, and log p has other last bits than the logit
        logits = logits + torch.tensor(rng.uniform(0, 0.1, (30, 3)), dtype=dtype)
        return logits if inputs == "logits" else logits.softmax(1), rng.integers(0, 3, 30)
    if task == "binary":
        logits = logits[:, 0]
    target = (rng.random(logits.shape) < logits.sigmoid().numpy()).astype(int)
    return logits if inputs == "logits" else logits.sigmoid(), target


AVERAGES = [
    ("binary", None),
    ("multiclass", "macro"),
    ("multiclass", "micro"),
    ("multiclass", "weighted"),
    *(("multilabel", average) for average in ("macro", "micro", "weighted", "samples")),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("inputs", ["logits", "probabilities"])
@pytest.mark.parametrize(("task", "average"), AVERAGES)
def test_the_result_scores_what_it_says(task, average, inputs, dtype):
    scores, target = task_of(task, inputs, dtype)
    weight = np.arange(30) % 5 / 4
    settings = {"task": task, "average": average, "inputs": inputs, "sample_weight": weight}
    tuned = sl.tune_threshold(scores, target, "f1", **settings)
    assert sl.score(scores, target, "f1", threshold=tuned, **settings).item() == equal(tuned.score)
    assert tuned.score >= sl.score(scores, target, "f1", **settings).item() - 1e-12


@pytest.mark.parametrize("inputs", ["logits", "probabilities"])
@pytest.mark.parametrize(("task", "average"), AVERAGES)
def test_the_result_trains(task, average, inputs):
    scores, target = task_of(task, inputs, torch.float64)
    tuned = sl.tune_threshold(scores, target, "f1", task=task, average=average, inputs=inputs)
    loss_fn = sl.MetricLoss("f1", task=task, average=average, inputs=inputs, threshold=tuned)
    scores.requires_grad_()
    loss_fn(scores, torch.tensor(target)).backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.any()
    assert loss_fn.score(scores, target).item() == equal(tuned.score)
    plain = sl.MetricLoss("f1", task=task, average=average, inputs=inputs)
    assert loss_fn(scores, torch.tensor(target)) != plain(scores, torch.tensor(target))


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_a_rule_found_on_logits_serves_their_probabilities(task):
    scores, target = task_of(task, "logits", torch.float64)
    tuned = sl.tune_threshold(scores, target, "f1", task=task, inputs="logits")
    again = sl.score(scores.sigmoid(), target, "f1", task=task, inputs="probabilities", threshold=tuned)
    assert again.item() == equal(tuned.score)


SATURATED = {
    "apart where float32's sigmoid is 1": [20.0, 30.0, -1.0, 25.0],
    "apart where any sigmoid is 1": [40.0, 60.0, -1.0, 50.0],
    "apart where any sigmoid is 0": [-900.0, -800.0, -1000.0, -850.0],
    "neighbours whose sigmoids are one number": [5.0, float(np.nextafter(np.float32(5), np.float32(6))), -1.0, 9.0],
}


@pytest.mark.parametrize("case", SATURATED)
def test_logits_that_saturate_are_still_told_apart(case):
    """A rule found on logits is a rule on logits: it must not go through a sigmoid that rounds."""
    scores, target = torch.tensor(SATURATED[case]), [0, 1, 0, 1]
    tuned = sl.tune_threshold(scores, target, "f1", inputs="logits")
    assert tuned.score == 1
    assert sl.score(scores, target, "f1", threshold=tuned) == 1


def test_a_probability_of_one_is_told_from_the_next():
    """The midpoint of 1 and its neighbour rounds to 1: a threshold that only certainty reaches."""
    scores, target = torch.tensor([1.0, 1 - 2**-24, 0.3]), [1, 0, 0]
    tuned = sl.tune_threshold(scores, target, "f1", inputs="probabilities")
    assert tuned.score == 1
    assert sl.score(scores, target, "f1", inputs="probabilities", threshold=tuned) == 1


def test_yes_to_all_can_be_scored_but_not_trained_at():
    scores, target = [0.9, 0.5, 0.2], [0, 0, 1]
    for task, x, y in (("binary", scores, target), ("multilabel", np.c_[scores, scores], np.c_[target, [1, 0, 0]])):
        tuned = sl.tune_threshold(x, y, "recall", task=task, inputs="probabilities")
        assert sl.score(np.array(x), y, "recall", task=task, inputs="probabilities", threshold=tuned) == 1
        with pytest.raises(ValueError, match=r"can be scored but not trained at"):
            sl.MetricLoss("recall", task=task, inputs="probabilities", threshold=tuned)


def test_a_result_for_another_task_is_refused():
    tuned = sl.tune_threshold([0.1, 0.9], [0, 1], "f1", inputs="probabilities")
    with pytest.raises(ValueError, match="tuned for task='binary'; this is task='multilabel'"):
        sl.score([[0.1, 0.9]], [[0, 1]], "f1", task="multilabel", inputs="probabilities", threshold=tuned)


# ---------------------------------------------------------------------------------------------------------------------
# Invariances
# ---------------------------------------------------------------------------------------------------------------------

TASKS = ("binary", "multilabel", "multiclass")


def example(task, seed):
    """Scores as probabilities, targets and weights of 20 rows."""
    if task == "multiclass":
        p, target, _ = classes(seed, rows=20)
    else:
        p, target, _ = (binary if task == "binary" else labels)(Draw(seed, rows=20, levels=9))
        p = 1 / (1 + np.exp(-p))
    return p, target, np.random.default_rng(seed).integers(1, 4, 20).astype(float)


def tune(task, p, target, weight=None, metric="f1"):
    return sl.tune_threshold(p, target, metric, None, weight, task=task, inputs="probabilities")


def assert_same(one, other):
    assert one.score == equal(other.score)
    np.testing.assert_allclose(one.threshold, other.threshold, atol=1e-12)
    np.testing.assert_array_equal(one.counts, other.counts)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", TASKS)
def test_the_order_of_the_rows_does_not_matter(task, seed):
    p, target, weight = example(task, seed)
    order = np.random.default_rng(seed).permutation(20)
    assert_same(tune(task, p[order], target[order], weight[order]), tune(task, p, target, weight))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", TASKS)
def test_a_weight_of_two_is_a_row_twice(task, seed):
    p, target, weight = example(task, seed)
    times = weight.astype(int)
    assert_same(tune(task, p, target, weight), tune(task, p.repeat(times, 0), target.repeat(times, 0)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", TASKS)
def test_a_row_without_weight_does_not_count(task, seed):
    p, target, weight = example(task, seed)
    weight[5:9] = 0
    kept = weight > 0
    # the rows may still be where a cut falls: scores and counts are the same, not the threshold
    assert tune(task, p, target, weight).score == equal(tune(task, p[kept], target[kept], weight[kept]).score)


@given(draws, st.sampled_from(list(CHOICES)))
@settings(max_examples=100, deadline=None)
def test_an_increasing_transform_changes_the_threshold_alone(draw, choice):
    scores, target, weight = binary(draw)
    metric, options = CHOICES[choice]
    plain = sl.tune_threshold(scores, target, metric, None, weight, **options)
    scaled = sl.tune_threshold(4 * scores, target, metric, None, weight, **options)  # exact in binary
    assert (scaled.score, scaled.counts, scaled.threshold) == (plain.score, plain.counts, 4 * plain.threshold)
    for bend in (np.exp, np.cbrt, np.arctan):
        bent = sl.tune_threshold(bend(scores), target, metric, None, weight, **options)
        assert bent.score == plain.score
        _, values = plain.curve()
        if (values == plain.score).sum() == 1:  # of equals the widest gap is taken, and gaps bend
            assert bent.counts == plain.counts


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------

X, Y = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
P, CLASSES = np.full((4, 3), 1 / 3), [0, 1, 2, 0]
XS, YS = np.c_[X, X], np.c_[Y, Y]
multiclass, multilabel = {"task": "multiclass", "inputs": "probabilities"}, {"task": "multilabel"}
DEFINED_RECALL = sl.METRICS["recall"].bind(zero_division=math.nan)


def tuning(scores, target, metric="f1", **settings):
    return lambda: sl.tune_threshold(scores, target, metric, **settings)


REFUSED = {
    # targets
    "one class": (tuning(X, [1, 1, 1, 1]), ValueError, r"one class only \(1\)"),
    "one class that weighs": (tuning(X, Y, sample_weight=[1, 1, 0, 0]), ValueError, r"one class only \(0\)"),
    "one class of three": (tuning(P, [2] * 4, **multiclass), ValueError, r"one class only \(2\)"),
    "labels -1 and 1": (tuning(X, [-1, 1, -1, 1]), ValueError, r"0 or 1.*labels -1 and 1 pass \(target > 0\)"),
    "class indices": (tuning(X, [0, 1, 2, 1]), ValueError, "0 or 1.*class indices pass task='multiclass'"),
    "target NaN": (tuning(X, [0, 1, math.nan, 1]), ValueError, "targets must be 0 or 1"),
    "class out of range": (tuning(P, [0, 1, 3, 0], **multiclass), ValueError, r"class indices in \[0, 3\)"),
    "class negative": (tuning(P, [0, 1, -1, 0], **multiclass), ValueError, r"class indices in \[0, 3\)"),
    "class a fraction": (tuning(P, [0.5, 1, 2, 0], **multiclass), ValueError, "integer class indices"),
    "target text": (tuning(X, ["a", "b", "a", "b"]), TypeError, r"target must hold numbers.*\(target == \"yes\"\)"),
    "class text": (tuning(P, ["a", "b", "a", "b"], **multiclass), TypeError, "Multiclass: pass the labels' indices"),
    # scores
    "score NaN": (tuning([0.1, math.nan, 0.3, 0.4], Y), ValueError, "scores must not be NaN; 1 of 4 are"),
    "score text": (tuning(["a", "b", "c", "d"], Y), TypeError, "scores must hold numbers"),
    "empty": (tuning([], []), ValueError, "nothing to tune on: scores are empty"),
    "no rows of labels": (tuning(np.zeros((0, 2)), np.zeros((0, 2)), **multilabel), ValueError, "scores are empty"),
    "no rows of classes": (tuning(np.zeros((0, 3)), np.zeros(0, int), **multiclass), ValueError, "scores are empty"),
    "probability 1.2": (tuning([0.1, 1.2, 0, 0], Y, inputs="probabilities"), ValueError, r"in \[0, 1\]; for other"),
    "probability -0.1": (tuning([0.1, -0.1, 0, 0], Y, inputs="probabilities"), ValueError, r"in \[0, 1\]; for other"),
    "probabilities off 1": (tuning(P * 2, CLASSES, **multiclass), ValueError, "sum to 1.*inputs='logits'"),
    "logits +inf": (
        tuning([[INF, 0, 1], [0, 1, 2], [1, 0, 2]], [0, 1, 2], task="multiclass", inputs="logits"), ValueError,
        r"-inf.*but not \+inf",
    ),
    "logits -inf throughout": (
        tuning([[-INF] * 3, [0, 1, 2], [1, 0, 2]], [0, 1, 2], task="multiclass", inputs="logits"), ValueError, "-inf",
    ),
    # shapes
    "lengths": (tuning(X, [0, 1, 1]), ValueError, r"as many rows; got \(4,\) and \(3,\)"),
    "two columns": (tuning(XS, Y), ValueError, r"shape \(N,\); got \(4, 2\). Pass .* scores\[:, 1\]"),
    "one label missing": (tuning(XS, Y, **multilabel), ValueError, r"got \(4, 2\) and \(4,\)"),
    "labels of one column": (tuning(X, Y, **multilabel), ValueError, r"shape \(N, labels\); got \(4,\)"),
    "classes of one column": (tuning(P[:, :1], CLASSES, **multiclass), ValueError, r"shape \(N, K\) with K ≥ 2"),
    "class rows missing": (tuning(P, [0, 1], **multiclass), ValueError, r"got \(4, 3\) and \(2,\)"),
    # weights
    "weight short": (tuning(X, Y, sample_weight=[1, 1]), ValueError, r"one entry per row, shape \(4,\); got \(2,\)"),
    "weight negative": (tuning(X, Y, sample_weight=[1, 1, -1, 1]), ValueError, "finite and not negative"),
    "weight NaN": (tuning(X, Y, sample_weight=[1, 1, math.nan, 1]), ValueError, "finite and not negative"),
    "weight sum": (tuning(X, Y, sample_weight=[1e308] * 4), ValueError, "finite sum; divide it by its largest value"),
    "weight inf": (tuning(X, Y, sample_weight=[1, 1, INF, 1]), ValueError, "finite and not negative"),
    "weight text": (tuning(X, Y, sample_weight=["a"] * 4), TypeError, "sample_weight must hold numbers"),
    "no weight": (tuning(X, Y, sample_weight=[0] * 4), ValueError, "weight"),
    "no weight of labels": (tuning(XS, YS, **multilabel, sample_weight=[0] * 4), ValueError, "weight"),
    "no weight of classes": (tuning(P, CLASSES, **multiclass, sample_weight=[0] * 4), ValueError, "weight"),
    # settings
    "inputs": (tuning(X, Y, inputs="probs"), ValueError, '"scores", "probabilities" or "logits"; got \'probs\''),
    "classes as scores": (tuning(P, CLASSES, task="multiclass"), ValueError, "pass inputs='probabilities' or"),
    "task": (tuning(X, Y, task="multi"), ValueError, "task must be one of 'binary'"),
    "metric": (tuning(X, Y, "f2"), ValueError, "unknown metric 'f2'; did you mean"),
    "metric of the ranking": (tuning(X, Y, "auroc"), ValueError, "'auroc' reads the order .* no threshold changes"),
    "option": (tuning(X, Y, "f1", beta=2), TypeError, "'f1' has no option 'beta'"),
    "average of one class": (tuning(X, Y, average="micro"), ValueError, "no effect on a binary task"),
    "average of a joint metric": (tuning(P, CLASSES, "mcc", **multiclass, average="micro"), ValueError, "at once"),
    "no average of labels": (tuning(XS, YS, **multilabel, average="none"), ValueError, "average"),
    "no average of classes": (tuning(P, CLASSES, **multiclass, average="none"), ValueError, "average"),
    "direction": (tuning(X, Y, "f1", maximize=False), ValueError, "'f1' is always maximised"),
    "constraint": (tuning(X, Y, subject_to="precision > 0.9"), ValueError, 'a constraint is a metric, ">="'),
    "constraint never": (tuning(X, Y, subject_to="recall >= 1.5"), ValueError, "can never hold"),
    "constraint a number": (tuning(X, Y, subject_to=0.9), TypeError, "subject_to must be text"),
    "constraint out of reach": (
        tuning([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1], subject_to="precision >= 0.9"), ValueError,
        r"^no threshold meets precision >= 0.9: the best attainable precision is 0.5\.$",
    ),
    "one constraint out of reach": (
        tuning([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1], subject_to="precision >= 0.9 and recall >= 0.5"), ValueError,
        r"recall >= 0.5: the best attainable precision is 0.5, which misses precision >= 0.9 even by itself\.$",
    ),
    "constraints out of reach together": (
        tuning([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], subject_to=["precision >= 0.9", "recall >= 0.9"]), ValueError,
        r"each can be met by itself, but not together; where recall >= 0.9 holds, the best attainable precision is 0.5,"
        r" and where precision >= 0.9 holds, the best attainable recall is 0.5\.$",
    ),
    "constraint undefined": (
        tuning(XS, YS * [1, 0], **multilabel, subject_to=Constraint(DEFINED_RECALL, True, 0.5)), ValueError,
        r"^label 1: no threshold meets recall\(zero_division=nan\) >= 0.5: recall is undefined throughout",
    ),
    "constraint of a label out of reach": (
        tuning(np.c_[X, X[::-1]], YS, **multilabel, subject_to="precision >= 0.9"), ValueError,
        "^label 1: no threshold meets precision >= 0.9: the best attainable precision is 0.5",
    ),
    "constraint of labels out of reach": (
        tuning(np.c_[X, X] * 0, YS, **multilabel, average="micro", subject_to="precision >= 0.9"), ValueError,
        "^no threshold was found that meets precision >= 0.9: the best found precision is 0.5",
    ),
    "constraint of samples out of reach": (
        tuning(np.c_[X, X] * 0, YS, **multilabel, average="samples", subject_to="precision >= 0.9"), ValueError,
        "^no threshold was found that meets precision >= 0.9: the best found precision is 0.5",
    ),
    "constraint of classes out of reach": (
        tuning(P, CLASSES, **multiclass, subject_to="recall >= 0.9 and accuracy >= 0.2"), ValueError,
        "^no threshold was found that meets .*: the best found recall is 0.333333, which misses recall >= 0.9 even by",
    ),
    # several classes and labels
    "class score NaN": (tuning(P * math.nan, CLASSES, **multiclass), ValueError, "must not be NaN; 12 of 12 are"),
    "label score NaN": (tuning(XS * math.nan, YS, **multilabel), ValueError, "scores must not be NaN; 8 of 8 are"),
    "label target NaN": (tuning(XS, YS * math.nan, **multilabel), ValueError, "targets must be 0 or 1"),
    "label rows missing": (tuning(XS, YS[:2], **multilabel), ValueError, r"as many rows; got \(4, 2\) and \(2, 2\)"),
    "label weight short": (tuning(XS, YS, **multilabel, sample_weight=[1]), ValueError, "one entry per row"),
    "class weight short": (tuning(P, CLASSES, **multiclass, sample_weight=[1]), ValueError, "one entry per row"),
    "one class of three that weighs": (
        tuning(P, CLASSES, **multiclass, sample_weight=[1, 0, 0, 1]), ValueError, r"one class only \(0\)",
    ),
    # results
    "curve of offsets": (lambda: tune("multiclass", P, CLASSES).curve(), ValueError, "there is no curve"),
    "one number of many labels": (
        lambda: float(tune("multilabel", XS, YS)), TypeError, "a multilabel tuning has one threshold per label",
    ),
    "one resample": (lambda: tune("binary", np.array(X), Y).interval(1), ValueError, "n_boot must be at least 2"),
    "confidence": (lambda: tune("binary", np.array(X), Y).interval(confidence=95), ValueError, r"confidence in \(0, 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case):
    call, error, sentence = REFUSED[case]
    with pytest.raises(error, match=re.compile(sentence, re.DOTALL)):
        call()


@pytest.mark.parametrize("bound", [0.9, 0.51])
def test_the_best_attainable_value_can_be_asked_for(bound):
    """What the error names is attainable: asked for instead, it is had."""
    scores, target = [0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1]
    with pytest.raises(ValueError, match=f"no threshold meets precision >= {bound}: the best attainable .* is 0.5"):
        sl.tune_threshold(scores, target, "recall", subject_to=f"precision >= {bound}")
    tuned = sl.tune_threshold(scores, target, "recall", subject_to="precision >= 0.5")
    assert (tuned.counts.tp, tuned.counts.fp, tuned.score) == (2, 2, 1)


def test_scores_of_no_declared_kind_are_cut_in_their_own_units():
    """Tuned on "scores", which are logits when they are scored: 0.5 is then no probability of ½."""
    scores, target = torch.tensor([0.2, 0.8, -1.0, 3.0]), [0, 1, 0, 1]
    tuned = sl.tune_threshold(scores, target, "f1")
    assert sl.score(scores, target, "f1", threshold=tuned).item() == tuned.score


def test_weights_that_are_all_equal_change_nothing():
    scores, target = np.arange(10.0, 0, -1), [1, 1, 0, 1, 1, 1, 1, 1, 1, 1]
    for subject_to in ("precision >= 0.9", "precision >= 0.9 and recall >= 0.5"):
        found = [sl.tune_threshold(scores, target, "recall", subject_to, w) for w in (None, np.full(10, 1 / 3))]
        assert found[0].threshold == found[1].threshold
        assert found[0].score == pytest.approx(1.0)
    random = np.random.default_rng(0)
    for _ in range(50):
        scores, target = random.normal(size=60), random.integers(0, 2, 60)
        found = [sl.tune_threshold(scores, target, "accuracy", None, w) for w in (None, np.full(60, 1 / 3))]
        assert found[0].threshold == found[1].threshold


def test_rows_of_different_lengths_and_labels_that_are_not_there():
    with pytest.raises(ValueError, match=r"must be one array of numbers; got rows of different lengths"):
        sl.tune_threshold([[1.0], [1.0, 2.0]], [0, 1])
    with pytest.raises(ValueError, match="label must be one of the 1 there are, counted from 0; got 3"):
        sl.tune_threshold([0.1, 0.9], [0, 1]).curve(3)
