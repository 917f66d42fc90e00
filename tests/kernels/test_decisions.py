"""The fused ways agree with the plain one, and the way of a batch can be asked for and is logged."""

import copy
import logging
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import stepless as sl
from stepless.kernels import decisions, derivatives, dispatch
from stepless.kernels.decisions import plain_loss
from stepless.kernels.dispatch import FUSED_CPU, logger
from stepless.kernels.tracing import differentiated, over_labels, straight_line
from stepless.steps import Linear, Step
from tests.twins import SMOOTH, TOLERANCE, agree, draw, one_like_any_other

TASKS = ("binary", "multilabel")
SHAPES = {"binary": [(1,), (41,), (1271,), (7, 1), (3, 5, 4)], "multilabel": [(1, 1), (41, 3), (97, 31), (2, 3, 4, 5)]}
#: Where numpy is not used, with a last block that is not full.
LARGE = {"binary": (20_011,), "multilabel": (4_001, 5)}


# ---------------------------------------------------------------------------------------------------------------------
# Agreement
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", sl.METRICS)
@pytest.mark.parametrize("step", SMOOTH)
def test_every_metric_and_step(metric, step, task):
    loss_fn = sl.MetricLoss(metric, step=step, task=task)
    for shape in SHAPES[task]:
        for dtype in (torch.float32, torch.float64):
            agree(loss_fn, *draw(shape, dtype))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("step", SMOOTH)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("inputs", ["logits", "probabilities"])
def test_every_dtype_and_kind_of_input(inputs, dtype, step, task):
    loss_fn = sl.MetricLoss("f1", step=step, task=task, inputs=inputs, threshold=0.3)
    for shape in SHAPES[task]:
        scores, target = draw(shape, dtype)
        agree(loss_fn, scores if inputs == "logits" else scores.sigmoid(), target)


@pytest.mark.parametrize("metric", ["specificity", "npv", "g_mean", "mcc", "balanced_accuracy", "markedness", "f1"])
@pytest.mark.parametrize("size", [4, 3_000, 100_000])
@pytest.mark.parametrize("task", TASKS)
def test_rare_negatives_and_all_decided_yes(metric, size, task):
    """No cell is taken as a difference of sums that leaves it no digits."""
    torch.manual_seed(0)
    loss_fn = sl.MetricLoss(metric, task=task, threshold=0.3)
    scores, target = torch.randn(size) + 1, torch.ones(size)
    target[:2] = 0
    light = torch.where(target == 0, 1e-8, 1.0)
    certain = torch.randn(size) + 5
    for z, y, w in ((scores, target, None), (scores, target, light), (certain, target.flip(0), None)):
        columns = 1 if task == "binary" else 3
        x, t = (v[:, None].repeat(1, columns) if columns > 1 else v for v in (z, y))
        narrow, wide = x.clone().requires_grad_(), x.double().requires_grad_()
        assert loss_fn.path_for(narrow, t, w) == FUSED_CPU
        found = loss_fn(narrow, t, w)
        exact = loss_fn.settle(loss_fn.measure(wide, t.double(), None if w is None else w.double()))
        torch.testing.assert_close(found, exact.float(), rtol=0, atol=1e-5)
        gradient, wanted = (torch.autograd.grad(v, leaf)[0].double() for v, leaf in ((found, narrow), (exact, wide)))
        for rows in (t == 0, t == 1):  # each class by its own scale: that of the rare one is far larger
            scale = wanted[rows].abs().max().clamp(min=1e-12)
            # 1 − p of a p near 1 has five digits in float32, on every path
            assert ((gradient - wanted)[rows].abs().max() / scale).item() < 1e-4


