"""The CUDA kernels agree with the plain path, and work with torch.compile, CUDA graphs and function transforms.

Run ``python -m pytest tests/test_cuda.py`` on a machine with a GPU; elsewhere the module is skipped.
"""

import pytest
import torch
from torch.nn import functional as F

import stepless as sl
from stepless.kernels.dispatch import TRITON_CLASSES, TRITON_COUNTS, TRITON_DECISIONS
from tests.twins import SMOOTH, agree, draw, plain

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

TASKS = ("binary", "multilabel")
SHAPES = {"binary": [(1,), (41,), (1271,), (70_001,)], "multilabel": [(1, 1), (41, 3), (1271, 8), (7, 5, 11, 3)]}
#: Metrics of each class's cells, and joint metrics of all classes' cells; the kernels differ.
OF_CLASSES = ("f1", "recall", "jaccard", "mcc", "kappa")


def on_gpu(shape, dtype=torch.float32, seed=0):
    return [x.cuda() for x in draw(shape, dtype, seed)]


def classes_on_gpu(rows, classes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows)
    scores = torch.randn(rows, classes, generator=generator).to("cuda", dtype)
    return scores, torch.randint(classes, (rows,), generator=generator).cuda()


def images_on_gpu(images, classes):
    scores, target = classes_on_gpu(images * 5 * 7, classes)
    return scores.view(images, 5, 7, classes).movedim(-1, 1), target.view(images, 5, 7)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", sl.METRICS)
def test_every_metric(metric, task):
    loss_fn = sl.MetricLoss(metric, task=task)
    for shape in SHAPES[task]:
        agree(loss_fn, *on_gpu(shape), way=TRITON_DECISIONS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"memory": sl.Memory(8)}, "the loss has a memory"),
        ({"blend": 0.3}, "the loss has a blend"),
        ({"subject_to": "recall >= 0.9"}, "the loss has constraints"),
    ],
    ids=str,
)
def test_counts_where_the_rest_is_plain(settings, why, dtype, task):
    loss_fn = sl.MetricLoss("mcc" if task == "binary" else "f1", task=task, **settings).cuda().eval()
    for shape in SHAPES[task]:
        agree(loss_fn, *on_gpu(shape, dtype), way=f"{TRITON_COUNTS}: {why}")


def test_counts_can_be_differentiated_twice_and_kept():
    loss_fn, (scores, target) = sl.MetricLoss("f1", blend=0.2, step="sigmoid"), on_gpu((41,))
    scores.requires_grad_()
    (first,) = torch.autograd.grad(loss_fn(scores, target), scores, create_graph=True)
    (by_plain,) = torch.autograd.grad(plain(loss_fn, scores, target), scores, create_graph=True)
    torch.testing.assert_close(first, by_plain, rtol=1e-4, atol=1e-6)
    second = [torch.autograd.grad(g.square().sum(), scores)[0] for g in (first, by_plain)]
    torch.testing.assert_close(*second, rtol=1e-4, atol=1e-6)
    factors = torch.tensor([1.0, 2.0], device="cuda")
    (many,) = torch.autograd.grad(loss_fn(scores, target), scores, factors, is_grads_batched=True)
    torch.testing.assert_close(many, factors[:, None] * by_plain, rtol=1e-4, atol=1e-6)


