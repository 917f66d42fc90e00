"""`EpochScore`: any metric of stepless as a `torchmetrics.Metric`; needs the extra ``torchmetrics``.

The state is the counts, so batches and ranks merge exactly: the mean of the batches' scores is not the score.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from stepless.extras import needs
from stepless.formula import resolve
from stepless.loss import MetricLoss, RankingLoss
from stepless.ranking import Ranker, Ranking, find_ranking, make_ranker
from stepless.registry import Metric
from stepless.safe_counts import SafeFormula
from stepless.scoring import Path, make_path
from stepless.steps import Hard

with needs("EpochScore needs torchmetrics", "torchmetrics", "torchmetrics"):
    import torchmetrics
    from torchmetrics.utilities import dim_zero_cat
    from torchmetrics.utilities.distributed import gather_all_tensors

#: Options of every `torchmetrics.Metric`; all others are settings of the score.
_OF_TORCHMETRICS = (
    "compute_on_cpu", "compute_with_cache", "dist_sync_fn", "dist_sync_on_step", "distributed_available_fn",
    "process_group", "sync_on_compute",
)  # fmt: skip
_ROWS = ("preds", "target", "sample_weight")  #: the state of a metric of the ranking
_SETTINGS = ("task", "average", "inputs", "threshold", "ignore_index", "weight", "per_image")


class EpochScore(torchmetrics.Metric):
    """The exact metric of all batches since the last reset, over all ranks: `stepless.score` of all their rows.

    A metric of counts stores only the counts. A metric of the ranking (``"auroc"``, …) compares rows with one another,
    so it stores the scores of every row until it is reset.

    Args:
        metric: As for `stepless.score`; or a `stepless.MetricLoss`, whose settings are used.
        classes: The number of classes or labels. Multiclass and multilabel tasks need it, unless the metric is one of
            the ranking, so that all ranks agree on the counts before the first batch.
        maximize: For formulas only: whether greater is better.
        settings: Those of `stepless.score` (``task``, ``average``, ``threshold``, …), options of the metric, and those
            of every `torchmetrics.Metric` (``process_group``, ``sync_on_compute``, …).

    Example:
        >>> f1 = EpochScore("f1")
        >>> f1.update(torch.tensor([2.0, -1.0]), torch.tensor([1, 1]))
        >>> f1.update(torch.tensor([0.5, -3.0]), torch.tensor([0, 0]))
        >>> f1.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    is_differentiable = False
    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]
    sample_weight: list[Tensor]

    def __init__(
        self,
        metric: str | Metric | Ranking | Callable[..., Any] | MetricLoss,
        *,
        classes: int | None = None,
        maximize: bool | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**{name: settings.pop(name) for name in _OF_TORCHMETRICS if name in settings})
        self.path, self.metric = _settle(metric, maximize, settings)
        self.classes = classes
        if isinstance(self.path, Ranker):
            if classes is not None:
                raise ValueError(f"classes= has no effect on {self.metric.name!r}, which has no counts; leave it out.")
            for name in _ROWS:
                self.add_state(name, [], dist_reduce_fx="cat")
        else:
            self._counts = _state_name(self.path, self.metric)
            self.add_state(self._counts, _no_counts(self.path, self.metric, classes), dist_reduce_fx="sum")

    @property
    def counts(self) -> Tensor:
        """The counts of all batches so far. A metric of the ranking has none."""
        return getattr(self, self._counts)

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether greater is better."""
        return getattr(self.metric, "greater_is_better", True)

    def update(self, preds: Tensor, target: Tensor, sample_weight: Tensor | None = None, *, check: bool = True) -> None:
        """Add a batch. Checking values waits for the device; with ``check=False`` a NaN score makes the result NaN."""
        if isinstance(self.path, Ranker):
            self.path.read(preds, target, sample_weight)
            if check:
                self.path.check(preds, target, sample_weight)
            for name, rows in zip(_ROWS, _rows(preds, target, sample_weight, self.path.task), strict=True):
                getattr(self, name).append(rows.detach())  # a batch's graph ends with the batch
            return
        counts = (self.path.hard_tally if check else self._unchecked)(preds, target, (self.metric,), sample_weight)
        if counts.shape != self.counts.shape:
            raise ValueError(
                f"classes={self.classes}, but these scores have {preds.shape[1]} classes or labels (dimension 1)."
            )
        setattr(self, self._counts, self.counts + counts)

    def compute(self) -> Tensor:
        """Compute the score, in float64."""
        if not isinstance(self.path, Ranker):
            return self.path.scores(self.counts, (self.metric,))[0]
        if not self.update_called and not len(self.preds):
            raise RuntimeError(f"{self.metric.name!r} of no rows is not defined; update it with a batch first.")
        rows = [dim_zero_cat(getattr(self, name)) for name in _ROWS]
        batch = self.path.read(*rows, exact=True)
        if batch.scores.isnan().any():  # of a batch that was not checked
            shape = rows[0].shape[1:] if self.path.average == "none" else ()
            return torch.full(shape, math.nan, dtype=batch.dtype, device=rows[0].device)
        return self.path.score(*rows)

    def _unchecked(
        self, preds: Tensor, target: Tensor, metrics: tuple[Metric, ...], sample_weight: Tensor | None
    ) -> Tensor:
        """Count like `Path.hard_tally` but without checking values: a NaN score makes all counts NaN."""
        with torch.no_grad():
            batch = self.path.read(preds, target, sample_weight, exact=True)
            # NaN ≥ threshold is False, which would hide it
            return torch.where(batch.scores.isnan().any(), math.nan, self.path.tally(batch, Hard(), metrics))

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        """Give a rank without rows empty ones of the others' dtypes and shapes, which torchmetrics needs to gather."""
        if isinstance(self.path, Ranker) and torch.distributed.is_initialized():
            group = process_group or self.process_group
            held = [getattr(self, name) for name in _ROWS if len(getattr(self, name))]
            first = [rows if isinstance(rows, Tensor) else rows[0] for rows in held]
            kinds: list[Any] = [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(kinds, [(rows.dtype, rows.shape[1:]) for rows in first], group)
            theirs = next((kind for kind in kinds if kind), None)
            if not held and theirs is not None:
                for name, (dtype, shape) in zip(_ROWS, theirs, strict=True):
                    setattr(self, name, [torch.zeros((0, *shape), dtype=dtype, device=self.device)])
        super()._sync_dist(dist_sync_fn, process_group)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> torch.nn.Module:
        """Move to another device but keep the dtypes: in bfloat16 counts would end at 256."""

        def move(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=tensor.device)).device
            narrow = device.type == "mps" and tensor.dtype == torch.float64  # MPS has no float64
            return tensor.to(device, torch.float32 if narrow else tensor.dtype)

        return super()._apply(move, exclude_state)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one score or several, as other torchmetrics do. This needs matplotlib.

        Args:
            val: A result of `compute` or ``forward``, or a list of them. Default: what `compute` returns now.
            ax: A matplotlib axes to draw into.
        """
        return self._plot(val, ax)

    def extra_repr(self) -> str:
        """Return the metric's name and options."""
        return ", ".join([repr(self.metric.name), *(f"{name}={value!r}" for name, value in self.metric.options)])


