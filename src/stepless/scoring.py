"""The one path from scores to a score. `Hard` evaluates, every other step trains; the rest is the same code.

scores ─▶ decisions ─▶ counts ─▶ metric ─▶ average
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from stepless import confusion
from stepless.averaging import Average, evaluate, undefined
from stepless.confusion import Cuts, Overlap, Unit
from stepless.formula import resolve
from stepless.numerics import Array, as_tuple, cast, is_whole, namespace, ratio
from stepless.ranking import Ranking, find_ranking, score_ranking
from stepless.registry import Metric
from stepless.steps import Hard, Step
from stepless.tasks import Batch, Inputs, Task, as_tensor, check_task, check_values, read

_AVERAGES, _OVERLAPS = get_args(Average), get_args(Overlap)  # torch.compile does not trace get_args


@dataclass(frozen=True)
class Path:
    """Everything that is settled before the first batch: how scores become counts and how counts are averaged."""

    task: Task = "binary"
    average: Average = "macro"
    inputs: Inputs = "logits"
    cuts: Cuts = 0.5
    offsets: tuple[float, ...] | None = None  #: one per class, multiclass only
    ignore_index: int | None = None
    weight: tuple[float, ...] | None = None
    unit: Unit = "batch"
    overlap: Overlap = "expected"
    logit_cuts: Cuts | None = None  #: thresholds tuned on logits, compared with logits because a sigmoid rounds

    def settings(self) -> list[str]:
        """The arguments that differ from the defaults, as text."""
        plain = Path()
        names = ("task", "average", "inputs", "ignore_index", "weight")
        shown = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}
        cuts = [f"threshold={cut}" for cut in (self.cuts, self.offsets) if cut not in (0.5, None)]
        flags = ["per_image=True"] * (self.unit == "image") + ["overlap='min'"] * (self.overlap == "min")
        return [f"{name}={value!r}" for name, value in shown.items()] + cuts + flags

    def read(self, input: Tensor, target: Tensor, sample_weight: Tensor | None, *, exact: bool = False) -> Batch:
        """The batch in the package's own form; ``exact`` counts in float64."""
        class_weight = self.weight if self.task == "multiclass" else None
        return read(
            input, target, sample_weight, task=self.task, inputs=self.inputs,
            ignore_index=self.ignore_index, class_weight=class_weight, exact=exact,
        )  # fmt: skip

    def tally(self, batch: Batch, step: Step, metrics: tuple[Metric, ...]) -> Array:
        """The sums that `scores` needs: the counts, or for images and samples the sums of their scores and weights."""
        table = self.count(batch, step, metrics)
        if self.unit == "batch":
            return table
        weight = confusion.unit_weight(batch, self.unit)
        stack = namespace(table).stack
        return stack([stack(self._sum_units(m, table, metrics, weight), -1) for m in metrics]).reshape(-1)

    def scores(self, sums: Array, metrics: tuple[Metric, ...]) -> tuple[Array, ...]:
        """One score for each metric (one for each class and metric with ``average="none"``), from the sums of `tally`.

        The sums may be an array of any library, with any number of leading axes.
        """
        if self.unit != "batch":
            # the score where no unit has one
            empty = [math.nan if metric.marks_undefined else 0.0 for metric in metrics]
            pairs = sums.reshape(*sums.shape[:-1], len(metrics), -1, 2)  # one for each threshold
            return tuple(ratio(pairs[..., i, :, 0], pairs[..., i, :, 1], zero).mean(-1) for i, zero in enumerate(empty))
        unit = (..., 0, slice(None)) if self.average == "none" else (..., 0)
        scored = [self._evaluate(metric, sums, metrics)[unit] for metric in metrics]
        if sums.shape[-4] == 1:
            return tuple(score[..., 0, :] if self.average == "none" else score[..., 0] for score in scored)
        return tuple(score.mean(-2 if self.average == "none" else -1) for score in scored)

    def size(self, sums: Tensor) -> Tensor:
        """The total weight behind the sums of `tally`: of the units, of the matrix, or of all classes' cells."""
        return sums[1] if self.unit != "batch" else sums[0, 0].sum()

    def hard_scores(
        self, input: Any, target: Any, metrics: tuple[Metric, ...], sample_weight: Any = None
    ) -> tuple[Tensor, ...]:
        """The exact scores of hard decisions, after checking the values."""
        return self.scores(self.hard_tally(input, target, metrics, sample_weight), metrics)

    def hard_tally(self, input: Any, target: Any, metrics: tuple[Metric, ...], sample_weight: Any = None) -> Tensor:
        """The float64 sums of hard decisions, after checking the values. Those of several batches can be added."""
        input, target = as_tensor(input), as_tensor(target, "target")
        sample_weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight")
        with torch.no_grad():
            batch = self.read(input, target, sample_weight, exact=True)
            check_values(
                input, target, sample_weight, task=self.task, inputs=self.inputs, ignore_index=self.ignore_index
            )
            return self.tally(batch, Hard(), metrics)

    def count(self, batch: Batch, step: Step, metrics: tuple[Metric, ...]) -> Array:
        """The counts of each threshold and unit: cells, or K×K matrices if a metric reads them."""
        if self.task == "multiclass":
            decision = cast(confusion.decide_class(batch, step, self.offsets), batch.dtype)
            if self.needs_matrix(metrics):
                return confusion.class_matrix(batch, decision, self.unit)[None]
            return confusion.class_cells(batch, decision, self.unit, overlap=self.overlap)
        labels = self.task == "multilabel"
        if self.logit_cuts is not None and isinstance(step, Hard) and batch.logits:
            decision = confusion.decide(batch._replace(logits=False), step, self.logit_cuts, labels=labels)
        else:
            decision = confusion.decide(batch, step, self.cuts, labels=labels)
        decision = cast(decision, batch.dtype)
        return confusion.cells(batch, decision, self.unit, labels=labels, overlap=self.overlap)

    def _sum_units(
        self, metric: Metric, table: Array, metrics: tuple[Metric, ...], weight: Array
    ) -> tuple[Array, Array]:
        """Σ weight·score and Σ weight over the units whose score is defined, for each threshold."""
        scores = self._evaluate(metric, table, metrics)
        absent = undefined(metric, scores, table)
        if absent is not None:
            where = namespace(scores).where
            scores, weight = where(absent, 0.0, scores), where(absent, 0.0, weight)
        return (scores * weight).sum(-1), (weight + 0 * scores).sum(-1)

    def needs_matrix(self, metrics: tuple[Metric, ...]) -> bool:
        return self.task == "multiclass" and any(metric.kind == "matrix" for metric in metrics)

    def _evaluate(self, metric: Metric, table: Array, metrics: tuple[Metric, ...]) -> Array:
        label_weight = self.weight if self.task == "multilabel" else None
        matrix = self.needs_matrix(metrics)
        return evaluate(metric, table, self.task, self.average, matrix=matrix, label_weight=label_weight)


