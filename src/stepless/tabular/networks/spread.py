"""Distribute the networks of an ensemble over the ranks of torchrun: each trains some, and all ranks get all of them.

Networks are trained independently, so ranks communicate only at the end, and the result is that of one process. Every
rank holds the whole table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

_SHARED: ContextVar[bool] = ContextVar("shared", default=False)


@contextmanager
def over_ranks() -> Iterator[None]:
    """Distribute the networks of fits in this block over the ranks that torchrun has started.

    An existing process group is used; without one, and without torchrun, this raises a ValueError.
    """
    own = not dist.is_initialized()
    if own:
        if "RANK" not in os.environ:
            raise ValueError(
                "a distributed fit is started by torchrun, as in: torchrun --nproc-per-node 2 -m stepless train …"
                " --distributed"
            )
        dist.init_process_group("gloo")
    token = _SHARED.set(True)
    try:
        yield
        if own:
            dist.barrier()
    finally:
        _SHARED.reset(token)
        if own:
            dist.destroy_process_group()


def leader() -> bool:
    """Whether this is the rank that prints and saves."""
    return not _SHARED.get() or dist.get_rank() == 0


def share(n: int) -> range:
    """Which of n networks this rank trains: all of them, unless they are distributed.

    >>> share(3)
    range(0, 3)
    """
    if not _SHARED.get():
        return range(n)
    ranks = dist.get_world_size()
    if ranks > n:
        raise ValueError(f"{ranks} ranks cannot share {n} networks: start {n} ranks or fewer.")
    return range(dist.get_rank(), n, ranks)


def gather(own: list[T], n: int) -> list[T]:
    """Collect the results of all n networks, in order, from each rank's own.

    >>> gather(["a", "b"], 2)
    ['a', 'b']
    """
    if not _SHARED.get():
        return own
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, own)
    merged: list[Any] = [None] * n
    for rank, part in enumerate(parts):
        merged[rank :: len(parts)] = part
    return merged


def own_device(device: str | torch.device) -> str | torch.device:
    """Where this rank trains: on its own GPU if there are several."""
    if _SHARED.get() and str(device) == "cuda":
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
    return device
