"""Does a memory of past counts make batches of 64 as good as batches of 4,096, where positives are rare?

Mammography (2.3 % positive) and Kaggle's credit card fraud (0.17 %: nine in ten batches of 64 have no positive at all).
Nets are trained on F1 in batches of 64 without and with `stepless.Memory`, and in batches of 4,096 without.

Protocol, fixed before the comparison ran. 60 % of the rows train, 20 % validate and 20 % test, stratified, drawn anew
for each seed; features standardised on the training rows; all rows, so the rate of positives is the real one. One net,
2 × 64 ReLU, AdamW with weight decay 0.01, 20 epochs (creditcard) or 300 (Mammography), every batch full: the last one
of an epoch is filled up with rows drawn anew. After every epoch the validation rows are scored; the test F1, at
threshold ½, is that of the epoch of best validation F1 (the first such). All this is the same for all arms. Seeds 0–9
set split, weights and order of the rows.

The learning rate is chosen for each arm by itself, from RATES, with seeds 1000–1009 and on their validation rows alone
(`--tune`), and so is the horizon of the memory, once for both sets: that of the best mean over the sets. The best
epoch's own F1 would flatter arms whose F1 jumps about; so the validation rows are halved, the epoch is chosen on either
half and scored on the other. What was found is in tuning.json, where the comparison reads it. Test rows are looked at
by the comparison alone.

The bars: with memory the mean test F1 is above that without, and at most 0.01 below that of batches of 4,096.

Mammography's 52 validation positives choose an epoch nearly at random, and that hides how the arms differ. So there is
a second comparison, fixed after the first was seen and before it ran itself (`--confirm`): new seeds, 10–19, the same
learning rates, and no epoch chosen at all: the test F1 is that of the last epoch. Both are reported.

All nets of a batch size are trained side by side, as one stack of matrices. Each has its own loss: F1 macro over nets
as if they were labels, times their number, with counts and memory of each by itself.

    STEPLESS_DATA=… python benchmarks/memory/run.py --tune --device cuda
    STEPLESS_DATA=… python benchmarks/memory/run.py --jobs 6
    python benchmarks/memory/run.py --plot
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import stepless as sl

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import data_folder, manifest, read_table

HERE = Path(__file__).parent
HIDDEN, DECAY = 64, 0.01
EPOCHS = {"mammography": 300, "creditcard": 20}
SMALL, LARGE = 64, 4096
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
HORIZONS = (8, 32, 128, 512, 2048)
SEEDS, NEW_SEEDS, TUNING_SEEDS = tuple(range(10)), tuple(range(10, 20)), tuple(range(1000, 1010))
#: How far below batches of 4,096 the memory may stay.
BEHIND = 0.01

Arm = tuple[int, float | None]
Part = tuple[Tensor, Tensor]


# ---------------------------------------------------------------------------------------------------------------------
# Data
# ---------------------------------------------------------------------------------------------------------------------


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    files = ["creditcard_fraud_part1", "creditcard_fraud_part2"] if name == "creditcard" else [name]
    table = pd.concat([read_table(data_folder() / manifest().loc[file]["file"]) for file in files])
    target = "Class" if name == "creditcard" else "class"
    table = table.dropna()  # the last row of Mammography has no class
    return table.drop(columns=target).to_numpy(np.float32), table[target].to_numpy() == 1


def split(x: np.ndarray, y: np.ndarray, seeds: tuple[int, ...], device: str) -> list[Part]:
    """Training, validation and test rows, stratified: features (seeds, rows, columns) and targets (seeds, rows)."""
    parts: list[list[Part]] = [[], [], []]
    for seed in seeds:
        fold, random = np.empty(len(y), int), np.random.default_rng(seed)
        for label in (False, True):
            rows = np.flatnonzero(y == label)
            fold[rows] = random.permutation(len(rows)) % 5
        train = fold < 3
        mean, scale = x[train].mean(0), x[train].std(0)
        for i, kept in enumerate((train, fold == 3, fold == 4)):
            parts[i].append((torch.tensor((x[kept] - mean) / np.where(scale > 0, scale, 1)), torch.tensor(y[kept])))
    return [(torch.stack([x for x, _ in p]).to(device), torch.stack([y for _, y in p]).to(device)) for p in parts]


# ---------------------------------------------------------------------------------------------------------------------
# Many nets at once
# ---------------------------------------------------------------------------------------------------------------------


class Nets(nn.Module):
    """A net for each learning rate, arm and seed; those of a seed start alike."""

    def __init__(self, rates: tuple[float, ...], arms: int, seeds: tuple[int, ...], columns: int) -> None:
        super().__init__()
        sizes, start = (columns, HIDDEN, HIDDEN, 1), []
        for seed in seeds:
            torch.manual_seed(seed)
            layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
            start.append([t.detach() for layer in layers for t in (layer.weight.T, layer.bias[None])])
        self.start = [torch.stack(tensors).expand(arms, *[-1] * 3) for tensors in zip(*start, strict=True)]
        # parameters of a learning rate make a group of the optimiser
        self.rates = nn.ModuleList(nn.ParameterList([t.clone() for t in self.start]) for _ in rates)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rates, arms, seeds, rows) of features (seeds, rows, columns)."""
        tensors = [torch.stack(same) for same in zip(*self.rates, strict=True)]
        for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
            x = x @ weight + bias
            x = x.relu() if weight.shape[-1] > 1 else x
        return x.squeeze(-1)

    @torch.no_grad()
    def restart(self) -> None:
        for tensors in self.rates:
            for tensor, start in zip(tensors, self.start, strict=True):
                tensor.copy_(start)


