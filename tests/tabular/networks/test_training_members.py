"""Members trained together: alone and together are the same, each keeps its own best, and a kill loses nothing."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import stepless as sl
from stepless.tabular.networks.batches import Data
from stepless.tabular.networks.checkpoints import CheckpointError
from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.networks.metric_objectives import Blend, CostWeighted, OnMetric
from stepless.tabular.networks.nets import Architecture, Members
from stepless.tabular.networks.objectives import CrossEntropy, Losses
from stepless.tabular.networks.training import Plan, train

OUTPUTS = {"binary": 1, "multiclass": 3, "multilabel": 2}
PORTFOLIO = {
    "cross_entropy": CrossEntropy,
    "metric": lambda task: OnMetric("f1", task),
    "blend": lambda task: Blend(OnMetric("f1", task), sl.Schedule(blend=(1.0, 0.0), until=0.8)),
    "cost_weighted": lambda task: CostWeighted(OnMetric("f1", task)),
}


def table(task="binary", rows=120, weighted=False, seed=0):
    """Features, a target that they explain in part, and weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    score = x @ torch.randn(4, OUTPUTS[task], generator=generator) + torch.randn(
        rows, OUTPUTS[task], generator=generator
    )
    target = score.argmax(1) if task == "multiclass" else (score > 0.6).float()
    target = target.squeeze(1) if task == "binary" else target
    return x, target, torch.rand(rows, generator=generator) + 0.1 if weighted else None


def folds(task="binary", members=3, rows=120, weighted=False, repeats=1):
    x, y, w = table(task, rows, weighted)
    held = [torch.arange(m, rows, members) for m in range(members)]
    rest = [torch.tensor([i for i in range(rows) if i % members != m]) for m in range(members)]
    return Data(x, y, tuple(rest) * repeats, tuple(held) * repeats, w)


def nets(task="binary", members=3, seeds=None):
    return Members(Architecture("mlp", 4, OUTPUTS[task], (8,)), members, seeds or range(members))


def same(a, b):
    return all(torch.equal(a.tensors()[name], b.tensors()[name]) for name in a.tensors())


def only(data, m):
    return replace(data, rows=(data.rows[m],), held=(data.held[m],))


PLAN = Plan(epochs=6, batch_size=20, learning_rate=0.01, patience=3)

# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", OUTPUTS)
def test_a_portfolio_trained_together_is_its_members_trained_alone(task, weighted):
    data = folds(task, weighted=weighted, repeats=len(PORTFOLIO))
    seeds = [0, 1, 2] * len(PORTFOLIO)
    together = nets(task, 12, seeds)
    losses = Losses([(make(task), 3) for make in PORTFOLIO.values()])
    history = train(together, data, losses, PLAN, seeds)
    assert np.isfinite(history.train).all()
    for m in range(12):
        alone = nets(task, 1, seeds[m : m + 1])
        make = list(PORTFOLIO.values())[m // 3]
        own = train(alone, only(data, m), Losses([(make(task), 1)]), PLAN, seeds[m : m + 1])
        epochs = len(own.train)
        np.testing.assert_allclose(history.train[:epochs, m], own.train[:, 0], rtol=1e-3)
        assert history.best[m] == own.best[0]
        for name, tensor in alone.tensors().items():
            torch.testing.assert_close(together.tensors()[name][m : m + 1], tensor, rtol=1e-3, atol=1e-4)


def test_the_same_seed_gives_the_same_bits_and_torchs_random_numbers_are_left_alone():
    before, runs = torch.get_rng_state(), []
    for _ in range(2):
        members = nets()
        runs.append((members, train(members, folds(), Losses([(OnMetric("f1", "binary"), 3)]), PLAN, seed=3)))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(runs[0][0], runs[1][0])
    assert np.array_equal(runs[0][1].train, runs[1][1].train)
    other = nets()
    train(other, folds(), Losses([(OnMetric("f1", "binary"), 3)]), PLAN, seed=4)
    assert not same(runs[0][0], other)


def test_a_member_learns_from_its_own_rows_alone():
    data, first = replace(folds(), held=(torch.arange(0),) * 3), nets()
    train(first, data, Losses([(CrossEntropy("binary"), 3)]), Plan(epochs=3, batch_size=20), seed=0)
    target = data.target.clone()
    target[::3] = 1 - target[::3]  # seen in training by the members 1 and 2 only
    second = nets()
    train(second, replace(data, target=target), Losses([(CrossEntropy("binary"), 3)]), Plan(epochs=3, batch_size=20), 0)
    changed = [not torch.equal(*(n.tensors()["weights.0"][m] for n in (first, second))) for m in range(3)]
    assert changed == [False, True, True]


@pytest.mark.parametrize("name", PORTFOLIO)
@pytest.mark.parametrize("task", OUTPUTS)
def test_training_learns(name, task):
    data = folds(task, rows=300)
    members = nets(task)
    before = members(data.matrix)
    train(members, data, Losses([(PORTFOLIO[name](task), 3)]), Plan(epochs=30, batch_size=50, learning_rate=0.01), 0)
    settings = {"task": task} if task == "binary" else {"task": task, "average": "macro"}
    for m in range(3):
        held = data.held[m]
        old, new = (
            sl.score(z[m][held].squeeze(1) if task == "binary" else z[m][held], data.target[held], "f1", **settings)
            for z in (before, members(data.matrix))
        )
        assert new > max(old, 0.5)


def test_every_member_keeps_its_own_best_epoch():
    data, members = folds(), nets()
    losses = Losses([(CrossEntropy("binary"), 3)])
    plan = Plan(epochs=60, batch_size=10, learning_rate=0.05, patience=4)
    history = train(members, data, losses, plan, seed=0)
    epochs = len(history.train)
    assert epochs < 60  # all stopped
    assert epochs == max(history.best) + 4
    for m, best in enumerate(history.best):
        until = history.held[: best + 4, m]  # afterwards it runs along, and nothing counts any more
        assert best == until.argmin() + 1
        z = members(data.matrix[data.held[m]])[m : m + 1]
        loss = losses.eval().objectives[0](z, data.target[data.held[m]][None])
        assert loss.item() == pytest.approx(until.min(), rel=1e-5)


def test_a_member_without_held_out_rows_keeps_the_last_epoch():
    data = folds()
    data = replace(data, held=(data.held[0], torch.arange(0), data.held[2]))
    plan = Plan(epochs=40, batch_size=10, learning_rate=0.05, patience=2)
    history = train(nets(), data, Losses([(CrossEntropy("binary"), 3)]), plan, seed=0)
    assert history.best[1] == len(history.train) == 40
    assert max(history.best[[0, 2]]) < 40
    assert np.isnan(history.held[:, 1]).all()
    nothing = replace(data, held=(torch.arange(0),) * 3)
    history = train(nets(), nothing, Losses([(CrossEntropy("binary"), 3)]), replace(plan, epochs=3), seed=0)
    assert history.best.tolist() == [3, 3, 3]


def test_folds_of_different_sizes_are_judged_on_their_own_rows():
    data = folds(rows=121)  # 41, 40 and 40 held out
    seen = []

    def monitor(logits, target, weight):
        seen.append(weight)
        return Losses([(CrossEntropy("binary"), 3)])(logits, target, weight)

    members = nets()
    history = train(members, data, Losses([(CrossEntropy("binary"), 3)]), replace(PLAN, epochs=2), 0, monitor=monitor)
    assert seen[0].sum(1).tolist() == [41, 40, 40]
    alone = nets(members=1, seeds=[1])
    train(alone, only(data, 1), Losses([(CrossEntropy("binary"), 1)]), replace(PLAN, epochs=2), [0])
    z = members(data.matrix[data.held[1]])[1:2]
    expected = CrossEntropy("binary")(z, data.target[data.held[1]][None]).item()
    assert history.held[history.best[1] - 1, 1] == pytest.approx(expected, rel=1e-5)


def test_a_monitor_says_what_is_best():
    def monitor(logits, target, weight):
        return torch.tensor([1.0, 2.0, 3.0]) * next(calls)

    calls = iter([3.0, 1.0, 2.0, 5.0])
    history = train(nets(), folds(), Losses([(CrossEntropy("binary"), 3)]), Plan(epochs=4), 0, monitor=monitor)
    assert history.best.tolist() == [2, 2, 2]
    assert history.held[:, 1].tolist() == [6.0, 2.0, 4.0, 10.0]
    with pytest.raises(ValueError, match="a number for each of the 3 members; got nan"):
        train(
            nets(), folds(), Losses([(CrossEntropy("binary"), 3)]), PLAN, 0, monitor=lambda *_: torch.tensor(torch.nan)
        )


def test_clipping_looks_at_each_member_by_itself():
    data = folds()
    wild = replace(data, matrix=data.matrix.clone())
    wild.matrix[data.rows[2]] *= 1e4  # member 0 and 1 see some of it too, so give them rows of their own
    wild = replace(wild, rows=(data.held[2][:20], data.held[2][20:], data.rows[2]), held=(torch.arange(0),) * 3)
    plan = Plan(epochs=2, batch_size=10, clip=0.1, weight_decay=0.1)
    together = nets()
    train(together, wild, Losses([(CrossEntropy("binary"), 3)]), plan, [0, 1, 2])
    # member 0 alone: its steps of an epoch are those of the largest member, so it needs as many rows as that one
    pair = nets(members=2, seeds=[0, 2])
    two = replace(wild, rows=wild.rows[::2], held=wild.held[::2])
    train(pair, two, Losses([(CrossEntropy("binary"), 2)]), plan, [0, 2])
    torch.testing.assert_close(together.tensors()["weights.0"][0], pair.tensors()["weights.0"][0])
    assert all(bool(t.isfinite().all()) for t in together.tensors().values())


def test_weights_decay_and_biases_do_not():
    data = replace(folds(), matrix=torch.zeros(120, 4), target=torch.full((120,), 0.5))
    plan = Plan(epochs=1, batch_size=80, learning_rate=0.1, weight_decay=0.5)
    members = nets()
    start = {name: tensor.clone() for name, tensor in members.tensors().items()}
    train(members, data, Losses([(CrossEntropy("binary"), 3)]), plan, 0)
    # nothing to learn: all values are 0, so what is left of a weight is what decay left
    torch.testing.assert_close(members.tensors()["weights.0"], start["weights.0"] * (1 - 0.1 * 0.5))
    assert torch.equal(members.tensors()["biases.0"], start["biases.0"])


def test_the_learning_rate_may_fall_to_nothing():
    moved = {}
    for decay in ("none", "cosine"):
        positions, members = [], nets()

        def note(epoch, epochs, losses, members=members, positions=positions):
            positions.append(members.tensors()["weights.0"].clone())

        plan = Plan(epochs=10, batch_size=80, decay=decay)
        train(
            members,
            replace(folds(), held=(torch.arange(0),) * 3),
            Losses([(CrossEntropy("binary"), 3)]),
            plan,
            0,
            report=note,
        )
        moved[decay] = [(b - a).norm() for a, b in pairwise(positions)]
    assert moved["cosine"][-1] < 0.2 * moved["cosine"][0]
    assert moved["none"][-1] > 0.5 * moved["none"][0]


def test_reports_tell_the_epoch_and_the_losses():
    seen = []
    history = train(
        nets(),
        folds(),
        Losses([(CrossEntropy("binary"), 3)]),
        Plan(epochs=3),
        0,
        report=lambda *args: seen.append(args),
    )
    assert [(epoch, epochs) for epoch, epochs, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert np.array_equal(np.array([losses for *_, losses in seen]), history.train)


def test_a_factorys_members_train_with_their_buffers():
    def factory():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    runs = []
    for _ in range(2):
        members = FactoryMembers(factory, 3, (0, 1, 2))
        runs.append((members, train(members, folds(), Losses([(OnMetric("f1", "binary"), 3)]), PLAN, 0)))
    (members, history), (again, _) = runs
    assert same(members, again)
    assert members.tensors()["1.num_batches_tracked"].tolist() == (history.best * 4).tolist()  # 80 rows, 20 at a time
    assert (history.train[-1] < history.train[0]).all()


def test_a_factorys_members_take_the_steps_of_torchs_own_optimiser():
    """Vmap gives the gradient of a linear layer transposed in memory, and the fused AdamW reads memory in order."""

    def factory():
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1))

    x, y, _ = table()
    members = FactoryMembers(factory, 2, (0, 1))
    modules = [factory() for _ in range(2)]
    for place, module in enumerate(modules):
        module.load_state_dict({name: tensor[place] for name, tensor in members.tensors().items()})
    every, none = (torch.arange(120),) * 2, (torch.arange(0),) * 2
    plan = Plan(epochs=8, batch_size=120, learning_rate=0.02)
    train(members, Data(x, y, every, none), Losses([(CrossEntropy("binary"), 2)]), plan, 0)
    for place, module in enumerate(modules):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.02, weight_decay=0.0, fused=False)
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(module(x)[:, 0], y).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            torch.testing.assert_close(members.tensors()[name][place], value, rtol=1e-3, atol=1e-4)


