"""SMOTE (Chawla et al., 2002) and random under-sampling to several ratios at once, as columns of one training run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

#: Rows, their target, and for each ratio which rows are used (none where the set is more balanced already).
Resampled = tuple[np.ndarray, np.ndarray, np.ndarray]


def smote(
    x: np.ndarray, y: np.ndarray, ratios: Sequence[float], random: np.random.Generator, neighbours: int
) -> Resampled:
    """New minority rows between a row and one of its nearest; a smaller ratio uses the first of those of a greater."""
    few = x[y == 1]
    wanted = [round(ratio * (y == 0).sum()) - len(few) for ratio in ratios]
    made = max(0, *wanted)
    near = _nearest(few, min(neighbours, len(few) - 1))
    from_row = random.integers(len(few), size=made)
    to_row = near[from_row, random.integers(near.shape[1], size=made)]
    new = few[from_row] + random.random((made, 1)) * (few[to_row] - few[from_row])
    used = np.ones((len(x) + made, len(ratios)), bool)
    for column, extra in enumerate(wanted):
        used[len(x) + max(extra, 0) :, column] = False
        if extra < 0:
            used[:, column] = False
    return np.concatenate([x, new]), np.concatenate([y, np.ones(made, y.dtype)]), used


def thinned(
    x: np.ndarray, y: np.ndarray, ratios: Sequence[float], random: np.random.Generator, neighbours: int
) -> Resampled:
    """Fewer majority rows; a greater ratio uses the first of those of a smaller."""
    del neighbours  # SMOTE's
    many = random.permutation(np.flatnonzero(y == 0))
    used = np.ones((len(x), len(ratios)), bool)
    for column, ratio in enumerate(ratios):
        kept = round((y == 1).sum() / ratio)
        used[many[kept:], column] = False
        if kept > len(many):
            used[:, column] = False
    return x, y, used


def _nearest(x: np.ndarray, k: int, chunk: int = 2048) -> np.ndarray:
    """For each row the k nearest others."""
    rows, found = torch.from_numpy(x), []
    for part in rows.split(chunk):
        distance = torch.cdist(part, rows)
        found.append(distance.topk(k + 1, largest=False).indices[:, 1:])
    return torch.cat(found).numpy()
