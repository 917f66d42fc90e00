"""Binary and multilabel losses on CUDA, fused, in Triton: three kernels from scores to gradient, no wait for the host.

1. Count: every program adds up its share of the four cells. None is taken as a difference of sums, which would lose its
   digits if negatives are rare.
2. Finish: one program per label adds up the shares in float64 and runs the metric's formula, traced to straight-line
   code (`stepless.kernels.tracing`), for the loss and for ∂loss/∂decision of positives and negatives (their worths).
3. Pull back: the gradient of every score, the derivative of its decision times that worth.
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

from stepless.kernels.decisions import Deciding, plain_cells, plain_loss, shares_of
from stepless.kernels.nodes import Objective, differentiate_plainly, is_one_gradient
from stepless.kernels.tracing import straight_line
from stepless.kernels.triton_launch import Launch
from stepless.numerics import constant
from stepless.steps import Identity, Linear, LogitSigmoid, RaisedCosine, Sigmoid, Step
from stepless.tasks import Batch

_BLOCK, _WARPS = 1024, 4
_PROGRAMS_PER_PROCESSOR = 32


@triton.jit
def reciprocal(x):
    """1 / x within one unit in the last place, in one instruction: a full division costs as much as all the rest."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _decide(x, STEP: tl.constexpr, LOGITS: tl.constexpr, a, b, c, d, e):
    """Decision of a score and its derivative; a to e are the step's parameters (`numbers`)."""
    if LOGITS:
        if STEP == 4:
            p = x
            inner = 1.0
        else:
            p = reciprocal(1 + tl.exp(-x))
            inner = p * (1 - p)
    elif STEP == 4:  # the logits of 0 and 1 are infinite, so their decisions are 0 and 1, and their derivatives 0
        p = tl.log(x / (1 - x))
        inner = tl.where((x >= 1.1754943508222875e-38) & (x < 1), 1 / (x * (1 - x)), 0.0)
    else:
        p = x
        inner = 1.0
    if STEP == 0:  # identity
        h = p
        slope = inner
    elif STEP == 1:  # sigmoid: a = k, b = τ
        h = reciprocal(1 + tl.exp(-a * (p - b)))
        slope = a * h * (1 - h) * inner
    elif STEP == 2:  # linear: a = low, b = high, c, d, e = slopes below, between, above
        slope = tl.where(p < a, c, tl.where(p <= b, d, e)) * inner
        h = tl.where(p < a, c * p, tl.where(p <= b, d * p + (c - d) * a, 1 - e * (1 - p)))  # exactly 1 at p = 1
    elif STEP == 3:  # raised cosine: a = δ, b = τ
        u = tl.minimum(tl.maximum((p - b) / a + 1, 0.0), 2.0)
        h = 0.5 * (u - tl.sin(3.141592653589793 * u) / 3.141592653589793)
        slope = 0.5 * (1 - tl.cos(3.141592653589793 * u)) / a * inner
    else:  # sigmoid of logits: a = temperature, b = logit τ
        u = (p - b) / a
        h = reciprocal(1 + tl.exp(-u))
        slope = h * reciprocal(1 + tl.exp(u)) / a * inner  # 1 − h would lose its digits near h = 1
    return h, slope


@triton.jit
def _cells(
    x, y, w, at, inside, STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, a, b, c, d, e
):  # fmt: skip
    """What the scores at the given places add to tp, fp, fn and tn."""
    score = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    truth = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    share = tl.load(w + at, mask=inside, other=0.0).to(tl.float32) if WEIGHTED else tl.where(inside, 1.0, 0.0)
    h, _ = _decide(score, STEP, LOGITS, a, b, c, d, e)
    yes = share * truth
    no = share - yes
    return h * yes, h * no, (1 - h) * yes, (1 - h) * no


