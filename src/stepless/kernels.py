"""Fused twins of the path, for plain eager work on the CPU: the same values and gradients, fewer passes.

From scores to loss is one autograd node here. The counting pass writes into a few buffers instead of making an array
for each operation, and the small arithmetic from counts to loss goes through numpy, because torch spends microseconds
on each scalar operation. The plain path is what this is tested against, and what runs whenever `is_fused` says no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepless.confusion import cells
from stepless.steps import Step
from stepless.tasks import Batch

#: Scores in a block; see benchmarks/speed. Small blocks pay for the threads' meetings, large ones for fresh memory.
BLOCK = 1 << 20

_INFINITESIMAL = 1e-30


def eager(*tensors: Tensor | None) -> bool:
    """Whether plain eager code on the CPU is running: nothing compiles, captures or transforms it."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return all(t is None or (t.is_cpu and type(t) in (Tensor, nn.Parameter)) for t in tensors)


def is_fused(batch: Batch) -> bool:
    """Whether `loss_of_counts` can take this batch."""
    return (
        eager(batch.scores, batch.target, batch.weight, batch.mask)
        and batch.dtype == batch.scores.dtype
        and not batch.target.requires_grad
        and (batch.weight is None or not batch.weight.requires_grad)
    )


Differentiate = Callable[[tuple[float, ...]], tuple[float, list[float]]]

#: Cells on which a formula is tried; the last have empty rows and columns.
_PROBES = ((3.0, 1.0, 2.0, 4.0), (50.5, 0.25, 7.0, 1.0), (0.0, 0.0, 2.0, 5.0), (2.0, 3.0, 0.0, 0.0))


@torch.inference_mode(False)
@torch.enable_grad()
def differentiator(of: Callable[[Any], Any], of_numbers: Callable[..., Any] | None) -> Differentiate | None:
    """The fastest way to a value and its partial derivatives that agrees with torch's, or None.

    Args:
        of: A scalar function of cells ``(..., 4)``, in any array.
        of_numbers: The same of four plain numbers, where the formula has such a form.
    """
    ways: list[Differentiate] = [lambda cells: complex_step(cells, of)]
    if of_numbers is not None:
        ways.insert(0, lambda cells: complex_step_of_numbers(cells, of_numbers))
    return next((way for way in ways if _agrees_with_torch(way, of)), None)


def _agrees_with_torch(way: Differentiate, of: Callable[[Any], Any]) -> bool:
    for probe in _PROBES:
        cells = torch.tensor(probe, dtype=torch.float64, requires_grad=True)
        value = of(cells)
        (gradient,) = torch.autograd.grad(value, cells)
        try:
            result, partials = way(probe)
        except Exception:  # a user's formula may use what plain numbers or numpy have not
            return False
        if not np.allclose([result, *partials], [value.item(), *gradient.tolist()], rtol=1e-9, atol=1e-12):
            return False
    return True


def loss_of_counts(
    batch: Batch, step: Step, tau: float, of: Callable[[Any], Any], differentiate: Differentiate
) -> Tensor:
    """``of(cells)``, a scalar, for the cells ``(4,)`` of all yes/no decisions of a batch at one threshold."""
    weight = batch.entry_weight
    if weight is not None:
        weight = weight.expand_as(batch.target)
    settings = (batch.target, weight, step, tau, batch.logits, of)
    return _LossOfCounts.apply(batch.scores, settings, differentiate)  # type: ignore[no-untyped-call]


