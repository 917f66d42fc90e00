"""Multiclass losses on CUDA, fused, in Triton: row by row, without a one-hot target or an N×K array of decisions.

1. Count: softmax, dynamic threshold and decision of each row. Each program adds up the true positives, supports and
   false alarms of every class over its rows, and cross-entropy if it is blended in. Four numbers per row (its notes)
   are kept for step 3.
2. Finish: the metric's formula, traced, on all classes at once: the mean of their losses, or one joint loss.
3. Pull back: the row again, from its notes, and its gradient.

A class index out of range makes the loss NaN unless it is the ignored one. Nothing is written out of bounds, and the
host does not wait to raise an error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepless.cross_entropy import LOWEST_LOG
from stepless.kernels.few_classes import plain_loss
from stepless.kernels.nodes import Objective, differentiate_plainly, is_one_gradient
from stepless.kernels.tracing import straight_line
from stepless.kernels.triton_decisions import compiled, reciprocal
from stepless.kernels.triton_launch import Launch
from stepless.steps import Identity, Linear, RaisedCosine, Sigmoid, Step
from stepless.tasks import read

#: The widest row that one program can hold.
_MOST_CLASSES = 8192
#: Scores that a program holds at once: several rows if they are narrow.
_TILE = 512
#: The cross-entropy of a row whose own class has a score of −inf.
_RULED_OUT = tl.constexpr(-LOWEST_LOG)
#: The tile of `_add_shares`: programs times sums.
_DOWN, _ACROSS = 128, 32


@triton.jit
def _top_two(a, b, c, d):
    return tl.maximum(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _decide_classes(p, tau, STEP: tl.constexpr, a, b):
    """Decisions of rows of probabilities at their thresholds, and their derivatives."""
    if STEP == 0:
        h = p
        slope = p * 0 + 1
    elif STEP == 1:  # sigmoid: a = k
        h = reciprocal(1 + tl.exp(-a * (p - tau[:, None])))
        slope = a * h * (1 - h)
    elif STEP == 2:  # linear: a = δ, b = width
        margin = b * tl.minimum(tau, 1 - tau) / 2
        low = tau - margin
        high = tau + margin
        within = (1 - 2 * a) / (2 * margin)
        below = a / low
        above = a / (1 - high)
        under = p < low[:, None]
        inside = p <= high[:, None]
        slope = tl.where(under, below[:, None], tl.where(inside, within[:, None], above[:, None]))
        upper = tl.where(inside, within[:, None] * p + (a - within * low)[:, None], 1 - above[:, None] * (1 - p))
        h = tl.where(under, below[:, None] * p, upper)
    else:  # raised cosine: a = δ
        u = tl.minimum(tl.maximum((p - tau[:, None]) / a + 1, 0.0), 2.0)
        h = 0.5 * (u - tl.sin(3.141592653589793 * u) / 3.141592653589793)
        slope = 0.5 * (1 - tl.cos(3.141592653589793 * u)) / a
    return h, slope


@triton.jit
def _count_classes(
    x, y, shares, notes, rows, ignored, a, b,
    CLASSES: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLEND: tl.constexpr,
):  # fmt: skip
    """Each program's shares of each class's true positives, supports, false alarms, cross-entropy; and the notes."""
    column = tl.arange(0, WIDE)[None, :]
    real = column < CLASSES
    stride = tl.full((), CLASSES, tl.int64)
    slots = shares + tl.program_id(0) * (3 + BLEND) * stride
    fp = tl.zeros((ROWS, WIDE), tl.float32)
    if ROWS == 1:
        tl.store(slots + column, fp, mask=real)
        tl.store(slots + CLASSES + column, fp, mask=real)
        if BLEND:
            tl.store(slots + 3 * CLASSES + column, fp, mask=real)
        tl.debug_barrier()
    else:
        tp = tl.zeros((ROWS, WIDE), tl.float32)
        support = tl.zeros((ROWS, WIDE), tl.float32)
        entropy = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < rows
        true = tl.load(y + row, mask=there, other=0)
        at = row[:, None] * stride + column
        z = tl.load(x + at, mask=there[:, None] & real, other=float("-inf")).to(tl.float32)
        first, second = tl.reduce((z, tl.full((ROWS, WIDE), float("-inf"), tl.float32)), 1, _top_two)
        p = tl.exp(z - first[:, None])
        scale = 1 / tl.sum(p, 1)
        p = p * scale[:, None]
        tau = (scale + tl.exp(second - first) * scale) / 2
        h, _ = _decide_classes(p, tau, STEP, a, b)
        h = tl.where(real, h, 0.0)
        share = 1 / tl.sum(h, 1)
        known = (true >= 0) & (true < CLASSES)
        counted = there & (true != ignored)
        own = tl.where(known, true, 0)
        one = tl.where(known, 1.0, float("nan"))
        # where, not a product with 0: rows past the end are NaN here, and ignored ones may be
        fp += tl.where(counted[:, None] & (column != own[:, None]), h * share[:, None], 0.0)
        z = tl.load(x + row * stride + own, mask=there, other=0.0).to(tl.float32)
        if BLEND:
            # as in `stepless.cross_entropy`
            cost = tl.where(z == float("-inf"), _RULED_OUT, first - z - tl.log(scale))
        if ROWS == 1:
            # no other program writes to these slots, so the order of the additions, and the result, is deterministic
            h, _ = _decide_classes((tl.exp(z - first) * scale)[:, None], tau, STEP, a, b)
            tl.atomic_add(slots + own, tl.sum(h, 1) * share, mask=counted, sem="relaxed")
            tl.atomic_add(slots + CLASSES + own, one, mask=counted, sem="relaxed")
            if BLEND:
                tl.atomic_add(slots + 3 * CLASSES + own, cost, mask=counted, sem="relaxed")
        else:
            mine = counted[:, None] & (column == own[:, None])
            tp += tl.where(mine, h * share[:, None], 0.0)
            support += tl.where(mine, one[:, None], 0.0)
            if BLEND:
                entropy += tl.where(mine, cost[:, None], 0.0)
        note = notes + row.to(tl.int64) * 4
        tl.store(note, first, mask=there)
        tl.store(note + 1, scale, mask=there)
        tl.store(note + 2, tau, mask=there)
        tl.store(note + 3, share, mask=there)
    slots += tl.arange(0, WIDE)
    real = tl.arange(0, WIDE) < CLASSES
    if ROWS > 1:
        tl.store(slots, tl.sum(tp, 0), mask=real)
        tl.store(slots + CLASSES, tl.sum(support, 0), mask=real)
        if BLEND:
            tl.store(slots + 3 * CLASSES, tl.sum(entropy, 0), mask=real)
    tl.store(slots + 2 * CLASSES, tl.sum(fp, 0), mask=real)


@triton.jit
def _add_shares(shares, sums, programs, width, DOWN: tl.constexpr, ACROSS: tl.constexpr):
    """Add up the programs' shares in float64."""
    column = tl.program_id(0) * ACROSS + tl.arange(0, ACROSS)
    there = column < width
    added = tl.zeros((DOWN, ACROSS), tl.float64)
    for start in range(0, programs, DOWN):
        row = start + tl.arange(0, DOWN)
        inside = (row < programs)[:, None] & there[None, :]
        added += tl.load(shares + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(sums + column, tl.sum(added, 0), mask=there)


@triton.jit
def _pull_back_classes(
    x, y, notes, upstream, out, rows, ignored, a, b,
    CLASSES: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLEND: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDE)[None, :]
    real = column < CLASSES
    stride = tl.full((), CLASSES, tl.int64)
    worths = notes + tl.full((), 4, tl.int64) * rows
    up = tl.load(upstream).to(tl.float32)
    alarm = tl.load(worths + CLASSES + column, mask=real, other=0.0) * up
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < rows
        true = tl.load(y + row, mask=there, other=0)
        known = (true >= 0) & (true < CLASSES)
        hit = tl.load(worths + true, mask=there & known, other=0.0) * up
        note = notes + row.to(tl.int64) * 4
        first, scale = tl.load(note, mask=there, other=0.0), tl.load(note + 1, mask=there, other=0.0)
        tau, share = tl.load(note + 2, mask=there, other=0.5), tl.load(note + 3, mask=there, other=0.0)
        at = row[:, None] * stride + column
        z = tl.load(x + at, mask=there[:, None] & real, other=float("-inf")).to(tl.float32)
        p = tl.exp(z - first[:, None]) * scale[:, None]
        worth = tl.where(column == true[:, None], hit[:, None], alarm)
        if STEP == 0:
            grad = p * (worth - tl.sum(p * worth, 1)[:, None])
        else:
            h, slope = _decide_classes(p, tau, STEP, a, b)
            steep = tl.where(real, p * slope, 0.0)
            decided = tl.where(real, h * share[:, None], 0.0)
            # Σ worth·decision for the normalisation, and Σ p·slope·(worth − that) for the softmax: three sums, one pass
            mean, pull, slack = tl.reduce((worth * decided, worth * steep, steep), 1, _add_three)
            rest = (pull - mean * slack)[:, None]
            grad = share[:, None] * (steep * (worth - mean[:, None]) - p * rest)
        if BLEND:
            own = tl.load(x + row * stride + true, mask=there & known, other=0.0).to(tl.float32)
            rate = tl.load(worths + 2 * CLASSES + true, mask=there & known, other=0.0) * up
            pull = tl.where(own == float("-inf"), 0.0, rate)
            grad += pull[:, None] * (p - tl.where(column == true[:, None], 1.0, 0.0))
        grad = tl.where(true[:, None] == ignored, 0.0, grad)
        tl.store(out + at, grad.to(out.dtype.element_ty), mask=there[:, None] & real)


@triton.jit
def _over_classes(real, x):
    return tl.sum(tl.where(real, x, 0.0), 0)


#: From sums to cells. A difference below the rounding of its sums is 0, as in `stepless.kernels.decisions`.
_CELLS_FROM_SUMS = (
    "negatives = total - support",
    "fn, tn = support - tp, negatives - fp",
    *(
        f"{cell} = tl.where((-{noise} * 4.8e-07 < {cell}) & ({cell} < {noise} * 4.8e-07), 0.0, {cell})"
        for cell, noise in (("fn", "support"), ("tn", "negatives"))
    ),
)


@lru_cache(maxsize=64)
def _finish_classes_kernel(objective: Objective) -> Any:
    lines, results = straight_line(objective.of, joint=objective.joint)
    lines, (value, tp, fp, fn, tn) = (
        [text.replace("total(", "over_classes(real, ") for text in texts] for texts in (lines, results)
    )
    parts = 1 if objective.joint else "classes"  # the mean of the classes' losses, or one loss
    if not objective.joint:
        value = f"tl.sum(tl.where(real, ({value}) / classes, 0.0), 0)"
    share, blended = 1 - objective.blend, []
    if objective.blend:
        value = f"{share} * ({value}) + tl.sum(tl.where(real, entropy * rate, 0.0), 0)"
        counted = "support * tl.sum(tl.where(support > 0, 1.0, 0.0), 0)" if objective.balanced else "total + zero"
        blended = [
            "entropy = tl.load(sums + 3 * classes + k, mask=real, other=0.0)",
            f"counted = {counted}",
            f"rate = tl.where(counted > 0, {objective.blend} / tl.maximum(counted, 1.0), 0.0 * counted)",
            "tl.store(worths + 2 * classes + k, rate.to(tl.float32), mask=real)",
        ]
    body = [
        "k = tl.arange(0, WIDE)",
        "real = k < classes",
        "worths = notes + tl.full((), 4, tl.int64) * rows",
        "zero = tl.zeros((WIDE,), tl.float64)",
        "tp = tl.load(sums + k, mask=real, other=0.0)",
        "support = tl.load(sums + classes + k, mask=real, other=0.0)",
        "fp = tl.load(sums + 2 * classes + k, mask=real, other=0.0)",
        "total = tl.sum(support, 0)",
        *_CELLS_FROM_SUMS,
        *lines,
        *blended,
        f"value = {value}",
        "tl.store(loss, value.to(tl.float32))",
        *(
            f"tl.store({out}, (((({plus}) - ({minus})) + zero) / {parts} * {share}).to(tl.float32), mask=real)"
            for out, plus, minus in (("worths + k", tp, fn), ("worths + classes + k", fp, tn))
        ),
    ]
    head = "def finish(sums, notes, loss, rows, classes, WIDE: tl.constexpr):"
    return compiled("\n    ".join([head, *body]) + "\n", over_classes=_over_classes)


def fused_class_loss(input: Tensor, target: Tensor, ignored: int, objective: Objective) -> Tensor:
    """Compute the loss of logits ``(N, K, …)`` and class indices ``(N, …)`` in one autograd node."""
    if input.dim() > 2:  # every pixel is a row
        input, target = input.movedim(1, -1).reshape(-1, input.shape[1]), target.reshape(-1)
    x, y = input.contiguous(), target.contiguous()  # a copy made inside of the node would have no second derivative
    return _FusedClassLoss.apply(x, y, ignored, objective)  # type: ignore[no-untyped-call]


class _Plan:
    """The launches for batches of one shape, prepared once.

    Even for 65,536 rows of 1,000 classes, the kernels take less time than the host takes to launch them the usual way.
    """

    def __init__(self, rows: int, classes: int, device: torch.device, objective: Objective) -> None:
        wide = triton.next_power_of_2(classes)
        together = max(1, _TILE // wide)
        step, self.two = class_numbers(objective.step)  # type: ignore[misc]
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        # the fastest in a sweep over 10 to 8,000 classes on an H200
        busy = 16 if together > 1 else 8 if wide <= 2048 else 4
        self.programs = min(triton.cdiv(rows, together), processors * busy)
        blend = int(objective.blend > 0)
        self.width = (3 + blend) * classes
        shape = {"CLASSES": classes, "STEP": step, "WIDE": wide, "ROWS": together, "BLEND": blend}
        count_warps, pull_warps = (2, 4) if together > 1 else (max(1, wide // 1024), max(2, wide // 512))
        grid = (self.programs, 1, 1)
        self.count = Launch(_count_classes, grid, {**shape, "num_warps": min(8, count_warps)})
        across = triton.cdiv(self.width, _ACROSS)
        self.add = Launch(_add_shares, (across, 1, 1), {"DOWN": _DOWN, "ACROSS": _ACROSS})
        self.finish = Launch(_finish_classes_kernel(objective), (1, 1, 1), {"WIDE": wide})
        self.pull_back = Launch(_pull_back_classes, grid, {**shape, "num_warps": min(8, pull_warps)})


@lru_cache(maxsize=256)
def _plan(rows: int, classes: int, dtype: torch.dtype, device: torch.device, objective: Objective) -> _Plan:
    return _Plan(rows, classes, device, objective)  # one plan per dtype, because kernels are compiled for one


class _FusedClassLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, ignored: int, objective: Objective) -> Tensor:
        rows, classes = x.shape
        device = x.device
        plan = _plan(rows, classes, x.dtype, device, objective)
        shares = torch.empty(plan.programs, plan.width, device=device)  # of tp, support, fp, cross-entropy
        notes = torch.empty(rows * 4 + 3 * classes, device=device)  # of rows; worths: hit, alarm, entropy
        sums = torch.empty(plan.width, dtype=torch.float64, device=device)
        loss = torch.empty((), device=device)
        plan.count(x, y, shares, notes, rows, ignored, *plan.two)
        plan.add(shares, sums, plan.programs, plan.width)
        plan.finish(sums, notes, loss, rows, classes)
        ctx.save_for_backward(x, y, notes)
        ctx.plan, ctx.ignored, ctx.objective = plan, ignored, objective
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, y, notes = ctx.saved_tensors
        if not is_one_gradient(grad):
            batch = read(x.float(), y, task="multiclass", inputs="logits", ignore_index=ctx.ignored)
            gradient = differentiate_plainly(batch, lambda again: plain_loss(again, ctx.objective), grad)
            return gradient.to(x.dtype), None, None, None
        out = torch.empty_like(x)
        ctx.plan.pull_back(x, y, notes, grad, out, x.shape[0], ctx.ignored, *ctx.plan.two)
        return out, None, None, None


def class_numbers(step: Step) -> tuple[int, tuple[float, float]] | None:
    """Return the kernels' number of a step and its parameters; None if they do not have the step."""
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
        input.dim() >= 2
        and target.shape == (input.shape[0], *input.shape[2:])
        and target.dtype == torch.int64
        and 2 <= input.shape[1] <= _MOST_CLASSES
        and class_numbers(step) is not None
    )
