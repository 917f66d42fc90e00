"""Words that several tables share: how one way stands to another, and what reasons say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: What reasons say where the fault of the released code gives the printed number, and where none was found.
RELEASED, NOT_FOUND = "so the printed number is that of the released code", "reason not found"

#: How one stands to another: by its mean, and clearly where that is by more than two standard errors.
LEVELS = ("clearly above", "above, not clearly", "**below**, not clearly", "**clearly below**")


def level(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """One against another on the same folds or trials, as one of `LEVELS`."""
    gap = np.asarray(ours, float) - np.asarray(theirs, float)
    error = float(gap.std(ddof=1)) / len(gap) ** 0.5 if len(gap) > 1 else 0.0
    if abs(gap.mean()) > 2 * error:
        return LEVELS[0] if gap.mean() > 0 else LEVELS[3]
    return LEVELS[1] if gap.mean() >= 0 else LEVELS[2]


def tally(levels: Sequence[str]) -> str:
    """How often which of `LEVELS`, in words."""
    if len(levels) == 1:
        return levels[0]
    above, over, under, below = (levels.count(kind) for kind in LEVELS)
    text = f"clearly above in {above} and clearly below in {below} of {len(levels)}"
    return f"{text}, not clearly apart in {over + under} (mean below in {under})" if over + under else text


def listing(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
