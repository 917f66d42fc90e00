"""`MetricClassifier`: what it decides, what it goes on from, and how it lives with scikit-learn."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, fbeta_score, get_scorer, matthews_corrcoef, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import stepless as sl
from stepless.tabular.ensembles.predicting import EXPECTED_FAILED_CHECKS

QUICK = {"epochs": 4, "n_members": 2, "random_state": 0}


def quick(**settings):
    return sl.MetricClassifier(**{**QUICK, **settings})


@pytest.fixture(scope="module")
def binary():
    return make_classification(600, 8, n_informative=5, weights=[0.8], class_sep=0.7, random_state=0)


@pytest.fixture(scope="module")
def classes():
    return make_classification(600, 8, n_informative=5, n_classes=3, weights=[0.6, 0.3], random_state=1)


@pytest.fixture(scope="module")
def labels():
    return make_multilabel_classification(400, 8, n_classes=3, random_state=2)


@pytest.fixture(scope="module")
def mixed():
    """Numbers with gaps, text, and a target that depends on both."""
    random = np.random.default_rng(3)
    city = random.choice(["a", "b", "c"], 500)
    x = random.normal(size=500)
    y = (x + (city == "b") + 0.3 * random.normal(size=500) > 0.8).astype(int)
    x[::7] = np.nan
    frame = pd.DataFrame({"x": x, "n": random.integers(0, 5, 500), "city": city})
    frame.loc[::11, "city"] = None
    return frame, y


def agree(model, X):
    """Labels, probabilities and decisions say the same on every row."""
    said, p, decision = model.predict(X), model.predict_proba(X), model.decision_function(X)
    if model.model_.task == "multiclass":
        np.testing.assert_array_equal(said, model.classes_[decision.argmax(1)])
        return
    if model.model_.task == "binary":
        place = int(np.flatnonzero(model.classes_ == model.pos_label_)[0])
        np.testing.assert_array_equal(said == model.pos_label_, p[:, place] >= model.best_threshold_)
        said = said == model.classes_[1]
    else:
        np.testing.assert_array_equal(said == 1, p >= model.best_threshold_)
    for reached in (decision >= 0, decision > 0):
        np.testing.assert_array_equal(said == 1, reached)


# ---------------------------------------------------------------------------------------------------------------------
# scikit-learn's own checks
# ---------------------------------------------------------------------------------------------------------------------


def test_check_estimator_quickly():
    """Every check, with a cut at ½ of the networks' own probabilities, which is what the last of them asks for."""
    results = check_estimator(quick(epochs=3, threshold="half", calibrate=False, random_state=None))
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}
    assert len(results) > 50


@pytest.mark.full
def test_check_estimator_as_it_comes():
    results = check_estimator(sl.MetricClassifier(), expected_failed_checks=EXPECTED_FAILED_CHECKS)
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}
    assert {r["check_name"] for r in results if r["status"] == "xfail"} <= set(EXPECTED_FAILED_CHECKS)


def test_a_weight_is_so_many_rows(binary):
    X, y = binary[0][:120], binary[1][:120]
    times = np.random.default_rng(0).integers(0, 4, len(y))
    once = quick().fit(X, y, sample_weight=times)
    repeated = quick().fit(np.repeat(X, times, 0), np.repeat(y, times))
    np.testing.assert_array_equal(once.predict_proba(X), repeated.predict_proba(X))
    assert once.best_threshold_ == repeated.best_threshold_


# ---------------------------------------------------------------------------------------------------------------------
# Decisions
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", ["auto", "tuned", "half"])
@pytest.mark.parametrize("positive", [0, 1])
def test_binary_decisions_agree(binary, threshold, positive):
    X, y = binary
    names = np.array(["no", "yes"])[y]
    model = quick(threshold=threshold, pos_label=["no", "yes"][positive]).fit(X, names)
    assert model.pos_label_ == ["no", "yes"][positive]
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) == {"no", "yes"}
    agree(model, X)


def test_a_row_on_the_threshold_is_decided_alike(binary):
    """The threshold is put on a row's own probability, where ≥ and > differ."""
    from dataclasses import replace

    X, y = binary
    for positive in (0, 1):
        model = quick(pos_label=positive).fit(X, y)
        p = model.predict_proba(X)[:, positive]
        model._adopt(replace(model.model_, threshold=float(p[17])), model._rule)
        assert model.predict(X)[17] == positive
        agree(model, X)