def make_path(
    metrics: tuple[Metric, ...],
    *,
    task: str = "binary",
    average: str | None = None,
    inputs: str = "logits",
    threshold: Any = None,
    ignore_index: int | None = None,
    weight: Any = None,
    per_image: bool = False,
    overlap: str = "expected",
) -> Path:
    """Check the options against each other and build the path; an option that would do nothing is an error."""
    check_task(task, inputs)
    if ignore_index is not None and not is_whole(ignore_index):
        raise TypeError(f"ignore_index must be an integer; got {ignore_index!r}.")
    if not isinstance(per_image, bool):
        raise TypeError(f"per_image must be True or False; got {per_image!r}.")
    if overlap not in _OVERLAPS:
        raise ValueError(f'overlap must be "expected" or "min"; got {overlap!r}.')
    if weight is not None:
        weight = _class_weight(weight, task)
        if task == "multilabel" and average not in (None, "macro"):
            raise ValueError(f"weight weighs the labels of a macro mean and has no effect on average={average!r}.")
        if overlap == "min" and task == "multiclass":
            raise ValueError('weight and overlap="min" cannot be combined: use sample_weight.')
    for metric in metrics:
        if overlap == "min" and metric.kind == "matrix" and task == "multiclass":
            raise ValueError(f'metric {metric.name!r} reads the K×K matrix, for which overlap="min" is not defined.')
    tuned, logit_cuts = hasattr(threshold, "threshold"), None
    if tuned:
        # thresholds of undeclared scores apply to the scores at hand
        units = inputs if threshold.inputs == "scores" else threshold.inputs
        if task != "multiclass" and units == "logits":
            logit_cuts = threshold.threshold
        threshold = _tuned(threshold, task, units)
    return Path(
        task=task,  # type: ignore[arg-type]
        average=_average(average, metrics[0], task, per_image),
        inputs=inputs,  # type: ignore[arg-type]
        cuts=0.5 if task == "multiclass" else _cuts(threshold, task, tuned=tuned),
        offsets=_offsets(threshold) if task == "multiclass" else None,
        ignore_index=ignore_index,
        weight=weight,
        unit="sample" if average == "samples" else "image" if per_image else "batch",
        overlap=overlap,  # type: ignore[arg-type]
        logit_cuts=logit_cuts,
    )