def test_frozen_parameters_of_a_factory_stay_as_they_are():
    def factory():
        return nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 1))

    members = FactoryMembers(factory, 3, (0, 1, 2))
    before = {name: value.clone() for name, value in members.tensors().items()}
    train(members, folds(), Losses([(CrossEntropy("binary"), 3)]), replace(PLAN, weight_decay=0.1), 0)
    moved = {name for name, value in members.tensors().items() if not torch.equal(value, before[name])}
    assert moved == {"2.weight", "2.bias"}


def test_a_ranking_can_be_trained_on():
    history = train(nets(), folds(), Losses([(OnMetric("auroc", "binary"), 3)]), PLAN, 0)
    assert (history.train[-1] < history.train[0]).all()


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"losses": Losses([(CrossEntropy("binary"), 2)])}, ValueError, "3 members, rows for 3 and losses for 2"),
        ({"seed": [1, 2]}, ValueError, "one for each of the 3 members; got 2"),
        ({"plan": Plan(epochs=50, learning_rate=1e30, batch_size=5)}, FloatingPointError, "lower learning_rate"),
    ],
)
def test_training_that_cannot_work_is_refused(change, error, sentence):
    usual = {"losses": Losses([(CrossEntropy("binary"), 3)]), "plan": PLAN, "seed": 0}
    with pytest.raises(error, match=sentence):
        train(nets(), folds(), **{**usual, **change})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1 up; got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"patience": 0}, "patience must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number above 0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number from 0"),
        ({"clip": 0}, "clip must be a number above 0"),
        ({"decay": "step"}, 'decay must be "none" or "cosine"'),
    ],
)
def test_a_plan_that_cannot_work_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Plan(**change)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------------------------------


