"""A fitted model as a value: what it scores, that its three ways to decide agree, and what it refuses."""

import math
import pickle
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, logit, logsumexp

from stepless.tabular.models import model as model_module
from stepless.tabular.models.model import mean_score
from stepless.tabular.tables.frames import read_table
from tests.tabular.fitted import TASKS, frame, make_model, net


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_the_logit_of_the_weighted_mean_probability(task):
    model = make_model(task, weights=(0.3, 0.7))
    table = read_table(frame(50, seed=1))
    matrix = torch.from_numpy(model.features.matrix(table)).double()
    share = 0.0
    for member, weight in zip(model.members, model.weights, strict=True):
        for i in range(member.n):
            x, layers = matrix, len(member.architecture.layers)
            for j in range(layers):
                x = x @ member.tensors[f"weights.{j}"][i].double() + member.tensors[f"biases.{j}"][i].double()
                x = x.relu() if j < layers - 1 else x
            p = torch.softmax(x, 1) if task == "multiclass" else torch.sigmoid(x)
            share = share + weight / member.n * p.numpy()
    expected = np.log(share) if task == "multiclass" else logit(share)
    np.testing.assert_allclose(model.scores(table), expected[:, 0] if task == "binary" else expected, rtol=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_probabilities_have_a_column_for_each_class_or_label(task):
    model, table = make_model(task), read_table(frame(40))
    p = model.probabilities(table)
    assert p.shape == (40, 2 if task == "binary" else 3)
    assert p.dtype == np.float64
    if task != "multilabel":
        np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-12)


def test_the_positive_class_may_be_the_first():
    first, second = make_model(positive=0), make_model(positive=1)
    table = read_table(frame(60))
    np.testing.assert_array_equal(first.probabilities(table), second.probabilities(table)[:, ::-1])
    np.testing.assert_array_equal(first.decision(table), second.decision(table))
    assert (first.labels(table) != second.labels(table)).all()
    assert set(first.labels(table)) <= {"bad", "good"}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_label_probability_and_decision_agree_on_every_row(seed, threshold, on_a_row):
    model, table = make_model(positive=seed % 2), read_table(frame(64, seed))
    place = seed % 2
    if on_a_row:  # the hardest case: the threshold is a row's own probability
        threshold = float(model.probabilities(table)[seed % 64, place])
    model = replace(model, threshold=threshold)
    yes = model.probabilities(table)[:, place] >= threshold
    np.testing.assert_array_equal(model.decision(table) >= 0, yes)
    np.testing.assert_array_equal(model.decide(table), yes)
    np.testing.assert_array_equal(model.labels(table) == model.classes[place], yes)


def test_multilabel_decides_each_label_at_its_own_threshold():
    model, table = make_model("multilabel"), read_table(frame(80))
    p = model.probabilities(table)
    expected = (p >= np.array(model.threshold)).astype(int)
    np.testing.assert_array_equal(model.labels(table), expected)
    np.testing.assert_array_equal(model.decision(table) >= 0, expected)


def test_multiclass_takes_the_largest_log_probability_less_its_offset():
    model, table = make_model("multiclass"), read_table(frame(80))
    decision = model.decision(table)
    np.testing.assert_allclose(decision, np.log(model.probabilities(table)) - np.array(model.threshold))
    np.testing.assert_array_equal(model.labels(table), model.classes[decision.argmax(1)])
    tied = model.decide_of(np.zeros((1, 3)))
    assert tied.tolist() == [0]


@pytest.mark.parametrize(("threshold", "answer"), [(math.inf, "bad"), (-math.inf, "good")])
def test_an_infinite_threshold_gives_one_answer(threshold, answer):
    model, table = make_model(threshold=threshold), read_table(frame(20))
    assert set(model.labels(table)) == {answer}
    decision, p = model.decision(table), model.probabilities(table)[:, model.positive]
    assert np.isfinite(decision).all()
    np.testing.assert_array_equal(np.argsort(decision), np.argsort(p))  # it still ranks the rows


@pytest.mark.parametrize("task", TASKS)
def test_a_rows_score_does_not_depend_on_the_rows_beside_it(task, monkeypatch):
    model, X = make_model(task), frame(100, seed=3)
    whole = model.scores(read_table(X))
    alone = np.concatenate([model.scores(read_table(X[i : i + 1])) for i in range(len(X))])
    np.testing.assert_allclose(alone, whole, rtol=1e-12, atol=1e-13)
    monkeypatch.setattr(model_module, "_CHUNK_ROWS", (7, 7))
    np.testing.assert_allclose(model.scores(read_table(X)), whole, rtol=1e-12, atol=1e-13)


@given(st.lists(st.floats(-800, 800), min_size=2, max_size=6), st.integers(0, 10**6))
def test_mean_score_against_scipy(logits, seed):
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(logits)))
    x = np.array(logits)[:, None, None]
    yes, no = (
        logsumexp(-np.logaddexp(0, -x), b=weights[:, None, None], axis=0),
        logsumexp(-np.logaddexp(0, x), b=weights[:, None, None], axis=0),
    )
    np.testing.assert_allclose(mean_score(x, weights, "binary"), yes - no, rtol=1e-9, atol=1e-9)
    three = np.concatenate([x, -x, x / 2], 2)
    expected = logsumexp(log_softmax(three, 2), b=weights[:, None, None], axis=0)
    np.testing.assert_allclose(mean_score(three, weights, "multiclass"), expected, rtol=1e-9, atol=1e-9)


