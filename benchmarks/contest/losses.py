"""The losses of the network contestants, for many nets at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from networks import Loss
from torch import Tensor

import stepless as sl


def _each(z: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of every row, or row and label: ``(nets, rows)``, or the mean over labels."""
    if z.shape[2] > 1 and not y.is_floating_point():
        return F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    each = F.binary_cross_entropy_with_logits(z.view(y.shape), y, reduction="none")
    return each.mean(2) if each.dim() == 3 else each


def cross_entropy(z: Tensor, y: Tensor, progress: float) -> Tensor:
    """Of every net."""
    return _each(z, y).mean(1)


def focal(z: Tensor, y: Tensor, progress: float) -> Tensor:
    """Lin et al. (2017) with γ = 2: a row counts (1 − p)² where p is the probability of its class."""
    each = _each(z, y)
    return ((1 - torch.exp(-each)).square() * each).mean(1)


def class_weighted(counts: np.ndarray) -> Loss:
    """Cross-entropy in which all classes weigh the same; counts are those of each net's rows, ``(nets, classes)``."""
    weights = torch.from_numpy(counts.sum(1, keepdims=True) / (counts.shape[1] * counts)).float()

    def loss(z: Tensor, y: Tensor, progress: float) -> Tensor:
        return (_each(z, y) * weights.gather(1, y.long())).mean(1)

    return loss


def logit_adjusted(counts: np.ndarray) -> Loss:
    """Menon et al. (2021) with τ = 1: the loss sees logits raised by the log of the classes' shares."""
    shares = torch.from_numpy(np.log(counts / counts.sum(1, keepdims=True))).float()[:, None]
    return lambda z, y, progress: _each(z + shares, y).mean(1)


def on_metric(loss: sl.MetricLoss, task: str) -> Loss:
    """A loss of the package, for each net by itself."""
    flat = task == "binary"

    def losses(z: Tensor, y: Tensor, progress: float) -> Tensor:
        loss.advance(progress)
        return torch.func.vmap(loss)(z.squeeze(2) if flat else z, y)

    return losses


def counts_of(target: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many rows of each class each net sees."""
    return np.stack([np.bincount(target[part], minlength=classes) for part in parts]).astype(float)
