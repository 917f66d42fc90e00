"""Accumulation: the gradient of the whole batch, exactly, whatever it is cut into."""

import copy
import gc
import os
import random
import subprocess
import sys
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepless as sl

CASES = {
    "binary": ("f1", {}),
    "joint": ("mcc", {}),
    "multiclass": ("f1", {"task": "multiclass"}),
    "matrix": ("weighted_kappa", {"task": "multiclass"}),
    "multilabel": ("f1", {"task": "multilabel"}),
    "samples": ("f1", {"task": "multilabel", "average": "samples"}),
    "blend": ("f1", {"blend": 0.4}),
    "constraint": ("recall", {"subject_to": "precision >= 0.9"}),
    "memory": ("f1", {"memory": sl.Memory(4)}),
    "auroc": ("auroc", {}),
    "average precision": ("average_precision", {"task": "multiclass"}),
    "partial auroc": ("partial_auroc", {"task": "multilabel", "max_fpr": 0.3}),
    "recall at precision": ("recall_at_precision", {"precision": 0.6}),
    "precision at k": ("precision_at_k", {"k": 10, "task": "multilabel", "weight": [1, 2, 3, 4]}),
}


def draw(task, dtype=torch.float64, rows=50):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=dtype)
    if task == "multiclass":
        return x, torch.randint(4, (rows,), generator=generator)
    if task == "multilabel":
        return x, torch.randint(2, (rows, 4), generator=generator)
    return x, (torch.rand(rows, 1, generator=generator) < 0.3).long()


def net(outputs, dtype=torch.float64, *layers):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), *layers, nn.Linear(8, outputs)).to(dtype)


def cut(*tensors, size):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("size", [50, 17, 1])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["64", "32"])
def test_gradient_of_the_whole_batch(name, size, dtype, tolerance):
    metric, settings = CASES[name]
    whole, parts = sl.MetricLoss(metric, **settings), sl.MetricLoss(metric, **settings)
    x, target = draw(settings.get("task"), dtype)
    model = net(4 if settings.get("task") else 1, dtype)
    weight = torch.linspace(0.5, 2.0, len(x), dtype=dtype)
    for _ in range(2):  # twice: multipliers and memory have moved by then
        model.zero_grad()
        expected = whole(model(x), target, weight)
        expected.backward()
        wanted = gradients(model)
        model.zero_grad()
        loss = sl.accumulate(parts, model, cut(x, target, weight, size=size))
        torch.testing.assert_close(loss, expected.detach(), rtol=tolerance, atol=tolerance)
        largest = max(g.abs().max().item() for g in wanted)
        for ours, theirs in zip(gradients(model), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * largest)
    assert all(torch.equal(a, b) or torch.allclose(a, b) for a, b in zip(whole.buffers(), parts.buffers(), strict=True))


def test_adding_up_the_micro_batches_losses_is_something_else():
    x, target = draw("binary")
    model, loss_fn = net(1), sl.MetricLoss("f1")
    loss_fn(model(x), target).backward()
    wanted = torch.cat([g.flatten() for g in gradients(model)])
    model.zero_grad()
    parts = cut(x, target, size=5)
    for part in parts:
        (loss_fn(model(part[0]), part[1]) / len(parts)).backward()
    naive = torch.cat([g.flatten() for g in gradients(model)])
    assert torch.cosine_similarity(naive, wanted, 0) < 0.999


def rank_the_whole(loss_fn, scores, targets):
    return loss_fn(torch.cat(scores), torch.cat(targets))


def finish_the_whole(loss_fn, scores, targets):
    states = [loss_fn.measure(a, b) for a, b in zip(scores, targets, strict=True)]
    return loss_fn.finish(sum(states[1:], states[0]))


