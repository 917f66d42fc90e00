"""Small problems, and what trying everything says of them.

Nothing here sorts or adds up. Every threshold is tried, one after the other, and `score`, which `test_scores.py` holds
to scikit-learn, judges the decisions. Weights are multiples of ¼, so that sums are exact and counts can be compared to
the bit.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

import stepless as sl

INF = math.inf


def equal(value):
    return pytest.approx(value, rel=0, abs=1e-12)


#: What is tuned for: every registered metric, options, formulas as text and as functions, in both directions.
CHOICES = {
    **{name: (name, {}) for name in sl.METRICS},
    "f_beta, β = 2": ("f_beta", {"beta": 2.0}),
    "tversky, uneven": ("tversky", {"alpha": 0.2, "beta": 0.8}),
    "net benefit at 0.2": ("net_benefit", {"threshold_probability": 0.2}),
    "linear kappa": ("weighted_kappa", {"weights": "linear"}),
    "cost, uneven": ("cost", {"costs": ((0.0, 1.0), (5.0, -0.5))}),
    "precision, 1 at 0/0": ("precision", {"zero_division": 1.0}),
    "text": ("tp / (tp + fp + 2*fn)", {}),
    "text, minimised": ("(5*fn + fp) / n", {"maximize": False}),
    "function": (lambda tp, fp, fn, tn: (tp * tn).sqrt() / (tp + fp + fn + tn), {}),
    "function, minimised": (lambda tp, fp, fn, tn: 3 * fn + fp, {"maximize": False}),
}


def sign_of(metric, maximize=True, **_):
    """1 where greater is better, −1 where smaller is; a formula's options say which."""
    return 1 if (sl.METRICS[metric].greater_is_better if metric in sl.METRICS else maximize) else -1


@dataclass(frozen=True)
class Draw:
    """What hypothesis draws; the arrays follow from the seed."""

    seed: int
    rows: int
    levels: int  # how many values a score may take: few give ties
    weighted: bool = False
    soft: bool = False  # targets between 0 and 1


draws = st.builds(
    Draw,
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 14),
    levels=st.integers(1, 14),
    weighted=st.booleans(),
    soft=st.sampled_from([False, False, False, True]),
)


def binary(draw):
    """Scores, targets with both classes, and weights of which at least one of each class is not 0."""
    rng = np.random.default_rng(draw.seed)
    scores = rng.normal(scale=3, size=draw.levels)[rng.integers(draw.levels, size=draw.rows)]
    target = rng.integers(0, 2, draw.rows)
    target[:2] = 1, 0
    if draw.soft:
        target = np.where(rng.random(draw.rows) < 0.5, target, rng.integers(0, 5, draw.rows) / 4)
        target[:2] = 1, 0
    weight = rng.integers(0, 9, draw.rows) / 4
    weight[:2] += 0.25
    return scores, target, weight if draw.weighted else None


def labels(draw, columns=2):
    """The same for several labels, which may have one class only."""
    rng = np.random.default_rng(draw.seed)
    scores = rng.normal(scale=3, size=draw.levels)[rng.integers(draw.levels, size=(draw.rows, columns))]
    target = (rng.random((draw.rows, columns)) < rng.uniform(0.2, 0.8)).astype(int)
    weight = rng.integers(1, 9, draw.rows) / 4
    return scores, target, weight if draw.weighted else None


def classes(seed, *, rows=8, concentration=1.0, zeros=False):
    """Probabilities of three classes, true classes (two at least) and weights for every other seed."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([concentration] * 3, rows)
    if zeros:
        ruled_out = rng.random(p.shape) < 0.4
        ruled_out[np.arange(rows), rng.integers(3, size=rows)] = False
        p = np.where(ruled_out, 0.0, p)
        p /= p.sum(1, keepdims=True)
    target = rng.integers(0, 3, rows)
    target[:2] = 0, 1
    return p, target, rng.integers(1, 9, rows) / 4 if seed % 2 else None


def every_cut(scores):
    """Every threshold that decides differently, from the highest: nobody, then down the distinct scores."""
    return np.unique([INF, *np.ravel(scores)])[::-1]


def score_each(decisions, target, metric, sample_weight=None, **options):
    """The metric of many sets of decisions ``(rows, sets)``: to `score`, each set is a label of its own."""
    target = np.repeat(np.reshape(target, (-1, 1)), decisions.shape[1], 1)
    return sl.score(
        decisions.astype(float), target, metric, task="multilabel", average="none", inputs="probabilities",
        sample_weight=sample_weight, **options,
    ).numpy()  # fmt: skip


def count(decision, target, weight=None):
    """(tp, fp, fn, tn) of yes/no decisions, one entry per column."""
    weight = np.ones(len(target)) if weight is None else weight
    no, wrong = 1 - decision, 1 - target
    return [weight @ (a * b) for a, b in ((decision, target), (decision, wrong), (no, target), (no, wrong))]


def holds(constraint, decisions, target, weight=None):
    """Whether the decisions meet a constraint, and the best value that any of them has."""
    metric, relation, bound = re.split(r" (>=|<=) ", constraint)
    values = score_each(decisions, target, metric, weight)
    if relation == ">=":
        return values >= float(bound), values.max()
    return values <= float(bound), values.min()
