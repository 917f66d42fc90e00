"""Fits that several estimators have in common, made once.

Classifiers of the same rows for F1 and for MCC have the same linear model and the same trees of cross-entropy; those of
`MetricClassifier` and `MetricBooster` may be the same too. Inside of `shared_fits` they are made once. What comes out
is what would have come out alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from numpy.typing import NDArray

from stepless.fingerprints import fingerprint

T = TypeVar("T")


class SharedFits:
    """What was fitted inside of `shared_fits`.

    Attributes:
        saved: Processor seconds that were not spent again. With them, what a fit has taken is what it takes alone.
    """

    def __init__(self) -> None:
        self.saved = 0.0
        self._made: dict[str, Any] = {}

    def find(self, key: str, make: Callable[[], T]) -> T:
        """What has this key, made where there is none."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def drop(self, key: str) -> None:
        """Forget what has this key."""
        _close(self._made.pop(key, None))

    def close(self) -> None:
        """Forget everything."""
        for key in tuple(self._made):
            self.drop(key)


_OPEN: ContextVar[SharedFits | None] = ContextVar("shared_fits", default=None)


@contextmanager
def shared_fits() -> Iterator[SharedFits]:
    """Inside of this, what fits of the same rows have in common is made once, and kept in memory until the end.

    That is the linear model, and trees that are grown for the same: those of cross-entropy whatever the metric, and
    those of a metric whatever the cut. Networks are trained for each fit. So several metrics of one table, with one
    ``random_state``, take less time, and give what they give one by one. CatBoost's trees are not shared, nor are those
    of tables so large that their scores would fill the memory (half a million rows of two classes).

    Returns:
        An object whose ``saved`` says how many processor seconds were not spent again.

    Example:
        >>> import stepless as sl
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(400, weights=[0.9], random_state=0)
        >>> with sl.shared_fits():
        ...     models = [sl.MetricBooster(name, n_estimators=20, random_state=0).fit(X, y) for name in ("f1", "mcc")]
    """
    made = SharedFits()
    token = _OPEN.set(made)
    try:
        yield made
    finally:
        _OPEN.reset(token)
        made.close()


def open_block() -> SharedFits | None:
    """The block of `shared_fits` that this runs in."""
    return _OPEN.get()


def once(make: Callable[[], T], texts: Iterable[str], arrays: Iterable[NDArray[Any] | None]) -> T:
    """What ``make`` gives; inside of `shared_fits` it is called once for the same settings and data."""
    block = open_block()
    if block is None:
        return make()
    made = []

    def timed() -> tuple[T, float]:
        begun = time.process_time()
        made.append(make())
        return made[0], time.process_time() - begun

    value, seconds = block.find(fingerprint(texts, arrays), timed)
    block.saved += 0.0 if made else seconds
    return value


def _close(thing: Any) -> None:
    if hasattr(thing, "close"):
        thing.close()
