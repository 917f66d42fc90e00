"""Who takes part in a portfolio."""

import sys

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_multilabel_classification

import stepless as sl


@pytest.fixture(scope="module")
def table():
    return make_classification(200, 5, weights=[0.8], random_state=0)


def few(**settings):
    return sl.MetricClassifier(epochs=3, n_members=2, random_state=0, **settings)


def test_all_who_suit_the_table(table):
    X, y = table
    assert [*few().fit(X, y).weights_] == ["cross_entropy", "mixture", "linear", "trees", "sampled_trees", "cost_trees"]
    assert [*few().fit(X[:40], y[:40]).weights_] == ["cross_entropy", "mixture", "linear"]
    assert [*few(subject_to="precision >= 0.2").fit(X, y).weights_] == [
        "cross_entropy",
        "mixture",
        "linear",
        "trees",
        "sampled_trees",
    ]


def test_without_lightgbm_they_are_fewer_unless_it_was_asked_for(table, monkeypatch):
    X, y = table
    monkeypatch.setattr("stepless.tabular.ensembles.lineup.find_spec", lambda name: None)
    assert [*few().fit(X, y).weights_] == ["cross_entropy", "mixture", "linear"]
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "stepless\[lightgbm\]"'):
        few(candidates=("cross_entropy", "trees")).fit(X, y)


def test_networks_alone_go_on(table):
    X, y = table
    assert [*few().partial_fit(X, y).weights_] == ["cross_entropy", "mixture"]
    assert [*few(warm_start=True).fit(X, y).weights_] == ["cross_entropy", "mixture"]
    assert [*few().fit(X, y).partial_fit(X, y).weights_] == ["cross_entropy", "mixture"]


def test_labels_have_no_trees():
    X, y = make_multilabel_classification(80, 4, n_classes=3, random_state=0)
    assert [*few().fit(X, y).weights_] == ["cross_entropy", "mixture", "linear"]
    with pytest.raises(
        ValueError, match="trees take one label per row; leave 'trees', 'sampled_trees', 'cost_trees' out"
    ):
        few(candidates=("cross_entropy", "trees")).fit(X, y)


def test_saved_and_loaded_with_trees(table, tmp_path):
    X, y = table
    model = few().fit(X, y)
    model.save(tmp_path / "model")
    loaded = sl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_trees_that_have_nothing_to_split_take_no_part():
    X, y = np.column_stack([np.ones(300), np.full(300, np.nan)]), np.arange(300) % 3 == 0
    model = sl.MetricClassifier("f1", epochs=2, random_state=0).fit(X, y)
    assert not {"trees", "sampled_trees", "cost_trees"} & set(model.weights_)