def test_multilabel_decisions_agree(labels):
    X, Y = labels
    for settings in ({}, {"average": "micro"}, {"average": "samples"}, {"threshold": "half"}):
        model = quick(**settings).fit(X, Y)
        assert model.predict(X).shape == model.predict_proba(X).shape == Y.shape
        assert model.best_threshold_.shape == (3,)
        agree(model, X)


def test_a_ranking_can_be_scored_where_a_label_is_decided_alike_for_every_row():
    """Scikit-learn's scorers read decisions, and refuse infinite ones."""
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 3))
    Y = np.column_stack([random.random(150) < 0.6, X[:, 0] > 0]).astype(int)  # the first cannot be learned
    model = quick().fit(X, Y)
    assert model.best_threshold_[0] == -np.inf
    assert get_scorer("roc_auc")(model, X, Y) == roc_auc_score(Y, model.predict_proba(X))
    agree(model, X)


def test_multiclass_decisions_agree(classes):
    X, y = classes
    for settings in ({}, {"metric": "mcc"}, {"average": "weighted"}, {"threshold": "half"}):
        model = quick(**settings).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
        assert model.best_threshold_.shape == (3,)
        agree(model, X)


@pytest.mark.parametrize("given", [[True, False], [-1, 1], [1.0, 2.0], ["b", "a"], [np.int8(3), np.int8(7)]])
def test_labels_of_any_type_come_back(binary, given):
    X, y = binary
    target = np.array(given)[y]
    model = quick().fit(X, target)
    assert model.predict(X).dtype == target.dtype
    assert set(model.predict(X).tolist()) <= set(target.tolist())
    agree(model, X)


def test_the_positive_class_is_the_rarer_one_and_shows(binary):
    X, y = binary
    model = quick().fit(X, np.array(["sound", "broken"])[y])
    assert model.pos_label_ == "broken"
    assert "pos_label_='broken'" in repr(model)
    agree(model, X)


def test_score_is_the_metric_named(binary, classes):
    X, y = binary
    weight = np.random.default_rng(0).random(len(y))
    model = quick().fit(X, y)
    assert model.score(X, y) == pytest.approx(f1_score(y, model.predict(X)))
    assert model.score(X, y, weight) == pytest.approx(f1_score(y, model.predict(X), sample_weight=weight))
    model = quick(metric="f_beta", metric_options={"beta": 2}).fit(X, y)
    assert model.score(X, y) == pytest.approx(fbeta_score(y, model.predict(X), beta=2))
    X, y = classes
    model = quick(metric="mcc").fit(X, y)
    assert model.score(X, y) == pytest.approx(matthews_corrcoef(y, model.predict(X)))
    model = quick(average="macro").fit(X, y)
    assert model.score(X, y) == pytest.approx(f1_score(y, model.predict(X), average="macro"))


def test_formulas(binary):
    X, y = binary
    text = quick(metric="tp / (tp + fp + fn)").fit(X, y)
    function = quick(metric=lambda tp, fp, fn, tn: tp / (tp + fp + fn)).fit(X, y)
    np.testing.assert_array_equal(text.predict_proba(X), function.predict_proba(X))
    cost = quick(metric="5*fn + fp", metric_options={"maximize": False}).fit(X, y)
    said = cost.predict(X)
    assert cost.score(X, y) == -(5 * ((y == 1) & (said == 0)).sum() + ((y == 0) & (said == 1)).sum())
    assert cost.best_score_ == min(option.score for option in cost.options_)