@triton.jit
def _count(
    x, y, w, shares, size, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, FAR: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program's shares of the four cells of each label.

    The number of labels is a power of two, and they alternate in memory, so a lane always has the same label.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    tp = tl.zeros((BLOCK,), tl.float32)
    fp = tl.zeros((BLOCK,), tl.float32)
    fn = tl.zeros((BLOCK,), tl.float32)
    tn = tl.zeros((BLOCK,), tl.float32)
    begin = program.to(tl.int64) if FAR else program
    for start in range(begin * BLOCK, size, programs * BLOCK):
        i = start + lane
        inside = i < size
        hits, alarms, misses, rests = _cells(x, y, w, i, inside, STEP, LOGITS, WEIGHTED, a, b, c, d, e)
        tp += hits
        fp += alarms
        fn += misses
        tn += rests
    label = tl.arange(0, COLUMNS)
    row = shares + (label * programs + program) * 4
    tl.store(row, tl.sum(tl.reshape(tp, (BLOCK // COLUMNS, COLUMNS)), 0))
    tl.store(row + 1, tl.sum(tl.reshape(fp, (BLOCK // COLUMNS, COLUMNS)), 0))
    tl.store(row + 2, tl.sum(tl.reshape(fn, (BLOCK // COLUMNS, COLUMNS)), 0))
    tl.store(row + 3, tl.sum(tl.reshape(tn, (BLOCK // COLUMNS, COLUMNS)), 0))


@triton.jit
def _count_labels(
    x, y, w, shares, size, labels, pixels, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same for any number of labels, ``(rows, labels, pixels)``: a program has one label."""
    program, programs, label = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    tp = tl.zeros((BLOCK,), tl.float32)
    fp = tl.zeros((BLOCK,), tl.float32)
    fn = tl.zeros((BLOCK,), tl.float32)
    tn = tl.zeros((BLOCK,), tl.float32)
    for start in range(program * BLOCK, size, programs * BLOCK):
        i = start + lane
        inside = i < size
        at = (i // pixels * labels + label) * pixels + i % pixels
        hits, alarms, misses, rests = _cells(x, y, w, at, inside, STEP, LOGITS, WEIGHTED, a, b, c, d, e)
        tp += hits
        fp += alarms
        fn += misses
        tn += rests
    row = shares + (label * programs + program) * 4
    tl.store(row, tl.sum(tp))
    tl.store(row + 1, tl.sum(fp))
    tl.store(row + 2, tl.sum(fn))
    tl.store(row + 3, tl.sum(tn))


@triton.jit
def _pull_back(
    x, y, w, worths, upstream, out, size, labels, pixels, a, b, c, d, e,
    STEP: tl.constexpr, LOGITS: tl.constexpr, WEIGHTED: tl.constexpr, FAR: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores; if COLUMNS is not 0, a lane always has the same label, as in `_count`."""
    program = tl.program_id(0).to(tl.int64) if FAR else tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    i = program * BLOCK + lane
    inside = i < size
    score = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    truth = tl.load(y + i, mask=inside, other=0.0).to(tl.float32)
    if COLUMNS:
        label = lane % COLUMNS
    else:
        label = i // pixels % labels
    up = tl.load(upstream).to(tl.float32)
    hit = tl.load(worths + label * 3 + 1, mask=inside, other=0.0) * up
    alarm = tl.load(worths + label * 3 + 2, mask=inside, other=0.0) * up
    _, slope = _decide(score, STEP, LOGITS, a, b, c, d, e)
    grad = slope * (alarm * (1 - truth) + hit * truth)
    if WEIGHTED:
        grad = grad * tl.load(w + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + i, grad.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _where(condition, yes, no):
    return tl.where(condition, yes, no)


@triton.jit
def _power(x, exponent: tl.constexpr):
    if exponent == 0.5:
        return tl.sqrt(x)
    if exponent == -0.5:
        return 1.0 / tl.sqrt(x)
    return tl.exp(tl.log(x) * exponent)


@lru_cache(maxsize=64)
def _finish_kernel(objective: Objective) -> Any:
    """Make the kernel of an objective's formula, from shares of the cells to loss and worths of hit and false alarm."""
    lines, (value, tp, fp, fn, tn) = straight_line(objective.of)
    body = [
        "row = shares + tl.program_id(0) * programs * 4",
        "i = tl.arange(0, WIDTH)",
        "inside = i < programs",
        *(
            f"{name} = tl.sum(tl.load(row + i * 4 + {k}, mask=inside, other=0.0).to(tl.float64))"
            for k, name in enumerate(("tp", "fp", "fn", "tn"))
        ),
        *lines,
        "out = worths + tl.program_id(0) * 3",
        f"tl.store(out, ({value}).to(tl.float32))",
        f"tl.store(out + 1, ((({tp}) - ({fn})) * 1.0 + 0.0 * tp).to(tl.float32))",
        f"tl.store(out + 2, ((({fp}) - ({tn})) * 1.0 + 0.0 * tp).to(tl.float32))",
    ]
    head = "def finish(shares, worths, programs, WIDTH: tl.constexpr):"
    return compiled("\n    ".join([head, *body]) + "\n")


def compiled(source: str, **functions: Any) -> Any:
    """Compile the Triton kernel ``finish`` from its source; ``functions`` are those it calls."""
    # Triton reads a function's source from its file, for which linecache stands in
    name = f"<stepless formula {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names = {
        "tl": tl,
        "where": _where,
        "power": _power,
        "nan": float("nan"),
        "inf": float("inf"),
        "__name__": __name__,
        **functions,
    }
    exec(compile(source, name, "exec"), names)
    return triton.jit(names["finish"])


def numbers(step: Step, tau: float) -> tuple[int, tuple[float, ...]] | None:
    """Return `_decide`'s number of a step and its five parameters; None for a user's own step."""
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
    """Compute the loss in one autograd node; scores and target are read in their own dtypes."""
    return _FusedLoss.apply(batch.scores.contiguous(), batch, objective)  # type: ignore[no-untyped-call]


def fused_counts(batch: Batch, deciding: Deciding) -> Tensor:
    """Compute the counts, as `stepless.confusion.cells` does, in one autograd node."""
    return _FusedCounts.apply(batch.scores.contiguous(), batch, deciding)  # type: ignore[no-untyped-call]


class _Plan:
    """The launches for batches of one shape, prepared once, as for classes."""

    def __init__(
        self, shape: torch.Size, device: torch.device, *, weighted: bool, logits: bool, of: Objective | Deciding
    ) -> None:
        self.labels = labels = shape[1] if of.labels else 1
        self.pixels = math.prod(shape[2:]) if of.labels else 1
        entries = shape.numel()
        step, self.five = numbers(of.step, of.tau)  # type: ignore[misc]
        # if labels alternate in memory and their number is a power of two, every lane has one label
        columns = labels if self.pixels == 1 and labels <= _BLOCK and labels & (labels - 1) == 0 else 0
        size = entries // (1 if columns else labels)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self.programs = max(1, min(processors * _PROGRAMS_PER_PROCESSOR, triton.cdiv(size, _BLOCK)))
        far = entries > 1 << 30  # indices of 32 bits would overflow
        first = {"STEP": step, "LOGITS": logits, "WEIGHTED": weighted}
        last = {"BLOCK": _BLOCK, "num_warps": _WARPS}
        wide = {**first, "FAR": far, "COLUMNS": columns, **last}
        self.sizes = (size,) if columns else (size, labels, self.pixels)
        self.count = (
            Launch(_count, (self.programs, 1, 1), wide)
            if columns
            else Launch(_count_labels, (self.programs, labels, 1), {**first, **last})
        )
        width = triton.next_power_of_2(self.programs)
        if isinstance(of, Objective):
            self.finish = Launch(_finish_kernel(of), (labels, 1, 1), {"WIDTH": width})
        self.pull_back = Launch(_pull_back, (triton.cdiv(entries, _BLOCK), 1, 1), wide)


@lru_cache(maxsize=256)
def _plan(
    shape: torch.Size,
    dtypes: tuple[torch.dtype | None, ...],
    device: torch.device,
    logits: bool,
    of: Objective | Deciding,
) -> _Plan:
    return _Plan(shape, device, weighted=dtypes[2] is not None, logits=logits, of=of)


def _counted(input: Tensor, batch: Batch, of: Objective | Deciding) -> tuple[_Plan, Tensor, tuple[Any, ...]]:
    """Count a batch: return its plan, each program's shares of the cells, and the tensors read."""
    # the input is contiguous already: a copy made inside of a node would have no second derivative
    x, y, weight = input, batch.target.contiguous(), batch.entry_weight()
    w = None if weight is None else weight.expand_as(y).contiguous()
    plan = _plan(x.shape, (x.dtype, y.dtype, None if w is None else w.dtype), x.device, batch.logits, of)
    shares = torch.empty(plan.labels, plan.programs, 4, device=x.device)
    plan.count(x, y, x if w is None else w, shares, *plan.sizes, *plan.five)
    return plan, shares, (x, y, w)


def _pulled_back(plan: _Plan, x: Tensor, y: Tensor, w: Tensor | None, worths: Tensor, upstream: Tensor) -> Tensor:
    out = torch.empty_like(x)
    plan.pull_back(
        x, y, x if w is None else w, worths, upstream, out, x.numel(), plan.labels, plan.pixels, *plan.five
    )  # fmt: skip
    return out


class _FusedCounts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, batch: Batch, deciding: Deciding) -> Tensor:
        plan, shares, read = _counted(input, batch, deciding)
        ctx.save_for_backward(*read)
        ctx.plan, ctx.batch, ctx.deciding = plan, batch._replace(scores=read[1]), deciding
        return shares.sum(1, dtype=torch.float64).float().view(1, 1, -1, 4)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, y, w = ctx.saved_tensors
        if not is_one_gradient(grad):
            wide = ctx.batch._replace(scores=x.float(), target=y.float())
            gradient = differentiate_plainly(wide, lambda again: plain_cells(again, ctx.deciding), grad)
            return gradient.to(x.dtype), None, None
        tp, fp, fn, tn = grad.reshape(-1, 4).float().unbind(1)
        worths = torch.stack(
            [tp, tp - fn, fp - tn], 1
        )  # in the layout of `_finish_kernel`, where the first is the loss
        return _pulled_back(ctx.plan, x, y, w, worths, torch.ones((), device=x.device)), None, None


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, batch: Batch, objective: Objective) -> Tensor:
        plan, shares, (x, y, w) = _counted(input, batch, objective)
        worths = torch.empty(plan.labels, 3, device=x.device)
        plan.finish(shares, worths, plan.programs)
        if objective.labels:
            worths = worths * constant(shares_of(plan.labels, objective.label_weight), worths)[:, None]
        ctx.save_for_backward(x, y, w, worths)
        ctx.plan, ctx.batch, ctx.objective = plan, batch._replace(scores=y), objective
        return worths[:, 0].sum() if objective.labels else worths[0, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, y, w, worths = ctx.saved_tensors
        if not is_one_gradient(grad):
            wide = ctx.batch._replace(scores=x.float(), target=y.float())
            gradient = differentiate_plainly(wide, lambda again: plain_loss(again, ctx.objective), grad)
            return gradient.to(x.dtype), None, None
        return _pulled_back(ctx.plan, x, y, w, worths, grad), None, None