def portfolio_run(checkpoint=None, plan=PLAN, seed=0, data=None, report=None, every=0.0):
    members = nets("binary", 15, [0, 1, 2] * 5)
    objectives = [make("binary") for make in PORTFOLIO.values()]
    objectives.append(OnMetric("f1", "binary", subject_to="recall >= 0.9"))
    data = folds(repeats=5, weighted=True) if data is None else data
    history = train(
        members, data, Losses([(o, 3) for o in objectives]), plan, seed,
        checkpoint=checkpoint, checkpoint_every=every, report=report,
    )  # fmt: skip
    return members, history


class StoppedError(Exception):
    pass


def stop_at(stop):
    def report(epoch, epochs, losses):
        if epoch == stop:
            raise StoppedError

    return report


@pytest.mark.parametrize("patience", [None, 2])
def test_a_run_that_was_stopped_goes_on_to_the_same_end(tmp_path, patience):
    plan, path = replace(PLAN, patience=patience, decay="cosine", weight_decay=0.01), tmp_path / "run.safetensors"
    whole, history = portfolio_run(plan=plan)
    for stop in (1, 2, 4):
        with pytest.raises(StoppedError):
            portfolio_run(path, plan, report=stop_at(stop))
    resumed, again = portfolio_run(path, plan)
    assert same(whole, resumed)
    for name in ("train", "held", "best"):
        assert np.array_equal(getattr(history, name), getattr(again, name), equal_nan=name != "best")
    finished, _ = portfolio_run(path, plan, report=stop_at(0))  # nothing is left to do
    assert same(whole, finished)
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_factorys_run_goes_on_to_the_same_end(tmp_path):
    def run(checkpoint=None, report=None):
        members = FactoryMembers(
            lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)), 3, (0, 1, 2)
        )
        losses = Losses([(CrossEntropy("binary"), 3)])
        train(members, folds(), losses, PLAN, 0, checkpoint=checkpoint, checkpoint_every=0.0, report=report)
        return members

    path = tmp_path / "run"
    with pytest.raises(StoppedError):
        run(path, stop_at(2))
    assert same(run(path), run())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"plan": replace(PLAN, learning_rate=0.02)},
        {"data": replace(folds(repeats=5, weighted=True), target=1 - folds().target)},
        {"data": replace(folds(repeats=5, weighted=True), weight=None)},
        {"data": replace(folds(repeats=5, weighted=True), held=(torch.arange(5),) * 15)},
    ],
)
def test_the_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path, change):
    path = tmp_path / "run"
    with pytest.raises(StoppedError):
        portfolio_run(path, report=stop_at(1))
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"belongs to another training run.*Delete it to start afresh"):
        portfolio_run(path, **change)
    assert path.read_bytes() == before


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(StoppedError):
        portfolio_run(path, report=stop_at(1))
    whole = path.read_bytes()
    for damaged in (b"", b"hello", whole[:100], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"damaged|no checkpoint"):
            portfolio_run(path)
    generator = np.random.default_rng(0)
    for _ in range(30):
        changed = bytearray(whole)
        changed[generator.integers(len(whole))] ^= 1 << generator.integers(8)
        path.write_bytes(bytes(changed))
        with pytest.raises(CheckpointError, match=r"Delete it to start afresh"):
            portfolio_run(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        portfolio_run(path)


SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import test_training_members as tests
plan = tests.replace(tests.PLAN, epochs=int(sys.argv[2]), patience=None)
checkpoint = Path(sys.argv[3])
members, _ = tests.portfolio_run(checkpoint, plan, report=lambda *_: print("epoch", flush=True))
torch.save(members.tensors(), checkpoint.with_suffix(".pt"))
"""


def check_kills(tmp_path, kills, seed):
    """A run that is killed at random moments ends as one that is not; they are processes of their own."""
    generator, epochs = np.random.default_rng(seed), 25 * (1 + kills)
    whole, killed = tmp_path / "whole.run", tmp_path / "killed.run"

    def start(checkpoint):
        command = [sys.executable, "-c", SCRIPT, os.path.dirname(__file__), str(epochs), str(checkpoint)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    undisturbed = start(whole)
    for _ in range(kills):
        process = start(killed)
        assert process.stdout.readline() == b"epoch\n"  # one more is done
        time.sleep(generator.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL  # it had not come to its end
    for process in (start(killed), undisturbed):
        process.communicate()
        assert process.returncode == 0
    expected, found = (torch.load(path.with_suffix(".pt"), weights_only=True) for path in (whole, killed))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    check_kills(tmp_path, kills=1, seed=0)


@pytest.mark.full
def test_a_run_killed_twenty_times_goes_on_to_the_same_end(tmp_path):
    check_kills(tmp_path, kills=20, seed=1)
