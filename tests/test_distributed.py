"""Under torch.distributed the loss is that of the global batch: real processes, compared with one process."""

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
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
    "images": ("jaccard", {"per_image": True}),
    "thresholds": ("f1", {"threshold": (0.3, 0.5)}),
}
#: Where the shards of a batch begin and end, by number of ranks: even, uneven, and one rank with nothing at all.
SHARDS = {
    1: [[(0, 40)]],
    2: [[(0, 20), (20, 40)], [(0, 33), (33, 40)], [(0, 40), (40, 40)]],
    4: [[(0, 10), (10, 20), (20, 30), (30, 40)], [(0, 17), (17, 34), (34, 40), (40, 40)]],
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def draw(name, dtype):
    task = CASES[name][1].get("task", name)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=generator, dtype=dtype)
    if task == "multiclass":
        return x, torch.randint(4, (ROWS,), generator=generator)
    if task in ("multilabel", "images"):
        return x, torch.randint(2, (ROWS, 4), generator=generator)
    target = (torch.rand(ROWS, 1, generator=generator) < 0.4).long()
    target[20:30] = 0  # the third of four ranks has no positives
    return x, target


def make(name, dtype):
    metric, settings = CASES[name]
    torch.manual_seed(1)
    outputs = 4 if settings.get("task") or settings.get("per_image") else 1
    return sl.MetricLoss(metric, **settings), nn.Linear(3, outputs).to(dtype)


def single(name, dtype):
    loss_fn, model = make(name, dtype)
    x, target = draw(name, dtype)
    for _ in range(2):  # twice: a memory has something to remember then
        model.zero_grad()
        # the plain path, which several ranks take: how near the fused one comes to it is another test's business
        loss = loss_fn.settle(loss_fn.measure(model(x), target))
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
                x, target = draw(name, dtype)
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
    _, model = make("binary", torch.float64)
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


