"""Contestants: each fits, saves and loads; those that share a fit are what a fit of their own would have been."""

import numpy as np
import pandas as pd
import pytest

import stepless as sl
from stepless.tabular.comparing.contestants import (
    BASELINE,
    CONTESTANTS,
    DEFAULT,
    FITS,
    Aim,
    at_half,
    balanced_weights,
    choose_contestants,
    fit_contestant,
)
from tests.tabular.quick import data, quick  # noqa: F401 - a fixture

TASKS = ("binary", "multiclass", "multilabel")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("key", CONTESTANTS)
def test_every_contestant_fits_saves_and_loads(task, key, tmp_path):
    if key == "smote":
        pytest.importorskip("imblearn")
    X, y = data(task, 120)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(city=np.where(X[:, 0] > 0, "Ulm", "Bonn"))
    if task not in CONTESTANTS[key].tasks:
        with pytest.raises(ValueError, match=f"is for binary and multiclass tasks; this one is {task}"):
            fit_contestant(key, Aim(task), frame, y)
        return
    model = fit_contestant(key, Aim(task), frame, y)
    model.save(tmp_path / "model")
    loaded = sl.load(tmp_path / "model")
    np.testing.assert_array_equal(model.predict(frame), loaded.predict(frame))
    np.testing.assert_array_equal(model.predict_proba(frame), loaded.predict_proba(frame))


@pytest.mark.parametrize("task", TASKS)
def test_the_shared_fit_at_one_half_is_a_fit_of_its_own(task):
    X, y = data(task, 100)
    alone = sl.MetricClassifier(
        "f1", candidates=("cross_entropy",), threshold="half", calibrate=False, random_state=3
    ).fit(X, y)
    shared = fit_contestant("cross_entropy", Aim(task, seed=3), X, y)
    np.testing.assert_array_equal(alone.predict_proba(X), shared.predict_proba(X))
    np.testing.assert_array_equal(alone.predict(X), shared.predict(X))
    assert np.all(np.asarray(shared.best_threshold_) == (0 if task == "multiclass" else 0.5))


@pytest.mark.usefixtures("quick")
def test_the_baseline_is_left_as_it_was_by_who_shares_its_fit():
    X, y = data()
    fitted = FITS["cross_entropy"](Aim("binary"), X, y)
    before = fitted.predict(X)
    at_half(fitted)
    np.testing.assert_array_equal(fitted.predict(X), before)


@pytest.mark.usefixtures("quick")
def test_what_is_trained_on_the_metric_differs_from_the_baseline_in_that_alone():
    aim = Aim("binary")
    made = {key: FITS[CONTESTANTS[key].fit].build(aim).get_params() for key in (BASELINE, "metric", "cost_weighted")}
    base = made[BASELINE]
    assert (base["candidates"], base["threshold"]) == (("cross_entropy",), "tuned")
    for key in ("metric", "cost_weighted"):
        assert made[key] == {**base, "candidates": (key,)}
    assert FITS["automatic"].build(aim).get_params()["candidates"] is None


def test_class_weights_are_row_weights():
    X, y = data()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    got = fit_contestant("class_weighted", Aim("binary"), X, y, weight)
    balanced = balanced_weights(y, weight)
    assert balanced[y == 1].sum() == pytest.approx(balanced[y == 0].sum()) == pytest.approx(weight.sum() / 2)
    alone = FITS["class_weighted"].build(Aim("binary")).fit(X, y, balanced)
    np.testing.assert_array_equal(alone.predict_proba(X), got.predict_proba(X))


@pytest.mark.usefixtures("quick")
def test_smote_trains_on_more_rows_and_refuses_weights():
    pytest.importorskip("imblearn")
    X, y = data()
    plain, more = (
        fit_contestant(k, Aim("binary"), X, y).predict_proba(X)[:, 1].mean() for k in ("cross_entropy", "smote")
    )
    assert more > plain
    with pytest.raises(ValueError, match="SMOTE makes new rows, for which there are no weights"):
        fit_contestant("smote", Aim("binary"), X, y, np.ones(len(y)))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("key", ["smote", "cross_entropy"])
