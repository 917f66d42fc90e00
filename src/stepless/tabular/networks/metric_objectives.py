"""Objectives made of a metric: the metric itself, its blend with cross-entropy, and cross-entropy weighted by it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepless.counts import cells_of
from stepless.kernels.dispatch import Dispatcher
from stepless.kernels.nodes import Objective as Fused
from stepless.loss import MetricLoss
from stepless.schedules import Schedule
from stepless.steps import Step
from stepless.tabular.networks.objectives import CrossEntropy, Objective, mean_loss
from stepless.tasks import Batch, Task

#: The multiplier of a violated constraint when members are judged; in training it is learned.
_JUDGED_MULTIPLIER = 10.0

#: About how many rows the running counts of a cost-weighted objective cover.
_REMEMBERED_ROWS = 4000.0
#: The range of a class's share of the weights, and so of the thresholds that these weights stand for.
_MIN_SHARE, _MAX_SHARE = 0.01, 0.99


class OnMetric(Objective):
    """The metric itself, as the loss of `stepless.MetricLoss`.

    Args:
        metric: As for `stepless.MetricLoss`.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        settings: Further settings of `stepless.MetricLoss`, such as ``step``, ``average`` or ``subject_to``.

    Example:
        >>> objective = OnMetric("f1", "binary")
        >>> objective(torch.tensor([[[9.0], [-9.0]], [[-9.0], [-9.0]]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])).round()
        tensor([0., 1.])
    """

    def __init__(self, metric: Any, task: Task, **settings: Any) -> None:
        super().__init__()
        self.task = task
        self.loss = MetricLoss(metric, task=task, sync=False, **{"blend": 0.0, **settings})  # `Blend` is for blends
        # a loss that keeps state, compares rows with each other or scores each row needs a copy per member
        self.whole = type(self.loss) is MetricLoss and self.loss.path.unit == "batch" and not self._keeps_state()
        self.fused = Dispatcher(self.loss.path, self.loss.metrics, self.loss.step).decisions if self.whole else None
        self.each = nn.ModuleList()
        self.judge = copy.deepcopy(self.loss)
        if self.loss.constraints:
            self.judge.multipliers.fill_(_JUDGED_MULTIPLIER)

    def prepare(self, members: int) -> None:
        if not self.whole:
            self.each = nn.ModuleList(copy.deepcopy(self.loss) for _ in range(members))

    def advance(self, progress: float) -> None:
        for loss in self.each:
            loss.advance(progress)  # type: ignore[operator]

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        if self.whole:
            return self.loss.metric.distance(self.score(logits, target, weight, self.loss.step))
        losses = list(self.each) if self.training else [self.judge.eval()] * len(logits)
        z = logits.squeeze(2) if self.task == "binary" else logits
        weights = [None] * len(z) if weight is None else list(weight)
        return torch.stack([loss(*row) for loss, *row in zip(losses, z, target, weights, strict=True)])

    def differentiated(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.fused is None or not logits.is_cpu:
            return super().differentiated(logits, target, weight)
        return _fused(logits, target.view_as(logits), weight, self.fused)

    def score(self, logits: Tensor, target: Tensor, weight: Tensor | None, step: Step) -> Tensor:
        """The metric of every member's decisions by this step."""
        return self.score_counts(self.count(logits, target, weight, step))

    def count(self, logits: Tensor, target: Tensor, weight: Tensor | None, step: Step) -> Tensor:
        """Every member's counts: cells ``(members, thresholds, 1, classes, 4)``, or matrices ``(members, 1, 1, K, K)``.

        To the composition path, members are images and their rows are pixels.
        """
        path = replace(self.loss.path, unit="image")
        if self.task == "binary":
            scores = logits.squeeze(2)
        else:
            scores, target = logits.mT, target if self.task == "multiclass" else target.mT
        if self.task == "multiclass" and path.weight is not None:
            batch = path.read(scores, target, weight)
        else:
            inner = weight.unsqueeze(1) if weight is not None and self.task == "multilabel" else weight
            batch = Batch(scores, target, inner, None, True, scores.dtype)
        return path.count(batch, step, self.loss.metrics).movedim(1, 0).unsqueeze(2)

    def score_counts(self, table: Tensor) -> Tensor:
        """The metric of every member from its counts."""
        return self.loss.path.scores(table, self.loss.metrics)[0]

    def _keeps_state(self) -> bool:
        loss = self.loss
        return bool(loss.constraints or loss.blending.share or loss.schedule is not None or loss.memory is not None)

    def extra_repr(self) -> str:
        return repr(self.task)


