"""MetricBooster: scikit-learn's contract, decisions that agree, boosters that see no row they are judged by, files."""

import pickle
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import make_classification
from sklearn.utils.estimator_checks import check_estimator

import stepless as sl
from stepless.costs import Costs
from stepless.metrics import METRICS
from stepless.rules import Rule
from stepless.tabular.booster import MetricBooster
from stepless.tabular.ensembles.choosing import expected
from stepless.tabular.ensembles.growing import grow
from stepless.tabular.ensembles.portfolio import make_folds
from stepless.tabular.models.folders import ModelFileError
from stepless.tabular.persist import load_model
from stepless.tabular.tables.frames import read_table
from stepless.tabular.trees.steppers import Rows, Settings, make_stepper
from tests.test_boosting import curved

from .mutations import seal

LIBRARIES = ("lightgbm", "xgboost", "catboost")
FEW = {"n_estimators": 15, "n_members": 3, "random_state": 0}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def binary():
    return make_classification(500, 6, weights=[0.85], class_sep=0.8, flip_y=0.05, random_state=0)


@pytest.fixture(scope="module")
def several():
    X, y = make_classification(400, 6, n_informative=4, n_classes=3, weights=[0.6, 0.3], random_state=0)
    return X, np.array(["low", "mid", "top"])[y]


# ---------------------------------------------------------------------------------------------------------------------
# scikit-learn
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "library", [LIBRARIES[0], *(pytest.param(name, marks=pytest.mark.full) for name in LIBRARIES[1:])]
)
def test_scikit_learns_checks_pass(library):
    """All of them, where decisions are made at ½ of probabilities that are not calibrated."""
    model = MetricBooster(library=library, forms=("cost",), threshold="half", calibrate=False, **FEW)
    results = check_estimator(model)
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}


@pytest.mark.full
@pytest.mark.parametrize("library", LIBRARIES)
def test_scikit_learns_checks_pass_with_a_tuned_threshold(library):
    why = "predict is to be the most probable class there, and a tuned threshold is another rule"
    results = check_estimator(
        MetricBooster(library=library, **FEW), expected_failed_checks={"check_classifiers_train": why}
    )
    bad = {r["check_name"] for r in results if r["status"] not in ("passed", "xfail")}
    assert bad <= {"check_array_api_input"}


@pytest.mark.parametrize("threshold", ["expected", "tuned", "half", "auto"])
@pytest.mark.parametrize("pos_label", [0, 1])
def test_decisions_agree(binary, threshold, pos_label):
    X, y = binary
    model = MetricBooster(threshold=threshold, pos_label=pos_label, **FEW).fit(X, y)
    p = model.predict_proba(X)
    assert ((p >= 0) & (p <= 1)).all()
    np.testing.assert_allclose(p.sum(1), 1)
    yes = model.predict(X) == pos_label
    np.testing.assert_array_equal(yes, p[:, pos_label] >= model.best_threshold_)
    np.testing.assert_array_equal(model.predict(X), model.classes_[(model.decision_function(X) >= 0).astype(int)])
    assert model.score(X, y) == pytest.approx(
        sl.score(yes.astype(float), y == pos_label, "f1", inputs="probabilities").item()
    )
    assert f"pos_label_={pos_label}" in repr(model)


@pytest.mark.parametrize("library", LIBRARIES)
def test_several_classes(several, library):
    X, y = several
    few = {**FEW, "n_estimators": 10, "n_members": 2}
    model = MetricBooster("f1", library, **few).fit(X[:300], y[:300])
    assert model.classes_.tolist() == ["low", "mid", "top"]
    assert model.pos_label_ is None
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[model.decision_function(X).argmax(1)])
    decided = np.log(p) - model.best_threshold_
    np.testing.assert_array_equal(model.predict(X), model.classes_[decided.argmax(1)])
    assert model.score(X[300:], y[300:]) > 0.6


