"""The two networks of AnyLoss, trained for all folds at once: a logistic unit, and one with a hidden layer of two.

The folds of a set are columns: a loss sees logits ``(rows, nets)`` and a target of the same shape that is −100 where a
row is not for that net. A metric's loss over columns is that of a multilabel task, label by label; the sum of the
columns' losses moves every net as its own loss would. Rows are standardised for each net by the rows it is trained on;
an affine map of the features, so it is folded into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import stepless as sl

IGNORED = -100
#: What a loss is called, the metric it aims at, and that metric's options.
METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy", {}),
    "f1": ("f1", {}),
    "f05": ("f_beta", {"beta": 0.5}),
    "f2": ("f_beta", {"beta": 2.0}),
    "g_mean": ("g_mean", {}),
    "balanced_accuracy": ("balanced_accuracy", {}),
}

#: From logits ``(rows, nets)`` and a target of that shape to the sum of the nets' losses.
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """A loss and how fast it is followed.

    Attributes:
        name: ``"bce"``, ``"mse"``, ``"delta"`` (squares of a linear unit on ±1), or a key of `METRICS`, alone for
            AnyLoss or after ``"sol:"`` for a score-oriented loss and ``"linear:"`` for our default step.
        rate: Learning rate.
        scale: The L of AnyLoss.
        rows: For the losses as released, which put this number where that of the batch belongs.
    """

    name: str
    rate: float
    scale: float = 73.0
    rows: int | None = None

    def loss(self, nets: int) -> Loss:
        """The loss for so many nets."""
        if self.name in _PLAIN:
            return _PLAIN[self.name]
        kind, _, goal = self.name.rpartition(":")
        metric, options = METRICS[goal]
        settings = {"task": "multilabel", "average": "macro", "ignore_index": IGNORED, **options}
        if self.rows is not None:
            made = sl.MetricLoss(_released(goal, self.rows), step=sl.Sigmoid(k=self.scale), maximize=True, **settings)
        elif kind == "sol":
            made = sl.presets.score_oriented(metric, **settings)
        elif kind == "linear":
            made = sl.MetricLoss(metric, **settings)
        else:
            made = sl.presets.anyloss(metric, amplification=self.scale, **settings)
        return lambda z, target: nets * made(z, target)


def _released(goal: str, rows: int) -> Callable[..., Any]:
    """G-mean and balanced accuracy of a batch with the rows of the whole training fold in place of the batch's."""

    def specificity(fp: Any, positives: Any) -> Any:
        return 1 - sl.ratio(fp, rows - positives)

    def balanced(tp: Any, fp: Any, fn: Any, tn: Any) -> Any:
        return (sl.ratio(tp, tp + fn) + specificity(fp, tp + fn)) / 2

    def geometric(tp: Any, fp: Any, fn: Any, tn: Any) -> Any:
        return sl.root(sl.ratio(tp, tp + fn) * specificity(fp, tp + fn))

    return {"balanced_accuracy": balanced, "g_mean": geometric}[goal]


def _mean(values: Tensor, target: Tensor) -> Tensor:
    seen = target != IGNORED
    return (values * seen).sum(0).div(seen.sum(0).clamp(min=1)).sum()


def _bce(z: Tensor, target: Tensor) -> Tensor:
    return _mean(F.binary_cross_entropy_with_logits(z, target.clamp(min=0), reduction="none"), target)


def _mse(z: Tensor, target: Tensor) -> Tensor:
    return _mean((z.sigmoid() - target).square(), target)


def _delta(z: Tensor, target: Tensor) -> Tensor:
    return _mean((z - (2 * target - 1)).square(), target) / 2


_PLAIN: dict[str, Loss] = {"bce": _bce, "mse": _mse, "delta": _delta}


@dataclass(frozen=True, eq=False)
class Rows:
    """A set, and the rows that each net is trained on.

    Attributes:
        x: ``(rows, columns)``.
        y: ``(rows,)`` of 0 and 1.
        train: ``(rows, nets)``: whether the net sees the row.
        basis: ``(rows, nets)``: whether the row counts for the net's mean and spread; None for those it sees.
    """

    x: Tensor
    y: Tensor
    train: Tensor
    basis: Tensor | None = None
    mean: Tensor = field(init=False)
    spread: Tensor = field(init=False)

    def __post_init__(self) -> None:
        seen = (self.train if self.basis is None else self.basis).to(self.x.dtype)
        count = seen.sum(0)[:, None]
        mean = seen.T @ self.x / count
        spread = ((seen.T @ self.x.square()) / count - mean.square()).clamp(min=0).sqrt()
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "spread", torch.where(spread > 1e-6, spread, 1.0))

    @property
    def nets(self) -> int:
        return self.train.shape[1]