@pytest.mark.parametrize("kind", [sl.MetricClassifier, sl.MetricBooster])
def test_a_threshold_may_be_given(binary, kind, tmp_path):
    """As a number, or as `tune_threshold` found it."""
    X, y = binary
    quickly = {"epochs": 2} if kind is sl.MetricClassifier else {"n_estimators": 5}
    tuning = sl.tune_threshold(np.linspace(0, 1, 50) ** 2, np.arange(50) > 30, "f1", inputs="probabilities")
    for given, cut in ((tuning, tuning.threshold), (0.3, 0.3)):
        model = clone(kind(threshold=given, n_members=2, random_state=0, **quickly)).fit(X, y)
        assert model.best_threshold_ == cut
        np.testing.assert_array_equal(model.predict(X) == 1, model.predict_proba(X)[:, 1] >= cut)
        model.save(tmp_path / f"{cut}")
        again = sl.load(tmp_path / f"{cut}")
        assert again.get_params()["threshold"] == cut
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_offsets_may_be_given():
    X, y = make_classification(200, 6, n_informative=4, n_classes=3, random_state=0)
    model = quick(threshold=(0.0, 0.5, -0.2)).fit(X, y)
    assert model.best_threshold_.tolist() == [0.0, 0.5, -0.2]
    for again in (quick(threshold=model.best_threshold_), sl.MetricBooster(threshold=model.best_threshold_)):
        assert again.fit(X, y).best_threshold_.tolist() == [0.0, 0.5, -0.2]
    with pytest.raises(ValueError, match="constraints are met by moving the threshold"):
        quick(threshold=model.best_threshold_, subject_to="accuracy >= 0.5").fit(X, y)
    with pytest.raises(ValueError, match="one number for each of the 3 classes or labels"):
        quick(threshold=(0.0, 0.5)).fit(X, y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("task", ["binary", "classes"])
def test_torchs_default_precision_changes_nothing(task, dtype, request, tmp_path):
    X, y = request.getfixturevalue(task)
    settings = {"candidates": ("cross_entropy", "metric", "cost_weighted", "linear"), "dropout": 0.1}
    expected = quick(**settings).fit(X, y).predict_proba(X)
    torch.set_default_dtype(dtype)
    try:
        model = quick(**settings).fit(X, y)
        model.save(tmp_path / "m")
        found = [model.predict_proba(X), sl.load(tmp_path / "m").predict_proba(X)]
    finally:
        torch.set_default_dtype(torch.float32)
    for p in found:
        np.testing.assert_array_equal(p, expected)


def test_partial_fit_says_whom_it_leaves_out(binary):
    X, y = binary
    model = quick(candidates=None).fit(X, y)
    with pytest.warns(UserWarning, match="goes on with networks alone: linear, .* of the weight, are left out"):
        model.partial_fit(X[:50], y[:50])


def test_it_learns_what_it_is_asked_for(binary):
    X, y = binary
    model = sl.MetricClassifier(random_state=0, n_members=3).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.6
    assert model.best_candidate_ == "stack"
    assert [*model.weights_] == ["cross_entropy", "mixture", "linear", "trees", "sampled_trees", "cost_trees"]
    assert sum(model.weights_.values()) == pytest.approx(1)
    best = sl.MetricClassifier(combine="best", threshold="auto", random_state=0, n_members=3).fit(X[:400], y[:400])
    assert best.best_score_ == max(option.score for option in best.options_)
    assert {option.name for option in best.options_} == {*model.weights_, "average"}


def test_constraints_hold_on_held_out_rows(binary):
    X, y = binary
    model = quick(metric="recall", subject_to="precision >= 0.7", epochs=20).fit(X, y)
    assert all(option.tuned for option in model.options_)
    said = model.predict(X)
    assert y[said == 1].mean() > 0.65


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def test_the_same_labels_from_pandas_polars_and_numpy(mixed):
    frame, y = mixed
    model = quick(epochs=10).fit(frame, y)
    other = pl.from_pandas(frame)
    np.testing.assert_array_equal(model.predict(frame), model.predict(other))
    array = frame.astype(object).to_numpy()
    found = [model.predict_proba(frame)]
    for rows in (other, array, array.tolist()):
        again = quick(epochs=10).fit(rows, y)
        found.append(again.predict_proba(rows))
    for p in found[1:]:
        np.testing.assert_array_equal(p, found[0])
    assert model.feature_names_in_.tolist() == ["x", "n", "city"]
    agree(model, frame)


def test_reruns_are_identical_bit_by_bit(mixed, classes):
    for X, y in (mixed, classes):
        first, second = (quick(dropout=0.2).fit(X, y) for _ in range(2))
        np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
        np.testing.assert_array_equal(first.best_threshold_, second.best_threshold_)
        assert not np.array_equal(quick(random_state=1).fit(X, y).predict_proba(X), first.predict_proba(X))
    states = [np.random.RandomState(5) for _ in range(2)]
    models = [quick(random_state=state).fit(X, y) for state in states]
    np.testing.assert_array_equal(models[0].predict_proba(X), models[1].predict_proba(X))


def test_torch_and_numpy_keep_their_random_numbers(binary):
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1]
    quick(dropout=0.1).fit(*binary)
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])


