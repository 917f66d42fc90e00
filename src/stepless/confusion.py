"""Decisions and targets into counts: plain sums, over whatever belongs together.

`cells` and `class_cells` give the four counts for each threshold, unit and class; `class_matrix` the K×K sums of a
multiclass batch. A unit is what is scored by itself before averaging: the whole batch, or each image, or each sample.

All four cells are sums of products. Taking one as a difference of sums would be cheaper, but where it is empty the sums
may round differently, and then 0/0 becomes any number at all.

A batch whose target holds probabilities may be of any array library; class indices, and the hard step among classes,
are for torch.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from stepless.numerics import (
    Array,
    cast,
    clip,
    constant,
    detached,
    largest_two,
    last,
    minimum,
    namespace,
    ones,
    softmax,
)
from stepless.steps import Hard, Identity, Step
from stepless.tasks import Batch

Unit = Literal["batch", "image", "sample"]
Overlap = Literal["expected", "min"]
Cuts = float | tuple[float, ...] | tuple[tuple[float, ...], ...]

#: The logarithm of the largest number of float32.
_LARGEST_EXPONENT = 88.0


def decide(batch: Batch, step: Step, cuts: Cuts, *, labels: bool) -> Array:
    """Yes/no decisions in [0, 1], shaped like the scores, behind a leading dimension where ``cuts`` is a set.

    ``cuts`` is a number; a tuple (``labels``: one for each label, else a set); or a tuple of tuples (a set of these).
    """
    scores = batch.scores
    tau: float | Array
    if isinstance(cuts, float):
        tau = cuts
    else:
        table = constant(cuts, scores)  # (T,), (C,), or (T, C)
        if labels:
            _check_length("threshold", table.shape[-1], scores.shape[1], "labels", one_for_all=table.ndim == 2)
            leading = tuple(table.shape[:-1]) + (1,) * (table.ndim - 1)
            tau = table.reshape(*leading, -1, *[1] * (scores.ndim - 2))
        else:
            tau = table.reshape(-1, *[1] * scores.ndim)
    return step.from_logits(scores, tau) if batch.logits else step(scores, tau)


def decide_class(batch: Batch, step: Step, offsets: tuple[float, ...] | None) -> Array:
    """Shares of a sample's decision among the K classes (dimension 1), each row summing to 1.

    The threshold of a sample is the midpoint of its two largest probabilities, so only the argmax lies above it.
    """
    scores = batch.scores
    shift = None
    if offsets is not None:
        _check_length("threshold", len(offsets), scores.shape[1], "classes")
        shift = constant(offsets, scores).reshape(-1, *[1] * (scores.ndim - 2))
    if isinstance(step, Hard):
        if shift is not None:
            wide = scores.double()
            scores = (wide if batch.logits else wide.log()) - constant(offsets, wide).view(shift.shape)
        return torch.zeros_like(scores).scatter(1, scores.argmax(1, keepdim=True), 1.0)
    if batch.logits:
        p = softmax(scores if shift is None else scores - shift)
    elif shift is None:
        p = scores
    else:
        p = _shifted(scores, shift)
    if isinstance(step, Identity):
        # a probability that is NaN is one of the whole sample, though a metric may read the other classes alone
        return p if batch.logits else p + 0 * p.sum(1)[:, None]
    tau = largest_two(detached(p)).mean(1)[:, None]
    decision = step(p, tau)
    return decision / decision.sum(1)[:, None]


def _shifted(p: Array, shift: Array) -> Array:
    """The softmax of log p − shift; not through log p, whose gradient is infinite at 0."""
    xp = namespace(p)
    there = detached(p) >= xp.finfo(p.dtype).tiny
    logs = xp.where(there, xp.log(xp.where(there, detached(p), 1.0)) - shift, -math.inf)
    most = largest_two(logs)
    top = xp.maximum(most[:, :1], most[:, 1:])
    # relative to the likeliest class nothing overflows but what has no probability
    factor = xp.exp(clip(-shift - top, high=_LARGEST_EXPONENT))
    p = p * factor
    return p / p.sum(1)[:, None]


def cells(batch: Batch, decision: Array, unit: Unit, *, labels: bool, overlap: Overlap = "expected") -> Array:
    """Counts ``(T, units, classes, 4)`` of yes/no decisions; ``classes`` is 1 unless there are labels to keep apart."""
    target, weight = batch.target, _inner_weight(batch, unit)
    axes = range(target.ndim)
    kept = {"batch": [], "image": [0], "sample": [axis for axis in axes if axis != 1]}[unit]
    if labels and unit != "sample":
        kept = [*kept, 1]
    summed = [axis - len(axes) for axis in axes if axis not in kept]  # from the end: a set of cuts leads the shape

    yes, no = target, 1 - target
    if overlap == "min":
        tp, tn = _overlap(decision, yes), _overlap(1 - decision, no)
        four = [tp, decision - tp, yes - tp, tn]
    else:
        four = [decision * yes, decision * no, (1 - decision) * yes, (1 - decision) * no]
    sums = [_dot(cell, weight, summed) for cell in four]
    classes = target.shape[1] if 1 in kept and unit != "sample" else 1
    thresholds = decision.shape[0] if decision.ndim > target.ndim else 1
    return namespace(target).stack(sums, -1).reshape(thresholds, -1, classes, 4)


def _overlap(decision: Array, share: Array) -> Array:
    """The smaller of two shares; with a label of 0 or 1 the product, of which a tie there has the slope of one side."""
    return namespace(decision).where((share <= 0) | (share >= 1), decision * share, minimum(decision, share))


def class_cells(batch: Batch, decision: Array, unit: Unit, *, overlap: Overlap = "expected") -> Array:
    """Counts ``(1, units, K, 4)`` of each class against the rest, without the K×K matrix."""
    classes, weight = decision.shape[1], _inner_weight(batch, unit)
    summed = [axis for axis in range(decision.ndim) if axis != 1 and not (axis == 0 and unit == "image")]
    per_class = None if weight is None else weight[:, None]
    if batch.indices():
        index = batch.target.unsqueeze(1)
        hit = decision.gather(1, index).squeeze(1)
        tp, fn = (
            _by_class(share if weight is None else share * weight, batch.target, classes, unit)
            for share in (hit, 1 - hit)
        )
        fp, tn = (_dot(share.scatter(1, index, 0.0), per_class, summed) for share in (decision, 1 - decision))
    else:
        yes = batch.target
        no = yes.sum(1)[:, None] - yes
        if overlap == "min":
            hit, miss = _overlap(decision, yes), _overlap(1 - decision, no)
            four = [hit, decision - hit, yes - hit, miss]
        else:
            four = [decision * yes, decision * no, (1 - decision) * yes, (1 - decision) * no]
        tp, fp, fn, tn = (_dot(cell, per_class, summed) for cell in four)
    return namespace(decision).stack([cell.reshape(-1, classes) for cell in (tp, fp, fn, tn)], -1)[None]


def class_matrix(batch: Batch, decision: Array, unit: Unit) -> Array:
    """Confusion matrices ``(units, K, K)``: row a holds how the samples of class a were decided."""
    classes, weight = decision.shape[1], _inner_weight(batch, unit)
    rows = last(decision if weight is None else decision * weight[:, None], 1).reshape(-1, classes)
    if batch.indices():
        units, index = _unit_index(batch.target, classes, unit)
        return sum_rows(rows, index, units * classes).view(units, classes, classes)
    units = decision.shape[0] if unit == "image" else 1
    truth = last(batch.target, 1).reshape(units, -1, classes)
    return truth.mT @ rows.reshape(units, -1, classes)


def unit_weight(batch: Batch, unit: Unit) -> Array:
    """The weight of each unit among the others, flat.

    A weight for each sample weighs the counts of a batch, but the *score* of a unit: an image that counts twice is an
    image seen twice. A unit whose every entry is masked weighs nothing.
    """
    inside, shape = _inner_weight(batch, unit), tuple(batch.target.shape)
    if inside is not None and inside.ndim < len(shape):  # of class probabilities: a sample weighs, not its classes
        shape = (shape[0], *shape[2:])
    axes = [1] if unit == "sample" else list(range(1, len(shape)))
    kept = [size for axis, size in enumerate(shape) if axis not in axes]
    if inside is None:
        weight = ones(kept, batch.scores, batch.dtype)
    else:
        whole = namespace(inside).broadcast_to(inside, shape)
        weight = cast(_dot(whole, None, axes) != 0, batch.dtype)
    if batch.weight is not None and _outside(batch, unit):
        one_each = batch.weight[:, 0] if unit == "sample" else batch.weight.reshape(weight.shape)
        weight = weight * one_each
    return weight.reshape(-1)


def _inner_weight(batch: Batch, unit: Unit) -> Array | None:
    """The weight of an entry inside its unit."""
    return batch.mask if _outside(batch, unit) else batch.entry_weight()


def _outside(batch: Batch, unit: Unit) -> bool:
    """Whether the samples' weights weigh whole units: each sample is one, or each image has one weight."""
    return unit == "sample" or (
        unit == "image" and batch.weight is not None and math.prod(batch.weight.shape) == batch.weight.shape[0]
    )