def test_a_measured_state_is_the_plain_one():
    loss_fn, (scores, target) = sl.MetricLoss("f1"), on_gpu((70_001,))
    torch.testing.assert_close(
        loss_fn.measure(scores, target).vector, loss_fn._state("plain", scores, target, None).vector
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("step", SMOOTH)
@pytest.mark.parametrize("inputs", ["logits", "probabilities"])
def test_every_step_and_kind_of_input(inputs, step, task):
    loss_fn = sl.MetricLoss("mcc", step=step, task=task, inputs=inputs, threshold=0.3)
    # near p = 1 the plain path loses the digits of 1 − decision in float32, and the kernel does not
    reference = torch.float64 if (inputs, step) == ("probabilities", "logit_sigmoid") else None
    for shape in SHAPES[task]:
        scores, target = on_gpu(shape)
        given = scores.sigmoid() if inputs == "probabilities" else scores
        agree(loss_fn, given, target, way=TRITON_DECISIONS, reference=reference)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("metric", ["f1", "mcc"])
def test_low_precision(metric, dtype):
    for task in TASKS:
        for shape in SHAPES[task]:
            agree(sl.MetricLoss(metric, task=task), *on_gpu(shape, dtype), way=TRITON_DECISIONS)
    for rows, classes in ((1, 2), (41, 3), (1271, 10), (64, 1000)):
        agree(sl.MetricLoss(metric, task="multiclass"), *classes_on_gpu(rows, classes, dtype), way=TRITON_CLASSES)


def test_odd_layouts_and_kinds_of_target():
    scores, target = on_gpu((82, 3))
    loss_fn = sl.MetricLoss("f1", task="multilabel")
    for cast in (torch.Tensor.bool, torch.Tensor.float, torch.Tensor.int, torch.Tensor.half):
        agree(loss_fn, scores[::2], cast(target)[::2], way=TRITON_DECISIONS)
    agree(loss_fn, scores.t().contiguous().t(), target, way=TRITON_DECISIONS)
    images = [x.contiguous(memory_format=torch.channels_last) for x in on_gpu((2, 3, 4, 5))]
    agree(loss_fn, *images, way=TRITON_DECISIONS)
    rows, classes = classes_on_gpu(82, 10)
    agree(sl.MetricLoss("f1", task="multiclass"), rows[::2], classes[::2], way=TRITON_CLASSES)


@pytest.mark.parametrize("metric", OF_CLASSES)
@pytest.mark.parametrize("step", ["linear", "sigmoid", "identity", "raised_cosine"])
@pytest.mark.parametrize("blend", [{"blend": 0.0}, {"blend": 0.3}, {"blend": 0.3, "cross_entropy": "balanced"}])
def test_classes(metric, step, blend):
    loss_fn = sl.MetricLoss(metric, task="multiclass", step=step, **blend)
    for rows, classes in ((1, 2), (41, 3), (1271, 10), (70, 1000)):
        scores, target = classes_on_gpu(rows, classes)
        agree(loss_fn, scores, target, way=TRITON_CLASSES)
        target[: rows // 3] = -100
        agree(loss_fn, scores, target, way=TRITON_CLASSES)


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_images_of_classes(metric):
    loss_fn = sl.MetricLoss(metric, task="multiclass", ignore_index=255)
    scores, target = images_on_gpu(2, 4)
    target[0, :2] = 255
    for images in (scores, scores.contiguous(), scores.flatten(2)):
        agree(loss_fn, images, target.view(2, *images.shape[2:]), way=TRITON_CLASSES)


def test_rows_that_do_not_count_may_be_anything():
    scores, target = classes_on_gpu(41, 3)
    scores[7], target[7] = float("nan"), -100
    loss_fn = sl.MetricLoss("f1", task="multiclass")
    kept = torch.arange(41, device="cuda") != 7
    torch.testing.assert_close(loss_fn(scores, target), loss_fn(scores[kept], target[kept]))


def test_an_index_that_is_no_class_makes_the_loss_nan():
    scores, target = classes_on_gpu(41, 3)
    target[7] = 3
    assert sl.MetricLoss("f1", task="multiclass")(scores, target).isnan()


def losses():
    """A loss of each way, with a batch."""
    return (
        (sl.MetricLoss("f1"), *on_gpu((1271,))),
        (sl.MetricLoss("mcc", task="multilabel"), *on_gpu((1271, 3))),
        (sl.MetricLoss("mcc", task="multiclass"), *classes_on_gpu(1271, 10)),
        (sl.MetricLoss("f1", task="multiclass"), *images_on_gpu(2, 3)),
        (sl.MetricLoss("f1", subject_to="precision >= 0.5"), *on_gpu((1271,))),
        (sl.MetricLoss("f1", blend=0.5), *on_gpu((1271,))),
        (sl.MetricLoss("weighted_kappa", task="multiclass"), *classes_on_gpu(1271, 4)),
        (sl.MetricLoss("f1", task="multiclass", average="weighted", ignore_index=3), *classes_on_gpu(1271, 4)),
        (sl.MetricLoss("f1", memory=sl.Memory(8)), *on_gpu((1271,))),
        (sl.MetricLoss("f1", threshold=(0.3, 0.5)), *on_gpu((1271,))),
        (sl.MetricLoss("mcc", task="multilabel", weight=(1.0, 2.0, 3.0)), *on_gpu((1271, 3))),
        (sl.MetricLoss("f1", task="multilabel", average="samples"), *on_gpu((1271, 3))),
        (sl.MetricLoss("f1", task="multiclass", threshold=(0.0, 0.5, 1.0)), *classes_on_gpu(1271, 3)),
    )


def gradient(run, scores, target):
    leaf = scores.detach().clone().requires_grad_()
    return torch.autograd.grad(run(leaf, target), leaf)[0]


def test_nothing_waits_for_the_gpu():
    for loss_fn, scores, target in losses():
        leaf = scores.requires_grad_()
        loss_fn(leaf, target).backward()  # compiles, which may wait
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss_fn(leaf, target).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_cuda_graphs():
    for loss_fn, scores, target in losses()[:3]:
        expected = gradient(loss_fn, scores, target)
        leaf = torch.zeros_like(scores).requires_grad_()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                leaf.grad = None
                loss_fn(leaf, target).backward()
        torch.cuda.current_stream().wait_stream(side)
        leaf.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = loss_fn(leaf, target)
            loss.backward()
        with torch.no_grad():
            leaf.copy_(scores)
        graph.replay()
        torch.testing.assert_close(loss, plain(loss_fn, scores, target), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-5, atol=1e-8)


def test_torch_compile_and_function_transforms():
    for loss_fn, scores, target in losses()[:3]:
        expected = gradient(loss_fn, scores, target)
        compiled = torch.compile(loss_fn)
        torch.testing.assert_close(gradient(compiled, scores, target), expected, rtol=1e-4, atol=1e-7)
        transformed = torch.func.grad(lambda x, loss_fn=loss_fn, y=target: loss_fn(x, y))(scores)
        torch.testing.assert_close(transformed, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "kept", [{"subject_to": "precision >= 0.9"}, {"memory": sl.Memory(8)}], ids=["constraint", "memory"]
)
def test_the_graphs_of_torch_compile_keep_what_a_loss_remembers(kept):
    loss_fn, eager = (sl.MetricLoss("recall", **kept).cuda() for _ in range(2))
    compiled = torch.compile(loss_fn, mode="reduce-overhead")
    for seed in range(4):
        scores, target = on_gpu((1271,), seed=seed)
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(
            gradient(compiled, scores, target), gradient(eager, scores, target), rtol=1e-4, atol=1e-7
        )
    torch.testing.assert_close(loss_fn.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"metric": "f1"}, TRITON_DECISIONS),
        ({"metric": "f1", "blend": 0.3}, f"{TRITON_COUNTS}: the loss has a blend"),
        ({"metric": "mcc", "task": "multilabel"}, TRITON_DECISIONS),
        ({"metric": "f1", "task": "multiclass", "blend": 0.3, "ignore_index": 1}, TRITON_CLASSES),
        ({"metric": "mcc", "task": "multiclass", "blend": 0.0}, TRITON_CLASSES),
    ],
    ids=str,
)
def test_second_derivatives_and_batches_of_gradients(settings, way, layout):
    loss_fn = sl.MetricLoss(**settings, step="sigmoid")
    scores, target = classes_on_gpu(41, 3) if settings.get("task") == "multiclass" else on_gpu((41, 3))
    if layout == "columns":
        scores = scores.t().contiguous().t()
    assert loss_fn.path_for(scores, target) == way
    found, factors = [], torch.tensor([1.0, 2.0], device="cuda")
    for run in (loss_fn, lambda *batch: plain(loss_fn, *batch)):
        leaf = scores.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        loss = run(leaf, target)
        many = torch.autograd.grad(loss, leaf, factors, is_grads_batched=True, retain_graph=True)[0]
        first = torch.autograd.grad(loss, leaf, create_graph=True)[0]
        # as a penalty beside the loss: a gradient without a graph would be no error there
        found.append((many, torch.autograd.grad(loss + 100 * first.square().sum(), leaf)[0]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)


def test_classes_take_no_more_memory_than_cross_entropy():
    scores, target = classes_on_gpu(8192, 1000, torch.bfloat16)
    peaks = []
    for run in (F.cross_entropy, sl.MetricLoss("f1", task="multiclass")):
        gradient(run, scores, target)
        torch.cuda.reset_peak_memory_stats()
        gradient(run, scores, target)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] <= peaks[0]


def test_what_has_no_kernel_says_so():
    scores, target = on_gpu((41,))
    loss_fn = sl.MetricLoss("f1")
    assert loss_fn.path_for(scores.double(), target) == "plain: no kernels for torch.float64 on CUDA"
    assert "samples are weighted" in loss_fn.path_for(scores, target, torch.ones(41, device="cuda"))
    assert "no kernels for input on cuda and target on cpu" in loss_fn.path_for(scores, target.cpu())
