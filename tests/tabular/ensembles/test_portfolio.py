"""Ensembles trained together: their folds, their losses, and what they say of rows they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from torch import nn

from stepless.formula import resolve
from stepless.tabular.ensembles.portfolio import CANDIDATES, Goal, automatic_plan, fit_ensembles, make_folds, merge_rows
from stepless.tabular.networks.nets import Architecture

PLAN = automatic_plan(100, epochs=3, batch_size=32, learning_rate=0.01, weight_decay=0.01)


@pytest.fixture(scope="module")
def binary():
    x, y = make_classification(150, 5, random_state=0)
    return x.astype(np.float32), y.astype(np.int64)


def fitted(x, y, names=("cross_entropy", "mixture"), task="binary", outputs=1, net=None, folds=3, **rest):
    goal = Goal(resolve("f1"), task, outputs, rest.pop("average", None), rest.pop("subject_to", None))
    net = Architecture("mlp", x.shape[1], outputs, (8,)) if net is None else net
    return fit_ensembles(x, y, None, goal, names, net, PLAN, make_folds(y, task, folds, 0), 0, **rest)


# ---------------------------------------------------------------------------------------------------------------------
# Folds and rows
# ---------------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=6, max_size=60), st.integers(2, 6), st.integers(0, 9))
def test_folds_share_out_the_rows_and_the_classes(classes, n, seed):
    target = np.array(classes)
    folds = make_folds(target, "multiclass", n, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(len(target)))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    for k in np.unique(target):
        counts = [(target[fold] == k).sum() for fold in folds]
        assert max(counts) - min(counts) <= 1
    again = make_folds(target, "multiclass", n, seed)
    assert all(np.array_equal(a, b) for a, b in zip(folds, again, strict=True))


def test_one_fold_holds_a_share():
    y = np.tile([0, 1], 50)
    (fold,) = make_folds(y, "binary", 1, 0)
    assert len(fold) == 20
    assert y[fold].mean() == 0.5
    assert len(make_folds(y, "binary", 1, 0, share=0.1)[0]) == 10
    assert len(make_folds(y[:3], "binary", 1, 0)[0]) == 1
    with pytest.raises(ValueError, match="3 rows cannot be held out in 4 folds; give more rows, or lower n_members"):
        make_folds(y[:3], "binary", 4, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=30))
def test_merged_rows_are_repeated_rows(rows):
    x, y, times = (np.array(part) for part in zip(*rows, strict=True))
    matrix = x[:, None].astype(np.float32)
    weighed = merge_rows(matrix, y, times.astype(float))
    repeated = merge_rows(np.repeat(matrix, times, 0), np.repeat(y, times), None)
    for a, b in zip(weighed, repeated, strict=True):
        np.testing.assert_array_equal(a, b)
    merged, target, weight = weighed
    assert len({(float(a[0]), int(b)) for a, b in zip(merged, target, strict=True)}) == len(merged)
    assert (len(merged) if weight is None else weight.sum()) == times.sum()


def test_merged_rows_of_labels():
    x = np.zeros((4, 2), np.float32)
    merged, target, weight = merge_rows(x, np.array([[0, 1], [0, 1], [1, 1], [1, 0]]), None)
    assert merged.shape == (3, 2)
    assert target.shape == (3, 2)
    assert sorted(weight) == [1, 1, 2]


# ---------------------------------------------------------------------------------------------------------------------
# Ensembles
# ---------------------------------------------------------------------------------------------------------------------


def test_held_out_scores_come_from_the_network_that_has_not_seen_the_row(binary):
    x, y = binary
    found = fitted(x, y)
    folds = make_folds(y, "binary", 3, 0)
    for ensemble in found.ensembles:
        logits = ensemble.member.scores(x)[..., 0]
        expected = np.concatenate([logits[m, fold] for m, fold in enumerate(folds)])
        np.testing.assert_allclose(ensemble.held, expected, rtol=1e-9)
    assert [e.name for e in found.ensembles] == ["cross_entropy", "mixture"]
    assert found.history.train.shape == (3, 6)


def test_a_held_out_row_has_no_part_in_its_score(binary):
    """Another label for a row changes the networks that see it, and not the one that scores it."""
    x, y = binary
    row = make_folds(y, "binary", 3, 0)[1][4]
    first = fitted(x, y).ensembles[0]
    other = y.copy()
    other[row] = 1 - y[row]
    goal = Goal(resolve("f1"), "binary")
    net = Architecture("mlp", x.shape[1], 1, (8,))
    folds = make_folds(y, "binary", 3, 0)
    names = ("cross_entropy", "mixture")
    second = fit_ensembles(x, other, None, goal, names, net, PLAN, folds, 0).ensembles[0]
    fold = slice(len(folds[0]), len(folds[0]) + len(folds[1]))
    np.testing.assert_array_equal(first.held[fold], second.held[fold])
    assert not np.array_equal(first.held, second.held)


def test_losses_do_not_meet(binary):
    x, y = binary
    together = fitted(x, y, ("cross_entropy", "blend", "cost_weighted"))
    for place, name in enumerate(("cross_entropy", "blend", "cost_weighted")):
        alone = fitted(x, y, (name,)).ensembles[0]
        np.testing.assert_allclose(alone.held, together.ensembles[place].held, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", list(CANDIDATES))
@pytest.mark.parametrize("subject_to", [None, "precision >= 0.5"])
def test_every_loss_trains_every_task(binary, name, subject_to):
    x, y = binary
    three = (y + (x[:, 0] > 0)).astype(np.int64)
    for target, task, outputs in (
        (y, "binary", 1),
        (three, "multiclass", 3),
        (np.eye(3, dtype=int)[three], "multilabel", 3),
    ):
        found = fitted(x, target, (name,), task, outputs, subject_to=subject_to)
        assert found.ensembles[0].held.shape == ((150,) if task == "binary" else (150, 3))
        assert np.isfinite(found.ensembles[0].held).all()


def test_a_loss_that_does_not_go_with_the_goal_is_left_out(binary):
    x, y = binary
    labels = np.stack([y, 1 - y], 1)
    found = fitted(x, labels, ("cost_weighted", "metric"), "multilabel", 2, average="samples")
    assert [e.name for e in found.ensembles] == ["metric"]
    with pytest.raises(ValueError, match="cost_weighted cannot be trained for f1 in this average; add a loss"):
        fitted(x, labels, ("cost_weighted",), "multilabel", 2, average="samples")


def test_early_stopping_leaves_the_fold_alone(binary):
    x, y = binary
    found = fitted(x, y, stop_share=0.2)
    assert np.isfinite(found.history.held).all()
    assert found.ensembles[0].held.shape == (150,)


def test_networks_go_on_from_weights(binary):
    x, y = binary
    first = fitted(x, y)
    second = fitted(x, y, start=first.tensors)
    assert second.history.train[0].mean() < first.history.train[0].mean()

    def build(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))

    first = fitted(x, y, net=build)
    second = fitted(x, y, net=build, start=first.tensors)
    assert not torch.equal(first.tensors["0.weight"], second.tensors["0.weight"])
    assert second.history.train[0].mean() < first.history.train[0].mean()


def test_plans_scale_with_the_rows():
    rows = [20, 200, 2_000, 20_000, 200_000, 2_000_000]
    plans = [automatic_plan(n, epochs=None, batch_size=None, learning_rate=1e-3, weight_decay=0.0) for n in rows]
    assert [p.batch_size for p in plans] == [128, 128, 128, 1024, 1024, 1024]
    assert [p.epochs for p in plans] == [200, 200, 75, 60, 20, 20]
    given = automatic_plan(20, epochs=3, batch_size=7, learning_rate=1e-3, weight_decay=0.0, patience=2)
    assert (given.epochs, given.batch_size, given.patience) == (3, 7, 2)
