"""The correlated t-test: equal to baycomp's and to SciPy's distribution, and right where nothing varies."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stepless.tabular.comparing.correlated import Posterior, posterior

baycomp = pytest.importorskip("baycomp")


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 10), st.integers(1, 4), st.integers(0, 2**31 - 1), st.floats(0.001, 0.2), st.floats(-0.1, 0.1))
def test_the_probabilities_are_those_of_baycomp(folds, runs, seed, spread, shift):
    rng = np.random.default_rng(seed)
    ours = rng.normal(0.7 + shift, spread, folds * runs)
    theirs = rng.normal(0.7, spread, folds * runs)
    better, same, worse = posterior(ours - theirs, folds).split(0.01)
    # baycomp gives the left one first: where the first argument is better
    np.testing.assert_allclose((better, same, worse), baycomp.two_on_single(ours, theirs, 0.01, runs), atol=1e-12)


def test_the_interval_is_that_of_students_t():
    values = np.random.default_rng(0).normal(0.6, 0.05, 15)
    found = posterior(values, folds=5)
    scale = math.sqrt(values.var(ddof=1) * (1 / 15 + 0.2 / 0.8))
    np.testing.assert_allclose(found.interval(), stats.t.interval(0.95, 14, values.mean(), scale))
    assert found.above(0.62) == pytest.approx(stats.t.sf(0.62, 14, values.mean(), scale))


def test_repeats_narrow_an_interval_less_than_independent_scores_would():
    values = np.random.default_rng(0).normal(0.6, 0.05, 5)
    once, often = posterior(values, 5), posterior(np.tile(values, 20), 5)
    assert once.scale > often.scale > once.scale / 2


@pytest.mark.parametrize(("mean", "expected"), [(0.0, (0, 1, 0)), (0.02, (1, 0, 0)), (-0.02, (0, 0, 1))])
def test_equal_differences_leave_no_doubt(mean, expected):
    found = posterior([mean] * 5, 5)
    assert found == Posterior(mean, 0.0, 4)
    assert found.split(0.01) == expected
    assert found.interval() == (mean, mean)


def test_equal_differences_spread_as_if_a_row_had_gone_the_other_way():
    found = posterior([0.0] * 10, 5, step=0.5)
    other = posterior([0.0] * 9 + [0.5], 5)
    assert (found.mean, found.scale) == (0.0, pytest.approx(other.scale))
    assert found.split(0.01)[0] > 0.05
    assert posterior([0.1, 0.2, 0.3], 3, step=0.5) == posterior([0.1, 0.2, 0.3], 3)


def test_differences_that_nearly_agree_spread_by_one_row_at_least():
    nearly = [0.90, 0.92, 0.91]
    assert posterior(nearly, 3).split(0.01)[0] > 0.99
    found = posterior(nearly, 3, least=1.0)
    assert found.mean == posterior(nearly, 3).mean
    assert found.scale == pytest.approx(posterior([0.0, 0.0, 0.0], 3, step=1.0).scale)
    assert found.split(0.01)[0] < 0.95
    apart = [0.0, 0.5, 1.0]
    assert posterior(apart, 3, least=0.1) == posterior(apart, 3)


def test_scores_that_are_undefined_are_left_out():
    assert posterior([0.5, math.nan, 0.7, 0.6], 4) == posterior([0.5, 0.7, 0.6], 4)
    assert math.isnan(posterior([math.nan, math.nan], 2).mean)
