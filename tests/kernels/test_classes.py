"""Counting among classes on the CPU in one node: values and gradients are those of the plain path."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless.kernels import dispatch
from stepless.steps import Factors, Step
from tests.twins import SMOOTH, agree, one_like_any_other, plain

WAY = "fused-cpu-counts: on the CPU only small batches of class indices are fused as a whole"
SHAPES = ((41, 2), (41, 3), (97, 8), (5, 31), (3, 4, 5, 7))


@pytest.fixture(autouse=True)
def no_batch_is_small(monkeypatch):
    monkeypatch.setattr(dispatch, "FEW", 0)


def draw_classes(shape, dtype=torch.float32, seed=0, *, inputs="logits", ignored=0):
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    samples = (shape[0], *shape[2:])
    target = torch.randint(shape[1], samples, generator=generator)
    target.view(-1)[:ignored] = -100
    return (scores if inputs == "logits" else scores.softmax(1)).to(dtype), target


def assert_fused(loss_fn, scores, target, sample_weight=None, **settings):
    way = loss_fn.path_for(scores, target, sample_weight)
    assert way.startswith("fused-cpu-counts: ")
    agree(loss_fn, scores, target, sample_weight, way=way, **settings)


@pytest.mark.parametrize("metric", sl.METRICS)
@pytest.mark.parametrize("step", SMOOTH)
def test_every_metric_and_step(metric, step):
    loss_fn = sl.MetricLoss(metric, step=step, task="multiclass")
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float64):
            assert_fused(loss_fn, *draw_classes(shape, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("inputs", ["logits", "probabilities"])
@pytest.mark.parametrize("step", SMOOTH)
def test_every_dtype_and_kind_of_input(inputs, dtype, step):
    loss_fn = sl.MetricLoss("f1", step=step, task="multiclass", inputs=inputs)
    scores, target = draw_classes((60, 5), dtype, inputs=inputs, ignored=7)
    if loss_fn.path_for(scores, target).startswith("plain"):
        assert (step, inputs) == ("logit_sigmoid", "probabilities")  # whose slope there has no twin
    else:
        assert_fused(loss_fn, scores, target)


EXTRAS = {
    "memory": {"memory": sl.Memory(8)},
    "blend": {"blend": 0.3},
    "balanced blend": {"blend": 0.3, "cross_entropy": "balanced"},
    "constraint": {"subject_to": "accuracy >= 0.9"},
    "schedule of the blend": {"schedule": sl.Schedule(blend=(0.0, 1.0))},
    "offsets": {"threshold": [0.5, -1.0, 0.0, 2.0]},
    "micro": {"average": "micro"},
    "weighted": {"average": "weighted"},
    "weights of classes": {"weight": [1.0, 0.0, 2.0, 0.5]},
    "undefined": {"zero_division": float("nan")},
}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_setting(extra, weighted, dtype):
    loss_fn = sl.MetricLoss("f1", task="multiclass", **EXTRAS[extra]).eval()
    scores, target = draw_classes((50, 4), dtype, ignored=5)
    assert_fused(loss_fn, scores, target, torch.linspace(0, 2, 50, dtype=dtype) if weighted else None)


@pytest.mark.parametrize("metric", ["f1", "weighted_kappa"])
@pytest.mark.parametrize("shape", [(101, 7), (6, 7, 11, 3), (2, 7, 150)])
def test_blocks_of_samples_and_of_pixels(monkeypatch, metric, shape):
    monkeypatch.setattr("stepless.kernels.classes.BLOCK", 160)
    loss_fn = sl.MetricLoss(metric, task="multiclass")
    scores, target = draw_classes(shape, torch.float64, ignored=3)
    assert_fused(loss_fn, scores, target)
    weight = torch.rand(target.shape, dtype=torch.float64)
    assert_fused(loss_fn, scores, target, weight)
    assert_fused(loss_fn, scores.transpose(0, -1).contiguous().transpose(0, -1), target, weight)  # of any layout


def test_a_matrix_of_many_classes():
    loss_fn = sl.MetricLoss("weighted_kappa", task="multiclass")
    assert_fused(loss_fn, *draw_classes((300, 90), torch.float64))


@pytest.mark.parametrize("blend", [0.0, 0.5])
@pytest.mark.parametrize("step", SMOOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sure_scores_classes_ruled_out_and_ties(step, blend, dtype):
    loss_fn = sl.MetricLoss("f1", task="multiclass", step=step, blend=blend)
    scores, target = draw_classes((40, 6), dtype)
    assert_fused(loss_fn, 1e4 * scores, target)
    assert_fused(loss_fn, scores.round(), target)
    ruled_out = scores.clone()
    ruled_out[:, 4:] = -torch.inf
    assert_fused(loss_fn, ruled_out, target % 4)
    assert_fused(loss_fn, ruled_out, target)  # also the true one
    pixels = scores.view(5, 8, 6).transpose(1, 2)
    assert_fused(loss_fn, 1e4 * pixels, target.view(5, 8))


def test_the_default_device_is_not_asked():
    scores, target = draw_classes((40, 3))
    for chosen in ({}, {"step": "identity", "inputs": "probabilities"}):
        loss_fn = sl.MetricLoss("f1", task="multiclass", **chosen)
        with torch.device("meta"):
            assert loss_fn(scores.softmax(1), target).is_cpu


@pytest.mark.parametrize("offsets", [[0.5], [0.5, 0.0]])
def test_offsets_of_other_classes(offsets):
    with pytest.raises(ValueError, match=r"one entry for each of the 3 classes; got \d"):
        sl.MetricLoss("f1", task="multiclass", threshold=offsets)(*draw_classes((40, 3)))


def test_weights_may_come_from_inference_mode():
    scores, target = draw_classes((40, 3))
    with torch.inference_mode():
        weight = torch.rand(40)
    loss_fn, leaf = sl.MetricLoss("f1", task="multiclass"), scores.requires_grad_()
    assert torch.autograd.grad(loss_fn(leaf, target, weight), leaf)[0].isfinite().all()


def test_a_score_that_is_nan_is_not_hidden():
    for inputs in ("logits", "probabilities"):
        for step in ("linear", "identity"):
            loss_fn = sl.MetricLoss("f1", task="multiclass", inputs=inputs, step=step)
            scores, target = draw_classes((20, 3), inputs=inputs)
            scores[3, 1] = torch.nan
            assert loss_fn.path_for(scores, target).startswith("fused-cpu-counts")
            assert loss_fn(scores, target).isnan()


def test_an_index_that_is_no_class():
    scores, target = draw_classes((20, 3))
    target[4] = 3
    with pytest.raises(ValueError, match=r"targets must be class indices in \[0, 3\); got 3\."):
        sl.MetricLoss("f1", task="multiclass")(scores, target)


def test_the_node_is_one_like_any_other():
    loss_fn = sl.MetricLoss("f1", task="multiclass", step="identity")
    scores, target = draw_classes((20, 3), torch.float64)
    one_like_any_other(loss_fn, scores, target)


@pytest.mark.parametrize(
    ("settings", "target", "why"),
    [
        ({"per_image": True}, "indices", "the average, the thresholds or the overlap"),
        ({"inputs": "probabilities", "threshold": [0.0, 0.1, 0.0]}, "indices", "the average, the thresholds"),
        ({"overlap": "min"}, "shares", "the average, the thresholds or the overlap"),
        ({}, "shares", "only small batches of class indices"),
        ({"step": sl.Linear(delta=0.1, width=1e-3)}, "indices", "the step is so narrow"),
        ({"schedule": sl.Schedule(sharpness=(1.0, 4.0))}, "indices", "the loss has a schedule"),
    ],
)
def test_what_stays_plain(settings, target, why):
    scores, indices = draw_classes((4, 3, 5), inputs=settings.get("inputs", "logits"))
    shares = torch.rand(4, 3, 5).softmax(1)
    way = sl.MetricLoss("f1", task="multiclass", **settings).path_for(scores, shares if target == "shares" else indices)
    assert way.startswith("plain: ")
    assert why in way


def test_large_batches_of_the_default_go_this_way(monkeypatch):
    monkeypatch.undo()
    assert sl.MetricLoss("f1", task="multiclass").path_for(*draw_classes((dispatch.FEW // 4 + 1, 4))) == WAY


def test_few_scores_of_other_losses_are_counted_plainly(monkeypatch):
    monkeypatch.undo()
    loss_fn = sl.MetricLoss("f1", task="multiclass", memory=sl.Memory())
    assert loss_fn.path_for(*draw_classes((dispatch.FEW // 4, 4))) == "plain: the loss has a memory"


@pytest.mark.parametrize("metric", ["mcc", "cohen_kappa", "specificity", "p4", "f1", "g_mean"])
@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["apart", "alike"])
def test_a_rare_class_beside_a_frequent_one(metric, spread):
    """Each class by its own scale: neither its gradient nor a sum may be lost in what the frequent one brings."""
    rows = 30_000
    target = torch.zeros(rows, dtype=torch.long)
    target[:2], target[2:4] = 1, 2
    noise = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    scores = spread * noise + torch.tensor([2.0, 0.1, 0.0])
    loss_fn = sl.MetricLoss(metric, task="multiclass", blend=0.0)
    narrow, wide = scores.clone().requires_grad_(), scores.double().requires_grad_()
    assert loss_fn.path_for(narrow, target).startswith("fused-cpu-counts")
    found, exact = loss_fn(narrow, target), plain(loss_fn, wide, target)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)
    gradient, wanted = torch.autograd.grad(found, narrow)[0].double(), torch.autograd.grad(exact, wide)[0]
    for k in range(3):
        assert (gradient - wanted)[target == k].norm() <= 1e-5 * wanted[target == k].norm()


def test_long_sums_of_a_matrix_lose_nothing():
    scores = torch.tensor([2.0, 0.1, 0.0]).repeat(200_000, 1)  # alike: roundings add up instead of cancelling
    target = torch.arange(200_000) % 3
    loss_fn = sl.MetricLoss("weighted_kappa", task="multiclass", blend=0.0)
    found, exact = (loss_fn.measure(z, target)["soft"].double() for z in (scores, scores.double()))
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("metric", ["npv", "markedness", "false_omission_rate", "precision", "p4"])
def test_what_is_empty_is_empty(metric):
    """0/0 must not become a ratio of roundings, whatever the samples weigh and whichever class all are decided."""
    rows, generator = 9_000, torch.Generator().manual_seed(0)
    target, weight = torch.randint(3, (rows,), generator=generator), torch.rand(rows, generator=generator).double()
    one = torch.tensor([50.0, -50.0, -50.0], dtype=torch.float64).expand(rows, 3)
    right = 100.0 * torch.nn.functional.one_hot(target, 3).float()
    for step in (sl.Linear(), sl.Linear(delta=0.02, width=0.5)):
        loss_fn = sl.MetricLoss(metric, task="multiclass", step=step)
        assert_fused(loss_fn, one, target, weight)
        assert_fused(loss_fn, right, target)


@dataclass(frozen=True)
class OfOneThreshold(Step):
    """A user's step, written for a threshold that is a number."""

    promises = frozenset()

    def __call__(self, p, tau):
        return p * tau

    def linearise(self, p, tau, decision, slope):
        torch.mul(p, max(0.0, tau), out=decision)
        slope.fill_(max(0.0, tau))
        return Factors(1.0, 1.0)


def test_a_step_for_one_threshold_goes_the_plain_way():
    scores, target = draw_classes((40, 3))
    loss_fn = sl.MetricLoss("f1", task="multiclass", step=OfOneThreshold())
    assert loss_fn.path_for(scores, target).startswith("plain")
    assert loss_fn(scores, target).isfinite()


@settings(deadline=None, max_examples=60)
@given(
    classes=st.integers(2, 9), samples=st.integers(1, 40), seed=st.integers(0, 99), scale=st.sampled_from([0.1, 1, 30]),
    step=st.sampled_from(SMOOTH), metric=st.sampled_from(["f1", "mcc", "cohen_kappa", "weighted_kappa", "g_mean"]),
)  # fmt: skip
def test_any_batch(classes, samples, seed, scale, step, metric):
    scores, target = draw_classes((samples, classes), torch.float64, seed, ignored=seed % 3)
    assert_fused(
        sl.MetricLoss(metric, task="multiclass", step=step), scale * scores, target, tolerance=1e-8
    )  # 1 − p of a p near 1