@pytest.mark.parametrize("metric", ["mcc", "weighted_kappa", "cost", "balanced_accuracy"])
def test_metrics_of_all_classes(several, metric):
    X, y = several
    model = MetricBooster(metric, n_estimators=10, n_members=2, random_state=0).fit(X, y)
    sign = 1 if METRICS[metric].greater_is_better else -1
    sure = np.eye(3)[np.searchsorted(model.classes_, model.predict(X))]
    expected = sl.score(sure, np.searchsorted(model.classes_, y), metric, task="multiclass", inputs="probabilities")
    assert model.score(X, y) == pytest.approx(sign * expected.item())


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        ("5*fn + fp", {"maximize": False}),
        (lambda tp, fp, fn, tn: tp / (tp + fp + fn), None),
        ("f_beta", {"beta": 2}),
        ("error_rate", None),
    ],
)
def test_formulas_options_and_directions(binary, metric, options):
    X, y = binary
    model = MetricBooster(metric, metric_options=options, **FEW).fit(X, y)
    better, worse = model.score(X, y), model.score(X, 1 - y)
    assert better > worse


def test_it_finds_positives_where_hardly_any_row_is_more_probable_than_not():
    from lightgbm import LGBMClassifier

    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    y = (rng.random(3000) < 1 / (1 + np.exp(3.5 - X[:, 0] - X[:, 1]))).astype(int)
    ours = MetricBooster("f1", random_state=0).fit(X[:1500], y[:1500]).score(X[1500:], y[1500:])
    plain = LGBMClassifier(n_estimators=150, verbose=-1, n_jobs=1).fit(X[:1500], y[:1500]).predict(X[1500:])
    assert ours > 0.05 + sl.score(plain.astype(float), y[1500:], "f1", inputs="probabilities").item()


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def frame(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    city = rng.choice(["Ulm", "Bonn", "Köln"], rows)
    income = np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows))
    X = pd.DataFrame({"age": rng.normal(size=rows), "income": income, "city": city})
    y = np.where((X["age"] + (city == "Ulm") + np.isnan(income) + rng.normal(0, 0.5, rows)) > 1.5, "yes", "no")
    return X, y


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_of_any_kind_with_categories_and_missing_values(library):
    X, y = frame()
    model = MetricBooster(library=library, **FEW).fit(X, y)
    assert model.feature_names_in_.tolist() == ["age", "income", "city"]
    assert model.pos_label_ == "yes"
    assert model.score(X, y) > 0.6
    other = MetricBooster(library=library, **FEW).fit(pl.from_pandas(X), y)
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(pl.from_pandas(X)))


def test_weights(binary):
    X, y = binary
    rng = np.random.default_rng(0)
    weight = rng.random(len(y)) * (rng.random(len(y)) < 0.8)
    model = MetricBooster(**FEW).fit(X, y, weight)
    kept = weight > 0
    for other in (
        MetricBooster(**FEW).fit(X[kept], y[kept], weight[kept]),
        MetricBooster(**FEW).fit(X, y, weight * 1024),
    ):
        np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), rtol=1e-6)
    heavy = MetricBooster("accuracy", threshold="half", **FEW).fit(X, y, np.where(y == 1, 50.0, 1.0))
    light = MetricBooster("accuracy", threshold="half", **FEW).fit(X, y)
    assert heavy.predict(X).sum() > light.predict(X).sum()


