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
with pytest.raises(ValueError, match="axis must be one of the 2 axes of the scores, but not the samples' own; got 0"):
    MetricLoss("f1", from_logits=True, task="multiclass", axis=0)(np.zeros(4, int), np.zeros((4, 4), np.float32))
"""


def test_errors_say_what_to_do():
    done = run("numpy", "-c", ERRORS)
    assert done.returncode == 0, done.stderr[-4000:]


REPLICAS = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from stepless.integrations.keras import MetricLoss
X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
y = (X[:, 0] > 0.8).astype(np.float32)
loss_fn = MetricLoss("f1", from_logits=True)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), loss=loss_fn)
kernel, bias = (tf.constant(values) for values in model.get_weights())
with tf.GradientTape() as tape:
    tape.watch(kernel)
    halves = [loss_fn(y[rows], X[rows] @ kernel + bias) for rows in (slice(0, 32), slice(32, 64))]
    mean = (halves[0] + halves[1]) / 2
found = model.fit(X, y, batch_size=64, shuffle=False, verbose=0).history["loss"][0]
assert abs(found - float(mean)) < 1e-6, (found, float(mean))
np.testing.assert_allclose(kernel - model.get_weights()[0], tape.gradient(mean, kernel), rtol=1e-4, atol=1e-6)
"""


@pytest.mark.full
def test_replicas_have_the_mean_of_their_losses():
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    done = run("tensorflow", "-c", REPLICAS)
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
