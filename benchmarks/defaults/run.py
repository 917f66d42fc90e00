"""Which smooth step should MetricLoss use by default? Measured on small real tables, in a plain training loop.

Protocol, fixed before running: every fourth of the AnyLoss sets with 250 to 1,500 rows; 5 stratified folds (seed 0);
features standardised on the training fold; one hidden layer of 32 units (seed 0), full batch, Adam (rate 0.01, weight
decay 1e-4), 300 steps; scored at ½ on the test fold. "tuned" is cross-entropy with the threshold that scores best on
the training fold. The five nets of a table train together: each is a label of a multilabel loss, and the rows of its
test fold are ignored.

    STEPLESS_DATA=… python benchmarks/defaults/run.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional as F

import stepless as sl

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import load_binary, manifest

HERE = Path(__file__).parent
METRICS = ("f1", "mcc", "balanced_accuracy", "g_mean")
FOLDS, HIDDEN, STEPS, SEED = 5, 32, 300, 0
CANDIDATES = {
    "linear δ=0.05": sl.Linear(delta=0.05),
    "linear δ=0.1": sl.Linear(delta=0.1),
    "linear δ=0.2": sl.Linear(delta=0.2),
    "sigmoid k=5": sl.Sigmoid(k=5),
    "sigmoid k=10": sl.Sigmoid(k=10),
    "identity": sl.Identity(),
    "logit T=0.5": sl.LogitSigmoid(temperature=0.5),
    "logit T=2": sl.LogitSigmoid(temperature=2.0),
    "AnyLoss L=73": sl.Sigmoid(k=73),
    "SOL δ=0.1": sl.RaisedCosine(delta=0.1),
}


def tables() -> list[str]:
    info = manifest()
    small = info[info.index.str.startswith("anyloss_ds") & info["rows"].between(250, 1500)]
    return list(small.sort_index().index[::4])


def folds_of(x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardised features (folds, rows, columns) and the training target (rows, folds), −1 on test rows."""
    inputs, targets = [], []
    for train, _ in StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(x, y):
        mean, scale = x[train].mean(0), x[train].std(0)
        inputs.append((x - mean) / np.where(scale > 0, scale, 1))
        target = np.full(len(y), -1)
        target[train] = y[train]
        targets.append(target)
    return torch.tensor(np.stack(inputs), dtype=torch.float32), torch.tensor(np.stack(targets, 1))


def train(inputs: torch.Tensor, target: torch.Tensor, loss_fn) -> torch.Tensor:
    """Scores (rows, folds) of one net a fold."""
    generator = torch.Generator().manual_seed(SEED)
    folds, _, columns = inputs.shape
    first = (torch.randn(folds, columns, HIDDEN, generator=generator) / columns**0.5).requires_grad_()
    bias = torch.zeros(folds, 1, HIDDEN, requires_grad=True)
    last = (torch.randn(folds, HIDDEN, 1, generator=generator) / HIDDEN**0.5).requires_grad_()
    end = torch.zeros(folds, 1, 1, requires_grad=True)
    optimizer = torch.optim.Adam([first, bias, last, end], lr=0.01, weight_decay=1e-4)

    def scores() -> torch.Tensor:
        return (torch.relu(inputs @ first + bias) @ last + end).squeeze(-1).T

    for _ in range(STEPS):
        optimizer.zero_grad()
        (loss_fn(scores(), target) * folds).backward()
        optimizer.step()
    return scores().detach()


def cross_entropy(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    known = target >= 0
    return F.binary_cross_entropy_with_logits(scores[known], target[known].float())


def test_scores(
    scores: torch.Tensor, target: torch.Tensor, y: torch.Tensor, metric: str, cuts: list[float]
) -> list[float]:
    return [
        sl.score(scores[rows, fold], y[rows], metric, threshold=cut).item()
        for fold, cut in enumerate(cuts)
        for rows in [target[:, fold] < 0]
    ]


def tuned_cuts(scores: torch.Tensor, target: torch.Tensor, y: torch.Tensor, metric: str) -> list[float]:
    grid = np.linspace(0.01, 0.99, 99)
    cuts = []
    for fold in range(scores.shape[1]):
        rows = target[:, fold] >= 0
        values = [sl.score(scores[rows, fold], y[rows], metric, threshold=cut).item() for cut in grid]
        cuts.append(float(grid[int(np.argmax(values))]))
    return cuts


def run_table(name: str) -> dict[str, dict[str, list[float]]]:
    x, y = load_binary(name)
    inputs, target = folds_of(x, y)
    y = torch.tensor(y)
    half = [0.5] * FOLDS
    plain = train(inputs, target, cross_entropy)
    results: dict[str, dict[str, list[float]]] = {}
    for metric in METRICS:
        results[metric] = {
            "cross-entropy": test_scores(plain, target, y, metric, half),
            "cross-entropy, tuned": test_scores(plain, target, y, metric, tuned_cuts(plain, target, y, metric)),
        }
        for label, step in CANDIDATES.items():
            loss_fn = sl.MetricLoss(metric, task="multilabel", ignore_index=-1, step=step)
            results[metric][label] = test_scores(train(inputs, target, loss_fn), target, y, metric, half)
    return results


def summary(folds: dict[str, dict[str, dict[str, list[float]]]]) -> str:
    lines = []
    for metric in METRICS:
        labels = list(next(iter(folds.values()))[metric])
        means = np.array([[np.mean(table[metric][label]) for label in labels] for table in folds.values()])
        ranks = rankdata(-means.round(9), axis=1)  # those that are equal share their ranks
        lines += [f"\n{metric}, {len(folds)} tables", f"  {'loss':24s}{'mean':>8s}{'rank':>8s}"]
        for i in np.argsort(ranks.mean(0)):
            lines.append(f"  {labels[i]:24s}{means[:, i].mean():8.3f}{ranks[:, i].mean():8.2f}")
    return "\n".join(lines)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    started, folds = time.time(), {}
    names = tables()
    for i, name in enumerate(names, 1):
        folds[name] = run_table(name)
        print(f"{i}/{len(names)} {name} ({time.time() - started:.0f} s)", flush=True)
    text = summary(folds)
    print(text)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {"stepless": sl.__version__, "torch": torch.__version__, "numpy": np.__version__}
    settings = {"folds": FOLDS, "hidden": HIDDEN, "steps": STEPS, "seed": SEED}
    record = {
        "commit": commit,
        "versions": versions,
        "settings": settings,
        "seconds": round(time.time() - started),
        "folds": folds,
    }
    (HERE / "results.json").write_text(json.dumps(record, indent=1, ensure_ascii=False))
    (HERE / "summary.txt").write_text(text.strip() + "\n")


if __name__ == "__main__":
    main()