def test_preprocessing_can_be_switched_off(binary, mixed):
    X, y = binary
    model = quick(preprocess=False).fit(X, y)
    agree(model, X)
    with pytest.raises(ValueError, match="missing"):
        quick(preprocess=False).fit(np.where(X > 2, np.nan, X), y)
    with pytest.raises(ValueError, match="preprocess"):
        quick(preprocess=False).fit(*mixed)


def test_unseen_categories_and_gaps_are_fine(mixed):
    frame, y = mixed
    model = quick().fit(frame, y)
    odd = frame.copy()
    odd["city"] = "elsewhere"
    odd["n"] = np.nan
    assert len(model.predict(odd)) == len(odd)


def test_weights_move_decisions(binary):
    X, y = binary
    heavy = np.where(y == 1, 30.0, 1.0)
    assert (
        quick(metric="accuracy").fit(X, y, heavy).predict(X).mean()
        > quick(metric="accuracy").fit(X, y).predict(X).mean()
    )
    zero = np.where(np.arange(len(y)) < 300, 1.0, 0.0)
    np.testing.assert_array_equal(
        quick().fit(X, y, zero).predict_proba(X), quick().fit(X[:300], y[:300]).predict_proba(X)
    )
    np.testing.assert_allclose(
        quick().fit(X, y, heavy * 1e-30).predict_proba(X), quick().fit(X, y, heavy).predict_proba(X)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Networks
# ---------------------------------------------------------------------------------------------------------------------


def no_arguments():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))


def two_arguments(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, outputs))


@pytest.mark.parametrize("model", [no_arguments, two_arguments, "linear"])
def test_models(binary, model):
    X, y = binary
    fitted = quick(model=model).fit(X, y)
    agree(fitted, X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))


def test_a_factory_for_several_classes(classes):
    X, y = classes
    agree(quick(model=two_arguments).fit(X, y), X)
    with pytest.raises(ValueError, match=r"must take rows of \d+ features.*; it fails with: mat1 and mat2 shapes"):
        quick(model=lambda: nn.Linear(99, 3)).fit(X, y)
    with pytest.raises(ValueError, match="must give 3 logits a row for this task; it gave 1"):
        quick(model=no_arguments).fit(X, y)
    with pytest.raises(
        TypeError, match="called without arguments, or with the numbers of inputs and outputs; it takes 1"
    ):
        quick(model=lambda inputs: nn.Linear(inputs, 3)).fit(X, y)


def test_a_factory_of_networks_that_are_more_than_their_weights(binary):
    """Their predictions would be those of other networks than were trained."""
    X, y = binary

    class Chosen(nn.Linear):
        def __init__(self):
            super().__init__(2, 1)
            self.columns = torch.randperm(8)[:2]
            nn.init.zeros_(self.weight)  # before training they are all alike

        def forward(self, x):
            return super().forward(x[:, self.columns])

    with pytest.raises(ValueError, match="neither parameters nor buffers"):
        quick(model=Chosen).fit(X, y)


@pytest.mark.parametrize("names", [("cross_entropy",), ("metric",), ("blend", "cost_weighted"), ("mixture",)])
@pytest.mark.parametrize("members", [1, 3])
def test_candidates_and_members(binary, names, members):
    X, y = binary
    model = quick(candidates=names, n_members=members, combine="best").fit(X, y)
    assert {option.name for option in model.options_} == {*names, *(["average"] if len(names) > 1 else [])}
    assert model.history_.train.shape == (4, members * len(names))
    assert model.best_candidate_ in {option.name for option in model.options_}
    agree(model, X)


def test_early_stopping(binary):
    X, y = binary
    model = quick(early_stopping=True, patience=2, epochs=60, learning_rate=0.05).fit(X, y)
    assert len(model.history_.train) < 60
    assert np.isfinite(model.history_.held).all()
    assert (model.history_.best < len(model.history_.train)).any()


def test_without_calibration_probabilities_are_the_networks_own(binary):
    X, y = binary
    plain = quick(calibrate=False, threshold="half").fit(X, y)
    assert plain.best_threshold_ == 0.5
    agree(plain, X)


