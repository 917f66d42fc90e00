"""Networks stacked along their first dimension, and trained together: all losses and all trials in one pass a step.

A member is a network of one loss and one trial. Members of the same trial start alike and see the same rows in the same
order, whatever their loss; Adam works entry by entry and losses are summed, so members never meet. On a GPU a step is
recorded once and replayed (a CUDA graph): it is small kernels by the hundred. ``PAPERS_EAGER=1`` turns that off.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: Evaluated at once, in rows of all members: bounds the memory of hidden layers.
_ROWS = 2**17


class Loss(Protocol):
    """From scores ``(trials, rows[, classes])`` and targets to a loss a trial; `advance` hears of the progress."""

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor: ...

    def advance(self, progress: float) -> None: ...


@dataclass(frozen=True)
class Plan:
    """How to train: without patience to the last epoch, with it to each member's best one on the validation rows."""

    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    patience: int | None = None
    cosine: bool = False


@dataclass(frozen=True, eq=False)
class Parts:
    """Rows to train, validate and test on, ``(trials, rows)`` each."""

    train: Tensor
    val: Tensor
    test: Tensor

    def to(self, device: str) -> Parts:
        return Parts(self.train.to(device), self.val.to(device), self.test.to(device))

    @classmethod
    def of(cls, splits: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Parts:
        """Of the splits of several trials; where their sizes differ by rounding, the shortest counts."""
        least = [min(len(split[i]) for split in splits) for i in range(3)]
        stacked = [torch.from_numpy(np.stack([s[i][:n] for s in splits])).long() for i, n in enumerate(least)]
        return cls(*stacked)


@dataclass(frozen=True, eq=False)
class Trained:
    """Scores ``(losses, trials, rows[, classes])`` of the validation and test rows, and how training went.

    ``epochs`` is each member's best epoch, ``(losses, trials)``; ``seconds`` is the time of all members together.
    """

    val: Tensor
    test: Tensor
    epochs: np.ndarray
    seconds: float


class Net:
    """What is stacked: define ``__call__`` from rows ``(trials, rows)`` to scores ``(losses, trials, rows, …)``."""

    def __init__(self, losses: int, trials: int, device: str, seed: int) -> None:
        self.losses, self.trials, self.device = losses, trials, device
        self.parameters: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self._generators = [torch.Generator().manual_seed(1000 * seed + t) for t in range(trials)]

    def __call__(self, rows: Tensor, *, training: bool) -> Tensor:
        raise NotImplementedError

    def draw(self, *shape: int, bound: float) -> Tensor:
        """Uniform in ±bound: one draw a trial, repeated for each loss."""
        drawn = torch.stack([torch.empty(shape).uniform_(-bound, bound, generator=g) for g in self._generators])
        tensor = drawn.repeat(self.losses, *[1] * len(shape)).to(self.device).requires_grad_()
        self.parameters.append(tensor)
        return tensor

    def dense(self, widths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Layers from width to width, which start as torch's own do."""
        return [(self.draw(a, b, bound=a**-0.5), self.draw(1, b, bound=a**-0.5)) for a, b in pairwise(widths)]

    def spread(self, x: Tensor) -> Tensor:
        """What each trial sees, for the members of every loss: ``(trials, …)`` to ``(members, …)``."""
        return x.expand(self.losses, *x.shape).reshape(-1, *x.shape[1:])

    def gather(self, x: Tensor) -> Tensor:
        """``(members, …)`` to ``(losses, trials, …)``."""
        return x.unflatten(0, (self.losses, self.trials))


def through(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], *, dropout: float = 0.0, last: bool = False) -> Tensor:
    """``(members, rows, in)`` through dense layers with rectifiers between; ``last`` puts one behind the last, too."""
    for place, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight)
        if last or place + 1 < len(layers):
            x = F.dropout(x.relu(), dropout, training=dropout > 0)
    return x