def check_trainable(path: Path) -> None:
    """Raise if a tuned threshold accepts or rejects everything: a smooth step needs one inside (0, 1)."""
    cuts = path.cuts if isinstance(path.cuts, tuple) else (path.cuts,)
    if any(isinstance(cut, float) and not 0 < cut < 1 for cut in cuts):
        raise ValueError(
            "a threshold at the end of all scores can be scored but not trained at; it must lie in (0, 1)."
        )


def _average(average: str | None, metric: Metric, task: str, per_image: bool) -> Average:
    if average is None:
        return "macro"
    if average not in _AVERAGES:
        raise ValueError(f"average must be one of {', '.join(map(repr, _AVERAGES))}; got {average!r}.")
    if task == "binary":
        raise ValueError(
            f"average={average!r} has no effect on a binary task, which has one class to score; leave it out."
        )
    if task == "multiclass" and metric.kind != "class":
        raise ValueError(
            f"metric {metric.name!r} reads all classes at once: there is nothing to average; leave average out."
        )
    if average == "samples" and (task != "multilabel" or per_image):
        raise ValueError('average="samples" scores each row of labels: it needs task="multilabel" and no per_image.')
    if average == "none" and per_image:
        raise ValueError('average="none" and per_image=True cannot be combined.')
    return average  # type: ignore[return-value]


def _class_weight(weight: Any, task: str) -> tuple[float, ...]:
    if task == "binary":
        raise ValueError("weight is for the classes of multiclass and multilabel tasks; for binary use sample_weight.")
    values = as_tuple(weight)
    if not isinstance(values, tuple) or not all(isinstance(w, (int, float)) and 0 <= w < float("inf") for w in values):
        raise ValueError(f"weight must be a flat sequence of finite numbers that are not negative; got {weight!r}.")
    return tuple(map(float, values))


def _offsets(threshold: Any) -> tuple[float, ...] | None:
    threshold = as_tuple(threshold)
    if threshold is None or threshold == "dynamic":
        return None
    if not isinstance(threshold, tuple) or not all(isinstance(o, (int, float)) for o in threshold):
        raise ValueError(
            f"multiclass decides by argmax, so a threshold of {threshold!r} has no meaning; leave it at 'dynamic', or"
            " pass one offset per class."
        )
    if not all(map(math.isfinite, threshold)):
        raise ValueError(f"the offset of a class must be finite; got {threshold!r}.")
    return tuple(map(float, threshold))


def _tuned(threshold: Any, task: str, units: str) -> Any:
    """The thresholds of a `stepless.Tuning` as probabilities."""
    if threshold.task != task:
        raise ValueError(f"the threshold was tuned for task={threshold.task!r}; this is task={task!r}.")
    if task == "multiclass" or units != "logits":
        return threshold.threshold
    cuts = threshold.threshold if isinstance(threshold.threshold, tuple) else (threshold.threshold,)
    # ±inf, which accepts or rejects everything, is kept
    cuts = tuple(c if math.isinf(c) else float(torch.tensor(c, dtype=torch.float64).sigmoid()) for c in cuts)
    return cuts if isinstance(threshold.threshold, tuple) else cuts[0]