@pytest.mark.parametrize("library", LIBRARIES)
def test_few_distinct_rows_are_grown_on_whole(library):
    """Copies are weights there: no fold could tell them apart."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (90, 2)).astype(float)
    y = (rng.random(90) < 0.1 + 0.8 * (X[:, 0] == 2)).astype(int)
    model = MetricBooster(library=library, learning_rate=0.5, **FEW).fit(X, y)
    assert all(member.n == 1 for member in model.model_.members)
    np.testing.assert_array_equal(model.predict(X), (X[:, 0] == 2).astype(int))
    order = rng.permutation(90)
    again = MetricBooster(library=library, learning_rate=0.5, **FEW).fit(X[order], y[order])
    np.testing.assert_allclose(model.predict_proba(X), again.predict_proba(X), rtol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_same_seed_gives_the_same_model(binary, library):
    X, y = binary
    first, second = (MetricBooster(library=library, **FEW).fit(X, y) for _ in range(2))
    if library != "catboost":  # whose files bear the time they were made
        assert [m.boosters for m in first.model_.members] == [m.boosters for m in second.model_.members]
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    assert first.best_threshold_ == second.best_threshold_


def test_probabilities_are_calibrated(binary):
    X, y = binary
    model = MetricBooster("recall", subject_to="precision >= 0.3", n_estimators=40, random_state=0).fit(X, y)
    assert abs(model.predict_proba(X)[:, 1].mean() - y.mean()) < 0.05
    tilted = MetricBooster("f1", forms=("cost",), calibrate=False, n_estimators=40, random_state=0).fit(X, y)
    straight = MetricBooster("f1", forms=("cost",), n_estimators=40, random_state=0).fit(X, y)
    assert tilted.predict_proba(X)[:, 1].mean() > straight.predict_proba(X)[:, 1].mean()


# ---------------------------------------------------------------------------------------------------------------------
# Growing
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_held_out_scores_are_those_of_the_booster_that_has_not_seen_the_row(library, classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4)).astype(np.float32)
    y = np.digitize(X[:, 0] + rng.normal(0, 0.3, 150), [0.8] if classes == 2 else [-0.3, 0.8]).astype(np.int64)
    task = "binary" if classes == 2 else "multiclass"
    folds = make_folds(y, task, 3, 0)
    growth = grow(X, y, None, Costs(METRICS["f1"], task, classes), Settings(library, 15), folds, 5)
    member, start = growth.ensemble.member, 0
    assert 0 < growth.rounds <= 15
    for place, fold in enumerate(folds):
        held = growth.ensemble.held[start : start + len(fold)]
        scores = member.scores(X[fold])[place]
        scores = scores[:, 0] if classes == 2 else scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        np.testing.assert_allclose(held, scores, atol=1e-5)
        alone = np.setdiff1d(np.arange(150), fold)
        np.testing.assert_allclose(member.initial[place], Costs(METRICS["f1"], task, classes).initial(y[alone]))
        start += len(fold)


def test_it_stops_where_the_metric_of_held_out_rows_is_best(binary):
    X, y = binary
    model = MetricBooster("f1", forms=("cost",), n_estimators=150, patience=20, random_state=0).fit(X, y)
    history = model.history_["cost"]
    assert model.rounds_["cost"] == 5 * (1 + int(history.argmax()))
    assert len(history) * 5 <= model.rounds_["cost"] + 20
    everything = MetricBooster("f1", forms=("cost",), n_estimators=30, patience=None, random_state=0).fit(X, y)
    assert everything.rounds_ == {"cost": 30}


def test_constraints_are_met_on_held_out_rows(binary):
    X, y = binary
    model = MetricBooster("recall", subject_to="precision >= 0.7", n_estimators=40, random_state=0).fit(X, y)
    assert list(model.rounds_) == ["cross_entropy"]
    with pytest.raises(ValueError, match='constraints are met by moving the threshold; threshold="half"'):
        MetricBooster("recall", subject_to="precision >= 0.7", threshold="half", **FEW).fit(X, y)


def test_the_default_threshold_meets_constraints_that_leave_hardly_a_row_out():
    """An expected cut leaves out a twentieth of the rows, and so cannot meet them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = (X[:, 0] + 2 * rng.normal(size=600) > 0).astype(int)

    def cut(threshold, recall):
        model = MetricBooster("precision", subject_to=f"recall >= {recall}", threshold=threshold, **FEW)
        return model.fit(X, y).best_threshold_

    cuts = [cut("expected", recall) for recall in (0.9, 0.97, 0.99, 1)]
    assert cuts == [cut("tuned", recall) for recall in (0.9, 0.97, 0.99, 1)]
    assert cuts == sorted(cuts, reverse=True)
    assert len(set(cuts)) == 4


def test_the_expected_cut_is_the_best_under_the_calibrated_probabilities(binary):
    X, y = binary
    held = np.random.default_rng(0).normal(2.0 * y - 1.5, 1.0)
    rule = Rule("binary", np.array([0, 1]), 1, "predict_proba", "f1", {}, None, None, 0)
    choice = expected(held, rule, y, None, np.zeros(len(y), int), calibrate=True)
    p = choice.calibration.probabilities(held)

    def f1(cut):
        yes = p >= cut
        return 2 * p[yes].sum() / (p.sum() + yes.sum())

    assert f1(choice.threshold) == pytest.approx(max(map(f1, p)))
    raw = expected(held, rule, y, None, np.zeros(len(y), int), calibrate=False)
    np.testing.assert_array_equal(1 / (1 + np.exp(-held)) >= raw.threshold, p >= choice.threshold)
    assert choice.option.score == raw.option.score == rule.score(p >= choice.threshold, y)
    assert (
        MetricBooster(**FEW).fit(X, y).best_threshold_
        != MetricBooster(threshold="tuned", **FEW).fit(X, y).best_threshold_
    )


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_scores_rise_with_a_column_that_they_must_not_fall_with(library, tmp_path):
    pytest.importorskip(library)
    X, y = make_classification(300, 4, n_informative=4, n_redundant=0, random_state=0)
    given = {"monotone_constraints": "(1,0,0,-1)" if library == "xgboost" else [1, 0, 0, -1]}
    model = sl.MetricBooster("f1", library=library, n_estimators=15, n_members=2, params=given, random_state=0).fit(
        X, y
    )
    model.save(tmp_path / "model")
    rows = np.repeat(X[:20], 30, 0)
    for column, sign in ((0, 1), (3, -1)):
        moved = rows.copy()
        moved[:, column] = np.tile(np.linspace(-4, 4, 30), 20)
        said = sl.load(tmp_path / "model").predict_proba(moved)[:, 1].reshape(20, 30)
        assert (sign * np.diff(said, axis=1) >= -1e-12).all()
        assert np.ptp(said) > 0.1


