"""Which cross-entropy belongs beside a metric that does not see how frequent classes are? On the contest's tables.

Protocol: the multiclass sets of the contest, their folds, networks and plain training loop (`benchmarks/contest`), and
MetricLoss as it comes but for the kind of cross-entropy that makes up half of it; decisions by argmax, the mean of five
test folds. Cross-entropy alone, plain and class-weighted, stands beside it. The choice was made on the development
half.

    STEPLESS_DATA=… python benchmarks/defaults/even_metrics.py [development | confirmation]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import stepless as sl

sys.path.insert(0, str(Path(__file__).parents[1] / "contest"))
from fits import Fits
from losses import on_metric
from problems import CONFIG, Problem, load
from results import about

METRICS = ("balanced_accuracy", "g_mean")
FILE = Path(__file__).parent / "even_metrics.json"


def scored(problem: Problem, table: np.ndarray, metric: str) -> float:
    """The metric's mean over the test folds."""
    found = [
        sl.score(table[fold, test], problem.target[test], metric, task="multiclass", inputs="probabilities").item()
        for fold, (_, test) in enumerate(problem.folds)
    ]
    return round(float(np.mean(found)), 4)


def row(name: str, half: str) -> dict[str, dict[str, float]]:
    """What each loss reaches on a set, metric by metric."""
    problem = load(name, "multiclass", half)
    fits = Fits(problem, None)
    alone = {"cross-entropy": "cross-entropy", "class-weighted cross-entropy": "class-weighted"}
    found = {name: {m: scored(problem, fits.test(kind).table, m) for m in METRICS} for name, kind in alone.items()}
    for kind in ("plain", "balanced"):
        losses = {m: sl.MetricLoss(m, task="multiclass", cross_entropy=kind) for m in METRICS}
        tables = {m: fits.on_loss(on_metric(loss, "multiclass")).table for m, loss in losses.items()}
        found[f"MetricLoss, {kind}"] = {m: scored(problem, table, m) for m, table in tables.items()}
    return found


def main(halves: list[str]) -> None:
    record = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for half in halves:
        sets = {}
        for name in CONFIG["halves"][half]["multiclass"]:
            sets[name] = row(name, half)
            for loss, scores in sets[name].items():
                print(f"{half:13}{name:30}{loss:30}" + "".join(f"{scores[m]:8.4f}" for m in METRICS), flush=True)
        record[half] = {"about": about(), "sets": sets}
        FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", nargs="?", choices=["development", "confirmation"])
    half = parser.parse_args().half
    main([half] if half else ["development", "confirmation"])
