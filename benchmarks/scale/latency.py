"""What the all-reduce of a loss's sums costs: measured with gloo on this machine, and carried to many ranks by a model.

The time of an all-reduce of some bytes among n ranks is taken to be α·hops(n) + β·bytes. A tree has log₂ n hops, as
NCCL builds it for short messages; gloo passes everything around a ring of n − 1. Both are fitted to the times at 2 and
4 ranks, and compared with those at 8, which the fit has not seen. The table in docs/scale.md is made of this alone.

    python benchmarks/scale/latency.py            # measure (a few minutes), write results.json and the table
    python benchmarks/scale/latency.py --render   # write the table again
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FOLDER = Path(__file__).parent
RESULTS, PAGE = FOLDER / "results.json", FOLDER.parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- latency: written by benchmarks/scale/latency.py -->", "<!-- /latency -->"

#: What is sent, in float32 numbers.
SENT = {
    "binary": 4,
    "10 classes": 4 * 10,
    "1,000 classes": 4 * 1000,
    "10 × 10 matrix": 10 * 10,
    "1,000 × 1,000 matrix": 1000 * 1000,
}
FITTED, HELD_OUT, ASKED = (2, 4), 8, (8, 64, 1024)
BURSTS, CALLS = 100, 4
HOPS = {"tree": math.log2, "ring": lambda ranks: ranks - 1}

#: Assumed, not measured: a cluster whose ranks are a few microseconds apart and send 25 GB a second.
NCCL = {"alpha": 10e-6, "beta": 2 / 25e9}


def measure(rank: int, ranks: int, port: int, queue: mp.SimpleQueue) -> None:
    """The time of an all-reduce of each size, in the fastest of many bursts.

    In a burst the ranks keep step, so its time is what all of them take; a single call may find the messages waiting.
    Sizes take turns, so that what disturbs one disturbs all.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    tensors = {name: torch.zeros(numbers) for name, numbers in SENT.items()}
    best = dict.fromkeys(SENT, math.inf)
    for _ in range(BURSTS):
        for name, tensor in tensors.items():
            dist.all_reduce(tensor)
            start = time.perf_counter()
            for _ in range(CALLS):
                dist.all_reduce(tensor)
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS)
    slowest = torch.tensor(list(best.values()))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        queue.put(slowest.tolist())
    dist.barrier()
    dist.destroy_process_group()


def measure_all() -> dict[str, dict[str, float]]:
    found = {}
    for ranks in (*FITTED, HELD_OUT):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(measure, (ranks, port, queue), nprocs=ranks)
        found[str(ranks)] = dict(zip(SENT, queue.get(), strict=True))
        print(ranks, {name: f"{seconds * 1e6:.0f} µs" for name, seconds in found[str(ranks)].items()}, flush=True)
    return found


def fit(seconds: dict[str, dict[str, float]], shape: str) -> dict[str, float]:
    """α and β that are best in the sense of relative errors, and how far off they are."""
    points = [(HOPS[shape](ranks), 4 * SENT[name], seconds[str(ranks)][name]) for ranks in FITTED for name in SENT]
    hops, size, took = np.array(points).T
    alpha, beta = np.linalg.lstsq(np.stack([hops / took, size / took], 1), np.ones(len(took)), rcond=None)[0]
    fitted = {"alpha": float(alpha), "beta": float(beta)}
    for ranks in (*FITTED, HELD_OUT):
        ratios = [cost(fitted, shape, ranks, 4 * SENT[name]) / seconds[str(ranks)][name] for name in SENT]
        fitted[f"predicted_over_measured_{ranks}"] = float(np.exp(np.mean(np.log(ratios))))
    return fitted


def cost(model: dict[str, float], shape: str, ranks: int, size: float) -> float:
    return model["alpha"] * HOPS[shape](ranks) + model["beta"] * size


def render(results: dict) -> str:
    """The tables of docs/scale.md."""
    seconds, models = results["seconds"], results["models"]
    counts = [str(ranks) for ranks in (*FITTED, HELD_OUT)]
    lines = [
        f"Measured: gloo, {results['cores']} cores of one machine ({results['machine']}), torch {results['torch']}.",
        "",
        "| sent in each step | bytes | " + " | ".join(f"{ranks} ranks" for ranks in counts) + " |",
        "| --- | ---: |" + " ---: |" * len(counts),
    ]
    for name, numbers in SENT.items():
        times = " | ".join(_time(seconds[ranks][name]) for ranks in counts)
        lines.append(f"| {name} | {4 * numbers:,} | {times} |")
    lines += ["", "From it, the cost in each step of many ranks:", ""]
    columns = [(shape, ranks) for shape in ("tree", "ring") for ranks in ASKED]
    heads = [f"{shape}, {ranks:,}" for shape, ranks in columns] + [f"assumed NCCL, {ranks:,}" for ranks in ASKED]
    lines += ["| sent | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name, numbers in SENT.items():
        times = [cost(models[shape], shape, ranks, 4 * numbers) for shape, ranks in columns]
        times += [cost(NCCL, "tree", ranks, 4 * numbers) for ranks in ASKED]
        lines.append(f"| {name} | " + " | ".join(map(_time, times)) + " |")
    lines.append("")
    for shape, formula in (("tree", "α·log₂(ranks) + β·bytes"), ("ring", "α·(ranks − 1) + β·bytes")):
        alpha, beta = models[shape]["alpha"], models[shape]["beta"]
        off = [models[shape][f"predicted_over_measured_{ranks}"] for ranks in (*FITTED, HELD_OUT)]
        lines.append(
            f"- {shape}: t = {formula}, fitted at {' and '.join(map(str, FITTED))} ranks: α = {alpha * 1e6:.0f} µs,"
            f" β = {beta * 1e9:.2f} ns a byte. It says {off[0]:.2f} times what was measured at {FITTED[0]} ranks,"
            f" {off[1]:.2f} times at {FITTED[1]}, and {off[2]:.2f} times at {HELD_OUT}, which it has not seen."
        )
    lines.append(
        f"- assumed NCCL: not measured. A tree with α = {NCCL['alpha'] * 1e6:.0f} µs, and 25 GB/s, which each byte"
        f" passes twice: β = {NCCL['beta'] * 1e9:.2f} ns a byte."
    )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def write(page: str, results: dict) -> str:
    """The page with the tables between their marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render(results)}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="write the table from results.json")
    if not parser.parse_args().render:
        seconds = measure_all()
        results = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "bursts": BURSTS,
            "calls": CALLS,
            "seconds": seconds,
            "models": {shape: fit(seconds, shape) for shape in HOPS},
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(write(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(render(results))


if __name__ == "__main__":
    main()