class Mlp(Net):
    """Rows of a table, standardised by each trial's training rows."""

    def __init__(
        self, matrix: Tensor, parts: Parts, hidden: Sequence[int], outputs: int, losses: int, seed: int,
        *, dropout: float = 0.0, device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(losses, len(parts.train), device, seed)
        self._matrix, self._dropout, self._flat = matrix.to(device), dropout, outputs == 1
        known = self._matrix[parts.train.to(device)]
        self._mean, spread = known.mean(1, keepdim=True), known.std(1, keepdim=True, correction=0)
        self._scale = 1 / torch.where(spread > 0, spread, 1.0)
        self._layers = self.dense((matrix.shape[1], *hidden, outputs))

    def __call__(self, rows: Tensor, *, training: bool) -> Tensor:
        x = (self._matrix[rows] - self._mean) * self._scale
        z = self.gather(through(self.spread(x), self._layers, dropout=self._dropout if training else 0.0))
        return z.squeeze(-1) if self._flat else z


class ConvNet(Net):
    """Images ``(n, channels, side, side)`` of bytes: 3×3 convolutions, each with batch norm, leaky ReLU and pooling.

    The members lie side by side in the channels, as the groups of one convolution.
    """

    def __init__(
        self, images: Tensor, trials: int, channels: Sequence[int], outputs: int, losses: int, seed: int,
        *, device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(losses, trials, device, seed)
        self._images, self._flat = images.to(device), outputs == 1
        members, self._blocks = losses * trials, []
        for fan_in, fan_out in pairwise((images.shape[1], *channels)):
            weight = self.draw(fan_out, fan_in, 3, 3, bound=1 / math.sqrt(9 * fan_in))
            scale = torch.ones(members * fan_out, device=device, requires_grad=True)
            shift = torch.zeros(members * fan_out, device=device, requires_grad=True)
            mean, var = torch.zeros(members * fan_out, device=device), torch.ones(members * fan_out, device=device)
            self.parameters += [scale, shift]
            self.buffers += [mean, var]
            self._blocks.append((weight, scale, shift, mean, var))
        self._head = self.dense((channels[-1], outputs))

    def __call__(self, rows: Tensor, *, training: bool) -> Tensor:
        members, width = self.losses * self.trials, rows.shape[1]
        x = (self._images[rows].float() - 127.5) / 127.5
        x = self.spread(x).transpose(0, 1).flatten(1, 2)  # (rows, members · channels, side, side)
        for weight, scale, shift, mean, var in self._blocks:
            x = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=members)
            x = F.leaky_relu(F.batch_norm(x, mean, var, scale, shift, training=training), 0.1)
            x = F.max_pool2d(x, 2)
        x = x.mean((2, 3)).unflatten(1, (members, -1)).transpose(0, 1).reshape(members, width, -1)
        z = self.gather(through(x, self._head))
        return z.squeeze(-1) if self._flat else z


def train(net: Net, target: Tensor, parts: Parts, losses: Sequence[Loss], plan: Plan, seed: int) -> Trained:
    """Train every member, and score its validation and test rows; ``target`` is a row each, ``(rows[, …])``."""
    begun, device = time.perf_counter(), net.device
    torch.manual_seed(seed)
    target, parts = target.to(device), parts.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    trials, size = parts.train.shape
    steps = math.ceil(size / plan.batch_size)
    rows = torch.zeros(trials, size // steps, dtype=torch.long, device=device)
    rate = torch.tensor(plan.learning_rate, device=device)
    optimiser = torch.optim.Adam(net.parameters, lr=rate, fused=True, capturable=device.startswith("cuda"))

    def step() -> None:
        optimiser.zero_grad()
        z, y = net(rows, training=True), _flat(target[rows])
        torch.stack([loss(z[i], y).sum() for i, loss in enumerate(losses)]).sum().backward()
        optimiser.step()

    rows.copy_(parts.train[:, : rows.shape[1]])
    move = _recorded(step, net, optimiser) if device.startswith("cuda") and "PAPERS_EAGER" not in os.environ else step
    best = _Best(net, len(losses), trials)
    for epoch in range(plan.epochs):
        order = torch.rand(trials, size, generator=generator, device=device).argsort(1)
        shuffled = parts.train.gather(1, order)
        for place in range(steps):
            progress = (epoch + place / steps) / plan.epochs
            for loss in losses:
                loss.advance(progress)
            if plan.cosine:
                rate.fill_(plan.learning_rate * (1 + math.cos(math.pi * progress)) / 2)
            rows.copy_(shuffled[:, place * rows.shape[1] : (place + 1) * rows.shape[1]])
            move()
        if plan.patience is not None:
            best.judge(_validated(net, target, parts.val, losses), epoch + 1, plan.patience)
            if epoch % 10 == 9 and not best.running.any():
                break
    epochs = np.full((len(losses), trials), plan.epochs)
    if plan.patience is not None:
        best.restore()
        epochs = best.epoch.cpu().numpy()
    return Trained(scored(net, parts.val).cpu(), scored(net, parts.test).cpu(), epochs, time.perf_counter() - begun)


@torch.no_grad()
def scored(net: Net, rows: Tensor) -> Tensor:
    """Scores of these rows, a few at a time."""
    width = max(1, _ROWS // (net.losses * net.trials))
    return torch.cat([net(part, training=False) for part in rows.split(width, 1)], 2)


def _flat(target: Tensor) -> Tensor:
    """The targets of the parts that a row may have follow each other, as their scores do."""
    return target.flatten(1) if target.dim() > 2 else target


@torch.no_grad()
def _validated(net: Net, target: Tensor, rows: Tensor, losses: Sequence[Loss]) -> Tensor:
    z, y = scored(net, rows), _flat(target[rows])
    return torch.stack([loss(z[i], y) for i, loss in enumerate(losses)])


class _Best:
    """Each member's best weights, and whether it still waits for better ones."""

    def __init__(self, net: Net, losses: int, trials: int) -> None:
        self._net, self._now = net, [*net.parameters, *net.buffers]
        self._kept = [tensor.detach().clone() for tensor in self._now]
        self._loss = torch.full((losses, trials), math.inf, device=net.device)
        self.epoch = torch.zeros(losses, trials, dtype=torch.long, device=net.device)
        self.running = torch.ones(losses, trials, dtype=torch.bool, device=net.device)

    @torch.no_grad()
    def judge(self, loss: Tensor, epoch: int, patience: int) -> None:
        better = self.running & (loss < self._loss)
        self._loss, self.epoch = torch.where(better, loss, self._loss), torch.where(better, epoch, self.epoch)
        self.running &= epoch - self.epoch < patience
        members = better.flatten()
        for kept, now in zip(self._kept, self._now, strict=True):
            apart = now.unflatten(0, (len(members), -1))  # batch norm keeps its members in one row
            kept.unflatten(0, (len(members), -1))[members] = apart[members]

    @torch.no_grad()
    def restore(self) -> None:
        for kept, now in zip(self._kept, self._now, strict=True):
            now.copy_(kept)


def _recorded(step: Callable[[], None], net: Net, optimiser: torch.optim.Optimizer) -> Callable[[], None]:
    """The step as a CUDA graph; what the first, unrecorded steps changed is put back."""
    now = [*net.parameters, *net.buffers]
    before = [tensor.detach().clone() for tensor in now]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    optimiser.zero_grad()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, value in zip(now, before, strict=True):
            tensor.copy_(value)
        for state in optimiser.state.values():
            for value in state.values():
                value.zero_()
    return graph.replay
