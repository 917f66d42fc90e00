"""Fused twins of the multiclass path on CUDA, in Triton: a row at a time, no one-hot and no N×K array of decisions.

1. Count: softmax, dynamic threshold and decision of a row; true positives and supports of its class, and column sums.
   What the row needs again is noted down, four numbers.
2. Finish: the metric's own formula, traced, on all classes at once: their mean, or one formula that reads them all.
3. Pull back: the row again from its notes, and its gradient.

A class index that is none of the classes, nor the ignored one, makes the loss NaN: nothing is written out of bounds,
and nothing waits for the host to raise an error.
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
from stepless.triton_decisions import CELLS_FROM_SUMS, compiled, reciprocal

#: The widest row that a program keeps to itself.
_MOST_CLASSES = 8192
_PROGRAMS_PER_PROCESSOR = 8


@triton.jit
def _top_two(a, b, c, d):
    return tl.maximum(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def _add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _decide_classes(p, tau, STEP: tl.constexpr, a, b):
    """The decisions of a row of probabilities at its threshold, and their derivatives."""
    if STEP == 0:
        h = p
        slope = p * 0 + 1
    elif STEP == 1:  # sigmoid: a = k
        h = reciprocal(1 + tl.exp(-a * (p - tau)))
        slope = a * h * (1 - h)
    elif STEP == 2:  # linear: a = δ, b = width
        margin = b * tl.minimum(tau, 1 - tau) / 2
        low = tau - margin
        high = tau + margin
        within = (1 - 2 * a) / (2 * margin)
        below = a / low
        above = a / (1 - high)
        slope = tl.where(p < low, below, tl.where(p <= high, within, above))
        h = slope * p + tl.where(p < low, 0.0, tl.where(p <= high, a - within * low, 1 - above))
    else:  # raised cosine: a = δ
        u = tl.minimum(tl.maximum((p - tau) / a, -1.0), 1.0)
        h = 0.5 * (1 + u + tl.sin(3.141592653589793 * u) / 3.141592653589793)
        slope = 0.5 * (1 + tl.cos(3.141592653589793 * u)) / a
    return h, slope


@triton.jit
def _count_classes(
    x, y, sums, predicted, notes, rows, ignored, a, b,
    CLASSES: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDE)
    real = column < CLASSES
    stride = tl.full((), CLASSES, tl.int64)
    mine = tl.zeros((WIDE,), tl.float32)
    for row in range(program, rows, programs):
        true = tl.load(y + row)
        z = tl.load(x + row * stride + column, mask=real, other=float("-inf")).to(tl.float32)
        first, second = tl.reduce((z, tl.full((WIDE,), float("-inf"), tl.float32)), 0, _top_two)
        p = tl.exp(z - first)
        scale = 1 / tl.sum(p, 0)
        p = p * scale
        tau = (scale + tl.exp(second - first) * scale) / 2
        h, _ = _decide_classes(p, tau, STEP, a, b)
        h = tl.where(real, h, 0.0)
        total, hit = tl.reduce((h, tl.where(column == true, h, 0.0)), 0, _add_two)
        share = 1 / total
        counted = true != ignored
        known = (true >= 0) & (true < CLASSES)
        mine += tl.where(counted, h * share, 0.0)
        tl.atomic_add(sums + true, (hit * share).to(tl.float64), mask=counted & known)
        tl.atomic_add(sums + CLASSES + true, 1.0, mask=counted & known)
        tl.atomic_add(sums + CLASSES, float("nan"), mask=counted & (known == 0))
        note = notes + row * 4
        tl.store(note, first)
        tl.store(note + 1, scale)
        tl.store(note + 2, tau)
        tl.store(note + 3, share)
    tl.store(predicted + program * CLASSES + column, mine, mask=real)


@triton.jit
def _pull_back_classes(
    x, y, worths, notes, upstream, out, rows, ignored, a, b,
    CLASSES: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDE)
    real = column < CLASSES
    stride = tl.full((), CLASSES, tl.int64)
    up = tl.load(upstream).to(tl.float32)
    alarm = tl.load(worths + CLASSES + column, mask=real, other=0.0) * up
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        true = tl.load(y + row)
        known = (true >= 0) & (true < CLASSES)
        hit = tl.load(worths + true, mask=known, other=0.0) * up
        note = notes + row * 4
        first, scale, tau, share = tl.load(note), tl.load(note + 1), tl.load(note + 2), tl.load(note + 3)
        at = row * stride + column
        p = tl.exp(tl.load(x + at, mask=real, other=float("-inf")).to(tl.float32) - first) * scale
        worth = tl.where(column == true, hit, alarm)
        if STEP == 0:
            grad = p * (worth - tl.sum(p * worth, 0))
        else:
            h, slope = _decide_classes(p, tau, STEP, a, b)
            steep = tl.where(real, p * slope, 0.0)
            decided = tl.where(real, h * share, 0.0)
            # of one decision Σ worth·s, and of the softmax behind it Σ p·slope·(worth − that): one pass adds all three
            mean, pull, slack = tl.reduce((worth * decided, worth * steep, steep), 0, _add_three)
            grad = share * (steep * (worth - mean) - p * (pull - mean * slack))
        grad = tl.where(true == ignored, 0.0, grad)
        tl.store(out + at, grad.to(out.dtype.element_ty), mask=real)


@triton.jit
def _over_classes(real, x):
    return tl.sum(tl.where(real, x, 0.0), 0)


@lru_cache(maxsize=64)
def _finish_classes_kernel(objective: Objective) -> Any:
    lines, results = straight_line(objective.of, joint=objective.joint)
    lines, (value, tp, fp, fn, tn) = (
        [text.replace("total(", "over_classes(real, ") for text in texts] for texts in (lines, results)
    )
    parts = 1 if objective.joint else "classes"  # the mean of the classes' losses, or one loss
    body = [
        "k = tl.arange(0, WIDE)",
        "real = k < classes",
        "zero = tl.zeros((WIDE,), tl.float64)",
        "tp = tl.load(sums + k, mask=real, other=0.0)",
        "support = tl.load(sums + classes + k, mask=real, other=0.0)",
        "predicted = tl.load(predicteds + k, mask=real, other=0.0)",
        "total = tl.sum(support, 0)",
        *CELLS_FROM_SUMS,
        *lines,
        f"value = {value}" if objective.joint else f"value = tl.sum(tl.where(real, ({value}) / classes, 0.0), 0)",
        "tl.store(loss, value.to(tl.float32))",
        *(
            f"tl.store({out}, (((({plus}) - ({minus})) + zero) / {parts}).to(tl.float32), mask=real)"
            for out, plus, minus in (("worths + k", tp, fn), ("worths + classes + k", fp, tn))
        ),
    ]
    head = "def finish(sums, predicteds, loss, worths, classes, WIDE: tl.constexpr):"
    return compiled("\n    ".join([head, *body]) + "\n", over_classes=_over_classes)


def fused_class_loss(input: Tensor, target: Tensor, ignored: int, objective: Objective) -> Tensor:
    """The loss of a multiclass batch of logits ``(N, K)`` and class indices, in one autograd node."""
    return _FusedClassLoss.apply(input, target, ignored, objective)  # type: ignore[no-untyped-call]


def _warps(wide: int) -> int:
    return max(1, min(8, wide // 512))


class _FusedClassLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, target: Tensor, ignored: int, objective: Objective) -> Tensor:
        x, y = input.contiguous(), target.contiguous()
        rows, classes = x.shape
        wide = triton.next_power_of_2(classes)
        step, two = class_numbers(objective.step)  # type: ignore[misc]
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        programs = min(rows, processors * _PROGRAMS_PER_PROCESSOR)
        sums = torch.zeros(2, classes, device=x.device, dtype=torch.float64)
        predicted = torch.empty(programs, classes, device=x.device, dtype=torch.float32)
        notes = torch.empty(rows, 4, device=x.device, dtype=torch.float32)
        worths = torch.empty(2, classes, device=x.device, dtype=torch.float32)
        shape = {"CLASSES": classes, "STEP": step, "WIDE": wide, "num_warps": _warps(wide)}
        loss = torch.empty((), device=x.device, dtype=torch.float32)
        _count_classes[(programs,)](x, y, sums, predicted, notes, rows, ignored, *two, **shape)
        _finish_classes_kernel(objective)[(1,)](
            sums, predicted.sum(0, dtype=torch.float64), loss, worths, classes, WIDE=wide
        )
        ctx.save_for_backward(x, y, worths, notes)
        ctx.settings = (programs, ignored, two, shape)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, y, worths, notes = ctx.saved_tensors
        programs, ignored, two, shape = ctx.settings
        out = torch.empty_like(x)
        _pull_back_classes[(programs,)](x, y, worths, notes, grad, out, x.shape[0], ignored, *two, **shape)
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
