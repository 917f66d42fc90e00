"""Binary and multilabel losses on the CPU, fused: the values and gradients of the plain path in fewer passes.

One autograd node leads from scores to loss (`fused_loss`), or from scores to counts (`fused_counts`) if the loss needs
more than the metric of one batch. The counting pass writes into a few buffers instead of allocating an array for each
operation. The arithmetic from counts to loss runs as traced code on plain numbers, because torch takes microseconds for
each scalar operation. The plain path remains the reference in the tests, and `stepless.kernels.dispatch` falls back to
it.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepless.confusion import cells
from stepless.kernels.nodes import (
    Node,
    Objective,
    differentiate_plainly,
    is_one_gradient,
    loss_in_one_node,
    save_batch,
    saved_batch,
)
from stepless.steps import Factors, Step
from stepless.tasks import Batch

#: Scores per block. Threads synchronise after every operation on a block: a million scores of 8 labels take 0.75 of the
#: time of cross-entropy in one block, 1.0 in two, 1.2 in four. Larger blocks only take more memory.
BLOCK = 1 << 20
#: Largest number of scores that numpy handles; torch would not use a second thread for them either.
FEW = 1 << 13
#: Most rows that are added in their own precision, at the cost of the rounding of a number or two.
_SHORT = 1 << 10
#: Fewest labels whose losses are computed together in numpy; for fewer, the calls cost more than the arithmetic.
_TOGETHER = 16
#: Numbers in a vector register: rows whose length is a multiple of it are added fastest.
_VECTOR = 8
#: Most numbers that torch adds in one thread.
_ONE_THREAD = 1 << 15
#: Least length of a row that is broadcast over others; shorter ones are repeated, because torch goes row by row.
_WIDE = 1024


class Deciding(NamedTuple):
    """How scores become yes/no decisions: all that counting needs to know.

    Attributes:
        step: The smooth step.
        tau: The threshold.
        labels: Whether dimension 1 of the batch holds labels, which are counted separately.
    """

    step: Step
    tau: float
    labels: bool


def fused_loss(batch: Batch, objective: Objective) -> Tensor:
    """Compute the loss of a binary or multilabel batch in one autograd node."""
    return loss_in_one_node(batch, objective, _DECISIONS)


def fused_counts(batch: Batch, deciding: Deciding) -> Tensor:
    """Compute the counts of a batch, as `stepless.confusion.cells` does, in one autograd node."""
    return _apply_counts(batch.scores, batch, deciding)


class _FusedCounts(torch.autograd.Function):
    """One node from scores to counts, which keeps the derivative of every decision."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, batch: Batch, deciding: Deciding) -> Tensor:
        counted = _count(*_flat(scores, batch), batch.logits, deciding, *_layout(scores, deciding))
        save_batch(ctx, scores, batch)
        ctx.kept = (counted.slopes, counted.factors) if ctx.needs_input_grad[0] else None, deciding
        four = _cells_of(counted, batch, deciding)
        return torch.tensor(np.array(four).T, dtype=scores.dtype, device="cpu").view(1, 1, -1, 4)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        kept, deciding = ctx.kept
        ctx.kept = None, deciding  # not kept, as in `stepless.kernels.nodes`
        batch = saved_batch(ctx)
        scores = batch.scores
        if not is_one_gradient(grad):
            return differentiate_plainly(batch, lambda again: plain_cells(again, deciding), grad), None, None
        z, y, w = _flat(scores, batch)
        layout = _layout(scores, deciding)
        if kept is None:
            counted = _count(z, y, w, batch.logits, deciding, *layout)
            kept = counted.slopes, counted.factors
        slopes, factors = kept
        tp, fp, fn, tn = grad.view(-1, 4).T.double().numpy() * factors.slope
        alarm, hit = (fp - tn, tp - fn) if deciding.labels else (float((fp - tn)[0]), float((tp - fn)[0]))
        _pull_back(slopes, y, w, alarm, hit, *layout)
        return slopes.view(scores.shape), None, None


_apply_counts: Any = super(torch.autograd.Function, _FusedCounts).apply


def _differentiated(scores: Tensor, batch: Batch, objective: Objective, *, wanted: bool) -> tuple[float, Tensor | None]:
    """Compute the loss and, if ``wanted``, its gradient."""
    of = _of_few if 0 < scores.numel() <= FEW and scores.dim() else _of_many
    return of(scores, batch, objective, wanted)


