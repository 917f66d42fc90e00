"""Accelerate wraps the model, and the loss needs no setting for it: two real processes equal one."""

import contextlib

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepless as sl
from tests import ranks

ROWS, BATCH = 48, 16
TASKS = {"binary": ("f1", 1), "multiclass": ("mcc", 3), "multilabel": ("f1", 3)}


def draw(task):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator)
    if task == "binary":
        return x, (x[:, :1] > 0.3).float()
    return x, x[:, :3].argmax(1) if task == "multiclass" else (x[:, :3] > 0.2).float()


@contextlib.contextmanager
def as_launched(rank, world):
    """What ``accelerate launch`` sets and keeps; one process is launched by nobody."""
    try:
        with ranks.as_torchrun(rank, world) if world > 1 else contextlib.nullcontext():
            yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState._reset_state()
        GradientState._reset_state()


def train(rank, world, task, micro_batches):
    with as_launched(rank, world):
        accelerator = Accelerator(cpu=True)
        metric, outputs = TASKS[task]
        torch.manual_seed(0)
        model, loss_fn = nn.Linear(4, outputs), sl.MetricLoss(metric, task=task)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loader = DataLoader(TensorDataset(*draw(task)), BATCH // world)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                if micro_batches:  # in place of accelerator.accumulate, which averages the micro-batches' own losses
                    parts = zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True)
                    sl.accumulate(loss_fn, model, list(parts))
                else:
                    accelerator.backward(loss_fn(model(x), y))
                optimizer.step()
        return accelerator.unwrap_model(model).weight.detach(), accelerator.num_processes


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("micro_batches", [0, 2])
def test_two_processes_are_one(task, micro_batches):
    alone, _ = train(0, 1, task, 0)
    for weight, processes in ranks.run(train, 2, 2, task, micro_batches):
        assert processes == 2
        torch.testing.assert_close(weight, alone, rtol=1e-4, atol=1e-6)