def test_params_reach_the_library(binary):
    X, y = binary
    shallow = MetricBooster(params={"num_leaves": 2}, forms=("cost",), **FEW).fit(X, y)
    assert b"num_leaves=2\n" in shallow.model_.members[0].boosters[0]
    assert b"num_leaves=3\n" not in shallow.model_.members[0].boosters[0]


# ---------------------------------------------------------------------------------------------------------------------
# What goes wrong
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"library": "sklearn"}, ValueError, "library must be one of 'lightgbm', 'xgboost', 'catboost'; got 'sklearn'"),
        ({"forms": ()}, ValueError, "forms must be some of 'cost', 'metric', 'cross_entropy'"),
        ({"forms": "cost"}, ValueError, "forms must be some of"),
        (
            {"threshold": True},
            ValueError,
            "threshold must be one of 'expected', 'auto', 'tuned', 'half', or .* got True",
        ),
        ({"threshold": 3}, ValueError, "a threshold is a probability strictly between 0 and 1; got 3"),
        ({"n_estimators": 0}, ValueError, "n_estimators must be a whole number from 1 up; got 0"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate must be a number above 0; got -1.0"),
        ({"n_jobs": 0}, ValueError, "n_jobs must be a number of threads"),
        ({"n_jobs": 1.5}, ValueError, "n_jobs must be a number of threads, or −1 for all; got 1.5"),
        ({"n_jobs": "2"}, ValueError, "n_jobs must be a number of threads, or −1 for all; got '2'"),
        ({"forms": 3}, ValueError, "forms must be some of .*; got 3"),
        ({"params": {1: 2}}, TypeError, "the library's parameters by their names; got 1 for a name"),
        ({"metric_options": 3}, TypeError, "metric_options must be a dict of the metric's options"),
        ({"params": [1]}, TypeError, "params must be a dict of the library's parameters; got list"),
        ({"params": {"objective": "binary"}}, ValueError, "params may not hold 'objective': use metric= instead"),
        ({"params": {"eta": 0.3}}, ValueError, "params may not hold 'eta': use learning_rate= instead"),
        *(
            ({"params": {name: 1}}, ValueError, f"params may not hold '{name}': use {other}= instead")
            for name, other in {
                "application": "metric",
                "loss": "metric",
                "metrics": "metric",
                "num_classes": "metric",
                "num_trees": "n_estimators",
                "max_iter": "n_estimators",
                "num_rounds": "n_estimators",
                "nthreads": "n_jobs",
                "early_stopping_round": "patience",
                "early_stopping_rounds": "patience",
            }.items()
        ),
        *(
            ({"library": "catboost", "params": {name: 5}}, ValueError, f"may not hold '{name}': use patience= instead")
            for name in ("od_wait", "od_type", "early_stopping_rounds")
        ),
        *(
            ({"params": {name: 5}}, ValueError, f"may not hold '{name}': use sample_weight= of fit instead")
            for name in ("scale_pos_weight", "is_unbalance", "class_weights", "auto_class_weights")
        ),
        ({"library": "xgboost", "params": {"base_score": 0.3}}, ValueError, "may not hold 'base_score': leave it out"),
        ({"params": {"boosting": "dart"}}, ValueError, "its later rounds change the earlier trees"),
        ({"params": {"boost": "dart"}}, ValueError, "Leave 'boost' out"),
        ({"library": "xgboost", "params": {"booster": "dart"}}, ValueError, "Leave 'booster' out"),
        ({"params": {"linear_tree": True}}, ValueError, "params must make trees that can be kept; got .* Leave out"),
        ({"params": {"categorical_feature": [1]}}, ValueError, "params must make trees that can be kept"),
        ({"library": "xgboost", "params": {"num_parallel_tree": 3}}, ValueError, "trees that can be kept"),
        ({"metric": "f11"}, ValueError, "did you mean 'f1'"),
        ({"pos_label": 7}, ValueError, r"pos_label must be one of the classes \[0, 1\]; got 7"),
        ({"average": "none"}, ValueError, "average"),
        ({"library": "catboost", "params": {"boosting_type": "Ordered"}}, ValueError, 'boosting_type="Plain" alone'),
        ({"params": {"num_leafs": 15}}, ValueError, "it has none named 'num_leafs'. Did you mean 'num_leaf'"),
        ({"params": {"num_leaves": -1}}, ValueError, "what lightgbm takes; got {'num_leaves': -1}, and it says"),
        ({"library": "xgboost", "params": {"num_leafs": 15}}, ValueError, "parameters of xgboost; it has none named"),
        ({"library": "xgboost", "params": {"max_depth": -3}}, ValueError, "params must hold what xgboost takes; got"),
        ({"library": "catboost", "params": {"depth": -3}}, ValueError, "catboost takes; .* it says: Can't parse"),
        ({"library": "catboost", "params": {"leafs": 15}}, ValueError, "it says: Unknown option"),
    ],
)
def test_a_fit_that_fails_says_why_and_leaves_the_model(binary, settings, error, message):
    X, y = binary
    model = MetricBooster(**FEW).fit(X, y)
    before, threads = model.predict_proba(X), threading.active_count()
    model.set_params(**settings)
    with pytest.raises(error, match=message):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert threading.active_count() == threads


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_that_change_after_they_were_scored_are_refused(monkeypatch, classes):
    """By whatever parameter: here the refusal by name is taken away."""
    monkeypatch.setattr("stepless.tabular.trees.steppers._BOOSTING", ())
    X, y = make_classification(400, 6, n_informative=4, n_classes=classes, random_state=0)
    params = {"boosting": "dart", "drop_rate": 0.5, "skip_drop": 0.0}
    with pytest.raises(ValueError, match="the rounds that are kept score rows otherwise than when they were grown"):
        MetricBooster(params=params, forms=("cost",), patience=5, n_estimators=40, random_state=0).fit(X, y)