@pytest.mark.parametrize("formula", ["max(recall, 0.1)", "min(recall, 0.9)", "max(0.1, recall)", "min(0.9, recall)"])
@pytest.mark.parametrize("task", TASKS)
def test_the_smaller_and_the_larger_of_nan_are_nan(formula, task):
    scores, target = torch.tensor([[1.0], [math.nan], [-1.0]]), torch.tensor([[1.0], [1.0], [0.0]])
    if task == "binary":
        scores, target = scores[:, 0], target[:, 0]
    assert sl.MetricLoss(formula, task=task)(scores, target).isnan()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("step", SMOOTH)
def test_many_scores_in_blocks(step, task, monkeypatch):
    for block in (decisions.BLOCK, 4_096, 1):  # one block; several and a rest; a row at a time
        monkeypatch.setattr(decisions, "BLOCK", block if block > 1 else 512)
        scores, target = draw(LARGE[task], torch.float64)
        agree(sl.MetricLoss("mcc", step=step, task=task, threshold=0.3), scores, target)
        agree(sl.MetricLoss("f1", step=step, task=task), scores, target, torch.rand(len(scores), dtype=torch.float64))
    monkeypatch.setattr(decisions, "FEW", 0)
    for shape in SHAPES[task]:
        agree(sl.MetricLoss("f1", step=step, task=task), *draw(shape))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("few", [0, decisions.FEW])
def test_weights_masks_and_odd_layouts(task, few, monkeypatch):
    monkeypatch.setattr(decisions, "FEW", few)
    loss_fn = sl.MetricLoss("mcc", task=task, ignore_index=7)
    shape = (41,) if task == "binary" else (41, 3)
    scores, target = draw(shape)
    target[::5] = 7
    agree(loss_fn, scores, target, torch.rand(41))
    if task == "multilabel":
        agree(sl.MetricLoss("f1", task=task, weight=(1.0, 0.0, 3.0)), scores, (target == 1).float())
    spread, marks = draw((82, *shape[1:]))
    agree(sl.MetricLoss("f1", task=task), spread[::2], marks.bool()[::2])
    if task == "multilabel":
        agree(sl.MetricLoss("f1", task=task), *(x.t() for x in draw((3, 41))))
        images = [x.contiguous(memory_format=torch.channels_last) for x in draw((2, 3, 4, 5))]
        agree(sl.MetricLoss("f1", task=task), *images)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", sl.METRICS)
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_one_class_alone(metric, rate, task):
    shape = (64,) if task == "binary" else (64, 3)
    for saturated in (1.0, 50.0):
        scores, target = draw(shape, torch.float64, rate=rate)
        agree(sl.MetricLoss(metric, task=task), scores * saturated, target)


# in steps of a millionth: counts of 1e-300 are nobody's, and their roots and quotients are rounding alone
_SCORE, _SHARE = (st.floats(*ends).map(lambda value: round(value, 6)) for ends in ((-8, 8), (0, 1)))


@given(
    st.lists(st.tuples(_SCORE, _SHARE), min_size=1, max_size=30),
    st.sampled_from(["f1", "mcc", "p4", "g_mean", "npv", "cohen_kappa"]),
    st.sampled_from(SMOOTH),
    st.floats(0.05, 0.95),
)
@settings(deadline=None, max_examples=150)
def test_any_batch_of_soft_targets(rows, metric, step, threshold):
    scores, target = torch.tensor(rows, dtype=torch.float64).T
    loss_fn = sl.MetricLoss(metric, step=step, threshold=threshold)
    # a cell that is nearly empty is a difference of sums, and MCC a difference of such cells; the G-mean is the root of
    # one, and the root of float64's rounding is 1.5e-8
    tolerance = 1e-7 if metric == "g_mean" else 1e-8
    agree(loss_fn, scores.contiguous(), target.contiguous(), tolerance=tolerance)


@pytest.mark.parametrize("labels", [2, 15, 16, 40])
def test_few_and_many_labels(labels):
    weight = tuple(range(1, labels + 1))
    for options in ({}, {"weight": weight}):
        agree(sl.MetricLoss("mcc", task="multilabel", **options), *draw((57, labels), torch.float64))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(13_001, 3), (5_003, 8), (2_503, 5, 3), (1_201, 3, 4, 5), (9, 3, 40, 50)])