@pytest.mark.parametrize(("metric", "whole"), [("f1", finish_the_whole), ("auroc", rank_the_whole)])
def test_dropout_is_replayed_and_buffers_move_once(metric, whole):
    x, target = draw("binary")
    model = net(1, torch.float64, nn.Dropout(0.5), nn.BatchNorm1d(8, momentum=0.5))
    twin = copy.deepcopy(model)
    parts = cut(x, target, size=10)
    torch.manual_seed(5)
    sl.accumulate(sl.MetricLoss(metric), model, parts)
    after = torch.rand(1)
    # every micro-batch once, all activations kept
    torch.manual_seed(5)
    whole(sl.MetricLoss(metric), [twin(a) for a, _ in parts], [b for _, b in parts]).backward()
    assert torch.rand(1) == after, "the random numbers go on as after one pass"
    for ours, theirs in zip(gradients(model), gradients(twin), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


class Caching(nn.Module):
    """Its forward makes one buffer, another one longer, a third anew and counts in a fourth."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("made", None)
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.made, self.grown = torch.arange(len(x)), torch.ones(len(x))
        self.register_buffer("late", torch.ones(2))
        self.calls += 1
        return self.linear(x).flatten()


def test_buffers_that_a_forward_makes():
    torch.manual_seed(0)
    x, y = torch.randn(9, 3), torch.arange(9) % 2
    model = Caching()
    loss = sl.accumulate(sl.MetricLoss("f1"), model, [(x[:4], y[:4]), (x[4:], y[4:])])
    assert model.calls == 2, "the first pass leaves nothing"
    assert len(model.made) == len(model.grown) == 5
    whole = Caching()
    whole.load_state_dict({**model.state_dict(), "grown": torch.zeros(1)}, strict=False)
    expected = sl.MetricLoss("f1")(whole(x), y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(model.linear.weight.grad, whole.linear.weight.grad)


def test_several_inputs_and_named_ones():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1, dtype=torch.float64)

        def forward(self, a, b):
            return self.layer(a + b)

    x, target = draw("binary")
    model, loss_fn = Two(), sl.MetricLoss("f1")
    expected = loss_fn(model(x, 2 * x), target)
    named = {"a": x, "b": 2 * x}
    for input in ((x, 2 * x), [x, 2 * x], named, UserDict(named)):  # a tokenizer's output is a UserDict
        torch.testing.assert_close(sl.accumulate(loss_fn, model, [(input, target)]), expected.detach())


@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_scaler_and_autocast(metric):
    x, target = draw("binary", torch.float32)
    model, loss_fn = net(1, torch.float32), sl.MetricLoss(metric)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss_fn(model(x), target).backward()
        wanted = gradients(model)
        model.zero_grad()
        sl.accumulate(loss_fn, model, cut(x, target, size=10), scaler)
    for ours, theirs in zip(gradients(model), wanted, strict=True):
        torch.testing.assert_close(ours / 1024, theirs, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_the_scaler_comes_before_half_precision(metric):
    """Slopes of 1e-9, as a large batch has them, are 0 in half precision unless they are scaled first."""
    scores = torch.linspace(-1, 1, 40, dtype=torch.float16)
    target = (torch.arange(40) % 3 == 0).long()
    weight = torch.full((40,), 1e-9).scatter(0, torch.tensor([5, 6]), 1.0)
    parts = cut(scores, target, weight, size=10)

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.zeros(40, dtype=torch.float16))

        def forward(self, x):
            return x + self.by[((x.float() + 1) * 19.5).round().long()]

    model, scaler = Shift(), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    loss_fn = sl.MetricLoss(metric)
    scaler.scale(loss_fn(model(scores), target, weight)).backward()
    wanted = model.by.grad.clone()
    model.by.grad = None
    sl.accumulate(loss_fn, model, parts, scaler)
    assert ((wanted != 0) & (wanted.abs() < 1e-3)).any(), "what would be lost without the scaler"
    torch.testing.assert_close(model.by.grad, wanted, rtol=2e-3, atol=1e-7)


def test_images_of_different_sizes_are_ranked_together():
    images = [torch.randn(2, 3, size, size + 1, dtype=torch.float64) for size in (4, 7, 1)]
    targets = [(torch.rand(2, 1, *image.shape[2:]) < 0.4).long() for image in images]
    model, loss_fn = nn.Conv2d(3, 1, 1, dtype=torch.float64), sl.MetricLoss("auroc")
    scores = torch.cat([model(image).flatten() for image in images])
    expected = loss_fn(scores, torch.cat([target.flatten() for target in targets]))
    (wanted,) = torch.autograd.grad(expected, model.weight)
    loss = sl.accumulate(loss_fn, model, list(zip(images, targets, strict=True)))
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(model.weight.grad, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_a_micro_batch_without_rows_adds_nothing(metric):
    x, target = draw("binary")
    model, loss_fn = net(1), sl.MetricLoss(metric)
    parts = cut(x, target, size=20)
    loss = sl.accumulate(loss_fn, model, [*parts, (x[:0], target[:0])])
    wanted = gradients(model)
    model.zero_grad()
    assert sl.accumulate(loss_fn, model, parts) == loss
    assert all(map(torch.equal, gradients(model), wanted))


def test_a_shuffled_loader_gives_the_same_batches_twice():
    x, target = draw("binary")
    model, loss_fn = net(1), sl.MetricLoss("f1")
    loss_fn(model(x), target).backward()
    wanted = gradients(model)
    model.zero_grad()
    sl.accumulate(loss_fn, model, DataLoader(TensorDataset(x, target), 8, shuffle=True))
    for ours, theirs in zip(gradients(model), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("change", ["order", "fewer", "more"])
def test_batches_that_change_are_an_error(change):
    x, target = draw("binary")

    class Restless:
        reads = 0

        def __iter__(self):
            self.reads += 1
            parts = cut(x, target, size=10)
            if self.reads == 2:
                parts = {"order": parts[::-1], "fewer": parts[:-1], "more": [*parts, parts[0]]}[change]
            return iter(parts)

    with pytest.raises(ValueError, match=r"gave other batches when read a second time.*zero them, and pass a list"):
        sl.accumulate(sl.MetricLoss("f1"), net(1), Restless())


def test_bad_values_are_found_where_asked_and_leave_no_trace():
    x, target = draw("binary")
    model = net(1, torch.float64, nn.BatchNorm1d(8))
    before = copy.deepcopy(model.state_dict())
    for metric in ("f1", "auroc"):
        loss_fn = sl.MetricLoss(metric, validate=True)
        with pytest.raises(ValueError, match="targets must be 0 or 1"):
            sl.accumulate(loss_fn, model, [(x, target), (x, target + 5)])
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())


def test_a_generator_is_refused():
    x, target = draw("binary")
    with pytest.raises(TypeError, match="read twice, and a generator or iterator can be read once; pass a list"):
        sl.accumulate(sl.MetricLoss("f1"), net(1), (part for part in cut(x, target, size=10)))


def test_a_model_that_is_no_module_is_refused():
    x, target = draw("binary")
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, .*; got function. Put what it does into"):
        sl.accumulate(sl.MetricLoss("f1"), lambda x: x, cut(x, target, size=10))


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda x, y: (x,), "a tuple of length 1"),
        (lambda x, y: {"x": x, "labels": y}, "a dict"),  # its keys would be taken for input and target
        (lambda x, y: x, "a Tensor"),
    ],
)
def test_a_micro_batch_that_is_no_pair_is_refused(change, got):
    x, target = draw("binary")
    sentence = rf"a micro-batch must be \(input, target\) or \(input, target, sample_weight\); got {got}\."
    with pytest.raises(TypeError, match=sentence):
        sl.accumulate(sl.MetricLoss("f1"), net(1), [change(x, target)])


def test_nothing_is_refused():
    with pytest.raises(ValueError, match="micro_batches is empty"):
        sl.accumulate(sl.MetricLoss("f1"), net(1), [])


@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_memory_does_not_grow_with_the_number_of_micro_batches(metric):
    """Activations saved for backward at any one time, counted by the autograd engine's own hook.

    Scores are one number per sample, and a ranking keeps them all; what the model saves are the activations.
    """

    def peak(parts):
        held, most = 0, 0

        def pack(tensor):
            nonlocal held, most
            size = tensor.numel()
            held += size
            most = max(most, held)
            return tensor, size

        def unpack(packed):
            nonlocal held
            held -= packed[1]
            return packed[0]

        class Counted(nn.Sequential):
            def forward(self, x):
                with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                    return super().forward(x)

        x, target = draw("binary", rows=10 * parts)
        gc.collect()
        sl.accumulate(sl.MetricLoss(metric), Counted(net(1)), cut(x, target, size=10))
        return most

    assert 0 < peak(32) <= peak(2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's own account of memory")
@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_peak_memory_of_the_process_is_flat(metric):
    """One micro-batch's activations take 32 MB, the layer before and after ReLU; 16 of them would take 512 MB."""
    program = f"""
import resource, sys, torch, stepless as sl
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 1))
def peak(parts):
    x, y = torch.randn(512 * parts, 4), (torch.rand(512 * parts, 1) < 0.3).long()
    sl.accumulate(sl.MetricLoss({metric!r}), model, list(zip(x.split(512), y.split(512))))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak(2)
before = peak(2)
print((peak(16) - before) / 1024)
"""
    # large blocks go back to the system at once, or the account would hold what the allocator keeps for later
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert float(done.stdout) < 8


def test_a_mean_over_samples_needs_none_of_this():
    with pytest.raises(TypeError, match=r"loss_fn must be a stepless.MetricLoss; got BCEWithLogitsLoss\."):
        sl.accumulate(nn.BCEWithLogitsLoss(), nn.Linear(2, 1), [(torch.zeros(2, 2), torch.zeros(2, 1))])


class Dropping(nn.Module):
    """Scales its output by numbers that are not torch's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)[:, 0] * (1 + random.random()) * (1 + np.random.rand())


def test_random_numbers_that_are_not_torchs_are_replayed():
    model, loss_fn = Dropping(), sl.MetricLoss("f1")
    x, y = torch.randn(12, 3), torch.arange(12) % 3 == 0
    random.seed(0), np.random.seed(0)
    loss_fn(torch.cat([model(part) for part in x.split(4)]), y.float()).backward()
    expected, model.layer.weight.grad = model.layer.weight.grad.clone(), None
    random.seed(0), np.random.seed(0)
    sl.accumulate(loss_fn, model, list(zip(x.split(4), y.float().split(4), strict=True)))
    torch.testing.assert_close(model.layer.weight.grad, expected)
