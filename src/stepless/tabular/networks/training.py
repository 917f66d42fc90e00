"""Train members together: one batched pass per step, while each member has its own rows, shuffling and best epoch.

Adam works entry by entry and every member has its own loss, so members do not interact: training them together gives
the same as training them one by one, up to the rounding of batched products.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adamw import adamw

from stepless.tabular.fingerprints import fingerprint, written
from stepless.tabular.networks.batches import Batches, Data, padded
from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.networks.nets import Members, mixed
from stepless.tabular.networks.objectives import Losses

#: Called after each epoch with its number (from 1), the largest number of epochs, and the members' training losses.
Report = Callable[[int, int, NDArray[np.float64]], None]
#: From held-out logits, target and weight to one number per member; smaller is better.
Monitor = Callable[[Tensor, Tensor, Tensor | None], Tensor]

#: The most feature values gathered at once: few enough to stay in the cache.
_CHUNK = 2**18
_BETAS, _EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        epochs: The largest number of passes over the rows.
        batch_size: About how many rows a step uses. An epoch is divided evenly, into the number of batches that comes
            nearest to this size.
        learning_rate: Adam's step size at the start.
        decay: ``"none"``, or ``"cosine"`` to let the learning rate fall to 0 over all epochs.
        weight_decay: Decoupled (AdamW) decay of weights; biases do not decay.
        patience: A member stops after this many epochs without a better held-out score; None never stops.
        clip: The largest norm of a member's gradient; None for no limit.
        stratify: Whether every batch has its share of each class (binary and multiclass).

    Example:
        >>> Plan(epochs=50, patience=5).batch_size
        200
    """

    epochs: int = 100
    batch_size: int = 200
    learning_rate: float = 1e-3
    decay: Literal["none", "cosine"] = "none"
    weight_decay: float = 0.0
    patience: int | None = None
    clip: float | None = None
    stratify: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if not ((isinstance(value, int) and value >= 1) or (name == "patience" and value is None)):
                raise ValueError(f"{name} must be a whole number from 1 up; got {value!r}.")
        for name, least in (("learning_rate", 0.0), ("weight_decay", None), ("clip", 0.0)):
            value = getattr(self, name)
            if name == "clip" and value is None:
                continue
            fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not fine or value < 0 or (value == 0 and least is not None):
                raise ValueError(f"{name} must be a number {'from' if least is None else 'above'} 0; got {value!r}.")
        if self.decay not in ("none", "cosine"):
            raise ValueError(f'decay must be "none" or "cosine"; got {self.decay!r}.')


@dataclass(frozen=True)
class History:
    """The course of a training run.

    Attributes:
        train: The mean training loss of each epoch and member, ``(epochs, members)``.
        held: The held-out score of each epoch and member; smaller is better; NaN if nothing is held out.
        best: The epoch (from 1) whose weights each member kept.
    """

    train: NDArray[np.float64]
    held: NDArray[np.float64]
    best: NDArray[np.int64]


