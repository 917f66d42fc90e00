"""Exported models run by onnxruntime, against the models themselves."""

import numpy as np
import onnxruntime

from stepless.tabular.export import to_onnx
from stepless.tabular.models.export_inputs import feed
from stepless.tabular.tables.frames import read_table
from tests.tabular.fitted import frame


def session_of(model, folder, threads=1):
    path = folder / "model.onnx"
    to_onnx(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(model, X, folder, tolerance=1e-12, threads=1):
    """Every label equal, every probability and decision to rounding; the labels."""
    table = read_table(X)
    session = session_of(model, folder, threads)
    assert [output.name for output in session.get_outputs()] == ["label", "probabilities", "decision"]
    label, probabilities, decision = session.run(None, feed(model.features, table))
    expected = model.labels(table)
    np.testing.assert_array_equal(label, expected)
    assert label.dtype.kind == expected.dtype.kind or expected.dtype.kind in "UT"
    assert probabilities.dtype == decision.dtype == np.float64
    np.testing.assert_allclose(probabilities, model.probabilities(table), rtol=0, atol=tolerance)
    np.testing.assert_allclose(decision, model.decision(table), rtol=0, atol=tolerance * 10)
    return label


def unlike(rows=10_000, seed=5):
    """Rows with what training rows had not: unseen and more missing values, far numbers."""
    X = frame(rows, seed)
    random = np.random.default_rng(seed)
    X.loc[random.random(rows) < 0.1, "age"] = np.nan
    X.loc[random.random(rows) < 0.01, "income"] = 1e300
    X["city"] = np.where(random.random(rows) < 0.2, "Paris", X["city"])
    return X
