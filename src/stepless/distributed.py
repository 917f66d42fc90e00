"""The state across ranks: one all-reduce of a few sums makes the loss that of the global batch.

The scores stay where they are. Every rank adds up its own counts, the sums are added over the ranks, and each rank
finishes the same loss from the same global state.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist

from stepless.state import State

Gradients = Literal["mean", "sum"]

try:  # a build of torch without distributed support has neither
    from torch.distributed.algorithms.join import Join, Joinable, JoinHook
except ImportError:  # pragma: no cover
    Joinable, JoinHook = object, object  # type: ignore[assignment, misc]


def world_size(group: Any = None) -> int:
    """How many ranks share the batch; 1 where nothing is distributed."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class StateReducer(Joinable):
    """Adds states over the ranks of a process group.

    The value is the global state. The gradient is the local one: a rank can only move its own scores. `DistributedData\
Parallel` averages the ranks' gradients where a sum is wanted, so with ``gradients="mean"`` the gradient, and not the
    value, is multiplied by the number of ranks.

    Ranks with different numbers of batches: pass this object to torch's ``Join`` beside the model, as in
    ``with Join([ddp_model, loss_fn.reducer])``; ranks that are done then add zeros.
    """

    def __init__(self, group: Any = None, gradients: Gradients = "mean") -> None:
        super().__init__()
        if gradients not in ("mean", "sum"):
            raise ValueError(
                f'gradients must be "mean" (DDP averages them over the ranks) or "sum"; got {gradients!r}.'
            )
        self.group = group
        self.gradients = gradients
        self._shape: tuple[int, torch.dtype, torch.device] | None = None

    def __call__(self, state: State) -> State:
        """The state of all ranks' batches together."""
        ranks = world_size(self.group)
        if ranks == 1:
            return state
        if dist.is_available():
            Join.notify_join_context(self)
        local = state.vector
        self._shape = (local.numel(), local.dtype, local.device)
        total = local.detach().clone()
        dist.all_reduce(total, group=self.group)
        scale = float(ranks) if self.gradients == "mean" else 1.0
        return state.with_vector(local * scale + (total - local * scale).detach())

    def join_hook(self, **_: Any) -> JoinHook:
        """What torch's ``Join`` calls on a rank that has no batches left."""
        return _AddZeros(self)

    @property
    def join_device(self) -> torch.device:
        """The device of the sums."""
        return self._shape[2] if self._shape else torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def join_process_group(self) -> Any:
        """The ranks."""
        return self.group if self.group is not None else dist.group.WORLD


class _AddZeros(JoinHook):
    def __init__(self, reducer: StateReducer) -> None:
        self.reducer = reducer

    def main_hook(self) -> None:
        if self.reducer._shape is None:
            raise RuntimeError("a rank without a single batch cannot join: it does not know the size of the state.")
        size, dtype, device = self.reducer._shape
        dist.all_reduce(torch.zeros(size, dtype=dtype, device=device), group=self.reducer.group)


def make_reducer(sync: Any, gradients: Gradients) -> StateReducer | None:
    """The reducer that ``MetricLoss(sync=…)`` asks for: None or True for all ranks, a process group, or False."""
    if sync is False:
        return None
    if sync is None or sync is True:
        return StateReducer(None, gradients)
    if not dist.is_available() or not isinstance(sync, dist.ProcessGroup):
        raise TypeError(f"sync must be True, False, None or a process group; got {sync!r}.")
    return StateReducer(sync, gradients)
