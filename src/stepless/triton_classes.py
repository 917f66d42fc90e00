"""Fused twins of the multiclass path on CUDA, in Triton: a row at a time, no one-hot and no N×K array of decisions.

1. Count: softmax, dynamic threshold and decision of a row; true positives and supports of its class, and column sums.
2. Finish: the metric's own formula, traced, on all classes at once; the loss is their mean.
3. Pull back: the row again, and its gradient.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from stepless.kernels import Objective
from stepless.steps import Identity, Linear, RaisedCosine, Sigmoid, Step
from stepless.tracing import straight_line
from stepless.triton_decisions import CELLS_FROM_SUMS, compiled

#: The widest row that a program keeps to itself.
_MOST_CLASSES = 8192


@triton.jit
def _shares_of_classes(logits, real, column, STEP: tl.constexpr, a, b):
    """Probabilities of a row, its decision among the classes, that decision's sum and its slopes."""
    z = tl.where(real, logits, float("-inf"))
    p = tl.exp(z - tl.max(z, 0))
    p = p * (1 / tl.sum(p, 0))
    if STEP == 0:
        return p, p, 1.0, tl.where(real, 1.0, 0.0)
    top, first = tl.max(p, 0, return_indices=True)
    tau = (top + tl.max(tl.where(column == first, -1.0, p), 0)) / 2
    if STEP == 1:  # sigmoid: a = k
        h = 1 / (1 + tl.exp(-a * (p - tau)))
        slope = a * h * (1 - h)
    elif STEP == 2:  # linear: a = δ, b = width
        margin = b * tl.minimum(tau, 1 - tau) / 2
        low = tau - margin
        high = tau + margin
        within = (1 - 2 * a) / (2 * margin)
        h = tl.where(p < low, a / low * p, tl.where(p < high, a + within * (p - low), 1 - a / (1 - high) * (1 - p)))
        slope = tl.where(p < low, a / low, tl.where(p <= high, within, a / (1 - high)))
    else:  # raised cosine: a = δ
        u = tl.minimum(tl.maximum((p - tau) / a, -1.0), 1.0)
        h = 0.5 * (1 + u + tl.sin(3.141592653589793 * u) / 3.141592653589793)
        slope = 0.5 * (1 + tl.cos(3.141592653589793 * u)) / a
    h = tl.where(real, h, 0.0)
    total = tl.sum(h, 0)
    return p, h * (1 / total), total, tl.where(real, slope, 0.0)


@triton.jit
def _count_classes(x, y, tp, support, predicted, rows, classes, ignored, a, b, STEP: tl.constexpr, WIDE: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDE)
    real = column < classes
    mine = tl.zeros((WIDE,), tl.float32)
    for row in range(program, rows, programs):
        true = tl.load(y + row)
        if true != ignored:
            logits = tl.load(x + row.to(tl.int64) * classes + column, mask=real, other=0.0).to(tl.float32)
            _, s, _, _ = _shares_of_classes(logits, real, column, STEP, a, b)
            mine += s
            tl.atomic_add(tp + true, tl.sum(tl.where(column == true, s, 0.0), 0).to(tl.float64))
            tl.atomic_add(support + true, 1.0)
    tl.store(predicted + program * classes + column, mine, mask=real)


@triton.jit
def _pull_back_classes(
    x, y, worths, upstream, out, rows, classes, ignored, a, b, STEP: tl.constexpr, WIDE: tl.constexpr
):
    column = tl.arange(0, WIDE)
    real = column < classes
    up = tl.load(upstream).to(tl.float32)
    hit = tl.load(worths + classes + column, mask=real, other=0.0) * up
    alarm = tl.load(worths + 2 * classes + column, mask=real, other=0.0) * up
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        true = tl.load(y + row)
        at = row.to(tl.int64) * classes + column
        logits = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        p, s, total, slope = _shares_of_classes(logits, real, column, STEP, a, b)
        worth = tl.where(column == true, hit, alarm)
        if STEP == 0:
            by_p = worth
        else:
            by_p = (worth - tl.sum(worth * s, 0)) * (1 / total) * slope
        grad = p * (by_p - tl.sum(p * by_p, 0))
        grad = tl.where(true == ignored, 0.0, grad)
        tl.store(out + at, grad.to(out.dtype.element_ty), mask=real)


