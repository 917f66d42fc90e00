"""`tune_threshold`: the threshold, thresholds or class offsets that score best on given data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch

from stepless.constraints import parse_constraints
from stepless.counts import Counts
from stepless.cuts.labels import LabelData
from stepless.cuts.offsets import ClassData
from stepless.cuts.sweep import Floats, outcomes, reachable, score_counts, sweep
from stepless.cuts.tuning import Data, Job, Tuning, best_cut
from stepless.formula import resolve
from stepless.numerics import check_unmasked, is_whole
from stepless.ranking import find_ranking
from stepless.registry import Metric
from stepless.scoring import make_path

ScoreInputs = Literal["scores", "probabilities", "logits"]


def tune_threshold(
    scores: Any,
    target: Any,
    metric: str | Metric | Callable[..., Any] = "f1",
    subject_to: Any = None,
    sample_weight: Any = None,
    *,
    task: str = "binary",
    average: str | None = None,
    inputs: str = "scores",
    maximize: bool | None = None,
    restarts: int = 4,
    random_state: int = 0,
    **options: Any,
) -> Tuning:
    """Find the threshold with the best score, over every distinct cut.

    Binary: the result is exact. Multilabel: one threshold per label. Macro and weighted averages are exact, except with
    ``zero_division=nan``, where leaving one label undefined may raise the mean of the others. Micro and samples
    averages are searched: one label at a time is swept exactly, from several starts, until nothing improves
    (`stepless.cuts.labels`). Multiclass: one offset per class, from the same kind of search
    (`stepless.cuts.offsets`), never worse than plain argmax. On very small problems every rule is tried.

    Of equally good cuts, the one with the widest gap around it is chosen. Constant scores, also of one label, only
    allow yes or no to everything: a threshold of −inf or inf. A label without positives, or without negatives, is tuned
    like any other; if every cut scores the same, the answer is no (inf). Constant class probabilities lead to offsets
    that assign every row to one class.

    Args:
        scores: ``(N,)`` for binary, ``(N, labels)`` for multilabel, ``(N, K)`` for multiclass.
        target: ``(N,)`` of 0 and 1, ``(N, labels)`` of 0 and 1, or ``(N,)`` class indices.
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        subject_to: Constraints, such as ``"precision >= 0.9"``, joined by ``and`` or in a list. With multilabel macro
            or weighted averages, every label must meet them.
        sample_weight: One weight per row.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        average: ``"macro"`` (default), ``"micro"``, ``"weighted"`` or ``"samples"`` (multilabel only).
        inputs: What the scores are: ``"scores"`` (any numbers; the threshold is in their units), ``"probabilities"`` or
            ``"logits"``. Multiclass needs one of the last two.
        maximize: For formulas only: whether greater is better. By default this is found by trying the formula.
        restarts: How many random starts the multiclass search makes.
        random_state: Seed of these starts.
        options: Options of the metric, such as ``beta``.

    Returns:
        A `Tuning`.

    Raises:
        ValueError: If the target has one class only (binary and multiclass); for NaN, lengths that do not match, values
            out of range, no rows or no weight; and if no rule meets the constraints. The message then gives the best
            attainable value, or the best value found if not all rules were tried.
        TypeError: If scores, targets or weights are not numbers.

    Example:
        >>> scores, target = [0.125, 0.5, 0.25, 0.75], [0, 0, 1, 1]
        >>> tuned = tune_threshold(scores, target, "f1")
        >>> tuned.threshold, tuned.score
        (0.1875, 0.8)
        >>> tune_threshold(scores, target, "recall", subject_to="precision >= 0.9").threshold
        0.625
    """
    ranking = find_ranking(metric)
    if ranking is not None:
        raise ValueError(f"{ranking.name!r} reads the order of the scores, which no threshold changes; tune a metric.")
    resolved = resolve(metric, maximize=maximize, **options)
    constraints = parse_constraints(subject_to)
    path = make_path((resolved, *(c.metric for c in constraints)), task=task, average=average)
    if average == "none":
        raise ValueError('average="none" gives one score per class; tune a single number, such as average="macro".')
    if inputs not in get_args(ScoreInputs):
        raise ValueError(f'inputs must be "scores", "probabilities" or "logits"; got {inputs!r}.')
    if not is_whole(restarts) or restarts < 0:
        raise ValueError(f"restarts must be a whole number from 0 up; got {restarts!r}.")
    x, y, w = _read(scores, target, sample_weight, task, inputs)
    job = Job(resolved, constraints, task, path.average, inputs, restarts, random_state)
    kinds: dict[str, type[BinaryData | LabelData | ClassData]]
    kinds = {"binary": BinaryData, "multilabel": LabelData, "multiclass": ClassData}
    return kinds[task](job, x, y, w).tune()


def _read(
    scores: Any, target: Any, sample_weight: Any, task: str, inputs: str
) -> tuple[Floats, np.ndarray[Any, Any], Floats | None]:
    """Convert to arrays and check shapes and values; multiclass scores become log-probabilities."""
    x, y = _array(scores, "scores"), _array(target, "target")
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    if task == "binary" and x.shape[1:] == (1,):
        x = x[:, 0]
    if task != "multilabel" and y.shape[1:] == (1,):
        y = y[:, 0]
    wanted = {"binary": "(N,)", "multilabel": "(N, labels)", "multiclass": "(N, K) with K ≥ 2"}[task]
    if x.ndim != (1 if task == "binary" else 2) or (task == "multiclass" and x.shape[1] < 2):
        hint = ""
        if task == "binary" and x.ndim == 2:
            hint = " Pass the positive class's column, as in scores[:, 1], or name another task."
        raise ValueError(f"{task} scores must have shape {wanted}; got {x.shape}.{hint}")
    if y.shape != (x.shape if task == "multilabel" else x.shape[:1]):
        what = "labels" if x.shape[:1] == y.shape[:1] else "rows"
        raise ValueError(f"scores and target must have as many {what}; got {x.shape} and {y.shape}.")
    if x.size == 0:
        raise ValueError("there is nothing to tune on: scores are empty.")
    if np.isnan(x).any():
        raise ValueError(f"scores must not be NaN; {int(np.isnan(x).sum())} of {x.size} are.")
    w = None if sample_weight is None else _read_weight(sample_weight, len(x))
    if w is not None and not (weighs := w > 0).all():  # a row of weight 0 must not move a midpoint
        x, y, w = x[weighs], y[weighs], w[weighs]
        if len(x) == 0:
            raise ValueError("there is nothing to tune on: every sample_weight is 0.")
    if task == "multiclass":
        return _read_classes(x, y, inputs), y.astype(np.int64), w
    if inputs == "probabilities" and ((x < 0) | (x > 1)).any():
        raise ValueError("probabilities must lie in [0, 1]; for other numbers pass inputs='scores' or 'logits'.")
    return x, _read_yes_no(y), w


def _array(values: Any, name: str) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # numpy has no bfloat16
    check_unmasked(values, name)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be one array of numbers; got rows of different lengths.") from None
    if array.dtype.kind not in "fiub":
        hint = ""
        if name == "target":
            hint = (
                ' Binary: compare with the positive label, as in (target == "yes"). Multiclass: pass the labels\''
                " indices in the order of the scores' columns."
            )
        raise TypeError(f"{name} must hold numbers; got {array.dtype}.{hint}")
    return array


def _read_weight(sample_weight: Any, rows: int) -> Floats:
    weight = _array(sample_weight, "sample_weight").astype(np.float64)
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight must have one entry per row, shape {(rows,)}; got {weight.shape}.")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError("sample_weight must be finite and not negative.")
    with np.errstate(over="ignore"):
        if not np.isfinite(weight.sum()):  # counts would be infinite
            raise ValueError("sample_weight must have a finite sum; divide it by its largest value.")
    return weight


def _read_yes_no(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not ((y >= 0) & (y <= 1)).all():
        raise ValueError(
            "targets must be 0 or 1, or probabilities between them. For labels -1 and 1 pass (target > 0); for class"
            " indices pass task='multiclass'."
        )
    return y.astype(bool) if y.dtype.kind != "f" or np.isin(y, (0, 1)).all() else y.astype(np.float64)


def _read_classes(x: Floats, y: np.ndarray[Any, Any], inputs: str) -> Floats:
    if inputs == "scores":
        raise ValueError("multiclass tuning works on probabilities: pass inputs='probabilities' or inputs='logits'.")
    if y.dtype.kind not in "iu" or ((y < 0) | (y >= x.shape[1])).any():
        raise ValueError(f"targets must be integer class indices in [0, {x.shape[1]}); got {y[:3]}….")
    x = x.astype(np.float64)
    if inputs == "logits":
        if (x == np.inf).any() or (x == -np.inf).all(1).any():
            raise ValueError("multiclass logits may be -inf (a class ruled out) but not +inf, nor -inf throughout.")
        return x
    if (x < 0).any() or (np.abs(x.sum(1) - 1) > 1e-2).any():
        raise ValueError("class probabilities must lie in [0, 1] and sum to 1; for raw scores pass inputs='logits'.")
    return torch.log(torch.from_numpy(x)).numpy()


class BinaryData(Data):
    """Scores and targets ``(N,)``."""

    def tune(self) -> Tuning:
        """Find the best of all cuts."""
        if not ((self.y > 0).any() and (self.y < 1).any()):
            only = int(bool((self.y > 0).any()))
            raise ValueError(f"the target has one class only ({only}): no threshold can be told from another.")
        swept, job = reachable(sweep(self.x, self.y, self.w)), self.job
        entry = best_cut(job, swept)
        counts = swept.at(entry)
        value, counts = float(score_counts(job.metric, counts)), Counts(*map(float, counts))
        return Tuning(swept.threshold(entry), value, counts, job.task, job.inputs, (swept,), job.metric, self)

    def score(self, threshold: float) -> float:
        """Compute the metric of "score ≥ threshold"."""
        counts = Counts(*(self.weight @ cell for cell in outcomes(self.x >= threshold, self.y)))
        return float(score_counts(self.job.metric, counts))
