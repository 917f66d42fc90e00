"""Are the probabilities of a `MetricClassifier` for F1 as good as those of networks trained on cross-entropy?

Adult (its official split), Mammography and Kaggle's diabetes prediction (a fifth of the rows test, drawn by the seed).
The classifier is as it comes, with metric="f1"; the networks trained on cross-entropy are five of the same shape, on
the same folds, with the same plan, and their mean probability is taken as it is. Asked for: an expected calibration
error (15 bins) below 0.03, and a log loss of at most 1.1 of theirs, on the test rows.

`--tune` is how the share of cross-entropy in the default losses was chosen: on held-out scores of training rows alone,
of a seed that the comparison does not use.

    STEPLESS_DATA=… python benchmarks/estimator/calibrated.py --tune
    STEPLESS_DATA=… python benchmarks/estimator/calibrated.py
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import f1_score

import stepless as sl
from stepless.formula import resolve
from stepless.rules import Held, Rule
from stepless.schedules import Schedule
from stepless.tabular.ensembles.choosing import _cross_fitted
from stepless.tabular.ensembles.portfolio import CANDIDATES, Goal, automatic_plan, fit_ensembles, make_folds
from stepless.tabular.models.calibrating import fit_calibration
from stepless.tabular.models.calibration import Identity
from stepless.tabular.models.preprocessing import fit_features
from stepless.tabular.networks.metric_objectives import Blend
from stepless.tabular.networks.nets import Architecture
from stepless.tabular.tables.frames import read_table as as_table

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from calibration import FILES, MUST, about, measure
from data import data_folder, manifest, read_table

HERE = Path(__file__).parent
SEEDS, TUNING_SEED = (0, 1, 2), 1000
TARGETS = {"adult": "income", "mammography": "class", "diabetes_prediction": "diabetes"}


def load(name: str, seed: int) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    """Training rows and labels, test rows and labels; the columns as they are."""
    table = read_table(data_folder() / manifest().loc[FILES.get(name, name)]["file"])
    table = table.dropna(subset=[TARGETS[name]])  # the last row of Mammography has no class
    x = table.drop(columns=[TARGETS[name], *(["split"] if name == "adult" else [])])
    if name == "adult":
        y, test = (table["income"].str.strip() == ">50K").to_numpy(), (table["split"] == "test").to_numpy()
    else:
        y = (table[TARGETS[name]] == 1).to_numpy()
        test = np.random.default_rng(seed).random(len(y)) < 0.2
    return x[~test], y[~test], x[test], y[test]


def compare(names: list[str]) -> None:
    record: dict[str, list[dict[str, object]]] = {}
    for name in names:
        record[name] = []
        for seed in SEEDS:
            x, y, x_test, y_test = load(name, seed)
            started = time.process_time()
            model = sl.MetricClassifier("f1", random_state=seed).fit(x, y)
            plain = sl.MetricClassifier("f1", candidates=("cross_entropy",), calibrate=False, random_state=seed)
            plain.fit(x, y)
            run = {
                "candidate": model.best_candidate_,
                "ours": measure(model.predict_proba(x_test)[:, 1], y_test),
                "cross-entropy": measure(plain.predict_proba(x_test)[:, 1], y_test),
                "f1": f1_score(y_test, model.predict(x_test)),
                "f1 of cross-entropy at ½": f1_score(y_test, plain.predict_proba(x_test)[:, 1] >= 0.5),
                "seconds": time.process_time() - started,
            }
            record[name].append(run)
            print(name, seed, json.dumps(run, ensure_ascii=False), flush=True)
    held = {}
    for name, runs in record.items():
        ours, theirs = (np.mean([run[who]["log_loss"] for run in runs]) for who in ("ours", "cross-entropy"))  # type: ignore[index]
        worst = max(run["ours"]["ece"] for run in runs)  # type: ignore[index]
        held[name] = {"worst_ece": worst, "log_loss_ratio": ours / theirs}
        met = worst < MUST["ece"] and ours / theirs <= MUST["log_loss_ratio"]
        print(f"{name}: ECE {worst:.4f} at worst, log loss {ours / theirs:.3f}: {'held' if met else 'MISSED'}")
    write("calibrated.json", {**about(), "seeds": SEEDS, "asked": MUST, "held": held, "results": record})


def tune(names: list[str]) -> None:
    """F1 and log loss of held-out training rows, for losses with different shares of cross-entropy."""
    trials = {name: CANDIDATES[name] for name in ("cross_entropy", "cost_weighted")}
    for share in (0.0, 0.1, 0.3, 0.5):
        trials[f"{share:g} throughout"] = lambda goal, s=share: Blend(goal.on_metric(), Schedule(blend=(s, s)))
        trials[f"1 to {share:g}"] = lambda goal, s=share: Blend(goal.on_metric(), Schedule(blend=(1.0, s)))
    CANDIDATES.update(trials)
    record: dict[str, dict[str, dict[str, float]]] = {}
    rule = Rule("binary", np.array([0, 1]), 1, "predict_proba", "f1", {}, None, None, 0)
    for name in names:
        x, y, *_ = load(name, TUNING_SEED)
        table, target = as_table(x), y.astype(np.int64)
        features = fit_features(table)
        folds = make_folds(target, "binary", 5, TUNING_SEED)
        plan = automatic_plan(
            len(y) - len(folds[0]), epochs=None, batch_size=None, learning_rate=3e-3, weight_decay=0.01
        )
        net = Architecture("mlp", features.width, 1)
        goal = Goal(resolve("f1"), "binary")
        found = fit_ensembles(features.matrix(table), target, None, goal, list(trials), net, plan, folds, TUNING_SEED)
        rows = np.concatenate(folds)
        fold, truth = np.repeat(np.arange(5), [len(f) for f in folds]), target[rows]
        record[name] = {}
        for ensemble in found.ensembles:
            p = Identity("binary").probabilities(ensemble.held)
            decided = _cross_fitted(rule, Held(p, truth, None, rows, fold))
            for k in range(5):
                here = fold == k
                p[here] = fit_calibration(ensemble.held[~here], truth[~here]).probabilities(ensemble.held[here])
            record[name][ensemble.name] = {"f1": rule.score(decided, truth), **measure(p, truth == 1)}
            print(name, ensemble.name, json.dumps(record[name][ensemble.name]), flush=True)
    write("calibrated_tuning.json", {**about(), "seed": TUNING_SEED, "results": record})


def write(file: str, record: object) -> None:
    (HERE / file).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    (tune if arguments.tune else compare)(arguments.datasets)


if __name__ == "__main__":
    main()
