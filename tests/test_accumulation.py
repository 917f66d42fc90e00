"""Accumulation: the gradient of the whole batch, exactly, whatever it is cut into."""

import copy
import gc

import pytest
import torch
from torch import nn

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
    x, target = draw(whole.path.task, dtype)
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


def test_dropout_is_replayed_and_buffers_move_once():
    x, target = draw("binary")
    model = net(1, torch.float64, nn.Dropout(0.5), nn.BatchNorm1d(8, momentum=0.5))
    twin = copy.deepcopy(model)
    parts = cut(x, target, size=10)
    torch.manual_seed(5)
    sl.accumulate(sl.MetricLoss("f1"), model, parts)
    after = torch.rand(1)
    # the same passes by hand: every micro-batch once, the state's gradient known from the outside
    torch.manual_seed(5)
    loss_fn = sl.MetricLoss("f1")
    states = [loss_fn.measure(twin(a), b) for a, b in parts]
    loss_fn.finish(sum(states[1:], states[0])).backward()
    assert torch.rand(1) == after, "the random numbers go on as after one pass"
    for ours, theirs in zip(gradients(model), gradients(twin), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


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
    for batches in ([((x, 2 * x), target)], [({"a": x, "b": 2 * x}, target)]):
        torch.testing.assert_close(sl.accumulate(loss_fn, model, batches), expected.detach())


def test_scaler_and_autocast():
    x, target = draw("binary", torch.float32)
    model, loss_fn = net(1, torch.float32), sl.MetricLoss("f1")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss_fn(model(x), target).backward()
        wanted = gradients(model)
        model.zero_grad()
        sl.accumulate(loss_fn, model, cut(x, target, size=10), scaler)
    for ours, theirs in zip(gradients(model), wanted, strict=True):
        torch.testing.assert_close(ours / 1024, theirs, rtol=0.05, atol=1e-3)


def test_a_generator_is_refused():
    x, target = draw("binary")
    with pytest.raises(TypeError, match="read twice, and a generator or iterator can be read once; pass a list"):
        sl.accumulate(sl.MetricLoss("f1"), net(1), (part for part in cut(x, target, size=10)))


def test_nothing_is_refused():
    with pytest.raises(ValueError, match="micro_batches is empty"):
        sl.accumulate(sl.MetricLoss("f1"), net(1), [])


def test_memory_does_not_grow_with_the_number_of_micro_batches():
    """Activations saved for backward at any one time, counted by the autograd engine's own hook."""

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

        x, target = draw("binary", rows=10 * parts)
        gc.collect()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            sl.accumulate(sl.MetricLoss("f1"), net(1), cut(x, target, size=10))
        return most

    assert peak(32) <= 1.05 * peak(2)
