"""One autograd node from scores to loss, or to counts: what all fused ways on the CPU have in common.

A node knows the batch it was made of, so that it can be gone back twice, and differentiated twice by the plain path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepless.kernels.tracing import Differentiated
from stepless.steps import Step
from stepless.tasks import Batch

Differentiate = Callable[[Any, Any, Any, Any], Differentiated]


class Objective(NamedTuple):
    """What is computed from the counts: everything but the batch.

    Attributes:
        step: The smooth step.
        tau: The threshold.
        of: The loss of the cells ``(4,)`` of one label.
        differentiate: The same with its partial derivatives, on plain numbers.
        differentiate_each: The same on numpy arrays, for many labels at once.
        over_labels: The same in a loop over few labels (`stepless.kernels.tracing.over_labels`).
        labels: Whether dimension 1 of the batch holds labels, whose losses are averaged.
        label_weight: Their weights in that average, where they are not equal.
        joint: Multiclass: whether ``of`` reads the cells of all classes at once; otherwise classes are averaged.
        blend: Multiclass: the share of cross-entropy in the loss.
        balanced: Multiclass: whether every class weighs the same in it.
    """

    step: Step
    tau: float
    of: Callable[[Any], Any]
    differentiate: Differentiate
    differentiate_each: Differentiate
    over_labels: Callable[..., tuple[float, list[float], list[float]] | None]
    labels: bool = False
    label_weight: tuple[float, ...] | None = None
    joint: bool = False
    blend: float = 0.0
    balanced: bool = False


class Node(NamedTuple):
    """What a node from scores to loss does.

    Attributes:
        differentiated: The loss as a number and, where it is ``wanted``, its gradient.
        plain: The loss as torch can differentiate it.
    """

    differentiated: Callable[..., tuple[float, Tensor | None]]
    plain: Callable[[Batch, Objective], Tensor]


def loss_in_one_node(batch: Batch, objective: Objective, node: Node) -> Tensor:
    """The loss of a batch, in one autograd node."""
    return _apply(batch.scores, batch, objective, node)


class _FusedLoss(torch.autograd.Function):
    """One node from scores to loss. The gradient is made in the forward pass, while what it needs is at hand."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, batch: Batch, objective: Objective, node: Node) -> Tensor:
        loss, gradient = node.differentiated(scores, batch, objective, wanted=ctx.needs_input_grad[0])
        save_batch(ctx, scores, batch)
        ctx.kept = gradient, objective, node
        return torch.scalar_tensor(loss, dtype=scores.dtype, device="cpu")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        # given away, so that it becomes the input's gradient without a copy; a retained graph makes it anew
        gradient, objective, node = ctx.kept
        ctx.kept = None, objective, node
        if gradient is None or torch.is_grad_enabled():
            batch = saved_batch(ctx)
            scores = batch.scores
            if torch.is_grad_enabled():  # a second derivative is wanted: let torch differentiate the plain formula
                loss = node.plain(batch, objective)
                return torch.autograd.grad(loss, scores, grad, create_graph=True)[0], None, None, None
            _, gradient = node.differentiated(scores, batch, objective, wanted=True)
            assert gradient is not None
        try:
            factor = grad.item()
        except RuntimeError:  # a batch of gradients at once, as jacobian(vectorize=True) sends
            return gradient * grad, None, None, None
        return gradient if factor == 1.0 else gradient.mul_(factor), None, None, None


#: Of torch, without its questions about function transforms: `stepless.kernels.dispatch` has asked them.
_apply: Any = super(torch.autograd.Function, _FusedLoss).apply


def save_batch(ctx: Any, scores: Tensor, batch: Batch) -> None:
    """Keep a batch for the way back as torch keeps tensors, so that one that is changed until then is an error."""
    ctx.save_for_backward(scores, batch.target, batch.entry_weight())
    ctx.read_as = None, batch.logits, batch.dtype  # the weight has the mask in it


def saved_batch(ctx: Any) -> Batch:
    """The batch that `save_batch` kept."""
    return Batch(*ctx.saved_tensors, *ctx.read_as)


def is_one_gradient(grad: Tensor) -> bool:
    """Whether one gradient is wanted, and for itself: jacobian(vectorize=True) sends a batch of them."""
    try:
        grad.data_ptr()  # a batch has none
    except RuntimeError:
        return False
    return not torch.is_grad_enabled()


def differentiate_plainly(batch: Batch, count: Callable[[Batch], Tensor], grad: Tensor) -> Tensor:
    """The gradient of counts by the plain path, which can be differentiated again and takes a batch of gradients."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        scores = batch.scores if again else batch.scores.detach().requires_grad_()
        counts = count(batch._replace(scores=scores))
        return torch.autograd.grad(counts, scores, grad.view(counts.shape), create_graph=again)[0]
