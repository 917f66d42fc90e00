"""Running counts for small batches, which may hold no positive at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stepless.state import State


@dataclass(frozen=True)
class Memory:
    """Finish the loss on remembered counts and the batch's own: ``MetricLoss("f1", memory=Memory())``.

    The sums s of a batch (its counts, and what else the loss needs) meet those of past batches, r::

        loss = finish(r + s)        r ← (1 − 1/batches) · (r + s)

    So the last ``batches`` batches are counted, in effect. The gradient reaches the present batch alone, and is
    multiplied by size(r + s) / size(s), as if the batch stood for all that is counted: that makes it as large as the
    gradient of one large batch, so a longer memory asks for no other learning rate. A batch of 64 with one positive, or
    none, says little about F1; what its samples are worth to the F1 of the last thousands is well defined.

    What is remembered was decided by older weights; so this is not exact. What it is used for, though, is a handful of
    ratios of sums, which move slowly where the decisions of single samples do not: the default was chosen on validation
    rows, among 8 to 2,048 batches (``benchmarks/memory``). There a memory paid where most batches hold no positive, and
    not where they hold one or two. Take a shorter one where training itself takes no more than a few thousand steps.

    The sums are in the loss's ``state_dict``. Of two classes their number is known at once; of more, with the first
    batch: what copies buffers from model to model, such as weight averaging, has to begin after it. Evaluation neither
    reads nor changes the sums; under ``torch.distributed`` those of all ranks are remembered, by each of them.

    Attributes:
        batches: How many batches are remembered, in effect; at least 1, which is no memory.

    Example:
        >>> import stepless as sl
        >>> loss_fn, nothing = sl.MetricLoss("f1", memory=sl.Memory()), torch.zeros(4)
        >>> loss = loss_fn(torch.tensor([2.0, 1.0, -1.0, -2.0]), torch.tensor([1, 0, 1, 0]))
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> loss_fn(logits, nothing).backward()  # alone it would teach nothing: no positives, no F1
        >>> bool((logits.grad > 0).all())
        True
    """

    batches: float = 2048.0

    def __post_init__(self) -> None:
        if not isinstance(self.batches, int | float) or not 1 <= self.batches < float("inf"):
            raise ValueError(f"batches must be a finite number of at least 1; got {self.batches!r}.")

    @property
    def decay(self) -> float:
        """What a batch is multiplied by when the next one comes."""
        return 1 - 1 / self.batches

    def keep(self, remembered: Tensor, present: State) -> Tensor:
        """What is remembered after a batch; one with NaN or infinity in it, as autocast may bring, is not."""
        now = present.vector.detach()
        past = torch.zeros_like(now) if remembered.numel() == 0 else remembered.to(now)
        kept = torch.where(now.isfinite().all(), self.decay * (past + now), past)
        if torch.compiler.is_compiling() or _kind(remembered) != _kind(kept):
            return kept
        return remembered.copy_(kept)  # in place, so that a CUDA graph finds it where it was


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def recall(state: State, remembered: Tensor, sizes: Callable[[Tensor], Tensor]) -> State:
    """The state of past and present together; the gradient is scaled as if the present batch stood for all of it."""
    now = state.vector
    if remembered.numel() == 0:
        return state
    if remembered.numel() != now.numel():
        raise ValueError(
            f"the memory holds {remembered.numel()} counts and this batch has {now.numel()}: the number of classes"
            " changed. Use one loss for each task."
        )
    past = remembered.to(now)
    total, present = sizes(past + now.detach()), sizes(now.detach())
    scale = torch.where(present > 0, total / torch.where(present > 0, present, 1.0), 1.0)
    return state.with_vector(now * scale + (now * (1 - scale)).detach() + past)
