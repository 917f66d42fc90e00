"""The entry point of a user's tensors: check them, mask them, and bring them into one form.

Nothing is guessed: the caller says which task it is and whether the scores are logits or probabilities. Shapes, dtypes
and options are checked on every call. `check_values` reads the data, so training skips it unless asked to validate.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from stepless.numerics import Array, cast, check_unmasked, constant, is_floating, namespace

Task = Literal["binary", "multiclass", "multilabel"]
Inputs = Literal["logits", "probabilities"]
_TASKS, _INPUTS = get_args(Task), get_args(Inputs)  # torch.compile does not trace get_args

#: How far the sum of class probabilities may be from 1: half precision is not exact.
SUM_TOLERANCE = 1e-2

#: Dtypes to count in: bfloat16 cannot count past 256 and float16 overflows at 65,504.
_WIDE_ENOUGH = (torch.float32, torch.float64)

#: Integer dtypes for which torch lacks most operators.
_WIDE_UNSIGNED = ("uint16", "uint32", "uint64")

#: The target that ``F.cross_entropy`` ignores by default, and so do multiclass losses.
IGNORED_CLASS = -100


class Batch(NamedTuple):
    """A batch as the rest of the package sees it, with classes or labels in dimension 1.

    Attributes:
        scores: Logits or probabilities, float32 or wider, 0 where masked.
        target: Probabilities shaped like ``scores``, or class indices ``(N, d1, …)`` for multiclass.
        weight: The sample weights, shaped to broadcast against the target, or None.
        mask: 0 where an entry is ignored, elsewhere 1 or the weight of its class. None if every entry counts as 1.
        logits: Whether ``scores`` are logits.
        dtype: The dtype of the counts: that of the scores, or float64 for exact evaluation.
    """

    scores: Array
    target: Array
    weight: Array | None
    mask: Array | None
    logits: bool
    dtype: Any

    def indices(self) -> bool:
        """Whether the target holds class indices, as only torch's batches may."""
        return not is_floating(self.target)

    def entry_weight(self) -> Array | None:
        """The product of weight and mask: how much an entry counts."""
        if self.weight is None or self.mask is None:
            return self.mask if self.weight is None else self.weight
        return self.weight * self.mask


def as_tensor(values: Any, name: str = "input") -> Tensor:
    """Convert a tensor, an array, a data frame or column, or nested lists of numbers to a tensor."""
    if hasattr(values, "to_numpy"):  # a data frame or column
        values = values.to_numpy()
    check_unmasked(values, name)
    if isinstance(values, np.ndarray):
        # torch takes native byte order and up to 64 bits
        values = values.astype(
            np.float64 if values.dtype == np.longdouble else values.dtype.newbyteorder("="), copy=False
        )
        # torch takes no negative strides, and warns about read-only arrays, such as those of pandas
        values = np.ascontiguousarray(values) if values.flags.writeable else values.copy()
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        held = f" of {values.dtype}" if isinstance(values, np.ndarray) else ""
        raise TypeError(
            f"{name} must be a tensor, an array or a list of numbers; got {type(values).__name__}{held}."
        ) from error
    return tensor.long() if _dtype(tensor) in _WIDE_UNSIGNED else tensor


def check_task(task: str, inputs: str) -> None:
    """Raise unless ``task`` and ``inputs`` are known."""
    if task not in _TASKS:
        raise ValueError(f"task must be one of {', '.join(map(repr, _TASKS))}; got {task!r}.")
    if inputs not in _INPUTS:
        raise ValueError(
            f'inputs must be "logits" (raw scores of any size) or "probabilities" (in [0, 1]); got {inputs!r}.'
        )


