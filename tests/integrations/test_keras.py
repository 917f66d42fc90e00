"""The Keras loss on each backend: a process each, because Keras settles the backend when it is imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("keras") is None:  # not importorskip: Keras's own default backend may not be there
    pytest.skip("Keras is not installed", allow_module_level=True)
AGREEMENT = Path(__file__).parents[1] / "keras_agreement.py"


def run(backend, *command):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )


@pytest.mark.parametrize(
    ("backend", "library"),
    [
        ("torch", "torch"),
        pytest.param("jax", "jax", marks=pytest.mark.full),
        pytest.param("numpy", "numpy", marks=pytest.mark.full),
        pytest.param("tensorflow", "tensorflow", marks=pytest.mark.full),
    ],
)
def test_the_loss_is_torchs(backend, library):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = run(backend, str(AGREEMENT))
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"all agree on {backend}" in done.stdout


ERRORS = """
import numpy as np, pytest
import stepless as sl
from stepless.integrations.keras import MetricLoss
def raises(sentence, *args, **settings):
    with pytest.raises((TypeError, ValueError), match=sentence):
        MetricLoss(*args, **settings).get_config()
raises("required keyword-only argument: 'from_logits'", "f1")
raises("from_logits must be True or False; got 'yes'", "f1", from_logits="yes")
raises("inputs is from_logits in Keras", "f1", from_logits=True, inputs="logits")
raises("reduction has no effect", "f1", from_logits=True, reduction="sum")
raises("'auroc' ranks samples, and its loss is for PyTorch alone", "auroc", from_logits=True)
raises("memory is a setting of stepless.MetricLoss, for PyTorch alone", "f1", from_logits=True, memory=sl.Memory())
def own(tp, fp, fn, tn):
    return tp / (tp + fp)
raises("the metric 'own' is a function; that is code, and a config cannot hold it", own, from_logits=True)
tuned = sl.tune_threshold(np.array([0.1, 0.4, 0.8]), np.array([0, 1, 1]), "f1", inputs="probabilities")
raises("a config cannot hold a Tuning", "f1", from_logits=True, threshold=tuned)
with pytest.raises(ValueError, match="target must have the input's shape"):
    MetricLoss("f1", from_logits=True)(np.zeros(3), np.zeros(4, np.float32))
"""


def test_errors_say_what_to_do():
    done = run("numpy", "-c", ERRORS)
    assert done.returncode == 0, done.stderr[-4000:]


def test_without_keras_the_fix_is_named():
    done = run("numpy", "-c", "import sys; sys.modules['keras'] = None\nimport stepless.integrations.keras")
    assert 'stepless.integrations.keras needs Keras 3: pip install "stepless[keras]"' in done.stderr


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_without_the_backend_another_is_named(backend):
    done = run(backend, "-c", f"import sys; sys.modules[{backend!r}] = None\nimport stepless.integrations.keras")
    said = done.stderr.splitlines()[-1]
    assert f"Keras is set to the backend {backend!r}, which is not installed" in said
    assert "set the environment variable KERAS_BACKEND=torch before Keras is imported" in said
    assert "During handling" not in done.stderr
