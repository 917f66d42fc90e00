"""Exact gradient accumulation: the gradient of the whole batch, one micro-batch's activations at a time.

A metric of the whole batch is no mean over micro-batches, so adding up their losses' gradients gives something else.
But the loss depends on the samples through the state alone, and the state is a sum: so its gradient is that of a linear
function of the micro-batches' states. The first pass, without activations kept, adds up the state and finds that
linear function, ∂loss/∂state. The second pass back-propagates it, micro-batch by micro-batch.

A loss of the ranking has no state that adds up. Its first pass keeps the scores of all micro-batches, which are small
beside activations, and finds ∂loss/∂scores; the second pass back-propagates to each micro-batch its part of that.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepless.loss import MetricLoss, RankingLoss
from stepless.ranking import Rows
from stepless.state import State


def accumulate(loss_fn: MetricLoss, model: nn.Module, micro_batches: Iterable[Any], scaler: Any = None) -> Tensor:
    """Back-propagate the loss of all micro-batches together, as if they were one batch.

    The model runs twice over every micro-batch. Dropout draws the same numbers both times, and buffers that the first
    pass changed are restored before the second. The one exception to exactness is a layer that mixes samples, such as
    BatchNorm in training mode: it sees micro-batches, as in any gradient accumulation.

    Args:
        loss_fn: The loss. A loss of the ranking keeps the scores of all micro-batches between the passes.
        model: The model. `DistributedDataParallel` and FSDP2 synchronise gradients in the last micro-batch only.
        micro_batches: A list, or something else that can be iterated twice, of ``(input, target)`` or
            ``(input, target, sample_weight)``. An input that is a tuple, a list or a dict is unpacked into the model's
            arguments. Both iterations must give the same batches, which is checked. A shuffled ``DataLoader`` does, if
            it draws its order from torch's global random numbers.
        scaler: A ``torch.amp.GradScaler``, if you use one. Step it as usual afterwards.

    Returns:
        The loss of the whole batch, detached.

    Example:
        >>> model, loss_fn = nn.Linear(3, 1), MetricLoss("f1")
        >>> x, y = torch.randn(8, 3), torch.tensor([[1.0], [0.0]] * 4)
        >>> loss = accumulate(loss_fn, model, [(x[:4], y[:4]), (x[4:], y[4:])])
        >>> torch.allclose(loss, loss_fn(model(x), y))
        True
    """
    if isinstance(micro_batches, Iterator):
        raise TypeError(
            "micro_batches are read twice, and a generator or iterator can be read once; pass a list of them."
        )
    if not isinstance(model, nn.Module):
        raise TypeError(
            "model must be a torch.nn.Module, whose buffers and random numbers are the same in both passes; got"
            f" {type(model).__name__}. Put what it does into the forward of a module."
        )
    if isinstance(model, DistributedDataParallel) and model._join_config.enable:
        raise RuntimeError(
            "accumulate sends the loss's sums before the model's first forward, where Join does not expect them; leave"
            " Join and give a rank that has run out of batches a micro-batch without rows."
        )
    if not isinstance(loss_fn, MetricLoss):
        raise TypeError(
            f"loss_fn must be a stepless.MetricLoss; got {type(loss_fn).__name__}. A loss that is a mean over samples"
            " needs none of this: add up its gradients."
        )
    total: _Sums | _Scores = _Scores(loss_fn) if isinstance(loss_fn, RankingLoss) else _Sums(loss_fn)
    listed = isinstance(micro_batches, list | tuple)  # these hold the same batches still
    start, drawn, seen = _Chance.now(model), [], []
    # without gradients there is nothing to synchronise, so the wrapper may wait for the second pass
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    with torch.no_grad(), _buffers_restored(bare):
        for batch in micro_batches:
            drawn.append(_Chance.now(model))
            seen.append(() if listed else _fingerprint(batch))
            total.add(*_call(bare, batch))
    if not drawn:
        raise ValueError("micro_batches is empty: there is nothing to learn from.")
    with torch.enable_grad():
        loss = total.settle()

    again = 0
    start.restore()  # an order that is drawn from these numbers is drawn again
    for again, batch in enumerate(micro_batches, start=1):
        if again > len(drawn) or (not listed and seen[again - 1] != _fingerprint(batch)):
            raise ValueError(_CHANGED)
        drawn[again - 1].restore()
        with _quiet(model, last=again == len(drawn)):
            share = total.share(again - 1, *_call(model, batch))
            (share if scaler is None else scaler.scale(share)).backward()
    if again < len(drawn):
        raise ValueError(_CHANGED)
    return loss


_CHANGED = (
    "micro_batches gave other batches when read a second time, so the gradients are of no use: zero them, and pass a"
    " list of the batches."
)


class _Sums:
    """The whole batch by its state, to which every micro-batch adds."""

    def __init__(self, loss_fn: MetricLoss) -> None:
        self.loss_fn = loss_fn
        self.state: State | None = None

    def add(self, *batch: Any) -> None:
        part = self.loss_fn.measure(*batch)
        self.state = part if self.state is None else self.state + part

    def settle(self) -> Tensor:
        """The loss; its slope along the state is kept."""
        assert self.state is not None
        leaf = self.state.vector.detach().requires_grad_()
        loss = self.loss_fn.settle(self.state.with_vector(leaf))
        (self.slope,) = torch.autograd.grad(loss, leaf)
        return loss.detach()

    def share(self, _: int, *batch: Any) -> Tensor:
        """What has the loss's gradient, for the samples of one micro-batch."""
        return (self.loss_fn.measure(*batch).vector * self.slope).sum()