def read(
    input: Tensor,
    target: Tensor,
    sample_weight: Tensor | None = None,
    *,
    task: Task,
    inputs: Inputs,
    ignore_index: int | None = None,
    class_weight: tuple[float, ...] | None = None,
    exact: bool = False,
) -> Batch:
    """Check shapes and dtypes and return the batch.

    With ``exact``, targets, weights and counts are float64. The scores keep their precision, because rounding decides
    on which side of a threshold they fall.
    """
    logits = inputs == "logits"
    if (
        task != "multiclass"
        and sample_weight is None
        and ignore_index is None
        and not exact
        and isinstance(input, Tensor)
        and isinstance(target, Tensor)
        and input.dtype in _WIDE_ENOUGH
        and target.dtype == input.dtype
        and target.shape == input.shape
        and (task == "binary" or (input.dim() > 1 and input.shape[1] > 0))
    ):
        return Batch(input, target, None, None, logits, input.dtype)  # the common case needs no conversion
    _check_tensors(input, target, sample_weight)
    dtype = torch.float64 if exact and input.device.type != "mps" else None
    return read_arrays(
        input, target, sample_weight, task=task, inputs=inputs, ignore_index=ignore_index, class_weight=class_weight,
        dtype=dtype,
    )  # fmt: skip


def read_arrays(
    input: Array,
    target: Array,
    sample_weight: Array | None = None,
    *,
    task: Task,
    inputs: Inputs,
    ignore_index: int | None = None,
    class_weight: tuple[float, ...] | None = None,
    dtype: Any = None,
) -> Batch:
    """Do what `read` does, for arrays of any library. Outside torch, class indices are made one-hot.

    ``dtype`` is that of the counts; None takes that of the scores, but at least float32.
    """
    _check_dtypes(input, target)
    if _dtype(target) in _WIDE_UNSIGNED and isinstance(target, Tensor):
        target = target.long()
    xp, logits = namespace(input), inputs == "logits"
    scores = cast(input, xp.promote_types(input.dtype, xp.float32))
    dtype = dtype or scores.dtype
    if task == "multiclass":
        return _read_multiclass(scores, target, sample_weight, logits, dtype, ignore_index, class_weight)

    if task == "multilabel" and input.ndim < 2:
        raise ValueError(
            f"multilabel scores must have shape (N, labels, …); got {_shape(input)}. For one label use task='binary'."
        )
    if task == "multilabel" and input.shape[1] == 0:
        raise ValueError(f"multilabel scores must have a label at least; got shape {_shape(input)}.")
    target = _match_binary(target, input)
    mask = None
    if ignore_index is not None:
        counted = _counted(target, ignore_index)
        target, scores = xp.where(counted, target, 0), xp.where(counted, scores, 0.0)
        mask = cast(counted, dtype)
    weight = None
    if sample_weight is not None:
        weight = _match_weight(sample_weight, input.shape, dtype, labels=task == "multilabel")
    return Batch(scores, cast(target, dtype), weight, mask, logits, dtype)


def _read_multiclass(
    scores: Array,
    target: Array,
    sample_weight: Array | None,
    logits: bool,
    dtype: Any,
    ignore_index: int | None,
    class_weight: tuple[float, ...] | None,
) -> Batch:
    if scores.ndim < 2 or scores.shape[1] < 2:
        raise ValueError(
            f"multiclass scores must have shape (N, K, …) with K ≥ 2 classes; got {_shape(scores)}."
            " For one score per sample use task='binary'."
        )
    classes = scores.shape[1]
    samples = (scores.shape[0], *scores.shape[2:])
    mask, xp = None, namespace(scores)
    if _shape(target) == samples and not is_floating(target) and _dtype(target) != "bool":
        counted = _counted(target, IGNORED_CLASS if ignore_index is None else ignore_index)
        target = xp.where(counted, target, 0)
        target = target.long() if isinstance(target, Tensor) else _one_hot(target, scores, dtype)
        scores = xp.where(counted[:, None], scores, 0.0 if logits else 1.0 / classes)
        mask = cast(counted, dtype)
    elif _shape(target) == _shape(scores) and is_floating(target):
        if ignore_index is not None:
            raise ValueError(
                "ignore_index has no effect on targets that are class probabilities; give such samples a weight of 0."
            )
        target = cast(target, dtype)
    else:
        hint = ""
        if _shape(target) == _shape(scores):
            hint = " Convert a one-hot target with target.argmax(1); for several labels per row use task='multilabel'."
        raise ValueError(
            f"multiclass targets must be integer class indices of shape {samples}, or class probabilities (float) of"
            f" shape {_shape(scores)}; got {_dtype(target)} of shape {_shape(target)}.{hint}"
        )
    weight = None if sample_weight is None else _match_weight(sample_weight, scores.shape, dtype, labels=True)[:, 0]
    if class_weight is not None:
        if len(class_weight) != classes:
            raise ValueError(f"weight must have one entry for each of the {classes} classes; got {len(class_weight)}.")
        per_class = constant(class_weight, scores, dtype)
        if is_floating(target):  # a share y_k of class k is a sample of class k with weight y_k · weight[k]
            target = target * per_class.reshape(-1, *[1] * (scores.ndim - 2))
            if 0 in class_weight:  # samples without weight do not count
                weighs = cast(target.sum(1) != 0, dtype)
                mask = weighs if mask is None else weighs * mask
        else:  # into the mask, not into the sample weights, which may weigh whole images
            known = (target >= 0) & (target < classes)  # an index out of range keeps its weight, so that it is reported
            mask = per_class[target.clamp(0, classes - 1)].where(known, 1.0) * mask
    return Batch(scores, target, weight, mask, logits, dtype)


