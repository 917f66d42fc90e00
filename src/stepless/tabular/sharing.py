"""Parts that several estimators have in common, fitted once.

Classifiers of the same rows for F1 and for MCC have the same linear model and the same cross-entropy trees;
`MetricClassifier` and `MetricBooster` may have the same trees too. In a `shared_fits` block such parts are fitted once,
and the fitted models are the same as without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from numpy.typing import NDArray

from stepless.tabular.fingerprints import fingerprint

T = TypeVar("T")


class SharedFits:
    """The parts fitted inside a `shared_fits` block.

    Attributes:
        saved: CPU seconds saved by reuse. Add them to the time of a fit to get its time without sharing.
    """

    def __init__(self) -> None:
        self.saved = 0.0
        self._made: dict[str, Any] = {}

    def find(self, key: str, make: Callable[[], T]) -> T:
        """Return the part with this key; make it if there is none."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def drop(self, key: str) -> None:
        """Forget the part with this key."""
        part = self._made.pop(key, None)
        if hasattr(part, "close"):
            part.close()

    def close(self) -> None:
        """Forget all parts."""
        for key in tuple(self._made):
            self.drop(key)


_OPEN: ContextVar[SharedFits | None] = ContextVar("shared_fits", default=None)


@contextmanager
def shared_fits() -> Iterator[SharedFits]:
    """Share the common parts of several fits on the same rows: inside this block each is fitted once.

    Shared are the linear model and the trees with the same objective: trees of cross-entropy whatever the metric, and
    trees of a metric whatever the threshold. Networks are trained for each fit. So fitting several metrics on one table
    with one ``random_state`` takes less time, and gives the same models. CatBoost's trees are not shared, nor are those
    of tables too large to keep their scores (half a million rows of two classes). Parts are in memory until the end.

    Returns:
        An object whose ``saved`` is the number of CPU seconds that were saved.

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
    """The `shared_fits` block that this runs in, or None."""
    return _OPEN.get()


def once(make: Callable[[], T], texts: Iterable[str], arrays: Iterable[NDArray[Any] | None]) -> T:
    """Return ``make()``; in a `shared_fits` block, call it only once for the same settings and data."""
    block = open_block()
    if block is None:
        return make()
    made = False

    def timed() -> tuple[T, float]:
        nonlocal made
        begun = time.process_time()
        made = True
        return make(), time.process_time() - begun

    value, seconds = block.find(fingerprint(texts, arrays), timed)
    block.saved += 0.0 if made else seconds
    return value
