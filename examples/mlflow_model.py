"""A model in MLflow that serves with its threshold.

A classifier is fitted for F1 on an imbalanced table and logged with one line. The model that MLflow loads returns each
row's probability, the decision at the threshold that the classifier chose, and the label.
``stepless.integrations.mlflow.log`` logs the result of ``stepless.compare``, with its report.

Run it with ``python examples/mlflow_model.py``; it needs ``pip install "stepless[mlflow]"``.
"""

import os
import tempfile
from pathlib import Path

import mlflow
import pandas as pd
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

import stepless as sl
from stepless.integrations.mlflow import log_model


def main() -> None:
    """Fit, log, load back, predict."""
    X, y = make_classification(1500, 8, n_informative=5, weights=[0.9], flip_y=0.05, random_state=0)
    X = pd.DataFrame(X, columns=[f"feature {i}" for i in range(8)])
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    model = sl.MetricClassifier("f1", epochs=20, random_state=0).fit(X_train, y_train)

    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # plain files are enough for an example
        mlflow.set_tracking_uri((Path(folder) / "runs").as_uri())
        logged = log_model(model, input_example=X_test[:5])
        served = mlflow.pyfunc.load_model(logged.model_uri).predict(X_test)

    print(served.head().to_string())
    same = bool((served["label"] == model.predict(X_test)).all())
    threshold, probability = logged.metadata["threshold"], served["probability"].to_numpy()
    score = sl.score(probability, y_test, "f1", inputs="probabilities", threshold=threshold).item()
    print(f"threshold {threshold:.3f}, F1 on new rows {score:.3f}, same labels as the model: {same}")


if __name__ == "__main__":
    main()
