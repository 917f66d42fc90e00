"""The CPU table: losses and their peers against eager cross-entropy, forward and backward, and what the import costs.

Ours and cross-entropy take turns, call by call, in an order that moves on with every turn, and each keeps its fastest
call: separate medians swing by half on a busy machine, interleaved minima do not. Then the peers do the same; they are
written from their papers' formulas (`peers.py`).

    python benchmarks/speed/cpu.py [FOLDER]     writes results.json into FOLDER (default: beside this file)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepless as sl

LABELS, CLASSES = 8, 10
IMPORT_MUST = 0.2
BASE = "cross-entropy"
#: Scores, the most they may cost as a multiple of cross-entropy, what we strive for, and the seconds to spend.
SIZES: tuple[tuple[int, float | None, float | None, float], ...] = (
    (256, 2.5, 1.8, 12.0),
    (4_096, None, None, 8.0),
    (1_000_000, 1.0, 0.6, 30.0),
    (10_000_000, 0.75, 0.5, 45.0),
)
TRAINING = (1.2, 1.1, 12.0)

Loss = Callable[[Tensor, Tensor], Tensor]
#: Ours and the peers of each shape of scores: flat, and with labels.
FLAT: tuple[dict[str, Loss], ...] = (
    {"f1": sl.MetricLoss("f1"), "mcc": sl.MetricLoss("mcc")},
    {
        "AnyLoss": peers.anyloss,
        "score-oriented": peers.score_oriented,
        "soft sets": peers.soft_sets,
        "soft Dice": peers.soft_dice,
    },
)
LABELLED: tuple[dict[str, Loss], ...] = (
    {
        "macro f1, 8 labels": sl.MetricLoss("f1", task="multilabel"),
        "macro mcc, 8 labels": sl.MetricLoss("mcc", task="multilabel"),
    },
    {"sigmoidF1": peers.sigmoid_f1},
)
#: Among classes, of which cross-entropy is another one, and nothing was asked.
CLASSED: tuple[dict[str, Loss], ...] = (
    {
        "macro f1, 10 classes": sl.MetricLoss("f1", task="multiclass"),
        "macro f1, 10 classes, blend=0": sl.MetricLoss("f1", task="multiclass", blend=0),
        "mcc, 10 classes": sl.MetricLoss("mcc", task="multiclass"),
    },
)
OURS = (*FLAT[0], *LABELLED[0])
#: What would fill the memory: nine thresholds keep a dozen arrays each.
TOO_LARGE = {("soft sets", 10_000_000)}


def interleaved(runs: dict[str, Callable[[], float]], seconds: float) -> dict[str, float]:
    """The fastest of each contestant's turns, in seconds; a turn says how long it took."""
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    order, end = list(runs), time.perf_counter() + seconds
    turns = 0
    while turns < 3 or time.perf_counter() < end:
        for name in order:
            best[name] = min(best[name], runs[name]())
        order.append(order.pop(0))
        turns += 1
    return best


def forward_and_backward(loss_fn: Loss, logits: Tensor, target: Tensor) -> Callable[[], float]:
    def run() -> float:
        logits.grad = None
        start = time.perf_counter()
        loss_fn(logits, target).backward()
        return time.perf_counter() - start

    return run


