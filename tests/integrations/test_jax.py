"""The JAX loss is torch's: the same value and gradient for every metric, task and step of the registries."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import stepless as sl

jax = pytest.importorskip("jax")
jnp = jax.numpy

from stepless.integrations.arrays import TORCH_ONLY, ArrayLoss, array_loss  # noqa: E402 - after importorskip
from stepless.integrations.jax import metric_loss  # noqa: E402 - after importorskip

TASKS = ("binary", "multiclass", "multilabel")
STEPS = [name for name in sl.STEPS if name != "hard"]
N, K = 24, 4
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
#: Compiled for few calls.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


def batch(task, seed=0, dtype=np.float64, pixels=()):
    """Scores with the classes second, targets and weights."""
    rng = np.random.default_rng(seed)
    shape = (N, *pixels) if task == "binary" else (N, K, *pixels)
    logits = rng.normal(size=shape).astype(dtype)
    target = rng.integers(0, K, (N, *pixels)) if task == "multiclass" else rng.integers(0, 2, shape)
    return logits, target, rng.uniform(0.5, 2.0, N).astype(dtype)


def of_torch(logits, target, metric, sample_weight=None, **settings):
    """Value and gradient, from the plain path and so with no fused twin between."""
    scores = torch.tensor(logits, requires_grad=True)
    weight = None if sample_weight is None else torch.tensor(sample_weight)
    loss = sl.metric_loss(scores, torch.tensor(target), metric, sample_weight=weight, **settings)
    loss.backward()
    return loss.item(), scores.grad.numpy()


def of_jax(logits, target, metric, **settings):
    value, gradient = jax.value_and_grad(lambda z: metric_loss(z, target, metric, axis=1, **settings))(logits)
    return float(value), np.asarray(gradient)


def assert_same(logits, target, metric, **settings):
    for ours, theirs in zip(
        of_jax(logits, target, metric, **settings), of_torch(logits, target, metric, **settings), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("task", TASKS)
def test_gradients_are_finite_on_the_way_to_certainty(task):
    """JAX's own derivative of a quotient squares the denominator, which float32 cannot hold from 1e-20 down."""
    logits, target, _ = batch(task, dtype=np.float32)
    margins = np.arange(30, 110, 4)
    down = (np.arange(K) == K - 1) * 1.0 if task == "multiclass" else np.ones(1)

    def losses(z):
        return jnp.stack([metric_loss(z, truth, m, task=task) for m in sl.METRICS for truth in (target, 0 * target)])

    scores = jnp.stack([(logits - margin * down).astype(np.float32) for margin in margins])
    gradients = jax.jit(jax.vmap(jax.jacrev(losses)), compiler_options=QUICK)(scores)
    assert jnp.isfinite(gradients).all()


def assert_all_same(metrics, task, step, *, mixed):
    """Values and gradients of many metrics, compiled together; ``mixed``: one sum of the gradients, at odd shares."""
    logits, target, weight = batch(task)
    settings = {"task": task, "step": step, "sample_weight": weight}
    shares = np.random.default_rng(3).uniform(0.5, 1.5, (1, len(metrics))) if mixed else np.eye(len(metrics))

    def losses(z):
        return jnp.stack([metric_loss(z, target, metric, **settings) for metric in metrics])

    def pulled_back(z):
        values, pull = jax.vjp(losses, z)
        return values, pull(shares[0])[0][None] if mixed else jax.vmap(pull)(shares)[0]

    values, gradients = jax.jit(pulled_back, compiler_options=QUICK)(logits)
    expected = [of_torch(logits, target, metric, **settings) for metric in metrics]
    np.testing.assert_allclose(values, [value for value, _ in expected], **TOLERANCE)
    slopes = np.tensordot(shares, np.stack([slope for _, slope in expected]), 1)
    np.testing.assert_allclose(gradients, slopes, **TOLERANCE)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("task", TASKS)
def test_every_metric_is_torchs(task):
    assert_all_same(list(sl.METRICS), task, "linear", mixed=True)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("task", TASKS)
def test_every_step_is_torchs(task):
    for step in STEPS:
        assert_all_same(["f1", "mcc", "weighted_kappa"], task, step, mixed=True)


@pytest.mark.full
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("step", STEPS)
def test_every_metric_with_every_step_is_torchs(task, step):
    assert_all_same(list(sl.METRICS), task, step, mixed=False)


