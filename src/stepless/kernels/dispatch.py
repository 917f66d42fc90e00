"""Choose the code path from scores to loss: a fused twin if one applies, the plain path otherwise.

`MetricLoss` runs the path that `Dispatcher.way` names, and ``path_for`` reports the same name. It is ``"fused-cpu"``,
``"triton-decisions"`` or ``"triton-classes"`` if everything is fused. Otherwise it is ``"fused-cpu-counts: "`` or
``"triton-counts: "``, where scores become counts in one autograd node and the rest is plain, or ``"plain: "``, followed
by the reason.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from stepless.averaging import evaluate
from stepless.captured import reads_variables
from stepless.cross_entropy import Blending
from stepless.formula_text import TextFormula
from stepless.kernels.classes import Classing, fused_class_sums
from stepless.kernels.decisions import FEW, Deciding, fused_counts, fused_loss
from stepless.kernels.derivatives import differentiators, traces_classes
from stepless.kernels.few_classes import fused_class_loss
from stepless.kernels.nodes import Objective
from stepless.metrics import METRICS
from stepless.registry import Metric
from stepless.safe_counts import SafeFormula
from stepless.scoring import Path
from stepless.steps import Step
from stepless.tasks import IGNORED_CLASS, Batch

FUSED_CPU, TRITON_DECISIONS, TRITON_CLASSES = "fused-cpu", "triton-decisions", "triton-classes"
COUNTS_CPU, TRITON_COUNTS = "fused-cpu-counts", "triton-counts"

#: The way of the counts alone, for each way of the whole loss.
_COUNTS = {FUSED_CPU: COUNTS_CPU, TRITON_DECISIONS: TRITON_COUNTS}
_PLAIN_TYPES = frozenset({Tensor, nn.Parameter})
_ALONE = Blending()
_ON_CUDA = (torch.float32, torch.float16, torch.bfloat16)

#: The fields of an `Objective` that come from the metric: `Objective.of` and its derivatives.
_Traced = tuple[Callable[[Any], Any], Any, Any, Any]

logger = logging.getLogger("stepless")


@lru_cache(maxsize=1)
def triton_is_there() -> bool:
    """Whether Triton can be imported. It comes with torch's CUDA builds."""
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=1)
def _kernels() -> tuple[ModuleType, ModuleType]:
    """The Triton kernels of classes and of decisions."""
    from stepless.kernels import triton_classes, triton_decisions  # noqa: PLC0415 - they import Triton

    return triton_classes, triton_decisions