def test_mean_score_keeps_what_probabilities_would_round_away():
    sure = mean_score(np.array([[[900.0]], [[700.0]]]), np.array([0.5, 0.5]), "binary")
    np.testing.assert_allclose(sure, 700 + math.log(2))
    assert expit(700.0) == 1.0


def test_a_member_of_weight_0_has_no_say():
    table = read_table(frame(30))
    model = make_model()
    alone = replace(model, members=model.members[:1], weights=(1.0,))
    np.testing.assert_array_equal(replace(model, weights=(1.0, 0.0)).scores(table), alone.scores(table))


def test_a_model_can_be_pickled_and_takes_no_more_after_it_was_used():
    model, table = make_model(), read_table(frame(30))
    before = len(pickle.dumps(model))
    scores = model.scores(table)
    kept = pickle.dumps(model)
    assert len(kept) == before
    np.testing.assert_array_equal(pickle.loads(kept).scores(table), scores)


def test_scores_that_overflow_are_an_error():
    model = make_model()
    tensors = {name: torch.full_like(tensor, math.nan) for name, tensor in model.members[0].tensors.items()}
    bad = replace(model, members=(replace(model.members[0], tensors=tensors), model.members[1]))
    with pytest.raises(ValueError, match=r"scores must be finite; member 0 gave some that are not"):
        bad.scores(read_table(frame(5)))


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("binary", {"task": "ranking"}, "task must be one of 'binary', 'multiclass', 'multilabel'; got 'ranking'."),
        ("binary", {"classes": ["a", "b"]}, "classes must be a one-dimensional array of labels; got list."),
        ("binary", {"classes": np.array(["a"])}, "a binary model needs two classes; got 1."),
        ("binary", {"classes": np.array(list("abc"))}, "a binary model needs two classes; got 3."),
        ("multiclass", {"classes": np.array([1, 2, 2])}, "classes must be distinct; got [1, 2, 2]."),
        ("binary", {"positive": None}, "got None for a binary model."),
        ("multiclass", {"positive": 1}, "got 1 for a multiclass model."),
        ("binary", {"members": ()}, "a model needs members and a weight for each; got 0 members and 2 weights."),
        ("binary", {"weights": (0.5, 0.6)}, "the members' weights must be at least 0 and sum to 1; got (0.5, 0.6)."),
        ("binary", {"weights": (1.5, -0.5)}, "must be at least 0"),
        ("binary", {"weights": (math.nan, 1.0)}, "must be at least 0"),
        ("binary", {"threshold": (0.5,)}, "the threshold of a binary model must be one number; got (0.5,)."),
        ("multilabel", {"threshold": 0.5}, "must be one for each label; got 0.5."),
        ("multiclass", {"threshold": (0.0, 1.0)}, "must be an offset for each class; got (0.0, 1.0)."),
        ("multiclass", {"threshold": (0.0, 1.0, math.inf)}, "class offsets must be finite"),
        ("binary", {"threshold": math.nan}, "a threshold must be a number; got nan."),
    ],
)
def test_parts_that_do_not_go_together_are_refused(task, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(make_model(task), **changes)


def test_a_member_must_fit_the_features():
    with pytest.raises(
        ValueError, match=r"members must take 7 features and give 1 scores; member 0 takes 2 and gives 1"
    ):
        make_model(members=(net(2, 1),), weights=(1.0,))


def test_wrong_columns_are_refused_in_scikit_learns_words():
    model = make_model()
    with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
        model.labels(read_table(frame(5).rename(columns={"age": "years"})))
    with pytest.raises(ValueError, match="X has 2 features"):
        model.labels(read_table(np.zeros((5, 2))))


PEAK = """
    import resource, sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    from fitted import make_model
    from stepless.tabular.tables.frames import read_table

    model = make_model({task!r}, np.random.default_rng(0).normal(size=(200, 30)), sizes=(5,), classes={classes!r})
    model.labels(read_table(np.zeros((20_000, 30))))  # what torch and numpy keep for themselves
    X = np.random.default_rng(0).normal(size=({rows}, 30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    labels = model.labels(read_table(X))
    assert len(labels) == {rows}
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def peak(rows, task="binary", classes=(0, 1)):
    """Bytes that predicting takes at most, besides the rows themselves, in a process of its own."""
    code = textwrap.dedent(PEAK).format(
        tests=str(Path(__file__).parents[1]), rows=rows, task=task, classes=list(classes)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_predicting_many_rows_needs_little_memory():
    assert peak(200_000) < 200_000 * 60 + 2**24  # a few numbers per row for the result, and one chunk


@pytest.mark.full
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_predicting_a_million_rows_needs_little_memory(task):
    classes = (0, 1) if task == "binary" else (0, 1, 2)
    assert peak(1_000_000, task, classes) < 2**26  # the rows themselves take 240 MB