def test_rows_shared_out_among_threads(shape, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)  # pieces of a third of the rows, and what is left
    loss_fn = sl.MetricLoss("mcc", task="multilabel")
    agree(loss_fn, *draw(shape, torch.float64), torch.rand(shape[0], dtype=torch.float64))
    agree(loss_fn, *draw(shape))


@pytest.mark.parametrize("size", [5, 20_000])
@pytest.mark.parametrize("task", TASKS)
def test_nan_scores_give_a_nan_loss(size, task):
    shape = (size,) if task == "binary" else (size, 3)
    scores, target = draw(shape)
    scores[3] = torch.nan
    for metric in ("f1", "mcc", "accuracy"):
        loss_fn = sl.MetricLoss(metric, task=task)
        assert loss_fn.path_for(scores, target) == FUSED_CPU
        assert loss_fn(scores, target).isnan()


def test_scores_are_not_changed():
    for size in (100, 20_000):
        scores, target = draw((size,))
        target = target.float()
        before = scores.clone(), target.clone()
        sl.MetricLoss("f1")(scores.requires_grad_(), target, torch.ones(size)).backward()
        assert torch.equal(scores.detach(), before[0])
        assert torch.equal(target, before[1])


def test_a_graph_may_be_kept_and_scaled():
    for size in (100, 20_000):
        scores, target = draw((size,))
        scores.requires_grad_()
        loss = sl.MetricLoss("f1")(scores, target)
        (first,) = torch.autograd.grad(loss, scores, retain_graph=True)
        (second,) = torch.autograd.grad(loss, scores, torch.tensor(3.0))
        torch.testing.assert_close(3 * first, second)


@pytest.mark.parametrize("task", TASKS)
def test_the_plain_twin_of_an_objective(task):
    loss_fn = sl.MetricLoss("f1", task=task)
    scores, target = draw(SHAPES[task][1], torch.float64)
    batch = loss_fn.path.read(scores, target, None)
    torch.testing.assert_close(plain_loss(batch, loss_fn._ways.decisions), loss_fn(scores, target))


# ---------------------------------------------------------------------------------------------------------------------
# Traced formulas
# ---------------------------------------------------------------------------------------------------------------------

CELLS = st.tuples(*[st.floats(1e-3, 1e4) | st.just(0.0)] * 4)