def test_rounds_in_which_nothing_is_split_are_counted():
    """LightGBM leaves no tree then, so that a later round's would be taken for an earlier one's."""
    random = np.random.default_rng(0)
    X = random.integers(0, 6, (200, 3))
    y = (X[:, 0] + 2 * random.normal(size=200) > 4).astype(int)
    params = {"extra_trees": True, "feature_fraction": 0.4, "min_data_in_leaf": 40, "min_gain_to_split": 0.5}
    model = MetricBooster(forms=("cross_entropy",), n_members=2, n_estimators=60, params=params, random_state=0)
    model.fit(X, y)  # which compares the trees that are kept with what was scored
    trees = [booster.num_trees() for booster in model.model_.members[0].trees]
    assert max(trees) < model.rounds_["cross_entropy"]


def test_catboost_that_stops_by_itself_is_not_waited_for(binary):
    X, y = binary
    costs = Costs(METRICS["f1"], "binary", 2)
    stepper = make_stepper(
        costs, Rows(X.astype(np.float32), y, None, X[:0].astype(np.float32)), Settings("catboost", 2)
    )
    for _ in range(2):
        stepper.step(np.eye(2))
    with pytest.raises(ValueError, match=r"stopped by itself. Leave out of params what stops it, and use patience="):
        stepper.step(np.eye(2))
    stepper.close()


def test_targets_that_cannot_be_learned(binary):
    X, y = binary
    with pytest.raises(ValueError, match="y has one class only"):
        MetricBooster().fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="one label per row; for 0 and 1 in several columns use"):
        MetricBooster().fit(X, np.stack([y, 1 - y], 1))
    with pytest.raises(ValueError, match=r"sample_weight is 0 for every row|at least one non-zero"):
        MetricBooster().fit(X, y, np.zeros(len(y)))


