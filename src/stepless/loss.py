"""`MetricLoss`: the distance of a metric from its best value, as a PyTorch loss."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from stepless.constraints import parse_constraints
from stepless.cross_entropy import Blending, asked_blending, cross_entropy_sums, mean_cross_entropy
from stepless.distributed import Gradients, make_reducer, world_size
from stepless.formula import resolve
from stepless.kernels.dispatch import FUSED_CPU, TRITON_CLASSES, TRITON_COUNTS, TRITON_DECISIONS, Dispatcher
from stepless.memory import Memory, held, recall
from stepless.metrics import METRICS
from stepless.multipliers import FarReaching, grow, pull, relative_excess
from stepless.ranking import Ranking, Rows, find_ranking, make_ranker
from stepless.registry import Metric
from stepless.schedules import Schedule
from stepless.scoring import Path, check_trainable, make_path
from stepless.state import State
from stepless.steps import Hard, Linear, Step, trainable_step
from stepless.tasks import Batch, check_classes, check_values

#: Chosen by measurement; see benchmarks/defaults.
DEFAULT_STEP = Linear(delta=0.1)
#: With three classes or more the metric alone trains worse than cross-entropy: a row far from its class has almost no
#: gradient. Chosen by measurement; see docs/contest.md.
CLASSES_BLEND = Blending(share=0.5, fewest=3)

#: Training forwards without advance() after which a scheduled loss warns.
_PATIENCE = 100


class MetricLoss(nn.Module):
    """Train on a metric of the confusion matrix: a drop-in for ``BCEWithLogitsLoss`` and ``CrossEntropyLoss``.

    The hard step from probability to decision is replaced by a smooth one. Counts, formula and averaging are the
    metric's own. The loss is the distance of the score from its best value. With three classes or more, half of the
    loss is cross-entropy by default (see ``blend``).

    In training mode, every batch updates the memory and the multipliers of the constraints, if there are any, and is
    shared by all ranks. Call ``loss_fn.eval()`` before you compute a validation loss: ``torch.no_grad()`` alone does
    not change the mode, and ``model.eval()`` does so only if the loss is part of the model.

    Args:
        metric: A name from `stepless.METRICS`, a formula as text (``"5*fn + fp"``), or a function of
            ``(tp, fp, fn, tn)``. Or a name from `stepless.RANKINGS`, such as ``"auroc"``, for which arguments about
            decisions (``step``, ``threshold``, …) are errors.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``. Pixels are trailing dimensions.
        average: Over classes: ``"macro"`` (default), ``"micro"``, ``"weighted"``, or ``"samples"`` (multilabel only).
        inputs: What the model outputs: ``"logits"`` (default) or ``"probabilities"``. It is never guessed.
        step: The smooth step: a `stepless.Step` or a name from `stepless.STEPS`. Default: ``Linear(delta=0.1)``.
        threshold: Binary: a probability (default ½), or a sequence of them to average over. Multilabel: a probability,
            one per label, or a sequence of such sequences to average over. Multiclass: ``"dynamic"`` (default), the
            midpoint of a sample's two largest probabilities, or one offset per class, to decide by
            argmax(log p − offset).
        ignore_index: Entries with this target value are left out. Default for multiclass: −100.
        weight: Multiclass: one weight per class, for its samples. Multilabel: the label weights of the macro mean.
        per_image: Score each image separately and average, instead of counting over the whole batch.
        overlap: How a soft target y and a decision h are counted: ``"expected"`` is Σ y·h, and ``"min"`` is
            Σ min(y, h), which is best exactly at h = y.
        blend: Share of cross-entropy in the loss, in [0, 1]. Default: ½ with three classes or more, because the metric
            alone trains them badly, if neither ``step`` nor ``schedule`` is given and the metric lies within [−1, 1];
            otherwise 0.
        cross_entropy: Which cross-entropy is blended in, where any is: ``"plain"``, or ``"balanced"``, in which every
            class weighs the same. Default: plain; but balanced if ``blend`` is ½ by default, ``weight`` is not given,
            and the metric does not depend on class frequencies (balanced accuracy, G-mean, macro recall).
        schedule: A `stepless.Schedule` that changes the blend or the sharpness as :meth:`advance` reports progress.
        subject_to: Constraints, such as ``"precision >= 0.9"``.
        memory: A `stepless.Memory` of past batches' counts, for batches too small to estimate the metric.
        sync: Whether the loss under ``torch.distributed`` is that of all ranks' batches together. None: in training
            only. True: in evaluation too. False: never. A process group: in training, among its ranks. If some ranks
            compute no loss, as in pipeline parallelism, pass the group of those that do: the others are waited for.
        gradients: How the ranks' gradients are combined afterwards: ``"mean"`` (DDP, FSDP) or ``"sum"``.
        maximize: For formulas only: whether greater is better. By default this is found by trying the formula.
        validate: Check for NaN, values out of range and negative weights in every forward. A GPU has to wait for this.
        options: Options of the metric, such as ``beta`` or ``zero_division``.

    Shape:
        - input: ``(N, …)`` for binary, ``(N, labels, …)`` for multilabel, ``(N, K, …)`` for multiclass.
        - target: same as the input (``(N,)`` with ``(N, 1)`` is fine); for multiclass, class indices ``(N, …)`` or
          probabilities ``(N, K, …)``.
        - sample_weight: ``(N,)``, or one weight per pixel.
        - output: a scalar.

    Example:
        >>> import torch
        >>> loss_fn = MetricLoss("f1")
        >>> logits = torch.tensor([2.0, -1.0, 0.5, -3.0], requires_grad=True)
        >>> target = torch.tensor([1, 1, 0, 0])
        >>> loss_fn(logits, target).backward()
        >>> loss_fn.score(logits, target).item()
        0.5
    """

    progress: Tensor
    multipliers: Tensor
    remembered: Tensor
    _ways: Dispatcher | None = None

    def __new__(cls, metric: Any = None, *_: Any, **__: Any) -> MetricLoss:
        """Make a `RankingLoss` for a ranking metric. Copying and unpickling pass no metric."""
        ranks = cls is MetricLoss and find_ranking(metric) is not None
        return super().__new__(RankingLoss if ranks else cls)

    def __init__(
        self,
        metric: str | Metric | Ranking | Callable[..., Any],
        *,
        task: str = "binary",
        average: str | None = None,
        inputs: str = "logits",
        step: Step | str | None = None,
        threshold: Any = None,
        ignore_index: int | None = None,
        weight: Any = None,
        per_image: bool = False,
        overlap: str = "expected",
        blend: float | None = None,
        cross_entropy: str | None = None,
        schedule: Schedule | None = None,
        subject_to: Any = None,
        memory: Memory | None = None,
        sync: Any = None,
        gradients: Gradients = "mean",
        maximize: bool | None = None,
        validate: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if find_ranking(metric) is not None:
            raise TypeError(
                f"a class made of MetricLoss trains on metrics of counts, and {metric!r} ranks samples; call"
                f" stepless.MetricLoss({metric!r}) itself."
            )
        self.metric = resolve(metric, maximize=maximize, **options)
        self.constraints = parse_constraints(subject_to)
        self.metrics = (self.metric, *(constraint.metric for constraint in self.constraints))
        self.path: Path = make_path(
            self.metrics, task=task, average=average, inputs=inputs, threshold=threshold, ignore_index=ignore_index,
            weight=weight, per_image=per_image, overlap=overlap,
        )  # fmt: skip
        check_trainable(self.path)
        if average == "none":
            raise ValueError(
                'average="none" gives one score per class, but a loss is one number; use it with stepless.score.'
            )
        self.step = DEFAULT_STEP if step is None else trainable_step(step)
        by_default = blend is None and step is None and schedule is None and task == "multiclass"
        if by_default and self.metric.bounded:  # no share of cross-entropy suits costs or counts of any size
            # class weights have no effect on an even metric, so the cross-entropy is left plain for them to act on
            even = self.metric.even and self.path.average == "macro" and weight is None
            self.blending = CLASSES_BLEND._replace(balanced=even)
        else:
            self.blending = asked_blending(blend, schedule)
        if cross_entropy is not None:
            self.blending = self.blending.of_kind(cross_entropy)
        self.schedule = schedule
        if schedule is not None and schedule.sharpness is not None:
            self.step.sharpened(1.0)  # raises now if the step has no sharpness
        self.validate = validate
        if memory is not None and not isinstance(memory, Memory):
            raise TypeError(f"memory must be a stepless.Memory; got {memory!r}.")
        self.memory = memory
        wide = torch.promote_types(torch.get_default_dtype(), torch.float32)  # in half precision, sums come to a halt
        with torch.inference_mode(False):  # tensors made in inference mode could not be updated outside it
            self.register_buffer("progress", torch.zeros((), dtype=wide), persistent=schedule is not None)
            ones = torch.ones(len(self.constraints), dtype=wide)
            self.register_buffer("multipliers", ones, persistent=bool(self.constraints))
            self.register_buffer("remembered", self._nothing_yet(), persistent=memory is not None)
        self.reducer = make_reducer(sync, gradients)
        # only the reducer keeps a process group, which can be neither copied nor pickled
        self._sync = sync if sync is None or isinstance(sync, bool) else "group"
        self._fuse()
        self._waiting = 0

    def _nothing_yet(self) -> Tensor:
        """An empty memory: zeros shaped like the state if that is known before the first batch shows the classes."""
        if self.memory is None or self.path.task != "binary" or torch.compiler.is_compiling():
            return torch.zeros(0)
        row = torch.zeros(1, 1, 1)
        return torch.zeros_like(self._measure(self._read(row, row, None)).vector)

    def forward(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Compute the loss of a batch."""
        way = ""
        if self._ways is not None and not torch.compiler.is_compiling():
            way = self._ways.way(input, target, sample_weight, validate=self.validate, syncs=self._syncs())
            self._ways.note(way, self)
            if way in (TRITON_DECISIONS, TRITON_CLASSES):
                return self._ways.fused_on_cuda(input, target)
            if way == FUSED_CPU:  # autocast changes nothing in it
                return self._ways.fused_on_cpu(self._read(input, target, sample_weight))
        with _full_precision(input):
            return self.settle(self._state(way, input, target, sample_weight))

    def path_for(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> str:
        """Name the code path that computes the loss of such a batch.

        Returns:
            ``"fused-cpu"``, ``"triton-decisions"`` or ``"triton-classes"`` if everything is fused. If only the counting
            is fused, ``"fused-cpu-counts: "`` or ``"triton-counts: "``, and otherwise ``"plain: "``, followed by the
            reason. The first batch on each path is also logged, to the logger ``"stepless"`` at level DEBUG.

        Example:
            >>> loss_fn = MetricLoss("f1")
            >>> loss_fn.path_for(torch.zeros(2), torch.ones(2))
            'fused-cpu'
            >>> MetricLoss("f1", blend=0.1).path_for(torch.zeros(2), torch.ones(2))
            'plain: the loss has a blend'
        """
        if self._ways is None:
            return "plain: a ranking has no counts"
        if torch.compiler.is_compiling():
            return "plain: torch.compile fuses it by itself"
        return self._ways.way(input, target, sample_weight, validate=self.validate, syncs=self._syncs())

    def _read(self, input: Tensor, target: Tensor, sample_weight: Tensor | None) -> Batch:
        path = self.path
        batch = path.read(input, target, sample_weight)
        if self.validate and not torch.compiler.is_compiling():
            check_values(
                input, target, sample_weight, task=path.task, inputs=path.inputs, ignore_index=path.ignore_index
            )
        return batch

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set progress, multipliers and memory to what they are in a new loss.

        torch and Lightning call it after they have given memory to a model that was made on the device ``"meta"``, as
        is done for FSDP. Without it, that memory would hold arbitrary numbers.
        """
        for name, buffer in self.named_buffers(recurse=False):
            buffer.fill_(1.0 if name == "multipliers" else 0.0)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Convert the buffers, but never to half precision, in which the memory's counts would overflow."""

        def without_halving(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        convert: Any = super()._apply  # untyped in torch
        return convert(without_halving, recurse)

    def settle(self, state: State) -> Tensor:
        """Compute the loss from the state of a whole batch, merged over the ranks and with the memory.

        In training mode this also updates the constraints' multipliers and the memory, once.
        """
        if self.reducer is not None and self._syncs():
            state = self.reducer(state, self._follow)
        return self._settled(state)

    @torch.no_grad()
    def _follow(self, state: State) -> None:
        """Update multipliers and memory for a batch that only other ranks have."""
        self._settled(state)

    def _settled(self, state: State) -> Tensor:
        present = state
        if self.memory is not None and self.training:
            state = recall(state, self.remembered, lambda v: self.path.size(present.with_vector(v)["soft"]))
        loss = self.finish(state)
        if self.training:
            # buffers made in inference mode could not be updated by later batches outside it
            with nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(False):
                self._after_batch(state, present)
        return loss

    def score(self, input: Any, target: Any, sample_weight: Any = None) -> Tensor:
        """Compute the exact metric of the hard decisions, equal to scikit-learn's. Values are checked."""
        return self.path.hard_scores(input, target, (self.metric,), sample_weight)[0]

    def measure(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> State:
        """Compute the state of a batch: plain sums over its samples. States of several batches are added."""
        way = ""
        if self._ways is not None and not torch.compiler.is_compiling():
            way = self._ways.way(input, target, sample_weight, validate=self.validate, syncs=True)
        with _full_precision(input):
            return self._state(way, input, target, sample_weight)

    def _state(self, way: str, input: Tensor, target: Tensor, sample_weight: Tensor | None) -> State:
        """The state of a batch, its smooth counts computed on the given code path."""
        only_counts = len(self.constraints) == 0 and self.blending.share == 0 and not self.blending.moves
        if way.startswith(TRITON_COUNTS) and self._ways is not None and only_counts:
            return State.pack(self._ways.blocks(way, input, target, None))  # the kernel reads the raw tensors
        batch = self._read(input, target, sample_weight)
        return self._measure(batch, partial(self._ways.blocks, way, input, target, batch) if self._ways else dict)

    def _measure(self, batch: Batch, fused: Callable[[], dict[str, Tensor]] = dict) -> State:
        """The state of a batch. ``fused`` returns the blocks that a fused kernel computes, if any."""
        try:
            given = fused()
            blocks = {"soft": given["soft"] if given else self.path.tally(batch, self._current_step(), self.metrics)}
        except (IndexError, RuntimeError):
            # torch's own message for a class index out of range does not name it: raise ours if that was the cause
            if not torch.compiler.is_compiling():
                check_classes(batch)
            raise
        if self.constraints:
            blocks["far"] = self.path.tally(batch, FarReaching(), self.metrics)
            with torch.no_grad():
                blocks["hard"] = self.path.tally(batch, Hard(), self.metrics)
        if self.blending.applies(self.path.task, batch.scores):
            entropy = given.get("cross_entropy")
            blocks["cross_entropy"] = cross_entropy_sums(batch, self.path.task) if entropy is None else entropy
        return State.pack(blocks)

    def finish(self, state: State) -> Tensor:
        """Compute the loss from a state; it depends on nothing but these sums, progress and multipliers."""
        loss = self.metric.distance(self.path.scores(state["soft"], self.metrics)[0])
        if "cross_entropy" in state:
            share = (
                self.blending.share
                if self.schedule is None or self.schedule.blend is None
                else self.schedule.at(self.progress.to(loss.dtype), "blend")
            )
            entropy = mean_cross_entropy(state["cross_entropy"], balanced=self.blending.balanced)
            loss = (1 - share) * loss + share * entropy
        if not self.constraints:
            return loss
        hard, near, far = (self._excess(sums) for sums in (state["hard"].detach(), state["soft"], state["far"]))
        return loss + pull(held(self.multipliers).to(loss), hard, near, far)

    def _fuse(self) -> None:
        """Find the fused code paths this loss can take."""
        if torch.compiler.is_compiling():  # then torch fuses the plain one
            return
        extras = {"constraints": self.constraints, "a schedule": self.schedule, "a memory": self.memory}
        extra = next((name for name, setting in extras.items() if setting), None)
        steady = self.schedule is None or self.schedule.sharpness is None
        self._ways = Dispatcher(self.path, self.metrics, self.step, extra, self.blending, steady=steady)

    def advance(self, progress: float) -> None:
        """Tell the schedule how far training is, from 0 to 1. Without a schedule this does nothing."""
        given: Any = progress  # may be a numpy scalar
        if not isinstance(given, Real) or not 0 <= float(given) <= 1:
            raise ValueError(f"progress must lie in [0, 1], as in step / total_steps; got {progress!r}.")
        if self.schedule is not None:
            self.progress.fill_(float(progress))
            self._waiting = -1

    def violations(self, input: Any, target: Any, sample_weight: Any = None) -> dict[str, float]:
        """Compute how far each constraint is from holding for the hard decisions: 0 or less if it holds."""
        if not self.constraints:
            return {}
        metrics = tuple(constraint.metric for constraint in self.constraints)
        scores = self.path.hard_scores(input, target, metrics, sample_weight)
        found: dict[str, float] = {}
        for constraint, score in zip(self.constraints, scores, strict=True):
            name = str(constraint)  # formulas may share a name: report the worst
            found[name] = max(float(constraint.violation(score)), found.get(name, -math.inf))
        return found

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        saved = state_dict.get(prefix + "remembered")
        if saved is not None and self.memory is not None:  # sized like the state, unknown before the first batch
            self.remembered = torch.zeros_like(saved, device=self.remembered.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ways": None}  # holds closures; rebuilt by __setstate__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._fuse()

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        shown = [repr(self.metric.name), *(f"{k}={v!r}" for k, v in self.metric.options), f"step={self.step}"]
        if not self.metric.greater_is_better and self.metric.name not in METRICS:
            shown.append("maximize=False")
        shown += self.path.settings()
        if self.blending.share:
            shown.append(f"blend={self.blending.share:g}")
        if self.blending.balanced:
            shown.append("cross_entropy='balanced'")
        if self.schedule is not None:
            shown.append(f"schedule={self.schedule}")
        if self.memory is not None:
            shown.append(f"memory={self.memory}")
        if self.constraints:
            shown.append(f"subject_to={' and '.join(map(str, self.constraints))!r}")
        if self._sync is not None:
            shown.append(f"sync={self._sync}")
        shown += ["gradients='sum'"] * (self.reducer is not None and self.reducer.gradients == "sum")
        shown += ["validate=True"] * self.validate
        return ", ".join(shown)

    def _current_step(self) -> Step:
        if self.schedule is None or self.schedule.sharpness is None:
            return self.step
        return self.step.sharpened(self.schedule.at(self.progress, "sharpness"))

    def _excess(self, sums: Tensor) -> Tensor:
        """How far each constraint is from its bound, according to the sums of `Path.tally`."""
        return relative_excess(self.constraints, self.path.scores(sums, self.metrics)[1:])

    def _syncs(self) -> bool:
        """Whether the ranks' states are added: in training with several ranks, in evaluation only on request."""
        if self.reducer is None or not (self.training or self._sync is True):
            return False
        return world_size(self.reducer.group) > 1

    def _after_batch(self, state: State, present: State) -> None:
        """Update the memory, the constraints' multipliers and the count of forwards without `advance`."""
        if self.memory is not None:
            self.remembered = self.memory.keep(self.remembered, present)
        if self.constraints:
            with torch.no_grad():
                excess = self._excess(state["hard"].detach()).to(self.multipliers.dtype)
                if self.multipliers.device != excess.device:  # once, because copies wait for a GPU
                    self.multipliers = self.multipliers.to(excess.device)
                # NaN scores, as autocast may produce, count as negative decisions: ignore such a batch. One in which
                # nothing counts breaks no constraint: its sums are all 0
                counts = present.vector.isfinite().all() & present.vector.any()
                grown = grow(self.multipliers, torch.where(counts, excess, 0.0))
            self.multipliers.copy_(grown)
        if self.schedule is not None and not torch.compiler.is_compiling() and self._waiting >= 0:
            self._waiting += 1
            if self._waiting == _PATIENCE:
                warnings.warn(
                    f"{_PATIENCE} training batches without advance(): the schedule stands still. Call"
                    " loss_fn.advance(step / total_steps) in the training loop.",
                    stacklevel=_level_of_the_caller(),
                )


class RankingLoss(MetricLoss):
    """The `MetricLoss` for a name from `stepless.RANKINGS`: a smooth surrogate of a ranking metric.

    It compares the samples of a batch with one another, so it is not a function of sums, and there is no state to add,
    remember or share. Training under ``torch.distributed`` is an error, unless ``sync=False`` asks for the loss of each
    rank's own batch. `stepless.accumulate` works nevertheless: it keeps the scores of all micro-batches.

    Example:
        >>> loss_fn = MetricLoss("auroc")
        >>> loss_fn
        MetricLoss('auroc')
        >>> loss_fn.score(torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1, 1, 0, 0])).item()
        0.75
    """

    def __init__(self, metric: str | Ranking, *, validate: bool = False, **settings: Any) -> None:
        super(MetricLoss, self).__init__()
        known = inspect.signature(MetricLoss.__init__).parameters
        options = {name: settings.pop(name) for name in [*settings] if name not in known}
        self._sync = settings.pop("sync", None)
        self.ranker = make_ranker(metric, options, **settings, sync=None if self._sync is False else self._sync)
        self.metric, self.reducer = self.ranker.ranking, None  # type: ignore[assignment]
        self.validate, self.schedule, self.memory, self.constraints = validate, None, None, ()

    def forward(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Compute the loss of a batch."""
        return self.settle_rows(self.rows(input, target, sample_weight))

    def rows(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Rows:
        """A batch's scores and weights; those of several batches are concatenated, not added."""
        with _full_precision(input):
            batch = self.ranker.read(input, target, sample_weight)
            if self.validate and not torch.compiler.is_compiling():
                self.ranker.check(input, target, sample_weight)
            return self.ranker.rows(batch)

    def settle_rows(self, rows: Rows) -> Tensor:
        """Compute the loss from the rows of a whole batch."""
        if self.training and self._sync is None and world_size() > 1:
            raise RuntimeError(
                f"{self.metric.name!r} compares samples with one another, and each of the {world_size()} ranks has its"
                " own: the loss of all of them together would need every rank's scores. Pass sync=False to train on the"
                " loss of each rank's own batch, or train on a metric of counts, which ranks share exactly."
            )
        with _full_precision(rows.scores):
            return self.ranker.loss(rows)

    def score(self, input: Any, target: Any, sample_weight: Any = None) -> Tensor:
        """Compute the exact metric of the ranking, equal to scikit-learn's if it has one. Values are checked."""
        return self.ranker.score(input, target, sample_weight)

    def _no_state(self, *_: Any) -> Any:
        raise TypeError(
            f"{self.metric.name!r} compares samples with one another, so there are no sums of batches that merge; give"
            " the loss the whole batch, or use stepless.accumulate."
        )

    measure = finish = settle = _no_state  # type: ignore[assignment]

    def violations(self, input: Any, target: Any, sample_weight: Any = None) -> dict[str, float]:
        """Return an empty dictionary: a ranking has no constraints."""
        return {}

    def _fuse(self) -> None:
        self._ways = None

    def _get_name(self) -> str:
        return "MetricLoss"  # the name the user called

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        return self.ranker.settings()


def _level_of_the_caller() -> int:
    """The ``stacklevel`` of the first frame outside torch and this package: that of the training loop."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("stepless", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _full_precision(input: Tensor) -> Any:
    """A context without autocast, which would count in half precision."""
    if isinstance(input, Tensor) and not input.is_meta and torch.is_autocast_enabled(input.device.type):
        return torch.autocast(input.device.type, enabled=False)
    return nullcontext()


def metric_loss(
    input: Tensor,
    target: Tensor,
    metric: str | Metric | Callable[..., Any],
    *,
    sample_weight: Tensor | None = None,
    **settings: Any,
) -> Tensor:
    """Compute the loss of one batch: the functional form of `MetricLoss`, for losses that keep no state.

    It takes the arguments of `MetricLoss`, except ``schedule``, ``subject_to`` and ``memory``. Under
    ``torch.distributed``, an input that requires a gradient means training, with the loss of all ranks' batches.

    Example:
        >>> logits = torch.tensor([2.0, -1.0, 0.5, -3.0])
        >>> metric_loss(logits, torch.tensor([1, 1, 0, 0]), "f1", step="identity")
        tensor(0.3980)
    """
    for stateful in ("schedule", "subject_to", "memory"):
        if settings.get(stateful) is not None:
            raise TypeError(f"{stateful} keeps state between batches; use MetricLoss({metric!r}, {stateful}=…).")
    trains = torch.is_grad_enabled() and isinstance(input, Tensor) and input.requires_grad
    asked = settings.get("sync") not in (None, False)
    return MetricLoss(metric, **settings).train(trains or asked)(input, target, sample_weight)
