"""From decisions and targets to counts, as plain sums.

`cells` and `class_cells` give the four counts for each threshold, unit and class; `class_matrix` gives the K×K sums of
a multiclass batch. A unit is scored by itself before averaging: the whole batch, each image, or each sample.

All four cells are sums of products. Taking one as a difference of sums would be cheaper, but an empty cell could then
be a rounding error instead of 0, and 0/0 an arbitrary number.

A batch whose target holds probabilities may be of any array library. Class indices, and `Hard` for multiclass, need
torch.
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

#: Just below the logarithm of the largest float32.
_LARGEST_EXPONENT = 88.0


def decide(batch: Batch, step: Step, cuts: Cuts, *, labels: bool) -> Array:
    """Yes/no decisions in [0, 1], shaped like the scores, with a leading dimension for a set of thresholds.

    ``cuts`` is a number, a tuple (one per label with ``labels``, otherwise a set), or a tuple of tuples (a set).
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
    """How a sample's decision is shared among the K classes (dimension 1), each row summing to 1.

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
        # one NaN makes the whole sample NaN, even if the metric reads other classes only
        return p if batch.logits else p + 0 * p.sum(1)[:, None]
    tau = largest_two(detached(p)).mean(1)[:, None]
    decision = step(p, tau)
    return decision / decision.sum(1)[:, None]


def _shifted(p: Array, shift: Array) -> Array:
    """The softmax of log p − shift, computed without log p, whose gradient is infinite at 0."""
    xp = namespace(p)
    positive = detached(p) >= xp.finfo(p.dtype).tiny
    logs = xp.where(positive, xp.log(xp.where(positive, detached(p), 1.0)) - shift, -math.inf)
    two = largest_two(logs)
    top = xp.maximum(two[:, :1], two[:, 1:])
    # relative to the likeliest class, only factors of probability 0 can overflow
    factor = xp.exp(clip(-shift - top, high=_LARGEST_EXPONENT))
    p = p * factor
    return p / p.sum(1)[:, None]


def cells(batch: Batch, decision: Array, unit: Unit, *, labels: bool, overlap: Overlap = "expected") -> Array:
    """Counts ``(T, units, classes, 4)`` of yes/no decisions; ``classes`` is 1 unless labels are counted separately."""
    target, weight = batch.target, _inner_weight(batch, unit)
    axes = range(target.ndim)
    kept = {"batch": [], "image": [0], "sample": [axis for axis in axes if axis != 1]}[unit]
    if labels and unit != "sample":
        kept = [*kept, 1]
    summed = [axis - len(axes) for axis in axes if axis not in kept]  # from the end, because a set of thresholds leads

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
    """The smaller of two shares. For a share of 0 or 1 it is the product, which has a full gradient where they tie."""
    return namespace(decision).where((share <= 0) | (share >= 1), decision * share, minimum(decision, share))


def class_cells(batch: Batch, decision: Array, unit: Unit, *, overlap: Overlap = "expected") -> Array:
    """Counts ``(1, units, K, 4)`` of each class against the rest, without building the K×K matrix."""
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
    """Confusion matrices ``(units, K, K)``, rows the truth and columns the decision."""
    classes, weight = decision.shape[1], _inner_weight(batch, unit)
    rows = last(decision if weight is None else decision * weight[:, None], 1).reshape(-1, classes)
    if batch.indices():
        units, index = _unit_index(batch.target, classes, unit)
        return sum_rows(rows, index, units * classes).view(units, classes, classes)
    units = decision.shape[0] if unit == "image" else 1
    truth = last(batch.target, 1).reshape(units, -1, classes)
    return truth.mT @ rows.reshape(units, -1, classes)


def unit_weight(batch: Batch, unit: Unit) -> Array:
    """The weight of each unit, flat.

    If each unit is one sample, a sample weight multiplies the unit's *score*: weight 2 is the same as seeing the image
    twice. A unit that is masked entirely has weight 0.
    """
    inside, shape = _inner_weight(batch, unit), tuple(batch.target.shape)
    if inside is not None and inside.ndim < len(shape):  # class probabilities: the weights have no class axis
        shape = (shape[0], *shape[2:])
    axes = [1] if unit == "sample" else list(range(1, len(shape)))
    kept = [size for axis, size in enumerate(shape) if axis not in axes]
    if inside is None:
        weight = ones(kept, batch.scores, batch.dtype)
    else:
        whole = namespace(inside).broadcast_to(inside, shape)
        weight = cast(_dot(whole, None, axes) != 0, batch.dtype)
    if batch.weight is not None and _outside(batch, unit):
        weight = weight * (batch.weight[:, 0] if unit == "sample" else batch.weight.reshape(weight.shape))
    return weight.reshape(-1)


def _inner_weight(batch: Batch, unit: Unit) -> Array | None:
    """The weight of an entry inside its unit."""
    return batch.mask if _outside(batch, unit) else batch.entry_weight()


def _outside(batch: Batch, unit: Unit) -> bool:
    """Whether sample weights apply to whole units: each unit is a sample, or an image with one weight."""
    return unit == "sample" or (
        unit == "image" and batch.weight is not None and math.prod(batch.weight.shape) == batch.weight.shape[0]
    )


def _check_length(name: str, got: int, wanted: int, noun: str, *, one_for_all: bool = False) -> None:
    if got != wanted and not (one_for_all and got == 1):
        raise ValueError(f"{name} must have one entry for each of the {wanted} {noun}; got {got}.")


def _dot(a: Array, b: Array | None, axes: list[int]) -> Array:
    """Sum of ``a * b`` over ``axes``."""
    product = a if b is None else a * b  # not torch.dot: its sequential sum drifts over a million terms
    return product.sum(tuple(axes)) if axes else product  # torch takes no axes for all axes


def _by_class(values: Tensor, target: Tensor, classes: int, unit: Unit) -> Tensor:
    units, index = _unit_index(target, classes, unit)
    return sum_rows(values.reshape(-1), index, units * classes).view(units, classes)


def sum_rows(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """Sums of the values that share an index, in float64: a sequential float32 sum drifts, and stalls at 2^24."""
    wide = values.to(torch.float64) if values.device.type != "mps" else values
    return wide.new_zeros(rows, *values.shape[1:]).index_add(0, index, wide).to(values.dtype)


def _unit_index(target: Tensor, classes: int, unit: Unit) -> tuple[int, Tensor]:
    """The number of units, and for each sample the row of its unit and class."""
    if unit == "batch":
        return 1, target.reshape(-1)
    first = torch.arange(target.shape[0], device=target.device) * classes
    index = target + first.view(-1, *[1] * (target.dim() - 1))
    # an index out of range must not become a class of the next unit: it fails as it does for a whole batch
    index = torch.where((target >= 0) & (target < classes), index, target.shape[0] * classes)
    return target.shape[0], index.reshape(-1)