def captured(step: Callable[[], None], device: str) -> Callable[[], None]:
    """The step as a CUDA graph, where there is CUDA; it has run a few times then."""
    if device != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.no_grad()
def f1(nets: Nets, part: Part) -> Tensor:
    """F1 at threshold ½ (rates, arms, seeds), of all rows and of the halves of the rows: shape (3, …)."""
    x, y = part
    counts = 0
    for i, (features, target) in enumerate(zip(x.split(4096, 1), y.split(4096, 1), strict=True)):
        decision = nets(features) > 0
        half = (torch.arange(target.shape[1], device=x.device) + 4096 * i) % 2 == 0
        sums = [
            torch.stack([(decision & target & h).sum(-1), ((decision ^ target) & h).sum(-1)]) for h in (half, ~half)
        ]
        counts = counts + torch.stack(sums)
    tp, wrong = torch.cat([counts.sum(0, keepdim=True), counts]).double().unbind(1)
    return torch.nan_to_num(2 * tp / (2 * tp + wrong)).cpu()


def train(
    parts: list[Part], seeds: tuple[int, ...], memories: list[float | None], rates: tuple[float, ...],
    batch: int, epochs: int, *, test: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Validation F1 (epochs, 3, rates, memories, seeds) and, if asked, test F1 after each epoch."""
    x, y = parts[0]
    device = x.device.type
    nets = Nets(rates, len(memories), seeds, x.shape[2]).to(device)
    groups = [{"params": list(p.parameters()), "lr": rate} for p, rate in zip(nets.rates, rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=DECAY, fused=True, capturable=device == "cuda")
    losses = [
        sl.MetricLoss("f1", task="multilabel", memory=None if m is None else sl.Memory(m)).to(device) for m in memories
    ]
    features, target = x[:, :batch].clone(), y[:, :batch].clone()

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        logits = nets(features).movedim(-1, 0)  # (rows, rates, arms, seeds)
        truth = target.T[:, None].expand(-1, len(rates), -1).flatten(1)
        each = [loss_fn(logits[:, :, i].flatten(1), truth) for i, loss_fn in enumerate(losses)]
        (torch.stack(each).sum() * truth.shape[1]).backward()
        optimizer.step()

    step()
    step = captured(step, device)
    nets.restart()
    for tensor in [t for state in optimizer.state.values() for t in state.values()]:
        tensor.zero_()
    for loss_fn in losses:
        loss_fn.remembered.zero_()

    generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
    rows = y.shape[1]
    batches = -(-rows // batch)
    found: list[list[Tensor]] = [[], []]
    for _ in range(epochs):
        order = []
        for generator in generators:
            first, again = (torch.randperm(rows, generator=generator, device=device) for _ in range(2))
            order.append(torch.cat([first, again])[: batches * batch])
        for picked in torch.stack(order).split(batch, 1):
            features.copy_(x.gather(1, picked[..., None].expand(-1, -1, x.shape[2])))
            target.copy_(y.gather(1, picked))
            step()
        for values, part in zip(found, parts[1 : 2 + test], strict=False):
            values.append(f1(nets, part))
    return torch.stack(found[0]), torch.stack(found[1]) if test else None


# ---------------------------------------------------------------------------------------------------------------------
# Tuning, on validation rows
# ---------------------------------------------------------------------------------------------------------------------


def halved(validation: Tensor) -> Tensor:
    """F1 of each half of the validation rows at the epoch that is best on the other half: (rates, memories, seeds)."""
    _, one, other = validation.unbind(1)
    at = [a.argmax(0, keepdim=True) for a in (one, other)]
    return (other.gather(0, at[0]) + one.gather(0, at[1])).squeeze(0) / 2


def tune(names: list[str], device: str) -> dict[str, object]:
    record: dict[str, object] = {}
    for name in names:
        data, table = load(name), {}
        parts = split(*data, TUNING_SEEDS, device)
        for batch, memories in ((SMALL, [None, *HORIZONS]), (LARGE, [None])):
            started = time.time()
            validation, _ = train(parts, TUNING_SEEDS, memories, RATES, batch, EPOCHS[name], test=False)
            scores, late = halved(validation), validation[-max(1, EPOCHS[name] // 4) :, 0].mean(0)
            for i, memory in enumerate(memories):
                for j, rate in enumerate(RATES):
                    row = {"batch": batch, "memory": memory, "rate": rate, "f1": scores[j, i].tolist()}
                    row["last quarter of the epochs"] = late[j, i].tolist()
                    table[f"{label(batch, memory)}, rate {rate:g}"] = row
                    print(
                        f"{name:12s} {label(batch, memory):24s} {rate:7g} {scores[j, i].mean():8.4f}"
                        f" ± {scores[j, i].std() / len(TUNING_SEEDS) ** 0.5:.4f}   late {late[j, i].mean():.4f}",
                        flush=True,
                    )
            print(f"{name}, batch {batch}: {time.time() - started:.0f} s", flush=True)
        record[name] = table
    return record


def label(batch: int, memory: float | None) -> str:
    return f"batch {batch:,}" + ("" if memory is None else f", memory {memory:g}")


def best(table: dict[str, dict[str, object]], arm: Arm) -> tuple[float, float]:
    """The mean F1 of an arm at its best learning rate, and that rate."""
    rows = [row for row in table.values() if (row["batch"], row["memory"]) == arm]
    return max((float(np.mean(row["f1"])), row["rate"]) for row in rows)


def best_horizon(tables: dict[str, dict[str, dict[str, object]]]) -> float:
    return max(HORIZONS, key=lambda horizon: sum(best(table, (SMALL, horizon))[0] for table in tables.values()))


# ---------------------------------------------------------------------------------------------------------------------
# Comparison, on test rows
# ---------------------------------------------------------------------------------------------------------------------


def run(name: str, arm: Arm, rate: float, epochs: int, device: str, last: bool) -> dict[str, object]:
    torch.set_num_threads(1)
    started, (batch, memory), seeds = time.time(), arm, NEW_SEEDS if last else SEEDS
    parts = split(*load(name), seeds, device)
    validation, test = train(parts, seeds, [memory], (rate,), batch, epochs, test=True)
    validation, test = validation[:, 0, 0, 0], test[:, 0, 0, 0]  # (epochs, seeds)
    chosen = torch.full_like(validation[0], len(validation) - 1).long() if last else validation.argmax(0)
    found = test.gather(0, chosen[None])[0].tolist()
    print(f"{name:12s} {label(*arm):24s} rate {rate:g}: {np.mean(found):.4f}", flush=True)
    return {
        "batch": batch, "memory": memory, "rate": rate, "seconds": round(time.time() - started),
        "test f1": found, "epoch": (chosen + 1).tolist(),
        "mean by epoch": {"validation": validation.mean(1).tolist(), "test": test.mean(1).tolist()},
    }  # fmt: skip


def compare(
    names: list[str], device: str, jobs: int, tuned: dict[str, dict], *, last: bool
) -> dict[str, dict[str, dict]]:
    arms = {
        "batch 64": (SMALL, None),
        "batch 64, memory": (SMALL, best_horizon(tuned)),
        "batch 4,096": (LARGE, None),
    }
    tasks = [
        (name, arm, best(tuned[name], arm)[1], EPOCHS[name], device, last) for name in names for arm in arms.values()
    ]
    with get_context("spawn").Pool(jobs) as pool:
        found = iter(pool.starmap(run, tasks, chunksize=1))
    return {name: {arm: next(found) for arm in arms} for name in names}


def summary(results: dict[str, dict[str, dict[str, object]]]) -> str:
    lines = []
    for name, found in results.items():
        values = {arm: np.array(one["test f1"]) for arm, one in found.items()}
        none, memory, large = values.values()
        lines += [f"\ntest F1, {name}, {len(none)} seeds", f"  {'trained in':20s}{'rate':>8s}{'mean':>9s}{'sd':>8s}"]
        lines[-1] += f"{'− batch 4,096':>16s}{'± error':>9s}{'better on':>11s}{'last epoch':>12s}"
        for arm, value in values.items():
            gap = value - large
            lines.append(
                f"  {arm:20s}{found[arm]['rate']:8g}{value.mean():9.4f}{value.std(ddof=1):8.4f}{gap.mean():+16.4f}"
                f"{gap.std(ddof=1) / len(gap) ** 0.5:9.4f}{(gap > 0).sum():11d}"
                f"{found[arm]['mean by epoch']['test'][-1]:12.4f}"
            )
        gain = memory - none
        lines += [
            f"  memory beats none: {gain.mean():+.4f} ± {gain.std(ddof=1) / len(gain) ** 0.5:.4f}, better on"
            f" {(gain > 0).sum()} of {len(gain)} seeds: {'HELD' if gain.mean() > 0 else 'MISSED'}",
            f"  at most {BEHIND} below batch 4,096: {(memory - large).mean():+.4f}:"
            f" {'HELD' if (memory - large).mean() >= -BEHIND else 'MISSED'}",
        ]
    return "\n".join(lines).strip()


def plot(results: dict[str, dict[str, dict[str, object]]], file: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - the one place that draws

    figure, axes = plt.subplots(1, len(results), figsize=(5 * len(results), 3.6), squeeze=False, layout="constrained")
    for ax, (name, found) in zip(axes[0], results.items(), strict=True):
        for arm, one in found.items():
            curve = one["mean by epoch"]["test"]
            ax.plot(range(1, len(curve) + 1), curve, label=arm, linewidth=1.2)
        ax.set(title=name, xlabel="epoch", ylabel="test F1, mean of 10 seeds")
        top = max(max(one["mean by epoch"]["test"]) for one in found.values())
        ax.set_ylim(top - 0.2, top + 0.02)
        ax.legend(frameon=False)
    figure.savefig(file, dpi=120)


# ---------------------------------------------------------------------------------------------------------------------


def about(device: str) -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    versions = {"stepless": sl.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {"commit": commit, "device": name, "versions": versions, "epochs": EPOCHS, "rates": RATES}


def write(file: Path, record: object) -> None:
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="arms compared at the same time, each on one core")
    parser.add_argument("--epochs", type=int, help="instead of each set's own number, for a look")
    parser.add_argument("--tune", action="store_true", help="choose learning rates and horizon on validation rows")
    parser.add_argument("--confirm", action="store_true", help="new seeds, and the last epoch of each")
    parser.add_argument("--plot", action="store_true", help="draw what results.json holds, and no more")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to write to")
    options = parser.parse_args()
    if options.epochs:
        EPOCHS.update(dict.fromkeys(EPOCHS, options.epochs))
    started = time.time()
    if options.plot:
        plot(json.loads((HERE / "results.json").read_text())["runs"], options.out / "f1.png")
        return
    if options.tune:
        found = tune(options.datasets, options.device)
        record = {**about(options.device), "seconds": round(time.time() - started), "seeds": TUNING_SEEDS}
        write(options.out / "tuning.json", {**record, "validation": found})
        return
    tuning = options.out / "tuning.json"
    if not tuning.exists():
        sys.exit(f"no {tuning}: choose learning rates and horizon first, with --tune and the same --out.")
    tuned = json.loads(tuning.read_text())["validation"]
    results = compare(options.datasets, options.device, options.jobs, tuned, last=options.confirm)
    text = summary(results)
    print("\n" + text)
    seeds = NEW_SEEDS if options.confirm else SEEDS
    record = {**about(options.device), "seconds": round(time.time() - started), "seeds": seeds}
    stem = "confirmation_" if options.confirm else ""
    write(options.out / f"{stem}results.json", {**record, "runs": results})
    (options.out / f"{stem}summary.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