def _cuts(threshold: Any, task: str, *, tuned: bool) -> Cuts:
    threshold = as_tuple(threshold)
    if threshold is None:
        return 0.5
    rows = threshold if isinstance(threshold, tuple) else (threshold,)
    nested = any(isinstance(row, tuple) for row in rows)
    if nested and task == "binary":
        raise ValueError("binary thresholds are a number, or a flat sequence to average over; got a nested one.")
    if nested and len({len(row) if isinstance(row, tuple) else 0 for row in rows}) > 1:
        raise ValueError(f"a set of thresholds needs rows of one length, one entry per label; got {threshold!r}.")
    flat = [cut for row in rows for cut in (row if isinstance(row, tuple) else (row,))]
    # a tuned cut may be ±inf, which accepts or rejects everything
    if not flat or not all(
        isinstance(c, (int, float)) and (0 < c < 1 or (tuned and (0 <= c <= 1 or math.isinf(c)))) for c in flat
    ):
        raise ValueError(f"a threshold is a probability strictly between 0 and 1; got {threshold!r}.")
    if nested:
        return tuple(tuple(map(float, row)) for row in rows)
    return tuple(map(float, rows)) if isinstance(threshold, tuple) else float(threshold)


def score(
    input: Any,
    target: Any,
    metric: str | Metric | Ranking | Callable[..., Any],
    *,
    sample_weight: Any = None,
    task: str = "binary",
    average: str | None = None,
    inputs: str = "logits",
    threshold: Any = None,
    ignore_index: int | None = None,
    weight: Any = None,
    per_image: bool = False,
    maximize: bool | None = None,
    **options: Any,
) -> Tensor:
    """Compute the exact metric of hard decisions, equal to scikit-learn's, from tensors or arrays.

    Args:
        input: Scores: ``(N, …)`` for binary, ``(N, labels, …)`` for multilabel, ``(N, K, …)`` for multiclass.
        target: Same shape as the input; for multiclass, class indices ``(N, …)``.
        metric: A name from `stepless.METRICS` or `stepless.RANKINGS`, a formula as text, or a function of
            ``(tp, fp, fn, tn)``.
        sample_weight: One weight per sample, ``(N,)``, or one per pixel.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        average: ``"macro"`` (default), ``"micro"``, ``"weighted"``, ``"samples"`` (multilabel only) or ``"none"``.
        inputs: ``"logits"`` or ``"probabilities"``.
        threshold: Decide positive if the probability is at least this. Other forms: see `stepless.MetricLoss`.
        ignore_index: Entries with this target value are left out. Default for multiclass: −100.
        weight: Class weights (multiclass), or the label weights of the macro mean (multilabel).
        per_image: Score each image separately and average, instead of counting over the whole batch.
        maximize: For formulas only: whether greater is better.
        options: Options of the metric, such as ``beta`` or ``zero_division``.

    Returns:
        A float64 scalar, or with ``average="none"`` one value per class.

    Example:
        >>> import torch
        >>> score(torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1, 1, 0, 0]), "f1").item()
        0.5
        >>> score([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]], [0, 1], "recall", task="multiclass", average="none")
        tensor([1., 0., 0.], dtype=torch.float64)
    """
    ranking = find_ranking(metric)
    if ranking is not None:
        return score_ranking(
            ranking, input, target, sample_weight=sample_weight, options=options, task=task, average=average,
            inputs=inputs, threshold=threshold, ignore_index=ignore_index, weight=weight, per_image=per_image,
            maximize=maximize,
        )  # fmt: skip
    resolved = resolve(metric, maximize=maximize, **options)
    path = make_path(
        (resolved,), task=task, average=average, inputs=inputs, threshold=threshold,
        ignore_index=ignore_index, weight=weight, per_image=per_image,
    )  # fmt: skip
    return path.hard_scores(input, target, (resolved,), sample_weight)[0]
