"""What each decision is worth to a metric, and the gradients and hessians for boosting that follow from it.

Boosting needs a gradient and a hessian of every row. A metric of the confusion matrix depends on the rows only through
the counts, so there are two steps. `Costs.count` adds up soft counts, and `Costs.worth` computes from them what each
decision gains: K×K numbers. Given these, `Costs.derivatives` treats each row by itself, so a library may ask for the
rows in blocks.

```text
 scores ─count─▶ counts (K×K) ─worth─▶ worth (K×K) ─derivatives─▶ gradient, hessian of each row
```

``form="cost"`` is the cost-weighted cross-entropy Σᵢ wᵢ Σ_b worth[yᵢ, b] · (−log p_b). For two classes the worth of a
positive is c₊ = ∂M/∂tp − ∂M/∂fn and of a negative c₋ = ∂M/∂tn − ∂M/∂fp; the share c₊ / (c₊ + c₋) is kept in [.01, .99].
With these weights, the decision at ½ is the optimal rule of a linear-fractional metric (Koyejo et al. 2014, Parambath
et al. 2014). With several classes, a class is worth what the right decision gains over the mean of the wrong ones. A
metric of the whole matrix fills the table: each decision is worth what it gains over the worst one.

``form="metric"`` is the soft metric itself, −Σᵢ wᵢ Σ_b worth[yᵢ, b] · decision_b. Its gradient at the present counts is
proportional to that of the metric.

Hessians are positive and scaled like those of plain cross-entropy, which the libraries' minimum leaf weights assume:
the worths of the rows have a weighted mean of 1. The cost form has the hessian of cross-entropy, worth · p(1 − p), for
several classes times K/(K − 1), as in LightGBM. The metric form is not convex; its hessian is set to worth / 4, the
largest that cross-entropy's can be, and sums to n / 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from stepless.averaging import Average, evaluate
from stepless.confusion import class_matrix, decide_class
from stepless.kernels.derivatives import differentiators
from stepless.registry import Metric
from stepless.scoring import make_path
from stepless.steps import Identity, Linear
from stepless.tasks import Batch, Task

Floats = NDArray[np.float64]
Form = Literal["cost", "metric", "cross_entropy"]

#: Bounds on the share of one class in the total worth, as partial derivatives can be 0 or infinite.
LEAST_SHARE, GREATEST_SHARE = 0.01, 0.99
#: The least hessian of a row: the libraries divide by sums of them.
_LEAST_HESSIAN = 1e-6
#: The prior probability of classes without rows.
_LEAST_PRIOR = 1e-6
#: The step of soft counts: gentle, yet close to the hard decisions.
_STEP = Linear()


@dataclass(frozen=True)
class Costs:
    """A metric in the form that gradient boosting needs; see the module.

    Args:
        metric: The metric, its options bound.
        task: ``"binary"`` or ``"multiclass"``.
        classes: The number of classes; 2 for a binary task.
        average: How classes are averaged.
        form: ``"cost"``, ``"metric"``, or ``"cross_entropy"``, for which all rows are worth the same.

    Example:
        >>> from stepless.metrics import METRICS
        >>> costs = Costs(METRICS["f1"])
        >>> costs.worth(np.array([[80.0, 10.0], [4.0, 6.0]])).round(2)  # F1 is .46: a positive is worth 3.3 negatives
        array([[0.81, 0.  ],
               [0.  , 2.7 ]])
    """

    metric: Metric
    task: Task = "binary"
    classes: int = 2
    average: Average = "macro"
    form: Form = "cost"

    def __post_init__(self) -> None:
        if self.task == "multilabel":
            raise ValueError('boosting knows the tasks "binary" and "multiclass"; for labels, fit one model per label.')
        if self.form not in get_args(Form):
            raise ValueError(f"form must be one of {', '.join(map(repr, get_args(Form)))}; got {self.form!r}.")
        if self.average in ("none", "samples"):
            raise ValueError(f"boosting follows one score; average={self.average!r} gives one for each class or row.")
        if self.classes < 2 or (self.task == "binary" and self.classes != 2):
            raise ValueError(f"a {self.task} task of {self.classes} classes cannot be boosted.")
        make_path((self.metric,), task=self.task, average=None if self.average == "macro" else self.average)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: a traced formula is code, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def outputs(self) -> int:
        """The number of scores per row: 1, or one per class."""
        return 1 if self.task == "binary" else self.classes

    # -----------------------------------------------------------------------------------------------------------------
    # From scores to counts, to worth
    # -----------------------------------------------------------------------------------------------------------------

    def initial(self, target: NDArray[np.int64], weight: Floats | None = None) -> Floats:
        """The initial scores ``(outputs,)``: the prior log-odds, or the log class shares."""
        shares = np.bincount(target, weight, minlength=self.classes).astype(np.float64)
        shares = np.maximum(shares / shares.sum(), _LEAST_PRIOR)
        logs = np.log(shares / shares.sum())
        return logs[1:] - logs[:1] if self.task == "binary" else logs

    def link(self, scores: Floats) -> Floats:
        """Probabilities of the classes, ``(N, K)``."""
        if self.task == "binary":
            p = _sigmoid(scores)
            return np.stack([1 - p, p], 1)
        p = np.exp(scores - scores.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def count(self, scores: Floats, target: NDArray[np.int64], weight: Floats | None = None) -> Floats:
        """Soft counts ``(K, K)``, rows the truth. Counts of blocks of rows can be added."""
        if self.task == "binary":
            yes = self._decide(scores)[0]
            yes = yes if weight is None else yes * weight
            both = np.bincount(target, weight, minlength=2)
            fp, tp = np.bincount(target, yes, minlength=2)
            return np.array([[both[0] - fp, fp], [both[1] - tp, tp]])
        w = None if weight is None else torch.from_numpy(np.ascontiguousarray(weight, np.float64))
        z, y = torch.from_numpy(np.array(scores, np.float64)), torch.from_numpy(np.array(target, np.int64))
        batch = Batch(z, y, w, None, True, torch.float64)
        # the metric form differentiates the softmax itself
        decision = decide_class(batch, Identity() if self.form == "metric" else _STEP, None)
        return class_matrix(batch, decision, "batch")[0].numpy()

    def score(self, scores: Floats, target: NDArray[np.int64], weight: Floats | None = None) -> float:
        """The metric of the decisions at ½, or of the largest score; its sign is flipped if lower is better."""
        decided = (scores >= 0).astype(np.int64) if self.task == "binary" else scores.argmax(1)
        cells = np.bincount(target * self.classes + decided, weight, minlength=self.classes**2).astype(np.float64)
        value = float(self._evaluate(cells.reshape(self.classes, self.classes)))
        return value if self.metric.greater_is_better else -value

    def worth(self, counts: Floats) -> Floats:
        """What each decision is worth at these counts, ``(K, K)``, rows the truth; see the module."""
        support, right = counts.sum(1), np.eye(self.classes)
        if self.form == "cross_entropy":
            return right
        gains = self.gains(counts)
        wrong = (gains.sum(1) - gains.diagonal()) / (self.classes - 1)
        with np.errstate(invalid="ignore"):
            classes = np.nan_to_num(gains.diagonal() - wrong, nan=0.0, posinf=0.0, neginf=0.0).clip(min=0)
        if not support @ classes > 0 or not np.isfinite(gains).all():
            classes, gains = np.ones(self.classes), right  # the metric has no usable slope here
        if self.form == "metric":
            return gains * (support.sum() / (support @ classes))
        share = (classes / classes.sum()).clip(LEAST_SHARE, GREATEST_SHARE)
        share *= support.sum() / (support @ share)
        if self.metric.kind != "matrix":
            return right * share
        table = gains - gains.min(1, keepdims=True)
        total = table.sum(1, keepdims=True)
        return np.where(total > 0, table / np.where(total > 0, total, 1.0), right) * share[:, None]

    def worth_at(self, scores: Floats, target: NDArray[np.int64], weight: Floats | None = None) -> Floats:
        """What each decision is worth at the counts of these scores."""
        if self.form == "cross_entropy":  # needs no counts
            return np.eye(self.classes)
        return self.worth(self.count(scores, target, weight))

    def gains(self, counts: Floats) -> Floats:
        """What one more row in each cell of the counts gains: minus the gradient of the loss."""
        if self.task == "binary" and self._traced is not None:
            (tn, fp), (fn, tp) = counts.tolist()
            _, d_tp, d_fp, d_fn, d_tn = self._traced(tp, fp, fn, tn)
            return -np.array([[d_tn, d_fp], [d_fn, d_tp]])
        with torch.inference_mode(False), torch.enable_grad():
            table = torch.from_numpy(np.array(counts)).requires_grad_()
            (slope,) = torch.autograd.grad(self.metric.distance(self._evaluate(table)), table)
        return -slope.numpy()

    # -----------------------------------------------------------------------------------------------------------------
    # From worth to the derivatives of rows
    # -----------------------------------------------------------------------------------------------------------------

    def derivatives(
        self, scores: Floats, target: NDArray[np.int64], weight: Floats | None, worth: Floats
    ) -> tuple[Floats, Floats]:
        """Gradient and hessian of `loss` with respect to the scores, in their shape: ``(N,)`` or ``(N, K)``."""
        if self.task == "binary":
            gradient, hessian = self._of_two(scores, target, worth)
            return (gradient, hessian) if weight is None else (gradient * weight, hessian * weight)
        p = self.link(scores)
        if self.form == "metric":
            gains = worth[target]
            gradient = -p * (gains - (gains * p).sum(1, keepdims=True))
            hessian = np.broadcast_to(self._size(worth)[target][:, None] / 4, p.shape)
        else:
            rows = worth.sum(1)[target][:, None]
            gradient = rows * p - worth[target]
            hessian = rows * np.maximum(p * (1 - p), _LEAST_HESSIAN) * (self.classes / (self.classes - 1))
        return (gradient, hessian) if weight is None else (gradient * weight[:, None], hessian * weight[:, None])

    def curvature(self, scores: Floats, target: int, weight: float, worth: Floats) -> Floats:
        """The full hessian ``(K, K)`` of one row of a multiclass task."""
        if self.form == "metric":
            return np.eye(self.classes) * (weight * self._size(worth)[target] / 4)
        p = self.link(scores[None])[0]
        return weight * worth[target].sum() * (np.diag(np.maximum(p, _LEAST_HESSIAN)) - np.outer(p, p))

    def loss(self, scores: Floats, target: NDArray[np.int64], weight: Floats | None, worth: Floats) -> float:
        """The function that `derivatives` differentiates for a given worth."""
        if self.form == "metric" and self.task == "binary":
            yes = self._decide(scores)[0]
            value = np.stack([1 - yes, yes], 1)
        else:
            value = self.link(scores)
            value = value if self.form == "metric" else np.log(np.maximum(value, np.finfo(np.float64).tiny))
        each = -(worth[target] * value).sum(1)
        return float(each.sum() if weight is None else weight @ each)

    def _of_two(self, z: Floats, target: NDArray[np.int64], worth: Floats) -> tuple[Floats, Floats]:
        if self.form == "metric":
            yes = worth[:, 0] - worth[:, 1]
            return yes[target] * self._decide(z)[1], (self._size(worth) / 4)[target]
        p = _sigmoid(z)
        rows = worth.sum(1)[target]
        return rows * p - worth[:, 1][target], rows * np.maximum(p * (1 - p), _LEAST_HESSIAN)

    def _size(self, worth: Floats) -> Floats:
        """The worth of each class, for the hessians of the metric form, whose table is signed."""
        wrong = (worth.sum(1) - worth.diagonal()) / (self.classes - 1)
        return np.maximum(worth.diagonal() - wrong, LEAST_SHARE)

    def _decide(self, scores: Floats) -> tuple[Floats, Floats]:
        """Soft binary decisions, and their derivative with respect to the scores."""
        h, slope, factors = _STEP.linearise_few(
            torch.from_numpy(np.ascontiguousarray(scores, np.float64)), 0.5, logits=True
        )
        return factors.decision * h, factors.slope * slope

    def _evaluate(self, matrix: Any) -> Any:
        """The metric of a confusion matrix, a numpy array or a torch tensor."""
        if self.task == "multiclass":
            return evaluate(self.metric, matrix[None, None], self.task, self.average, matrix=True)[0, 0]
        (tn, fp), (fn, tp) = matrix
        xp = torch if isinstance(matrix, torch.Tensor) else np
        return evaluate(self.metric, xp.stack([tp, fp, fn, tn])[None, None, None], "binary", "macro")[0, 0]

    @cached_property
    def _traced(self) -> Callable[..., Any] | None:
        """The loss of four plain numbers with its partial derivatives; None if the metric cannot be traced."""

        def distance(cells: Any) -> Any:
            one = cells[..., None, None, None, :]
            return self.metric.distance(evaluate(self.metric, one, "binary", "macro")[..., 0, 0])

        traced = differentiators(distance)
        return None if traced is None else traced[0]


def _sigmoid(z: Floats) -> Floats:
    """The logistic function, without overflow and exact in both tails."""
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1 + small)