@lru_cache(maxsize=64)
def _finish_classes_kernel(objective: Objective) -> Any:
    lines, (value, tp, fp, fn, tn) = straight_line(objective.of)
    body = [
        "k = tl.arange(0, WIDE)",
        "real = k < classes",
        "tp = tl.load(tps + k, mask=real, other=0.0)",
        "support = tl.load(supports + k, mask=real, other=0.0)",
        "predicted = tl.load(predicteds + k, mask=real, other=0.0)",
        "total = tl.sum(support, 0)",
        *CELLS_FROM_SUMS,
        *lines,
        f"value = ({value}) / classes",
        "out = worths + k",
        "mean = tl.sum(tl.where(real, value, 0.0), 0).to(tl.float32)",
        "tl.store(out, mean + tl.zeros((WIDE,), tl.float32), mask=real)",
        f"tl.store(out + classes, (((({tp}) - ({fn})) + 0.0 * tp) / classes).to(tl.float32), mask=real)",
        f"tl.store(out + 2 * classes, (((({fp}) - ({tn})) + 0.0 * tp) / classes).to(tl.float32), mask=real)",
    ]
    head = "def finish(tps, supports, predicteds, worths, classes, WIDE: tl.constexpr):"
    return compiled("\n    ".join([head, *body]) + "\n")


def fused_class_loss(input: Tensor, target: Tensor, ignored: int, objective: Objective) -> Tensor:
    """The macro loss of a multiclass batch of logits ``(N, K)`` and class indices, in one autograd node."""
    return _FusedClassLoss.apply(input, target, ignored, objective)  # type: ignore[no-untyped-call]


class _FusedClassLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, target: Tensor, ignored: int, objective: Objective) -> Tensor:
        x, y = input.contiguous(), target.contiguous()
        rows, classes = x.shape
        wide = triton.next_power_of_2(classes)
        step, two = class_numbers(objective.step)  # type: ignore[misc]
        programs = min(rows, torch.cuda.get_device_properties(x.device).multi_processor_count * 16)
        sums = torch.zeros(2, classes, device=x.device, dtype=torch.float64)
        predicted = torch.empty(programs, classes, device=x.device, dtype=torch.float32)
        worths = torch.empty(3, classes, device=x.device, dtype=torch.float32)
        warps = 2 if wide <= 1024 else 4
        _count_classes[(programs,)](
            x, y, sums[0], sums[1], predicted, rows, classes, ignored, *two, STEP=step, WIDE=wide, num_warps=warps
        )
        _finish_classes_kernel(objective)[(1,)](
            sums[0], sums[1], predicted.sum(0, dtype=torch.float64), worths, classes, WIDE=wide
        )
        ctx.save_for_backward(x, y, worths)
        ctx.settings = (ignored, step, two, wide, warps)
        return worths[0, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, y, worths = ctx.saved_tensors
        ignored, step, two, wide, warps = ctx.settings
        out = torch.empty_like(x)
        _pull_back_classes[(x.shape[0],)](
            x, y, worths, grad, out, *x.shape, ignored, *two, STEP=step, WIDE=wide, num_warps=warps
        )
        return out, None, None, None


def class_numbers(step: Step) -> tuple[int, tuple[float, float]] | None:
    """Which of the class kernels' steps this is, and its numbers; None where they have it not."""
    if type(step) is Identity:
        return 0, (0.0, 0.0)
    if type(step) is Sigmoid:
        return 1, (step.k, 0.0)
    if type(step) is Linear:
        return 2, (step.delta, step.width)
    if type(step) is RaisedCosine:
        return 3, (step.delta, 0.0)
    return None


def takes_classes(input: Tensor, target: Tensor, step: Step) -> bool:
    """Whether `fused_class_loss` can take these tensors."""
    return (
        input.dim() == 2
        and target.shape == input.shape[:1]
        and target.dtype == torch.int64
        and 2 <= input.shape[1] <= _MOST_CLASSES
        and class_numbers(step) is not None
        and not torch.are_deterministic_algorithms_enabled()  # counts of a class are added in any order
    )
