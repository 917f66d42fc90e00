"""Under torch.distributed the loss is that of the global batch: real processes, compared with one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import stepless as sl

from . import ranks

ROWS = 40
CASES = {
    "binary": ("f1", {}),
    "joint": ("mcc", {}),
    "multiclass": ("f1", {"task": "multiclass"}),
    "matrix": ("weighted_kappa", {"task": "multiclass"}),
    "multilabel": ("f1", {"task": "multilabel"}),
    "samples": ("f1", {"task": "multilabel", "average": "samples"}),
    "blend": ("f1", {"blend": 0.4, "cross_entropy": "balanced"}),
    "constraint": ("recall", {"subject_to": "precision >= 0.9"}),
    "memory": ("f1", {"memory": sl.Memory(4)}),
}
#: Where the shards of a batch begin and end, by number of ranks: even, uneven, and one rank with nothing at all.
SHARDS = {
    1: [[(0, 40)]],
    2: [[(0, 20), (20, 40)], [(0, 33), (33, 40)], [(0, 40), (40, 40)]],
    4: [[(0, 10), (10, 20), (20, 30), (30, 40)], [(0, 17), (17, 34), (34, 40), (40, 40)]],
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def draw(task, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=generator, dtype=dtype)
    if task == "multiclass":
        return x, torch.randint(4, (ROWS,), generator=generator)
    if task == "multilabel":
        return x, torch.randint(2, (ROWS, 4), generator=generator)
    target = (torch.rand(ROWS, 1, generator=generator) < 0.4).long()
    target[20:30] = 0  # the third of four ranks has no positives
    return x, target


def make(name, dtype):
    metric, settings = CASES[name]
    torch.manual_seed(1)
    outputs = 4 if settings.get("task") else 1
    return sl.MetricLoss(metric, **settings), nn.Linear(3, outputs).to(dtype)


def single(name, dtype):
    loss_fn, model = make(name, dtype)
    x, target = draw(loss_fn.path.task, dtype)
    for _ in range(2):  # twice: a memory has something to remember then
        model.zero_grad()
        loss = loss_fn(model(x), target)
        loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()]


def gradients(rank, world):
    """Loss and parameters' gradients of every case, dtype and way to shard, on this rank."""
    results = {}
    for name in CASES:
        for dtype in TOLERANCE:
            for i, shards in enumerate(SHARDS[world]):
                first, last = shards[rank]
                loss_fn, model = make(name, dtype)
                model = DistributedDataParallel(model)
                x, target = draw(loss_fn.path.task, dtype)
                for _ in range(2):
                    model.zero_grad()
                    loss = loss_fn(model(x[first:last]), target[first:last])
                    loss.backward()
                results[name, dtype, i] = loss.item(), [p.grad.tolist() for p in model.parameters()]
    return results


@pytest.mark.parametrize("world", SHARDS)
def test_gradients_are_those_of_one_process(world):
    for results in ranks.run(gradients, world, world):
        for (name, dtype, shards), (loss, grads) in results.items():
            expected_loss, expected = single(name, dtype)
            where = f"{name}, {dtype}, shards {shards}"
            assert loss == pytest.approx(expected_loss, rel=TOLERANCE[dtype]), where
            for ours, theirs in zip(grads, expected, strict=True):
                tolerance = TOLERANCE[dtype] * theirs.abs().max().item()
                torch.testing.assert_close(torch.tensor(ours, dtype=dtype), theirs, rtol=0, atol=tolerance, msg=where)


def summed_by_hand(rank):
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    loss_fn = sl.MetricLoss("f1", gradients="sum")
    rows = slice(rank * 20, rank * 20 + 20)
    loss_fn(model(x[rows]), target[rows]).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    return [p.grad.tolist() for p in model.parameters()]


def test_gradients_that_are_summed_afterwards():
    _, expected = single("binary", torch.float64)
    for grads in ranks.run(summed_by_hand, 2):
        for ours, theirs in zip(grads, expected, strict=True):
            torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-12, atol=1e-14)


def without_asking(rank):
    """What one rank computes alone must not wait for the others: only rank 0 calls."""
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    if rank:
        return None
    scores = model(x)
    values = [loss_fn.score(scores, target), loss_fn.eval()(scores, target)]
    values.append(sl.MetricLoss("f1", sync=False)(scores, target))
    return [value.item() for value in values]


def test_scores_evaluation_and_sync_false_do_not_communicate():
    score, evaluated, alone = ranks.run(without_asking, 2, timeout=20)[0]
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    assert score == loss_fn.score(model(x), target).item()
    assert evaluated == alone == pytest.approx(loss_fn(model(x), target).item())


def asked_in_evaluation(rank):
    x, target = draw("binary", torch.float64)
    _, model = make("binary", torch.float64)
    loss_fn = sl.MetricLoss("f1", sync=True).eval()
    rows = slice(rank * 20, rank * 20 + 20)
    return loss_fn(model(x[rows]), target[rows]).item()


def test_evaluation_communicates_if_asked():
    expected, _ = single("binary", torch.float64)
    assert ranks.run(asked_in_evaluation, 2) == pytest.approx([expected, expected])


def uneven_batches(rank):
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    model = DistributedDataParallel(model)
    losses = []
    with Join([model, loss_fn.reducer]):
        for _ in range(2 + rank):
            loss = loss_fn(model(x), target)
            loss.backward()
            losses.append(loss.item())
    return losses


def test_ranks_with_different_numbers_of_batches_join():
    few, many = ranks.run(uneven_batches, 2)
    assert (len(few), len(many)) == (2, 3)
    assert many[:2] == few
    loss_fn, model = make("binary", torch.float64)
    x, target = draw("binary", torch.float64)
    assert many[2] == pytest.approx(loss_fn(model(x), target).item())


def a_rank_that_is_missing(rank):
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    if rank:
        return None
    try:
        loss_fn(model(x), target)
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_missing_rank_is_an_error_within_the_timeout():
    assert "no error" not in (ranks.run(a_rank_that_is_missing, 2, timeout=5)[0] or "")


def accumulated(rank):
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    model = DistributedDataParallel(model)
    own = range(rank * 20, rank * 20 + 20)
    micro = [(x[own[i] : own[i] + 7], target[own[i] : own[i] + 7]) for i in (0, 7)] + [
        (x[own[14] :][:6], target[own[14] :][:6])
    ]
    loss = sl.accumulate(loss_fn, model, micro)
    return loss.item(), [p.grad.tolist() for p in model.parameters()]


def test_accumulation_on_every_rank():
    loss_fn, model = make("binary", torch.float64)
    x, target = draw("binary", torch.float64)
    expected = loss_fn(model(x), target)
    expected.backward()
    for loss, grads in ranks.run(accumulated, 2):
        assert loss == pytest.approx(expected.item())
        for ours, p in zip(grads, model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), p.grad, rtol=1e-12, atol=1e-14)