def train(
    members: Members | FactoryMembers,
    data: Data,
    losses: Losses,
    plan: Plan,
    seed: int | Sequence[int],
    *,
    device: str | torch.device = "cpu",
    monitor: Monitor | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: float = 1.0,
    report: Report | None = None,
) -> History:
    """Train the members in place; each ends with the weights of its best epoch (the last if no rows are held out).

    Args:
        members: The networks.
        data: Their rows.
        losses: Their losses.
        plan: How long and how fast to train.
        seed: Seed of the shuffling: one for all, or one per member. A member's shuffling depends only on its own seed.
        device: Where to train.
        monitor: What judges members on held-out rows. Default: their loss in evaluation mode.
        checkpoint: A file that keeps the state. If it exists, training continues from it, to the same result.
        checkpoint_every: Seconds between two writes of it; it is always written at the end.
        report: Called after each epoch.

    Example:
        >>> from stepless.tabular.networks.nets import Architecture
        >>> from stepless.tabular.networks.objectives import CrossEntropy
        >>> x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> rows = torch.arange(100)
        >>> data = Data(x, (x[:, 0] > 0).float(), rows=(rows[:80], rows[20:]), held=(rows[80:], rows[:20]))
        >>> nets = Members(Architecture("linear", inputs=3, outputs=1), n=2, seeds=(0, 1))
        >>> history = train(nets, data, Losses([(CrossEntropy("binary"), 2)]), Plan(epochs=5, batch_size=20), seed=0)
        >>> history.train.shape, bool((history.train[-1] < history.train[0]).all())
        ((5, 2), True)
    """
    n = members.n
    if len(data.rows) != n or losses.n != n:
        raise ValueError(f"there are {n} members, rows for {len(data.rows)} and losses for {losses.n}.")
    seeds = [mixed(seed, m) for m in range(n)] if isinstance(seed, int) else list(seed)
    if len(seeds) != n:
        raise ValueError(f"give one seed, or one for each of the {n} members; got {len(seeds)}.")
    run = _Run(members.to(device), data, losses.to(device), plan, seeds, torch.device(device), monitor)
    keep = None if checkpoint is None else _resume(run, Path(checkpoint))
    kept_at = time.monotonic()
    while not run.finished:
        run.epoch()
        if keep is not None and (run.finished or time.monotonic() - kept_at >= checkpoint_every):
            keep()
            kept_at = time.monotonic()
        if report is not None:
            report(run.done, plan.epochs, run.train[-1])
    run.finish()
    return History(np.array(run.train), np.array(run.held), run.best_epoch.copy())


def _resume(run: _Run, path: Path) -> Callable[[], None]:
    """Continue the run from the file if it exists; return what writes it."""
    from stepless.tabular.networks.checkpoints import read_checkpoint, write_checkpoint  # noqa: PLC0415 - needs safetensors

    if not path.parent.is_dir():
        raise FileNotFoundError(f"a checkpoint needs a folder that exists; {path.parent} does not. Make it first.")
    data = run.data
    key = fingerprint(
        [repr(run.plan), repr(run.losses), repr(run.losses.sizes), repr(run.seeds), *_code_of(run)],
        [data.matrix, data.target, data.weight, *data.rows, *data.held, *run.members.tensors().values()],
    )
    found = read_checkpoint(path, key)
    if found is not None:
        run.restore(*found)
    return lambda: write_checkpoint(path, key, *run.state())


def _code_of(run: _Run) -> list[str]:
    """Texts of the code that a run depends on: its networks, metrics and monitor."""
    nets = run.members
    if isinstance(nets, Members):
        texts = [repr(nets.architecture)]
    else:
        texts = [repr(nets.template), *(written(part) for part in nets.template.modules())]
    metrics = [metric for module in run.losses.modules() for metric in getattr(module, "metrics", ())]
    return [*texts, *(written(metric.function) for metric in metrics), written(run.monitor)]


