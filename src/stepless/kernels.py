"""Fused twins of the path, for plain eager work on the CPU: the same values and gradients, fewer passes.

From scores to loss is one autograd node here. The counting pass writes into a few buffers instead of making an array
for each operation, and the small arithmetic from counts to loss runs as traced code on plain numbers, because torch
spends microseconds on each scalar operation. The plain path is what this is tested against, and what runs whenever
`is_fused` says no.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stepless.confusion import cells
from stepless.steps import Step
from stepless.tasks import Batch
from stepless.tracing import Differentiated, differentiated

#: Scores in a block; see benchmarks/speed. Small blocks pay for the threads' meetings, large ones for fresh memory.
BLOCK = 1 << 20


def eager(*tensors: Tensor | None) -> bool:
    """Whether plain eager code on the CPU is running: nothing compiles, captures or transforms it."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return all(t is None or (t.is_cpu and type(t) in (Tensor, nn.Parameter)) for t in tensors)


@lru_cache(maxsize=1)
def triton_is_there() -> bool:
    """Whether Triton can be imported; it comes with torch's CUDA builds."""
    return importlib.util.find_spec("triton") is not None


def is_on_cuda(input: Tensor, target: Tensor) -> bool:
    """Whether the Triton modules may look at these tensors: plain eager code on CUDA, and Triton is there."""
    return (
        isinstance(input, Tensor)
        and input.is_cuda
        and input.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and input.numel() > 0
        and isinstance(target, Tensor)
        and target.is_cuda
        and not target.requires_grad
        and not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
        and triton_is_there()
    )


def is_fused(batch: Batch) -> bool:
    """Whether `fused_loss` can take this batch."""
    return (
        eager(batch.scores, batch.target, batch.weight, batch.mask)
        and batch.dtype == batch.scores.dtype
        and not batch.target.requires_grad
        and (batch.weight is None or not batch.weight.requires_grad)
    )


Differentiate = Callable[[float, float, float, float], Differentiated]

#: Cells on which a traced formula is tried; the last have empty rows and columns.
_PROBES = ((3.0, 1.0, 2.0, 4.0), (50.5, 0.25, 7.0, 1.0), (0.0, 0.0, 2.0, 5.0), (2.0, 3.0, 0.0, 0.0))


@torch.inference_mode(False)
@torch.enable_grad()
def differentiator(of: Callable[[Any], Any]) -> Differentiate | None:
    """Value and partial derivatives of a scalar function of cells ``(4,)``, traced; None unless it agrees with torch.

    A user's formula may use what symbols have not; then torch differentiates it.
    """
    try:
        traced = differentiated(of)
        for probe in _PROBES:
            cells = torch.tensor(probe, dtype=torch.float64, requires_grad=True)
            value = of(cells)
            expected = [value.item(), *torch.autograd.grad(value, cells)[0].tolist()]
            if not np.allclose(traced(*probe), expected, rtol=1e-9, atol=1e-12, equal_nan=True):
                return None
    except Exception:
        return None
    return traced


class Objective(NamedTuple):
    """What is computed from the counts: everything but the batch.

    Attributes:
        step: The smooth step.
        tau: The threshold.
        of: The loss of the cells ``(4,)`` of one label.
        differentiate: The same with its partial derivatives, on plain numbers.
        labels: Whether dimension 1 of the batch holds labels, whose losses are averaged.
        label_weight: Their weights in that average, where they are not equal.
    """

    step: Step
    tau: float
    of: Callable[[Any], Any]
    differentiate: Differentiate
    labels: bool = False
    label_weight: tuple[float, ...] | None = None


def fused_loss(batch: Batch, objective: Objective) -> Tensor:
    """The loss of a batch, in one autograd node."""
    return _FusedLoss.apply(batch.scores, batch, objective)  # type: ignore[no-untyped-call]


