"""Contestants whose networks train for few epochs: the same code, in a tenth of the time."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_multilabel_classification

from stepless.tabular.comparing.contestants import FITS


@pytest.fixture
def quick(monkeypatch):
    """Few epochs and few trees for every contestant; for this process alone, so with one job."""
    for key, fit in list(FITS.items()):
        few = {"n_estimators": 10, "n_members": 3} if "boosting" in key else {"epochs": 4, "n_members": 3}
        build = lambda aim, fit=fit, few=few: fit.build(aim).set_params(**few)  # noqa: E731 - one a turn
        monkeypatch.setitem(FITS, key, replace(fit, build=build))


def data(task="binary", rows=150, seed=0):
    """A table of 5 columns and its target: numbers, texts or labels."""
    if task == "multilabel":
        return make_multilabel_classification(rows, 5, n_classes=3, n_labels=1, random_state=seed)
    classes = 2 if task == "binary" else 3
    X, y = make_classification(
        rows, 5, n_informative=4, n_redundant=0, n_classes=classes, weights=[0.7, 0.2][: classes - 1], class_sep=0.7,
        random_state=seed,
    )  # fmt: skip
    return X, y if task == "binary" else np.array(["low", "mid", "top"])[y]


def same_tables(one, other):
    """Whether two outcomes say the same, but for how long it took."""
    for a, b in zip(one.table, other.table, strict=True):
        a.pop("fit_seconds"), b.pop("fit_seconds")
        assert a == b
    assert one.verdict == other.verdict
    for a, b in zip(one.entries, other.entries, strict=True):
        assert a.scores == b.scores
        assert a.thresholds == b.thresholds
        np.testing.assert_array_equal(a.probabilities, b.probabilities)
        if a.raw is not None:
            np.testing.assert_array_equal(a.raw, b.raw)
    return True
