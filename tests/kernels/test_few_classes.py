"""The loss of small multiclass batches on the CPU in one node: values and gradients are those of the plain path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless.kernels import decisions
from stepless.kernels.dispatch import FUSED_CPU
from tests.kernels.test_classes import SHAPES, draw_classes
from tests.twins import SMOOTH, agree, one_like_any_other

#: Not those of the whole matrix, nor the one whose formula cannot be traced: the K-th root of a product.
FUSED = [name for name, metric in sl.METRICS.items() if metric.kind != "matrix" and name != "g_mean"]


@pytest.mark.parametrize("metric", FUSED)
@pytest.mark.parametrize("step", [None, *SMOOTH])
def test_every_metric_and_step(metric, step):
    loss_fn = sl.MetricLoss(metric, step=step, task="multiclass")
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float64):
            agree(loss_fn, *draw_classes(shape, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("blend", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["plain", "balanced"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_dtype_blend_and_weight(dtype, blend, kind, weighted):
    loss_fn = sl.MetricLoss("mcc", task="multiclass", blend=blend, cross_entropy=kind if blend else None)
    scores, target = draw_classes((60, 5), dtype, ignored=7)
    target[target == 4] = 3  # a class that is absent
    agree(loss_fn, scores, target, torch.linspace(0, 2, 60) if weighted else None)


def test_pixels_of_any_layout_and_their_weights():
    loss_fn = sl.MetricLoss("f1", task="multiclass", ignore_index=1)
    scores, target = draw_classes((3, 4, 5, 7), torch.float64)
    agree(loss_fn, scores.contiguous(memory_format=torch.channels_last), target, torch.rand(3, 5, 7).double())
    agree(loss_fn, scores, target, torch.rand(3).double())


@pytest.mark.parametrize("blend", [0.0, 0.5])
@pytest.mark.parametrize("step", SMOOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sure_scores_classes_ruled_out_and_ties(step, blend, dtype):
    loss_fn = sl.MetricLoss("f1", task="multiclass", step=step, blend=blend)
    scores, target = draw_classes((40, 6), dtype)
    agree(loss_fn, 1e4 * scores, target)
    agree(loss_fn, scores.round(), target)
    scores[:, 4:] = -torch.inf
    agree(loss_fn, scores, target)  # of some the true class


@pytest.mark.parametrize("metric", ["npv", "markedness", "false_omission_rate", "p4"])
def test_what_is_empty_is_empty(metric):
    _, target = draw_classes((300, 3))
    one = torch.tensor([50.0, -50.0, -50.0], dtype=torch.float64).expand(300, 3)
    right = 100.0 * torch.nn.functional.one_hot(target, 3).float()
    for step in (sl.Linear(), sl.Linear(delta=0.02, width=0.5)):
        loss_fn = sl.MetricLoss(metric, task="multiclass", step=step)
        agree(loss_fn, one, target, torch.linspace(0.1, 1.3, 300).double())
        agree(loss_fn, right, target)


@pytest.mark.parametrize("wrong", [3, -1])
def test_an_index_that_is_no_class(wrong):
    scores, target = draw_classes((20, 3))
    target[4] = wrong
    with pytest.raises(ValueError, match=rf"targets must be class indices in \[0, 3\); got {wrong}\."):
        sl.MetricLoss("f1", task="multiclass")(scores, target)


@pytest.mark.parametrize("far", [0.0, 1e3, 1e5])
def test_large_scores_keep_the_digits_of_cross_entropy(far):
    scores, _ = draw_classes((64, 5))
    scores = scores + 8 * torch.nn.functional.one_hot(scores.argmax(1), 5) + far
    loss = sl.MetricLoss("f1", task="multiclass", blend=1.0)(scores, scores.argmax(1))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, scores.argmax(1)), rtol=1e-4, atol=0)


def test_a_loss_has_the_dtype_of_its_scores_whatever_the_default():
    torch.set_default_dtype(torch.float64)
    try:
        for rows in (20, 5_000):
            scores, target = draw_classes((rows, 3))
            assert sl.MetricLoss("f1", task="multiclass")(scores, target).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_may_come_from_inference_mode():
    scores, target = draw_classes((40, 3))
    with torch.inference_mode():
        weight = torch.rand(40)
    loss_fn, leaf = sl.MetricLoss("f1", task="multiclass"), scores.requires_grad_()
    assert torch.autograd.grad(loss_fn(leaf, target, weight), leaf)[0].isfinite().all()


def test_nothing_is_learned_from_an_ignored_batch_and_nan_is_not_hidden():
    loss_fn = sl.MetricLoss("f1", task="multiclass")
    scores, target = draw_classes((20, 3))
    leaf = scores.clone().requires_grad_()
    loss_fn(leaf, torch.full((20,), -100)).backward()
    assert (leaf.grad == 0).all()
    scores[3, 1] = torch.nan
    assert loss_fn(scores, target).isnan()


@pytest.mark.parametrize("metric", ["f1", "mcc"])
def test_the_node_is_one_like_any_other(metric):
    loss_fn = sl.MetricLoss(metric, task="multiclass", step="identity", blend=0.2)
    scores, target = draw_classes((20, 3), torch.float64)
    assert loss_fn.path_for(scores, target) == FUSED_CPU
    one_like_any_other(loss_fn, scores, target)


def test_formulas_of_the_user():
    agree(sl.MetricLoss(lambda tp, fp, fn, tn: tp / (tp + fp + fn), task="multiclass"), *draw_classes((30, 4)))
    agree(sl.MetricLoss("fn + 5*fp", task="multiclass"), *draw_classes((30, 4)))


def test_large_batches_go_another_way():
    loss_fn, rows = sl.MetricLoss("f1", task="multiclass"), decisions.FEW // 4
    assert loss_fn.path_for(*draw_classes((rows, 4))) == FUSED_CPU
    assert loss_fn.path_for(*draw_classes((rows + 1, 4))).startswith("fused-cpu-counts: ")


@settings(deadline=None, max_examples=60)
@given(
    classes=st.integers(2, 9), samples=st.integers(1, 40), seed=st.integers(0, 99), scale=st.sampled_from([0.1, 1, 30]),
    step=st.sampled_from([None, *SMOOTH]), metric=st.sampled_from(["f1", "mcc", "cohen_kappa", "p4", "accuracy"]),
)  # fmt: skip
def test_any_batch(classes, samples, seed, scale, step, metric):
    scores, target = draw_classes((samples, classes), torch.float64, seed, ignored=seed % 3)
    agree(
        sl.MetricLoss(metric, task="multiclass", step=step), scale * scores, target, tolerance=1e-8
    )  # 1 − p of a p near 1
