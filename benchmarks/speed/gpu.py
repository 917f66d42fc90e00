"""The GPU table: forward and backward against eager cross-entropy on CUDA, by CUDA events, interleaved minima.

python benchmarks/speed/gpu.py [FOLDER]     writes gpu_results.json into FOLDER (default: beside this file)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import stepless as sl

TURNS = 12


def milliseconds(run: Callable[[], None]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def interleaved(runs: dict[str, Callable[[], None]], turns: int = TURNS) -> dict[str, float]:
    """The fastest of each contestant's turns."""
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(turns):
        for name, run in runs.items():
            best[name] = min(best[name], milliseconds(run))
    return best


def step(loss_fn: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Callable[[], None]:
    def run() -> None:
        logits.grad = None
        loss_fn(logits, target).backward()

    return run


def in_graph(run: Callable[[], None]) -> Callable[[], None]:
    """The same work captured in a CUDA graph and replayed 20 times."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> None:
        for _ in range(20):
            graph.replay()

    return replay


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a device-to-device copy."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best = interleaved({"copy": lambda: target.copy_(source)})["copy"]
    return 2 * source.numel() / (best / 1e3)


def row(name: str, times: dict[str, float], reference: str, extra: dict[str, float] | None = None) -> dict[str, object]:
    ratios = {k: v / times[reference] for k, v in times.items()}
    print(f"\n{name}: {times[reference]:.3f} ms for {reference}", flush=True)
    for k, ratio in ratios.items():
        print(f"  {k:28s}{ratio:8.3f} ×")
    for k, value in (extra or {}).items():
        print(f"  {k:28s}{value:8.3f}")
    return {"milliseconds": times, "ratios": ratios, **(extra or {})}


def binary(size: int, dtype: torch.dtype, bandwidth: float) -> dict[str, object]:
    logits = torch.randn(size, device="cuda").to(dtype).requires_grad_()
    target = (torch.rand(size, device="cuda") < 0.1).to(dtype)
    columns, rows = logits.detach().view(-1, 8).requires_grad_(), target.view(-1, 8)
    times = interleaved({
        "cross-entropy": step(F.binary_cross_entropy_with_logits, logits, target),
        "f1": step(sl.MetricLoss("f1"), logits, target),
        "mcc": step(sl.MetricLoss("mcc"), logits, target),
        "f1, 8 labels": step(sl.MetricLoss("f1", task="multilabel"), columns, rows),
    })  # fmt: skip
    streams = 5 * size * logits.element_size()  # scores and target in, twice, and the gradient out
    used = {f"share of bandwidth, {k}": streams / (times[k] / 1e3) / bandwidth for k in ("f1", "mcc", "f1, 8 labels")}
    return row(f"2^{size.bit_length() - 1} logits, {dtype}", times, "cross-entropy", used)


def graphs() -> dict[str, object]:
    logits = torch.randn(1 << 20, device="cuda", requires_grad=True)
    target = (torch.rand(1 << 20, device="cuda") < 0.1).float()
    runs = {
        "cross-entropy": step(F.binary_cross_entropy_with_logits, logits, target),
        "f1": step(sl.MetricLoss("f1"), logits, target),
        "mcc": step(sl.MetricLoss("mcc"), logits, target),
    }
    return row(
        "2^20 logits, in a CUDA graph (20 replays)",
        interleaved({k: in_graph(r) for k, r in runs.items()}),
        "cross-entropy",
    )


def multiclass(name: str, *shape: int) -> dict[str, object]:
    """Logits of the shape (rows or images, classes, …) in bf16."""
    logits = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), device="cuda")
    runs = {
        "cross-entropy": step(F.cross_entropy, logits, target),
        "macro f1": step(sl.MetricLoss("f1", task="multiclass"), logits, target),
        "macro f1, blend=0": step(sl.MetricLoss("f1", task="multiclass", blend=0), logits, target),
        "mcc": step(sl.MetricLoss("mcc", task="multiclass"), logits, target),
        "mcc, blend=0": step(sl.MetricLoss("mcc", task="multiclass", blend=0), logits, target),
    }
    peaks = {}
    for contestant, run in runs.items():
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        peaks[f"peak GiB, {contestant}"] = torch.cuda.max_memory_allocated() / 2**30
    return row(f"{name}, {' × '.join(map(str, shape))} bf16", interleaved(runs), "cross-entropy", peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="where the results go")
    folder = parser.parse_args().folder
    record: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    bandwidth = copy_bandwidth()
    record["copy_bytes_per_second"] = bandwidth
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s")
    record["2^28 fp32"] = binary(1 << 28, torch.float32, bandwidth)
    record["2^28 bf16"] = binary(1 << 28, torch.bfloat16, bandwidth)
    record["2^20 graph"] = graphs()
    record["multiclass"] = multiclass("multiclass", 65_536, 1_000)
    record["pixels of 20 classes"] = multiclass("pixels of 20 classes", 8, 20, 512, 512)
    (folder / "gpu_results.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
