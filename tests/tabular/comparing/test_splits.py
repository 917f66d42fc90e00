"""Folds: every row once a repeat, classes and labels spread, groups together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepless.tabular.comparing.splits import count_folds, fewest_rows, split_rows


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 1000), st.sampled_from(["binary", "multiclass"]))
def test_every_fold_has_its_share_of_every_class(folds, seed, task):
    rng = np.random.default_rng(seed)
    target = rng.choice(2 if task == "binary" else 4, rng.integers(20, 200))
    parts = split_rows(target, task, folds, 2, seed)
    for fold in parts:
        sizes = np.bincount(fold, minlength=folds)
        assert sizes.max() - sizes.min() <= 1
        for k in np.unique(target):
            counts = np.bincount(fold[target == k], minlength=folds)
            assert counts.max() - counts.min() <= 1


def test_repeats_and_seeds_differ_and_the_same_seed_does_not():
    target = np.arange(60) % 3
    parts = split_rows(target, "multiclass", 3, 2, seed=0)
    assert (parts[0] != parts[1]).any()
    assert (parts == split_rows(target, "multiclass", 3, 2, seed=0)).all()
    assert (parts != split_rows(target, "multiclass", 3, 2, seed=1)).any()


def test_of_labels_the_rarest_are_spread_evenly_and_all_fairly():
    rng = np.random.default_rng(0)
    target = (rng.random((500, 4)) < [0.02, 0.1, 0.3, 0.6]).astype(int)
    fold = split_rows(target, "multilabel", 5, 1, seed=0)[0]
    for label, slack in enumerate((1, 2, 6, 12)):
        counts = np.bincount(fold[target[:, label] == 1], minlength=5)
        assert counts.max() - counts.min() <= slack, label


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_a_group_stays_together(task):
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 300)
    target = (rng.random((300, 3) if task == "multilabel" else 300) < 0.3).astype(int)
    for fold in split_rows(target, task, 4, 2, 0, groups):
        assert set(fold) == {0, 1, 2, 3}
        assert all(len(set(fold[groups == g])) == 1 for g in range(40))


def test_too_few_groups_are_a_sentence():
    with pytest.raises(
        ValueError, match=r"2 groups cannot be held out in 3 folds: a group stays together\. Lower folds"
    ):
        split_rows(np.arange(30) % 2, "binary", 3, 1, 0, np.arange(30) % 2)


@pytest.mark.parametrize(
    ("rare", "folds", "expected"), [(3, 5, 3), (2, 5, 2), (5, 5, 5), (50, 5, 5), (1, 5, 5), (3, 2, 2)]
)
def test_there_are_no_more_folds_than_the_rarest_class_has_rows(rare, folds, expected):
    target = np.r_[np.zeros(100, int), np.ones(rare, int)]
    found = count_folds(target, "binary", folds)
    assert found == expected
    fewest = fewest_rows(target, "binary", split_rows(target, "binary", found, 3, 0))
    assert fewest == (0 if rare == 1 else rare // found)


def test_a_rare_label_lowers_nothing_and_of_groups_the_groups_are_counted():
    target = np.zeros((100, 3), int)
    target[:50, 0], target[:4, 1] = 1, 1
    assert count_folds(target, "multilabel", 5) == 5  # one of several labels: a part of the mean
    target, groups = np.arange(100) < 30, np.arange(100) // 10
    assert count_folds(target.astype(int), "binary", 5, groups) == 3
    assert count_folds(target.astype(int), "binary", 5, np.arange(100) // 30) == 5  # four groups: an error says so
    parts = split_rows(target.astype(int), "binary", 3, 2, 0, groups)
    assert fewest_rows(target.astype(int), "binary", parts) == 10