SETTINGS = [
    ("multiclass", {"average": "micro"}),
    ("multiclass", {"average": "weighted"}),
    ("multiclass", {"threshold": [0.5, -0.2, 0.0, 0.1]}),
    ("multiclass", {"weight": [1.0, 2.0, 0.5, 3.0]}),
    ("multiclass", {"ignore_index": 2}),
    ("multiclass", {"blend": 0.3}),
    ("multiclass", {"blend": 0.3, "cross_entropy": "balanced"}),
    ("multiclass", {"zero_division": float("nan")}),
    ("multilabel", {"average": "micro"}),
    ("multilabel", {"average": "weighted"}),
    ("multilabel", {"average": "samples"}),
    ("multilabel", {"weight": [1.0, 2.0, 0.5, 3.0]}),
    ("multilabel", {"threshold": [0.3, 0.5, 0.6, 0.2]}),
    ("multilabel", {"threshold": [[0.3], [0.6]]}),
    ("multilabel", {"blend": 0.3, "cross_entropy": "balanced"}),
    ("binary", {"threshold": 0.3}),
    ("binary", {"threshold": (0.2, 0.5, 0.7)}),
    ("binary", {"ignore_index": 0}),
    ("binary", {"blend": 0.3}),
    ("binary", {"step": sl.Sigmoid(k=3)}),
]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.full), True])
@pytest.mark.parametrize(("task", "settings"), SETTINGS, ids=str)
def test_every_setting_is_torchs(task, settings, weighted):
    logits, target, weight = batch(task)
    assert_same(logits, target, "f1", task=task, sample_weight=weight if weighted else None, **settings)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("per_image", [False, True])
def test_pixels_are_torchs(task, per_image):
    logits, target, weight = batch(task, pixels=(3, 2))
    assert_same(logits, target, "jaccard", task=task, per_image=per_image, sample_weight=weight)
    if task != "binary":  # the classes last, as flax has them
        last = target if task == "multiclass" else np.moveaxis(target, 1, -1)
        ours = metric_loss(np.moveaxis(logits, 1, -1), last, "jaccard", task=task, per_image=per_image)
        expected, _ = of_torch(logits, target, "jaccard", task=task, per_image=per_image)
        assert float(ours) == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("overlap", ["expected", "min"])
@pytest.mark.parametrize(
    "step", [s if s == "logit_sigmoid" else pytest.param(s, marks=pytest.mark.full) for s in STEPS]
)
def test_probabilities_and_soft_targets_are_torchs(task, overlap, step):
    logits, _, weight = batch(task)
    soft = torch.tensor(batch(task, seed=1)[0])
    if task == "multiclass":
        p, soft = torch.tensor(logits).softmax(1).numpy(), soft.softmax(1).numpy()
    else:
        p, soft = torch.tensor(logits).sigmoid().numpy(), soft.sigmoid().numpy()
        p.flat[:2] = 0.0, 1.0
    assert_same(
        p, soft, "f1", task=task, overlap=overlap, step=step, inputs="probabilities", sample_weight=weight, blend=0.2
    )


@pytest.mark.parametrize("task", TASKS)
def test_single_precision(task):
    logits, target, weight = batch(task, dtype=np.float32)
    assert_same(logits, target, "f1", task=task, sample_weight=weight)
    assert metric_loss(jnp.asarray(logits, jnp.bfloat16), target, "f1", task=task).dtype == jnp.float32


@pytest.mark.parametrize("task", TASKS)
def test_far_out_scores_have_finite_gradients(task):
    logits, target, _ = batch(task, dtype=np.float32)

    def losses(z):
        return jnp.stack([metric_loss(z, target, "mcc", task=task, step=step) for step in STEPS])

    for factor in (1e4, 0.0):
        assert np.isfinite(jax.jacrev(losses)(logits * np.float32(factor))).all()


def test_formulas():
    logits, target, _ = batch("binary", dtype=np.float32)
    for formula in ("5*fn + fp", lambda tp, fp, fn, tn: sl.root(tp / (tp + fp)) + abs(fn) / 3):
        assert_same(logits, target, formula, maximize=False)


def test_transformations():
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(5, N, K)).astype(np.float32), rng.integers(0, K, (5, N))

    def loss(z, y):
        return metric_loss(z, y, "mcc", task="multiclass")

    one_by_one = [loss(z, y) for z, y in zip(logits, targets, strict=True)]
    np.testing.assert_allclose(jax.vmap(loss)(logits, targets), one_by_one, rtol=1e-6, atol=1e-6)
    slopes = jax.jit(jax.vmap(jax.grad(loss)))(logits, targets)
    np.testing.assert_allclose(slopes[3], of_torch(logits[3], targets[3], "mcc", task="multiclass")[1], **TOLERANCE)
    _, slope = jax.jvp(lambda z: loss(z, targets[0]), (logits[0],), (logits[1],))
    assert float(slope) == pytest.approx(float((slopes[0] * logits[1]).sum()), rel=1e-4)


def test_ignored_rows_and_classes_that_are_none():
    logits, target, _ = batch("multiclass", dtype=np.float32)
    marked, out_of_range = target.copy(), target.copy()
    marked[3], out_of_range[3] = -100, K
    kept = np.arange(N) != 3
    ours = metric_loss(logits, marked, "f1", task="multiclass")
    assert float(ours) == pytest.approx(float(metric_loss(logits[kept], target[kept], "f1", task="multiclass")))
    assert np.isnan(metric_loss(logits, out_of_range, "f1", task="multiclass"))


