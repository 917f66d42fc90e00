"""The state of a loss: one flat vector of plain sums.

Every entry is a sum over samples, so states can be added over the ranks of a distributed run, over micro-batches and
over time. The loss is a function of the state alone, which makes it exact under all three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """Named blocks of sums in one flat vector. States with the same layout can be added.

    >>> state = State.pack({"cells": torch.ones(2, 4), "weight": torch.tensor(3.0)})
    >>> state.vector.shape, state["weight"]
    (torch.Size([9]), tensor(3.))
    >>> (state + state)["weight"]
    tensor(6.)
    """

    vector: Tensor
    layout: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def pack(cls, blocks: dict[str, Tensor]) -> State:
        """Make a state from named blocks, in the dtype of the first one."""
        layout = tuple((name, tuple(block.shape)) for name, block in blocks.items())
        flat = [block.reshape(-1) for block in blocks.values()]
        return cls(flat[0] if len(flat) == 1 else torch.cat([f.to(flat[0].dtype) for f in flat]), layout)

    def __getitem__(self, name: str) -> Tensor:
        start = 0
        for block, shape in self.layout:
            size = math.prod(shape)
            if block == name:
                return (self.vector if len(self.layout) == 1 else self.vector[start : start + size]).view(shape)
            start += size
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(block == name for block, _ in self.layout)

    def with_vector(self, vector: Tensor) -> State:
        """Return a state with the same layout and another vector."""
        return State(vector, self.layout)

    def __add__(self, other: State) -> State:
        if self.layout != other.layout:
            raise ValueError(f"states of different layouts cannot be added: {self.layout} and {other.layout}.")
        return self.with_vector(self.vector + other.vector)