@given(st.lists(CELLS, min_size=1, max_size=5), st.sampled_from(["f1", "mcc", "p4", "g_mean", "heidke", "cost"]))
@settings(deadline=None)
def test_numbers_arrays_and_the_loop_say_the_same(rows, metric):
    objective = sl.MetricLoss(metric)._ways.decisions
    numbers = np.array([objective.differentiate(*row) for row in rows])
    arrays = np.stack([np.broadcast_to(x, len(rows)) for x in objective.differentiate_each(*np.array(rows).T)], -1)
    np.testing.assert_allclose(arrays, numbers, rtol=1e-9, atol=1e-12)
    sums = [(tp, tp + fp, tp + fn, tp + fp + fn + tn) for tp, fp, fn, tn in rows]
    loss, alarms, hits = over_labels(objective.of)(sums, [1.0] * len(rows), (1.0, 1.0), 0.0)
    again = np.array([objective.differentiate(tp, p - tp, s - tp, n - s - p + tp) for tp, p, s, n in sums])
    np.testing.assert_allclose(loss, again[:, 0].sum(), rtol=1e-9)
    np.testing.assert_allclose(alarms, again[:, 2] - again[:, 4], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(hits, again[:, 1] - again[:, 3], rtol=1e-9, atol=1e-12)


def test_what_a_formula_says_twice_is_computed_once():
    lines, (value, tp, fp, *_) = straight_line(lambda c: c[0] * c[1] + c[1] * c[0] + 0.0 * c[2])
    assert sum(" * " in line and "v0" in line for line in lines if line.startswith("v")) == 1
    numbers = {"tp": 3.0, "fp": 4.0, "fn": 5.0, "tn": 6.0}
    exec("\n".join(lines), numbers)
    assert [eval(x, numbers) for x in (value, tp, fp)] == [24.0, 8.0, 6.0]


@pytest.mark.parametrize("tau", [0.5, 0.3, 0.8, 0.004])
@pytest.mark.parametrize(
    "step",
    [*(Linear(delta=d) for d in (0.0, 0.24, 0.25, 0.26, 0.375, 0.5)), *(Linear(0.1, w) for w in (0.5, 1e-3, 1e-9))],
)
def test_a_linear_step_of_any_shape(step, tau):
    """The fused twin takes the steep piece less the gentle ones: where nothing is left, it is not taken."""
    logits, target = torch.randn(200, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3 == 0
    loss_fn = sl.MetricLoss("f1", step=step, threshold=tau)
    scores = logits.requires_grad_()
    loss = loss_fn(scores, target)
    loss.backward()
    wide = logits.detach().double().requires_grad_()
    exact = loss_fn.finish(loss_fn.measure(wide, target))
    exact.backward()
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scores.grad.double(), wide.grad, rtol=1e-3, atol=1e-6)


def test_a_linear_step_tends_to_the_hard_one():
    logits, target = torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 2
    for width in (1e-4, 1e-7, 1e-17, 1e-30):
        loss_fn = sl.MetricLoss("f1", step=Linear(delta=0.0, width=width))
        scores = logits.clone().requires_grad_()
        loss = loss_fn(scores, target)
        loss.backward()
        torch.testing.assert_close(loss.double(), 1 - loss_fn.score(logits, target), rtol=0, atol=1e-6)
        assert scores.grad.isfinite().all()
        assert Linear(delta=0.0, width=width)(torch.tensor([0.3]), 0.3) == 0.5


def test_formulas_that_cannot_change_are_traced_once(monkeypatch):
    """The functional loss makes a loss in every call, and tracing takes longer than all the rest."""
    traced = []
    monkeypatch.setattr(dispatch, "differentiators", lambda of: traced.append(of) or derivatives.differentiators(of))
    dispatch._trace_once.cache_clear()
    logits, target = torch.randn(9), torch.arange(9) % 2
    for metric in ("f1", "tp / (tp + fp + 3*fn)"):
        for _ in range(3):
            sl.metric_loss(logits, target, metric)
            copy.deepcopy(sl.MetricLoss(metric, step="sigmoid"))(logits, target)
    assert len(traced) == 2


def test_a_function_that_computes_something_else_the_next_time():
    class Scaled:
        by = 1.0

        def __call__(self, tp, fp, fn, tn):
            return self.by * tp / (tp + fp + fn)

    metric, logits, target = Scaled(), torch.randn(9), torch.arange(9) % 2
    once = sl.metric_loss(logits, target, metric)
    metric.by = 0.5
    torch.testing.assert_close(sl.metric_loss(logits, target, metric), once / 2)


def test_powers_are_those_of_arrays():
    """Python's own turn complex, or raise."""
    of = differentiated(lambda cells: (cells[0] - cells[1]) ** 0.5)
    assert np.isnan(of(1.0, 2.0, 0.0, 0.0)[:3]).all()
    assert of(2.0, 2.0, 0.0, 0.0)[1] == np.inf


# ---------------------------------------------------------------------------------------------------------------------
# Which way
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cubic(Step):
    promises = frozenset()

    def __call__(self, p, tau):
        return p**3


@dataclass(frozen=True)
class Shifted(Linear):
    def __call__(self, p, tau):
        return 0.5 * super().__call__(p, tau)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, FUSED_CPU),
        ({"inputs": "probabilities", "threshold": 0.3, "ignore_index": 9}, FUSED_CPU),
        ({"blend": 0.1}, "plain: the loss has a blend"),
        ({"schedule": sl.Schedule(sharpness=(1.0, 5.0))}, "plain: the loss has a schedule"),
        ({"memory": sl.Memory()}, "plain: the loss has a memory"),
        ({"subject_to": "recall >= 0.9"}, "plain: the loss has constraints"),
        ({"threshold": (0.2, 0.5)}, "plain: the average, the thresholds or the overlap are not the fused ways' own"),
        ({"step": Cubic()}, "plain: the step has no linearise of its own"),
        ({"step": Shifted()}, "plain: the step has no linearise of its own"),
    ],
    ids=str,
)
def test_settings_choose_the_way(options, reason):
    scores, target = draw((8,))
    loss_fn = sl.MetricLoss("f1", **options)
    assert loss_fn.path_for(scores.sigmoid(), target) == reason
    assert copy.deepcopy(loss_fn).path_for(scores.sigmoid(), target) == reason
    assert pickle.loads(pickle.dumps(sl.MetricLoss("f1"))).path_for(scores, target) == FUSED_CPU