def in_two_groups(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x, target = draw("binary", torch.float64)
    _, model = make("binary", torch.float64)
    try:
        sl.MetricLoss("f1", sync=groups[1 - rank // 2])
    except ValueError as error:
        refused = str(error)
    loss_fn = sl.MetricLoss("f1", sync=groups[rank // 2], gradients="sum")
    loss = loss_fn(model(x[rank::4]), target[rank::4])
    loss.backward()
    dist.all_reduce(model.weight.grad, group=groups[rank // 2])
    return loss.item(), model.weight.grad.tolist(), refused


def test_a_process_group_is_a_batch_of_its_own():
    x, target = draw("binary", torch.float64)
    for rank, (loss, grad, refused) in enumerate(ranks.run(in_two_groups, 4)):
        loss_fn, model = make("binary", torch.float64)
        rows = [i for i in range(ROWS) if i % 4 // 2 == rank // 2]
        expected = loss_fn(model(x[rows]), target[rows])
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        torch.testing.assert_close(torch.tensor(grad, dtype=torch.float64), model.weight.grad, rtol=1e-12, atol=1e-14)
        assert "process group that this rank is not a member of; pass the group it belongs to" in refused


def spread(rank):
    """Scores of a model whose weights and rows are DTensors, and what the error says to do with them."""
    mesh = init_device_mesh("cpu", (2,))
    x, target = draw("binary", torch.float64)
    by_rows, refused, found = [Shard(0)], "", []
    for way in ("as they are", "rows", "whole"):
        _, model = make("binary", torch.float64)
        weight = distribute_tensor(model.weight.detach(), mesh, [Replicate()]).requires_grad_()
        scores = distribute_tensor(x, mesh, by_rows) @ weight.T
        if way == "rows":
            truth = distribute_tensor(target, mesh, by_rows).to_local()
            loss = sl.MetricLoss("f1", gradients="sum")(scores.to_local(), truth)
        elif way == "whole":
            loss = sl.MetricLoss("f1", sync=False)(scores.full_tensor(), target)
        else:
            try:
                sl.MetricLoss("f1")(scores, distribute_tensor(target, mesh, by_rows))
            except TypeError as error:
                refused = str(error)
            continue
        loss.backward()
        found.append((loss.item(), weight.grad.full_tensor().tolist()))
    return refused, found


def test_scores_that_are_spread_over_ranks_say_what_to_pass():
    x, target = draw("binary", torch.float64)
    _, model = make("binary", torch.float64)
    expected = sl.MetricLoss("f1")(x @ model.weight.T, target)
    expected.backward()
    for refused, found in ranks.run(spread, 2):
        assert "the scores are a DTensor, which is spread over ranks already" in refused
        for loss, grad in found:
            assert loss == pytest.approx(expected.item(), rel=1e-12)
            torch.testing.assert_close(
                torch.tensor(grad, dtype=torch.float64), model.weight.grad, rtol=1e-12, atol=1e-14
            )


def ranking(rank):
    """Only what needs no other rank may be called by one rank alone."""
    x, target = draw("binary", torch.float64)
    _, model = make("binary", torch.float64)
    scores = model(x[rank::2])
    loss_fn = sl.MetricLoss("auroc")
    refused = []
    for attempt in (
        lambda: loss_fn(scores, target[rank::2]),
        lambda: sl.accumulate(loss_fn, model, [(x[rank::2], target[rank::2])]),
    ):
        try:
            attempt()
        except RuntimeError as error:
            refused.append(str(error))
    alone = sl.MetricLoss("auroc", sync=False)
    values = [alone(scores, target[rank::2]).item()]
    values.append(sl.accumulate(alone, model, [(x[rank::2], target[rank::2])]).item())
    values.append(loss_fn.eval()(scores, target[rank::2]).item())
    return refused, values, loss_fn.score(scores, target[rank::2]).item()


def test_rankings_of_several_ranks_are_refused_unless_each_is_its_own():
    x, target = draw("binary", torch.float64)
    for rank, (refused, values, score) in enumerate(ranks.run(ranking, 2, timeout=20)):
        assert len(refused) == 2
        for sentence in refused:
            assert "'auroc' compares samples with one another, and each of the 2 ranks has its own" in sentence
            assert "Pass sync=False to train on the loss of each rank's own batch" in sentence
        _, model = make("binary", torch.float64)
        loss_fn = sl.MetricLoss("auroc")
        expected = loss_fn(model(x[rank::2]), target[rank::2]).item()
        assert values == pytest.approx([expected] * 3)
        assert score == loss_fn.score(model(x[rank::2]), target[rank::2]).item()


def wide(dtype=torch.float64):
    """A net whose gradients take many more bytes than the loss's sums: a message for another would not fit."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 200), nn.BatchNorm1d(200).eval(), nn.Linear(200, 200), nn.Linear(200, 1)).to(
        dtype
    )


KEEPING = {"memory": ("f1", {"memory": sl.Memory(10)}), "constraint": ("f1", {"subject_to": "precision >= 0.95"})}


def kept_state(rank, name):
    """The first rank has one batch an epoch, the other three."""
    x, target = draw("binary", torch.float64)
    metric, settings = KEEPING[name]
    loss_fn, model = sl.MetricLoss(metric, **settings), DistributedDataParallel(make("binary", torch.float64)[1])
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for _ in range(2):
        with loss_fn.reducer.join(model):
            for part in range(3 if rank else 1):
                rows = slice(20 * rank + 6 * part, 20 * rank + 6 * part + 6)
                optimizer.zero_grad()
                loss_fn(model(x[rows]), target[rows]).backward()
                optimizer.step()
    return [loss_fn.remembered.tolist(), loss_fn.multipliers.tolist()], model.module.weight.tolist()


@pytest.mark.parametrize("name", KEEPING)
def test_a_rank_that_has_run_out_keeps_what_the_others_keep(name):
    (few, weight), (many, weight_too) = ranks.run(kept_state, 2, name)
    assert few == many
    assert weight == weight_too
    x, target = draw("binary", torch.float64)
    metric, settings = KEEPING[name]
    loss_fn, model = sl.MetricLoss(metric, **settings), make("binary", torch.float64)[1]
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for part in [0, 1, 2] * 2:
        rows = [*range(0 if part else 6), *range(20 + 6 * part, 26 + 6 * part)]
        optimizer.zero_grad()
        loss_fn(model(x[rows]), target[rows]).backward()
        optimizer.step()
    alone = [loss_fn.remembered.tolist(), loss_fn.multipliers.tolist()]
    for ours, theirs in zip(few, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    torch.testing.assert_close(torch.tensor(weight, dtype=torch.float64), model.weight.detach(), rtol=1e-6, atol=1e-9)


def functional(rank):
    x, target = draw("binary", torch.float64)
    _, model = make("binary", torch.float64)
    rows = slice(0, 33) if rank == 0 else slice(33, 40)
    with torch.no_grad():
        alone = sl.metric_loss(model(x[rows]), target[rows], "f1").item()
        asked = sl.metric_loss(model(x[rows]), target[rows], "f1", sync=dist.group.WORLD).item()
    refused = ""
    try:
        sl.metric_loss(model(x[rows]), target[rows], "auroc")
    except RuntimeError as error:
        refused = str(error)
    copied = copy.deepcopy(sl.MetricLoss("f1", sync=dist.group.WORLD))
    try:
        pickle.dumps(copied)
    except TypeError as error:
        refused += str(error)
    together = [f(model(x[rows]), target[rows]).item() for f in (partial(sl.metric_loss, metric="f1"), copied)]
    return alone, [asked, *together], refused


def test_the_functional_loss_is_that_of_all_ranks_where_it_trains():
    x, target = draw("binary", torch.float64)
    _, model = make("binary", torch.float64)
    whole = sl.metric_loss(model(x), target, "f1").item()
    for rows, (alone, together, refused) in zip(
        (slice(0, 33), slice(33, 40)), ranks.run(functional, 2, timeout=30), strict=True
    ):
        assert alone == pytest.approx(sl.metric_loss(model(x[rows]), target[rows], "f1").item(), rel=1e-12)
        assert together == pytest.approx([whole] * 3, rel=1e-12)
        assert "'auroc' compares samples with one another" in refused
        assert "a loss with sync=<a process group> cannot be pickled" in refused


def uneven_batches(rank):
    x, target = draw("binary", torch.float64)
    loss_fn = sl.MetricLoss("f1")
    model = DistributedDataParallel(wide())
    refused = []
    for attempt in (
        lambda: loss_fn.reducer.join(model.module),
        lambda: loss_fn.reducer.join(model, divide_by_initial_world_size=False),
    ):
        try:
            attempt()
        except (TypeError, ValueError) as error:
            refused.append(str(error))
    steps = []
    with loss_fn.reducer.join(model):
        try:
            sl.accumulate(loss_fn, model, [(x, target)])
        except RuntimeError as error:
            refused.append(str(error))
        for _ in range(2 + 2 * rank):
            model.zero_grad()
            loss = loss_fn(model(x[rank::2]), target[rank::2])
            loss.backward()
            steps.append((loss.item(), model.module[0].weight.grad.tolist()))
    after = loss_fn(model(x[rank::2]), target[rank::2]).item()  # the ranks are together again
    return refused, steps, after


def test_ranks_with_different_numbers_of_batches_join():
    (refused, few, after), (_, many, after_too) = ranks.run(uneven_batches, 2)
    assert "must be a DistributedDataParallel, whose ranks can join; got Sequential" in refused[0]
    assert "divide_by_initial_world_size=False divides by the ranks that are left" in refused[1]
    assert "leave Join and give a rank that has run out of batches a micro-batch without rows" in refused[2]
    assert (len(few), len(many)) == (2, 4)
    x, target = draw("binary", torch.float64)
    for rows, steps in ((slice(0, None), [*few, *many[:2]]), (slice(1, None, 2), many[2:])):
        model, loss_fn = wide(), sl.MetricLoss("f1")
        expected = loss_fn(model(x[rows]), target[rows])
        expected.backward()
        for loss, grad in steps:
            assert loss == pytest.approx(expected.item(), rel=1e-12)
            ours = torch.tensor(grad, dtype=torch.float64)
            torch.testing.assert_close(ours, model[0].weight.grad, rtol=1e-10, atol=1e-14)
    assert after == after_too == few[0][0]


def no_batch_at_all(rank):
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    model = DistributedDataParallel(model)
    try:
        with loss_fn.reducer.join(model):
            for _ in range(rank):
                loss_fn(model(x), target).backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_rank_without_a_single_batch_says_so():
    idle, busy = ranks.run(no_batch_at_all, 2, timeout=5)
    assert "a rank without a single batch cannot join" in idle
    assert busy != "no error"


def early_end(rank):
    x, target = draw("binary", torch.float64)
    loss_fn, model = make("binary", torch.float64)
    model = DistributedDataParallel(model)
    try:
        with loss_fn.reducer.join(model, throw_on_early_termination=True):
            for _ in range(1 + rank):
                loss_fn(model(x), target).backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_an_early_end_may_be_an_error_on_every_rank():
    assert all("exhausted" in said for said in ranks.run(early_end, 2))


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
    """Ranks with three micro-batches and with one of no rows more, in DDP and in FSDP2, and how often they talk."""
    x, target = draw("binary", torch.float64)
    own = slice(0, 26) if rank else slice(26, 40)
    micro = list(zip(x[own].split(7), target[own].split(7), strict=True))
    micro = micro if rank else [*micro, (x[:0], target[:0])]
    results = []

    model, sent = DistributedDataParallel(wide()), []

    def count(_, bucket):
        sent.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, count)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    loss = sl.accumulate(sl.MetricLoss("f1"), model, micro, scaler)
    results.append((loss.item(), (model.module[0].weight.grad / 256).tolist()))

    sharded = fully_shard(wide(), mesh=init_device_mesh("cpu", (2,)))
    micro = micro if rank else [*micro, (x[:0], target[:0])]  # FSDP gathers weights in each, so all need as many
    loss = sl.accumulate(sl.MetricLoss("f1"), sharded, micro)
    results.append((loss.item(), sharded[0].weight.grad.full_tensor().tolist()))
    return results, len(sent), len(set(sent))


def test_accumulation_on_every_rank():
    model, loss_fn = wide(), sl.MetricLoss("f1")
    x, target = draw("binary", torch.float64)
    expected = loss_fn(model(x), target)
    expected.backward()
    for results, messages, buckets in ranks.run(accumulated, 2):
        for loss, grad in results:
            assert loss == pytest.approx(expected.item(), rel=1e-12)
            ours = torch.tensor(grad, dtype=torch.float64)
            largest = model[0].weight.grad.abs().max().item()
            torch.testing.assert_close(ours, model[0].weight.grad, rtol=0, atol=1e-12 * largest)
        assert messages == buckets, "gradients are sent once, with the last micro-batch"


def normalised(rank):
    """BatchNorm's running statistics, which DDP copies from rank 0 before a forward."""
    x, target = draw("binary", torch.float64)
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
    micro = list(zip(x[rank::2].split(5), target[rank::2].split(5), strict=True))
    for _ in range(2):
        sl.accumulate(sl.MetricLoss("f1"), model, micro)
    model(x)  # the copy
    return model.module[0].running_mean.tolist(), model.module[0].num_batches_tracked.item()


def test_running_statistics_are_those_of_one_pass_over_the_micro_batches():
    x, _ = draw("binary", torch.float64)
    norm = nn.BatchNorm1d(3).double()
    for _ in range(2):
        for part in x[0::2].split(5):
            norm(part)
    norm(x)
    for mean, batches in ranks.run(normalised, 2):
        assert mean == pytest.approx(norm.running_mean.tolist())
        assert batches == norm.num_batches_tracked.item()