class _Run:
    """A training run between two epochs: all that the next epoch depends on."""

    def __init__(
        self,
        members: Members | FactoryMembers,
        data: Data,
        losses: Losses,
        plan: Plan,
        seeds: list[int],
        device: torch.device,
        monitor: Monitor | None,
    ) -> None:
        self.members, self.data, self.losses, self.plan, self.seeds = members, data, losses, plan, seeds
        self.batches = Batches(data, plan.batch_size, plan.stratify, seeds)
        self.monitor, self._device = monitor, device
        self._monitor = losses if monitor is None else monitor
        self._matrix, self._target = data.matrix.to(device), data.target.to(device)
        self._weight = None if data.weight is None else data.weight.to(device)
        self._gathered = self._matrix[:0]
        self._judged = np.array([len(part) > 0 for part in data.held])
        self._examined = self._hold() if self._judged.any() else None

        named = {name: value for name, value in members.named_parameters() if value.requires_grad}
        self._parameters = list(named.values())
        decays = [p.dim() > 2 and "bias" not in name for name, p in named.items()]
        # without decay, one call of the optimiser is enough
        self._groups = [[i for i, d in enumerate(decays) if d == side] for side in (True, False)]
        if not plan.weight_decay:
            self._groups = [list(range(len(decays)))]
        self._first, self._second = ([torch.zeros_like(p) for p in self._parameters] for _ in range(2))
        self._steps = [torch.zeros((), dtype=torch.float32, device=device) for _ in self._parameters]

        n = members.n
        self.done, self.train, self.held = 0, [], []  # type: tuple[int, list[Any], list[Any]]
        self._running, self._best_score = np.ones(n, bool), np.full(n, np.inf)
        self.best_epoch = np.zeros(n, np.int64)
        self._best = {name: value.clone() for name, value in members.state_dict().items()}

    @property
    def finished(self) -> bool:
        return self.done >= self.plan.epochs or not self._running.any()

    @torch.no_grad()
    def epoch(self) -> None:
        """Train for one pass over the rows, then judge the members."""
        self.members.train()
        self.losses.train()
        self.members.reseed(self.done)
        order, total = self.batches.order(self.done).to(self._device), self._matrix.new_zeros(self.members.n)
        chunk = max(1, _CHUNK // (order[0].numel() * self._matrix.shape[1]))
        step = self.done * self.batches.steps
        for part in torch.split(order, chunk):
            x, y, w = self._gather(part)
            weights = [None] * len(part) if w is None else w.unbind()
            for batch in zip(x.unbind(), y.unbind(), weights, strict=True):
                total += self._step(*batch, step / (self.plan.epochs * self.batches.steps))
                step += 1
        self.done += 1
        self._after((total / self.batches.steps).double().cpu().numpy())

    def _step(self, x: Tensor, y: Tensor, w: Tensor | None, progress: float) -> Tensor:
        """Update all members by one batch each."""
        plan = self.plan
        self.losses.advance(progress)
        logits, tape = self.members.run(x)
        losses, slope = self.losses.differentiated(logits, y, w)
        slopes = self.members.pull(tape, slope)
        if plan.clip is not None:
            _clip(slopes, plan.clip)
        rate = plan.learning_rate * ((1 + math.cos(math.pi * progress)) / 2 if plan.decay == "cosine" else 1.0)
        for group, decay in zip(self._groups, (plan.weight_decay, 0.0), strict=False):
            lists = (self._parameters, slopes, self._first, self._second, self._steps)
            values, found, first, second, steps = ([each[i] for i in group] for each in lists)
            adamw(
                values, found, first, second, [], steps,
                fused=x.device.type in ("cpu", "cuda"), amsgrad=False, beta1=_BETAS[0], beta2=_BETAS[1],
                lr=rate, weight_decay=decay, eps=_EPS, maximize=False,
            )  # fmt: skip
        return losses

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features, target and weight of rows; the next call overwrites the features."""
        flat, width = index.reshape(-1), self._matrix.shape[1]
        if len(flat) > len(self._gathered):
            self._gathered = self._matrix.new_empty(len(flat), width)
        x = torch.index_select(self._matrix, 0, flat, out=self._gathered[: len(flat)]).view(*index.shape, width)
        y = self._target.index_select(0, flat).view(*index.shape, *self._target.shape[1:])
        return x, y, None if self._weight is None else self._weight.index_select(0, flat).view(index.shape)

    # -----------------------------------------------------------------------------------------------------------------
    # Held-out rows
    # -----------------------------------------------------------------------------------------------------------------

    def _hold(self) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """The rows to judge by, in pieces to be gathered one by one, with their target and weight."""
        index, real = padded(self.data.held)
        index = index.to(self._device)
        width = max(1, _CHUNK // (len(index) * self._matrix.shape[1]))
        target = self._target[index]
        weight = None if self._weight is None else self._weight[index]
        if real is not None:
            real = real.to(self._device)
            weight = real if weight is None else real * weight
        return list(torch.split(index, width, 1)), target, weight

    def _judge(self) -> NDArray[np.float64]:
        """The score of each member on its held-out rows, smaller is better; NaN if it has none."""
        if self._examined is None:
            return np.full(self.members.n, np.nan)
        self.members.eval()
        self.losses.eval()
        pieces, target, weight = self._examined
        logits = torch.cat([self.members.run(self._gather(piece)[0])[0] for piece in pieces], 1)
        scores = self._monitor(logits, target, weight).double().cpu().numpy()
        if scores.shape != self._judged.shape or np.isnan(scores[self._judged]).any():
            raise ValueError(f"the monitor must give a number for each of the {self.members.n} members; got {scores}.")
        return np.where(self._judged, scores, np.nan)

    def _after(self, train: NDArray[np.float64]) -> None:
        """Judge the members, keep the weights of those that improved, and stop those that ran out of patience."""
        if not np.isfinite(train).all():
            lost = ", ".join(map(str, np.flatnonzero(~np.isfinite(train))))
            raise FloatingPointError(
                f"the training loss of member {lost} is no longer finite, in epoch {self.done}; lower learning_rate"
                f" ({self.plan.learning_rate:g}), or bring the features to a smaller scale."
            )
        scores = self._judge()
        better = self._running & (~self._judged | (scores < self._best_score))
        self.train.append(train)
        self.held.append(scores)
        self._best_score[better], self.best_epoch[better] = scores[better], self.done
        chosen = torch.from_numpy(better).to(self._device)
        for name, value in self.members.state_dict().items():
            best = self._best[name]
            best.copy_(value if better.all() else torch.where(chosen.view(-1, *[1] * (value.dim() - 1)), value, best))
        if self.plan.patience is not None:
            self._running &= ~self._judged | (self.done - self.best_epoch < self.plan.patience)

    def finish(self) -> None:
        """Give every member the weights of its best epoch."""
        self.members.load_state_dict(self._best)
        self.members.eval()
        self.members.release()

    # -----------------------------------------------------------------------------------------------------------------
    # Checkpoints
    # -----------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state as tensors and JSON values."""
        groups: dict[str, dict[Any, Tensor]] = {
            "now": self.members.state_dict(),
            "best": self._best,
            "loss": self.losses.state_dict(),
            "first": dict(enumerate(self._first)),
            "second": dict(enumerate(self._second)),
            "run": {
                "train": torch.from_numpy(np.array(self.train)),
                "held": torch.from_numpy(np.array(self.held)),
                "best_score": torch.from_numpy(self._best_score),
                "best_epoch": torch.from_numpy(self.best_epoch),
                "running": torch.from_numpy(self._running),
            },
        }
        tensors = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
        return tensors, {"done": self.done, "steps": self._steps[0].item()}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        groups: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = tensor.to(self._device) if group != "run" else tensor
        self.members.load_state_dict(groups["now"])
        self.losses.load_state_dict(groups.get("loss", {}))
        self._best = groups["best"]
        for own, group in ((self._first, "first"), (self._second, "second")):
            for i, value in enumerate(own):
                value.copy_(groups[group][str(i)])
        for value in self._steps:
            value.fill_(facts["steps"])
        self.done = facts["done"]
        kept = {name: tensor.numpy() for name, tensor in groups["run"].items()}
        self.train, self.held = list(kept["train"]), list(kept["held"])
        self._best_score, self.best_epoch, self._running = kept["best_score"], kept["best_epoch"], kept["running"]


def _clip(slopes: list[Tensor], largest: float) -> None:
    """Shorten the gradient of every member to this norm at most, each by itself."""
    squares = torch.stack([slope.flatten(1).square().sum(1) for slope in slopes]).sum(0)
    factor = (largest / squares.sqrt().clamp_(min=1e-12)).clamp_(max=1.0)
    for slope in slopes:
        slope.mul_(factor.view(-1, *[1] * (slope.dim() - 1)))
