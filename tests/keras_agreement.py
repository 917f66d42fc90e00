"""Run with KERAS_BACKEND set: the Keras loss against torch's, a training, and a loss that is saved and loaded."""

import json
import math
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import torch
from keras.src import backend

import stepless as sl
from stepless.integrations.keras import MetricLoss

BACKEND = keras.backend.backend()
TASKS = ("binary", "multiclass", "multilabel")
N, K = 24, 4


def batch(task, pixels=()):
    rng = np.random.default_rng(0)
    shape = (N, *pixels) if task == "binary" else (N, *pixels, K)
    logits = rng.normal(size=shape).astype(np.float32)
    target = rng.integers(0, K, (N, *pixels)) if task == "multiclass" else rng.integers(0, 2, shape)
    return logits, target, rng.uniform(0.5, 2.0, N).astype(np.float32)


def gradient(loss_fn, logits, target, weight):
    if BACKEND == "torch":
        scores = torch.tensor(logits, requires_grad=True)
        loss_fn(target, scores, weight).backward()
        return scores.grad.numpy()
    if BACKEND == "tensorflow":
        import tensorflow

        scores = tensorflow.constant(logits)
        with tensorflow.GradientTape() as tape:
            tape.watch(scores)
            loss = loss_fn(target, scores, weight)
        return tape.gradient(loss, scores).numpy()
    import jax

    return np.asarray(jax.grad(lambda z: loss_fn(target, z, weight))(logits))


def of_torch(logits, target, weight, metric, **settings):
    scores = torch.tensor(logits, requires_grad=True)
    weight = None if weight is None else torch.tensor(weight)
    if logits.ndim > 2:
        moved = torch.tensor(target) if target.ndim < logits.ndim else torch.tensor(target).movedim(-1, 1)
        loss = sl.metric_loss(scores.movedim(-1, 1), moved, metric, sample_weight=weight, **settings)
    else:
        loss = sl.metric_loss(scores, torch.tensor(target), metric, sample_weight=weight, **settings)
    loss.backward()
    return loss.item(), scores.grad.numpy()


def agree(logits, target, weight, metric, *, slope=True, **settings):
    loss_fn = MetricLoss(metric, from_logits=True, **settings)
    expected, expected_slope = of_torch(logits, target, weight, metric, **settings)
    found = float(loss_fn(target, logits, weight))
    assert abs(found - expected) < 1e-6, (metric, settings, found, expected)
    if slope and BACKEND != "numpy":
        np.testing.assert_allclose(
            gradient(loss_fn, logits, target, weight),
            expected_slope,
            rtol=1e-5,
            atol=1e-6,
            err_msg=f"{metric} {settings}",
        )


def values_and_gradients():
    everywhere = BACKEND != "jax"  # which compiles each gradient, and takes its time
    for task in TASKS:
        data = batch(task)
        for metric in sl.METRICS:
            for step in sl.STEPS:
                if step != "hard":
                    agree(*data, metric, task=task, step=step, slope=everywhere or metric in ("f1", "cost"))
    logits, target, weight = batch("multiclass", pixels=(3, 2))
    agree(logits, target, weight, "jaccard", task="multiclass", per_image=True)
    agree(logits, target, None, "f1", task="multiclass", ignore_index=2, blend=0.3, slope=everywhere)
    agree(*batch("multilabel", pixels=(2,)), "f1", task="multilabel", average="micro", slope=everywhere)
    agree(*batch("multilabel"), "f1", task="multilabel", average="samples", threshold=[0.3, 0.5, 0.6, 0.2])
    for task in TASKS:
        logits, target, weight = batch(task)
        agree(logits, target, weight, "f1", task=task, overlap="min")
        agree(0 * logits, target, weight, "f1", task=task, blend=0.5)  # a last layer of zeros
    agree(*batch("binary")[:1], batch("binary")[2] / 2, None, "f1", overlap="min")  # targets between 0 and 1


