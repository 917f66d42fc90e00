"""Fused twins of the path on CUDA, in Triton: three kernels from scores to gradient, and nothing waits for the host.

1. Count: every program adds up its share of the scores' counts.
2. Finish: one program a label adds up the shares in float64 and runs the metric's own formula, traced to straight-line
   code (`stepless.tracing`), for the loss and for what a decision of either class is worth.
3. Pull back: every score's gradient, its decision's derivative times that worth.
"""

from __future__ import annotations

import linecache
import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepless.kernels import Objective, plain_loss
from stepless.numerics import constant
from stepless.steps import Identity, Linear, LogitSigmoid, RaisedCosine, Sigmoid, Step
from stepless.tasks import Batch
from stepless.tracing import straight_line

_BLOCK, _WARPS = 1024, 4
_PROGRAMS_PER_PROCESSOR = 32


@triton.jit
def _decide(x, STEP: tl.constexpr, LOGITS: tl.constexpr, a, b, c, d, e):
    """The decision of a score and its derivative; a to e are the step's numbers."""
    if LOGITS:
        if STEP == 4:
            p = x
            inner = 1.0
        else:
            p = 1 / (1 + tl.exp(-x))
            inner = p * (1 - p)
    else:
        p = x
        inner = 1.0
    if STEP == 0:  # identity
        h = p
        slope = inner
    elif STEP == 1:  # sigmoid: a = k, b = τ
        h = 1 / (1 + tl.exp(-a * (p - b)))
        slope = a * h * (1 - h) * inner
    elif STEP == 2:  # linear: a = low, b = high, c, d, e = slopes below, between, above
        h = tl.where(p < a, c * p, tl.where(p < b, c * a + d * (p - a), 1 - e * (1 - p)))
        slope = tl.where(p < a, c, tl.where(p <= b, d, e)) * inner
    elif STEP == 3:  # raised cosine: a = δ, b = τ
        u = tl.minimum(tl.maximum((p - b) / a, -1.0), 1.0)
        h = 0.5 * (1 + u + tl.sin(3.141592653589793 * u) / 3.141592653589793)
        slope = 0.5 * (1 + tl.cos(3.141592653589793 * u)) / a * inner
    else:  # sigmoid of logits: a = temperature, b = logit τ
        h = 1 / (1 + tl.exp(-(p - b) / a))
        slope = h * (1 - h) / a
    return h, slope


