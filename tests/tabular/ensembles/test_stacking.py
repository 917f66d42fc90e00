"""Weights of ensembles in their mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from stepless.tabular.ensembles.stacking import stack_weights


def test_what_explains_the_rows_counts_more():
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 500)
    good, fair, wrong = (
        3.0 * (2 * y - 1) + random.normal(size=500),
        y - 0.5 + random.normal(size=500),
        -2.0 * (2 * y - 1),
    )
    weights = stack_weights([good, fair, wrong], y, None, "binary")
    assert weights[0] > 0.9 > weights[1] > weights[2] > 0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), task=st.sampled_from(["binary", "multiclass", "multilabel"]))
def test_they_add_up_follow_the_order_and_a_weight_is_rows(seed, task):
    random = np.random.default_rng(seed)
    shape = {"binary": (40,), "multiclass": (40, 3), "multilabel": (40, 2)}[task]
    scores = [random.normal(size=shape) for _ in range(3)]
    if task == "multiclass":
        scores = [log_softmax(s, 1) for s in scores]
    y = random.integers(0, 3 if task == "multiclass" else 2, shape[:1] if task != "multilabel" else shape)
    weights = stack_weights(scores, y, None, task)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) > 0
    np.testing.assert_allclose(stack_weights(scores[::-1], y, None, task), weights[::-1], rtol=1e-9)
    counts = random.integers(1, 4, 40)
    twice = [np.repeat(s, counts, axis=0) for s in scores]
    np.testing.assert_allclose(
        stack_weights(scores, y, counts.astype(float), task),
        stack_weights(twice, np.repeat(y, counts, axis=0), None, task), rtol=1e-6,
    )  # fmt: skip


def test_few_rows_cannot_tell_them_apart():
    y = np.array([1, 0])
    weights = stack_weights([np.array([9.0, -9.0]), np.array([-9.0, 9.0])], y, None, "binary")
    assert weights[1] > 0.3


def test_one_row_that_is_held_impossible_does_not_decide():
    y = np.array([1, 0] * 100)
    sure = np.where(y == 1, 800.0, -800.0)
    sure[0] = -800.0
    weights = stack_weights([sure, np.zeros(200)], y, None, "binary")
    assert np.isfinite(weights).all()
    assert weights[0] > 0.8
