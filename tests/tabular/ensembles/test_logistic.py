"""The linear member of two classes: one logistic regression for each fold, as scikit-learn fits it."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import stepless as sl
from stepless.tabular.ensembles.logistic import fit_logistic
from stepless.tabular.ensembles.portfolio import make_folds
from stepless.tabular.tables.frames import read_table


def draw(rows=200, share=0.2):
    X, y = make_classification(rows, 6, weights=[1 - share], random_state=0)
    return X.astype(np.float32), y


@pytest.mark.parametrize("weighted", [False, True])
def test_every_fold_is_scored_by_a_fit_of_the_others(weighted):
    X, y = draw()
    weight = np.random.default_rng(0).random(len(y)) if weighted else None
    folds = make_folds(y, "binary", 5, 0)
    ensemble = fit_logistic("linear", X, y, weight, folds)
    start = 0
    for place, fold in enumerate(folds):
        own = np.setdiff1d(np.arange(len(y)), fold)
        model = LogisticRegression(C=0.1, max_iter=300).fit(X[own], y[own], None if weight is None else weight[own])
        expected = model.decision_function(X)
        np.testing.assert_allclose(ensemble.held[start : start + len(fold)], expected[fold], atol=1e-4)
        np.testing.assert_allclose(ensemble.member.scores(X)[place, :, 0], expected, atol=1e-4)
        start += len(fold)


def test_rows_of_one_class_say_so_without_a_slope():
    X, y = draw(20)
    y[:] = 0
    y[3] = 1
    ensemble = fit_logistic("linear", X, y, None, [np.array([3]), np.array([0, 1])])
    scores = ensemble.member.scores(X)[0, :, 0]
    assert np.ptp(scores) == 0
    assert scores[0] == pytest.approx(-np.log(20))


def test_the_probabilities_of_a_linear_truth_are_right():
    """Trained as a network, the member would hold one row in five for positive."""
    random = np.random.default_rng(0)
    y = (random.random(3000) < 0.02).astype(int)
    X = random.normal(size=(3000, 5))
    X[:, 0] += 2.5 * y
    model = sl.MetricClassifier("f1", candidates=("cross_entropy", "linear"), epochs=5, random_state=0).fit(X, y)
    linear = model.model_.members[1].scores(model.model_.features.matrix(read_table(X)))
    assert 0.015 < (1 / (1 + np.exp(-linear))).mean() < 0.025
    assert model.weights_["linear"] > model.weights_["cross_entropy"]