def _one_hot(target: Array, scores: Array, dtype: Any) -> Array:
    """Class indices as probabilities; NaN for an index out of range, because a compiled function cannot raise."""
    classes, xp = scores.shape[1], namespace(scores)
    index = target[:, None]
    hit = index == constant(range(classes), target).reshape(-1, *[1] * (target.ndim - 1))
    return xp.where((index >= 0) & (index < classes), cast(hit, dtype), math.nan)


def _check_tensors(input: Tensor, target: Tensor, sample_weight: Tensor | None) -> None:
    for name, tensor in (("input", input), ("target", target)):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor; got {type(tensor).__name__}. Convert it with torch.as_tensor."
            )
    if sample_weight is not None and not isinstance(sample_weight, Tensor):
        raise TypeError(f"sample_weight must be a torch.Tensor; got {type(sample_weight).__name__}.")
    if sample_weight is not None and sample_weight.is_complex():
        raise TypeError(f"sample_weight must hold real numbers; got {_dtype(sample_weight)}.")


def _check_dtypes(input: Array, target: Array) -> None:
    if not is_floating(input):
        raise TypeError(f"input must hold floating-point scores; got {_dtype(input)}. Pass the model's raw output.")
    if "complex" in _dtype(target):
        raise TypeError(f"target must be bool, integer or float; got {_dtype(target)}.")


def _match_binary(target: Array, input: Array) -> Array:
    if _shape(target) == _shape(input):
        return target
    if input.ndim and {_shape(target), _shape(input)} == {(input.shape[0],), (input.shape[0], 1)}:
        return target.reshape(input.shape)  # (N,) against (N, 1)
    raise ValueError(
        f"target must have the input's shape {_shape(input)}; got {_shape(target)}. Nothing is broadcast:"
        " reshape one of them, or pass task='multiclass' if the input has one column per class."
    )


def _match_weight(weight: Array, shape: Any, dtype: Any, *, labels: bool) -> Array:
    """The weights, reshaped to broadcast against scores of ``shape``, with ``labels`` or classes in dimension 1."""
    full = (shape[0], 1, *shape[2:]) if labels else tuple(shape)
    pixels = (shape[0], *shape[2:]) if labels else tuple(shape)
    if full and tuple(weight.shape) == full[:1]:
        return cast(weight, dtype).reshape(-1, *[1] * (len(full) - 1))
    if tuple(weight.shape) in (full, pixels):  # both are () for a score without dimensions
        return cast(weight, dtype).reshape(full)
    wanted = f"{full[:1]}" + (f", or one a pixel, shape {pixels}" if len(pixels) > 1 else "")
    raise ValueError(f"sample_weight must have one entry per sample, shape {wanted}; got {_shape(weight)}.")


