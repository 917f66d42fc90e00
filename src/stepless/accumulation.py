"""Exact gradient accumulation: the gradient of the whole batch, one micro-batch's activations at a time.

A metric of the whole batch is no mean over micro-batches, so adding up their losses' gradients gives something else.
But the loss depends on the samples through the state alone, and the state is a sum: so its gradient is that of a linear
function of the micro-batches' states. The first pass, without activations kept, adds up the state and finds that
linear function, ∂loss/∂state. The second pass back-propagates it, micro-batch by micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stepless.loss import MetricLoss


def accumulate(loss_fn: MetricLoss, model: nn.Module, micro_batches: Iterable[Any], scaler: Any = None) -> Tensor:
    """Back-propagate the loss of all micro-batches together, as if they were one batch, and return it (detached).

    The model runs twice over every micro-batch. Dropout draws the same numbers both times, and the buffers that the
    first pass changed are put back before the second. What cannot be exact is a layer that mixes the samples of a
    micro-batch, such as BatchNorm in training mode: it sees micro-batches, here as in every accumulation.

    Args:
        loss_fn: The loss.
        model: The model; under `DistributedDataParallel`, ranks synchronise in the last micro-batch only.
        micro_batches: A list or another re-iterable of ``(input, target)`` or ``(input, target, sample_weight)``; an
            input that is a tuple or a dict is spread over the model's arguments.
        scaler: A ``torch.amp.GradScaler``, if one is used; step it as usual afterwards.

    Returns:
        The loss of the whole batch.

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
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state, states = None, []
    with torch.no_grad():
        for batch in micro_batches:
            states.append(_random_state(model))
            part = loss_fn.measure(*_call(model, batch))
            state = part if state is None else state + part
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    if state is None:
        raise ValueError("micro_batches is empty: there is nothing to learn from.")

    leaf = state.vector.detach().requires_grad_()
    with torch.enable_grad():
        loss = loss_fn.settle(state.with_vector(leaf))
        (slope,) = torch.autograd.grad(loss, leaf)

    for i, (batch, random) in enumerate(zip(micro_batches, states, strict=True)):
        last = i == len(states) - 1
        _restore(random)
        with _quiet(model, last):
            part = loss_fn.measure(*_call(model, batch))
            share = (part.vector * slope).sum()
            (share if scaler is None else scaler.scale(share)).backward()
    return loss.detach()


def _call(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    input, *rest = batch
    if isinstance(input, dict):
        return model(**input), *rest
    return (model(*input) if isinstance(input, tuple | list) else model(input)), *rest


def _quiet(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Keep a distributed model from synchronising before the last micro-batch."""
    no_sync: Any = getattr(model, "no_sync", None)
    return nullcontext() if last or no_sync is None else no_sync()


def _random_state(model: nn.Module) -> tuple[Tensor, dict[int, Tensor]]:
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    return torch.get_rng_state(), {index: torch.cuda.get_rng_state(index) for index in devices if index is not None}


def _restore(random: tuple[Tensor, dict[int, Tensor]]) -> None:
    """Draw the random numbers of the first pass again; what comes after goes on from there, as after one pass."""
    torch.set_rng_state(random[0])
    for index, state in random[1].items():
        torch.cuda.set_rng_state(state, index)