def make_rows(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, device: str = "cpu", basis: np.ndarray | None = None
) -> Rows:
    """Rows on a device; columns are centred and scaled, so that float32 is enough for the moments of each net."""
    wide = x.astype(np.float64)
    wide = (wide - wide.mean(0)) / np.where(wide.std(0) > 0, wide.std(0), 1)
    given = (wide.astype(np.float32), y.astype(np.float32), train, *(() if basis is None else (basis,)))
    return Rows(*(torch.from_numpy(array).to(device) for array in given))


# ---------------------------------------------------------------------------------------------------------------------
# The logistic unit: full batch, plain descent from 0
# ---------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def descend(rows: Rows, objective: Objective, steps: int, curve: list[float] | None = None) -> Tensor:
    """Logits ``(rows, nets)`` after so many steps; ``curve`` takes the mean loss of the nets before each step."""
    loss = objective.loss(rows.nets)
    target = torch.where(rows.train, rows.y[:, None], float(IGNORED))
    x, mean, spread = rows.x, rows.mean.T, rows.spread.T
    weight, bias = torch.zeros_like(mean), torch.zeros_like(mean[:1])

    def logits() -> Tensor:
        scaled = weight / spread
        return torch.addmm(bias - (mean * scaled).sum(0, keepdim=True), x, scaled)

    for _ in range(steps):
        with torch.enable_grad():
            z = logits().requires_grad_()
            value = loss(z, target)
            (slope,) = torch.autograd.grad(value, z)
        if curve is not None:
            curve.append(value.item() / rows.nets)
        total = slope.sum(0, keepdim=True)
        weight.sub_((x.T @ slope - mean * total) / spread, alpha=objective.rate)
        bias.sub_(total, alpha=objective.rate)
    return logits()


# ---------------------------------------------------------------------------------------------------------------------
# Batches and Adam, with a hidden layer of two or without
# ---------------------------------------------------------------------------------------------------------------------

#: Those of Keras, in which the paper's networks were written.
_BETAS, _EPS, _MOMENTUM, _SMALL = (0.9, 0.999), 1e-7, 0.99, 1e-3


class Stacked:
    """Nets × objectives of one architecture as one tensor of parameters; batch norm keeps running moments."""

    def __init__(
        self, columns: int, hidden: int, nets: int, objectives: int, seeds: Sequence[int], device: str
    ) -> None:
        self.columns, self.hidden, self.shape, self.device = columns, hidden, (nets, objectives), device
        self.running: tuple[Tensor, Tensor] | None = None
        self.optimiser: _Adam | None = None
        drawn = [self._start(np.random.default_rng(seed)) for seed in seeds]
        # the objectives of a net start alike
        stacked = torch.tensor(np.stack(drawn), dtype=torch.float32)[:, None].repeat(1, objectives, 1)
        self.values = stacked.to(device).requires_grad_()
        if hidden:
            zeros = torch.zeros(nets, 1, objectives, hidden, device=device)
            self.running = (zeros, torch.ones_like(zeros))

    def _start(self, random: np.random.Generator) -> np.ndarray:
        """Glorot's uniform weights, biases of 0, batch norm that does nothing."""

        def glorot(inputs: int, outputs: int) -> np.ndarray:
            bound = math.sqrt(6 / (inputs + outputs))
            return random.uniform(-bound, bound, inputs * outputs)

        if not self.hidden:
            return np.concatenate([glorot(self.columns, 1), [0.0]])
        middle = [np.ones(self.hidden), np.zeros(self.hidden)]
        return np.concatenate([glorot(self.columns, self.hidden), *middle, glorot(self.hidden, 1), [0.0]])

    def __call__(self, x: Tensor, mean: Tensor, spread: Tensor, *, train: bool) -> Tensor:
        """Logits ``(nets, rows, objectives)`` of ``x`` ``(nets or 1, rows, columns)``."""
        (nets, objectives), d, h = self.shape, self.columns, max(1, self.hidden)
        first, *rest = self.values.split([d * h, *([h, h, h, 1] if self.hidden else [1])], dim=2)
        first = first.view(nets, objectives, d, h).permute(0, 2, 1, 3).reshape(nets, d, objectives * h)
        first = first / spread[:, :, None]
        shift = -(mean[:, None] @ first)
        z = torch.baddbmm(shift, x.expand(nets, -1, -1), first).view(nets, -1, objectives, h)
        if not self.hidden:
            return z[..., 0] + rest[0].view(nets, 1, objectives)
        gain, offset, last = (part.view(nets, 1, objectives, h) for part in rest[:3])
        assert self.running is not None
        if train:
            spread_z, mean_z = torch.var_mean(z, 1, correction=0, keepdim=True)
            with torch.no_grad():
                for kept, seen in zip(self.running, (mean_z, spread_z), strict=True):
                    kept.lerp_(seen, 1 - _MOMENTUM)
        else:
            mean_z, spread_z = self.running
        scaled = gain * torch.rsqrt(spread_z + _SMALL)
        hidden = torch.addcmul(offset - mean_z * scaled, z, scaled).sigmoid_()
        return (hidden * last).sum(3) + rest[3].view(nets, 1, objectives)


