"""Multiclass counts on the CPU, fused: the values and gradients of the plain path in one autograd node.

Scores are processed in blocks of samples, with one row per class, so that sums and comparisons over classes run along
whole vectors. Backward needs the probabilities and two numbers per sample, which are kept, and computes the decisions
again. If cross-entropy is blended in, its sums come from the same probabilities. The plain path remains the reference
in the tests, and `stepless.kernels.dispatch` falls back to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepless.confusion import class_cells, class_matrix, decide_class, sum_rows
from stepless.cross_entropy import LOWEST_LOG, cross_entropy_sums
from stepless.kernels.nodes import differentiate_plainly, is_one_gradient, save_batch, saved_batch
from stepless.steps import Identity, Step
from stepless.tasks import Batch

#: Scores per block: operations on smaller ones cost too much, and three blocks of this size still fit a cache.
BLOCK = 1 << 19
#: Most classes for which the matrix is a product with the block's one-hot rows; for more, the rows are added by index.
_PRODUCT = 64
#: Smallest share of a class's negatives that must be true ones; below it, the plain path counts them.
_LITTLE = 0.01
#: Samples per product: longer sums in float32 lose digits that float64 would keep.
_LONG = 1 << 10

_softmax = torch.ops.aten._softmax.out


class Classing(NamedTuple):
    """How scores become decisions among classes, and what is counted.

    Attributes:
        step: The smooth step.
        offsets: The offsets of the classes; only for logits.
        matrix: Whether to count the K×K matrix instead of the four cells of each class.
        entropy: Whether to compute the sums of cross-entropy as well; only for logits without offsets.
    """

    step: Step
    offsets: tuple[float, ...] | None
    matrix: bool
    entropy: bool = False


def fused_class_sums(batch: Batch, how: Classing) -> tuple[Tensor, Tensor | None]:
    """Compute the counts of a batch of class indices, and the `cross_entropy_sums` if wanted, in one autograd node."""
    sums, classes = _apply(batch.scores, batch, how), batch.scores.shape[1]
    counts = sums[: -2 * classes] if how.entropy else sums
    return counts.view(1, 1, classes, -1), sums[-2 * classes :].view(2, 1, classes) if how.entropy else None


class _FusedClassSums(torch.autograd.Function):
    """One node from scores to all sums, flat, which keeps the probabilities."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, batch: Batch, how: Classing) -> Tensor:
        sums, kept = _sum_up(scores, batch, how, keep=ctx.needs_input_grad[0])
        save_batch(ctx, scores, batch)
        ctx.kept = kept, how
        return sums.to(batch.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        kept, how = ctx.kept
        ctx.kept = None, how  # released early; with a retained graph it is computed again
        batch = saved_batch(ctx)
        if not is_one_gradient(grad):
            return differentiate_plainly(batch, lambda again: _plain_sums(again, how), grad), None, None
        if kept is None:
            _, kept = _sum_up(batch.scores, batch, how, keep=True)
        assert kept is not None
        return _pull_back(kept, batch, how, grad), None, None


#: ``apply`` without torch's checks for function transforms, which `stepless.kernels.dispatch` has made already.
_apply: Any = super(torch.autograd.Function, _FusedClassSums).apply


def _plain_cells(batch: Batch, how: Classing) -> Tensor:
    return class_cells(batch, decide_class(batch, how.step, how.offsets).to(batch.dtype), "batch")


def _plain_sums(batch: Batch, how: Classing) -> Tensor:
    """Compute all sums by the plain path."""
    if how.matrix:
        counts = class_matrix(batch, decide_class(batch, how.step, how.offsets).to(batch.dtype), "batch")
    else:
        counts = _plain_cells(batch, how)
    if not how.entropy:
        return counts.flatten()
    return torch.cat([counts.flatten(), cross_entropy_sums(batch, "multiclass").flatten()])


class _Kept(NamedTuple):
    """What backward needs.

    Attributes:
        p: The probabilities, block by block.
        tau: The threshold of each sample.
        share: 1 / Σ decisions of each sample.
        ruled_out: In each block, the samples whose own class has a score of −inf; their cross-entropy has no gradient.
    """

    p: Tensor
    tau: Tensor
    share: Tensor
    ruled_out: list[Tensor]


class _Block(NamedTuple):
    """A block of samples: their scores in the batch's layout, their places in the batch, targets and weights."""

    scores: Tensor
    samples: slice
    target: Tensor
    weight: Tensor | None

    def rows(self, like: Tensor) -> Tensor:
        """View a tensor of one row per class in the shape of the block's scores."""
        if self.scores.dim() == 2:
            return like.T
        images, classes, pixels = self.scores.shape
        return like.view(classes, images, pixels).movedim(1, 0)

    def columns(self, chosen: Tensor) -> Tensor:
        """Return the scores of the chosen samples, one row per class."""
        if self.scores.dim() == 2:
            return self.scores[chosen].T
        pixels = self.scores.shape[2]
        return self.scores[chosen // pixels, :, chosen % pixels].T


class _Workspace:
    """Three work arrays of one row per class, shared by all blocks of a batch.

    Not kept from batch to batch, as in `stepless.kernels.decisions`: on two cores that took half as long again.
    """

    def __init__(self) -> None:
        self.held: Tensor | None = None

    def of(self, block: _Block) -> Tensor:
        """Return the arrays for a block."""
        shape = 3, block.scores.shape[1], len(block.target)
        if self.held is None:  # the first block is the largest
            self.held = block.scores.new_empty(math.prod(shape))
        return self.held[: math.prod(shape)].view(shape)


def _blocks(scores: Tensor, batch: Batch) -> Iterator[_Block]:
    """Split the samples into blocks, in order."""
    count, classes = scores.shape[:2]
    pixels = math.prod(scores.shape[2:])
    whole = scores if scores.dim() == 2 else scores.reshape(count, classes, pixels)
    weight = batch.entry_weight()
    target = batch.target.reshape(-1)
    weights = None if weight is None else weight.expand_as(batch.target).reshape(-1)
    most = max(1, BLOCK // classes)
    images, length = max(1, most // pixels), min(most, pixels)
    for image in range(0, count, images):
        last = min(image + images, count)
        for pixel in range(0, pixels, length):
            stop = min(pixel + length, pixels)
            part = whole[image:last] if scores.dim() == 2 else whole[image:last, :, pixel:stop]
            start = image * pixels + pixel
            samples = slice(start, start + (last - image) * (stop - pixel))
            yield _Block(part, samples, target[samples], None if weights is None else weights[samples])


def _sum_up(scores: Tensor, batch: Batch, how: Classing, *, keep: bool) -> tuple[Tensor, _Kept | None]:
    """Return all sums, flat and in float64, and if ``keep``, what backward needs."""
    classes, samples = scores.shape[1], batch.target.numel()
    probabilities = scores.new_empty(scores.numel()) if keep else None
    tau, share, hits, losses = scores.new_empty(4, samples)
    found = torch.zeros(classes, classes if how.matrix else 1, dtype=torch.float64, device="cpu")
    workspace, ruled_out = _Workspace(), []
    for block in _blocks(scores, batch):
        at = block.samples
        p, h, spare = workspace.of(block)
        if probabilities is not None:
            p = probabilities[at.start * classes : at.stop * classes].view(classes, -1)
        _probabilities(block, batch.logits, how, spare, p)
        decision = p
        if not isinstance(how.step, Identity):
            torch.div(_two_largest(p, h, spare), 2, out=tau[at])
            how.step.linearise_rows(p, tau[at], h, None, spare)
            torch.sum(h, 0, out=share[at])
            decision = torch.div(h, share[at], out=h)  # h · (1/h) may differ from 1
        elif not batch.logits:  # one NaN makes the whole sample NaN
            decision = torch.addcmul(p, p.new_zeros(()), p.sum(0), out=h)
        target = block.target[None]
        if how.entropy:
            ruled_out.append(_cross_entropy(p, block, losses[at]))
        if how.matrix:
            _add_matrix(found, decision, block, spare)
            continue
        torch.gather(decision, 0, target, out=hits[None, at])
        others = decision.scatter_(0, target, 0.0) if decision is h else torch.scatter(p, 0, target, 0.0, out=h)
        if block.weight is not None:
            others.mul_(block.weight)
        found[:, 0] += others.sum(1, dtype=torch.float64)
    sums = [found if how.matrix else _cells(found[:, 0], hits, batch, how)]
    if how.entropy:
        sums += [_by_class(losses, batch, classes), _by_class(torch.ones_like(losses), batch, classes)]
    kept = None if probabilities is None else _Kept(probabilities, tau, share.reciprocal_(), ruled_out)
    return torch.cat([each.flatten() for each in sums]), kept


def _probabilities(block: _Block, logits: bool, how: Classing, spare: Tensor, p: Tensor) -> None:
    """Write the block's probabilities to ``p``, one row per class."""
    if not logits:
        block.rows(p).copy_(block.scores)
        return
    block.rows(spare).copy_(block.scores)
    if how.offsets is not None:
        spare.sub_(spare.new_tensor(how.offsets)[:, None])
    _softmax(spare, 0, False, out=p)


def _two_largest(p: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return the sum of the two largest of each column of ``p``; ``high`` and ``low`` are work arrays.

    Halves of the rows are compared until one row of the largest is left, and one of the second largest.
    """
    half = len(p) // 2
    torch.minimum(p[:half], p[half : 2 * half], out=low[:half])
    torch.maximum(p[:half], p[half : 2 * half], out=high[:half])
    if len(p) % 2:
        _fold(high[0], low[0], p[-1])
    rows = half
    while rows > 1:
        half = rows // 2
        # the second largest of two pairs is the largest of both second ones and the smaller first one
        torch.maximum(low[:half], low[half : 2 * half], out=low[:half])
        spare = low[half : 2 * half]
        torch.minimum(high[:half], high[half : 2 * half], out=spare)
        torch.maximum(low[:half], spare, out=low[:half])
        torch.maximum(high[:half], high[half : 2 * half], out=high[:half])
        if rows % 2:
            _fold(high[0], low[0], high[rows - 1])
            torch.maximum(low[0], low[rows - 1], out=low[0])
        rows = half
    return high[0].add_(low[0])


def _fold(high: Tensor, low: Tensor, more: Tensor) -> None:
    """Update the largest and the second largest with one more row."""
    torch.maximum(low, torch.minimum(high, more), out=low)
    torch.maximum(high, more, out=high)


def _add_matrix(found: Tensor, decision: Tensor, block: _Block, spare: Tensor) -> None:
    """Add the block's sums of decisions for each true class."""
    weighted = decision if block.weight is None else torch.mul(decision, block.weight, out=spare)
    if len(decision) > _PRODUCT:
        found.index_add_(0, block.target, weighted.T.double())
        return
    true = torch.zeros_like(decision).scatter_(0, block.target[None], 1.0)
    for rows, columns in zip(torch.split(true, _LONG, 1), torch.split(weighted, _LONG, 1), strict=True):
        found += rows @ columns.T


def _cross_entropy(p: Tensor, block: _Block, out: Tensor) -> Tensor:
    """Write −log p of each sample's own class to ``out``; return the samples whose own class has a score of −inf."""
    true = p.gather(0, block.target[None])[0]
    torch.log(true, out=out).neg_()
    lost = (true < torch.finfo(p.dtype).tiny).nonzero()[:, 0]  # p has lost its digits: computed from the scores
    if not len(lost):
        return lost
    logs = block.columns(lost).log_softmax(0).gather(0, block.target[None, lost])[0]
    never = logs == -math.inf
    out[lost] = -logs.masked_fill_(never, LOWEST_LOG)
    return lost[never]


def _by_class(values: Tensor, batch: Batch, classes: int) -> Tensor:
    """Weighted sums over the samples of each class, in float64."""
    weight, wide = batch.entry_weight(), values.double()
    if weight is not None:
        wide = wide * weight.expand_as(batch.target).reshape(-1)
    return sum_rows(wide, batch.target.reshape(-1), classes)


def _cells(fp: Tensor, hits: Tensor, batch: Batch, how: Classing) -> Tensor:
    """The four counts of each class."""
    tp, fn = (_by_class(part, batch, len(fp)) for part in (hits, 1 - hits))
    support = tp + fn
    negatives = support.sum() - support
    tn = negatives - fp
    if bool((tn < _LITTLE * negatives).any()):  # the difference has too few digits left, and may miss 0
        return _plain_cells(batch, how)[0, 0].double()
    return torch.stack([tp, fp, fn, tn], -1)


def _pull_back(kept: _Kept, batch: Batch, how: Classing, grad: Tensor) -> Tensor:
    """Compute the gradient of the scores from that of the sums."""
    scores = batch.scores
    classes = scores.shape[1]
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    grad = grad.to(scores.dtype)
    entropy = grad[-2 * classes : -classes] if how.entropy else None
    table = (grad[: -2 * classes] if how.entropy else grad).view(classes, -1)
    if how.matrix:  # the worth of each decision, by the true class
        worth, hit = table.T.contiguous(), None
    else:  # the worth of a false alarm, and of a hit
        worth, hit = (table[:, 1] - table[:, 3])[:, None], table[:, 0] - table[:, 2]
    workspace, blocks = _Workspace(), zip(_blocks(scores, batch), _blocks(out, batch), strict=True)
    for number, (block, place) in enumerate(blocks):
        target = block.target
        each, own = (worth.index_select(1, target), None) if hit is None else (worth, hit[target])
        p, pulled = _pull_block(block, workspace.of(block), kept, each, own, batch.logits, how.step)
        if entropy is not None:
            pull = entropy[target] if block.weight is None else entropy[target].mul_(block.weight)
            pull[kept.ruled_out[number]] = 0.0
            pulled.addcmul_(p, pull).scatter_add_(0, target[None], pull.neg_()[None])
        place.scores.copy_(place.rows(pulled))
    return out


def _pull_block(
    block: _Block, workspace: Tensor, kept: _Kept, worth: Tensor, own: Tensor | None, logits: bool, step: Step
) -> tuple[Tensor, Tensor]:
    """Return a block's probabilities and the gradient of its scores.

    ``worth`` is ∂loss/∂decision. If ``own`` is given, it replaces ``worth`` for the decisions for samples' own classes.
    """
    h, slope, out = workspace
    at, index, scale, mean = block.samples, block.target[None], block.weight, None
    p = kept.p[at.start * len(h) : at.stop * len(h)].view(h.shape)
    if isinstance(step, Identity):
        steep = p if logits else torch.ones_like(p)
        torch.mul(worth, steep, out=out)
    else:
        # the decisions of a sample are normalised, so constant factors cancel
        factors = step.linearise_rows(p, kept.tau[at], h, slope, out)
        share = kept.share[at]
        mean = _mean_worth(worth, own, h, index).mul_(share)
        steep = slope.mul_(p) if logits else slope
        torch.sub(worth, mean, out=out).mul_(steep)
        scale = share * (factors.slope / factors.decision)
        if block.weight is not None:
            scale.mul_(block.weight)
    if own is not None:  # replaced, not corrected by a difference, which would lose digits for a frequent class
        out.scatter_(0, index, steep.gather(0, index).mul_(own if mean is None else own - mean))
    if logits:  # through the softmax
        out.addcmul_(p, out.sum(0), value=-1)
    return p, out if scale is None else out.mul_(scale)


def _mean_worth(worth: Tensor, own: Tensor | None, h: Tensor, index: Tensor) -> Tensor:
    """Σ worth · h of each sample; sets the own decisions in ``h`` to 0 if ``own`` is given."""
    if own is None:
        return torch.linalg.vecdot(worth, h, dim=0)
    hit = h.gather(0, index)[0]
    return (worth.T @ h.scatter_(0, index, 0.0))[0].addcmul_(hit, own)