def training_step(loss_fn: Loss, outputs: int) -> Callable[[], float]:
    """A whole step of an MLP 30-256-outputs with Adam on a batch of 256."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(256, 30, generator=generator)
    shape = (256,) if outputs == 1 else (256, outputs)
    target = (torch.rand(shape, generator=generator) < 0.1).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, outputs))
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_fn(model(rows).view(shape), target).backward()
        optimizer.step()
        return time.perf_counter() - start

    return run


def measure(size: int, seconds: float) -> dict[str, float]:
    """Each contestant's ratio to the cross-entropy of scores of the same shape, and cross-entropy's own seconds."""
    ratios: dict[str, float] = {}
    for groups, shape in ((FLAT, (size,)), (LABELLED, (size // LABELS, LABELS))):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(shape, generator=generator, requires_grad=True)
        target = (torch.rand(shape, generator=generator) < 0.1).float()
        for group in groups:
            contestants = {name: loss_fn for name, loss_fn in group.items() if (name, size) not in TOO_LARGE}
            race(contestants, lambda loss_fn, z=logits, y=target: forward_and_backward(loss_fn, z, y), seconds, ratios)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size // CLASSES, CLASSES, generator=generator, requires_grad=True)
    classes = torch.randint(CLASSES, (size // CLASSES,), generator=generator)
    for group in CLASSED:
        prepare = partial(forward_and_backward, logits=logits, target=classes)
        race(group, prepare, seconds, ratios, base=F.cross_entropy)
    return ratios


def measure_training(seconds: float) -> dict[str, float]:
    """The same for whole training steps."""
    ratios: dict[str, float] = {}
    for groups, outputs in ((FLAT, 1), (LABELLED, LABELS)):
        for group in groups:
            race(group, lambda loss_fn, n=outputs: training_step(loss_fn, n), seconds, ratios)
    return ratios


def race(
    contestants: dict[str, Loss], prepare: Callable[..., Callable[[], float]], seconds: float, ratios: dict[str, float],
    base: Loss = F.binary_cross_entropy_with_logits,
) -> None:  # fmt: skip
    """Add the contestants' ratios to cross-entropy, which runs among them."""
    everyone = {BASE: base, **contestants}
    best = interleaved({name: prepare(loss_fn) for name, loss_fn in everyone.items()}, seconds / 4)
    ratios.setdefault(BASE, best[BASE])  # the seconds of the first race; the others are multiples
    ratios |= {name: best[name] / best[BASE] for name in contestants}


def row(name: str, must: float | None, strive: float | None, ratios: dict[str, float]) -> dict[str, Any]:
    """A row of the table, and print it."""
    seconds = ratios.pop(BASE)
    held = {ours: must is None or ratios[ours] <= must for ours in OURS}
    print(f"\n{name}: {seconds * 1e6:,.0f} µs for cross-entropy; must ≤ {must}, strive {strive}")
    for contestant, ratio in ratios.items():
        verdict = "" if contestant not in OURS or must is None else "HELD" if held[contestant] else "MISSED"
        print(f"  {contestant:24s}{ratio:6.2f} ×  {verdict}", flush=True)
    return {
        "name": name,
        "must": must,
        "strive": strive,
        "cross-entropy seconds": seconds,
        "ratios": {contestant: round(ratio, 3) for contestant, ratio in ratios.items()},
        "held": held,
    }


def import_seconds() -> float:
    """What `import stepless` adds to `import torch`: the fastest of five fresh processes."""
    code = "import torch, time; t = time.perf_counter(); import stepless; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def commit() -> str:
    """The commit that was measured, and whether files differed from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return run.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="where the results go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)  # now, not after ten minutes of measuring
    rows = []
    for size, must, strive, seconds in SIZES:
        rows.append(row(f"{size:,} logits", must, strive, measure(size, seconds)))
    rows.append(row("whole training step, MLP, Adam, batch 256", *TRAINING[:2], measure_training(TRAINING[2])))
    added = import_seconds()
    print(f"\nimport stepless adds {added:.3f} s to import torch: {'HELD' if added <= IMPORT_MUST else 'MISSED'}")
    record = {
        "commit": commit(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "import_seconds": round(added, 4),
        "unasked": [name for group in CLASSED for name in group],
        "rows": rows,
    }
    (folder / "results.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    missed = [f"{r['name']}: {name}" for r in rows for name, held in r["held"].items() if not held]
    if added > IMPORT_MUST:
        missed.append("import")
    if missed:
        sys.exit("MISSED: " + "; ".join(missed))


if __name__ == "__main__":
    main()