class Blend(Objective):
    """A blend of cross-entropy and the metric, whose weights follow a schedule. Members are judged by the last blend.

    Args:
        metric: What to blend cross-entropy into.
        schedule: The share of cross-entropy over training. Default: from 1 to 0.

    Example:
        >>> Blend(OnMetric("f1", "binary"), Schedule(blend=(1.0, 0.0)))(torch.zeros(1, 4, 1), torch.ones(1, 4))
        tensor([0.6931])
    """

    def __init__(self, metric: OnMetric, schedule: Schedule = Schedule(blend=(1.0, 0.0))) -> None:  # noqa: B008 - frozen
        super().__init__()
        if schedule.blend is None or schedule.sharpness is not None:
            raise ValueError(f"a blend needs a schedule that moves blend and nothing else; got {schedule}.")
        self.task, self.metric, self.schedule = metric.task, metric, schedule
        self.cross_entropy = CrossEntropy(metric.task)
        self.progress = 0.0

    def prepare(self, members: int) -> None:
        self.metric.prepare(members)

    def advance(self, progress: float) -> None:
        self.progress = progress
        self.metric.advance(progress)

    @property
    def share(self) -> float:
        """The current share of cross-entropy."""
        return float(self.schedule.at(self.progress if self.training else 1.0, "blend"))

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        share = self.share
        if share == 0:
            return self.metric(logits, target, weight)
        entropy = self.cross_entropy(logits, target, weight)
        return entropy if share == 1 else (1 - share) * self.metric(logits, target, weight) + share * entropy

    def differentiated(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        share = self.share
        if share in (0, 1):
            return (self.cross_entropy if share else self.metric).differentiated(logits, target, weight)
        pairs = [part.differentiated(logits, target, weight) for part in (self.metric, self.cross_entropy)]
        (losses, slope), (entropy, entropy_slope) = pairs
        return torch.lerp(losses, entropy, share), torch.lerp(slope, entropy_slope, share)

    def extra_repr(self) -> str:
        return repr(self.schedule)


class CostWeighted(Objective):
    """Cross-entropy, weighted by how much each decision is worth to the metric.

    A positive is worth c₊ = ∂M/∂tp − ∂M/∂fn, a negative c₋ = ∂M/∂tn − ∂M/∂fp, at the counts of the member's own
    decisions on recent rows. At threshold ½ this gives the best rule for a linear-fractional metric (Koyejo 2014,
    Parambath 2014). With several classes, a class is worth what a right decision gains over the mean of the wrong ones.
    Members are judged by the metric.

    Args:
        metric: The metric M.

    Example:
        >>> CostWeighted(OnMetric("f1", "binary"))
        CostWeighted(
          (metric): OnMetric(
            'binary'
            (loss): MetricLoss('f1', step=Linear(delta=0.1, width=1.0), sync=False)
            (each): ModuleList()
            (judge): MetricLoss('f1', step=Linear(delta=0.1, width=1.0), sync=False)
          )
          (cross_entropy): CrossEntropy('binary')
        )
    """

    counts: Tensor

    def __init__(self, metric: OnMetric) -> None:
        super().__init__()
        if not metric.whole:
            raise ValueError("costs are read off the counts of a plain metric; this one keeps state or ranks rows.")
        self.task, self.metric, self.cross_entropy = metric.task, metric, CrossEntropy(metric.task)
        self.register_buffer("counts", torch.zeros(0))

    def prepare(self, members: int) -> None:
        self.metric.prepare(members)
        self.counts = torch.zeros(0)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        if not self.training:
            return self.metric(logits, target, weight)
        cost = self._costs(logits.detach(), target, weight)
        return mean_loss(self.cross_entropy.each(logits, target) * cost, weight)

    def differentiated(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        cost = self._costs(logits.detach(), target, weight)
        return self.cross_entropy.differentiated(logits, target, weight, cost)

    def _costs(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        """The cost of every entry, by counts that include this batch."""
        self._update_counts(logits, target, weight)
        share = self._shares()
        if self.task == "multiclass":
            return share.gather(1, target)
        no, yes = (2 * side.view(len(logits), 1, -1) for side in (1 - share, share))
        return (no + (yes - no) * target.view_as(logits)).view_as(target)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        saved = state_dict.get(prefix + "counts")
        if saved is not None:  # the shape is only known after the first batch
            self.counts = torch.zeros_like(saved, device=self.counts.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _update_counts(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Update the running counts with the decisions at ½, or for the most probable class."""
        if self.task == "multiclass":
            classes = logits.shape[2]
            truth, decided = (F.one_hot(x, classes).to(logits.dtype) for x in (target, logits.argmax(2)))
        else:
            truth, decided = target.view_as(logits), (logits >= 0).to(logits.dtype)
        weighed = truth if weight is None else truth * weight.unsqueeze(2)
        if self.task == "multiclass":
            fresh = torch.bmm(weighed.mT, decided)
        else:
            yes = decided if weight is None else decided * weight.unsqueeze(2)
            tp, predicted, support = (yes * truth).sum(1), yes.sum(1), weighed.sum(1)
            total = logits.shape[1] if weight is None else weight.sum(1, keepdim=True)
            # a difference of sums may round to just below 0
            fresh = torch.stack([tp, predicted - tp, support - tp, total - support - predicted + tp], -1).clamp_(min=0)
        keep = _REMEMBERED_ROWS / (_REMEMBERED_ROWS + logits.shape[1])
        self.counts = fresh if self.counts.shape != fresh.shape else torch.lerp(fresh, self.counts, keep)

    def _shares(self) -> Tensor:
        """The positives' share of the worth, ``(members, labels)``, or the weight of every class, ``(members, K)``."""
        gains = self._gains()
        if self.task == "multiclass":
            off = gains.sum(2) - gains.diagonal(0, 1, 2)
            worth = gains.diagonal(0, 1, 2) - off / (gains.shape[2] - 1)
        else:
            worth = torch.stack([gains[..., 0] - gains[..., 2], gains[..., 3] - gains[..., 1]], -1)
        worth = torch.nan_to_num(worth, nan=0.0, posinf=1e6).clamp_(min=1e-9)  # without any worth, all weigh the same
        share = (worth / worth.sum(-1, keepdim=True)).clamp_(_MIN_SHARE, _MAX_SHARE)
        return share * share.shape[-1] if self.task == "multiclass" else share[..., 0]

    def _gains(self) -> Tensor:
        """The gain of one more row in each cell: minus the gradient of the loss at the counts."""
        if self.metric.fused is not None and self.task == "binary":
            slopes = [self.metric.fused.differentiate(*cells)[1:] for cells in self.counts[:, 0].tolist()]
            return -self.counts.new_tensor(slopes).unsqueeze(1)
        with torch.enable_grad():
            counts = self.counts.double().requires_grad_()
            table = counts[:, None, None]
            if self.task == "multiclass" and not any(m.kind == "matrix" for m in self.metric.loss.metrics):
                table = cells_of(table)
            loss = self.metric.loss.metric.distance(self.metric.score_counts(table))
            return -torch.autograd.grad(loss.sum(), counts)[0].to(self.counts.dtype)


#: From this many members times labels on, numpy computes their losses together.
_VECTORISED = 16


@torch.no_grad()
def _fused(z: Tensor, y: Tensor, weight: Tensor | None, objective: Fused) -> tuple[Tensor, Tensor]:
    """Compute the losses of all members, and their gradients, from yes/no logits ``(members, rows, labels)``."""
    decision, slope, spare = (torch.empty_like(z) for _ in range(3))
    scale, steepness = objective.step.linearise_logits(z, objective.tau, decision, slope, spare)
    wide: Any = {"dim": 1, "dtype": torch.float64}
    truth: Tensor = y
    total: Any = float(z.shape[1])
    if weight is not None:
        w = weight.unsqueeze(2)
        slope.mul_(w)
        truth, total = y * w, w.sum(**wide).numpy()
        decided = torch.mul(decision, w, out=spare).sum(**wide)
    else:
        decided = decision.sum(**wide)
    support = truth.sum(**wide).numpy()
    tp = scale * decision.mul_(truth).sum(**wide).numpy()
    cells = _cells(tp, scale * decided.numpy(), support, total)
    if tp.size < _VECTORISED:
        each = zip(*(cell.ravel().tolist() for cell in cells), strict=True)
        found = np.array([objective.differentiate(*four) for four in each]).T.reshape(5, *tp.shape)
    else:
        found = np.stack([np.broadcast_to(part, tp.shape) for part in objective.differentiate_each(*cells)])
    losses, *slopes = found
    share = np.array(objective.label_weight or (1.0,) * z.shape[2])
    share *= steepness / share.sum()
    hit, alarm = (slopes[0] - slopes[2]) * share, (slopes[1] - slopes[3]) * share
    worth = torch.from_numpy(np.stack([alarm, hit - alarm]).astype(np.float32)).unsqueeze(2)
    # a positive's decision is worth "hit", a negative's "alarm"
    slope.mul_(torch.addcmul(worth[0], y, worth[1], out=spare))
    return torch.from_numpy((losses @ (share / steepness)).astype(np.float32)), slope


def _cells(tp: Any, predicted: Any, support: Any, total: Any) -> tuple[Any, Any, Any, Any]:
    """The four cells; one that is smaller than the rounding error of its terms is 0."""
    eps = 4 * float(np.finfo(np.float32).eps)
    fp, fn = predicted - tp, support - tp
    tn = total - support - fp
    return (
        tp,
        fp * (np.abs(fp) >= eps * predicted),
        fn * (np.abs(fn) >= eps * support),
        tn * (np.abs(tn) >= eps * total),
    )
