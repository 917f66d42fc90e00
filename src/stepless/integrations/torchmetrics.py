"""`EpochScore`: any metric of stepless as a `torchmetrics.Metric`; needs the extra ``torchmetrics``.

The counts are the state, so that batches and ranks merge exactly: the mean of the batches' scores is not the score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepless.formula import resolve
from stepless.loss import MetricLoss, RankingLoss
from stepless.ranking import Ranker, Ranking, find_ranking, make_ranker
from stepless.registry import Metric
from stepless.scoring import Path, make_path

try:
    import torchmetrics
    from torchmetrics.utilities import dim_zero_cat
except ModuleNotFoundError as error:
    if error.name != "torchmetrics":
        raise
    raise ModuleNotFoundError(
        'EpochScore needs torchmetrics: pip install "stepless[torchmetrics]"', name="torchmetrics"
    ) from None

#: What every `torchmetrics.Metric` takes; all else belongs to the metric.
_OF_TORCHMETRICS = (
    "compute_on_cpu", "compute_with_cache", "dist_sync_fn", "dist_sync_on_step", "distributed_available_fn",
    "process_group", "sync_on_compute",
)  # fmt: skip
_SETTINGS = ("task", "average", "inputs", "threshold", "ignore_index", "weight", "per_image")


class EpochScore(torchmetrics.Metric):
    """The hard metric of all batches since the last reset, over all ranks: what `stepless.score` says of their rows.

    A metric of counts keeps the counts, whatever the number of rows. One of the ranking (``"auroc"``, …) compares rows
    with one another, so it keeps every row's scores until it is reset.

    Args:
        metric: As for `stepless.score`; or a `stepless.MetricLoss`, whose settings are taken over.
        classes: How many classes or labels there are: needed for multiclass and multilabel tasks, unless the metric
            is one of the ranking, so that all ranks agree on the counts before the first batch.
        maximize: For formulas: whether greater is better.
        settings: Those of `stepless.score` (``task``, ``average``, ``threshold``, …), options of the metric, and what
            every `torchmetrics.Metric` takes (``process_group``, ``sync_on_compute``, …).

    Example:
        >>> f1 = EpochScore("f1")
        >>> f1.update(torch.tensor([2.0, -1.0]), torch.tensor([1, 1]))
        >>> f1.update(torch.tensor([0.5, -3.0]), torch.tensor([0, 0]))
        >>> f1.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    is_differentiable = False
    full_state_update = False
    counts: Tensor
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
            for name in ("preds", "target", "sample_weight"):
                self.add_state(name, [], dist_reduce_fx="cat")
        else:
            self.add_state("counts", _no_counts(self.path, self.metric, classes), dist_reduce_fx="sum")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether greater is better."""
        return getattr(self.metric, "greater_is_better", True)

    def update(self, preds: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch; its values are checked."""
        if isinstance(self.path, Ranker):
            self.path.read(preds, target, sample_weight)
            self.path.check(preds, target, sample_weight)
            self.preds.append(preds)
            self.target.append(target)
            self.sample_weight.append(preds.new_ones(len(preds)) if sample_weight is None else sample_weight)
            return
        counts = self.path.hard_tally(preds, target, (self.metric,), sample_weight)
        if counts.shape != self.counts.shape:
            raise ValueError(
                f"classes={self.classes}, but these scores have {preds.shape[1]} classes or labels (dimension 1)."
            )
        self.counts = self.counts + counts

    def compute(self) -> Tensor:
        """The score, in float64."""
        if not isinstance(self.path, Ranker):
            return self.path.scores(self.counts, (self.metric,))[0]
        if not self.update_called and not len(self.preds):
            raise RuntimeError(f"{self.metric.name!r} of no rows is not defined; update it with a batch first.")
        return self.path.score(*(dim_zero_cat(rows) for rows in (self.preds, self.target, self.sample_weight)))

    def extra_repr(self) -> str:
        """The metric, and its options."""
        return ", ".join([repr(self.metric.name), *(f"{name}={value!r}" for name, value in self.metric.options)])


def _settle(metric: Any, maximize: bool | None, settings: dict[str, Any]) -> tuple[Any, Any]:
    """The path (or ranker) of these settings, and the metric."""
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


def _no_counts(path: Path, metric: Metric, classes: int | None) -> Tensor:
    """The counts of no rows at all."""
    if path.task == "binary":
        if classes is not None:
            raise ValueError(f"classes={classes} has no effect on a binary task; leave it out.")
        return path.hard_tally(torch.zeros(0), torch.zeros(0), (metric,))
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
        raise ValueError(
            f"a {path.task} task needs classes=, how many classes or labels there are, so that all ranks agree on the"
            f" counts before the first batch; got {classes!r}."
        )
    target = torch.zeros(0, dtype=torch.long) if path.task == "multiclass" else torch.zeros(0, classes)
    return path.hard_tally(torch.zeros(0, classes), target, (metric,))