def test_batches_choose_the_way():
    loss_fn, (scores, target) = sl.MetricLoss("f1"), draw((8,))
    assert loss_fn.path_for(scores, target, torch.ones(8)) == FUSED_CPU
    assert "requires a gradient" in loss_fn.path_for(scores, target.float().requires_grad_())
    assert "requires a gradient" in loss_fn.path_for(scores, target, torch.ones(8, requires_grad=True))
    assert "the batch is empty" in loss_fn.path_for(scores[:0], target[:0])
    assert "no kernels for input on meta" in loss_fn.path_for(scores.to("meta"), target)
    assert "two devices" in loss_fn.path_for(scores, target.to("meta"))
    of_classes = sl.MetricLoss("f1", task="multiclass")
    assert of_classes.path_for(torch.zeros(4, 3), target[:4]) == FUSED_CPU
    assert "only small batches of class indices" in of_classes.path_for(torch.zeros(4, 3), torch.ones(4, 3) / 3)
    assert "whole confusion matrix" in sl.MetricLoss("weighted_kappa", task="multiclass").path_for(
        torch.zeros(4, 3), target[:4]
    )
    assert "not have one entry per label" in sl.MetricLoss("f1", task="multilabel", weight=(1, 2)).path_for(
        torch.zeros(4, 3), torch.zeros(4, 3)
    )
    weightless = sl.MetricLoss("f1", task="multilabel", weight=(0, 0, 0))
    assert weightless.path_for(torch.zeros(4, 3), torch.zeros(4, 3)) == "plain: all label weights are 0"
    assert weightless(torch.zeros(4, 3), torch.zeros(4, 3)) == 1
    assert sl.MetricLoss("auroc").path_for(scores, target) == "plain: a ranking has no counts"
    asked = []
    torch.func.vmap(lambda z: asked.append(loss_fn.path_for(z, target)) or z)(scores[None])
    assert "transform" in asked[0]


def test_forward_mode_goes_the_plain_way():
    loss_fn, (scores, target) = sl.MetricLoss("f1"), draw((8,), torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(scores, torch.ones_like(scores))
        slope = torch.autograd.forward_ad.unpack_dual(loss_fn(dual, target)).tangent
    leaf = scores.clone().requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(loss_fn(leaf, target), leaf)[0].sum())


def test_a_step_that_inherits_its_linearise_is_not_taken_for_its_parent():
    scores, target = draw((41,), torch.float64)
    loss_fn = sl.MetricLoss("recall", step=Shifted())
    torch.testing.assert_close(1 - loss_fn(scores, target), (1 - sl.MetricLoss("recall")(scores, target)) / 2)