def test_a_missing_library_says_how_to_install_it():
    script = """
        import sys
        from stepless.tabular.booster import MetricBooster
        for library in ("lightgbm", "xgboost", "catboost"):
            sys.modules[library] = None
            try:
                MetricBooster(library=library).fit([[0.0], [1.0]], [0, 1])
            except ModuleNotFoundError as error:
                print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    expected = [f'boosting with {name} needs it: pip install "stepless[{name}]"' for name in LIBRARIES]
    assert ran.stdout.splitlines() == expected


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_booster_comes_back_as_it_was(binary, several, library, task, tmp_path):
    X, y = binary if task == "binary" else several
    model = MetricBooster(library=library, n_estimators=6, n_members=2, random_state=0).fit(X, y)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.probabilities(read_table(X)), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.labels(read_table(X)), model.predict(X))
    assert {member.kind for member in loaded.members} == {library}
    assert library in loaded.versions
    again = MetricBooster.from_model(loaded)
    assert again.get_params() == model.get_params()
    assert again.score(X, y) == model.score(X, y)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of each library, with a tree that has no splits among the others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = (X[:, 0] > 0.8).astype(int)
    root = tmp_path_factory.mktemp("saved")
    for library in LIBRARIES:
        model = MetricBooster(library=library, n_estimators=4, n_members=2, forms=("cost",), random_state=0)
        model.fit(X, y).save(root / library)
    return root


def damage(folder, rng):
    path = rng.choice(sorted(folder.glob("members-*/*")))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    how = rng.choice(("flip", "set", "cut", "insert", "truncate", "number", "number", "number"))
    if how == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif how == "set":
        data[at : at + 4] = rng.randbytes(4)
    elif how == "cut":
        del data[at : at + rng.choice((1, 8, 100))]
    elif how == "insert":
        data[at:at] = rng.randbytes(rng.choice((1, 8)))
    elif how == "truncate":
        del data[at:]
    else:
        place = rng.choice([i for i, c in enumerate(data) if 48 <= c <= 57])
        data[place : place + 1] = rng.choice((b"9", b"-1", b"99999999", b"nan", b"0", b"1e999", b""))
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("library", LIBRARIES)
def test_damage_is_found_before_the_library_reads_it(saved, library, tmp_path):
    for seed in range(30):
        folder = tmp_path / str(seed)
        shutil.copytree(saved / library, folder)
        before = {p.name: p.read_bytes() for p in folder.glob("members-*/*")}
        damage(folder, random.Random(seed))
        if before != {p.name: p.read_bytes() for p in folder.glob("members-*/*")}:
            with pytest.raises(ModelFileError, match=r"sha256 differs|may have \d+ bytes"):
                load_model(folder)


def load_damaged(source, scratch, seeds):
    """For a process of its own: load folders whose files were altered together with their hashes."""
    for seed in seeds:
        folder = Path(scratch) / str(seed)
        shutil.copytree(source, folder)
        damage(folder, random.Random(seed))
        seal(folder)
        try:
            model = load_model(folder)
            model.probabilities(read_table(np.random.default_rng(0).normal(size=(50, 4))))
        except ModelFileError:
            pass
        except ValueError as error:
            if "scores must be finite" not in str(error):  # of whole trees whose numbers are too large
                raise
        shutil.rmtree(folder)
    print("done")


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_files_altered_together_with_their_hashes_load_or_are_refused(saved, count, tmp_path):
    """In a process of its own, of bounded memory, since the libraries' readers are not ours."""
    script = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        from tests.tabular.test_booster import LIBRARIES, load_damaged
        for library in LIBRARIES:
            load_damaged({str(saved)!r} + "/" + library, {str(tmp_path)!r}, range({count}))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, cwd=ROOT, timeout=900, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines().count("done") == len(LIBRARIES)


