"""Means, ranks and wins, from the results alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, studentized_range

Record = dict[str, Any]

TIE = 5e-7  #: scores are kept to six places
PLAIN, TUNED_NET, TUNED_TREES = "cross-entropy", "cross-entropy, tuned", "LightGBM, tuned"
TUNED_BOOSTERS = (TUNED_TREES, "XGBoost, tuned", "CatBoost, tuned")
TREES = ("LightGBM", "XGBoost", "CatBoost", "MetricBooster")
PUBLISHED = ("AnyLoss", "SOL", "soft sets", "soft F1", "EAST")


@dataclass(frozen=True)
class Duel:
    """How often one is better than another, over sets."""

    wins: int
    ties: int
    losses: int

    def __str__(self) -> str:
        return f"{self.wins}/{self.ties}/{self.losses}"

    @property
    def share(self) -> float:
        """Strict wins, of all."""
        return self.wins / (self.wins + self.ties + self.losses)

    @property
    def surely(self) -> float:
        """The probability that it is better more often than not: a Bayesian sign test, ties shared, Jeffreys' prior."""
        shared = (self.ties + 1) / 2
        return float(beta.sf(0.5, self.wins + shared, self.losses + shared))


@dataclass(frozen=True, eq=False)
class Standing:
    """A metric on the sets that every contestant has finished.

    Attributes:
        metric: As the goals call it.
        records: Of these sets.
        names: The contestants.
        scores: Means over folds, ``(contestants, sets)``.
    """

    metric: str
    records: list[Record]
    names: list[str]
    scores: np.ndarray

    def of(self, name: str) -> np.ndarray:
        """A contestant's scores."""
        return self.scores[self.names.index(name)]

    def ranks(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """The mean ranks of all, or among these: 1 is the best. What is a tie in a duel is one here."""
        chosen = [n for n in self.names if names is None or n in names]
        scores = np.stack([self.of(n) for n in chosen])
        gains = scores[:, None] - scores  # of the first contestant over the second
        ranks = 1 + (gains < -TIE).sum(1) + ((abs(gains) <= TIE).sum(1) - 1) / 2
        return dict(zip(chosen, ranks.mean(1).tolist(), strict=True))

    def duel(self, one: str, other: str) -> Duel:
        """One against another."""
        gain = self.of(one) - self.of(other)
        return Duel(int((gain > TIE).sum()), int((abs(gain) <= TIE).sum()), int((gain < -TIE).sum()))

    def entry(self, record: Record, name: str) -> dict[str, Any]:
        """What a contestant did on a set."""
        return record["entries"][name][self.metric]

    def collapses(self, name: str) -> int:
        """On how many sets all folds were decided alike, row by row, where those of cross-entropy were not."""
        return sum(
            all(self.entry(r, name)["single"]) and not all(next(iter(r["entries"][PLAIN].values()))["single"])
            for r in self.records
        )

    def seconds(self, name: str) -> float:
        """Processor seconds of a fit, at the mean."""
        return float(np.mean([self.entry(r, name)["seconds"] for r in self.records]))

    def critical_difference(self) -> float:
        """Nemenyi's: mean ranks that are closer than this are not told apart at 5 %."""
        k = len(self.names)
        return float(
            studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * len(self.records)))
        )


def metrics_of(records: Iterable[Record]) -> list[str]:
    """The metrics there are, in the order of the results."""
    return list(dict.fromkeys(m for r in records for entry in r["entries"].values() for m in entry))


def standing(records: Sequence[Record], metric: str, *, parts: bool = False) -> Standing | None:
    """A metric on the sets of one task that all contestants have finished; None where there is no such set.

    A contestant that has finished far fewer sets than the others waits until it has caught up. With ``parts``, those of
    our own with something left out are the contestants, beside the whole and its rivals.
    """
    if parts:
        records = [r for r in records if any(map(is_part, r["entries"]))]
    names = [n for n in dict.fromkeys(name for r in records for name in r["entries"]) if parts or not is_part(n)]
    names = [name for name in names if name not in behind(records, names, metric)]
    longest = max((list(r["entries"]) for r in records), key=len, default=[])
    names.sort(key=lambda name: longest.index(name) if name in longest else len(longest))
    whole = [r for r in records if all(metric in r["entries"].get(name, {}) for name in names)]
    if not whole:
        return None
    table = [[np.mean(r["entries"][name][metric]["scores"]) for r in whole] for name in names]
    return Standing(metric, whole, names, np.array(table))


def behind(records: Sequence[Record], names: Sequence[str], metric: str) -> dict[str, int]:
    """The contestants that have finished fewer than nine tenths of the sets that others have, and how many."""
    done = {name: sum(metric in r["entries"].get(name, {}) for r in records) for name in names}
    most = max(done.values(), default=0)
    return {name: count for name, count in done.items() if count < 0.9 * most}


def is_part(name: str) -> bool:
    """Whether it is one of ours with something left out."""
    return name.startswith(("MetricClassifier,", "MetricBooster,"))


def is_network(name: str) -> bool:
    """Whether a contestant is a network or linear."""
    return not name.startswith(TREES)