class _Scores:
    """The whole batch by its samples' scores, of which every micro-batch has some."""

    def __init__(self, loss_fn: RankingLoss) -> None:
        self.loss_fn = loss_fn
        self.parts: list[Rows] = []

    def add(self, *batch: Any) -> None:
        self.parts.append(self.loss_fn.rows(*batch))

    def settle(self) -> Tensor:
        """The loss; its slopes along the scores are kept, and nothing else."""
        whole = Rows.join(self.parts)
        leaf = whole.scores.detach().requires_grad_()
        loss = self.loss_fn.settle_rows(whole._replace(scores=leaf))
        (slope,) = torch.autograd.grad(loss, leaf)
        self.slopes = torch.split(slope, [part.scores.shape[-1] for part in self.parts], dim=-1)
        self.parts = []
        return loss.detach()

    def share(self, i: int, *batch: Any) -> Tensor:
        """What has the loss's gradient, for the samples of one micro-batch."""
        return (self.loss_fn.rows(*batch).scores * self.slopes[i]).sum()


def _call(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    input, *rest = batch
    if isinstance(input, dict):
        return model(**input), *rest
    return (model(*input) if isinstance(input, tuple | list) else model(input)), *rest


@contextmanager
def _buffers_restored(model: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were, whatever happens."""
    before = [
        (part, dict(part._buffers), {k: v.clone() for k, v in part._buffers.items() if v is not None})
        for part in model.modules()
    ]
    try:
        yield
    finally:
        for part, buffers, values in before:
            for name, buffer in buffers.items():
                if buffer is not None and buffer.shape == values[name].shape:
                    buffer.copy_(values[name])
                    part._buffers[name] = buffer
                else:  # resized in place, or made by the forward
                    part._buffers[name] = values.get(name)
            for made in part._buffers.keys() - buffers.keys():
                del part._buffers[made]


@contextmanager
def _deferred(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _quiet(model: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Keep a distributed model from synchronising before the last micro-batch."""
    no_sync: Any = getattr(model, "no_sync", None)
    if last:
        return nullcontext()
    if no_sync is not None:
        return no_sync()
    return _deferred(model) if hasattr(model, "set_requires_gradient_sync") else nullcontext()  # FSDP2


def _fingerprint(batch: Any) -> tuple[str, ...]:
    """Enough to tell whether the same batch comes again."""
    input, *rest = batch
    values = input.values() if isinstance(input, dict) else input if isinstance(input, tuple | list) else (input,)
    prints = []
    for tensor in (*values, *rest):
        if isinstance(tensor, Tensor):
            flat = tensor.detach().double().flatten()
            # places count, and so does text: NaN is not equal to itself
            mark = flat @ torch.linspace(1, 2, flat.numel(), dtype=flat.dtype, device=flat.device)
            prints.append(f"{tuple(tensor.shape)} {mark.item()}")
    return tuple(prints)


class _Chance(NamedTuple):
    """Where the generators stand that a forward may draw from: dropout is torch's, a layer may be dropped by others."""

    of_torch: Tensor
    of_cuda: dict[int, Tensor]
    of_python: Any
    of_numpy: Any

    @classmethod
    def now(cls, model: nn.Module) -> _Chance:
        devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
        cuda = {index: torch.cuda.get_rng_state(index) for index in devices if index is not None}
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Draw the numbers of the first pass again; what comes after goes on from there, as after one pass."""
        torch.set_rng_state(self.of_torch)
        for index, state in self.of_cuda.items():
            torch.cuda.set_rng_state(state, index)
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