class Dispatcher:
    """The ways of one loss.

    Args:
        path: Everything that is known before the first batch.
        metrics: The metric, followed by those of the constraints.
        step: The smooth step.
        extra: What else is in the loss besides the metric of one batch, such as ``"a memory"``; None if nothing.
        blending: The share of cross-entropy in the loss, which the fused multiclass ways include.
        steady: Whether the step never changes; a schedule may sharpen it.
    """

    def __init__(
        self, path: Path, metrics: tuple[Metric, ...], step: Step, extra: str | None = None,
        blending: Blending = _ALONE, *, steady: bool = True,
    ) -> None:  # fmt: skip
        self.path, self.step, self.blending = path, step, blending
        self.counting = _counting(path, metrics, step) if steady else None
        self.decisions: Objective | None = None
        self.classes: Objective | None = None
        self._logged: set[str] = set()
        if blending.share and path.task != "multiclass":
            extra = extra or "a blend"
        objective = _ruled_out(path, step, extra) or _objective(path, metrics[0], step)
        self._why = ""
        if isinstance(objective, str):
            self._why = objective
        elif path.task != "multiclass":
            self.decisions = objective
        elif path.inputs != "logits" or path.weight is not None:
            self._why = "plain: classes are weighted, or given as probabilities"
        else:
            self.classes = objective

    def way(
        self, input: Any, target: Any, sample_weight: Any = None, *, validate: bool = False, syncs: bool = False
    ) -> str:
        """Return the way of this batch. Not to be called while torch.compile is tracing."""
        unfit = self._unfit(input, target)
        if unfit is not None:
            return self._why or unfit
        whole = self._why or ("plain: the ranks' counts are added up" if syncs else "")
        way = whole or self._way_of(input, target, sample_weight, validate, of=self.decisions)
        if not way.startswith("plain") or self.counting is None or (input.is_cpu and input.numel() <= FEW):
            return way  # for few scores the node would cost more than it saves
        if isinstance(self.counting, Classing):
            offsets = self.path.offsets
            misfit = offsets is not None and (input.dim() < 2 or len(offsets) != input.shape[1])
            # no node counts classes on CUDA or given as probabilities; for a misfit the plain path raises the error
            if not input.is_cpu or target.is_floating_point() or misfit:
                return way
            counted = self._way_on_cpu(input, target, sample_weight)
        else:
            counted = self._way_of(input, target, sample_weight, validate, of=self.counting)
        return way if counted.startswith("plain") else f"{_COUNTS[counted]}: {way.removeprefix('plain: ')}"

    def blocks(self, way: str, input: Tensor, target: Tensor, batch: Batch | None) -> dict[str, Tensor]:
        """Compute the blocks of the state that the way computes by a fused node; on the CPU, from the batch as read."""
        kind = way.partition(":")[0]
        if kind == TRITON_COUNTS:
            return {"soft": _kernels()[1].fused_counts(self._raw(input, target), self.counting)}
        if kind != COUNTS_CPU:
            return {}
        assert batch is not None
        assert self.counting is not None
        if not isinstance(self.counting, Classing):
            return {"soft": fused_counts(batch, self.counting)}
        entropy = self.blending.applies("multiclass", input) and batch.logits and self.path.offsets is None
        counts, sums = fused_class_sums(batch, self.counting._replace(entropy=entropy))
        return {"soft": counts} if sums is None else {"soft": counts, "cross_entropy": sums}

    def _unfit(self, input: Any, target: Any) -> str | None:
        """Why no fused way can take the batch; None if one may."""
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return "plain: inside a function transform or forward-mode differentiation"
        if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
            return "plain: the operations are being recorded"
        if type(input) not in _PLAIN_TYPES or type(target) not in _PLAIN_TYPES:
            return "plain: input or target is not a plain tensor"
        if target.requires_grad or input.numel() == 0:
            return "plain: the batch is empty, or the target requires a gradient"
        return None

    def _way_of(
        self, input: Any, target: Any, sample_weight: Any, validate: bool, of: Objective | Deciding | None
    ) -> str:
        """The way of decisions on the batch's device, or of classes if ``of`` is None."""
        if not input.is_cpu:
            return self._way_on_cuda(input, target, sample_weight, validate, of)
        if of is None and (input.numel() > FEW or target.is_floating_point() or self.counting is None):
            return "plain: on the CPU only small batches of class indices are fused as a whole"
        return self._way_on_cpu(input, target, sample_weight)

    def _way_on_cpu(self, input: Tensor, target: Tensor, sample_weight: Any) -> str:
        if not target.is_cpu:
            return "plain: input and target are on two devices"
        if sample_weight is not None and (
            type(sample_weight) not in _PLAIN_TYPES or not sample_weight.is_cpu or sample_weight.requires_grad
        ):
            return "plain: sample_weight is not a plain CPU tensor, or requires a gradient"
        weight = self.path.weight
        if weight is not None and (input.dim() < 2 or len(weight) != input.shape[1]):
            return "plain: weight does not have one entry per label or class"
        return FUSED_CPU

    def _way_on_cuda(  # noqa: PLR0911
        self, input: Tensor, target: Tensor, sample_weight: Any, validate: bool, of: Objective | Deciding | None
    ) -> str:
        if not (input.is_cuda and target.is_cuda):
            return f"plain: no kernels for input on {input.device.type} and target on {target.device.type}"
        if input.device.index != torch.cuda.current_device() or target.device != input.device:
            return "plain: the tensors are not on the current device, where kernels are launched"
        if not triton_is_there():
            return "plain: Triton is not installed"
        if validate or sample_weight is not None:
            return "plain: values are checked, or samples are weighted"
        if input.dtype not in _ON_CUDA:
            return f"plain: no kernels for {input.dtype} on CUDA"
        classes, decisions = _kernels()
        if of is not None:
            if self.path.ignore_index is not None or target.shape != input.shape or (of.labels and input.dim() < 2):
                return "plain: entries are ignored, or the target or the labels are not shaped for the kernels"
            if decisions.numbers(self.step, of.tau) is None:
                return "plain: the kernels do not have the step"
            return TRITON_DECISIONS
        if not classes.takes_classes(input, target, self.step):
            return "plain: no kernels for such classes or such a step"
        return TRITON_CLASSES

    def note(self, way: str, loss: object) -> None:
        """Log a way when this loss takes it for the first time."""
        if way not in self._logged:
            self._logged.add(way)
            logger.debug("%r: %s", loss, way)

    def fused_on_cpu(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch whose way is ``"fused-cpu"``."""
        if self.decisions is not None:
            return fused_loss(batch, self.decisions)
        return fused_class_loss(batch, self._of_classes(batch.scores))

    def fused_on_cuda(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss by Triton's kernels, which read the tensors in their own dtypes."""
        classes, decisions = _kernels()
        if self.decisions is not None:
            return decisions.fused_loss(self._raw(input, target), self.decisions)
        ignored = IGNORED_CLASS if self.path.ignore_index is None else self.path.ignore_index
        return classes.fused_class_loss(input, target, ignored, self._of_classes(input))

    def _of_classes(self, scores: Tensor) -> Objective:
        """The objective with its blend, which by default is none for two classes."""
        assert self.classes is not None
        share = self.blending.share if self.blending.applies("multiclass", scores) else 0.0
        return self.classes._replace(blend=share, balanced=self.blending.balanced)

    def _raw(self, input: Tensor, target: Tensor) -> Batch:
        """The tensors as a batch, without conversion."""
        return Batch(input, target, None, None, self.path.inputs == "logits", torch.float32)


def _counting(path: Path, metrics: tuple[Metric, ...], step: Step) -> Deciding | Classing | None:
    """How a fused node makes the counts of the whole batch, at one threshold or among classes; None if it cannot."""
    if path.unit != "batch" or path.overlap != "expected":
        return None
    if path.task == "multiclass":
        logits = path.inputs == "logits"
        if not _linearises(step) or not step.has_row_twin(logits=logits) or (path.offsets is not None and not logits):
            return None
        return Classing(step, path.offsets, path.needs_matrix(metrics))
    if not isinstance(path.cuts, float) or not _linearises(step) or not step.has_twin(path.cuts):
        return None
    return Deciding(step, path.cuts, path.task == "multilabel")


def _ruled_out(path: Path, step: Step, extra: str | None) -> str | None:
    """Why the whole loss cannot be fused; None if it may be. One threshold, the metric and nothing else can."""
    plain = replace(
        Path(), task=path.task, cuts=path.cuts, inputs=path.inputs, ignore_index=path.ignore_index, weight=path.weight
    )
    if path != plain or not isinstance(path.cuts, float):
        return "plain: the average, the thresholds or the overlap are not the fused ways' own"
    if extra is not None:
        return f"plain: the loss has {extra}"
    if path.weight is not None and not any(path.weight):
        return "plain: all label weights are 0"
    if not _linearises(step):
        return "plain: the step has no linearise of its own"
    if not step.has_twin(path.cuts):
        return "plain: the step is so narrow, or so nearly straight, that the fused ways would be less exact"
    return None


def _objective(path: Path, metric: Metric, step: Step) -> Objective | str:
    """What the fused ways compute, or the reason why they cannot."""
    assert isinstance(path.cuts, float)
    if path.task == "multiclass" and metric.kind != "class":
        joint = None if metric.kind == "matrix" else _traced(metric, joint=True)
        if joint is None:
            return "plain: the metric reads the whole confusion matrix or variables, or cannot be traced"
        return Objective(step, path.cuts, *joint, labels=True, joint=True)
    several = path.task != "binary"
    if several and metric.marks_undefined:
        return "plain: undefined classes are left out of the mean"
    traced = _traced(metric, joint=False)
    if traced is None:
        return "plain: the formula reads variables, or cannot be traced"
    return Objective(step, path.cuts, *traced, several, path.weight)


def _traced(metric: Metric, *, joint: bool) -> _Traced | None:
    """The loss as a function of cells, and its derivatives; None if it cannot be traced.

    A registered formula or one given as text is traced once for all losses. A function that reads variables is not
    traced, because it may compute something else in the next batch.
    """
    function = metric.function
    if isinstance(function, TextFormula):
        return _trace_once(metric, joint)
    if reads_variables(function.function if isinstance(function, SafeFormula) else function):
        return None
    registered = metric.name in METRICS and METRICS[metric.name].function is function
    return (_trace_once if registered else _trace)(metric, joint)


def _trace(metric: Metric, joint: bool) -> _Traced | None:
    if joint:

        def of_all(cells: Any) -> Any:
            """The loss of the four cells of all classes, each ``(…, K)``."""
            return metric.distance(metric(*cells))

        return (of_all, _unused, _unused, _unused) if traces_classes(of_all) else None

    def of_one(cells: Any) -> Any:
        """The loss of the cells ``(…, 4)`` of one label or class."""
        one = cells[..., None, None, None, :]
        return metric.distance(evaluate(metric, one, "binary", "macro")[..., 0, 0])

    traced = differentiators(of_one)
    return None if traced is None else (of_one, *traced)


_trace_once = lru_cache(maxsize=256)(_trace)


def _unused(*_: Any) -> Any:
    raise AssertionError("a joint formula is traced again for each number of classes, or becomes a kernel")


def _linearises(step: Step) -> bool:
    """Whether one class defines both the step and its `Step.linearise`.

    A user's step may have no ``linearise``, or inherit one that belongs to the step it was derived from.
    """
    twins = ("linearise", "linearise_logits", "linearise_few", "linearise_rows", "linearise_few_rows")
    names = ("__call__", "from_logits", *twins)
    owners = {next(c for c in type(step).__mro__ if name in vars(c)) for name in names} - {Step}
    return len(owners) == 1 and "linearise" in vars(owners.pop())
