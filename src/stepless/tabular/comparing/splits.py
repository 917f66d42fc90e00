"""The folds of a comparison: which rows are held out together, in every repeat."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.extras import needs
from stepless.tabular.ensembles.portfolio import make_folds
from stepless.tasks import Task

with needs("compare needs scikit-learn", "sklearn", "sklearn"):
    from sklearn.model_selection import StratifiedGroupKFold


def split_rows(
    target: NDArray[np.int64],
    task: Task,
    folds: int,
    repeats: int,
    seed: int,
    groups: NDArray[Any] | None = None,
) -> NDArray[np.int16]:
    """Return the fold of every row in every repeat, ``(repeats, rows)``.

    Folds are stratified by class. For several labels, rows are sorted by whether they have the rarest label, then the
    next rarest, and so on, and dealt out to the folds in turn. Rows of a group stay together.

    Args:
        target: 0 and 1, class indices, or 0 and 1 for each label.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        folds: The number of folds.
        repeats: How often the rows are divided.
        seed: Seed of the division.
        groups: The group of each row.

    Example:
        >>> split_rows(np.array([0, 0, 0, 0, 1, 1]), "binary", folds=2, repeats=1, seed=0)
        array([[0, 0, 1, 1, 1, 0]], dtype=int16)
    """
    made = np.empty((repeats, len(target)), np.int16)
    for repeat in range(repeats):
        chance = int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0]) % 2**31
        if groups is not None:
            made[repeat] = _grouped(_strata(target, task), groups, folds, chance)
        elif task == "multilabel":
            made[repeat] = _dealt(target, folds, chance)
        else:
            for fold, rows in enumerate(make_folds(target, task, folds, chance)):
                made[repeat, rows] = fold
    return made


def count_folds(target: NDArray[np.int64], task: Task, folds: int, groups: NDArray[Any] | None = None) -> int:
    """Return how many folds the rows allow: at most one per row (or group) of the rarest class of a binary task.

    In a fold without positives F1 is 0/0 and counts as 0, however good the decisions. A class of a single row or group
    does not lower the number, as no number of folds could have it on both sides. Neither do rare classes or labels
    among several: they are only a part of the mean, and two folds would leave too few rows to learn the others.

    Args:
        target: 0 and 1, class indices, or 0 and 1 for each label.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        folds: The requested number.
        groups: The group of each row.

    Example:
        >>> count_folds(np.array([0, 0, 0, 0, 0, 0, 1, 1, 1]), "binary", folds=5)
        3
    """
    places = np.arange(len(target)) if groups is None else groups
    if task != "binary" or len(np.unique(places)) < folds:
        return folds  # too few groups are an error in `split_rows`
    apart = [len(np.unique(places[rows])) for rows in _class_rows(target, task)]
    return min([folds, *(n for n in apart if n >= 2)])


def fewest_rows(target: NDArray[np.int64], task: Task, parts: NDArray[np.int16]) -> int:
    """Return the smallest number of rows that any class or label has in any fold.

    Args:
        target: 0 and 1, class indices, or 0 and 1 for each label.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        parts: The fold of each row in each repeat, ``(repeats, rows)``.

    Example:
        >>> fewest_rows(np.array([0, 0, 0, 0, 1, 1]), "binary", np.array([[0, 0, 1, 1, 1, 0]], np.int16))
        1
    """
    folds = int(parts.max()) + 1
    return min(
        int(np.bincount(part[rows], minlength=folds).min()) for rows in _class_rows(target, task) for part in parts
    )


def _class_rows(target: NDArray[np.int64], task: Task) -> list[NDArray[np.bool_]]:
    """A mask of the rows of each class or label."""
    if task == "multilabel":
        return [target[:, label] == 1 for label in range(target.shape[1])]
    return [target == k for k in np.unique(target)]


def _dealt(target: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int16]:
    shuffled = np.random.default_rng(seed).permutation(len(target))
    rarest_first = np.argsort(target.sum(0), kind="stable")
    # the last key of lexsort is the first to sort by
    order = shuffled[np.lexsort(target[shuffled][:, rarest_first[::-1]].T)]
    fold = np.empty(len(target), np.int16)
    fold[order] = np.arange(len(target)) % folds
    return fold


def _strata(target: NDArray[np.int64], task: Task) -> NDArray[np.int64]:
    """One class per row: for several labels, the rarest that the row has."""
    if task != "multilabel":
        return target
    rarity = np.argsort(np.argsort(target.sum(0), kind="stable"))
    ranks = np.where(target == 1, rarity, target.shape[1])
    return ranks.min(1).astype(np.int64)


def _grouped(strata: NDArray[np.int64], groups: NDArray[Any], folds: int, seed: int) -> NDArray[np.int16]:
    found = len(np.unique(groups))
    if found < folds:
        raise ValueError(
            f"{found} groups cannot be held out in {folds} folds: a group stays together. Lower folds, or leave out"
            " groups."
        )
    fold = np.zeros(len(strata), np.int16)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # our own cautions tell of classes with few rows
        try:
            parts = list(splitter.split(strata, strata, groups))
        except ValueError:  # every class has fewer rows than there are folds
            raise ValueError(
                f"no class has a row for each of the {folds} folds; give more rows, or lower folds."
            ) from None
    for place, (_, rows) in enumerate(parts):
        fold[rows] = place
    empty = [place for place, (_, rows) in enumerate(parts) if len(rows) == 0]
    if empty:
        raise ValueError(
            f"the groups are too few or too uneven for {folds} folds: {len(empty)} would be empty. Lower folds."
        )
    return fold