def test_a_loss_is_made_once():
    assert array_loss("f1", {"threshold": [0.2, 0.3]}) is array_loss("f1", {"threshold": (0.2, 0.3)})
    assert array_loss("f1", {"step": "linear"}) is not array_loss("f1", {"step": "sigmoid"})


def test_numpy_arrays_have_values():
    logits, target, weight = batch("multiclass")
    ours = ArrayLoss("cost", task="multiclass")(logits, target, weight)
    assert float(ours) == pytest.approx(of_torch(logits, target, "cost", weight, task="multiclass")[0])


class TorchStep(sl.Step):
    promises = frozenset()

    def __call__(self, p, tau):
        return torch.sigmoid(p - tau)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"metric": "auroc"},
            "'auroc' ranks samples, and its loss is for PyTorch alone; train on a metric of decision",
        ),
        ({"step": "hard"}, "the Hard step has no gradient"),
        ({"step": TorchStep()}, r"the step .*TorchStep\(\) could not be computed on this kind of array"),
        ({"metric": lambda tp, fp, fn, tn: torch.minimum(tp, fp)}, "the formula '<lambda>' could not be computed on"),
        ({"task": "multiclass", "average": "none"}, "a loss is one number"),
        ({"betta": 2}, "no option 'betta'"),
        ({"scores": torch.zeros(4)}, r"scores must be a JAX array; got a torch.Tensor. For PyTorch call stepless.metr"),
        ({"scores": jnp.zeros(4, int)}, "input must hold floating-point scores; got int32"),
        ({"scores": jnp.zeros(3)}, r"target must have the input's shape \(3,\); got \(4,\)"),
        ({"sample_weight": jnp.zeros(3)}, r"sample_weight must have one entry per sample, shape \(4,\); got \(3,\)"),
        ({"scores": jnp.zeros((4, 2, 2)), "task": "multiclass", "axis": 0}, "axis must be one of the 3 axes of the sc"),
        ({"scores": jnp.zeros((4, 4)), "task": "multiclass", "axis": 0}, "axis must be one of the 2 axes of the sco"),
    ],
)
def test_what_is_not_supported_says_so(settings, sentence):
    given = {"scores": jnp.zeros(4), "target": jnp.zeros(4, int), "metric": "f1", **settings}
    with pytest.raises((TypeError, ValueError), match=sentence):
        metric_loss(**given)


def test_settings_are_known_when_a_function_is_traced():
    loss = jax.jit(lambda cuts: metric_loss(jnp.zeros(4), jnp.zeros(4, int), "f1", threshold=cuts))
    sentence = "threshold must be known when the function is traced; got a traced array. Pass numbers or a NumPy array"
    for cuts in (0.3, [0.3, 0.4]):
        with pytest.raises(TypeError, match=sentence):
            loss(cuts)


SHARDS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from stepless.integrations.jax import metric_loss
rng = np.random.default_rng(0)
logits, target = jnp.asarray(rng.normal(size=(64, 4))), jnp.asarray(rng.integers(0, 4, 64))
rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
for metric in ("f1", "weighted_kappa"):
    loss = jax.value_and_grad(lambda z, y: metric_loss(z, y, metric, task="multiclass"))
    whole, sharded = loss(logits, target), jax.jit(loss)(jax.device_put(logits, rows), jax.device_put(target, rows))
    assert len(sharded[1].sharding.device_set) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, sharded)
"""


@pytest.mark.full
def test_a_sharded_batch_has_one_loss():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", SHARDS], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", TORCH_ONLY)
def test_state_is_torchs_alone(name):
    with pytest.raises(TypeError, match=f"{name} is a setting of stepless.MetricLoss, for PyTorch alone: "):
        metric_loss(jnp.zeros(4), jnp.zeros(4, int), "f1", **{name: True})


def test_importing_stepless_imports_no_jax():
    code = "import sys, stepless; stepless.score([0.5], [1], 'f1'); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_jax_the_fix_is_named():
    code = "import sys; sys.modules['jax'] = None\nimport stepless.integrations.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'stepless.integrations.jax needs JAX: pip install "stepless[jax]"' in done.stderr


def test_a_function_that_changes_is_read_anew():
    scale = [1.0]

    def scaled(tp, fp, fn, tn):
        return scale[0] * tp / (tp + fp + fn)

    scores, target = np.array([0.5, -1.0, 2.0]), np.array([1, 0, 1])
    metric_loss(scores, target, scaled)
    scale[0] = 5.0
    torchs = sl.metric_loss(torch.tensor(scores), torch.tensor(target), scaled)
    assert float(metric_loss(scores, target, scaled)) == pytest.approx(torchs.item(), abs=1e-6)
