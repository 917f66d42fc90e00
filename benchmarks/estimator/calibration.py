"""Are the calibrated probabilities of nets trained on F1 as good as those of nets trained on cross-entropy?

Adult (its official split), Mammography and Kaggle's diabetes prediction (a fifth of the rows test). Five nets, 2 × 64
ReLU, Adam, each trained on four fifths of the training rows, on the F1 loss or on cross-entropy, with equal settings.

Two protocols. *Folds*: the map is fitted on one half of the out-of-fold scores and measured on the other half, against
the out-of-fold scores of the cross-entropy nets on that half. *Ensemble*, which is how a model is used: the map is
fitted on all out-of-fold scores and measured on the test rows under the mean probability of the five nets, against the
mean of the five cross-entropy nets, as it is and calibrated alike.

How many points the map has and how strong its prior is was chosen by *folds* on seeds that the comparison does not use
(`--tune`).

    STEPLESS_DATA=… python benchmarks/estimator/calibration.py --tune
    STEPLESS_DATA=… python benchmarks/estimator/calibration.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepless as sl
from stepless.tabular.models import calibrating
from stepless.tabular.models.calibration import Calibration

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import data_folder, manifest, read_table

HERE = Path(__file__).parent
SEEDS, TUNING_SEEDS = (0, 1, 2), (1000, 1001)
FOLDS, HIDDEN, RATE = 5, 64, 1e-3
SETTINGS = {
    "adult": {"batch": 512, "epochs": 15},
    "mammography": {"batch": 256, "epochs": 60},
    "diabetes_prediction": {"batch": 1024, "epochs": 20},
}
FILES = {"adult": "adult_uci", "diabetes_prediction": "anyloss_diabetes_prediction"}
#: What an estimator is asked for: this expected calibration error at most, and this log loss in cross-entropy's.
MUST = {"ece": 0.03, "log_loss_ratio": 1.1}

Scores = dict[str, np.ndarray]


def load(name: str, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows, standardised by the training rows."""
    table = read_table(data_folder() / manifest().loc[FILES.get(name, name)]["file"])
    if name == "adult":
        x, y = table.drop(columns=["income", "split"]), table["income"].str.strip() == ">50K"
        test = (table["split"] == "test").to_numpy()
    else:
        target = {"mammography": "class", "diabetes_prediction": "diabetes"}[name]
        table = table.dropna(subset=[target])  # the last row of Mammography has no class
        x, y = table.drop(columns=target), table[target] == 1
        test = folds(y.to_numpy(), np.random.default_rng(seed)) == 0
    x, y = pd.get_dummies(x).to_numpy(np.float32), y.to_numpy()
    mean, scale = x[~test].mean(0), x[~test].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1)
    return [(x[~test], y[~test]), (x[test], y[test])]


def folds(y: np.ndarray, random: np.random.Generator) -> np.ndarray:
    fold = np.empty(len(y), int)
    for label in (False, True):
        rows = np.flatnonzero(y == label)
        fold[rows] = random.permutation(len(rows)) % FOLDS
    return fold


