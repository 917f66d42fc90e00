"""The state across ranks: one all-reduce of a few sums makes the loss that of the global batch.

Scores are never gathered. Every rank adds up its own counts, the sums are added over the ranks, and each rank computes
the same loss from the same global state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stepless.state import State

Gradients = Literal["mean", "sum"]
#: Called with the global state on a rank that had no batch of its own.
Follow = Callable[[State], object]

try:  # missing from builds of torch without distributed support
    from torch.distributed.algorithms.join import Join, Joinable, JoinHook
except ImportError:  # pragma: no cover
    Joinable, JoinHook = object, object  # type: ignore[assignment, misc]


def world_size(group: Any = None) -> int:
    """The number of ranks that share the batch; 1 if nothing is distributed."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class StateReducer:
    """Add states over the ranks of a process group.

    The value is the global state. The gradient is the local one, because a rank can only move its own scores.
    `DistributedDataParallel` averages the ranks' gradients although their sum is needed. So with ``gradients="mean"``
    the gradient, but not the value, is multiplied by the number of ranks.

    Ranks with different numbers of batches: train inside ``with loss_fn.reducer.join(ddp_model):``.
    """

    def __init__(self, group: Any = None, gradients: Gradients = "mean") -> None:
        if gradients not in ("mean", "sum"):
            raise ValueError(
                f'gradients must be "mean" (DDP averages them over the ranks) or "sum"; got {gradients!r}.'
            )
        self.group = group
        self.gradients = gradients
        self._last: tuple[State, Follow | None] | None = None

    def __call__(self, state: State, follow: Follow | None = None) -> State:
        """Return the state of all ranks' batches together.

        Args:
            state: That of this rank's batch.
            follow: Called with the global state when this rank has run out of batches, so that what its loss keeps
                stays the same as on the other ranks.
        """
        ranks = world_size(self.group)
        if ranks == 1:
            return state
        local = state.vector
        if hasattr(local, "full_tensor"):
            raise TypeError(
                "the scores are a DTensor, which is spread over ranks already, while the loss adds up plain tensors of"
                " every rank's own rows. If the DTensor is sharded by rows, pass to_local() of scores and target, with"
                ' gradients="sum"; otherwise full_tensor(), with sync=False or the group of ranks with other rows.'
            )
        total = local.detach().clone()
        dist.all_reduce(total, group=self.group)
        self._last = state.with_vector(total), follow
        scale = float(ranks) if self.gradients == "mean" else 1.0
        # local − local is exactly 0, so the value is the total, without rounding
        return state.with_vector(total + (local - local.detach()) * scale)

    def join(self, model: Any, **options: Any) -> AbstractContextManager[Any]:
        """Let ranks run out of batches at different times. They add nothing and wait for the others.

        On a rank without batches, torch's ``Join`` repeats the communication of `DistributedDataParallel`. The loss
        communicates between the model's forward and backward, so the same ``Join`` has to repeat that too.

        Args:
            model: A `DistributedDataParallel`; every forward of it is followed by one forward of the loss.
            options: Those of ``torch.distributed.algorithms.Join``, such as ``throw_on_early_termination=True``.

        Example:
            >>> StateReducer().join(torch.nn.Linear(3, 1))
            Traceback (most recent call last):
            TypeError: model must be a DistributedDataParallel, whose ranks can join; got Linear.
        """
        if not dist.is_available() or not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"model must be a DistributedDataParallel, whose ranks can join; got {type(model).__name__}."
            )
        if self.gradients == "mean" and not options.get("divide_by_initial_world_size", True):
            raise ValueError(
                "divide_by_initial_world_size=False divides by the ranks that are left, but the loss is that of all"
                " ranks' batches together, whose gradient is a sum; leave it out."
            )
        return Join([_JoinedModel(model, self)], **options)

    def add_nothing(self) -> None:
        """Take part in one all-reduce on a rank that has no batches left."""
        if self._last is None:
            raise RuntimeError(
                "a rank without a single batch cannot join, because it does not know the size of the state; give it one"
                " batch at least, which may have no rows."
            )
        last, follow = self._last
        total = torch.zeros_like(last.vector)
        dist.all_reduce(total, group=self.group)
        if follow is not None:
            follow(last.with_vector(total))

    def __deepcopy__(self, memo: dict[int, Any]) -> StateReducer:
        """Copy the settings and share the process group, which cannot be copied."""
        return StateReducer(self.group, self.gradients)

    def __reduce__(self) -> Any:
        if self.group is not None:
            raise TypeError(
                "a loss with sync=<a process group> cannot be pickled, because process groups cannot; keep its"
                " state_dict(), or make it with sync=None."
            )
        return StateReducer, (None, self.gradients)


class _JoinedModel(Joinable):
    """A model and its loss as one `Joinable`."""

    def __init__(self, model: Any, reducer: StateReducer) -> None:
        self.model, self.reducer = model, reducer

    @property
    def _join_config(self) -> Any:
        return self.model._join_config  # `Join` sets it here, and the model reads it there

    @_join_config.setter
    def _join_config(self, config: Any) -> None:
        self.model._join_config = config

    def join_hook(self, **options: Any) -> JoinHook:
        return _JoinedHook(self.model, self.model.join_hook(**options), self.reducer)

    @property
    def join_device(self) -> torch.device:
        return self.model.join_device

    @property
    def join_process_group(self) -> Any:
        return self.model.join_process_group


class _JoinedHook(JoinHook):
    """What a rank without batches does during each batch of the others."""

    def __init__(self, model: DistributedDataParallel, hook: Any, reducer: StateReducer) -> None:
        self.model, self.hook, self.reducer = model, hook, reducer

    def main_hook(self) -> None:
        name = "_check_global_requires_backward_grad_sync"  # the last communication of a forward, before any backward
        inner = getattr(self.model, name)

        def forward_then_loss(**joined: Any) -> Any:
            result = inner(**joined)
            self.reducer.add_nothing()
            return result

        setattr(self.model, name, forward_then_loss)
        try:
            self.hook.main_hook()
        finally:
            delattr(self.model, name)

    def post_hook(self, is_last_joiner: bool) -> None:
        self.hook.post_hook(is_last_joiner)


def make_reducer(sync: Any, gradients: Gradients) -> StateReducer | None:
    """The reducer for ``MetricLoss(sync=…)``: None or True means all ranks, False none, or it is a process group."""
    reducer = StateReducer(None, gradients)  # checks ``gradients``, whatever ``sync`` is
    if sync is False:
        if gradients != "mean":
            raise ValueError(
                f"gradients={gradients!r} has no effect with sync=False, which merges nothing; leave it out."
            )
        return None
    if sync is None or sync is True:
        return reducer
    if dist.is_available() and sync == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            "sync is a process group that this rank is not a member of; pass the group it belongs to, or sync=False."
        )
    if not dist.is_available() or not isinstance(sync, dist.ProcessGroup):
        raise TypeError(f"sync must be True, False, None or a process group; got {sync!r}.")
    return StateReducer(sync, gradients)
