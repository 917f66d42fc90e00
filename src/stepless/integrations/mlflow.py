"""MLflow: a comparison as a run, and a model that serves with its threshold.

A logged model is the folder that `MetricClassifier.save` writes, which holds no code and no pickle. MLflow loads it
with this module.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepless.extras import needs

with needs("stepless.integrations.mlflow needs MLflow and pandas", "mlflow", "mlflow", "pandas"):
    import mlflow
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.types.schema import AnyType, ColSpec, DataType, Schema

# After MLflow, so that the first missing package names the extra that brings all of them
with needs("stepless.integrations.mlflow needs stepless-tabular", "mlflow", "stepless.tabular"):
    from stepless.tabular.loading import load
    from stepless.tabular.models.model import library_versions

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo

    from stepless.tabular.outcome import Entry, Outcome

#: MLflow's limits, in characters.
_LONGEST_PARAM, _LONGEST_TAG = 6000, 8000
_PARAMS = ("name", "metric", "task", "n_rows", "folds", "repeats", "seed", "baseline", "rope", "winner")
_OPTIONAL = ("average", "subject_to", "positive")


def log(outcome: Outcome, model: Any = None, *, name: str = "model", **options: Any) -> str:
    """Log a comparison, and optionally a model, to the active run or a new one.

    Parameters say what was compared. Each contestant has its metrics, ``<contestant>/mean`` and so on, and its score on
    every fold as the steps of ``<contestant>/score``. The verdict is a tag. The artefacts are ``report.html`` and
    ``comparison.json``, which `stepless.Outcome.from_json` reads.

    Args:
        outcome: The result of `stepless.compare`.
        model: A model to log too: see `log_model`.
        name: Name of the model.
        options: Passed to `log_model`.

    Returns:
        The id of the run.
    """
    with _run() as run:
        params = {field: getattr(outcome, field) for field in _PARAMS}
        params |= {field: getattr(outcome, field) for field in _OPTIONAL if getattr(outcome, field) is not None}
        params |= {f"metric.{option}": value for option, value in outcome.metric_options.items()}
        texts = {field: str(value)[:_LONGEST_PARAM] for field, value in params.items()}
        logged = mlflow.get_run(run.info.run_id).data.params
        if other := [field for field, text in texts.items() if logged.get(field, text) != text]:
            raise ValueError(
                f"the active run has other values already for {', '.join(other)}, of another comparison or of your own,"
                " and MLflow changes no param; end it, or log this one in mlflow.start_run(nested=True)."
            )
        mlflow.log_params(texts)
        mlflow.set_tags(
            {"stepless.verdict": outcome.verdict[:_LONGEST_TAG], "stepless.version": library_versions()["stepless"]}
        )
        for entry in outcome.entries:
            _log_entry(entry)
        with tempfile.TemporaryDirectory() as folder:
            outcome.to_html(Path(folder) / "report.html")
            outcome.to_json(Path(folder) / "comparison.json")
            mlflow.log_artifacts(folder)
        if model is not None:
            log_model(model, name, **options)
        return str(run.info.run_id)


def log_model(model: Any, name: str = "model", *, input_example: Any = None, **options: Any) -> ModelInfo:
    """Log a fitted model with its threshold, calibration and labels, so that MLflow can serve it.

    For each row, the served model returns the probability, the decision at its own threshold, and the label.

    Args:
        model: A fitted `stepless.MetricClassifier` or `stepless.MetricBooster`, a `stepless.TunedThreshold` of one, or
            the folder of a saved one.
        name: Name of the model.
        input_example: A few rows, from which MLflow also reads the columns and their types.
        options: Passed to ``mlflow.pyfunc.log_model``, such as ``registered_model_name`` or ``metadata``.
    """
    with _folder(model) as folder, _run():
        return mlflow.pyfunc.log_model(name=name, **_flavour(folder, input_example, options))


def save_model(model: Any, path: str | os.PathLike[str], *, input_example: Any = None, **options: Any) -> None:
    """Do what `log_model` does, but write to a folder instead of a run.

    Args:
        model: As for `log_model`.
        path: The folder, which must not exist yet.
        input_example: As for `log_model`.
        options: Passed to ``mlflow.pyfunc.save_model``.
    """
    with _folder(model) as folder:
        mlflow.pyfunc.save_model(path, **_flavour(folder, input_example, options))


class Served:
    """A loaded model, as MLflow calls it.

    Args:
        estimator: The fitted estimator.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return one row for each row of the input.

        Binary: ``probability`` of the positive class, ``decision`` (whether it is at least the threshold) and
        ``label``. Multiclass: ``probability.<class>`` of each class, ``decision`` (the index of the class) and
        ``label``. Multilabel: ``probability.<label>``, ``decision.<label>`` and ``label.<label>``, which is 0 or 1.

        Args:
            model_input: The rows.
            params: Must be empty, because the threshold is the model's own.
        """
        if params:
            raise ValueError(f"a model decides at its own threshold and takes no parameters; got {', '.join(params)}.")
        estimator, model = self.estimator, self.estimator.model_
        if isinstance(model_input, dict | list) and model.features.names is not None:
            one = isinstance(model_input, dict) and not any(map(pd.api.types.is_list_like, model_input.values()))
            model_input = pd.DataFrame([model_input] if one else model_input)
        probabilities = estimator.predict_proba(model_input)
        decided = model.decide_of(model.decision_of(probabilities))
        labels = model.labels_of(decided)
        if model.task == "binary":
            columns = {"probability": probabilities[:, model.positive], "decision": decided, "label": labels}
        else:
            columns = {f"probability.{c}": p for c, p in zip(model.classes, probabilities.T, strict=True)}
            if model.task == "multiclass":
                columns |= {"decision": decided, "label": labels}
            else:
                columns |= {f"decision.{c}": d for c, d in zip(model.classes, decided.T, strict=True)}
                columns |= {f"label.{c}": value for c, value in zip(model.classes, labels.T, strict=True)}
        return pd.DataFrame(columns, index=model_input.index if isinstance(model_input, pd.DataFrame) else None)


def _load_pyfunc(path: str) -> Served:
    """Load a logged model. Called by MLflow; an incomplete folder raises a `stepless.ModelFileError`."""
    return Served(load(path))


def _log_entry(entry: Entry) -> None:
    key = entry.key
    if entry.failed is not None:
        mlflow.set_tag(f"stepless.failed.{key}", entry.failed[:_LONGEST_TAG])
        return
    numbers = {
        "mean": entry.mean, "low": entry.interval[0], "high": entry.interval[1], "fit_seconds": entry.fit_seconds,
    }  # fmt: skip
    if isinstance(entry.threshold, float):
        numbers["threshold"] = entry.threshold
    if entry.difference is not None:
        numbers |= {"difference": entry.difference.mean, "better": entry.difference.better}
    mlflow.log_metrics({f"{key}/{what}": value for what, value in numbers.items() if math.isfinite(value)})
    for step, score in enumerate(entry.scores):
        if math.isfinite(score):
            mlflow.log_metric(f"{key}/score", score, step=step)


@contextmanager
def _run() -> Iterator[Any]:
    """Yield the active run, which stays open, or a new one, which is ended."""
    active = mlflow.active_run()
    if active is not None:
        yield active
        return
    with mlflow.start_run() as run:
        yield run


@contextmanager
def _folder(model: Any) -> Iterator[str]:
    """Yield the folder of a model, saved to a temporary place unless it is one already."""
    if isinstance(model, str | os.PathLike):
        load(model)  # raises if the folder is not a model
        yield os.fspath(model)
        return
    fitted = getattr(model, "model_", None) or getattr(getattr(model, "estimator_", None), "model_", None)
    if not hasattr(model, "save") or fitted is None:
        raise TypeError(
            "model must be a fitted MetricClassifier or MetricBooster, a TunedThreshold of one, or the folder of a"
            f" saved one; got {type(model).__name__}."
        )
    if any(member.kind == "factory" for member in fitted.members):
        raise TypeError(
            "the networks of this model come from a factory, which is code: nothing that MLflow loads by itself can"
            " hold it. Log a model that was fitted without model=."
        )
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "stepless_model")
        model.save(folder)
        yield folder


def _flavour(folder: str, input_example: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for MLflow's save_model and log_model; the user's options take precedence."""
    estimator = load(folder)
    model = estimator.model_
    kinds = {member.kind for member in model.members}
    extras = ",".join(["mlflow", "sklearn", *sorted(kinds & {"lightgbm", "xgboost", "catboost"})])
    threshold = list(model.threshold) if isinstance(model.threshold, tuple) else model.threshold
    metadata = {"task": model.task, "metric": model.metric, "threshold": threshold}
    flavour: dict[str, Any] = {"loader_module": __name__, "data_path": folder}
    if not {"conda_env", "pip_requirements"} & options.keys():
        more = options.pop("extra_pip_requirements", None) or []  # MLflow takes them only without pip_requirements
        more = [f"-r {more}"] if isinstance(more, str) else more
        flavour["pip_requirements"] = [f"stepless[{extras}]=={library_versions()['stepless']}", *more]
    if input_example is not None:
        if type(input_example).__module__.startswith("polars"):  # MLflow does not read polars
            input_example = pd.DataFrame(input_example.to_dict(as_series=False))
        flavour["input_example"] = _plain(input_example)
        if "signature" not in options:
            flavour["signature"] = _signature(input_example, Served(estimator).predict(input_example))
    return flavour | options | {"metadata": (options.get("metadata") or {}) | metadata}


def _untyped(rows: Any) -> list[Any]:
    """Return the columns whose types MLflow does not have."""
    return list(rows.select_dtypes(["category", "uint64"])) if isinstance(rows, pd.DataFrame) else []


def _plain(rows: Any) -> Any:
    return rows.astype(dict.fromkeys(untyped, object)) if (untyped := _untyped(rows)) else rows


def _signature(rows: Any, predicted: pd.DataFrame) -> Any:
    """Infer the columns and their types, with any type where MLflow has none or would refuse valid rows."""
    signature = mlflow.models.infer_signature(_plain(rows), predicted)
    if isinstance(rows, pd.DataFrame):
        untyped, anything = _untyped(rows), AnyType()  # type: ignore[no-untyped-call]
        whole = (DataType.integer, DataType.long, DataType.boolean)  # MLflow refuses missing values in these
        signature.inputs = Schema([
            ColSpec(anything, column.name)
            if column.name in untyped or (column.type in whole and not column.required) else column
            for column in signature.inputs.inputs
        ])  # fmt: skip
    return signature