def train(x: Tensor, y: Tensor, loss: str, seed: int, *, batch: int, epochs: int) -> nn.Module:
    loss_fn = sl.MetricLoss("f1") if loss == "f1" else F.binary_cross_entropy_with_logits
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).tensor_split(max(1, len(y) // batch)):
            optimizer.zero_grad()
            loss_fn(net(x[rows]).squeeze(1), y[rows]).backward()
            optimizer.step()
    return net


@torch.no_grad()
def cross_fit(name: str, seed: int) -> Scores:
    """Out-of-fold scores of the training rows and mean scores of the test rows, for either loss."""
    (x, y), (x_test, y_test) = load(name, seed)
    fold = folds(y, np.random.default_rng(seed + 10_000))
    inputs, targets, test = torch.tensor(x), torch.tensor(y).float(), torch.tensor(x_test)
    found: Scores = {"y": y, "y test": y_test}
    for loss in ("f1", "cross-entropy"):
        out, means = np.empty(len(y)), []
        for k in range(FOLDS):
            rows = torch.tensor(fold != k)
            with torch.enable_grad():
                net = train(inputs[rows], targets[rows], loss, seed * FOLDS + k, **SETTINGS[name])
            out[fold == k] = net(inputs[~rows]).squeeze(1).double().numpy()
            means.append(net(test).squeeze(1).double())
        logs = [F.logsigmoid(sign * torch.stack(means)).logsumexp(0) for sign in (1, -1)]
        found[loss], found[f"{loss} test"] = out, (logs[0] - logs[1]).numpy()
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Measures
# ---------------------------------------------------------------------------------------------------------------------


def expected_error(p: np.ndarray, y: np.ndarray, *, equal_mass: bool, bins: int = 15) -> float:
    """Expected calibration error: the mean over rows of |mean probability − share of positives| of the row's bin."""
    if equal_mass:
        order = np.argsort(p, kind="stable")
        place = np.empty(len(p), int)
        place[order] = np.arange(len(p)) * bins // len(p)
    else:
        place = np.minimum((p * bins).astype(int), bins - 1)
    gap = np.bincount(place, p - y, bins)
    return float(np.abs(gap).sum() / len(p))


def measure(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    inside = np.clip(p, 1e-15, 1 - 1e-15)
    return {
        "log_loss": float(-np.where(y, np.log(inside), np.log1p(-inside)).mean()),
        "ece": expected_error(p, y, equal_mass=False),
        "ece_equal_mass": expected_error(p, y, equal_mass=True),
    }


def sigmoid(s: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(s, -700, 700)))


def fit(s: np.ndarray, y: np.ndarray, pieces: int, strength: float) -> Calibration:
    with mock.patch.multiple(calibrating, _PIECES=pieces, _STRENGTH=strength):
        return calibrating.fit_calibration(s, y)


CHOSEN = (calibrating._PIECES, calibrating._STRENGTH)


def by_folds(found: Scores, seed: int, chosen: tuple[int, float] = CHOSEN) -> dict[str, dict[str, float]]:
    half = folds(found["y"], np.random.default_rng(seed + 20_000)) % 2 == 0
    y, rest = found["y"], ~half
    rows = {
        "cross-entropy": measure(sigmoid(found["cross-entropy"][rest]), y[rest]),
        "f1": measure(sigmoid(found["f1"][rest]), y[rest]),
        "f1, straight line": measure(fit(found["f1"][half], y[half], 1, 1.0).probabilities(found["f1"][rest]), y[rest]),
    }
    for loss in ("f1", "cross-entropy"):
        fitted = fit(found[loss][half], y[half], *chosen)
        rows[f"{loss}, calibrated"] = measure(fitted.probabilities(found[loss][rest]), y[rest])
    return rows


def by_ensemble(found: Scores) -> dict[str, dict[str, float]]:
    y, y_test, rows = found["y"], found["y test"], {}
    for loss in ("cross-entropy", "f1"):
        rows[loss] = measure(sigmoid(found[f"{loss} test"]), y_test)
        rows[f"{loss}, calibrated"] = measure(fit(found[loss], y, *CHOSEN).probabilities(found[f"{loss} test"]), y_test)
    line = fit(found["f1"], y, 1, 1.0)
    rows["f1, straight line"] = measure(line.probabilities(found["f1 test"]), y_test)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


def tune(names: list[str]) -> None:
    """Log loss by folds for each number of pieces and strength of the prior, in that of the best of them."""
    grid = [(m, k) for m in (1, 4, 8, 16, 32) for k in (0.1, 0.5, 2.0, 8.0)]
    record: dict[str, dict[str, list[float]]] = {}
    for name in names:
        scores = {seed: cross_fit(name, seed) for seed in TUNING_SEEDS}
        record[name] = {
            f"{m} pieces, strength {k:g}": [
                by_folds(scores[seed], seed, (m, k))["f1, calibrated"]["log_loss"] for seed in TUNING_SEEDS
            ]
            for m, k in grid
        }
        for label, values in record[name].items():
            print(f"{name:20s} {label:30s} {np.mean(values):.5f}", flush=True)
    means = {
        label: float(np.mean([np.mean(table[label]) / min(map(np.mean, table.values())) for table in record.values()]))
        for label in next(iter(record.values()))
    }
    print("\n".join(f"{label:30s} {value:.5f}" for label, value in means.items()))
    write("calibration_tuning.json", {"seeds": TUNING_SEEDS, "log_loss": record, "relative": means, **about()})


def compare(names: list[str]) -> None:
    record: dict[str, dict[str, list[dict[str, dict[str, float]]]]] = {}
    started = time.time()
    for name in names:
        record[name] = {"folds": [], "ensemble": []}
        for seed in SEEDS:
            found = cross_fit(name, seed)
            record[name]["folds"].append(by_folds(found, seed))
            record[name]["ensemble"].append(by_ensemble(found))
            print(f"{name}, seed {seed} ({time.time() - started:.0f} s)", flush=True)
    print(summary(record))
    (HERE / "calibration_summary.txt").write_text(summary(record) + "\n")
    write("calibration.json", {"seeds": SEEDS, "asked": MUST, "results": record, **about()})


def summary(record: dict[str, dict[str, list[dict[str, dict[str, float]]]]]) -> str:
    lines = []
    for name, protocols in record.items():
        for protocol, runs in protocols.items():
            lines.append(f"\n{name}, {protocol}, {len(runs)} seeds (means)")
            lines.append(f"  {'':30s}{'log loss':>10s}{'of CE':>8s}{'ECE':>9s}{'equal mass':>12s}{'worst ECE':>11s}")
            base = np.mean([run["cross-entropy"]["log_loss"] for run in runs])
            for label in runs[0]:
                mean = {k: np.mean([run[label][k] for run in runs]) for k in runs[0][label]}
                worst = max(run[label][k] for run in runs for k in ("ece", "ece_equal_mass"))
                lines.append(
                    f"  {label:30s}{mean['log_loss']:10.4f}{mean['log_loss'] / base:8.3f}{mean['ece']:9.4f}"
                    f"{mean['ece_equal_mass']:12.4f}{worst:11.4f}"
                )
        runs = protocols["ensemble"]
        worst = max(run["f1, calibrated"][k] for run in runs for k in ("ece", "ece_equal_mass"))
        ratio = np.mean([run["f1, calibrated"]["log_loss"] for run in runs]) / base
        held = worst < MUST["ece"] and ratio <= MUST["log_loss_ratio"]
        lines.append(
            f"{name}: ECE {worst:.4f} at worst (asked: below {MUST['ece']}), log loss {ratio:.3f} of cross-entropy's"
            f" (asked: at most {MUST['log_loss_ratio']}): {'held' if held else 'MISSED'}"
        )
    return "\n".join(lines).strip()


def about() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {"stepless": sl.__version__, "torch": torch.__version__, "numpy": np.__version__}
    settings = {"folds": FOLDS, "hidden": HIDDEN, "rate": RATE, "sets": SETTINGS, "pieces, strength": CHOSEN}
    return {"commit": commit, "versions": versions, "settings": settings}


def write(file: str, record: object) -> None:
    (HERE / file).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    (tune if arguments.tune else compare)(arguments.datasets)


if __name__ == "__main__":
    main()
