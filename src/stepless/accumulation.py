"""Exact gradient accumulation: the gradient of the whole batch, one micro-batch's activations at a time.

A metric of the whole batch is not a mean over micro-batches, so the gradients of their losses do not add up to its
gradient. But the loss depends on the samples only through the state, and the state is a sum over micro-batches. The
first pass keeps no activations; it adds up the state and computes ∂loss/∂state. The second pass back-propagates that
linear form, one micro-batch at a time.

A ranking loss has no state that adds up. Its first pass keeps the scores of all micro-batches, which are small compared
to activations, and computes ∂loss/∂scores. The second pass back-propagates each micro-batch's part of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
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
        loss_fn: The loss. A ranking loss keeps the scores of all micro-batches between the passes.
        model: The model. `DistributedDataParallel` and FSDP2 synchronise gradients in the last micro-batch only.
        micro_batches: A list, or something else that can be iterated twice, of ``(input, target)`` or
            ``(input, target, sample_weight)``. An input that is a tuple, a list or a mapping is unpacked into the
            model's arguments. Both iterations must give the same batches, which is checked. A shuffled ``DataLoader``
            does, if it draws its order from torch's global random numbers.
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
    whole: _Sums | _Scores = _Scores(loss_fn) if isinstance(loss_fn, RankingLoss) else _Sums(loss_fn)
    listed = isinstance(micro_batches, list | tuple)  # a list cannot give other batches the second time
    start, random_states, fingerprints = _RandomState.now(model), [], []
    # the first pass has no gradients to synchronise, so it runs the model inside the wrapper
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    with torch.no_grad(), _buffers_restored(bare):
        for batch in micro_batches:
            random_states.append(_RandomState.now(model))
            fingerprints.append(() if listed else _fingerprint(batch))
            whole.add(*_call(bare, batch))
    count = len(random_states)
    if not count:
        raise ValueError("micro_batches is empty: there is nothing to learn from.")
    with torch.enable_grad():
        loss = whole.settle()

    passed = 0
    start.restore()  # so that a shuffled DataLoader draws the same order again
    for i, batch in enumerate(micro_batches):
        if i >= count or (not listed and fingerprints[i] != _fingerprint(batch)):
            raise ValueError(_CHANGED)
        random_states[i].restore()
        with _sync_only_last(model, last=i == count - 1):
            form = whole.linear_form(i, *_call(model, batch))
            (form if scaler is None else scaler.scale(form)).backward()
        passed = i + 1
    if passed < count:
        raise ValueError(_CHANGED)
    return loss


_CHANGED = (
    "micro_batches gave other batches when read a second time, so the gradients are of no use: zero them, and pass a"
    " list of the batches."
)


class _Sums:
    """The whole batch as a state, to which each micro-batch adds its sums."""

    def __init__(self, loss_fn: MetricLoss) -> None:
        self.loss_fn = loss_fn
        self.state: State | None = None

    def add(self, *batch: Any) -> None:
        part = self.loss_fn.measure(*batch)
        self.state = part if self.state is None else self.state + part

    def settle(self) -> Tensor:
        """Return the loss, and keep ∂loss/∂state."""
        assert self.state is not None
        leaf = self.state.vector.detach().requires_grad_()
        loss = self.loss_fn.settle(self.state.with_vector(leaf))
        (self.slope,) = torch.autograd.grad(loss, leaf)
        return loss.detach()

    def linear_form(self, _: int, *batch: Any) -> Tensor:
        """A scalar whose gradient in one micro-batch's scores is that of the whole loss."""
        return (self.loss_fn.measure(*batch).vector * self.slope).sum()


class _Scores:
    """The whole batch as the scores of all samples, for ranking losses."""

    def __init__(self, loss_fn: RankingLoss) -> None:
        self.loss_fn = loss_fn
        self.parts: list[Rows] = []

    def add(self, *batch: Any) -> None:
        self.parts.append(self.loss_fn.rows(*batch))

    def settle(self) -> Tensor:
        """Return the loss, and keep ∂loss/∂scores, but not the scores."""
        whole = Rows.join(self.parts)
        leaf = whole.scores.detach().requires_grad_()
        loss = self.loss_fn.settle_rows(whole._replace(scores=leaf))
        (slope,) = torch.autograd.grad(loss, leaf)
        self.slopes = torch.split(slope, [part.scores.shape[-1] for part in self.parts], dim=-1)
        self.parts = []
        return loss.detach()

    def linear_form(self, i: int, *batch: Any) -> Tensor:
        """A scalar whose gradient in the scores of micro-batch ``i`` is that of the whole loss."""
        return (self.loss_fn.rows(*batch).scores * self.slopes[i]).sum()


def _unpack(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], list[Any]]:
    """The model's positional and keyword arguments, and what follows the input: target and sample weight."""
    if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 3:
        got = f"a {type(batch).__name__}" + (f" of length {len(batch)}" if isinstance(batch, tuple | list) else "")
        raise TypeError(f"a micro-batch must be (input, target) or (input, target, sample_weight); got {got}.")
    input, *rest = batch
    if isinstance(input, Mapping):
        return (), input, rest
    return tuple(input) if isinstance(input, tuple | list) else (input,), {}, rest


def _call(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    """What the loss takes: the model's output, target and sample weight."""
    arguments, keywords, rest = _unpack(batch)
    return model(*arguments, **keywords), *rest


@contextmanager
def _buffers_restored(model: nn.Module) -> Iterator[None]:
    """Restore all buffers on leaving, also after an error."""
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


def _sync_only_last(model: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Keep a distributed model from synchronising gradients before the last micro-batch."""
    no_sync: Any = getattr(model, "no_sync", None)
    if last:
        return nullcontext()
    if no_sync is not None:
        return no_sync()
    return _deferred(model) if hasattr(model, "set_requires_gradient_sync") else nullcontext()  # FSDP2


def _fingerprint(batch: Any) -> tuple[str, ...]:
    """A checksum of a batch's tensors, to tell whether the second pass reads the same batch."""
    arguments, keywords, rest = _unpack(batch)
    prints = []
    for tensor in (*arguments, *keywords.values(), *rest):
        if isinstance(tensor, Tensor):
            flat = tensor.detach().double().flatten()
            # weights that differ by place notice another order
            mark = flat @ torch.linspace(1, 2, flat.numel(), dtype=flat.dtype, device=flat.device)
            prints.append(f"{tuple(tensor.shape)} {mark.item()}")  # as text, because NaN is not equal to itself
    return tuple(prints)


class _RandomState(NamedTuple):
    """The state of every generator that a forward may draw from: dropout uses torch's, other layers may use others."""

    of_torch: Tensor
    of_cuda: dict[int, Tensor]
    of_python: Any
    of_numpy: Any

    @classmethod
    def now(cls, model: nn.Module) -> _RandomState:
        devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
        cuda = {index: torch.cuda.get_rng_state(index) for index in devices if index is not None}
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Make the second pass draw the numbers of the first; afterwards the generators stand as after one pass."""
        torch.set_rng_state(self.of_torch)
        for index, state in self.of_cuda.items():
            torch.cuda.set_rng_state(state, index)
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
