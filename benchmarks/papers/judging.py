"""From decisions to what is reported: counts, metrics of counts, tuned thresholds, wins, the Bayesian sign test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from perceptrons import METRICS

import stepless as sl

#: What the pages call the metrics.
WORDS = {"accuracy": "Acc", "f1": "F-1", "f05": "F-.5", "f2": "F-2", "g_mean": "G-Mean", "balanced_accuracy": "B-Acc"}

#: tp, fp, fn, tn of a fold.
Counts = list[int]


def count(decided: np.ndarray, target: np.ndarray) -> Counts:
    """The confusion counts of 0/1 decisions."""
    yes, true, both = int(decided.sum()), int(target.sum()), int((decided * target).sum())
    return [both, yes - both, true - both, len(target) - yes - true + both]


def metric_of(counts: Sequence[Counts], name: str) -> np.ndarray:
    """A metric of each fold's counts."""
    tp, fp, fn, tn = np.asarray(counts, float).T
    metric, options = METRICS[name]
    found = sl.METRICS[metric].bind(**options)
    if found.kind == "joint":  # reads the counts of both classes
        return np.asarray(found(*(np.stack(pair, -1) for pair in ((tn, tp), (fn, fp), (fp, fn), (tp, tn)))))
    return np.asarray(found(tp, fp, fn, tn))


def tuned(scores: np.ndarray, target: np.ndarray, held: np.ndarray, name: str) -> tuple[np.ndarray, float]:
    """Decisions on held-out scores by the threshold that is best for a metric on other scores, and that threshold."""
    metric, options = METRICS[name]
    threshold = float(sl.tune_threshold(scores, target, metric, **options).threshold)
    return (held >= threshold).astype(np.int64), threshold


@dataclass(frozen=True)
class Signs:
    """P(worse), P(equivalent), P(better) of the Bayesian sign test."""

    lose: float
    draw: float
    win: float

    @property
    def likeliest(self) -> str:
        return max(("win", "draw", "lose"), key=lambda kind: getattr(self, kind))

    def __str__(self) -> str:
        return f"{self.win:.3f}/{self.draw:.3f}/{self.lose:.3f}"


def sign_test(ours: np.ndarray, theirs: np.ndarray, rope: float, samples: int = 50_000, seed: int = 2) -> Signs:
    """Benavoli et al. (2017): a Dirichlet posterior over losses, draws and wins, with one prior draw."""
    gap = np.asarray(ours) - np.asarray(theirs)
    seen = np.array([(gap < -rope).sum(), (np.abs(gap) <= rope).sum() + 1, (gap > rope).sum()], float)
    drawn = np.random.default_rng(seed).dirichlet(np.maximum(seen, 1e-6), samples)
    return Signs(*(np.bincount(drawn.argmax(1), minlength=3) / samples))


def wins(scores: dict[str, np.ndarray]) -> tuple[dict[str, int], int, dict[str, int]]:
    """Strict wins of each, sets on which the best is shared, and wins where a shared best is the last sharer's."""
    names, table = list(scores), np.stack(list(scores.values()))
    best = np.isclose(table, table.max(0), rtol=0, atol=1e-9)
    alone = best.sum(0) == 1
    strict = {name: int((row & alone).sum()) for name, row in zip(names, best, strict=True)}
    last = len(names) - 1 - best[::-1].argmax(0)
    shared = {name: int((last == place).sum()) for place, name in enumerate(names)}
    return strict, int((~alone).sum()), shared


def duel(one: np.ndarray, other: np.ndarray) -> tuple[int, int, int]:
    """Wins, ties and losses of one against another."""
    tie = np.isclose(one, other, rtol=0, atol=1e-9)
    return int(((one > other) & ~tie).sum()), int(tie.sum()), int(((one < other) & ~tie).sum())
