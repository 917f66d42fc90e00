"""Five members trained together against the same five one after another, and an epoch against scikit-learn's.

Together and one by one are the same code, `stepless.tabular.networks.training.train`, with five members or with one; a
third way is the loop that one would write by hand, with `torch.nn.Sequential`, autograd and `torch.optim.AdamW`. Times
are the fastest of a few turns.

    python benchmarks/estimator/members.py [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import sklearn
import torch
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits
from torch import nn

import stepless as sl
from stepless.tabular.networks.batches import Data
from stepless.tabular.networks.metric_objectives import Blend, CostWeighted, OnMetric
from stepless.tabular.networks.nets import Architecture, Members
from stepless.tabular.networks.objectives import CrossEntropy, Losses
from stepless.tabular.networks.training import Plan, train

MUST = 3.0  # times faster together than one by one
FOLDS, HIDDEN, TURNS = 5, (64, 64), 5
OBJECTIVES = {
    "cross-entropy": lambda: CrossEntropy("binary"),
    "metric": lambda: OnMetric("f1", "binary"),
    "blend": lambda: Blend(OnMetric("f1", "binary")),
    "cost-weighted": lambda: CostWeighted(OnMetric("f1", "binary")),
}


def folded(rows: int, features: int) -> Data:
    x, y = make_classification(rows, features, n_informative=10, weights=[0.8], random_state=0)
    index = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).chunk(FOLDS)
    rest = tuple(torch.cat([part for k, part in enumerate(index) if k != m]) for m in range(FOLDS))
    return Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32), rest, index)


def fastest(run: Callable[[], None], turns: int = TURNS) -> float:
    best = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def ours(data: Data, names: list[str], plan: Plan) -> None:
    """All folds and objectives together."""
    copies = len(names)
    both = Data(data.matrix, data.target, data.rows * copies, data.held * copies)
    seeds = list(range(len(data.rows))) * copies
    members = Members(Architecture("mlp", data.matrix.shape[1], 1, HIDDEN), len(seeds), seeds)
    train(members, both, Losses([(OBJECTIVES[name](), len(data.rows)) for name in names]), plan, seeds)


def one_by_one(data: Data, name: str, plan: Plan) -> None:
    for rows, held in zip(data.rows, data.held, strict=True):
        ours(Data(data.matrix, data.target, (rows,), (held,)), [name], plan)


def by_hand(data: Data, name: str, plan: Plan) -> None:
    loss_fn = sl.MetricLoss("f1") if name == "metric" else nn.BCEWithLogitsLoss()
    width = (data.matrix.shape[1], *HIDDEN)
    for rows, held in zip(data.rows, data.held, strict=True):
        layers = [part for a, b in pairwise(width) for part in (nn.Linear(a, b), nn.ReLU())]
        net = nn.Sequential(*layers, nn.Linear(width[-1], 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=plan.learning_rate, weight_decay=0.0)
        for _ in range(plan.epochs):
            for index in rows[torch.randperm(len(rows))].split(plan.batch_size):
                optimizer.zero_grad()
                loss_fn(net(data.matrix[index]).squeeze(1), data.target[index]).backward()
                optimizer.step()
            with torch.no_grad():
                loss_fn(net(data.matrix[held]).squeeze(1), data.target[held])


def compare_loops() -> dict[str, dict[str, float]]:
    data, plan, found = folded(2000, 20), Plan(epochs=5, batch_size=64), {}
    print(f"{FOLDS} members, 2,000 × 20, hidden {HIDDEN}, batch 64: milliseconds an epoch")
    for name in ("cross-entropy", "metric"):
        ways = {
            "together": lambda name=name: ours(data, [name], plan),
            "one by one": lambda name=name: one_by_one(data, name, plan),
            "by hand": lambda name=name: by_hand(data, name, plan),
        }
        seconds = {way: fastest(run) / plan.epochs for way, run in ways.items()}
        faster = {way: seconds[way] / seconds["together"] for way in ("one by one", "by hand")}
        found[name] = {"seconds": seconds, "times_faster_than": faster}
        print(
            f"  {name:14s} together {seconds['together'] * 1e3:7.1f}"
            + "".join(f"   {way} {seconds[way] * 1e3:7.1f} ({ratio:.1f} × slower)" for way, ratio in faster.items())
        )
    return found


def compare_sklearn() -> dict[str, float]:
    """An epoch of all members against an epoch of the six fits of ``TunedThresholdClassifierCV(cv=5)``."""
    data, plan = folded(10_000, 30), Plan(epochs=4, batch_size=200)
    x, y = data.matrix.numpy(), data.target.numpy()

    def six_fits() -> None:
        for rows in (*(part.numpy() for part in data.rows), slice(None)):
            net = MLPClassifier(HIDDEN, batch_size=200, max_iter=plan.epochs, n_iter_no_change=1000, random_state=0)
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                net.fit(x[rows], y[rows])

    turns = 3
    theirs = fastest(six_fits, turns) / plan.epochs
    print(f"10,000 × 30, hidden {HIDDEN}, batch 200: six fits of MLPClassifier {theirs * 1e3:.0f} ms an epoch")
    found = {"six fits of MLPClassifier": theirs}
    for names in (["cross-entropy"], ["metric"], list(OBJECTIVES)):
        label = f"{FOLDS} members × {' + '.join(names)}"
        found[label] = fastest(lambda names=names: ours(data, names, plan), turns) / plan.epochs
        print(f"  {label}: {found[label] * 1e3:.0f} ms, {found[label] / theirs:.2f} × scikit-learn's")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        loops, epochs = compare_loops(), compare_sklearn()
    record = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sklearn": sklearn.__version__,
        "loops": loops,
        "seconds_an_epoch": epochs,
    }
    (Path(__file__).parent / "members.json").write_text(json.dumps(record, indent=1) + "\n")
    slowest = min(found["times_faster_than"]["one by one"] for found in loops.values())
    if slowest < MUST:
        sys.exit(f"missed: {slowest:.1f} × < {MUST:.0f} ×")


if __name__ == "__main__":
    main()
