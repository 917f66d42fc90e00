"""What is shared inside of `shared_fits` gives what it gives alone."""

import time

import numpy as np
import pytest
from sklearn.datasets import make_classification

import stepless as sl
from stepless.tabular.ensembles import growing, lineup
from stepless.tabular.sharing import open_block

pytest.importorskip("lightgbm")

ROWS = {
    "binary": make_classification(300, 6, weights=[0.8], flip_y=0.1, random_state=0),
    "multiclass": make_classification(300, 6, n_informative=4, n_classes=3, flip_y=0.1, random_state=0),
}


def booster(metric, **settings):
    return sl.MetricBooster(metric, **{"n_estimators": 30, "patience": 10, "random_state": 0, **settings})


def network(metric, **settings):
    return sl.MetricClassifier(metric, epochs=2, n_members=2, random_state=0, **settings)


def same(one, other, X):
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X))
    assert np.array_equal(one.predict(X), other.predict(X))


@pytest.fixture
def made(monkeypatch):
    """How many boosters and linear models were begun."""
    begun = []
    for module, name in ((growing, "make_stepper"), (lineup, "fit_logistic")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda *args, _make=original, _name=name, **kwargs: (begun.append(_name), _make(*args, **kwargs))[1],
        )
    return begun


@pytest.mark.parametrize(
    ("task", "library"),
    [*((task, library) for task in ROWS for library in ("lightgbm", "xgboost")), ("binary", "catboost")],
)
def test_boosters_of_several_metrics(task, library):
    pytest.importorskip(library)
    X, y = ROWS[task]
    with sl.shared_fits() as shared:
        together = {name: booster(name, library=library).fit(X, y) for name in ("f1", "mcc")}
    for name, model in together.items():
        same(model, booster(name, library=library).fit(X, y), X)
    assert (shared.saved > 0) == (library != "catboost")


@pytest.mark.parametrize("task", ROWS)
def test_classifiers_of_several_metrics(task):
    X, y = ROWS[task]
    with sl.shared_fits() as shared:
        together = {name: network(name).fit(X, y) for name in ("f1", "mcc")}
    for name, model in together.items():
        same(model, network(name).fit(X, y), X)
    assert shared.saved > 0


def test_a_metric_that_wants_more_rounds_grows_on():
    X, y = ROWS["binary"]
    with sl.shared_fits():
        short, long = (booster("f1", forms=("cross_entropy",), patience=p).fit(X, y) for p in (5, None))
    assert short.rounds_["cross_entropy"] < long.rounds_["cross_entropy"] == 30
    same(long, booster("f1", forms=("cross_entropy",), patience=None).fit(X, y), X)


def test_trees_of_cross_entropy_are_grown_once_and_those_of_a_metric_once_each(made):
    X, y = ROWS["binary"]
    with sl.shared_fits():
        for metric in ("f1", "mcc", "f1"):
            booster(metric).fit(X, y)
        assert made.count("make_stepper") == 3 * 5
        for metric in ("f1", "mcc"):
            network(metric).fit(X, y)
        assert made.count("fit_logistic") == 1


PAIRS = {
    "seed": ({"random_state": 0}, {"random_state": 1}),
    "rate": ({"learning_rate": 0.1}, {"learning_rate": 0.2}),
    "params": ({}, {"params": {"num_leaves": 4}}),
    "folds": ({"n_members": 2}, {"n_members": 3}),
    "metric": ({"metric": "f1"}, {"metric": "mcc"}),
    "options": tuple({"metric": "f_beta", "metric_options": {"beta": beta}} for beta in (1, 2)),
    "formula": ({"metric": lambda tp, fp, fn, tn: tp - fp}, {"metric": lambda tp, fp, fn, tn: tp - 2 * fp}),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_what_differs_is_not_shared(pair):
    X, y = ROWS["binary"]
    with sl.shared_fits() as shared:
        for own in PAIRS[pair]:
            sl.MetricBooster(**{"n_estimators": 10, "random_state": 0, "forms": ("cost",), **own}).fit(X, y)
    assert shared.saved == 0


def weighing(miss):
    return lambda tp, fp, fn, tn: tp / (tp + fp + miss * fn)


@pytest.mark.parametrize("kind", [np.int64, np.float32, lambda miss: np.array([miss])[0]])
def test_formulas_bound_to_other_values_are_not_shared(kind):
    X, y = ROWS["binary"]
    alone = booster(weighing(50), forms=("cost",)).fit(X, y)
    with sl.shared_fits():
        booster(weighing(kind(1)), forms=("cost",)).fit(X, y)
        same(booster(weighing(kind(50)), forms=("cost",)).fit(X, y), alone, X)


def test_other_rows_or_weights_are_not_shared():
    X, y = ROWS["binary"]
    with sl.shared_fits() as shared:
        for rows, weight in ((X, None), (X**3, None), (X, np.arange(len(y)) % 3 + 1.0)):
            booster("f1", forms=("cross_entropy",)).fit(rows, y, weight)
    assert shared.saved == 0


def test_what_failed_in_the_middle_is_not_kept(monkeypatch):
    X, y = ROWS["binary"]
    original = growing._watched
    monkeypatch.setattr(growing, "_watched", lambda *_: 1 / 0)
    with sl.shared_fits() as shared:
        with pytest.raises(ZeroDivisionError):
            booster("f1").fit(X, y)
        monkeypatch.setattr(growing, "_watched", original)
        model = booster("f1").fit(X, y)
    assert shared.saved == 0
    same(model, booster("f1").fit(X, y), X)


def test_nothing_is_kept_outside_of_the_block():
    assert open_block() is None
    with sl.shared_fits() as outer:
        with sl.shared_fits() as inner:
            assert open_block() is inner
        assert open_block() is outer
    assert open_block() is None
    assert not outer._made


def test_saved_seconds_are_those_of_what_was_reused():
    """Two equal fits: what the second did not spend is at most what the first spent."""
    X, y = ROWS["multiclass"]
    with sl.shared_fits() as shared:
        begun = time.process_time()
        booster("f1").fit(X, y)
        first = time.process_time() - begun
        assert shared.saved == 0
        booster("f1").fit(X, y)
    assert 0 < shared.saved <= first