def shapes():
    logits, target, weight = batch("binary")
    plain = float(MetricLoss("f1", from_logits=True)(target, logits, weight))
    for y, z in ((target[:, None], logits[:, None]), (target, logits[:, None]), (target[:, None], logits)):
        assert abs(float(MetricLoss("f1", from_logits=True)(y, z, weight)) - plain) < 1e-6
    probabilities = 1 / (1 + np.exp(-logits))
    assert abs(float(MetricLoss("f1", from_logits=False)(target, probabilities, weight)) - plain) < 1e-6
    logits, target, _ = batch("multiclass")
    loss_fn = MetricLoss("mcc", from_logits=True, task="multiclass")
    plain = float(loss_fn(target, logits))
    for y in (target[:, None], target.astype(np.float32), np.eye(K, dtype=int)[target]):
        assert abs(float(loss_fn(y, logits)) - plain) < 1e-6


def masks():
    logits, target, weight = batch("binary", pixels=(3,))
    kept = np.arange(3) < np.random.default_rng(1).integers(1, 4, (N, 1))
    loss_fn = MetricLoss("f1", from_logits=True)
    for given in (None, weight, np.repeat(weight[:, None], 3, 1)):
        each = np.broadcast_to(np.ones((N, 1)) if given is None else given.reshape(N, -1), kept.shape)[kept]
        expected = of_torch(logits[kept], target[kept], each.astype(np.float32), "f1")[0]
        for y, z in ((target, logits), (target[..., None], logits[..., None]), (target, logits[..., None])):
            scores = keras.ops.convert_to_tensor(z)
            backend.set_keras_mask(scores, keras.ops.convert_to_tensor(kept))  # as a layer does
            assert abs(float(loss_fn(y, scores, given)) - expected) < 1e-6, (given, z.shape)


def weights_of_pixels():
    logits, target, _ = batch("binary", pixels=(3, 2))
    weight = np.random.default_rng(1).uniform(0.5, 2.0, target.shape).astype(np.float32)
    expected = of_torch(logits.ravel(), target.ravel(), weight.ravel(), "f1")[0]
    for w in (weight, weight[..., None]):
        found = float(MetricLoss("f1", from_logits=True)(target[..., None], logits[..., None], w))
        assert abs(found - expected) < 1e-6


def masked_layers():
    """What Embedding masks, through a model: the loss is that of the steps that are left."""
    rng = np.random.default_rng(0)
    words, target = rng.integers(0, 4, (N, 5)), rng.integers(0, 2, (N, 5, 1))
    for task, units in (("binary", 1), ("multiclass", 3)):
        steps = keras.Input((5,), dtype="int32")
        scores = keras.layers.Dense(units)(keras.layers.Embedding(4, 2, mask_zero=True)(steps))
        model = keras.Model(steps, scores)
        model.compile(loss=MetricLoss("f1", from_logits=True, task=task))
        logits, kept = model.predict(words, verbose=0), words != 0
        rows = logits[kept][:, 0] if units == 1 else logits[kept]
        expected = of_torch(rows, target[kept][:, 0], None, "f1", task=task)[0]
        assert abs(model.evaluate(words, target, batch_size=N, verbose=0) - expected) < 1e-5, task


