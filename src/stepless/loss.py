"""`MetricLoss`: the distance of a metric from its best value, as a PyTorch loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stepless import kernels
from stepless.constraints import parse_constraints
from stepless.cross_entropy import cross_entropy_sums, mean_cross_entropy
from stepless.formula import resolve
from stepless.metrics import METRICS
from stepless.registry import Metric
from stepless.schedules import Schedule
from stepless.scoring import Path, make_path
from stepless.state import State
from stepless.steps import STEPS, Hard, Linear, Step
from stepless.tasks import Batch, check_classes, check_values

#: Chosen by measurement; see benchmarks/defaults.
DEFAULT_STEP = Linear(delta=0.1)

#: A constraint's multiplier grows by this times the violation in each training batch, up to the cap.
_MULTIPLIER_RATE, _MULTIPLIER_CAP = 1.0, 100.0
#: A constraint pulls until it holds by this much, so that the last step does not end a sample short of it.
_MARGIN = 0.01
_PATIENCE = 100  # forwards of a scheduled loss without advance() before it warns


class MetricLoss(nn.Module):
    """Train on a metric of the confusion matrix: a drop-in for ``BCEWithLogitsLoss`` and ``CrossEntropyLoss``.

    The step from probability to decision is replaced by a smooth one; counts, formula and averaging are those of the
    metric itself. The loss is the distance from the metric's best value.

    Args:
        metric: A name of `stepless.METRICS`, a formula as text (``"5*fn + fp"``), or a function ``f(tp, fp, fn, tn)``.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``. Pixels are trailing dimensions.
        average: Over classes: ``"macro"`` (default), ``"micro"``, ``"weighted"``, or ``"samples"`` (multilabel).
        inputs: ``"logits"`` or ``"probabilities"``: asked, never guessed.
        step: The smooth step, a `stepless.Step` or a name of `stepless.STEPS`.
        threshold: Binary: a probability (default ½), or a sequence to average over. Multilabel: also one a label, or a
            sequence of such sequences to average over. Multiclass: ``"dynamic"`` (default: the midpoint of a sample's
            two largest probabilities), or one offset a class, for decisions by argmax(log p − offset).
        ignore_index: The target value of entries to leave out (multiclass: −100 unless given).
        weight: Multiclass: weights of the samples of each class. Multilabel: weights of the labels in the macro mean.
        per_image: Score each image by itself and average, instead of counting over the whole batch.
        overlap: How a soft target y meets a decision h: ``"expected"`` counts Σ y·h; ``"min"`` counts Σ min(y, h),
            which is best exactly at h = y.
        blend: Share of cross-entropy in the loss, in [0, 1].
        cross_entropy: ``"plain"`` or ``"balanced"`` (every class weighs the same) cross-entropy in the blend.
        schedule: A `stepless.Schedule` that moves blend or sharpness as :meth:`advance` reports progress.
        subject_to: Constraints, as in ``"precision >= 0.9"``.
        maximize: For formulas: whether greater is better (default True).
        validate: Check values (NaN, ranges, negative weights) in every forward. This waits for an accelerator.
        options: Options of the metric, such as ``beta`` or ``zero_division``.

    Shape:
        - input: ``(N, …)`` binary, ``(N, labels, …)`` multilabel, ``(N, K, …)`` multiclass.
        - target: The input's shape (``(N,)`` against ``(N, 1)`` is fine); multiclass: indices ``(N, …)`` or
          probabilities ``(N, K, …)``.
        - sample_weight: ``(N,)``, or one a pixel.
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

    def __init__(
        self,
        metric: str | Metric | Callable[..., Any],
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
        blend: float = 0.0,
        cross_entropy: str = "plain",
        schedule: Schedule | None = None,
        subject_to: Any = None,
        maximize: bool | None = None,
        validate: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.metric = resolve(metric, maximize=maximize, **options)
        self.constraints = parse_constraints(subject_to)
        self.metrics = (self.metric, *(constraint.metric for constraint in self.constraints))
        self.path: Path = make_path(
            self.metrics, task=task, average=average, inputs=inputs, threshold=threshold, ignore_index=ignore_index,
            weight=weight, per_image=per_image, overlap=overlap,
        )  # fmt: skip
        if average == "none":
            raise ValueError(
                'average="none" gives one score a class, but a loss is one number; use it with stepless.score.'
            )
        self.step = make_step(step)
        self.blend, self.cross_entropy = _check_blend(blend, cross_entropy, schedule)
        self.schedule = schedule
        if schedule is not None and schedule.sharpness is not None:
            self.step.sharpened(1.0)  # a step without sharpness says so now
        self.validate = validate
        self.register_buffer("progress", torch.zeros(()), persistent=schedule is not None)
        self.register_buffer("multipliers", torch.ones(len(self.constraints)), persistent=bool(self.constraints))
        self._differentiate = self._fused_derivative()
        self._waiting = 0

    def forward(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a batch."""
        with _full_precision(input):
            batch = self.path.read(input, target, sample_weight)
            if self.validate and not torch.compiler.is_compiling():
                self._check_values(input, target, sample_weight)
            cut = self.path.cuts
            if self._differentiate is not None and isinstance(cut, float) and kernels.is_fused(batch):
                return kernels.loss_of_counts(batch, self.step, cut, self._distance, self._differentiate)
            state = self._measure(batch)
            loss = self.finish(state)
            if self.training:
                self._after_batch(state)
            return loss

    def score(self, input: Any, target: Any, sample_weight: Any = None) -> Tensor:
        """The metric of the decisions themselves, equal to scikit-learn's; values are checked."""
        return self.path.hard_scores(input, target, (self.metric,), sample_weight)[0]

    def measure(self, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> State:
        """The state of a batch: plain sums over its samples, which merge by addition."""
        with _full_precision(input):
            return self._measure(self.path.read(input, target, sample_weight))

    def _measure(self, batch: Batch) -> State:
        try:
            blocks = {"soft": self.path.tally(batch, self._current_step(), self.metrics)}
        except (IndexError, RuntimeError):
            # an index out of range fails inside torch, in torch's words: say it in ours, if that was the cause
            if not torch.compiler.is_compiling():
                check_classes(batch)
            raise
        if self.constraints:
            with torch.no_grad():
                blocks["hard"] = self.path.tally(batch, Hard(), self.metrics)
        if self._blends():
            blocks["cross_entropy"] = cross_entropy_sums(batch, self.path.task)
        return State.pack(blocks)

    def finish(self, state: State) -> Tensor:
        """The loss of a state: a function of its sums alone."""
        score, *held = self.path.scores(state["soft"], self.metrics)
        loss = self.metric.distance(score)
        if self._blends():
            share = (
                self.blend
                if self.schedule is None or self.schedule.blend is None
                else self.schedule.at(self.progress.to(loss), "blend")
            )
            entropy = mean_cross_entropy(state["cross_entropy"], balanced=self.cross_entropy == "balanced")
            loss = (1 - share) * loss + share * entropy
        for constraint, soft, hard, multiplier in zip(
            self.constraints, held, self._violations(state), self.multipliers.clone(), strict=True
        ):
            # The value and the activity come from the decisions themselves, the direction from the smooth counts.
            pull = constraint.violation(soft)
            loss = loss + multiplier.to(loss) * (hard.clamp(min=0) + (hard > -_MARGIN) * (pull - pull.detach()))
        return loss

    def _distance(self, cells: Any) -> Any:
        """The loss of the cells ``(…, 4)`` of a binary task, in any array."""
        return self.metric.distance(self.path.scores(cells[..., None, None, None, :], self.metrics)[0])

    def _fused_derivative(self) -> kernels.Differentiate | None:
        """What the fused path needs, where it applies: a binary batch, one threshold, the metric and nothing else."""
        path = self.path
        fusable = replace(Path(), cuts=path.cuts, inputs=path.inputs, ignore_index=path.ignore_index)
        if type(self.step).linearise is Step.linearise:  # a user's step; it need not have this
            return None
        if path != fusable or self.constraints or self._blends() or self.schedule is not None:
            return None
        metric = self.metric
        of_numbers = (lambda *cells: metric.distance(metric(*cells))) if metric.kind == "class" else None
        return kernels.differentiator(self._distance, of_numbers)

    def advance(self, progress: float) -> None:
        """Report training progress in [0, 1] to the schedule; without a schedule this does nothing."""
        if not isinstance(progress, int | float) or not 0 <= progress <= 1:
            raise ValueError(f"progress must lie in [0, 1], as in step / total_steps; got {progress!r}.")
        if self.schedule is not None:
            self.progress.fill_(progress)
            self._waiting = -1

    def violations(self, input: Any, target: Any, sample_weight: Any = None) -> dict[str, float]:
        """How far each constraint is from holding for these decisions; 0 or below where it holds."""
        metrics = tuple(constraint.metric for constraint in self.constraints)
        scores = self.path.hard_scores(input, target, metrics, sample_weight)
        return {str(c): float(c.violation(s)) for c, s in zip(self.constraints, scores, strict=True)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_differentiate": None}  # a closure, made anew

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._differentiate = self._fused_derivative()

    def extra_repr(self) -> str:
        """The settings that differ from the defaults."""
        shown = [repr(self.metric.name), *(f"{k}={v!r}" for k, v in self.metric.options), f"step={self.step}"]
        if not self.metric.greater_is_better and self.metric.name not in METRICS:
            shown.append("maximize=False")
        path, plain = self.path, Path()
        shown += [
            f"{k}={getattr(path, k)!r}" for k in ("task", "average", "inputs") if getattr(path, k) != getattr(plain, k)
        ]
        shown += [f"threshold={t}" for t in (path.cuts, path.offsets) if t not in (0.5, None)]
        shown += [f"{k}={getattr(path, k)!r}" for k in ("ignore_index", "weight") if getattr(path, k) is not None]
        shown += ["per_image=True"] * (path.unit == "image") + ["overlap='min'"] * (path.overlap == "min")
        if self.blend:
            shown.append(f"blend={self.blend:g}")
        if self.cross_entropy != "plain":
            shown.append(f"cross_entropy={self.cross_entropy!r}")
        if self.schedule is not None:
            shown.append(f"schedule={self.schedule}")
        if self.constraints:
            shown.append(f"subject_to={' and '.join(map(str, self.constraints))!r}")
        return ", ".join(shown)

    def _current_step(self) -> Step:
        if self.schedule is None or self.schedule.sharpness is None:
            return self.step
        return self.step.sharpened(self.schedule.at(self.progress, "sharpness"))

    def _blends(self) -> bool:
        return self.blend > 0 or (self.schedule is not None and self.schedule.blend is not None)

    def _violations(self, state: State) -> list[Tensor]:
        if not self.constraints:
            return []
        _, *held = self.path.scores(state["hard"].detach(), self.metrics)
        return [constraint.violation(value) for constraint, value in zip(self.constraints, held, strict=True)]

    def _after_batch(self, state: State) -> None:
        """What a training batch leaves behind: the multipliers of violated constraints grow."""
        if self.constraints:
            with torch.no_grad():
                violation = torch.stack(self._violations(state)).to(self.multipliers)
                growth = torch.where(violation > 0, _MULTIPLIER_RATE * violation, 0.0)  # NaN is not above 0
                grown = (self.multipliers + growth).clamp(max=_MULTIPLIER_CAP)
            if torch.compiler.is_compiling():
                self.multipliers = grown  # a compiled backward would read the buffer after a change in place
            else:
                self.multipliers.copy_(grown)
        if self.schedule is not None and not torch.compiler.is_compiling() and self._waiting >= 0:
            self._waiting += 1
            if self._waiting == _PATIENCE:
                warnings.warn(
                    f"{_PATIENCE} training batches without advance(): the schedule stands still. Call"
                    " loss_fn.advance(step / total_steps) in the training loop.",
                    stacklevel=5,  # the caller of the loss
                )

    def _check_values(self, input: Tensor, target: Tensor, sample_weight: Tensor | None) -> None:
        path = self.path
        check_values(input, target, sample_weight, task=path.task, inputs=path.inputs, ignore_index=path.ignore_index)


def make_step(step: Step | str | None) -> Step:
    """A step from a step, its name, or nothing (the default one); `Hard` is refused, because it cannot train."""
    if step is None:
        return DEFAULT_STEP
    if isinstance(step, str):
        if step not in STEPS:
            raise ValueError(STEPS.unknown(step))
        step = STEPS[step]()
    if not isinstance(step, Step):
        raise TypeError(f"step must be a stepless step such as Linear(delta=0.1), or its name; got {step!r}.")
    if isinstance(step, Hard):
        raise ValueError(
            "the Hard step has no gradient, so nothing can be learned through it; use stepless.score to evaluate."
        )
    return step


def _check_blend(blend: float, cross_entropy: str, schedule: Schedule | None) -> tuple[float, str]:
    if not isinstance(blend, int | float) or not 0 <= blend <= 1:
        raise ValueError(f"blend is the share of cross-entropy in the loss, in [0, 1]; got {blend!r}.")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a stepless.Schedule; got {schedule!r}.")
    if cross_entropy not in ("plain", "balanced"):
        raise ValueError(f'cross_entropy must be "plain" or "balanced"; got {cross_entropy!r}.')
    scheduled = schedule is not None and schedule.blend is not None
    if blend and scheduled:
        raise ValueError("blend and a schedule's blend are two answers to one question; give one of them.")
    if cross_entropy != "plain" and not blend and not scheduled:
        raise ValueError(f"cross_entropy={cross_entropy!r} has no effect without a blend; pass blend= or a schedule.")
    return float(blend), cross_entropy


def _full_precision(input: Tensor) -> Any:
    """Autocast off, because it would count in half precision; nothing at all where it is off already."""
    if isinstance(input, Tensor) and torch.is_autocast_enabled(input.device.type):
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
    """The functional twin of `MetricLoss`, for everything that keeps no state.

    Example:
        >>> logits = torch.tensor([2.0, -1.0, 0.5, -3.0])
        >>> metric_loss(logits, torch.tensor([1, 1, 0, 0]), "f1", step="identity")
        tensor(0.3980)
    """
    for stateful in ("schedule", "subject_to"):
        if settings.get(stateful) is not None:
            raise TypeError(f"{stateful} keeps state between batches; use MetricLoss({metric!r}, {stateful}=…).")
    return MetricLoss(metric, **settings).eval()(input, target, sample_weight)
