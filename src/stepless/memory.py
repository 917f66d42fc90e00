"""Running counts for small batches, which may not hold a single positive."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from stepless.state import State


@dataclass(frozen=True)
class Memory:
    """A running total of past batches' counts, for small batches: ``MetricLoss("f1", memory=Memory())``.

    A batch of 64 with one positive, or none, says little about F1. What its samples contribute to the F1 of the last
    few thousand samples is well defined. So the sums s of a batch (its counts, and whatever else the loss needs) are
    added to those of past batches, r::

        loss = finish(r + s)        r ← (1 − 1/batches) · (r + s)

    In effect, the last ``batches`` batches are counted. The gradient only reaches the present batch, and is multiplied
    by size(r + s) / size(s). So it is as large as that of one large batch, and the learning rate need not change.

    This is not exact, because the past decisions come from older weights. But the loss only uses a few ratios of sums,
    which change slowly even if single decisions do not. The default was chosen on validation rows, among 8 to 2,048
    batches (``benchmarks/memory``). There, a memory helped if most batches hold no positive, but not if they hold one
    or two. Use a shorter memory if training takes no more than a few thousand steps.

    The sums are part of the loss's ``state_dict``. For binary tasks their number is known at once, otherwise from the
    first batch on; weight averaging, and anything else that copies buffers, has to start after it, and so does
    ``torch.compile(mode="reduce-overhead")``. In evaluation mode, ``loss_fn.eval()``, they are neither read nor
    changed. Under ``torch.distributed``, every rank remembers the sums of all ranks.

    Attributes:
        batches: How many batches are remembered, in effect; at least 1, which means no memory.

    Example:
        >>> import stepless as sl
        >>> loss_fn, nothing = sl.MetricLoss("f1", memory=sl.Memory()), torch.zeros(4)
        >>> loss = loss_fn(torch.tensor([2.0, 1.0, -1.0, -2.0]), torch.tensor([1, 0, 1, 0]))
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> loss_fn(logits, nothing).backward()  # without memory its gradient would be 0: no positives, no F1
        >>> bool((logits.grad > 0).all())
        True
    """

    batches: float = 2048.0

    def __post_init__(self) -> None:
        given: Any = self.batches  # may be a numpy scalar
        if not isinstance(given, Real) or not 1 <= float(given) < math.inf:
            raise ValueError(f"batches must be a finite number of at least 1; got {given!r}.")

    @property
    def decay(self) -> float:
        """The factor by which the remembered sums shrink with every batch."""
        return 1 - 1 / float(self.batches)

    def keep(self, remembered: Tensor, present: State) -> Tensor:
        """Return the sums to remember after a batch. A batch with NaN or infinity, as from autocast, is left out."""
        now = present.vector.detach()
        past = torch.zeros_like(now) if remembered.numel() == 0 else remembered.to(now)
        kept = torch.where(now.isfinite().all(), self.decay * (past + now), past)
        if _kind(remembered) != _kind(kept):
            return kept
        return remembered.copy_(kept)  # in place, because a CUDA graph reads and writes fixed addresses


def held(buffer: Tensor) -> Tensor:
    """A copy of a buffer, for a loss whose backward needs what the buffer held before the batch changed it."""
    return _held(buffer) if torch.compiler.is_compiling() else buffer.clone()


# an operator of its own, because a compiled backward would read the changed buffer, rather than keep a clone of it
@torch.library.custom_op("stepless::held", mutates_args=())
def _held(buffer: Tensor) -> Tensor:
    return buffer.clone()


@_held.register_fake
def _(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer)


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def recall(state: State, remembered: Tensor, sizes: Callable[[Tensor], Tensor]) -> State:
    """Return the state of past and present; the gradient is scaled as if the present batch were all of it."""
    now = state.vector
    if remembered.numel() == 0:
        return state
    if remembered.numel() != now.numel():
        raise ValueError(
            f"the memory holds {remembered.numel()} counts and this batch has {now.numel()}: the number of classes"
            " changed. Use one loss for each task."
        )
    past = held(remembered).to(now)
    total, present = sizes(past + now.detach()), sizes(now.detach())
    scale = torch.where(present > 0, total / torch.where(present > 0, present, 1.0), 1.0)
    return state.with_vector(now * scale + (now * (1 - scale)).detach() + past)