def partial_batches():
    """Batches of which the last is small: TensorFlow traces them without a size."""
    rng = np.random.default_rng(0)
    X, each = rng.normal(size=(N, 4, 4, 2)).astype(np.float32), rng.uniform(0.5, 2.0, N).astype(np.float32)
    pixels = rng.uniform(0.5, 2.0, (N, 4, 4)).astype(np.float32)
    for task, units, metric, settings, weight in (
        ("binary", 1, "f1", {}, each),
        ("binary", 1, "f1", {}, pixels),
        ("binary", 1, "f1", {"per_image": True}, None),
        ("binary", 1, "f1", {"per_image": True}, pixels),
        ("multiclass", K, "f1", {"per_image": True}, each),
        ("multiclass", K, "weighted_kappa", {"per_image": True}, pixels),
        ("multiclass", K, "f1", {"blend": 0.5}, pixels),
        ("multilabel", K, "f1", {}, each),
        ("multilabel", K, "f1", {"average": "samples"}, None),
        ("multilabel", K, "f1", {"average": "samples", "zero_division": math.nan}, each),
    ):
        shape = (N, 4, 4, K) if task == "multilabel" else (N, 4, 4)
        y = rng.integers(0, K if task == "multiclass" else 2, shape)
        model = keras.Sequential([keras.layers.Input(X.shape[1:]), keras.layers.Dense(units)])
        model.compile(keras.optimizers.SGD(0.0), loss=MetricLoss(metric, from_logits=True, task=task, **settings))
        found = model.fit(X, y, batch_size=10, shuffle=False, sample_weight=weight, verbose=0).history["loss"][0]
        scores, expected = model.predict(X, verbose=0), 0.0
        scores = scores[..., 0] if units == 1 else scores
        for rows in (slice(0, 10), slice(10, 20), slice(20, N)):
            given, moved = None if weight is None else torch.tensor(weight[rows]), task != "binary"
            z, t = (torch.tensor(part[rows]) for part in (scores, y))
            z, t = (z.movedim(-1, 1) if moved else z), (t.movedim(-1, 1) if task == "multilabel" else t)
            loss = sl.metric_loss(z, t, metric, task=task, sample_weight=given, **settings)
            expected += loss.item() * len(t) / N
        assert abs(found - expected) < 1e-5, (task, settings, found, expected)


def training():
    """A model that is compiled, fitted, saved and loaded with the loss inside."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(512, 5)).astype(np.float32)
    y = (X[:, 0] + 0.5 * X[:, 1] > 1.2).astype(np.float32)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.03), loss=MetricLoss("f1", from_logits=True, step=sl.Linear(delta=0.2)))
    history = model.fit(X, y, batch_size=128, epochs=15, verbose=0, class_weight={0: 1.0, 1: 2.0})
    first, last = history.history["loss"][0], history.history["loss"][-1]
    assert last < 0.5 * first, (first, last)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        again = keras.saving.load_model(Path(folder) / "model.keras")
    assert again.loss.get_config() == model.loss.get_config()
    assert abs(again.evaluate(X, y, verbose=0) - model.evaluate(X, y, verbose=0)) < 1e-6


def certainty():
    """Gradients stay finite where probabilities are small and their reciprocals too large for float32."""
    for margin in (45, 60, 80, 90, 96):
        logits, target, _ = batch("binary")
        for metric in ("f1", "precision", "p4"):
            loss_fn = MetricLoss(metric, from_logits=True)
            for truth in (target, 0 * target):
                assert np.isfinite(gradient(loss_fn, logits - margin, truth, None)).all(), (metric, margin)


def weights_of_any_size():
    """Scores in half precision, whose weights would be 0 or infinity there."""
    logits, target, _ = batch("binary")
    half = keras.ops.cast(logits, "float16")
    plain = float(MetricLoss("f1", from_logits=True)(target, half))
    for size in (1e-8, 1e5):
        weight = np.full(len(target), size, np.float32)
        assert abs(float(MetricLoss("f1", from_logits=True)(target, half, weight)) - plain) < 1e-3, size


def configs():
    logits, target, weight = batch("multilabel")
    for settings in (
        {"metric": "f_beta", "beta": 2.0, "threshold": np.array([0.3, 0.5, 0.6, 0.2]), "step": sl.Sigmoid(k=5)},
        {"metric": sl.METRICS["f_beta"].bind(beta=2.0), "step": "identity", "weight": (1, 2, 3, 4)},
        {"metric": "tp / (tp + fp + 2*fn)", "blend": 0.5},
        {"metric": "cost", "costs": [[0, 1], [5, 0]]},
    ):
        made = MetricLoss(from_logits=True, task="multilabel", **settings)
        config = json.loads(json.dumps(keras.losses.serialize(made)))
        again = keras.losses.deserialize(config)
        assert isinstance(again, MetricLoss)
        assert abs(float(again(target, logits, weight)) - float(made(target, logits, weight))) < 1e-7


if __name__ == "__main__":
    checks = [values_and_gradients, shapes, masks, weights_of_pixels, masked_layers, weights_of_any_size, configs]
    for check in checks if BACKEND == "numpy" else [*checks, certainty, partial_batches, training]:
        check()
    print(f"all agree on {BACKEND}", file=sys.stdout)
