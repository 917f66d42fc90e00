"""The Wilcoxon–Mann–Whitney loss of 100,000 scores, forward and backward: prefix sums against chunks of all pairs.

Both give the same loss and gradient, which is checked first. The chunks are the usual way to keep n₊ × n₋ pairs out of
memory: some positives at a time against all negatives, each chunk back-propagated by itself. Times are the fastest of
a few turns, and memory is the peak of what torch allocates beyond the scores.

    python benchmarks/ranking/speed.py [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import stepless as sl

SIZE, POSITIVE, CHUNK, MARGIN, POWER = 100_000, 0.1, 16, 0.2, 3  # of chunks of 1 to 256 this is the fastest here
MUST = 50.0  # times faster than all pairs


def all_pairs(scores: Tensor, target: Tensor) -> float:
    """Σ max(0, γ − (pᵢ − pⱼ))³ / n₊n₋, and its gradient in ``scores.grad``."""
    p = scores.sigmoid()
    positive, negative = (p[target == label].detach().requires_grad_() for label in (1, 0))
    count, total = positive.numel() * negative.numel(), torch.zeros((), device=p.device)
    for chunk in positive.split(CHUNK):
        loss = (MARGIN - chunk[:, None] + negative).clamp_(min=0).pow(POWER).sum() / count
        loss.backward()
        total += loss.detach()
    slope = torch.empty_like(p)
    slope[target == 1], slope[target == 0] = positive.grad, negative.grad
    p.backward(slope)
    return total.item()


def ours(loss_fn: sl.MetricLoss) -> Callable[[Tensor, Tensor], float]:
    def run(scores: Tensor, target: Tensor) -> float:
        loss = loss_fn(scores, target)
        loss.backward()
        return loss.item()

    return run


def timed(run: Callable[[Tensor, Tensor], float], scores: Tensor, target: Tensor, turns: int) -> float:
    best = float("inf")
    for _ in range(turns):
        scores.grad = None
        start = time.perf_counter()
        run(scores, target)  # ends in .item(), which waits for the device
        best = min(best, time.perf_counter() - start)
    return best


def peak(run: Callable[[Tensor, Tensor], float], scores: Tensor, target: Tensor) -> int:
    """The most bytes allocated at any time."""
    scores.grad = None
    if scores.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(scores, target)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(scores, target)
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return int(np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(SIZE, generator=generator).to(device).requires_grad_()
    target = (torch.rand(SIZE, generator=generator) < POSITIVE).float().to(device)
    contestants = {
        "all pairs, in chunks": (all_pairs, 1),
        "presets.wmw()": (ours(sl.presets.wmw(margin=MARGIN, power=POWER)), 10),
        'MetricLoss("auroc")': (ours(sl.MetricLoss("auroc")), 10),
        'MetricLoss("average_precision")': (ours(sl.MetricLoss("average_precision")), 10),
    }
    found = {}
    for name in ("all pairs, in chunks", "presets.wmw()"):
        scores.grad = None
        found[name] = contestants[name][0](scores, target), scores.grad.clone()
    (slow_loss, slow_slope), (fast_loss, fast_slope) = found.values()
    assert abs(slow_loss - fast_loss) < 1e-5 * slow_loss, (slow_loss, fast_loss)
    torch.testing.assert_close(fast_slope, slow_slope, rtol=1e-3, atol=1e-9)

    results = {}
    for name, (run, turns) in contestants.items():
        results[name] = {"seconds": timed(run, scores, target, turns), "peak_bytes": peak(run, scores, target)}
    slow = results["all pairs, in chunks"]["seconds"]
    print(f"{SIZE:,} scores, {POSITIVE:.0%} positive, forward + backward, {device}")
    for name, found in results.items():
        found["times_faster"] = slow / found["seconds"]
        seconds, mega = found["seconds"], found["peak_bytes"] / 1e6
        print(f"  {name:34s}{seconds * 1e3:10.1f} ms{mega:8.1f} MB{found['times_faster']:8.0f} × faster")
    record = {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "size": SIZE,
        "positive": POSITIVE,
        "results": results,
    }
    (Path(__file__).parent / f"speed_{device}.json").write_text(json.dumps(record, indent=1) + "\n")
    if results["presets.wmw()"]["times_faster"] < MUST:
        sys.exit(f"missed: {results['presets.wmw()']['times_faster']:.0f} × < {MUST:.0f} ×")


if __name__ == "__main__":
    main()
