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

    The counts of past batches are kept, each batch weighing a factor ``1 − 1/batches`` less than the next. The loss is
    the metric of remembered and present counts together; its gradient reaches the present batch alone, and is scaled as
    if the batch stood for all that is counted. A single batch of 64 with one positive says little about F1; its
    samples' worth to the F1 of the last few thousand is well defined.

    What is remembered was decided by older weights. So a memory should be short: as many batches as make up a batch
    that would be large enough by itself.

    Attributes:
        batches: How many batches are remembered, in effect.
    """

    batches: float = 32.0

    def __post_init__(self) -> None:
        if not isinstance(self.batches, int | float) or not 1 <= self.batches < float("inf"):
            raise ValueError(f"batches must be a finite number of at least 1; got {self.batches!r}.")

    @property
    def decay(self) -> float:
        """What a batch is multiplied by when the next one comes."""
        return 1 - 1 / self.batches

    def keep(self, remembered: Tensor, present: State) -> Tensor:
        """What is remembered after a batch."""
        now = present.vector.detach()
        return self.decay * (now if remembered.numel() == 0 else remembered.to(now) + now)


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