def _settle(metric: Any, maximize: bool | None, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return the path or ranker of these settings, and the metric."""
    if isinstance(metric, MetricLoss):
        if settings or maximize is not None:
            given = ", ".join([*settings, *(["maximize"] if maximize is not None else [])])
            raise TypeError(f"a MetricLoss brings its own settings; give them to the loss, and leave out {given}.")
        return (metric.ranker if isinstance(metric, RankingLoss) else metric.path), metric.metric
    chosen = {name: settings.pop(name) for name in _SETTINGS if name in settings}
    ranking = find_ranking(metric)
    if ranking is not None:
        ranker = make_ranker(ranking, settings, training=False, maximize=maximize, **chosen)
        return ranker, ranker.ranking
    resolved = resolve(metric, maximize=maximize, **settings)
    return make_path((resolved,), **chosen), resolved


def _rows(preds: Tensor, target: Tensor, sample_weight: Tensor | None, task: str) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten pixels into rows, so that batches may hold images of different sizes."""
    classes = () if task == "binary" else preds.shape[1:2]

    def flat(values: Tensor) -> Tensor:
        return values.movedim(1, -1).reshape(-1, *classes) if classes else values.reshape(-1)

    scores, indices = flat(preds), task == "multiclass" and target.dim() < preds.dim()
    labels = target.reshape(-1) if indices else flat(target.reshape(preds.shape))
    if sample_weight is None:
        return scores, labels, scores.new_ones(len(scores))
    pixels = preds.shape[1 + len(classes) :].numel()
    each = sample_weight.reshape(len(preds), 1 if sample_weight.dim() == 1 else pixels)  # per sample, or per pixel
    return scores, labels, each.expand(-1, pixels).reshape(-1)


def _state_name(path: Path, metric: Metric) -> str:
    """Name the state after everything the counts depend on.

    A `torchmetrics.MetricCollection` takes metrics for copies of one another, and updates only one of them, if their
    states have the same names and, after the first batch, the same values.
    """
    kind: Any = metric.kind == "matrix"
    if path.unit != "batch":  # sums of scores belong to the metric, and formulas may share a name
        kind = metric, id(metric.function) if isinstance(metric.function, SafeFormula) else 0
    return f"counts_{hashlib.sha256(repr((path, kind)).encode()).hexdigest()[:16]}"


def _no_counts(path: Path, metric: Metric, classes: Any) -> Tensor:
    """Return the counts of no rows."""
    if path.task == "binary":
        if classes is not None:
            raise ValueError(f"classes={classes} has no effect on a binary task; leave it out.")
        return path.hard_tally(torch.zeros(0), torch.zeros(0), (metric,))
    if isinstance(classes, bool) or not isinstance(classes, Integral) or classes < 1:  # numpy integers count
        raise ValueError(
            f"a {path.task} task needs classes=, how many classes or labels there are, so that all ranks agree on the"
            f" counts before the first batch; got {classes!r}."
        )
    scores = torch.zeros(0, int(classes))
    target = torch.zeros(0, dtype=torch.long) if path.task == "multiclass" else scores
    return path.hard_tally(scores, target, (metric,))
