"""Forward and backward of the losses against eager cross-entropy on the CPU, and what the import costs.

Contestants take turns within one run and each keeps its fastest turn: separate medians swing by half on a busy machine,
interleaved minima do not. Peers are written from their papers' formulas.

    python benchmarks/speed/cpu.py
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import stepless as sl

SIZES = (256, 4_096, 1_000_000)
#: The most that the default loss may cost, as a multiple of cross-entropy.
MUST = {4_096: 3.0, 1_000_000: 3.0}
IMPORT_MUST = 0.2


def anyloss_as_published(logits: Tensor, target: Tensor) -> Tensor:
    decision = 1 / (1 + torch.exp(-73 * (torch.sigmoid(logits) - 0.5)))
    tp = (target * decision).sum()
    fp = ((1 - target) * decision).sum()
    fn = (target * (1 - decision)).sum()
    return 1 - 2 * tp / (2 * tp + fp + fn)


def score_oriented_as_published(logits: Tensor, target: Tensor) -> Tensor:
    p, delta = torch.sigmoid(logits), 0.1
    u = (p - 0.5) / delta
    inside = 0.5 * (1 + u + torch.sin(torch.pi * u) / torch.pi)
    decision = torch.where(p < 0.4, 0.0, torch.where(p > 0.6, 1.0, inside))
    tp = (target * decision).sum()
    fp = ((1 - target) * decision).sum()
    fn = (target * (1 - decision)).sum()
    return 1 - 2 * tp / (2 * tp + fp + fn)


CONTESTANTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": F.binary_cross_entropy_with_logits,
    "MetricLoss('f1')": sl.MetricLoss("f1"),
    "MetricLoss('mcc')": sl.MetricLoss("mcc"),
    "MetricLoss('f1', step='identity')": sl.MetricLoss("f1", step="identity"),
    "MetricLoss('f1', step='sigmoid')": sl.MetricLoss("f1", step="sigmoid"),
    "AnyLoss as published": anyloss_as_published,
    "score-oriented as published": score_oriented_as_published,
}


def seconds(loss_fn: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> float:
    logits.grad = None
    start = time.perf_counter()
    loss_fn(logits, target).backward()
    return time.perf_counter() - start


def measure(size: int) -> dict[str, float]:
    """The fastest forward and backward of each contestant, in seconds."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, generator=generator, requires_grad=True)
    target = (torch.rand(size, generator=generator) < 0.1).float()
    best = dict.fromkeys(CONTESTANTS, float("inf"))
    turns, repeats = (20, 50) if size < 100_000 else (10, 5)
    for _ in range(turns):
        for name, loss_fn in CONTESTANTS.items():
            best[name] = min(best[name], *(seconds(loss_fn, logits, target) for _ in range(repeats)))
    return best


def import_seconds() -> float:
    """What `import stepless` adds to `import torch`: the fastest of five fresh processes."""
    code = "import torch, time; t = time.perf_counter(); import stepless; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    results, missed = {}, []
    for size in SIZES:
        best = measure(size)
        ratios = {name: value / best["cross-entropy"] for name, value in best.items()}
        results[str(size)] = {"seconds": best, "ratios": ratios}
        print(f"\n{size:,} logits, forward + backward: {best['cross-entropy'] * 1e6:.0f} µs for cross-entropy")
        for name, ratio in ratios.items():
            print(f"  {name:36s}{ratio:6.2f} ×")
        ours = ratios["MetricLoss('f1')"]
        if ours > MUST.get(size, float("inf")):
            missed.append(f"{size:,} logits: {ours:.2f} × > {MUST[size]} ×")
    added = import_seconds()
    print(f"\nimport stepless adds {added:.3f} s to import torch")
    if added > IMPORT_MUST:
        missed.append(f"import: {added:.3f} s > {IMPORT_MUST} s")
    record = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "import_seconds": added,
        "sizes": results,
    }
    (Path(__file__).parent / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