def test_a_way_is_logged_once(caplog):
    scores, target = draw((8,))
    loss_fn = sl.MetricLoss("f1")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        for _ in range(3):
            loss_fn(scores, target)
        loss_fn(scores[:0], target[:0])
    assert [record.getMessage() for record in caplog.records] == [
        "MetricLoss('f1', step=Linear(delta=0.1, width=1.0)): fused-cpu",
        "MetricLoss('f1', step=Linear(delta=0.1, width=1.0)):"
        " plain: the batch is empty, or the target requires a gradient",
    ]
    assert {record.name for record in caplog.records} == {"stepless"}


def test_the_buffers_a_thread_keeps_serve_inference_training_and_other_threads_alike():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(decisions.FEW + 5, generator=generator, dtype=torch.float64)
    target = (torch.rand(logits.shape, generator=generator) < 0.3).double()
    vars(decisions._kept).clear()
    with torch.inference_mode():
        first = sl.MetricLoss("f1")(logits, target).item()

    def trained():
        scores = logits.clone().requires_grad_()
        loss = sl.MetricLoss("f1")(scores, target)
        loss.backward()
        return loss.item(), scores.grad

    expected = trained()
    with ThreadPoolExecutor(4) as pool:
        found = [work.result() for work in [pool.submit(trained) for _ in range(16)]]
    assert expected[0] == first
    assert all(loss == first and torch.equal(gradient, expected[1]) for loss, gradient in found)


@pytest.mark.parametrize("metric", ["precision", "fdr", "markedness", "mcc"])
@pytest.mark.parametrize("step", SMOOTH)
@pytest.mark.parametrize("size", [200, 20_000])
@pytest.mark.parametrize("shift", [0.79, 5.0, 15.0, 40.0])
def test_hardly_any_yes(metric, step, size, shift):
    """Ratios of decisions that are all next to nothing are no ratios of roundings."""
    generator = torch.Generator().manual_seed(175)
    wide = torch.randn(size, generator=generator, dtype=torch.float64) * 0.16 - shift
    target = (torch.rand(size, generator=generator) < 0.3).double()
    expected = sl.MetricLoss(metric, step=step, threshold=[0.5])(wide, target).item()
    for dtype in (torch.float64, torch.float32):
        scores = wide.clone().to(dtype).requires_grad_()
        loss_fn = sl.MetricLoss(metric, step=step)
        assert loss_fn.path_for(scores, target.to(dtype)) == FUSED_CPU
        loss = loss_fn(scores, target.to(dtype))
        loss.backward()
        assert loss.item() == pytest.approx(expected, abs=1e-4)
        assert scores.grad.norm() < 10


def test_what_records_operations_sees_them():
    logits, target = draw((50,))
    loss_fn = sl.MetricLoss("f1")
    recorded = make_fx(lambda z: loss_fn(z, target))(logits)
    assert torch.allclose(recorded(-logits), loss_fn(-logits, target))
    with FlopCounterMode(display=False):
        assert loss_fn.path_for(logits, target) == "plain: the operations are being recorded"


def test_a_loss_made_for_another_device_is_fused_all_the_same():
    with torch.device("meta"):
        made = [sl.MetricLoss(metric) for metric in ("f1", "tp / (tp + fn + 1)")]
    batch = torch.zeros(3, device="cpu"), torch.ones(3, device="cpu")
    assert [loss_fn.path_for(*batch) for loss_fn in made] == [FUSED_CPU] * 2


@pytest.mark.parametrize("size", [50, decisions.FEW + 1])
def test_the_default_device_is_not_where_a_batch_is(size):
    vars(decisions._kept).clear()
    scores, target = draw((size,))
    loss_fn = sl.MetricLoss("f1")
    with torch.device("meta"):
        loss = loss_fn(scores.requires_grad_(), target)
        loss.backward()
    assert loss.device == scores.grad.device == scores.device
    assert loss == loss_fn(scores, target)


def not_traced(tp, fp, fn, tn):
    return torch.sigmoid(tp / (tp + fp + fn))