def test_the_positive_class_is_that_of_the_rows_that_were_given(key):
    """After SMOTE no class is rarer."""
    pytest.importorskip("imblearn")
    X, y = data()
    fitted = fit_contestant(key, Aim("binary"), X, np.where(y == 1, "Ja", "Nein"))
    assert fitted.pos_label_ == ("Ja" if y.mean() < 0.5 else "Nein")


@pytest.mark.usefixtures("quick")
def test_the_aim_reaches_the_estimator():
    X, y = data()
    aim = Aim("binary", "f_beta", {"beta": 2}, "precision >= 0.3", None, 0, seed=7)
    for key in (BASELINE, "automatic", "boosting_metric"):
        model = fit_contestant(key, aim, X, y)
        params = model.get_params()
        assert (params["metric"], params["metric_options"], params["random_state"]) == ("f_beta", {"beta": 2}, 7)
        assert (model.pos_label_, params["subject_to"]) == (0, "precision >= 0.3")


def test_who_takes_part():
    chosen, left_out = choose_contestants("binary")
    assert [c.key for c in chosen] == list(DEFAULT)
    assert left_out == []
    chosen, left_out = choose_contestants("multilabel", without=["automatic"])
    assert [c.key for c in chosen] == ["cross_entropy", BASELINE, "metric", "cost_weighted"]
    assert len(left_out) == 3
    chosen, left_out = choose_contestants("binary", constrained=True, contestants=["metric"], extra=["boosting_tuned"])
    assert [c.key for c in chosen] == [BASELINE, "metric", "boosting_tuned"]
    chosen, left_out = choose_contestants("binary", constrained=True)
    assert [text.split(" ")[0] for text in left_out] == ["cross_entropy", "class_weighted"]


def test_what_is_missing_is_left_out_or_said(monkeypatch):
    monkeypatch.setattr("stepless.tabular.comparing.contestants.find_spec", lambda name: None)
    chosen, left_out = choose_contestants("binary")
    assert "boosting_tuned" not in [c.key for c in chosen]
    sentence = (
        'boosting_tuned was left out: boosting + tuned threshold needs lightgbm: pip install "stepless[lightgbm]"'
    )
    assert left_out[0] == sentence
    needed = r"SMOTE \+ cross-entropy needs imblearn: pip install \"stepless\[smote\]\""
    with pytest.raises(ModuleNotFoundError, match=needed):
        choose_contestants("binary", extra=["smote"])


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            {"contestants": ["xgb"]},
            ValueError,
            "unknown contestant 'xgb'; known are cross_entropy, cross_entropy_tuned",
        ),
        ({"contestants": "metric"}, TypeError, "take keys in a list; got the text 'metric'"),
        ({"without": [BASELINE]}, ValueError, "is what the others are compared with; it cannot be left out"),
        (
            {"contestants": ["cross_entropy"], "constrained": True},
            ValueError,
            "constraints are met by moving the thresh",
        ),
    ],
)
def test_bad_choices_are_sentences(arguments, error, said):
    with pytest.raises(error, match=said):
        choose_contestants("binary", **arguments)


def test_an_unknown_key_is_a_sentence():
    with pytest.raises(ValueError, match="unknown contestant 'nobody'"):
        fit_contestant("nobody", Aim("binary"), [[0.0]], [0])


@pytest.mark.parametrize("key", ["class_weighted", "smote"])
def test_a_score_of_rows_that_weigh_otherwise_or_were_made_up_is_not_told(key):
    if key == "smote":
        pytest.importorskip("imblearn")
    X, y = data("binary")
    fitted = fit_contestant(key, Aim("binary"), X, y)
    assert np.isnan(fitted.best_score_)
    assert fitted.model_.settings["score"] is None
