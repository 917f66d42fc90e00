"""The batches of members: each member has its own rows, in its own order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepless.tabular.networks.nets import mixed


@dataclass(frozen=True)
class Data:
    """What members are trained and judged on.

    Attributes:
        matrix: Features ``(N, D)``, float32.
        target: 0 or 1 as float ``(N,)``, class indices ``(N,)``, or labels as float ``(N, L)``.
        rows: For each member, the indices of its training rows.
        held: For each member, the indices of the rows it is judged on after each epoch; may be empty.
        weight: Row weights ``(N,)``, or None.
        longest: The largest number of training rows of any member, including those that other ranks train; all ranks
            cut batches by it.
    """

    matrix: Tensor
    target: Tensor
    rows: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    weight: Tensor | None = None
    longest: int = 0

    def __post_init__(self) -> None:
        if self.matrix.dim() != 2 or self.matrix.dtype != torch.float32:
            raise ValueError(f"features must be a float32 matrix; got {self.matrix.dtype} {tuple(self.matrix.shape)}.")
        if not bool(self.matrix.isfinite().all()):
            raise ValueError("features must be finite; fill missing values first.")
        n = len(self.matrix)
        wanted = torch.int64 if self.target.dim() == 1 and not self.target.is_floating_point() else torch.float32
        if len(self.target) != n or self.target.dim() not in (1, 2) or self.target.dtype != wanted:
            raise ValueError(
                f"the target of {n} rows is float32 or int64 of shape ({n},), or float32 of shape ({n}, labels); got"
                f" {self.target.dtype} of shape {tuple(self.target.shape)}."
            )
        if self.weight is not None:
            if self.weight.shape != (n,) or self.weight.dtype != torch.float32:
                raise ValueError(f"weights must be float32 of shape ({n},); got {tuple(self.weight.shape)}.")
            if not bool(((self.weight >= 0) & self.weight.isfinite()).all()):
                raise ValueError("weights must be finite and not negative.")
        if len(self.rows) != len(self.held):
            raise ValueError(f"rows and held name the same members; got {len(self.rows)} and {len(self.held)}.")
        for name, parts in (("rows", self.rows), ("held", self.held)):
            for m, part in enumerate(parts):
                if part.dim() != 1 or part.dtype != torch.int64 or (name == "rows" and not len(part)):
                    raise ValueError(f"{name}[{m}] must hold row indices, int64; got {part.dtype} {tuple(part.shape)}.")
                if len(part) and not 0 <= int(part.min()) <= int(part.max()) < n:
                    raise ValueError(
                        f"{name}[{m}] must hold rows in [0, {n}); got {int(part.min())}…{int(part.max())}."
                    )


class Batches:
    """The order in which members see their rows.

    An epoch is one pass, divided evenly into the number of batches that comes nearest to ``batch_size``; all batches
    have the same size. A member with fewer rows than the largest one starts its pass again to fill up.

    Args:
        data: The rows.
        batch_size: About how many rows a batch has.
        stratify: Whether classes are spread evenly over the batches; labels never are.
        seeds: One per member. What a member sees depends only on its own rows and seed, and on the epoch.

    Example:
        >>> x = torch.zeros(10, 2)
        >>> data = Data(x, x[:, 0], rows=(torch.arange(8), torch.arange(2, 10)), held=(torch.arange(0),) * 2)
        >>> Batches(data, batch_size=3, stratify=True, seeds=(0, 1)).order(epoch=0).shape
        torch.Size([3, 2, 3])
    """

    def __init__(self, data: Data, batch_size: int, stratify: bool, seeds: Sequence[int]) -> None:
        largest = max(data.longest, *map(len, data.rows))
        self.steps = max(1, int(largest / batch_size + 0.5))
        self.size = math.ceil(largest / self.steps)
        self._seeds = tuple(seeds)
        stratify = stratify and data.target.dim() == 1 and self.steps > 1
        self._layouts = [
            _spread(rows, data.target[rows], mixed(seed)) if stratify else [(torch.arange(len(rows)), rows)]
            for rows, seed in zip(data.rows, seeds, strict=True)
        ]

    def order(self, epoch: int) -> Tensor:
        """The rows of every batch and member, ``(steps, members, size)``."""
        members = []
        for layout, seed in zip(self._layouts, self._seeds, strict=True):
            generator = torch.Generator().manual_seed(mixed(seed, epoch))
            order = torch.empty(sum(len(rows) for _, rows in layout), dtype=torch.int64)
            for slots, rows in layout:
                order[slots] = rows[torch.randperm(len(rows), generator=generator)]
            # rotated, so that it is not always the same places that are seen twice
            order = order.roll(int(torch.randint(len(order), (), generator=generator)))
            length = self.steps * self.size
            members.append(order.repeat(math.ceil(length / len(order)))[:length].view(self.steps, self.size))
        return torch.stack(members, 1)


def _spread(rows: Tensor, classes: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Assign places to the rows of each class, so that any stretch of places has about its share of every class."""
    generator = torch.Generator().manual_seed(seed)
    parts = [rows[classes == value] for value in torch.unique(classes)]
    keys = [
        (torch.arange(len(part)) + torch.rand((), dtype=torch.float64, generator=generator)) / len(part)
        for part in parts
    ]
    places = torch.cat(keys).argsort().argsort()
    return list(zip(torch.split(places, [len(part) for part in parts]), parts, strict=True))


def padded(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Pad index lists to one matrix, and return it with its mask: 1 for real entries, or None if all are real.

    >>> padded([torch.tensor([4, 5]), torch.tensor([6])])
    (tensor([[4, 5],
            [6, 0]]), tensor([[1., 1.],
            [1., 0.]]))
    """
    index = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    lengths = torch.tensor([len(part) for part in parts])
    if bool((lengths == index.shape[1]).all()):
        return index, None
    return index, (torch.arange(index.shape[1]) < lengths.unsqueeze(1)).float()