EXTRAS = {
    "memory": {"memory": sl.Memory(8)},
    "blend": {"blend": 0.3},
    "constraint": {"subject_to": "recall >= 0.9"},
    "schedule": {"schedule": sl.Schedule()},
    "not traced": {"metric": not_traced},
}
COUNTED = {
    **{
        f"{name}, {task}": {"task": task, **extra}
        for name, extra in EXTRAS.items()
        for task in ("binary", "multilabel")
    },
    "micro": {"task": "multilabel", "average": "micro"},
    "weighted": {"task": "multilabel", "average": "weighted", "threshold": 0.3},
    "undefined": {"metric": "precision", "task": "multilabel", "zero_division": math.nan},
    "matrix": {"metric": "cost", "memory": sl.Memory(4)},
    "probabilities": {"inputs": "probabilities", "blend": 0.2, "step": "sigmoid"},
    "ignored": {"ignore_index": -1, "memory": sl.Memory(4)},
}


@pytest.fixture
def no_batch_is_small(monkeypatch):
    monkeypatch.setattr(dispatch, "FEW", 0)


@pytest.mark.usefixtures("no_batch_is_small")
@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_counts_are_fused_where_the_rest_is_plain(name, weighted, dtype, rate):
    settings = {"metric": "f1", **COUNTED[name]}
    loss_fn = sl.MetricLoss(settings.pop("metric"), **settings).eval()  # what moves from batch to batch stands still
    shape = (50, 3) if settings.get("task") == "multilabel" else (50,)
    scores, target = draw(shape, dtype, rate=rate)
    if settings.get("ignore_index") is not None:
        target[:5] = -1
    if settings.get("inputs") == "probabilities":
        scores = scores.sigmoid()
    weight = torch.linspace(0, 2, 50, dtype=dtype) if weighted else None
    way = loss_fn.path_for(scores, target, weight)
    assert way.startswith("fused-cpu-counts: ")
    agree(loss_fn, scores, target, weight, way=way)


@pytest.mark.usefixtures("no_batch_is_small")
def test_many_counts_in_blocks_and_pixels(monkeypatch):
    monkeypatch.setattr(decisions, "BLOCK", 64)
    for shape, task in (((1000,), "binary"), ((90, 4), "multilabel"), ((9, 4, 5, 3), "multilabel")):
        loss_fn = sl.MetricLoss("f1", task=task, blend=0.2)
        agree(loss_fn, *draw(shape), way="fused-cpu-counts: the loss has a blend")


@pytest.mark.usefixtures("no_batch_is_small")
def test_the_counts_node_is_one_like_any_other():
    loss_fn, (scores, target) = sl.MetricLoss("f1", blend=0.2), draw((40,), torch.float64)
    one_like_any_other(loss_fn, scores, target)


@pytest.mark.parametrize("settings", [{}, {"blend": 0.2}])
@pytest.mark.usefixtures("no_batch_is_small")
def test_a_target_that_is_changed_before_the_way_back_is_an_error(settings):
    loss_fn, (scores, target) = sl.MetricLoss("f1", **settings), draw((40,))
    target = target.float()
    loss = loss_fn(scores.requires_grad_(), target)
    loss.backward(retain_graph=True)
    target.fill_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("no_batch_is_small")
def test_measuring_is_fused_too(monkeypatch):
    called = []
    monkeypatch.setattr(dispatch, "fused_counts", lambda *given: called.append(given) or decisions.fused_counts(*given))
    loss_fn, (scores, target) = sl.MetricLoss("f1"), draw((40,))
    fused, by_plain = loss_fn.measure(scores.requires_grad_(), target), loss_fn._state("plain", scores, target, None)
    assert len(called) == 1
    torch.testing.assert_close(fused.vector, by_plain.vector)


def test_few_scores_are_counted_plainly():
    loss_fn = sl.MetricLoss("f1", memory=sl.Memory())
    assert loss_fn.path_for(*draw((decisions.FEW,))) == "plain: the loss has a memory"
    assert loss_fn.path_for(*draw((decisions.FEW + 1,))) == "fused-cpu-counts: the loss has a memory"
