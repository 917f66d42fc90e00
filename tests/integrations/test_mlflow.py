"""Comparisons and models in a real tracking store: what was logged is what comes back, and it decides alike."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_multilabel_classification

import stepless as sl
from tests.tabular.outcomes import make
from tests.tabular.quick import quick  # noqa: F401 - a fixture

mlflow = pytest.importorskip("mlflow")
pd = pytest.importorskip("pandas")

from stepless.integrations import mlflow as logging  # noqa: E402 - after importorskip
from stepless.tabular.comparing.contestants import Aim, fit_contestant  # noqa: E402 - after importorskip
from stepless.tabular.outcome import Outcome  # noqa: E402 - after importorskip


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


def table(task):
    if task == "multilabel":
        X, y = make_multilabel_classification(150, n_features=5, n_classes=3, random_state=0)
    else:
        classes = 3 if task == "multiclass" else 2
        X, y = make_classification(150, 5, n_informative=4, n_redundant=0, n_classes=classes, random_state=0)
        y = np.array(["a", "b", "c"])[y]
    return pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])]), y


@pytest.fixture(scope="module")
def fitted():
    made = {}
    for task in ("binary", "multiclass", "multilabel"):
        X, y = table(task)
        made[task] = (sl.MetricClassifier("f1", epochs=3, random_state=0).fit(X, y), X)
    return made


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_a_model_serves_with_its_threshold(store, fitted, task):
    model, X = fitted[task]
    info = logging.log_model(model, input_example=X[:5])
    again = mlflow.pyfunc.load_model(info.model_uri)
    served = again.predict(X)
    probabilities, labels = model.predict_proba(X), model.predict(X)
    assert list(served.index) == list(X.index)
    if task == "binary":
        assert list(served) == ["probability", "decision", "label"]
        positive = probabilities[:, list(model.classes_).index(model.pos_label_)]
        np.testing.assert_array_equal(served["probability"], positive)
        np.testing.assert_array_equal(served["decision"], positive >= model.best_threshold_)
        np.testing.assert_array_equal(served["label"], labels)
    elif task == "multiclass":
        np.testing.assert_array_equal(served[["probability.a", "probability.b", "probability.c"]], probabilities)
        np.testing.assert_array_equal(served["label"], labels)
        np.testing.assert_array_equal(np.array(["a", "b", "c"])[served["decision"]], labels)
    else:
        np.testing.assert_array_equal(served[[f"probability.{i}" for i in range(3)]], probabilities)
        np.testing.assert_array_equal(served[[f"label.{i}" for i in range(3)]], labels)
        np.testing.assert_array_equal(served[[f"decision.{i}" for i in range(3)]], labels == 1)
    assert info.metadata["threshold"] == (
        model.best_threshold_ if task == "binary" else pytest.approx(list(model.best_threshold_))
    )
    assert [column.name for column in again.metadata.signature.inputs] == list(X)
    assert store.get_run(info.run_id).info.status == "FINISHED"


def test_the_folder_of_a_model(store, fitted, tmp_path):
    model, X = fitted["binary"]
    model.save(tmp_path / "own")
    logging.save_model(tmp_path / "own", tmp_path / "served")
    again = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    np.testing.assert_array_equal(again.predict(X)["label"], model.predict(X))
    np.testing.assert_array_equal(again.predict(X[:3].to_numpy())["label"], model.predict(X)[:3])
    assert not [*(tmp_path / "served").rglob("*.pkl")], "nothing in it can run code"
    kinds = {member.kind for member in model.model_.members} & {"lightgbm", "xgboost", "catboost"}
    extras = ",".join(sorted({"mlflow", "sklearn", *kinds}))
    assert f"stepless[{extras}]=={sl.__version__}" in (tmp_path / "served" / "requirements.txt").read_text()
    with pytest.raises(ValueError, match="a model decides at its own threshold and takes no parameters; got threshold"):
        logging.Served(model).predict(X, {"threshold": 0.1})


def test_one_line_logs_a_comparison_and_a_model(store, fitted, tmp_path):
    model, X = fitted["binary"]
    outcome = make()
    run = store.get_run(logging.log(outcome, model, name="shipped"))
    assert run.info.status == "FINISHED"
    assert mlflow.active_run() is None
    assert run.data.params["metric"] == "f1"
    assert run.data.params["winner"] == outcome.winner
    assert run.data.tags["stepless.verdict"] == outcome.verdict
    for entry in outcome.entries:
        assert run.data.metrics[f"{entry.key}/mean"] == pytest.approx(entry.mean)
        history = store.get_metric_history(run.info.run_id, f"{entry.key}/score")
        by_step = {
            measured.step: measured.value for measured in history
        }  # MLflow notes the last once more, of the model
        assert [by_step[step] for step in range(len(by_step))] == pytest.approx(entry.scores)
    assert {file.path for file in store.list_artifacts(run.info.run_id)} >= {"report.html", "comparison.json"}
    held = mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="comparison.json", dst_path=tmp_path
    )
    assert json.dumps(Outcome.from_json(held).to_dict()) == json.dumps(outcome.to_dict())
    again = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/shipped")
    np.testing.assert_array_equal(again.predict(X)["label"], model.predict(X))


@pytest.mark.usefixtures("quick")
def test_a_comparison_that_was_run_and_the_model_that_it_chose(store, tmp_path):
    X, y = table("binary")
    outcome = sl.compare(
        X, y, "f1", contestants=["cross_entropy_tuned", "metric", "boosting_tuned"], folds=3, repeats=1
    )
    model = fit_contestant(outcome.winner, Aim("binary", seed=1), X, y)
    run = store.get_run(logging.log(outcome, model, input_example=X[:3]))
    assert run.data.params["winner"] == outcome.winner
    assert run.data.params["n_rows"] == str(len(X))
    assert run.data.tags["stepless.verdict"] == outcome.verdict
    for entry in outcome.entries:
        logged = {name: run.data.metrics[f"{entry.key}/{name}"] for name in ("mean", "low", "high", "threshold")}
        assert logged == pytest.approx(
            dict(zip(logged, (entry.mean, *entry.interval, entry.threshold), strict=True)), rel=1e-12
        )
        assert logged["low"] <= logged["mean"] <= logged["high"]
        history = store.get_metric_history(run.info.run_id, f"{entry.key}/score")
        assert dict(sorted((measured.step, measured.value) for measured in history)) == dict(enumerate(entry.scores))
    held = mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="comparison.json", dst_path=tmp_path
    )
    assert Outcome.from_json(held).table == outcome.table
    again = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    served = again.predict(X)
    np.testing.assert_array_equal(served["label"], model.predict(X))
    np.testing.assert_array_equal(served["decision"], served["probability"] >= model.best_threshold_)
    assert again.metadata.metadata["threshold"] == model.best_threshold_ != 0.5


def test_the_active_run_is_used_and_stays_open(store):
    with mlflow.start_run() as run:
        assert logging.log(make("multiclass", contestants=3)) == run.info.run_id
        assert mlflow.active_run().info.run_id == run.info.run_id


def test_the_active_run_may_have_params_of_its_own(store):
    outcome = make()
    with mlflow.start_run():
        mlflow.log_params({"learning_rate": 1, "seed": "mine"})
        with pytest.raises(ValueError, match="the active run has other values already for seed, of another comparison"):
            logging.log(outcome)
        with mlflow.start_run(nested=True):
            logging.log(outcome)
            logging.log(outcome)  # the same once more is no contradiction


def test_a_contestant_that_failed_is_a_tag(store):
    outcome = make()
    broken = replace(
        outcome.entries[-1], failed="it needs lightgbm", scores=(), mean=float("nan"), threshold=None, difference=None
    )
    run = store.get_run(logging.log(replace(outcome, entries=(*outcome.entries[:-1], broken))))
    assert run.data.tags[f"stepless.failed.{broken.key}"] == "it needs lightgbm"
    assert f"{broken.key}/mean" not in run.data.metrics


def test_what_is_no_model_says_so(store, tmp_path):
    with pytest.raises(
        TypeError, match="model must be a fitted MetricClassifier or MetricBooster, a TunedThreshold of"
    ):
        logging.log_model(sl.MetricClassifier())
    X, y = table("binary")
    made = sl.MetricClassifier("f1", model=torch.nn.Linear, epochs=1, random_state=0).fit(X, y)
    with pytest.raises(TypeError, match="the networks of this model come from a factory, which is code: nothing that"):
        logging.log_model(made)
    with pytest.raises(sl.ModelFileError):
        logging.log_model(tmp_path / "nothing")
    assert not store.search_runs(["0"]), "nothing was logged"


def test_without_mlflow_the_fix_is_named():
    code = "import sys; sys.modules['mlflow'] = None\nimport stepless.integrations.mlflow"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'stepless.integrations.mlflow needs MLflow and pandas: pip install "stepless[mlflow]"' in done.stderr


@pytest.mark.usefixtures("store")
def test_categories_are_served_as_what_they_are_categories_of():
    X, y = table("binary")
    X["kind"] = pd.Categorical(np.where(np.arange(len(X)) % 3 == 0, "red", "blue"))
    model = sl.MetricClassifier("f1", epochs=2, random_state=0).fit(X, y)
    again = mlflow.pyfunc.load_model(logging.log_model(model, input_example=X[:5]).model_uri)
    for rows in (X, X.astype({"kind": object})):
        np.testing.assert_array_equal(again.predict(rows)["label"], model.predict(X))


@pytest.mark.usefixtures("store")
def test_what_is_missing_in_an_example_may_be_missing():
    X, y = table("binary")
    place = np.arange(len(X)) % 3
    X["category"] = pd.Categorical(place)
    X["whole"] = pd.array(place, "Int64")
    X["said"] = pd.array(place == 0, "boolean")
    X["large"] = place.astype(np.uint64)  # which MLflow has no type for
    X.loc[2, ["category", "whole", "said"]] = None
    model = sl.MetricClassifier("f1", epochs=2, random_state=0).fit(X, y)
    again = mlflow.pyfunc.load_model(logging.log_model(model, input_example=X[:5]).model_uri)
    np.testing.assert_array_equal(again.predict(X)["label"], model.predict(X))


@pytest.mark.usefixtures("store")
def test_rows_without_a_table(fitted):
    model, X = fitted["binary"]
    again = mlflow.pyfunc.load_model(logging.log_model(model).model_uri)
    assert again.predict(X.iloc[0].to_dict())["label"].tolist() == [model.predict(X)[0]]
    plain = sl.MetricClassifier("f1", epochs=2, random_state=0).fit(X.to_numpy(), table("binary")[1])
    again = mlflow.pyfunc.load_model(logging.log_model(plain).model_uri)
    np.testing.assert_array_equal(again.predict(X.to_numpy().tolist())["label"], plain.predict(X.to_numpy()))


@pytest.mark.usefixtures("store")
def test_a_tuned_threshold_is_served():
    X, y = table("binary")
    net = sl.MetricClassifier("f1", epochs=2, pos_label="a", random_state=0)
    tuned = sl.TunedThreshold(net, metric="recall", pos_label="a").fit(X, y)
    info = logging.log_model(tuned)
    assert info.metadata["threshold"] == tuned.best_threshold_ != tuned.estimator_.best_threshold_
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(info.model_uri).predict(X)["label"], tuned.predict(X))


@pytest.mark.usefixtures("store")
def test_options_are_mlflows(fitted, tmp_path):
    model, X = fitted["binary"]
    info = logging.log_model(model, metadata={"team": "ours"}, registered_model_name="shipped")
    assert info.metadata == {"team": "ours", "task": "binary", "metric": "f1", "threshold": model.best_threshold_}
    again = mlflow.pyfunc.load_model("models:/shipped/1")
    np.testing.assert_array_equal(again.predict(X)["label"], model.predict(X))
    logging.save_model(model, tmp_path / "more", extra_pip_requirements=["numpy"])
    ours, more = (tmp_path / "more" / "requirements.txt").read_text().split()[-2:]
    assert ours.startswith("stepless[")
    assert more == "numpy"
    logging.save_model(model, tmp_path / "own", pip_requirements=["./stepless.whl"], input_example=X[:2])
    assert "stepless[" not in (tmp_path / "own" / "requirements.txt").read_text()


@pytest.mark.usefixtures("store")
def test_rows_of_polars_are_an_example():
    polars = pytest.importorskip("polars")
    X, y = table("binary")
    rows = polars.DataFrame({name: X[name].to_numpy() for name in X})
    model = sl.MetricClassifier("f1", epochs=2, random_state=0).fit(rows, y)
    again = mlflow.pyfunc.load_model(logging.log_model(model, input_example=rows[:5]).model_uri)
    np.testing.assert_array_equal(again.predict(X)["label"], model.predict(rows))