def _check_length(name: str, got: int, wanted: int, noun: str, *, one_for_all: bool = False) -> None:
    if got != wanted and not (one_for_all and got == 1):
        raise ValueError(f"{name} must have one entry for each of the {wanted} {noun}; got {got}.")


def _dot(a: Array, b: Array | None, axes: list[int]) -> Array:
    """Sum of ``a * b`` over ``axes``."""
    product = a if b is None else a * b  # not torch.dot: it adds one by one, and a million equal terms drift
    return product.sum(tuple(axes)) if axes else product  # torch takes no axes for all axes


def _by_class(values: Tensor, target: Tensor, classes: int, unit: Unit) -> Tensor:
    units, index = _unit_index(target, classes, unit)
    return sum_rows(values.reshape(-1), index, units * classes).view(units, classes)


def sum_rows(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """Sums of the values that share an index, in float64: added one by one, float32 drifts, and stalls at 2^24."""
    wide = values.to(torch.float64) if values.device.type != "mps" else values
    return wide.new_zeros(rows, *values.shape[1:]).index_add(0, index, wide).to(values.dtype)


def _unit_index(target: Tensor, classes: int, unit: Unit) -> tuple[int, Tensor]:
    """How many units there are, and for each sample the row of its unit and class."""
    if unit == "batch":
        return 1, target.reshape(-1)
    first = torch.arange(target.shape[0], device=target.device) * classes
    index = target + first.view(-1, *[1] * (target.dim() - 1))
    # what is no class would be one of the next unit: let it fail as it does where there is one unit
    index = torch.where((target >= 0) & (target < classes), index, target.shape[0] * classes)
    return target.shape[0], index.reshape(-1)
