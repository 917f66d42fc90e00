"""The four cells of a confusion matrix, of one class or many, hard or soft."""

from __future__ import annotations

from typing import NamedTuple

from stepless.numerics import Array, identity, namespace, unstack


class Counts(NamedTuple):
    """True positives, false positives, false negatives and true negatives, as arrays with one entry per class.

    >>> Counts(3.0, 1.0, 2.0, 4.0).support
    5.0
    """

    tp: Array
    fp: Array
    fn: Array
    tn: Array

    @property
    def support(self) -> Array:
        """The number of samples that truly belong to the class."""
        return self.tp + self.fn

    @property
    def total(self) -> Array:
        """The number of samples that were counted."""
        return self.tp + self.fp + self.fn + self.tn


def counts_of(cells: Array) -> Counts:
    """Split cells ``(..., 4)``, in the order tp, fp, fn, tn, into `Counts` of shape ``(...)``."""
    return Counts(*unstack(cells))


def both_classes(cells: Array) -> Array:
    """Cells ``(..., 4)`` of a yes/no decision as the cells ``(..., 2, 4)`` of its two classes, the negative one first.

    For the negative class tp and tn swap, and so do fp and fn, which reverses the order.
    """
    xp = namespace(cells)
    return xp.stack([xp.flip(cells, (-1,)), cells], -2)


def matrix_of(cells: Array) -> Array:
    """Cells ``(..., 4)`` of a yes/no decision as 2×2 matrices ``(..., 2, 2)``: rows the truth, columns the decision."""
    tp, fp, fn, tn = unstack(cells)
    return namespace(cells).stack([tn, fp, fn, tp], -1).reshape(*tp.shape, 2, 2)


def cells_of(matrix: Array) -> Array:
    """One-against-the-rest cells ``(..., K, 4)`` of a confusion matrix ``(..., K, K)``.

    No cell is a difference of two sums, which could round differently: an empty cell is exactly 0.
    """
    xp, diagonal = namespace(matrix), identity(matrix)
    tp, errors = matrix.diagonal(0, -2, -1), xp.where(diagonal, 0.0, matrix)
    elsewhere = xp.where(diagonal, 0.0, matrix.sum(-1)[..., None] - matrix)
    return xp.stack([tp, errors.sum(-2), errors.sum(-1), elsewhere.sum(-2)], -1)
