"""The exact best threshold of 1,000,000 scores against one sort of them, and against scikit-learn's grid of 100.

The yardstick is `numpy.argsort` of the same scores, for every registered metric. The grid is what
`TunedThresholdClassifierCV` evaluates on one set of scores: its own scorer class, with 100 thresholds between the
lowest and the highest score. Every one costs the same, so five of them, evenly spread, are measured and the time is
multiplied by 20.

Contestants take turns within one run and each keeps its fastest turn, as in benchmarks/speed/cpu.py.

    python benchmarks/thresholds/speed.py
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn import metrics as sk
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics._scorer import _CurveScorer  # what TunedThresholdClassifierCV scores with

import stepless as sl

ROWS, POSITIVES, SEED = 1_000_000, 0.1, 0
TURNS, GRID_TURNS = 10, 2
GRID, MEASURED = 100, 5
#: The most a tuning may cost, in sorts; and the least that the grid must cost, in tunings.
SORTS_MUST, GRID_MUST = 3.0, 20.0
FORMULA = "tp / (tp + fp + 2*fn)"
COSTS = ((0.0, 1.0), (5.0, 0.0))


def g_mean(y: np.ndarray, decided: np.ndarray) -> float:
    return sk.recall_score(y, decided, average=None).prod() ** 0.5


def cost(y: np.ndarray, decided: np.ndarray) -> float:
    return (sk.confusion_matrix(y, decided) * np.array(COSTS)).sum() / len(y)


def formula(y: np.ndarray, decided: np.ndarray) -> float:
    (_, fp), (fn, tp) = sk.confusion_matrix(y, decided)
    return tp / (tp + fp + 2 * fn)


#: The metrics that scikit-learn's grid is timed on, as its user would score them.
THEIRS: dict[str, Callable[..., float]] = {
    "f1": sk.f1_score,
    "mcc": sk.matthews_corrcoef,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "g_mean": g_mean,
    "cost": cost,
    FORMULA: formula,
}
#: All that we are timed on, with their options.
OURS: dict[str, dict[str, Any]] = {name: {} for name in (*THEIRS, *sl.METRICS)} | {"cost": {"costs": COSTS}}


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities are known, so that nothing is timed but the search."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self.classes_ = np.array([0, 1])
        self.probabilities_ = np.stack([1 - scores, scores], 1)

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.probabilities_


def data() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities whose classes overlap, and the classes."""
    rng = np.random.default_rng(SEED)
    y = (rng.random(ROWS) < POSITIVES).astype(np.int64)
    return 1 / (1 + np.exp(-rng.normal(2 * y - 2, 1.0))), y


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure() -> dict[str, Any]:
    scores, y = data()
    estimator, grid = Given(scores), np.linspace(scores.min(), scores.max(), GRID)
    some = grid[GRID // MEASURED // 2 :: GRID // MEASURED]

    def theirs(metric: str) -> Callable[[], object]:
        scorer = _CurveScorer(THEIRS[metric], 1, {}, some, "predict_proba")
        return lambda: scorer(estimator, None, y)

    sort, tuning, on_grid = math.inf, dict.fromkeys(OURS, math.inf), dict.fromkeys(THEIRS, math.inf)
    for turn in range(TURNS):
        for metric, options in OURS.items():
            sort = min(sort, seconds(lambda: np.argsort(scores)))
            tuning[metric] = min(tuning[metric], seconds(partial(sl.tune_threshold, scores, y, metric, **options)))
            if metric in THEIRS and turn < GRID_TURNS:
                on_grid[metric] = min(on_grid[metric], seconds(theirs(metric)) * GRID / MEASURED)
    return {
        "sort_seconds": sort,
        "metrics": {metric: {"seconds": value, "sorts": value / sort} for metric, value in tuning.items()},
        "grid": {metric: {"seconds": value, "ratio": value / tuning[metric]} for metric, value in on_grid.items()},
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results, missed = measure(), []
    print(f"{ROWS:,} scores; one argsort takes {results['sort_seconds'] * 1e3:.0f} ms")
    print(f"  {'metric':24s}{'ms':>8s}{'sorts':>8s}{'grid, s':>10s}{'grid / ours':>14s}")
    for metric, row in results["metrics"].items():
        line, grid = f"  {metric:24s}{row['seconds'] * 1e3:8.0f}{row['sorts']:8.2f}", results["grid"].get(metric)
        print(line if grid is None else f"{line}{grid['seconds']:10.1f}{grid['ratio']:14.0f}")
        if row["sorts"] > SORTS_MUST:
            missed.append(f"{metric}: {row['sorts']:.2f} sorts > {SORTS_MUST}")
        if grid is not None and grid["ratio"] < GRID_MUST:
            missed.append(f"{metric}: {grid['ratio']:.1f} × faster than the grid < {GRID_MUST}")
    versions = {m.__name__: m.__version__ for m in (sl, np, sklearn, torch)} | {"python": platform.python_version()}
    record = {
        "machine": platform.processor() or platform.machine(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "versions": versions,
        "settings": {"rows": ROWS, "positives": POSITIVES, "seed": SEED, "grid": GRID, "grid_measured": MEASURED},
        "must": {"sorts": SORTS_MUST, "grid_ratio": GRID_MUST},
        **results,
        "missed": missed,
    }
    (Path(__file__).parent / "speed.json").write_text(json.dumps(record, indent=1) + "\n")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
