"""The loss of a batch on arrays of any library, which JAX and Keras share.

`stepless.MetricLoss` checks the settings; metric, step, counts and averages are the same code, called with other
arrays. Features that keep state between batches, or communicate with other processes, exist for torch only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stepless.cross_entropy import cross_entropy_sums, mean_cross_entropy
from stepless.loss import MetricLoss
from stepless.metrics import METRICS
from stepless.numerics import Array, as_tuple, namespace
from stepless.ranking import find_ranking
from stepless.registry import Metric
from stepless.steps import STEPS
from stepless.tasks import read_arrays

#: Settings of `stepless.MetricLoss` that exist for torch only, and why.
TORCH_ONLY = {
    "schedule": "it keeps state between batches",
    "subject_to": "its multipliers are state between batches",
    "memory": "it keeps state between batches",
    "sync": "it is for torch.distributed; elsewhere the loss is that of the arrays it is given",
    "gradients": "it is for torch.distributed",
    "validate": "a compiled function cannot raise for values",
}


class _Checked(MetricLoss):
    """A `stepless.MetricLoss` that only checks and holds its settings: it prepares no fused torch code."""

    def _fuse(self) -> None:
        self._ways = None


class ArrayLoss:
    """A `stepless.MetricLoss` for arrays of any library.

    Args:
        metric: A name of `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        settings: As for `stepless.MetricLoss`, except `TORCH_ONLY`.

    Example:
        >>> import numpy as np
        >>> loss = ArrayLoss("f1", step="identity")
        >>> round(float(loss(np.array([2.0, -1.0, 0.5, -3.0]), np.array([1, 1, 0, 0]))), 4)
        0.398
    """

    def __init__(self, metric: Any, **settings: Any) -> None:
        for name, reason in TORCH_ONLY.items():
            if settings.get(name) is not None:
                raise TypeError(f"{name} is a setting of stepless.MetricLoss, for PyTorch alone: {reason}.")
        ranking = find_ranking(metric)
        if ranking is not None:
            raise TypeError(
                f"{ranking.name!r} ranks samples, and its loss is for PyTorch alone; train on a metric of decisions,"
                " such as 'f1'."
            )
        self.of = _Checked(metric, **settings)

    def __call__(self, scores: Array, target: Array, sample_weight: Array | None = None, *, axis: int = 1) -> Array:
        """Compute the loss of a batch; ``axis`` is the axis of the classes in multiclass and multilabel scores."""
        path, metrics = self.of.path, (self.of.metric,)
        if path.task != "binary" and scores.ndim > 1:
            if not -scores.ndim <= axis < scores.ndim or axis % scores.ndim == 0:
                raise ValueError(
                    f"axis must be one of the {scores.ndim} axes of the scores, but not the samples' own; got {axis}."
                )
            moved = namespace(scores).moveaxis
            if target.ndim == scores.ndim:
                target = moved(target, axis, 1)
            scores = moved(scores, axis, 1)
        batch = read_arrays(
            scores, target, sample_weight, task=path.task, inputs=path.inputs, ignore_index=path.ignore_index,
            class_weight=path.weight if path.task == "multiclass" else None,
        )  # fmt: skip
        try:
            (score,) = path.scores(path.tally(batch, self.of.step, metrics), metrics)
        except (AttributeError, TypeError) as error:
            raise self._explained(error) from error
        loss = self.of.metric.distance(score)
        blending = self.of.blending
        if not blending.applies(path.task, scores):
            return loss
        sums = cross_entropy_sums(batch, path.task)
        entropy = mean_cross_entropy(sums, balanced=blending.balanced)
        return (1 - blending.share) * loss + blending.share * entropy

    def _explained(self, error: Exception) -> Exception:
        """Say what to do if the user's own formula or step works with torch only."""
        own = [f"the formula {self.of.metric.name!r}"] * (self.of.metric.name not in METRICS)
        own += [f"the step {self.of.step!r}"] * (type(self.of.step) not in STEPS.values())
        if not own:
            return error
        return TypeError(
            f"{' or '.join(own)} could not be computed on this kind of array: {error}. Write it with operators and the"
            " functions of stepless.numerics, which take arrays of any library."
        )


def array_loss(metric: Any, settings: dict[str, Any]) -> ArrayLoss:
    """Return the `ArrayLoss` of a metric and its settings, cached if they are hashable.

    A user's function is never cached, because it may compute something else the next time.

    Example:
        >>> array_loss("f1", {"threshold": 0.3}) is array_loss("f1", {"threshold": 0.3})
        True
    """
    if not isinstance(metric, str | Metric):
        return ArrayLoss(metric, **settings)
    pairs = tuple(sorted((name, as_tuple(value)) for name, value in settings.items()))
    try:
        return _cached(metric, pairs)
    except TypeError:  # not hashable, or a wrong setting, whose error the next line raises again
        return ArrayLoss(metric, **settings)


@lru_cache(maxsize=256, typed=True)
def _cached(metric: Any, pairs: tuple[tuple[str, Any], ...]) -> ArrayLoss:
    return ArrayLoss(metric, **dict(pairs))
