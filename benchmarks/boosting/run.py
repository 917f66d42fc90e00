"""MetricBooster against LightGBM at ½ and LightGBM with a tuned threshold, on F1 and MCC.

    STEPLESS_DATA=… python benchmarks/boosting/run.py [--sets N] [--half development|confirmation]

The AnyLoss sets with at most 2,000 rows and a minority below 35 % are taken in the order of the manifest: even places
are the sets on which the defaults of MetricBooster were chosen, odd places those that were left for confirmation. 5
folds, seeds fixed here; every choice inside a fit is made on its training part. Results are added to the half's JSON
after each set, and a set that is there is not run again.

The confirmation sets were run twice: with a tuned cut as the default, which drew (it is kept as a contestant), and with
the expected cut, which was then chosen on the development sets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.model_selection import StratifiedKFold

import stepless as sl
from stepless.tabular.booster import MetricBooster

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import load_binary, manifest

HERE = Path(__file__).parent
METRICS = ("f1", "mcc")
SEED, FOLDS, ROUNDS = 0, 5, 150
HALVES = {"development": 0, "confirmation": 1}
TIE = 1e-9


def contestants(metric):
    plain = LGBMClassifier(n_estimators=ROUNDS, verbose=-1, n_jobs=1, random_state=SEED)
    return {
        "LightGBM at ½": plain,
        "LightGBM + tuned threshold": sl.TunedThreshold(plain, metric, cv=5, nested=None, random_state=SEED),
        "MetricBooster, cost at ½": MetricBooster(metric, forms=("cost",), threshold="half", random_state=SEED),
        "MetricBooster, tuned cut": MetricBooster(metric, threshold="tuned", random_state=SEED),
        "MetricBooster": MetricBooster(metric, random_state=SEED),
    }


def run_set(name):
    X, y = load_binary(name)
    rows = []
    for metric in METRICS:
        for fold, (train, test) in enumerate(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(X, y)):
            for label, model in contestants(metric).items():
                begun = time.perf_counter()
                decided = model.fit(X[train], y[train]).predict(X[test])
                seconds = time.perf_counter() - begun
                score = sl.score(decided.astype(float), y[test], metric, inputs="probabilities").item()
                row = {"set": name, "metric": metric, "fold": fold, "model": label, "score": score}
                rows.append({**row, "seconds": round(seconds, 3)})
    return rows


def summary(rows, names):
    lines = []
    for metric in METRICS:
        means: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["metric"] == metric and row["set"] in names:
                means.setdefault(row["model"], {}).setdefault(row["set"], 0.0)
                means[row["model"]][row["set"]] += row["score"] / FOLDS
        if not means:
            continue
        sets = sorted(next(iter(means.values())))
        table = np.array([[means[model][s] for s in sets] for model in means])
        ranks = np.array([[1 + (column > v + TIE).sum() + ((abs(column - v) <= TIE).sum() - 1) / 2 for v in column]
                          for column in table.T]).mean(0)  # fmt: skip
        seconds = [np.mean([r["seconds"] for r in rows if r["model"] == m and r["set"] in names]) for m in means]
        lines.append(f"{metric}, {len(sets)} sets")
        for label, values, rank, spent in zip(means, table, ranks, seconds, strict=True):
            against = table[list(means).index("LightGBM + tuned threshold")]
            won, lost = int((values > against + TIE).sum()), int((values < against - TIE).sum())
            tied = len(sets) - won - lost
            lines.append(
                f"  {label:28s} mean {values.mean():.4f}  rank {rank:.2f}  wins/ties/losses against LightGBM + tuned"
                f" {won}/{tied}/{lost}  {spent:.2f} s a fit"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--half", choices=HALVES, default="confirmation")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "X does not have valid feature names")
    known = manifest()
    names = [n for n in known.index if n.startswith("anyloss_")]
    names = [n for n in names if known.loc[n, "rows"] <= 2000 and known.loc[n, "minority_fraction"] < 0.35]
    names = names[HALVES[given.half] :: 2][: given.sets]
    path = HERE / f"{given.half}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in names:
        if name not in {row["set"] for row in rows}:
            rows += run_set(name)
            libraries = ("stepless", "lightgbm", "scikit-learn", "numpy", "torch")
            commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False)
            head = {"commit": commit.stdout.strip(), "versions": {n: version(n) for n in libraries}, "seed": SEED}
            path.write_text(json.dumps({**head, "folds": FOLDS, "rounds": ROUNDS, "rows": rows}, indent=0) + "\n")
            print(name, flush=True)
    print(summary(rows, names))


if __name__ == "__main__":
    main()