@dataclass(frozen=True)
class Plan:
    """How to train in batches: epochs, batches an epoch, units of the hidden layer (0 for none), and seeds of nets."""

    epochs: int
    batches: int
    hidden: int
    seeds: Sequence[int]


def train_batches(rows: Rows, objectives: Sequence[Objective], plan: Plan, nets: Stacked | None = None) -> Stacked:
    """Train all nets on all objectives; ``nets`` goes on from where others ended, as the released code does."""
    device = str(rows.x.device)
    if nets is None:
        nets = Stacked(rows.x.shape[1], plan.hidden, rows.nets, len(objectives), plan.seeds, device)
    # nets see equally many rows in an epoch: those of a longer part that are left out are drawn anew each time
    parts = [rows.train[:, net].nonzero().squeeze(1) for net in range(rows.nets)]
    longest = max(len(part) for part in parts)
    index = torch.stack([F.pad(part, (0, longest - len(part)), value=-1) for part in parts])
    size = min(len(part) for part in parts) // plan.batches
    losses = [objective.loss(rows.nets) for objective in objectives]
    if nets.optimiser is None:
        rates = torch.tensor([objective.rate for objective in objectives], device=device)[None, :, None]
        nets.optimiser = _Adam(nets.values, rates)
    generator = torch.Generator(device).manual_seed(plan.seeds[0])
    for _ in range(plan.epochs):
        keys = torch.rand(index.shape, generator=generator, device=device).masked_fill_(index < 0, 2.0)
        order = index.gather(1, keys.argsort(1)[:, : size * plan.batches])
        for batch in order.split(size, 1):
            x = rows.x.index_select(0, batch.flatten()).view(*batch.shape, -1)
            target = rows.y[batch].T.contiguous()
            z = nets(x, rows.mean, rows.spread, train=True).permute(2, 1, 0)
            value = torch.stack([loss(each.contiguous(), target) for loss, each in zip(losses, z, strict=True)]).sum()
            nets.optimiser.step(torch.autograd.grad(value, nets.values)[0])
    return nets


class _Adam:
    """Adam with a learning rate for each objective."""

    def __init__(self, values: Tensor, rates: Tensor) -> None:
        self._values, self._rates, self._steps = values, rates, 0
        self._first, self._second = torch.zeros_like(values), torch.zeros_like(values)

    @torch.no_grad()
    def step(self, slope: Tensor) -> None:
        self._steps += 1
        self._first.lerp_(slope, 1 - _BETAS[0])
        self._second.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
        bias = math.sqrt(1 - _BETAS[1] ** self._steps) / (1 - _BETAS[0] ** self._steps)
        self._values.sub_(self._rates * bias * self._first / self._second.sqrt().add_(_EPS))


@torch.no_grad()
def logits_of(nets: Stacked, rows: Rows, chunk: int = 2**15) -> Tensor:
    """Logits ``(rows, nets, objectives)`` of all rows, on the processor."""
    parts = [nets(x[None], rows.mean, rows.spread, train=False).permute(1, 0, 2).cpu() for x in rows.x.split(chunk)]
    return torch.cat(parts)