@pytest.mark.parametrize(
    ("library", "old", "new", "message"),
    [
        ("lightgbm", b"split_feature=0", b"split_feature=4", "splits by a feature that is not one of the 4"),
        ("lightgbm", b"left_child=", b"left_child=0 ", "left_child must have"),
        ("lightgbm", b"num_cat=0", b"num_cat=1", "trees of categories"),
        ("lightgbm", b"max_feature_idx=3", b"max_feature_idx=9", "the head of the model must say"),
        ("xgboost", b'"num_feature":"4"', b'"num_feature":"5"', "must be of 4 features"),
        ("xgboost", b'"left_children":[1', b'"left_children":[0', "must be the child of one other"),
        ("xgboost", b'"split_indices":[0', b'"split_indices":[7', "splits by a feature that is not one of the 4"),
        ("xgboost", b'"num_target":"1"', b'"num_target":"-1"', "of 4 features and 1 scores; they say"),
        ("xgboost", b'"parents":[2147483647,0', b'"parents":[2147483647,9', "must be those whose children they are"),
        ("catboost", b"CBM1", b"CBM2", "begins with 'CBM1' and its length"),
    ],
)
def test_what_is_wrong_with_a_forged_file_is_said(saved, library, old, new, message, tmp_path):
    shutil.copytree(saved / library, tmp_path / "m")
    path = sorted((tmp_path / "m").glob("members-*/*"))[0]
    data = path.read_bytes()
    assert old in data
    changed = data.replace(old, new, 1)
    if library == "lightgbm" and b"Tree=" in data:  # keep the sizes of the trees true
        head, *blocks = changed.decode().split("Tree=")
        sizes = " ".join(str(5 + len(b.removesuffix("end of trees\n"))) for b in blocks)
        head = "\n".join(f"tree_sizes={sizes}" if line.startswith("tree_sizes") else line for line in head.split("\n"))
        changed = "Tree=".join([head, *blocks]).encode()
    path.write_bytes(changed)
    seal(tmp_path / "m")
    with pytest.raises(ModelFileError, match=message):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_leaf_of_rare_positives_does_not_run_away(library):
    """Newton's step there is 1/p; what it does to the other rows is never made good."""
    random = np.random.default_rng(0)
    y = (np.arange(6000) < 24).astype(int)
    X = (random.normal(size=(6000, 3)) + 4 * y[:, None]).astype(np.float32)
    costs = Costs(METRICS["f1"], "binary", 2, None, "cross_entropy")
    stepper = make_stepper(costs, Rows(X, y, None, X[:0]), Settings(library, 1, 0.1))
    scores, _ = stepper.step(np.eye(2))
    assert 0.1 < np.abs(scores - stepper.initial[0]).max() < 5.0


@pytest.mark.parametrize(
    ("name", "other", "value"),
    [("min_data_in_leaf", "min_child_samples", 60), ("max_delta_step", "max_leaf_output", 0.1)],
)
def test_a_parameter_of_lightgbm_works_by_each_of_its_names(binary, name, other, value):
    X, y = binary
    ours, one, two = (
        MetricBooster("f1", n_estimators=5, random_state=0, params=params).fit(X, y).predict_proba(X)
        for params in (None, {name: value}, {other: value})
    )
    np.testing.assert_array_equal(one, two)
    assert (one != ours).any()


def test_without_rows_to_hold_out_there_is_no_score():
    random = np.random.default_rng(5)
    X, y = random.normal(size=(40, 5)), random.random(40) < 0.4
    model = MetricBooster("f1", n_estimators=5, random_state=0).fit(X, y)
    assert np.isnan(model.best_score_)
    assert model.model_.settings["score"] is None


