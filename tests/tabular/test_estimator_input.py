"""What `MetricClassifier` says to data and settings that cannot work, and that it is left as it was."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import stepless as sl

QUICK = {"epochs": 2, "n_members": 2, "random_state": 0}


def quick(**settings):
    return sl.MetricClassifier(**{**QUICK, **settings})


@pytest.fixture(scope="module")
def binary():
    return make_classification(120, 4, random_state=0)


def with_(array, value, dtype=float):
    changed = np.array(array, dtype=dtype)
    changed.flat[3] = value
    return changed


X, Y = make_classification(60, 4, random_state=1)
TEXT = np.array(["no", "yes"], dtype=object)[Y]
DATA = {
    "one class": (X, np.ones(60), "y has one class only (1.0): there is nothing to decide."),
    "fewer rows than folds": (
        X[:3],
        [0, 1, 0],
        "3 rows cannot be held out in 5 folds; give more rows, or lower n_members.",
    ),
    "NaN in y": (X, with_(Y, np.nan), "Input y contains NaN"),
    "None in y": (X, with_(TEXT, None, object), "Input y contains NaN. Leave out the rows that have no label."),
    "NA in y": (X, pd.Series(with_(TEXT, pd.NA, object)), "Input y contains NaN"),
    "gaps in a polars y": (X, pl.Series(with_(TEXT, None, object).tolist()), "Input y contains NaN"),
    "infinite X": (with_(X, np.inf), Y, "Input X contains infinity"),
    "no rows": (X[:0], Y[:0], "Found array with 0 sample(s) (shape=(0, 4)) while a minimum of 1 is required"),
    "an empty frame": (pd.DataFrame(), Y, "Found array with 0"),
    "an empty polars frame": (pl.DataFrame(), Y, "Found array with 0"),
    "no columns": (X[:, :0], Y, "Found array with 0 feature(s) (shape=(60, 0)) while a minimum of 1 is required"),
    "1-D X": (X[:, 0], Y, "Expected 2D array, got 1D array instead"),
    "sparse X": (scipy.sparse.csr_matrix(X), Y, "Sparse data was passed for X, but dense data is required"),
    "complex X": (X + 1j, Y, "Complex data not supported"),
    "lengths": (X, Y[:-1], "Found input variables with inconsistent numbers of samples: [60, 59]"),
    "no y": (X, None, "MetricClassifier requires y to be passed, but the target y is None."),
    "numbers for y": (X, np.linspace(0, 1, 60), "Unknown label type"),
    "labels that are not 0 or 1": (X, np.stack([Y, Y + 1], 1), "y must hold one label per row, or 0 and 1"),
}


@pytest.mark.parametrize("case", list(DATA))
def test_bad_data_leaves_the_estimator_as_it_was(case, binary):
    rows, target, sentence = DATA[case]
    model = quick(n_members=5).fit(*binary)
    before = pickle.dumps(model.__dict__)
    unfitted = quick(n_members=5)
    calls = [model.fit, unfitted.fit, unfitted.partial_fit]
    if case != "one class":  # which is fine where both are known
        calls.append(model.partial_fit)
    for call in calls:
        with pytest.raises((ValueError, TypeError), match=re.escape(sentence)):
            call(rows, target)
    assert pickle.dumps(model.__dict__) == before
    assert unfitted.__dict__ == quick(n_members=5).__dict__


SETTINGS = {
    "metric": ({"metric": "f11"}, "unknown metric"),
    "metric of another kind": ({"metric": 3}, "metric must be a name such as 'f1'"),
    "metric option": ({"metric": "f1", "metric_options": {"beta": 2}}, "beta"),
    "ranking": ({"metric": "auroc"}, "its metric must score decisions, as 'f1' does; 'auroc' scores a ranking."),
    "average": ({"average": "macro"}, "average"),
    "average of none": ({"average": "none"}, 'average="none" gives one for each class'),
    "constraint": ({"subject_to": "precision > 0.9"}, 'a constraint is a metric, ">=" or "<=", and a number'),
    "constraint and half": ({"subject_to": "precision >= 0.5", "threshold": "half"}, 'threshold="half" leaves it'),
    "constraint that nothing meets": ({"subject_to": "tp + fp >= 1e6", "metric": "recall"}, "no threshold meets"),
    "threshold": ({"threshold": None}, "one of 'expected', 'auto', 'tuned', 'half', or the threshold itself"),
    "threshold above 1": ({"threshold": 1.5}, "a threshold is a probability strictly between 0 and 1; got 1.5"),
    "thresholds": ({"threshold": (0.2, 0.3)}, "threshold must be a probability; got (0.2, 0.3)"),
    "threshold and constraints": (
        {"threshold": 0.3, "subject_to": "recall >= 0.5"},
        "threshold=0.3 leaves it where it is",
    ),
    "pos_label": ({"pos_label": 7}, "pos_label must be one of the classes [0, 1]; got 7."),
    "candidates": ({"candidates": ("f1",)}, "candidates must be some of 'cross_entropy', 'metric'"),
    "no network": ({"candidates": ("linear", "trees")}, "candidates must name a loss of the networks, one of"),
    "combine": ({"combine": "mean"}, "combine must be one of 'stack', 'best'; got 'mean'."),
    "candidates as text": ({"candidates": "metric"}, "candidates must be some of"),
    "no candidates": ({"candidates": ()}, "candidates must be some of"),
    "n_members": ({"n_members": 0}, "n_members must be a whole number from 1 up; got 0."),
    "n_members as a float": ({"n_members": 2.0}, "n_members must be a whole number from 1 up; got 2.0."),
    "model": ({"model": "tree"}, 'model must be "mlp", "linear", or a factory of a torch.nn.Module; got \'tree\'.'),
    "model that is none": ({"model": 5}, 'model must be "mlp", "linear", or a factory'),
    "hidden": ({"hidden": (0,)}, "hidden must hold the widths of the layers"),
    "hidden as a number": ({"hidden": 64}, "hidden must hold the widths of the layers"),
    "hidden of a linear model": ({"model": "linear", "hidden": (8,)}, 'hidden and dropout are for model="mlp"'),
    "dropout": ({"dropout": 1.0}, "dropout is a share of units, in [0, 1); got 1.0."),
    "epochs": ({"epochs": 0}, "epochs must be a whole number from 1 up; got 0."),
    "batch_size": ({"batch_size": 2.5}, "batch_size must be a whole number from 1 up; got 2.5."),
    "learning_rate": ({"learning_rate": 0}, "learning_rate must be a number above 0; got 0."),
    "weight_decay": ({"weight_decay": -1.0}, "weight_decay must be a number from 0; got -1.0."),
    "patience": ({"early_stopping": True, "patience": 0}, "patience must be a whole number from 1 up; got 0."),
    "device": ({"device": "abacus"}, "device='abacus' cannot be used"),
    "random_state": ({"random_state": "x"}, "cannot be used to seed"),
}


@pytest.mark.parametrize("case", list(SETTINGS))
def test_bad_settings(case, binary):
    given, sentence = SETTINGS[case]
    model = quick(**given)
    before = dict(model.__dict__)
    with pytest.raises((ValueError, TypeError), match=re.escape(sentence)):
        model.fit(*binary)
    assert model.__dict__ == before


def test_settings_that_do_not_go_with_the_task(binary):
    x, y = binary
    three = y + (x[:, 0] > 0)
    with pytest.raises(ValueError, match="pos_label=1 has no effect on a multiclass task; leave it out"):
        quick(pos_label=1).fit(x, three)
    with pytest.raises(ValueError, match="pos_label=1 has no effect on a multilabel task; leave it out"):
        quick(pos_label=1).fit(x, np.stack([y, 1 - y], 1))


def test_a_metric_that_needs_two_classes(binary):
    x, y = binary
    with pytest.raises(ValueError, match="costs must be 3×3 for 3 classes"):
        quick(metric="cost", metric_options={"costs": [[0, 1], [5, 0]]}).fit(x, y + (x[:, 0] > 0))


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (np.zeros(120), "Sample weights must contain at least one non-zero number."),
        (-np.ones(120), "Negative values in data passed to `sample_weight`"),
        (np.ones(119), "sample_weight.shape == (119,), expected (120,)"),
        (np.full(120, np.nan), "contains NaN"),
        (np.where(np.arange(120) < 60, np.inf, 1.0), "infinity"),
        (np.full(120, 1e308), "Sample weights must have a finite sum; divide them by the largest."),
    ],
)
def test_bad_weights(binary, weight, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        quick().fit(*binary, sample_weight=weight)


def test_weights_that_leave_one_class(binary):
    x, y = binary
    with pytest.raises(ValueError, match="y has one class only"):
        quick().fit(x, y, sample_weight=(y == 1).astype(float))


def test_constant_features_are_fine(binary):
    x, y = binary
    constant = np.concatenate([x, np.full((len(x), 1), 7.0), np.full((len(x), 1), np.nan)], 1)
    model = quick().fit(constant, y)
    assert np.isfinite(model.predict_proba(constant)).all()
    nothing = quick().fit(np.ones((40, 2)), np.tile([0, 1], 20))
    assert np.isfinite(nothing.predict_proba(np.ones((3, 2)))).all()


@pytest.mark.parametrize("values", [[True, False, "unknown"], [2**60, 2**60 + 1, "unknown"]], ids=["bools", "ids"])
def test_a_row_is_decided_alike_whatever_rows_come_with_it(values):
    """Bools and large integers among text became other levels in rows without text."""
    random = np.random.default_rng(0)
    column = np.array(values, dtype=object)[random.integers(0, 3, 300)]
    frame = pd.DataFrame({"a": random.normal(size=300), "c": column})
    model = sl.MetricBooster(random_state=0, n_members=1, n_estimators=20).fit(frame, column == values[0])
    together = model.predict_proba(frame)
    known = column != "unknown"
    assert (model.predict(frame) == (column == values[0])).all()
    np.testing.assert_array_equal(model.predict_proba(frame[known]), together[known])
    np.testing.assert_array_equal(model.predict_proba(frame[known].infer_objects()), together[known])
    np.testing.assert_array_equal(model.predict_proba(frame[known].convert_dtypes()), together[known])
    np.testing.assert_array_equal(model.predict_proba(pl.from_pandas(frame[known])), together[known])


def test_a_class_of_one_row_is_fine(binary):
    x, y = binary
    alone = np.zeros(len(y), int)
    alone[5] = 1
    for members in (1, 2, 5):
        for threshold in ("auto", "tuned", "half"):
            model = quick(n_members=members, threshold=threshold).fit(x, alone)
            assert model.predict(x).shape == (120,)


def test_wrong_columns_at_predict(binary):
    x, y = binary
    frame = pd.DataFrame(x, columns=list("abcd"))
    model = quick().fit(frame, y)
    with pytest.raises(ValueError, match="X has 3 features, but MetricClassifier is expecting 4 features as input"):
        model.predict(x[:, :3])
    with pytest.raises(ValueError, match="Feature names unseen at fit time:\n- e"):
        model.predict(frame.rename(columns={"a": "e"}))
    with pytest.raises(ValueError, match="Feature names must be in the same order as they were in fit"):
        model.predict(frame[list("dcba")])
    with pytest.warns(UserWarning, match="X does not have valid feature names, but MetricClassifier was fitted with"):
        model.predict(x)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.predict(with_(x, np.inf))
    with pytest.raises(ValueError, match="Found array with 0 sample"):
        model.predict(frame[:0])
    with pytest.raises(ValueError, match="labels the estimator does not know"):
        model.score(frame, y + 1)


def test_nothing_works_before_a_fit(binary, tmp_path):
    x, y = binary
    model = quick()
    for call in (
        lambda: model.predict(x),
        lambda: model.predict_proba(x),
        lambda: model.decision_function(x),
        lambda: model.score(x, y),
        lambda: model.save(tmp_path / "model"),
        lambda: model.to_onnx(tmp_path / "model.onnx"),
    ):
        with pytest.raises(NotFittedError, match="This MetricClassifier instance is not fitted yet"):
            call()


def test_a_fit_that_breaks_off_leaves_the_estimator_as_it_was(binary, monkeypatch):
    x, y = binary
    model = quick(warm_start=True).fit(x, y)
    before = pickle.dumps(model.__dict__)
    monkeypatch.setattr("stepless.tabular.estimator.choose", lambda *_, **__: 1 / 0)
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ZeroDivisionError):
            call(x, y)
        assert pickle.dumps(model.__dict__) == before


COSTS = [[0, 10], [1, 0]]  # of the classes as they are sorted: to take bad for good costs 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: sl.MetricClassifier("cost", metric_options={"costs": COSTS}, random_state=0, epochs=5, n_members=2),
        lambda: sl.MetricBooster("cost", metric_options={"costs": COSTS}, random_state=0, n_estimators=20),
        lambda: sl.TunedThreshold(LogisticRegression(), "cost", metric_options={"costs": np.array(COSTS)}),
    ],
)
@pytest.mark.parametrize("rarer", ["bad", "good"])
def test_costs_are_in_the_order_of_the_classes_whichever_is_positive(make, rarer):
    random = np.random.default_rng(0)
    rare = random.random(300) < 0.2
    y = np.where(rare == (rarer == "bad"), "bad", "good")
    X = random.normal(size=(300, 3)) + rare[:, None]
    model = make().fit(X, y)
    assert model.pos_label_ == rarer
    told = model.predict(X)
    cost = 10 * ((y == "bad") & (told == "good")).mean() + ((y == "good") & (told == "bad")).mean()
    assert model.score(X, y) == pytest.approx(-cost)
    assert (told == "bad").mean() > 0.3  # it is the cheaper word


@pytest.mark.parametrize("dtype", ["boolean", "Int64", "bool[pyarrow]", "int64[pyarrow]"])
def test_labels_of_pandas_own_types_stay_what_they_are(dtype):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = pd.Series(np.arange(60) % 3 == 0).astype(int) + (0 if "bool" in dtype else 2**60)
    model = sl.MetricBooster(n_estimators=3, random_state=0).fit(X, y.astype(dtype))
    assert model.classes_.dtype.kind == ("b" if "bool" in dtype else "i")
    assert model.classes_.tolist() == sorted(set(y.tolist()))


def test_classes_that_are_as_frequent_are_told():
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.warns(
        UserWarning, match=r"classes 'a' and 'b' are about equally frequent \(30 and 30 rows\), and 'b' is taken"
    ):
        sl.MetricBooster(n_estimators=3, random_state=0).fit(X, ["a", "b"] * 30)


@pytest.mark.parametrize(
    "make", [lambda: sl.MetricBooster(n_estimators=3, random_state=0), lambda: sl.TunedThreshold(LogisticRegression())]
)
def test_score_checks_what_fit_checks(make):
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3 == 0
    model = make().fit(X, y)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[60, 59\]"):
        model.score(X, y[:-1])
    with pytest.raises(ValueError, match="at least one non-zero number"):
        model.score(X, y, sample_weight=np.zeros(60))


def test_a_seed_below_0_is_none():
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3 == 0
    for make in (sl.MetricBooster, sl.MetricClassifier):
        with pytest.raises(ValueError, match="Seed must be between 0 and"):
            make(random_state=-1).fit(X, y)
