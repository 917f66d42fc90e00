"""One autograd node from scores to loss, or to counts: what all fused ways on the CPU have in common.

A node keeps its batch, so that backward can run twice, and the plain path can compute second derivatives.
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
    """What is computed from the counts; everything about the loss but the batch.

    Attributes:
        step: The smooth step.
        tau: The threshold.
        of: The loss of the cells ``(4,)`` of one label.
        differentiate: The same with its partial derivatives, on plain numbers.
        differentiate_each: The same on numpy arrays, for many labels at once.
        over_labels: The same in a loop over few labels (`stepless.kernels.tracing.over_labels`).
        labels: Whether dimension 1 of the batch holds labels, whose losses are averaged.
        label_weight: Their weights in that average; None if they are equal.
        joint: Multiclass: whether ``of`` reads the cells of all classes at once; otherwise classes are averaged.
        blend: Multiclass: the share of cross-entropy in the loss.
        balanced: Multiclass: whether every class weighs the same in the cross-entropy.
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
    """The two implementations of a loss behind one node.

    Attributes:
        differentiated: Returns the loss as a number and, if ``wanted``, its gradient.
        plain: Returns the loss as a tensor that torch can differentiate.
    """

    differentiated: Callable[..., tuple[float, Tensor | None]]
    plain: Callable[[Batch, Objective], Tensor]


def loss_in_one_node(batch: Batch, objective: Objective, node: Node) -> Tensor:
    """Compute the loss of a batch in one autograd node."""
    return _apply(batch.scores, batch, objective, node)


class _FusedLoss(torch.autograd.Function):
    """One node from scores to loss. Forward computes the gradient too, while its intermediate results are in cache."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, batch: Batch, objective: Objective, node: Node) -> Tensor:
        loss, gradient = node.differentiated(scores, batch, objective, wanted=ctx.needs_input_grad[0])
        save_batch(ctx, scores, batch)
        ctx.kept = gradient, objective, node
        return torch.scalar_tensor(loss, dtype=scores.dtype, device="cpu")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        # not kept, so that it becomes the input's gradient without a copy; with a retained graph it is computed again
        gradient, objective, node = ctx.kept
        ctx.kept = None, objective, node
        if gradient is None or torch.is_grad_enabled():
            batch = saved_batch(ctx)
            scores = batch.scores
            if torch.is_grad_enabled():  # a second derivative is wanted: torch differentiates the plain path
                loss = node.plain(batch, objective)
                return torch.autograd.grad(loss, scores, grad, create_graph=True)[0], None, None, None
            _, gradient = node.differentiated(scores, batch, objective, wanted=True)
            assert gradient is not None
        try:
            factor = grad.item()
        except RuntimeError:  # a batch of gradients, as from jacobian(vectorize=True)
            return gradient * grad, None, None, None
        return gradient if factor == 1.0 else gradient.mul_(factor), None, None, None


#: ``apply`` without torch's checks for function transforms, which `stepless.kernels.dispatch` has made already.
_apply: Any = super(torch.autograd.Function, _FusedLoss).apply


def save_batch(ctx: Any, scores: Tensor, batch: Batch) -> None:
    """Save a batch for backward by ``save_for_backward``, so that a tensor changed in between is an error."""
    ctx.save_for_backward(scores, batch.target, batch.entry_weight())
    ctx.read_as = None, batch.logits, batch.dtype  # None for the mask, which is part of the weight


def saved_batch(ctx: Any) -> Batch:
    """Return the batch that `save_batch` saved."""
    return Batch(*ctx.saved_tensors, *ctx.read_as)


def is_one_gradient(grad: Tensor) -> bool:
    """Whether backward needs one gradient, neither a batch of them nor a second derivative."""
    try:
        grad.data_ptr()  # a batch of gradients, as from jacobian(vectorize=True), has none
    except RuntimeError:
        return False
    return not torch.is_grad_enabled()


def differentiate_plainly(batch: Batch, count: Callable[[Batch], Tensor], grad: Tensor) -> Tensor:
    """Compute the gradient of counts by the plain path, which supports second derivatives and batches of gradients."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        scores = batch.scores if again else batch.scores.detach().requires_grad_()
        counts = count(batch._replace(scores=scores))
        return torch.autograd.grad(counts, scores, grad.view(counts.shape), create_graph=again)[0]