@pytest.mark.parametrize("n_members", [1, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_class_of_one_row_is_held_out_as_any_other(several, library, n_members):
    X, y = several
    X, y = np.append(X, [[9.0] * 6], 0), np.append(y, "once")
    model = MetricBooster("f1", library, n_estimators=10, n_members=n_members, random_state=0).fit(X, y)
    assert model.best_score_ > 0.3
    assert [member.n for member in model.model_.members] == [n_members] * 2
    p = model.predict_proba(X)
    assert p.shape == (401, 4)
    np.testing.assert_allclose(p.sum(1), 1)
    assert (model.predict(X) == y).mean() > 0.6


def test_two_classes_with_one_row_of_one_are_grown_on_whole(binary):
    X, y = binary
    model = MetricBooster("f1", n_estimators=5, random_state=0).fit(X, np.arange(len(y)) == 7)
    assert np.isnan(model.best_score_)
    assert [member.n for member in model.model_.members] == [1, 1]


def flags(rows, seed):
    """Three flags, the first of which tells something."""
    random = np.random.default_rng(seed)
    X = random.integers(0, 2, (rows, 3)).astype(float)
    return X, (random.random(rows) < 0.08 + 0.22 * X[:, 0]).astype(int)


@pytest.mark.parametrize("kind", [sl.MetricClassifier, MetricBooster])
def test_many_rows_of_few_kinds_are_held_out_and_cut(kind):
    (X, y), (new, truth) = flags(990, 0), flags(20_000, 99)
    settings = {"epochs": 5} if kind is sl.MetricClassifier else {"n_estimators": 30}
    model = kind("f1", random_state=0, **settings).fit(X, y)
    assert (model.predict(new) == new[:, 0]).mean() > 0.99, "the first flag is all there is to know"
    assert model.best_score_ == pytest.approx(sl.score(new[:, 0], truth, "f1", inputs="probabilities").item(), abs=0.05)


@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_columns_that_tell_nothing_apart(library):
    pytest.importorskip(library)
    y = np.arange(300) % 3 == 0
    with pytest.raises(ValueError, match=r"boosted trees need a column that tells rows apart, and here none does"):
        MetricBooster("f1", library=library, n_estimators=3).fit(np.ones((300, 2)), y)


def test_rare_flags_can_be_split():
    X = (np.random.default_rng(0).random((400, 25)) < 0.03).astype(float)
    y = (X[:, 0] + np.random.default_rng(1).random(400) > 0.8).astype(int)
    assert MetricBooster("f1", n_estimators=5, random_state=0).fit(X, y).predict(X).shape == (400,)


@pytest.mark.parametrize(("columns", "seen"), [(3, 1.0), (10, 1.0), (12, 10 / 12), (40, 0.7)])
def test_a_tree_of_several_classes_sees_a_share_of_the_rows_and_at_least_ten_columns(columns, seen):
    X, y = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32), np.arange(90) % 3

    def shares(classes, params):
        costs = Costs(METRICS["f1"], "binary" if classes == 2 else "multiclass", classes)
        settings = Settings("lightgbm", 1, params=params, columns=columns)
        found = make_stepper(costs, Rows(X, y % classes, None, X[:0]), settings).booster.params
        return {name: value for name, value in found.items() if "fraction" in name or name.startswith(("bag", "col"))}

    assert shares(3, {}) == {"feature_fraction": seen, "bagging_fraction": 0.8, "bagging_freq": 1}
    assert shares(3, {"colsample_bytree": 0.5}) == {"colsample_bytree": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1}
    assert shares(2, {}) == {}


def test_trees_that_do_not_split_are_told():
    X, y = np.random.default_rng(0).normal(size=(240, 4)), np.arange(240) < 2
    with pytest.warns(UserWarning, match="no tree of xgboost has found a split, so every row gets the same score"):
        MetricBooster(library="xgboost", random_state=0).fit(X, y)


def test_folds_of_one_row_do_not_say_that_trees_do_not_split():
    X, y = curved(60, classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert sl.MetricBooster(n_members=60, n_estimators=5, random_state=0).fit(X, y).score(X, y) > 0.6


@pytest.mark.parametrize(
    "params", [{"data_sample_strategy": "goss"}, {"boosting": "goss"}, {"boosting_type": "goss", "top_rate": 0.3}]
)
def test_goss_draws_the_rows_of_several_classes_by_itself(params):
    X, y = curved(classes=3)
    model = sl.MetricBooster("f1", params=params, n_estimators=10, n_members=2, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.7


def test_dart_is_refused_however_it_is_written():
    X, y = curved()
    with pytest.raises(ValueError, match="params may not hold boosting='DART': its later rounds change"):
        sl.MetricBooster("f1", params={"boosting": "DART"}).fit(X, y)


@pytest.mark.parametrize(
    ("library", "params", "message"),
    [
        (
            "lightgbm",
            {"boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1},
            r"init_score\(\)\) == \(nullptr\)\.$",
        ),
        ("xgboost", {"booster": "gblinear"}, "it says: Slice is not supported by the current booster.$"),
    ],
)
def test_what_a_library_says_comes_without_the_place_in_its_source(library, params, message):
    X, y = curved()
    with pytest.raises(ValueError, match=message):
        sl.MetricBooster("f1", library, params=params, n_estimators=5).fit(X, y)


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
@pytest.mark.parametrize("metric", ["precision", "npv"])
def test_the_default_cut_is_not_the_same_for_everybody(metric, library, calibrate):
    """It lies at the end of what single boosters say, and their mean never goes so far."""
    X, y = curved(800)
    for seed in range(2):
        model = sl.MetricBooster(metric, library, n_estimators=40, calibrate=calibrate, random_state=seed).fit(X, y)
        assert 0 < model.predict(X).mean() < 1
        assert model.score(X, y) > 0.8
    other = sl.MetricBooster(metric, library, n_estimators=40, pos_label=0, random_state=0).fit(X, y)
    assert 0 < other.predict(X).mean() < 1
