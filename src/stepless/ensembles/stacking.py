"""How much each ensemble counts in their mean: the weights under which held-out rows are most likely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tasks import Task

Floats = NDArray[np.float64]

#: Rows that every ensemble is taken to have explained before the first is seen: few rows cannot tell them far apart.
_PRIOR = 5.0
_ROUNDS = 300
#: What an ensemble that is sure of the wrong class gives the right one: one row must not decide.
_LEAST = 1e-7


def stack_weights(
    scores: Sequence[Floats], target: NDArray[Any], weight: NDArray[Any] | None, task: Task
) -> tuple[float, ...]:
    """Weights of the ensembles' probabilities, which add up to 1.

    They are those of a mixture, by expectation and maximisation: each row is shared out among the ensembles by how
    likely each holds what it is, and an ensemble's weight is its share of all rows.

    Args:
        scores: Of every ensemble for held-out rows: logits ``(rows,)`` or ``(rows, labels)``, or log-probabilities
            ``(rows, classes)``.
        target: 0 and 1, class indices, or 0 and 1 for each label.
        weight: Of the rows.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.

    Example:
        >>> y = np.array([1, 0, 1, 0] * 25)
        >>> good, useless = np.where(y == 1, 2.0, -2.0), np.zeros(100)
        >>> [round(w, 2) for w in stack_weights([good, useless], y, None, "binary")]
        [0.9, 0.1]
    """
    likely = np.stack([_likelihood(one, target, task) for one in scores])
    counts = np.ones(len(target)) if weight is None else np.asarray(weight, np.float64)
    counts = np.repeat(counts, likely.shape[1] // len(target))  # of a row's labels each
    shares = np.full(len(likely), 1 / len(likely))
    for _ in range(_ROUNDS):
        parts = shares[:, None] * likely
        shares = (parts / parts.sum(0)) @ counts + _PRIOR
        shares /= shares.sum()
    return tuple(shares.tolist())


def _likelihood(scores: Floats, target: NDArray[Any], task: Task) -> Floats:
    """The probability of what each row is; for labels, of each of them."""
    if task == "multiclass":
        found = np.exp(scores[np.arange(len(target)), target])
    else:
        found = np.exp(-np.logaddexp(0.0, np.where(target == 1, -scores, scores))).ravel()
    return np.maximum(found, _LEAST)
