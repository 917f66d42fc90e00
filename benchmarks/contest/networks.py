"""The networks of the contest: all folds of a contestant trained together, as stacked weights, in a plain loop.

Architecture, epochs, batch size and optimiser are those of a default `stepless.MetricClassifier`: the settings are read
from it. Batches hold their share of each class, there as here. A contestant is what its loss is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import stepless as sl
from stepless.tabular.ensembles.portfolio import automatic_plan

#: From logits ``(nets, rows, outputs)``, target ``(nets, rows, …)`` and progress in [0, 1] to a loss for each net.
Loss = Callable[[Tensor, Tensor, float], Tensor]

_SETTINGS = sl.MetricClassifier().get_params()
if _SETTINGS["dropout"] or _SETTINGS["early_stopping"]:
    raise ValueError("a default MetricClassifier has dropout or stops early; these networks must then, too.")


@dataclass(frozen=True, eq=False)
class Rows:
    """What the nets of a contestant are trained on.

    Attributes:
        matrix: Features, ``(rows, columns)``.
        target: Of the same rows.
        parts: For each net, the rows it sees.
    """

    matrix: Tensor
    target: Tensor
    parts: Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class Nets:
    """Trained nets; ``seconds`` is the processor time that one of them took."""

    weights: list[Tensor]
    biases: list[Tensor]
    seconds: float

    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(nets, rows, outputs)`` of ``(nets, rows, columns)``."""
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if place + 1 < len(self.weights):
                x = x.relu()
        return x


def train(rows: Rows, outputs: int, loss: Loss, seeds: Sequence[int]) -> Nets:
    """Train a net for each part of the rows; nets of one seed start alike, whatever their loss."""
    begun = time.process_time()
    size = max(len(part) for part in rows.parts)
    keys = ("epochs", "batch_size", "learning_rate", "weight_decay")
    plan = automatic_plan(size, **{key: _SETTINGS[key] for key in keys})
    steps = max(1, round(size / plan.batch_size))
    nets = _start((rows.matrix.shape[1], *_SETTINGS["hidden"], outputs), seeds)
    optimiser = torch.optim.AdamW(
        [{"params": nets.weights, "weight_decay": plan.weight_decay}, {"params": nets.biases, "weight_decay": 0.0}],
        lr=plan.learning_rate, fused=True,
    )  # fmt: skip
    order = _Order(rows, steps, seeds)
    for epoch in range(plan.epochs):
        index = torch.from_numpy(order.draw())
        for step in range(steps):
            progress = (epoch + step / steps) / plan.epochs
            for group in optimiser.param_groups:
                group["lr"] = plan.learning_rate * (1 + math.cos(math.pi * progress)) / 2
            batch = index[:, step]
            x = rows.matrix.index_select(0, batch.flatten()).view(*batch.shape, -1)
            losses = loss(nets(x), rows.target[batch], progress)
            optimiser.zero_grad()
            losses.sum().backward()
            optimiser.step()
    for tensor in (*nets.weights, *nets.biases):
        tensor.requires_grad_(requires_grad=False)
    return Nets(nets.weights, nets.biases, (time.process_time() - begun) / len(seeds))


def _start(widths: Sequence[int], seeds: Sequence[int]) -> Nets:
    """Glorot's uniform weights, and biases of 0."""
    weights, biases = [], []
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for fan_in, fan_out in pairwise(widths):
        bound = math.sqrt(6 / (fan_in + fan_out))
        drawn = [torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=g) for g in generators]
        weights.append(torch.stack(drawn).requires_grad_())
        biases.append(torch.zeros(len(seeds), 1, fan_out, requires_grad=True))
    return Nets(weights, biases, 0.0)


class _Order:
    """Batches of an epoch in which every net has its own rows, and every batch its share of each class."""

    def __init__(self, rows: Rows, steps: int, seeds: Sequence[int]) -> None:
        self._parts, self._steps = rows.parts, steps
        self._width = math.ceil(max(len(part) for part in rows.parts) / steps)
        self._random = [np.random.default_rng(seed) for seed in seeds]
        target = rows.target.numpy()
        self._classes = [target[part].astype(np.int64) if target.ndim == 1 else np.zeros(len(part), np.int64)
                         for part in rows.parts]  # fmt: skip

    def draw(self) -> np.ndarray:
        """Row numbers ``(nets, steps, rows)``; a net with fewer rows than the others sees some of them twice."""
        drawn = []
        for part, classes, random in zip(self._parts, self._classes, self._random, strict=True):
            counts = np.bincount(classes)
            mixed = np.lexsort((random.random(len(part)), classes))
            first = np.concatenate([[0], counts.cumsum()[:-1]])
            place = np.arange(len(part)) - first[classes[mixed]]
            key = (place + random.random(len(counts))[classes[mixed]]) / counts[classes[mixed]]
            drawn.append(np.resize(part[mixed[np.argsort(key)]], self._steps * self._width))
        return np.stack(drawn).reshape(len(drawn), self._steps, self._width)
