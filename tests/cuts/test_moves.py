"""The metric along one offset equals that of new decisions at each of its values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless.cuts.moves import find_moves, separates, values_along
from stepless.formula import resolve
from tests.brute_force import classes

from .test_offsets import log

FORMULAS = [*sl.METRICS, "tp / (tp + fp + 2*fn)", "(5*fn + fp) / n"]


@given(
    st.integers(0, 2**32 - 1), st.integers(2, 12), st.sampled_from(FORMULAS),
    st.sampled_from(["macro", "weighted", "micro"]), st.booleans(), st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_values_equal_those_of_new_decisions(seed, rows, name, average, zeros, k):
    p, target, weight = classes(seed, rows=rows, zeros=zeros)
    weight = np.ones(rows) if weight is None else weight
    offsets, metric = np.random.default_rng(seed).normal(size=3), resolve(name)
    shifted = log(p) - offsets
    moves = find_moves(log(p), shifted, target, weight, k)
    np.testing.assert_array_equal(shifted, log(p) - offsets)
    average = average if metric.kind == "class" else None
    values = values_along(moves, metric, average or "macro")
    for offset, value in zip(moves.offsets, values, strict=True):
        offsets[k] = offset
        decided = np.eye(3)[(log(p) - offsets).argmax(1)]
        again = sl.score(
            decided, target, name, task="multiclass", average=average, inputs="probabilities", sample_weight=weight
        )  # fmt: skip
        assert value == pytest.approx(again.item(), abs=1e-12)


def test_undefined_scores_are_left_out_of_the_mean():
    """With zero_division=nan a class that is never decided has no precision: the mean is over the others."""
    p, target, _ = classes(0, rows=10)
    metric = resolve("precision", zero_division=float("nan"))
    assert not separates(metric)
    moves = find_moves(log(p), log(p), target, np.ones(10), 0)
    values = values_along(moves, metric, "macro")
    shifted = log(p) - [moves.offsets[0], 0, 0]
    never = sl.score(
        np.eye(3)[shifted.argmax(1)], target, "precision", task="multiclass", inputs="probabilities",
        zero_division=float("nan"),
    )  # fmt: skip
    assert values[0] == pytest.approx(never.item())
