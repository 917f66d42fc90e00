"""The state across ranks: one all-reduce of a few sums makes the loss that of the global batch.

The scores stay where they are. Every rank adds up its own counts, the sums are added over the ranks, and each rank
finishes the same loss from the same global state.
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
#: What is done with the state of a batch that other ranks have had.
Follow = Callable[[State], object]

try:  # a build of torch without distributed support has neither
    from torch.distributed.algorithms.join import Join, Joinable, JoinHook
except ImportError:  # pragma: no cover
    Joinable, JoinHook = object, object  # type: ignore[assignment, misc]


def world_size(group: Any = None) -> int:
    """How many ranks share the batch; 1 where nothing is distributed."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class StateReducer:
    """Adds states over the ranks of a process group.

    The value is the global state. The gradient is the local one: a rank can only move its own scores. `DistributedData\
Parallel` averages the ranks' gradients where a sum is wanted, so with ``gradients="mean"`` the gradient, and not the
    value, is multiplied by the number of ranks.

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
        """The state of all ranks' batches together.

        Args:
            state: That of this rank's batch.
            follow: What a rank that has run out of batches does with those of the others, so that what its loss keeps
                stays the same as theirs.
        """
        ranks = world_size(self.group)
        if ranks == 1:
            return state
        local = state.vector
        total = local.detach().clone()
        dist.all_reduce(total, group=self.group)
        self._last = state.with_vector(total), follow
        scale = float(ranks) if self.gradients == "mean" else 1.0
        # a difference of equals is exactly 0, so the value is the total and nothing is rounded
        return state.with_vector(total + (local - local.detach()) * scale)

    def join(self, model: Any, **options: Any) -> AbstractContextManager[Any]:
        """Let ranks run out of batches at different times: they add nothing, and wait for the others.

        torch's ``Join`` knows what `DistributedDataParallel` sends, and so what a rank without batches must send in its
        place. The loss sends its sums between the model's forward and its backward, so one ``Join`` has to know both.

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
        """Take part in an all-reduce for a rank that has no batches left."""
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
        """A copy among the same ranks: process groups cannot be copied."""
        return StateReducer(self.group, self.gradients)

    def __reduce__(self) -> Any:
        if self.group is not None:
            raise TypeError(
                "a loss with sync=<a process group> cannot be pickled, because process groups cannot; keep its"
                " state_dict(), or make it with sync=None."
            )
        return StateReducer, (None, self.gradients)


class _JoinedModel(Joinable):
    """A model and its loss, as one thing to `Join`."""

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
    """What a rank without batches does for each batch of the others."""

    def __init__(self, model: DistributedDataParallel, hook: Any, reducer: StateReducer) -> None:
        self.model, self.hook, self.reducer = model, hook, reducer

    def main_hook(self) -> None:
        name = "_check_global_requires_backward_grad_sync"  # what a forward sends last, and a backward has not begun
        inner = getattr(self.model, name)

        def forward_then_loss(**joined: Any) -> Any:
            answer = inner(**joined)
            self.reducer.add_nothing()
            return answer

        setattr(self.model, name, forward_then_loss)
        try:
            self.hook.main_hook()
        finally:
            delattr(self.model, name)

    def post_hook(self, is_last_joiner: bool) -> None:
        self.hook.post_hook(is_last_joiner)


def make_reducer(sync: Any, gradients: Gradients) -> StateReducer | None:
    """The reducer that ``MetricLoss(sync=…)`` asks for: None or True for all ranks, a process group, or False."""
    reducer = StateReducer(None, gradients)  # which checks what it is given
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
            "sync is a process group that this rank is no member of; pass it sync=False, or the group it belongs to."
        )
    if not dist.is_available() or not isinstance(sync, dist.ProcessGroup):
        raise TypeError(f"sync must be True, False, None or a process group; got {sync!r}.")
    return StateReducer(sync, gradients)