class _FusedLoss(torch.autograd.Function):
    """One node from scores to loss. The gradient is made in the forward pass, while what it needs is at hand."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, batch: Batch, objective: Objective) -> Tensor:
        loss, ctx.gradient = _differentiated(scores, batch, objective, wanted=ctx.needs_input_grad[0])
        ctx.save_for_backward(scores)
        # without the scores: a context that holds its own input is never freed
        ctx.batch, ctx.objective = batch._replace(scores=batch.target), objective
        return torch.scalar_tensor(loss, dtype=scores.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (scores,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: let torch differentiate the plain formula
            loss = plain_loss(ctx.batch._replace(scores=scores), ctx.objective)
            return torch.autograd.grad(loss, scores, grad, create_graph=True)[0], None, None
        # given away, so that it becomes the input's gradient without a copy; a retained graph makes it anew
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            _, gradient = _differentiated(scores, ctx.batch, ctx.objective, wanted=True)
        try:
            factor = grad.item()
        except RuntimeError:  # a batch of gradients at once, as jacobian(vectorize=True) sends
            return gradient * grad, None, None
        return gradient if factor == 1.0 else gradient.mul_(factor), None, None


def _differentiated(scores: Tensor, batch: Batch, objective: Objective, *, wanted: bool) -> tuple[float, Tensor | None]:
    """The loss, and where it is wanted its gradient."""
    weight = batch.entry_weight
    shape = (scores.shape[:2] if scores.dim() == 2 else (*scores.shape[:2], -1)) if objective.labels else (-1,)
    z, y = scores.reshape(shape), batch.target.reshape(shape)
    w = None if weight is None else weight.expand_as(scores).reshape(shape)
    if objective.labels:
        return _labels(scores, z, y, w, batch.logits, objective, wanted=wanted)
    sums, slopes, steepness = _count(z, y, w, batch.logits, objective)
    loss, tp, fp, fn, tn = objective.differentiate(*_cells(sums, _EPS[z.dtype]))
    if not wanted:
        return loss, None
    hit, alarm = (tp - fn) * steepness, (fp - tn) * steepness
    if w is not None:
        slopes.mul_(w)
    # a positive's decision is worth "hit", a negative's "alarm"
    return loss, (slopes * alarm).addcmul_(slopes, y, value=hit - alarm).view(scores.shape)


def _labels(
    scores: Tensor, z: Tensor, y: Tensor, w: Tensor | None, logits: bool, objective: Objective, *, wanted: bool
) -> tuple[float, Tensor | None]:
    sums, slopes, steepness = _count(z, y, w, logits, objective)
    columns = list(zip(*(np.broadcast_to(s, z.shape[1]).tolist() for s in sums), strict=True))
    weights = objective.label_weight or (1.0,) * len(columns)
    share = 1 / sum(weights)
    loss, worths = 0.0, []
    for column, weight in zip(columns, weights, strict=True):
        value, tp, fp, fn, tn = objective.differentiate(*_cells(column, _EPS[z.dtype]))
        loss += share * weight * value
        worths.append([share * weight * steepness * (tp - fn), share * weight * steepness * (fp - tn)])
    if not wanted:
        return loss, None
    hit, alarm = (
        torch.tensor(worth, dtype=z.dtype).view(-1, *[1] * (z.dim() - 2)) for worth in zip(*worths, strict=True)
    )
    if w is not None:
        slopes.mul_(w)
    return loss, torch.mul(y, hit - alarm).add_(alarm).mul_(slopes).view(scores.shape)


def _count(
    z: Tensor, y: Tensor, w: Tensor | None, logits: bool, objective: Objective
) -> tuple[tuple[Any, Any, Any, Any], Tensor, float]:
    """The sums tp, predicted, support and total; the derivative of every decision, and the constant it lacks.

    Scores are flat, or ``(N, labels)`` or ``(N, labels, pixels)`` to be summed for each label.
    """
    step, tau, rows = objective.step, objective.tau, len(z)
    height = max(1, BLOCK // max(1, z[0].numel())) if z.dim() > 1 and rows else BLOCK
    add = _add_labels if z.dim() > 1 else _add
    slopes = torch.empty_like(z)
    # Buffers are made once and written to: fresh ones would cost more in page faults than the arithmetic does.
    decisions, spares = (torch.empty_like(z if rows <= height else z[:height]) for _ in range(2))
    tp = predicted = support = total = 0.0
    steepness = 1.0
    for start in range(0, rows, height):
        block, truth, share, slope, h, spare = z, y, w, slopes, decisions, spares
        if rows > height:
            cut = slice(start, start + height)
            block, truth, share, slope = z[cut], y[cut], None if w is None else w[cut], slopes[cut]
            h, spare = decisions[: len(block)], spares[: len(block)]
        if logits:
            scale, shift, steepness = step.linearise_logits(block, tau, h, slope, spare)
        else:
            scale, shift, steepness = step.linearise(block, tau, h, slope)
        if share is None:
            decided, positives = add(h), add(truth)
            here = float(truth.numel() // (1 if z.dim() == 1 else max(1, z.shape[1])))
        else:
            decided, here = add(torch.mul(h, share, out=spare)), add(share)
            truth = torch.mul(truth, share, out=spare)
            positives = add(truth)
        # not torch.dot: it adds one by one, and a million equal terms drift
        tp = tp + scale * add(h.mul_(truth)) + shift * positives
        predicted = predicted + scale * decided + shift * here
        support, total = support + positives, total + here
    return (tp, predicted, support, total), slopes, steepness


def _add(x: Tensor) -> float:
    return x.sum().item()


def _add_labels(x: Tensor) -> Any:
    return (x.sum(0) if x.dim() == 2 else x.sum((0, 2))).double().numpy()


_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


def _cells(sums: tuple[float, ...], eps: float) -> tuple[float, float, float, float]:
    """The four cells.

    One below the rounding of the sums it is a difference of is empty: 0/0 must not become a ratio of two roundings.
    """
    tp, predicted, support, total = sums
    fp, fn, tn = predicted - tp, support - tp, total - support - predicted + tp
    eps *= 4
    return (
        tp,
        0.0 if abs(fp) < eps * predicted else fp,
        0.0 if abs(fn) < eps * support else fn,
        0.0 if abs(tn) < eps * total else tn,
    )


def plain_loss(batch: Batch, objective: Objective) -> Tensor:
    """The same loss by the plain path: what the fused ones are tested against, and differentiated twice by."""
    decide = objective.step.from_logits if batch.logits else objective.step
    table = cells(batch, decide(batch.scores, objective.tau), "batch", labels=objective.labels)
    if not objective.labels:
        return objective.of(table.view(4))
    losses = objective.of(table.view(-1, 4))
    weight = losses.new_tensor(objective.label_weight or (1.0,) * len(losses))
    return (losses * weight).sum() / weight.sum()