# ---------------------------------------------------------------------------------------------------------------------
# Few scores, in numpy: calls of torch would cost more than the arithmetic
# ---------------------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # NaN and infinity propagate without warnings, as in torch
def _of_few(scores: Tensor, batch: Batch, objective: Objective, wanted: bool) -> tuple[float, Tensor | None]:
    h, slope, factors = objective.step.linearise_few(scores, objective.tau, logits=batch.logits)
    y, weight = batch.target.numpy(), batch.entry_weight()
    add = _add_labels if objective.labels else _add_all
    if weight is None:
        tp, predicted, support = add(h * y, h, y)
        total: Any = float(y.size // (y.shape[1] if objective.labels else 1))
    else:
        w = weight.expand_as(scores).numpy()
        tp, predicted, support, total = add(h * y * w, h * w, y * w, w)
        slope *= w
    loss, alarm, hit = _judge((tp, predicted, support, total), factors, batch, objective)
    if not wanted:
        return loss, None
    # ∂loss/∂decision is ``alarm`` for a negative and ``hit`` for a positive
    apart = _outweighs(alarm, hit)
    if objective.labels:  # numpy converts one list faster than a pair of lists
        alarm, hit = np.array([*alarm, *hit], dtype=h.dtype).reshape(2, -1, *[1] * (h.ndim - 2))
    # h is no longer needed, and writing to it is faster than to fresh memory
    gradient = np.multiply(y, hit if apart else hit - alarm, out=h)
    gradient += (1 - y) * alarm if apart else alarm
    gradient *= slope
    return loss, torch.from_numpy(gradient)


def _add_all(*arrays: Any) -> list[float]:
    return [float(np.add.reduce(x, axis=None)) for x in arrays]


def _add_labels(*arrays: Any) -> list[Any]:
    """The sums of each label."""
    if arrays[0].ndim > 2:
        arrays = tuple(np.add.reduce(x.reshape(*x.shape[:2], -1), axis=2) for x in arrays)
    rows = len(arrays[0])
    ones = _ones(rows, arrays[0].dtype.char if rows <= _SHORT else "d")
    return [np.dot(ones, x) for x in arrays]  # faster than numpy's sum over rows


@lru_cache(maxsize=8)
def _ones(length: int, dtype: str) -> Any:
    return np.ones(length, dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Many scores, in blocks
# ---------------------------------------------------------------------------------------------------------------------


class _Counted(NamedTuple):
    """The sums tp, predicted, support and total; the derivative of every decision; the factors left out of both."""

    sums: Any
    slopes: Tensor
    factors: Factors


def _of_many(scores: Tensor, batch: Batch, objective: Objective, wanted: bool) -> tuple[float, Tensor | None]:
    z, y, w = _flat(scores, batch)
    layout = _layout(scores, objective)
    sums, slopes, factors = _count(z, y, w, batch.logits, objective, *layout)
    loss, alarm, hit = _judge(sums, factors, batch, objective)
    if not wanted:
        return loss, None
    _pull_back(slopes, y, w, alarm, hit, *layout)
    return loss, slopes.view(scores.shape)


def _flat(scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores, target and weights, flat."""
    weight = batch.entry_weight()
    w = None if weight is None else weight.expand_as(scores).reshape(-1)
    return scores.reshape(-1), batch.target.reshape(-1), w


def _layout(scores: Tensor, of: Deciding | Objective) -> tuple[int, int]:
    """The number of labels, and of consecutive pixels of each; 0 and 1 if labels are not separate."""
    return (scores.shape[1], math.prod(scores.shape[2:])) if of.labels else (0, 1)


def _block(size: int, labels: int, pixels: int) -> int:
    """The number of scores per block, a multiple of a sample's."""
    row = (labels or 1) * pixels
    return min(size, max(1, BLOCK // row) * row)


def _pull_back(slopes: Tensor, y: Tensor, w: Tensor | None, alarm: Any, hit: Any, labels: int, pixels: int) -> None:
    """Multiply, in place, the slopes by ∂loss/∂decision: ``alarm`` for negatives and ``hit`` for positives."""
    length = _block(len(y), labels, pixels)
    spare = _buffers(length, slopes.dtype)[1]
    if w is not None:
        slopes.mul_(w)
    if labels:
        _pull_back_labels(slopes, y, spare, np.array((alarm, hit)), pixels)
        return
    no, yes = (torch.scalar_tensor(worth, dtype=slopes.dtype, device="cpu") for worth in (alarm, hit))
    apart = _outweighs(alarm, hit)
    for start in range(0, len(y), length):
        truth = y[start : start + length]
        worth = spare[: truth.numel()]
        torch.lerp(no, yes, truth, out=worth) if apart else torch.add(no, truth, alpha=hit - alarm, out=worth)
        slopes[start : start + length].mul_(worth)


def _count(
    z: Tensor, y: Tensor, w: Tensor | None, logits: bool, of: Deciding | Objective, labels: int, pixels: int
) -> _Counted:
    """Compute the sums and slopes of flat scores; for ``labels`` and ``pixels`` see `_layout`."""
    step, tau, size = of.step, of.tau, z.numel()
    length = _block(size, labels, pixels)
    slopes = torch.empty_like(z)
    decisions, spares = _buffers(length, z.dtype)
    tp = predicted = support = total = 0.0
    factors = Factors(1.0, 1.0)
    for start in range(0, size, length):
        block, truth, share, slope, h, spare = z, y, w, slopes, decisions, spares
        if size > length:
            cut = slice(start, start + length)
            block, truth, share, slope = z[cut], y[cut], None if w is None else w[cut], slopes[cut]
            h, spare = decisions[: len(block)], spares[: len(block)]
        factors = step.linearise_logits(block, tau, h, slope, spare) if logits else step.linearise(block, tau, h, slope)
        if share is None:
            here: Any = float(len(block) // (labels or 1))
            decided, positives = _add(h, labels, pixels), _add(truth, labels, pixels)
        else:
            here = _add(share, labels, pixels)
            decided = _add(torch.mul(h, share, out=spare), labels, pixels)
            truth = torch.mul(truth, share, out=spare)
            positives = _add(truth, labels, pixels)
        # not torch.dot: it adds sequentially, and the sum of a million equal terms drifts
        tp, predicted = tp + _add(h.mul_(truth), labels, pixels), predicted + decided
        support, total = support + positives, total + here
    return _Counted((tp, predicted, support, total), slopes, factors)


_kept = threading.local()


def _buffers(size: int, dtype: torch.dtype) -> Tensor:
    """Two work buffers of ``size`` numbers, which each thread keeps from batch to batch.

    The allocator may return large buffers to the system, and then the page faults of new ones cost more than the
    arithmetic.
    """
    kept = vars(_kept).get(str(dtype))
    if kept is None or kept.shape[1] < size:
        with torch.inference_mode(False):  # inference tensors cannot be written to outside of inference mode
            kept = torch.empty(2, size, dtype=dtype, device="cpu")
        if size <= BLOCK:
            setattr(_kept, str(dtype), kept)
    return kept[:, :size]


def _add(x: Tensor, labels: int, pixels: int) -> Any:
    """Return the sum, or the sums of each label in float64."""
    if not labels:
        return float(x.sum().numpy())  # not item(), which searches for device synchronisation would find
    if pixels == 1:
        return _add_rows(x, labels)
    if pixels < _WIDE:  # torch is slow at short sums
        return _add_rows(x, labels * pixels).reshape(labels, pixels).sum(1)
    return _add_rows(x.view(-1, pixels).sum(1), labels)


def _add_rows(x: Tensor, columns: int) -> Any:
    """Return the sums of the columns, in float64.

    Each thread adds the rows that it has just written. torch would give each thread some columns. Then every cache line
    is shared, and the next write to it has to fetch it back, which can take longer than everything else.
    """
    width, pieces = math.lcm(columns, _VECTOR), torch.get_num_threads()
    piece = len(x) // (pieces * width)
    if not piece or len(x) <= _ONE_THREAD:
        return x.view(-1, columns).sum(0).numpy().astype(np.float64)
    whole = pieces * piece * width
    sums = x[:whole].view(pieces, piece, width).sum(1).numpy().reshape(-1, columns).sum(0, dtype=np.float64)
    if whole < len(x):
        sums += x[whole:].view(-1, columns).sum(0).numpy()
    return sums


def _pull_back_labels(slopes: Tensor, y: Tensor, spare: Tensor, worths: Any, pixels: int) -> None:
    """Multiply, in place, the slopes by ∂loss/∂decision: row 0 of ``worths`` for negatives, row 1 for positives."""
    labels = worths.shape[1]
    columns = labels * pixels
    index = _label_of_entry(labels, pixels, len(spare))
    wide = len(index)
    alarm, hit = torch.from_numpy(worths.take(index, axis=1)).to(spare.dtype)  # [:, index] would not be contiguous
    for start in range(0, len(y), len(spare)):
        stop = min(start + len(spare), len(y))
        whole = stop - (stop - start) % wide
        for begin, end, width in ((start, whole, wide), (whole, stop, columns)):
            if begin < end:
                truth, slope, worth = (
                    x.view(-1, width) for x in (y[begin:end], slopes[begin:end], spare[: end - begin])
                )
                slope.mul_(torch.lerp(alarm[:width], hit[:width], truth, out=worth))


@lru_cache(maxsize=8)
def _label_of_entry(labels: int, pixels: int, size: int) -> Any:
    """The label of each entry of a row of one sample or more, up to `_WIDE` and ``size`` entries."""
    sample = labels * pixels
    return np.arange(sample * max(1, min(size, _WIDE) // sample)) // pixels % labels


# ---------------------------------------------------------------------------------------------------------------------
# From counts to loss
# ---------------------------------------------------------------------------------------------------------------------


#: Largest ratio of a false alarm's worth to a hit's at which their sum keeps the hit to 1e-5.
_FAR_MORE = 100.0
#: Smallest share of negatives, or of negative decisions, at which a difference of sums keeps them to 1e-5.
_FEW_OF_ALL = 0.01
#: Relative rounding of sums.
_EPS = {dtype: 4 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


def _cells(sums: Any, factors: Factors, eps: float) -> tuple[Any, Any, Any, Any]:
    """The four cells, as numbers or arrays.

    A difference below the rounding of its sums is set to 0, because 0/0 must not become a ratio of rounding errors.
    """
    tp, predicted, support, total = sums
    tp, predicted = factors.decision * tp, factors.decision * predicted
    fp, fn, tn = predicted - tp, support - tp, total - support - predicted + tp
    return (
        tp,
        fp * (abs(fp) >= eps * predicted),
        fn * (abs(fn) >= eps * support),
        tn * (abs(tn) >= eps * total),
    )


def _judge(sums: Any, factors: Factors, batch: Batch, objective: Objective) -> tuple[float, Any, Any]:
    """Return the loss, and ∂loss/∂decision for negatives and for positives.

    With labels, the loss is the weighted mean of theirs, and each derivative is one number per label.
    """
    eps = _EPS[batch.scores.dtype]
    tp, predicted, support, total = sums
    if not objective.labels:
        few = total - max(support, factors.decision * predicted) < _FEW_OF_ALL * total
        four = _cells_apart(batch, objective) if few else _cells(sums, factors, eps)
        loss, tp, fp, fn, tn = objective.differentiate(*four)
        return loss, (fp - tn) * factors.slope, (tp - fn) * factors.slope
    labels = len(sums[0])
    weights = shares_of(labels, objective.label_weight)
    if labels < _TOGETHER:
        totals = repeat(total, labels) if isinstance(total, float) else total.tolist()
        rows = zip(tp.tolist(), predicted.tolist(), support.tolist(), totals, strict=False)
        found = objective.over_labels(rows, weights, factors, eps, _FEW_OF_ALL)
        if found is not None:
            return found
    few = bool((total - np.maximum(support, factors.decision * predicted) < _FEW_OF_ALL * total).any())
    each = np.array(weights)
    wide = [np.asarray(x, np.float64) for x in sums]
    value, tp, fp, fn, tn = objective.differentiate_each(
        *(_cells_apart(batch, objective) if few else _cells(wide, factors, eps))
    )
    return float((value * each).sum()), (fp - tn) * each * factors.slope, (tp - fn) * each * factors.slope


def _outweighs(alarm: Any, hit: Any) -> bool:
    """Whether false alarms are worth so much more than hits that a sum of both would lose the hits."""
    if isinstance(alarm, float):
        return abs(alarm) > _FAR_MORE * abs(hit)
    return max(map(abs, alarm)) > _FAR_MORE * min(map(abs, hit))  # across labels, on the safe side


def _cells_of(counted: _Counted, batch: Batch, deciding: Deciding) -> Any:
    """The four cells of what was counted, each a number or an array over labels."""
    wide = [np.asarray(x, np.float64) for x in counted.sums]
    _, predicted, support, total = wide
    if (total - np.maximum(support, counted.factors.decision * predicted) < _FEW_OF_ALL * total).any():
        return _cells_apart(batch, deciding)
    four = _cells(wide, counted.factors, _EPS[batch.scores.dtype])
    return np.broadcast_arrays(*four)


@torch.no_grad()
def _cells_apart(batch: Batch, of: Deciding | Objective) -> Any:
    """The four cells, each added up separately as on the plain path: numbers, or arrays over labels."""
    table = plain_cells(batch, of).reshape(-1, 4).T.double()
    return table.numpy() if of.labels else table[:, 0].tolist()


@lru_cache(maxsize=32)
def shares_of(labels: int, weights: tuple[float, ...] | None) -> tuple[float, ...]:
    """The weight of each label in the mean."""
    given = weights or (1.0,) * labels
    total = sum(given)
    return tuple(weight / total for weight in given)


def plain_loss(batch: Batch, objective: Objective) -> Tensor:
    """Compute the same loss by the plain path, for tests and for second derivatives."""
    table = plain_cells(batch, objective)
    if not objective.labels:
        return objective.of(table.view(4))
    losses = objective.of(table.view(-1, 4))
    weight = losses.new_tensor(objective.label_weight or (1.0,) * len(losses))
    return (losses * weight).sum() / weight.sum()


def plain_cells(batch: Batch, of: Deciding | Objective) -> Tensor:
    """Compute the counts by the plain path."""
    decide = of.step.from_logits if batch.logits else of.step
    return cells(batch, decide(batch.scores, of.tau), "batch", labels=of.labels)


_DECISIONS = Node(_differentiated, plain_loss)