@triton.jit
def _count(
    x, y, w, shares, size, labels, pixels, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, LABELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Shares of tp, predicted, support and total: one row of four for each label and program."""
    program, programs, label = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    tp = tl.zeros((BLOCK,), tl.float32)
    predicted = tl.zeros((BLOCK,), tl.float32)
    support = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(program * BLOCK, size, programs * BLOCK):
        i = start + lane
        inside = i < size
        at = (i // pixels * labels + label) * pixels + i % pixels if LABELS else i
        score = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        truth = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        share = tl.load(w + at, mask=inside, other=0.0).to(tl.float32) if WEIGHTED else tl.where(inside, 1.0, 0.0)
        h, _ = _decide(score, STEP, LOGITS, a, b, c, d, e)
        h = h * share
        tp += h * truth
        predicted += h
        support += truth * share
        total += share
    row = shares + (label * programs + program) * 4
    tl.store(row, tl.sum(tp))
    tl.store(row + 1, tl.sum(predicted))
    tl.store(row + 2, tl.sum(support))
    tl.store(row + 3, tl.sum(total))


@triton.jit
def _count_columns(
    x, y, w, shares, rows, labels, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """The same for ``(rows, labels)``: tiles of whole rows, so that neighbours in memory are read together."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    column = tl.arange(0, WIDE)
    tp = tl.zeros((HIGH, WIDE), tl.float32)
    predicted = tl.zeros((HIGH, WIDE), tl.float32)
    support = tl.zeros((HIGH, WIDE), tl.float32)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(program * HIGH, rows, programs * HIGH):
        row = start + tl.arange(0, HIGH).to(tl.int64)
        inside = (row < rows)[:, None] & (column < labels)[None, :]
        at = row[:, None] * labels + column[None, :]
        score = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        truth = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        share = tl.load(w + at, mask=inside, other=0.0).to(tl.float32) if WEIGHTED else tl.where(inside, 1.0, 0.0)
        h, _ = _decide(score, STEP, LOGITS, a, b, c, d, e)
        h = h * share
        tp += h * truth
        predicted += h
        support += truth * share
        total += share
    out = shares + (column * programs + program) * 4
    real = column < labels
    tl.store(out, tl.sum(tp, 0), mask=real)
    tl.store(out + 1, tl.sum(predicted, 0), mask=real)
    tl.store(out + 2, tl.sum(support, 0), mask=real)
    tl.store(out + 3, tl.sum(total, 0), mask=real)


@triton.jit
def _pull_back(
    x, y, w, worths, upstream, out, size, labels, pixels, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    score = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    truth = tl.load(y + i, mask=inside, other=0.0).to(tl.float32)
    label = i // pixels % labels
    hit = tl.load(worths + label * 3 + 1, mask=inside, other=0.0)
    alarm = tl.load(worths + label * 3 + 2, mask=inside, other=0.0)
    _, slope = _decide(score, STEP, LOGITS, a, b, c, d, e)
    grad = slope * (alarm + (hit - alarm) * truth) * tl.load(upstream).to(tl.float32)
    if WEIGHTED:
        grad = grad * tl.load(w + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + i, grad.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _pull_back_columns(
    x, y, w, worths, upstream, out, rows, labels, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    column = tl.arange(0, WIDE)
    real = column < labels
    inside = (row < rows)[:, None] & real[None, :]
    at = row[:, None] * labels + column[None, :]
    score = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    truth = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(upstream).to(tl.float32)
    hit = tl.load(worths + column * 3 + 1, mask=real, other=0.0) * up
    alarm = tl.load(worths + column * 3 + 2, mask=real, other=0.0) * up
    _, slope = _decide(score, STEP, LOGITS, a, b, c, d, e)
    grad = slope * (alarm[None, :] + (hit - alarm)[None, :] * truth)
    if WEIGHTED:
        grad = grad * tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, grad.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _power(x, exponent: tl.constexpr):
    if exponent == 0.5:
        return tl.sqrt(x)
    if exponent == -0.5:
        return 1.0 / tl.sqrt(x)
    return tl.exp(tl.log(x) * exponent)


#: From sums to cells; one below the rounding of the sums it is a difference of is empty, as in `stepless.kernels`.
CELLS_FROM_SUMS = (
    "fp, fn, tn = predicted - tp, support - tp, total - support - predicted + tp",
    *(
        f"{cell} = tl.where((-{noise} * 4.8e-07 < {cell}) & ({cell} < {noise} * 4.8e-07), 0.0, {cell})"
        for cell, noise in (("fp", "predicted"), ("fn", "support"), ("tn", "total"))
    ),
)


@lru_cache(maxsize=64)
def _finish_kernel(objective: Objective) -> Any:
    """The kernel of an objective's formula: shares of sums in; loss, worth of a hit and of a false alarm out."""
    lines, (value, tp, fp, fn, tn) = straight_line(objective.of)
    body = [
        "row = shares + tl.program_id(0) * programs * 4",
        "i = tl.arange(0, WIDTH)",
        "inside = i < programs",
        *(
            f"{name} = tl.sum(tl.load(row + i * 4 + {k}, mask=inside, other=0.0).to(tl.float64))"
            for k, name in enumerate(("tp", "predicted", "support", "total"))
        ),
        *CELLS_FROM_SUMS,
        *lines,
        "out = worths + tl.program_id(0) * 3",
        f"tl.store(out, ({value}).to(tl.float32))",
        f"tl.store(out + 1, ((({tp}) - ({fn})) * 1.0 + 0.0 * tp).to(tl.float32))",
        f"tl.store(out + 2, ((({fp}) - ({tn})) * 1.0 + 0.0 * tp).to(tl.float32))",
    ]
    return compiled("\n    ".join(["def finish(shares, worths, programs, WIDTH: tl.constexpr):", *body]) + "\n")


def compiled(source: str) -> Any:
    """A Triton kernel called ``finish``, from its source."""
    # Triton reads a function's source from its file; this is the file.
    name = f"<stepless formula {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names = {
        "tl": tl,
        "where": tl.where,
        "power": _power,
        "nan": float("nan"),
        "inf": float("inf"),
        "__name__": __name__,
    }
    exec(compile(source, name, "exec"), names)
    return triton.jit(names["finish"])


def numbers(step: Step, tau: float) -> tuple[int, tuple[float, ...]] | None:
    """Which of `_decide`'s steps this is, and its five numbers; None for a step of the user's own."""
    if type(step) is Identity:
        return 0, (0.0,) * 5
    if type(step) is Sigmoid:
        return 1, (step.k, tau, 0.0, 0.0, 0.0)
    if type(step) is Linear:
        return 2, step._pieces(tau)
    if type(step) is RaisedCosine:
        return 3, (step.delta, tau, 0.0, 0.0, 0.0)
    if type(step) is LogitSigmoid:
        return 4, (step.temperature, math.log(tau) - math.log1p(-tau), 0.0, 0.0, 0.0)
    return None


def fused_loss(batch: Batch, objective: Objective) -> Tensor:
    """The loss of a batch on CUDA, in one autograd node; scores and target are read in their own dtypes."""
    return _FusedLoss.apply(batch.scores, batch, objective)  # type: ignore[no-untyped-call]


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, batch: Batch, objective: Objective) -> Tensor:
        x, y = input.contiguous(), batch.target.contiguous()
        weight = batch.entry_weight
        w = None if weight is None else weight.expand_as(y).contiguous()
        labels = x.shape[1] if objective.labels else 1
        pixels = x[0, 0].numel() if objective.labels and x.dim() > 2 else 1
        size = x.numel() // max(labels, 1)
        step, five = numbers(objective.step, objective.tau)  # type: ignore[misc]
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        programs = max(1, min(processors * _PROGRAMS_PER_PROCESSOR, triton.cdiv(size, _BLOCK)))
        shares = torch.empty(labels, programs, 4, device=x.device, dtype=torch.float32)
        worths = torch.empty(labels, 3, device=x.device, dtype=torch.float32)
        settings = {"STEP": step, "LOGITS": batch.logits, "WEIGHTED": w is not None, "num_warps": _WARPS}
        if objective.labels and pixels == 1:
            wide = triton.next_power_of_2(labels)
            _count_columns[(programs,)](
                x,
                y,
                x if w is None else w,
                shares,
                size,
                labels,
                *five,
                WIDE=wide,
                HIGH=max(1, _BLOCK // wide),
                **settings,
            )
        else:
            _count[(programs, labels)](
                x, y, x if w is None else w, shares, size, labels, pixels, *five, LABELS=objective.labels, BLOCK=_BLOCK,
                **settings,
            )  # fmt: skip
        _finish_kernel(objective)[(labels,)](shares, worths, programs, WIDTH=triton.next_power_of_2(programs))
        if objective.labels:
            given = objective.label_weight or (1.0,) * labels
            worths = worths * constant([g / sum(given) for g in given], worths)[:, None]
        ctx.save_for_backward(x, y, w, worths)
        ctx.settings = (step, five, batch.logits, labels, pixels)
        ctx.batch, ctx.objective = batch._replace(scores=y), objective
        return worths[:, 0].sum() if objective.labels else worths[0, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, y, w, worths = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: let torch differentiate the plain formula
            wide = ctx.batch._replace(scores=x.float(), target=y.float())
            return torch.autograd.grad(plain_loss(wide, ctx.objective), x, grad, create_graph=True)[0], None, None
        step, five, logits, labels, pixels = ctx.settings
        out = torch.empty_like(x)
        tensors = (x, y, x if w is None else w, worths, grad, out)
        settings = {"STEP": step, "LOGITS": logits, "WEIGHTED": w is not None, "num_warps": _WARPS}
        if labels > 1 and pixels == 1:
            wide = triton.next_power_of_2(labels)
            high, rows = max(1, _BLOCK // wide), x.shape[0]
            _pull_back_columns[(triton.cdiv(rows, high),)](
                *tensors, rows, labels, *five, WIDE=wide, HIGH=high, **settings
            )
        else:
            _pull_back[(triton.cdiv(x.numel(), _BLOCK),)](
                *tensors, x.numel(), labels, pixels, *five, BLOCK=_BLOCK, **settings
            )
        return out, None, None
