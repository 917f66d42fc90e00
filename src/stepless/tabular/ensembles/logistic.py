"""Logistic regression as an ensemble: the linear model of binary tasks.

A network without hidden layers, trained as long as the others, has not converged, and its probabilities are too large
if positives are rare. A solver converges at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepless.extras import needs
from stepless.tabular.ensembles.portfolio import Ensemble, Floats, Rows
from stepless.tabular.models.members import NetMember
from stepless.tabular.networks.nets import Architecture

with needs("a linear member needs scikit-learn", "sklearn", "sklearn"):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

#: scikit-learn's inverse penalty. A tenth of the default was better in the mean with other models, and no worse on
#: linear data.
_C = 0.1
_ITERATIONS = 300


def fit_logistic(
    name: str, matrix: NDArray[np.float32], target: NDArray[Any], weight: NDArray[Any] | None, folds: Sequence[Rows]
) -> Ensemble:
    """Fit one model per fold, without its rows.

    Args:
        name: The name of the ensemble.
        matrix: Features.
        target: 0 and 1.
        weight: Row weights, or None.
        folds: The rows of each fold.

    Example:
        >>> matrix = np.float32([[-1.0], [1.0]] * 20)
        >>> made = fit_logistic("linear", matrix, np.array([0, 1] * 20), None, [np.arange(20), np.arange(20, 40)])
        >>> made.member.scores(matrix[:2])[:, :, 0].round(1)
        array([[-0.7,  0.7],
               [-0.7,  0.7]])
    """
    fitted = [_coefficients(matrix, target, weight, np.setdiff1d(np.arange(len(target)), fold)) for fold in folds]
    tensors = {
        "weights.0": torch.tensor(np.stack([slopes for slopes, _ in fitted])[:, :, None], dtype=torch.float32),
        "biases.0": torch.tensor([[[intercept]] for _, intercept in fitted], dtype=torch.float32),
    }
    member = NetMember(Architecture("linear", matrix.shape[1], 1), tensors)
    held = [member.scores(matrix[fold])[place, :, 0] for place, fold in enumerate(folds)]
    return Ensemble(name, member, np.concatenate(held))


def _coefficients(
    matrix: NDArray[np.float32], target: NDArray[Any], weight: NDArray[Any] | None, rows: Rows
) -> tuple[Floats, float]:
    """Slopes and intercept of the model of these rows."""
    y, w = target[rows], None if weight is None else weight[rows]
    if len(np.unique(y)) < 2:  # the log-odds that add-one smoothing gives n rows of one class
        return np.zeros(matrix.shape[1]), float(np.log(len(y) + 1.0)) * (1 if y[0] else -1)
    model = LogisticRegression(C=_C, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged is good enough
        model.fit(matrix[rows], y, w)
    return model.coef_[0].astype(np.float64), float(model.intercept_[0])
