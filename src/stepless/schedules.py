"""Settings of a loss that change while it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """Change settings linearly while training progresses from 0 to ``until``, then keep them.

    Attributes:
        blend: First and last share of cross-entropy in the loss. None keeps the loss's own.
        sharpness: First and last sharpness, as multiples of that of the loss's step. None keeps the step.
        until: The progress, in (0, 1], at which the last setting is reached.

    Example:
        >>> Schedule(blend=(1.0, 0.0), until=0.5).at(0.25, "blend")
        0.5
    """

    blend: tuple[float, float] | None = (1.0, 0.0)
    sharpness: tuple[float, float] | None = None
    until: float = 1.0

    def __post_init__(self) -> None:
        for name in ("blend", "sharpness"):
            pair: Any = getattr(self, name)
            good = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(value, Real) for value in pair)
            if pair is not None and not good:
                raise ValueError(
                    f"{name} is a pair of numbers, its first and its last value, as in (1.0, 0.0); got {pair!r}."
                )
        until: Any = self.until
        if not isinstance(until, Real) or not 0 < float(until) <= 1:
            raise ValueError(f"until must lie in (0, 1]; got {until!r}.")
        if self.blend is None and self.sharpness is None:
            raise ValueError("a schedule moves blend, sharpness or both; got neither.")
        if self.blend is not None and not all(0 <= b <= 1 for b in self.blend):
            raise ValueError(f"blend must move within [0, 1]; got {self.blend}.")
        if self.sharpness is not None and not all(1 <= s < math.inf for s in self.sharpness):
            raise ValueError(f"sharpness must not go below 1, the step as given, nor be inf; got {self.sharpness}.")

    def at(self, progress: float | Tensor, setting: str) -> float | Tensor:
        """Return the value of ``"blend"`` or ``"sharpness"`` at ``progress``."""
        first, last = getattr(self, setting)
        share = progress / self.until
        share = share.clamp(max=1.0) if isinstance(share, Tensor) else min(share, 1.0)
        return first + (last - first) * share
