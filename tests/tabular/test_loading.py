"""Saving, loading and exporting fitted estimators: what comes back decides as what went away."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

import stepless as sl

QUICK = {"epochs": 4, "n_members": 2, "random_state": 0}
ROWS = 10_000


def quick(**settings):
    return sl.MetricClassifier(**{**QUICK, **settings})


def mixed(rows, seed=0):
    """Numbers with gaps, and text."""
    random = np.random.default_rng(seed)
    x, city = random.normal(size=rows), random.choice(["a", "b", "c", "ü"], rows).astype(object)
    y = np.where(x + (city == "b") + 0.3 * random.normal(size=rows) > 0.8, "yes", "no")
    x[random.random(rows) < 0.1] = np.nan
    city[random.random(rows) < 0.1] = None
    return pd.DataFrame({"x": x, "city": city, "n": random.integers(0, 5, rows)}), y


def task(name):
    """Training rows, target, and 10,000 rows to decide."""
    if name in ("mixed", "linear"):
        frame, y = mixed(600 + ROWS)
        if name == "linear":
            frame = frame.assign(city=len(frame) * [1.0])
        return frame[:600], y[:600], frame[600:]
    if name == "labels":
        X, y = make_multilabel_classification(600 + ROWS, 6, n_classes=3, random_state=0)
    else:
        count = 3 if name in ("classes", "names") else 2
        X, y = make_classification(600 + ROWS, 6, n_informative=4, n_classes=count, class_sep=0.6, random_state=0)
    if name == "names":
        y = np.array(["lo", "mid", "hi"])[y]
    if name == "gaps":
        X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    return X[:600], y[:600], X[600:]


KINDS = {
    "binary": {}, "classes": {"metric": "mcc"}, "labels": {"average": "micro"}, "names": {}, "gaps": {},
    "mixed": {"pos_label": "no"}, "linear": {"model": "linear", "threshold": "tuned"},
}  # fmt: skip


@pytest.fixture(scope="module", params=list(KINDS))
def fitted(request):
    X, y, rows = task(request.param)
    return quick(**KINDS[request.param]).fit(X, y), X, y, rows


def test_what_is_loaded_decides_as_what_was_saved(fitted, tmp_path):
    model, X, y, rows = fitted
    model.save(tmp_path / "model")
    again = sl.load(tmp_path / "model")
    assert type(again) is sl.MetricClassifier
    for method in ("predict", "predict_proba", "decision_function"):
        ours, theirs = getattr(model, method)(rows), getattr(again, method)(rows)
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert again.score(X, y) == model.score(X, y)
    assert again.best_score_ == model.best_score_
    assert again.get_params() == model.get_params()
    assert repr(again) == repr(model)
    np.testing.assert_array_equal(again.classes_, model.classes_)
    np.testing.assert_array_equal(again.best_threshold_, model.best_threshold_)


def test_what_was_loaded_or_pickled_saves_the_same(fitted, tmp_path):
    model, _, _, rows = fitted
    model.save(tmp_path / "first")
    sl.load(tmp_path / "first").save(tmp_path / "second")
    pickle.loads(pickle.dumps(sl.load(tmp_path / "second"))).save(tmp_path / "third")
    np.testing.assert_array_equal(sl.load(tmp_path / "third").predict_proba(rows), model.predict_proba(rows))


def test_onnx_decides_alike_on_every_row(fitted, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model, _, _, rows = fitted
    model.to_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    if isinstance(rows, pd.DataFrame):
        text = [model.model_.features.columns[i].to_json()["kind"] == "category" for i in range(rows.shape[1])]
        feed = {
            name: (rows[[name]].astype(object).where(rows[[name]].notna(), "").to_numpy() if is_text
                   else rows[[name]].to_numpy(np.float64))
            for name, is_text in zip(rows, text, strict=True)
        }  # fmt: skip
        if not any(text):
            feed = {"X": rows.to_numpy(np.float64)}
    else:
        feed = {"X": rows.astype(np.float64)}
    label, *_ = session.run(["label"], feed)
    np.testing.assert_array_equal(label, model.predict(rows))


# ---------------------------------------------------------------------------------------------------------------------
# What is not saved
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def binary():
    return make_classification(300, 5, random_state=0)


def test_a_metric_that_is_text_scores_and_one_that_is_code_says_so(binary, tmp_path):
    X, y = binary
    text = quick(metric="5*fn + fp", metric_options={"maximize": False}).fit(X, y)
    text.save(tmp_path / "text")
    assert sl.load(tmp_path / "text").score(X, y) == text.score(X, y)

    code = quick(metric=lambda tp, fp, fn, tn: tp / (tp + fp + fn)).fit(X, y)
    code.save(tmp_path / "code")
    again = sl.load(tmp_path / "code")
    np.testing.assert_array_equal(again.predict(X), code.predict(X))
    with pytest.raises(ValueError, match="was a function; that is code, and so it was not saved"):
        again.score(X, y)


def own(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def test_a_factory_is_brought_along(binary, tmp_path):
    X, y = binary
    model = quick(model=own).fit(X, y)
    model.save(tmp_path / "model")
    with pytest.raises(sl.ModelFileError, match=r"Pass it along: load\(path, model=factory\)"):
        sl.load(tmp_path / "model")
    again = sl.load(tmp_path / "model", model=own)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    again.save(tmp_path / "again")
    assert again.model is own
    quick().fit(X, y).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="come from no factory: model= has no effect; leave it out"):
        sl.load(tmp_path / "plain", model=own)


def test_a_loaded_model_does_not_go_on(binary, tmp_path):
    X, y = binary
    quick(warm_start=True).fit(X, y).save(tmp_path / "model")
    again = sl.load(tmp_path / "model")
    for call in (again.fit, again.partial_fit):
        with pytest.raises(ValueError, match="a loaded model has only those that predict"):
            call(X, y)
    again.set_params(warm_start=False).fit(X, y)


@pytest.mark.parametrize(
    "settings",
    [{"params": []}, {"params": {"metric_options": "ab"}}, {"params": {"metric_options": [1]}}, {"params": "x"}],
)
def test_settings_that_are_none(binary, tmp_path, settings):
    from dataclasses import replace

    from stepless.tabular.persist import save_model

    model = quick().fit(*binary).model_
    save_model(replace(model, settings=settings), tmp_path / "model")
    with pytest.raises(sl.ModelFileError, match="holds no estimator that works"):
        sl.load(tmp_path / "model")


def test_settings_that_nobody_knows(binary, tmp_path):
    from dataclasses import replace

    from stepless.tabular.persist import save_model

    X, y = binary
    model = quick().fit(X, y)
    for number, settings in enumerate(
        ({}, {"estimator": ["?"], "params": {"unknown": 1, "metric": "f1"}, "score": "?"})
    ):
        save_model(replace(model.model_, settings=settings), tmp_path / str(number))
        np.testing.assert_array_equal(sl.load(tmp_path / str(number)).predict(X), model.predict(X))


def test_a_damaged_folder(binary, tmp_path):
    quick().fit(*binary).save(tmp_path / "model")
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    document["threshold"] = 0.123
    (tmp_path / "model" / "model.json").write_text(json.dumps(document))
    with pytest.raises(sl.ModelFileError):
        sl.load(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(sl.ModelFileError, match="does not exist"):
        sl.load(tmp_path / "model")


# ---------------------------------------------------------------------------------------------------------------------
# TunedThreshold
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["binary", "classes", "labels", "mixed"])
def test_a_tuned_threshold_goes_with_its_model(kind, tmp_path):
    X, y, rows = task(kind)
    inner = quick(threshold="half", pos_label=KINDS[kind].get("pos_label"))
    model = sl.TunedThreshold(inner, metric="f_beta", metric_options={"beta": 2}, cv=2, nested=None,
                              pos_label=KINDS[kind].get("pos_label")).fit(X, y)  # fmt: skip
    model.save(tmp_path / "model")
    again = sl.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))
    assert again.score(X, y) == pytest.approx(model.score(X, y))
    assert again.metric == "f_beta"
    np.testing.assert_array_equal(again.best_threshold_, model.best_threshold_)


def test_a_tuned_booster_goes_with_its_model(binary, tmp_path):
    pytest.importorskip("lightgbm")
    X, y = binary
    booster = sl.MetricBooster(n_estimators=10, n_members=2, random_state=0, n_jobs=1)
    model = sl.TunedThreshold(booster, metric="mcc", cv=2, nested=None).fit(X, y)
    model.save(tmp_path / "model")
    again = sl.load(tmp_path / "model")
    assert type(again) is sl.MetricBooster
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.score(X, y) == pytest.approx(model.score(X, y))


def test_a_tuned_metric_that_is_code_says_so(binary, tmp_path):
    X, y = binary
    model = sl.TunedThreshold(quick(), metric=lambda tp, fp, fn, tn: tp - fp, cv=2, nested=None).fit(X, y)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="was a function"):
        sl.load(tmp_path / "model").score(X, y)


def test_what_a_tuned_threshold_cannot_save(binary, tmp_path):
    X, y = binary
    with pytest.raises(
        TypeError, match="save is for a tuned MetricClassifier or MetricBooster; this one tunes a Logist"
    ):
        sl.TunedThreshold(LogisticRegression()).fit(X, y).save(tmp_path / "model")
    with pytest.raises(TypeError, match="this one tunes a Pipeline"):
        sl.TunedThreshold(make_pipeline(quick()), cv=2).fit(X, y).save(tmp_path / "model")
    by_decision = sl.TunedThreshold(quick(), response_method="decision_function", cv=2, nested=None).fit(X, y)
    with pytest.raises(ValueError, match='Fit with response_method="predict_proba"'):
        by_decision.save(tmp_path / "model")
    other = sl.TunedThreshold(quick(), pos_label=0, cv=2, nested=None).fit(X, y)
    with pytest.raises(ValueError, match=r"it is 0 here and 1 for the MetricClassifier\. Give both the same pos_label"):
        other.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