class _LossOfCounts(torch.autograd.Function):
    """One node from scores to loss. The gradient is made in the forward pass, while what it needs is at hand."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, settings: tuple[Any, ...], differentiate: Differentiate) -> Tensor:
        loss, ctx.gradient = _differentiated(scores, settings, differentiate, wanted=ctx.needs_input_grad[0])
        ctx.save_for_backward(scores)
        ctx.settings, ctx.differentiate = settings, differentiate
        return torch.full((), loss, dtype=scores.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (scores,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: let torch differentiate the plain formula
            return (
                torch.autograd.grad(_plain_loss(scores, *ctx.settings), scores, grad, create_graph=True)[0],
                None,
                None,
            )
        gradient, ctx.gradient = (
            ctx.gradient,
            None,
        )  # given away, so that it becomes the input's gradient without a copy
        if gradient is None:  # the second pass through a retained graph
            _, gradient = _differentiated(scores, ctx.settings, ctx.differentiate, wanted=True)
        try:
            factor = grad.item()
        except RuntimeError:  # a batch of gradients at once, as jacobian(vectorize=True) sends
            return gradient * grad, None, None
        return gradient if factor == 1.0 else gradient.mul_(factor), None, None


def _differentiated(
    scores: Tensor, settings: tuple[Any, ...], differentiate: Differentiate, *, wanted: bool
) -> tuple[float, Tensor | None]:
    """The loss, and where it is wanted its gradient."""
    target, weight, step, tau, logits, _ = settings
    z, y = scores.reshape(-1), target.reshape(-1)
    w = None if weight is None else weight.reshape(-1)
    cells, slopes, steepness = _count(z, y, w, step, tau, logits)
    loss, (tp, fp, fn, tn) = differentiate(cells)
    if not wanted:
        return loss, None
    return loss, _pull_back(slopes, y, w, (tp - fn) * steepness, (fp - tn) * steepness).view(scores.shape)


def _count(
    z: Tensor, y: Tensor, w: Tensor | None, step: Step, tau: float, logits: bool
) -> tuple[tuple[float, ...], Tensor, float]:
    """The cells; the derivative of every decision with respect to its score, and the constant it lacks."""
    size = z.numel()
    slopes = torch.empty_like(z)
    # Buffers are made once and written to: fresh ones would cost more in page faults than the arithmetic does.
    decisions, spares = z.new_empty(min(size, BLOCK)), z.new_empty(min(size, BLOCK))
    tp = predicted = support = total = 0.0
    steepness = 1.0
    for start in range(0, size, BLOCK):
        if size <= BLOCK:
            block, truth, share, slope, h, spare = z, y, w, slopes, decisions, spares
        else:
            cut = slice(start, start + BLOCK)
            block, truth, share, slope = z[cut], y[cut], None if w is None else w[cut], slopes[cut]
            h, spare = decisions[: block.numel()], spares[: block.numel()]
        if logits:
            scale, shift, steepness = step.linearise_logits(block, tau, h, slope, spare)
        else:
            scale, shift, steepness = step.linearise(block, tau, h, slope)
        if share is None:
            decided, here = h.sum().item(), float(truth.numel())
            positives = truth.sum().item()
        else:
            decided, here = torch.mul(h, share, out=spare).sum().item(), share.sum().item()
            positives = torch.mul(truth, share, out=spare).sum().item()
            truth = spare
        # not torch.dot: it adds one by one, and a million equal terms drift
        tp += scale * h.mul_(truth).sum().item() + shift * positives
        predicted += scale * decided + shift * here
        support += positives
        total += here
    cells = (tp, predicted - tp, support - tp, total - support - predicted + tp)
    # A cell below the sums' own rounding is empty: 0/0 must not become a ratio of two roundings.
    noise = 4 * torch.finfo(z.dtype).eps * total
    return tuple(cell if not abs(cell) < noise else 0.0 for cell in cells), slopes, steepness


def _pull_back(slopes: Tensor, y: Tensor, w: Tensor | None, hit: float, alarm: float) -> Tensor:
    """The gradient: a positive's decision is worth ``hit``, a negative's ``alarm``."""
    if w is not None:
        slopes.mul_(w)
    gradient = slopes * alarm
    return gradient.addcmul_(slopes, y, value=hit - alarm)


def _plain_loss(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    step: Step,
    tau: float,
    logits: bool,
    of: Callable[[Any], Any],
) -> Tensor:
    batch = Batch(scores, target, weight, None, logits, scores.dtype)
    decision = step.from_logits(scores, tau) if logits else step(scores, tau)
    return of(cells(batch, decision, "batch", labels=False).view(4))


def complex_step(cells: tuple[float, ...], of: Callable[[Any], Any]) -> tuple[float, list[float]]:
    """The value and the partial derivatives of ``of`` at the four cells.

    Given counts with an infinitesimal imaginary change in one cell each, the result carries the partial derivatives in
    its imaginary part, exact to the last bits: no difference is taken (Squire and Trapp 1998).
    """
    with np.errstate(invalid="ignore"):  # NaN scores make NaN counts, and those a NaN loss, without a word from numpy
        result = of(_CHANGES + cells)
    return result[0].real, (result.imag / _INFINITESIMAL).tolist()


def complex_step_of_numbers(cells: tuple[float, ...], of: Callable[..., Any]) -> tuple[float, list[float]]:
    """The same for ``of(tp, fp, fn, tn)`` on plain numbers, which are faster than any array where four are all."""
    tp, fp, fn, tn = cells
    step = 1j * _INFINITESIMAL
    results = (
        of(tp + step, fp, fn, tn),
        of(tp, fp + step, fn, tn),
        of(tp, fp, fn + step, tn),
        of(tp, fp, fn, tn + step),
    )
    return results[0].real, [result.imag / _INFINITESIMAL for result in results]


_CHANGES = 1j * _INFINITESIMAL * np.eye(4)
