"""The weight of each ensemble in their mean: the weights that make the held-out rows most likely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tasks import Task

Floats = NDArray[np.float64]

#: Pseudo-rows credited to every ensemble in advance, so that a few rows cannot move the weights far apart.
_PRIOR = 5.0
_ROUNDS = 300
#: The least likelihood of a row, so that a single confident error cannot decide the weights.
_LEAST = 1e-7


def stack_weights(
    scores: Sequence[Floats], target: NDArray[Any], weight: NDArray[Any] | None, task: Task
) -> tuple[float, ...]:
    """Find weights of the ensembles' probabilities; they add up to 1.

    They are the mixture weights of expectation-maximisation: each row is divided among the ensembles in proportion to
    the likelihood that each gives it, and an ensemble's weight is its share of all rows.

    Args:
        scores: Every ensemble's scores of held-out rows: logits ``(rows,)`` or ``(rows, labels)``, or log-probabilities
            ``(rows, classes)``.
        target: 0 and 1, class indices, or 0 and 1 for each label.
        weight: Row weights, or None.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.

    Example:
        >>> y = np.array([1, 0, 1, 0] * 25)
        >>> good, useless = np.where(y == 1, 2.0, -2.0), np.zeros(100)
        >>> [round(w, 2) for w in stack_weights([good, useless], y, None, "binary")]
        [0.9, 0.1]
    """
    likelihood = np.stack([_likelihood(one, target, task) for one in scores])
    counts = np.ones(len(target)) if weight is None else np.asarray(weight, np.float64)
    counts = np.repeat(counts, likelihood.shape[1] // len(target))  # one per label of a row
    shares = np.full(len(likelihood), 1 / len(likelihood))
    for _ in range(_ROUNDS):
        parts = shares[:, None] * likelihood
        shares = (parts / parts.sum(0)) @ counts + _PRIOR
        shares /= shares.sum()
    return tuple(shares.tolist())


def _likelihood(scores: Floats, target: NDArray[Any], task: Task) -> Floats:
    """The probability that is given to each row's true class, or to each of its true labels."""
    if task == "multiclass":
        found = np.exp(scores[np.arange(len(target)), target])
    else:
        found = np.exp(-np.logaddexp(0.0, np.where(target == 1, -scores, scores))).ravel()
    return np.maximum(found, _LEAST)
