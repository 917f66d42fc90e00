"""Losses of many members at once, one number per member.

An objective takes the logits ``(members, rows, outputs)`` of a batch in which every member has its own rows. It returns
the loss of every member, and `Objective.differentiated` the gradient too: on small batches torch's graph costs more
than the loss, so the common objectives compute their gradients themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepless.tasks import Task, check_task


class Objective(nn.Module):
    """The losses of a group of members. Any state lives in buffers, so that it can be checkpointed.

    In evaluation mode, an objective returns what members are judged by; that must not depend on training progress.
    """

    task: Task

    def prepare(self, members: int) -> None:
        """Create the state of this many members."""

    def advance(self, progress: float) -> None:
        """Set how much of the training is done, in [0, 1]."""

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of every member, from ``(members, rows, outputs)``, ``(members, rows, …)``, ``(members, rows)``."""
        raise NotImplementedError

    def differentiated(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every member, and its gradient with respect to the member's logits."""
        with torch.enable_grad():
            z = logits.detach().requires_grad_()
            losses = self(z, target, weight)
            (slope,) = torch.autograd.grad(losses.sum(), z)
        return losses.detach(), slope


class CrossEntropy(Objective):
    """The mean cross-entropy of the rows (and, in a multilabel task, of the labels).

    Example:
        >>> CrossEntropy("binary")(torch.zeros(2, 5, 1), torch.ones(2, 5))
        tensor([0.6931, 0.6931])
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        check_task(task, "logits")
        self.task = task

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        return mean_loss(self.each(logits, target), weight)

    @torch.no_grad()
    def differentiated(
        self, logits: Tensor, target: Tensor, weight: Tensor | None, cost: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As for every objective; ``cost`` multiplies each entry, in addition to the weight of its row."""
        each = self.each(logits, target)
        if self.task == "multiclass":
            slope = torch.softmax(logits, 2)
            slope.scatter_add_(2, target.unsqueeze(2), slope.new_full((1, 1, 1), -1.0).expand(*target.shape, 1))
        else:
            slope = torch.sigmoid(logits).sub_(target.view_as(logits))
        if cost is not None:
            each = each * cost
            slope.mul_(cost.view_as(slope) if self.task != "multiclass" else cost.unsqueeze(2))
        slope.mul_(_shares(weight, logits) if self.task != "multilabel" else _shares(weight, logits) / slope.shape[2])
        return mean_loss(each, weight), slope

    def each(self, logits: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of every row, or of every row and label."""
        if self.task == "multiclass":
            return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
        z = logits.view(target.shape)
        return F.softplus(z) - z * target  # binary_cross_entropy_with_logits spends more time on checks than on this

    def extra_repr(self) -> str:
        return repr(self.task)


class Losses(nn.Module):
    """The losses of all members: consecutive groups of members, each with its own objective.

    Args:
        groups: The objectives with the number of members of each, in the order of the members.

    Example:
        >>> losses = Losses([(CrossEntropy("binary"), 5), (CrossEntropy("binary"), 5)])
        >>> losses(torch.zeros(10, 8, 1), torch.ones(10, 8)).shape
        torch.Size([10])
    """

    def __init__(self, groups: Sequence[tuple[Objective, int]]) -> None:
        super().__init__()
        if len({id(objective) for objective, _ in groups}) < len(groups):
            raise ValueError("an objective keeps the state of one group of members; give each group one of its own.")
        if not groups or any(size < 1 for _, size in groups):
            raise ValueError("losses need at least one group, and every group at least one member.")
        self.objectives, self.sizes = nn.ModuleList(), [size for _, size in groups]
        for objective, size in groups:
            objective.prepare(size)
            self.objectives.append(objective)

    @property
    def n(self) -> int:
        """The number of members."""
        return sum(self.sizes)

    def advance(self, progress: float) -> None:
        """Set how much of the training is done, in [0, 1]."""
        for objective in self.objectives:
            objective.advance(progress)  # type: ignore[operator]

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        return torch.cat([objective(*part) for objective, part in self._parts(logits, target, weight)])

    def differentiated(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every member, and its gradient with respect to the member's logits."""
        pairs = [objective.differentiated(*part) for objective, part in self._parts(logits, target, weight)]
        if len(pairs) == 1:
            return pairs[0]
        losses, slopes = zip(*pairs, strict=True)
        return torch.cat(losses), torch.cat(slopes)

    def _parts(self, *tensors: Tensor | None) -> Any:
        split = [[None] * len(self.sizes) if t is None else torch.split(t, self.sizes) for t in tensors]
        return zip(self.objectives, zip(*split, strict=True), strict=True)


def mean_loss(each: Tensor, weight: Tensor | None) -> Tensor:
    """The weighted mean over rows, and the mean over labels if there are any."""
    if each.dim() == 3:
        each = each.mean(2)
    if weight is None:
        return each.mean(1)
    return (each * weight).sum(1) / _total(weight).squeeze(1)


def _shares(weight: Tensor | None, logits: Tensor) -> float | Tensor:
    """Each row's share in the mean of its member, to be multiplied with ``(members, rows, outputs)``."""
    return 1 / logits.shape[1] if weight is None else (weight / _total(weight)).unsqueeze(2)


def _total(weight: Tensor) -> Tensor:
    """The sum of each member's weights, kept above 0, so that rows without any weight have a mean of 0."""
    return weight.sum(1, keepdim=True).clamp_(min=torch.finfo(weight.dtype).tiny)