def _counted(target: Array, ignored: int) -> Array:
    """Which entries are not ignored. Small integer types are widened, because −100 wraps to class 156 of a uint8."""
    kind = _dtype(target)
    if isinstance(target, Tensor) and kind in ("int8", "uint8", "int16", "int32"):
        target = target.long()
    elif kind in ("int8", "uint8", "int16", "uint16"):
        target = cast(target, "int32")
    return target != ignored


def _shape(tensor: Array) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _dtype(tensor: Array) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def check_values(
    input: Tensor,
    target: Tensor,
    sample_weight: Tensor | None = None,
    *,
    task: Task,
    inputs: Inputs,
    ignore_index: int | None = None,
) -> None:
    """Raise for NaN, values out of range and negative weights. Reads the data, so a GPU has to wait."""
    if sample_weight is not None and bool((~(sample_weight >= 0) | sample_weight.isinf()).any()):
        raise ValueError(
            "sample_weight must be finite and not negative; " + _first(sample_weight, ~(sample_weight >= 0))
        )
    if task == "multiclass" and not target.is_floating_point():
        counted = _counted(target, IGNORED_CLASS if ignore_index is None else ignore_index)
        _check_classes(target, counted, input.shape[1])
        counted = counted.unsqueeze(1).expand(input.shape)
    else:
        counted = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else _counted(target, ignore_index)
        wrong = counted & ~((target >= 0) & (target <= 1))
        if bool(wrong.any()):
            if task == "multiclass":
                raise ValueError(f"targets must be class probabilities in [0, 1]; {_first(target, wrong)}")
            raise ValueError(
                f"targets must be 0 or 1, or probabilities between them; {_first(target, wrong)}"
                " For labels -1 and 1 pass (target > 0); for class indices pass task='multiclass'."
            )
        if task == "multiclass":
            _check_sums("target class probabilities", target, counted, " For several labels use task='multilabel'.")
        counted = counted.reshape(input.shape)
    _check_scores(input, counted, task, inputs)


def check_classes(batch: Batch) -> None:
    """Raise if a multiclass target holds an index out of range."""
    if batch.indices() and batch.mask is not None:
        _check_classes(batch.target, batch.mask != 0, batch.scores.shape[1])


def _check_classes(target: Tensor, counted: Tensor, classes: int) -> None:
    wrong = counted & ((target < 0) | (target >= classes))
    if bool(wrong.any()):
        raise ValueError(
            f"targets must be class indices in [0, {classes}); {_first(target, wrong)}"
            " Mark samples that are to be left out with ignore_index."
        )


def _check_scores(input: Tensor, counted: Tensor, task: Task, inputs: Inputs) -> None:
    wrong = counted & input.isnan()
    if bool(wrong.any()):
        raise ValueError(f"scores must not be NaN; {int(wrong.sum())} of {input.numel()} are.")
    if inputs == "probabilities":
        wrong = counted & ((input < 0) | (input > 1))
        if bool(wrong.any()):
            raise ValueError(
                f"probabilities must lie in [0, 1]; {_first(input, wrong)} For raw scores pass inputs='logits'."
            )
        if task == "multiclass":
            _check_sums("class probabilities", input, counted, " For raw scores pass inputs='logits'.")
    elif task == "multiclass":
        hopeless = (input == torch.inf).any(1) | (input == -torch.inf).all(1)
        if bool((hopeless & counted.select(1, 0)).any()):
            raise ValueError(
                "multiclass logits may be -inf (a class ruled out) but not +inf, nor -inf for every class."
            )


def _check_sums(name: str, probabilities: Tensor, counted: Tensor, hint: str = "") -> None:
    off = (probabilities.sum(1) - 1).abs() * counted.select(1, 0)
    if bool((off > SUM_TOLERANCE).any()):
        raise ValueError(f"{name} must sum to 1 a sample; one is off by {float(off.max()):.3g}.{hint}")


def _first(values: Tensor, wrong: Tensor) -> str:
    where = wrong if bool(wrong.any()) else values.isinf()
    return f"got {values[where.expand(values.shape)].flatten()[0].item():g}."