def test_warm_start_goes_on(binary):
    X, y = binary
    model = quick(warm_start=True, candidates=("cross_entropy",)).fit(X, y)
    first = model.history_.train
    model.fit(X, y)
    assert model.history_.train[0].mean() < first[0].mean()
    anew = clone(model).fit(X, y)
    np.testing.assert_array_equal(anew.history_.train, first)
    with pytest.raises(
        ValueError, match=r"goes on from binary networks for the classes \[0, 1\]; got a binary task with"
    ):
        model.fit(X, y + 1)
    with pytest.raises(ValueError, match=r"for the classes \[0, 1\]; got a multilabel task with \[0, 1\]"):
        model.fit(X, np.stack([y, 1 - y], 1))
    with pytest.raises(ValueError, match="networks whose pos_label is 1; got 0"):
        model.set_params(pos_label=0).fit(X, y)
    model.set_params(pos_label=None)
    with pytest.raises(ValueError, match="training goes on with the networks there are"):
        model.set_params(hidden=(8,)).fit(X, y)


def test_partial_fit_goes_on(binary):
    X, y = binary
    model = quick(epochs=None, learning_rate=0.01)
    scores = []
    for _ in range(3):
        for part in np.array_split(np.arange(len(y)), 4):
            model.partial_fit(X[part], y[part], classes=[0, 1])
        scores.append(model.score(X, y))
        agree(model, X)
    assert scores[-1] > scores[0]
    assert len(model._last.pool.target) == 3 * len(y)
    with pytest.raises(ValueError, match=r"for the classes \[0, 1\]; got a binary task with \[0, 1, 2\]"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="labels the estimator does not know"):
        model.partial_fit(X, y + 1)


def test_the_rows_of_all_calls_of_partial_fit_are_weighed_against_each_other(binary):
    X, y = binary
    first, last = slice(0, 300), slice(300, None)

    def share(later):
        """The weight of later rows in the threshold and calibration, and how probable positives then are."""
        model = quick(epochs=1).partial_fit(X[first], y[first])
        model.partial_fit(X[last], (np.arange(300) > 0).astype(int), sample_weight=np.full(300, later))
        weight = model._last.pool.weight
        return weight[300:].sum() / weight.sum(), model.predict_proba(X)[:, 1].mean()

    (few, low), (more, middle), (most, high) = share(0.01), share(2.0), share(100.0)
    assert (few, more, most) == pytest.approx((1 / 101, 2 / 3, 100 / 101))
    assert low < middle < high  # nearly all later rows are positive
    copies = quick(epochs=1).partial_fit(X[first], y[first])
    copies.partial_fit(np.repeat(X[:60], 5, 0), np.repeat(y[:60], 5))  # merged, they still are 300 rows
    assert copies._last.pool.weight[300:].sum() == 300


def test_partial_fit_needs_as_many_distinct_rows_as_folds(binary):
    X, y = binary
    model = quick(n_members=4).partial_fit(X[:100], y[:100])
    with pytest.raises(ValueError, match=r"with 4 networks of each loss, .* there are 3 distinct rows; give as many"):
        model.partial_fit(np.repeat(X[:3], 5, 0), np.repeat([0, 1, 0], 5))
    model.partial_fit(X[:4], y[:4])


def test_partial_fit_of_rows_that_lack_a_class(classes):
    X, y = classes
    order = np.argsort(y, kind="stable")
    model = quick(epochs=1)
    model.partial_fit(X[order[:200]], y[order[:200]], classes=[0, 1, 2])
    model.partial_fit(X[order[200:]], y[order[200:]], sample_weight=np.ones(len(y) - 200))
    assert model.classes_.tolist() == [0, 1, 2]
    agree(model, X)


def test_partial_fit_keeps_the_positive_class(binary):
    """The rarer class of the first rows, whatever later rows have more of."""
    X, y = binary
    names = np.array(["no", "yes"])[y]
    model = quick(epochs=1).partial_fit(X, names)
    assert model.pos_label_ == "yes"
    rows = np.concatenate([np.flatnonzero(y == 1), np.flatnonzero(y == 0)[:20]])
    model.partial_fit(X[rows], names[rows])
    assert model.pos_label_ == "yes"
    agree(model, X)


def test_partial_fit_of_labels(labels):
    X, Y = labels
    model = quick(epochs=1).partial_fit(X, Y).partial_fit(X, Y)
    agree(model, X)
    with pytest.raises(ValueError, match="goes on from multilabel networks"):
        model.partial_fit(X, Y[:, :2])
    with pytest.raises(ValueError, match="goes on from multilabel networks"):
        model.partial_fit(X, Y[:, 0])


# ---------------------------------------------------------------------------------------------------------------------
# scikit-learn's company
# ---------------------------------------------------------------------------------------------------------------------


def test_pipelines_searches_and_scores(binary):
    X, y = binary
    names = np.array(["no", "yes"])[y]
    pipe = make_pipeline(StandardScaler(), quick()).set_output(transform="pandas")
    search = GridSearchCV(pipe, {"metricclassifier__metric": ["f1", "mcc"], "metricclassifier__epochs": [1, 2]}, cv=2)
    search.fit(X, names)
    assert set(search.predict(X)) <= {"no", "yes"}
    assert search.best_estimator_[-1].feature_names_in_.tolist() == [f"x{i}" for i in range(8)]
    values = cross_val_score(quick(), X, names, cv=2, scoring="roc_auc")
    assert (values > 0.5).all()
    turned = cross_val_score(quick(pos_label="no"), X, names, cv=2, scoring="roc_auc")
    assert (turned > 0.5).all()
    assert np.isfinite(cross_val_score(quick(), X, names, cv=2)).all()


def test_weights_are_routed(binary):
    X, y = binary
    weight = np.where(y == 1, 5.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        asked = quick().set_fit_request(sample_weight=True)
        pipe = make_pipeline(scaler, asked).fit(X, y, sample_weight=weight)
        plain = make_pipeline(StandardScaler(), quick()).fit(X, y)
    assert not np.array_equal(pipe.predict_proba(X), plain.predict_proba(X))


def test_clone_pickle_and_repr(binary):
    X, y = binary
    model = quick(metric="mcc").fit(X, y)
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.score(X, y) == model.score(X, y)
    assert "metric='mcc'" in repr(model)
    assert "mcc" in model._repr_html_()


def test_a_progress_bar(binary, capsys):
    quick(verbose=True).fit(*binary)
    assert "training, loss" in capsys.readouterr().err
    quick().fit(*binary)
    assert capsys.readouterr() == ("", "")


def test_training_on_a_named_device(binary):
    X, y = binary
    np.testing.assert_array_equal(
        quick(device="cpu").fit(X, y).predict_proba(X), quick(device=torch.device("cpu")).fit(X, y).predict_proba(X)
    )
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda' cannot be used"):
            quick(device="cuda").fit(X, y)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------------------------------

CHILD = """
import sys
import numpy as np
from sklearn.datasets import make_classification
import stepless as sl

X, y = make_classification(600, 8, n_informative=5, weights=[0.8], random_state=0)
settings = {"epochs": 500, "n_members": 3, "dropout": 0.1, "candidates": ("cross_entropy", "blend"), "random_state": 0}
model = sl.MetricClassifier(**settings, checkpoint=sys.argv[1])
print("ready", flush=True)
np.save(sys.argv[2], model.fit(X, y).predict_proba(X))
"""


def run(folder: Path, name: str, wait: float | None) -> tuple[Path, float]:
    """The child's result, and how long it trained; it is killed after so many seconds, or for 0 at a checkpoint."""
    checkpoint, result = folder / "state.safetensors", folder / f"{name}.npy"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(checkpoint), str(result)], stdout=subprocess.PIPE, env=dict(os.environ)
    )
    child.stdout.readline()
    started = time.monotonic()
    if wait is not None:
        deadline = time.monotonic() + 60
        while wait == 0 and not checkpoint.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
    child.wait()
    return result, time.monotonic() - started


def test_a_killed_fit_ends_as_if_it_had_not_been_killed(tmp_path):
    (tmp_path / "whole").mkdir()
    expected = np.load(run(tmp_path / "whole", "whole", None)[0])
    assert not run(tmp_path, "killed", 0.0)[0].exists()
    assert (tmp_path / "state.safetensors").exists()
    np.testing.assert_array_equal(np.load(run(tmp_path, "resumed", None)[0]), expected)


@pytest.mark.full
def test_a_fit_that_is_killed_again_and_again(tmp_path):
    (tmp_path / "whole").mkdir()
    whole, took = run(tmp_path / "whole", "whole", None)
    expected, moments, killed = np.load(whole), random.Random(0), 0
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        killed += not run(folder, "killed", moments.uniform(0.01, took))[0].exists()
        np.testing.assert_array_equal(np.load(run(folder, "resumed", None)[0]), expected)
    assert killed > 5  # the others had come to their end: how many depends on what else the machine does


def test_a_checkpoint_is_for_one_seed_and_one_fit(binary, tmp_path):
    X, y = binary
    path = tmp_path / "state.safetensors"
    with pytest.raises(ValueError, match="pass random_state a whole number"):
        quick(checkpoint=path, random_state=None).fit(X, y)
    quick(checkpoint=path).fit(X, y)
    with pytest.raises(ValueError, match="belongs to another training run"):
        quick(checkpoint=str(path), learning_rate=0.1).fit(X, y)
    with pytest.raises(ValueError, match="belongs to another training run"):
        quick(checkpoint=str(path), dropout=0.1).fit(X, y)


def test_a_checkpoint_is_not_for_a_fit_that_goes_on(binary, tmp_path):
    X, y = binary
    path = tmp_path / "state.safetensors"
    for go_on in (quick(checkpoint=path).partial_fit, quick(checkpoint=path, warm_start=True).fit):
        with pytest.raises(ValueError, match=r"a checkpoint keeps one fit from its beginning; .* Leave checkpoint out"):
            go_on(X, y)
    assert not path.exists()


# ---------------------------------------------------------------------------------------------------------------------
# What is said of wrong settings and labels
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": nn.Linear(8, 1)}, ValueError, r"model must be a factory, .* got one Linear .*model=lambda: Linear"),
        ({"hidden": ()}, ValueError, 'hidden must hold the width of a layer or more; got none. Use model="linear"'),
        ({"candidates": 3}, ValueError, "candidates must be some of .*; got 3"),
        ({"candidates": [["linear"]]}, ValueError, "candidates must be some of .*; got"),
        ({"metric_options": ["a"]}, TypeError, "metric_options must be a dict of the metric's options, as in"),
        ({"metric_options": {1: 2}}, TypeError, "metric_options must be a dict of the metric's options, as in"),
        ({"device": None}, ValueError, 'device must be the name of one, such as "cpu" or "cuda"; got None'),
        ({"checkpoint": 3}, ValueError, "checkpoint must be the path of a file; got 3"),
        ({"checkpoint": "no/such/folder/state"}, FileNotFoundError, "needs a folder that exists; no/such/folder does"),
        ({"learning_rate": True}, ValueError, "learning_rate must be a number above 0; got True"),
        ({"learning_rate": 1e30, "batch_size": 5, "epochs": 20}, FloatingPointError, "or bring the features to a"),
    ],
)
def test_wrong_settings_say_what_is_needed(binary, settings, error, message):
    with pytest.raises(error, match=message):
        quick(**settings).fit(*binary)


def test_numbers_of_numpys_are_numbers(binary):
    X, y = binary
    given = {"learning_rate": np.float32(0.25), "weight_decay": np.float32(0.5), "dropout": np.float32(0.5)}
    model = quick(**given, candidates=("cross_entropy",)).fit(X, y)
    plain = quick(**{k: float(v) for k, v in given.items()}, candidates=("cross_entropy",)).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))


def test_a_graph_needs_a_folder(binary, tmp_path):
    model = quick(candidates=("cross_entropy",)).fit(*binary)
    with pytest.raises(FileNotFoundError, match=r"to_onnx needs a folder that exists; .* does not. Make it first"):
        model.to_onnx(tmp_path / "none" / "model.onnx")


ESTIMATORS = {
    "classifier": lambda: quick(candidates=("cross_entropy",)),
    "booster": lambda: sl.MetricBooster(n_estimators=3, n_members=2, random_state=0),
    "tuned": lambda: sl.TunedThreshold(LogisticRegression(), cv=2),
}


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_labels_that_are_objects_are_what_they_are(binary, make):
    X, y = binary
    for kind in (int, bool, float):
        labels = y.astype(kind)
        model = make().fit(X, pd.Series(labels, dtype=object))
        assert model.classes_.dtype == labels.dtype
        np.testing.assert_array_equal(model.predict(X), make().fit(X, labels).predict(X))
        assert model.score(X, labels.astype(object)) == model.score(X, labels)
    text = np.array(["no", "yes"], dtype=object)[y]
    model = make().fit(X, text)
    for gap in (None, np.nan, pd.NA):
        missing = text.copy()
        missing[3] = gap
        for call in (make().fit, model.score):
            with pytest.raises(ValueError, match=r"Input y contains NaN. Leave out the rows that have no label."):
                call(X, missing)
    for odd in (0, 1.5):
        mixed = text.copy()
        mixed[[0, 3]] = odd, "no"
        with pytest.raises(
            ValueError, match=r"labels of one kind, all texts or all numbers; got (int|float), str. Use"
        ):
            make().fit(X, mixed)
