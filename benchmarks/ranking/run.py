"""Is a net trained on AUROC, or on average precision, better at it than one trained on cross-entropy?

Adult (its official split), Mammography and Kaggle's credit card fraud. Protocol: 60 % of the rows train, 20 % validate
and 20 % test (Adult: 80 % and 20 % of its training part, and its test part), stratified and drawn anew for each seed;
features standardised on the training rows, categories one-hot. One net, 2 × 64 ReLU, AdamW; learning rate, epochs and
batch are the same for all losses. After every epoch the validation rows are scored; the test AUROC is that of the epoch
of best validation AUROC, and the test AP that of best validation AP, for all losses alike. AUCM is the min-max margin
loss of Yuan et al. (ICCV 2021), from the paper's formula.

Everything that was chosen was chosen on validation rows, of seeds that the comparison does not use (`--tune`): for each
loss by itself, cross-entropy first of all, the weight decay, from one grid; and the margin of ours. The best epoch's
own score would flatter losses whose score jumps about; so the validation rows are halved, the epoch is chosen on either
half and scored on the other. What was found is in tuning.json, and the comparison reads the weight decays there. Test
rows are looked at by the comparison alone.

The nets of all seeds are trained side by side, as one stack of matrices; for the losses they are labels.

    STEPLESS_DATA=… python benchmarks/ranking/run.py --tune --device cuda
    STEPLESS_DATA=… python benchmarks/ranking/run.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepless as sl

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import data_folder, manifest, read_table

HERE = Path(__file__).parent
HIDDEN, RATE = 64, 2e-3
#: Rows a batch, epochs, and the weight decays that are tried.
SETTINGS = {
    "adult": {"batch": 2048, "epochs": 40, "decays": (2.0, 4.0, 8.0)},
    "mammography": {"batch": 2048, "epochs": 200, "decays": (0.01, 0.1, 1.0)},
    "creditcard": {"batch": 4096, "epochs": 40, "decays": (0.1, 1.0)},
}
SEEDS, TUNING_SEEDS = tuple(range(10)), tuple(range(1000, 1012))
SCORES = ("auroc", "average_precision")
MARGINS = {"auroc": (2, 4), "average_precision": (2, 4)}
#: What is asked for: never more than this below cross-entropy, and above it on this many of the sets.
MUST = {"behind": -0.002, "ahead": 2}

Loss = Callable[[Tensor, Tensor], Tensor]
#: Features (seeds, rows, columns) and targets (seeds, rows).
Part = tuple[Tensor, Tensor]


class MinMaxMargin(nn.Module):
    """AUCM: E₊(h − a)² + E₋(h − b)² + max over α ≥ 0 of 2α(m − E₊h + E₋h) − α², with h = σ(logit), m = 1."""

    def __init__(self, nets: int) -> None:
        super().__init__()
        self.a, self.b, self.alpha = (nn.Parameter(torch.zeros(nets)) for _ in range(3))
        self.alpha.register_hook(torch.neg)  # the optimiser goes down, α goes up

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            self.alpha.clamp_(min=0)
        h = logits.sigmoid()
        sides = [side / side.sum(0).clamp(min=1) for side in (target, 1 - target)]
        positive, negative = ((side * h).sum(0) for side in sides)
        spread = (sides[0] * (h - self.a) ** 2).sum(0) + (sides[1] * (h - self.b) ** 2).sum(0)
        return (spread + 2 * self.alpha * (1 - positive + negative) - self.alpha**2).mean()


#: For a number of nets: the mean of their losses, of logits and targets (rows, nets).
LOSSES: dict[str, Callable[[int], Loss]] = {
    "cross-entropy": lambda _: F.binary_cross_entropy_with_logits,
    "auroc": lambda _: sl.MetricLoss("auroc", task="multilabel"),
    "average_precision": lambda _: sl.MetricLoss("average_precision", task="multilabel"),
    "AUCM": MinMaxMargin,
}


def load(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, target, and which rows are an official test set."""
    if name == "creditcard":
        parts = [manifest().loc[f"creditcard_fraud_part{i}"] for i in (1, 2)]
        table = pd.concat([read_table(data_folder() / part["file"]) for part in parts])
        x, y, official = table.drop(columns="Class"), table["Class"] == 1, np.zeros(len(table), bool)
    elif name == "mammography":
        table = read_table(data_folder() / manifest().loc[name]["file"]).dropna()  # the last row has no class
        x, y, official = table.drop(columns="class"), table["class"] == 1, np.zeros(len(table), bool)
    else:
        table = read_table(data_folder() / manifest().loc["adult_uci"]["file"])
        x = pd.get_dummies(table.drop(columns=["income", "split"]))
        y, official = table["income"].str.strip() == ">50K", (table["split"] == "test").to_numpy()
    return x.to_numpy(np.float32), y.to_numpy(), official


def split(x: np.ndarray, y: np.ndarray, official: np.ndarray, seeds: tuple[int, ...], device: str) -> list[Part]:
    """Training, validation and test rows of all seeds."""
    stacks: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []), ([], []), ([], [])]
    for seed in seeds:
        fold, random = np.full(len(y), 5), np.random.default_rng(seed)
        for label in (False, True):
            rows = np.flatnonzero((y == label) & ~official)
            fold[rows] = random.permutation(len(rows)) % 5
        kept = 4 if official.any() else 3
        parts = [fold < kept, fold == kept, fold > kept]
        mean, scale = x[parts[0]].mean(0), x[parts[0]].std(0)
        for (features, targets), part in zip(stacks, parts, strict=True):
            features.append((x[part] - mean) / np.where(scale > 0, scale, 1))
            targets.append(y[part].astype(np.float32))
    return [tuple(torch.tensor(np.stack(stack)).to(device) for stack in pair) for pair in stacks]


class Nets(nn.Module):
    """One net a seed; the weights of each depend on its seed alone."""

    def __init__(self, inputs: int, seeds: tuple[int, ...]) -> None:
        super().__init__()
        sizes, layers = [inputs, HIDDEN, HIDDEN, 1], []
        for seed in seeds:
            torch.manual_seed(seed)
            layers.append([nn.Linear(*ends) for ends in pairwise(sizes)])
        stacked = [list(each) for each in zip(*layers, strict=True)]
        self.weights = nn.ParameterList([torch.stack([layer.weight.data.T for layer in each]) for each in stacked])
        self.biases = nn.ParameterList([torch.stack([layer.bias.data for layer in each])[:, None] for each in stacked])

    def forward(self, x: Tensor) -> Tensor:
        """Rows ``(nets, n, inputs)`` → logits ``(n, nets)``."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if i else x, weight)
        return x.squeeze(2).T


def train(part: Part, make: Callable[[int], Loss], seeds: tuple[int, ...], name: str, decay: float) -> Iterator[Nets]:
    """The nets after each epoch."""
    x, y = part
    nets, loss_fn = Nets(x.shape[2], seeds).to(x.device), make(len(seeds))
    own = list(loss_fn.to(x.device).parameters()) if isinstance(loss_fn, nn.Module) else []
    groups = [{"params": nets.parameters()}, {"params": own, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=decay)
    generators = [torch.Generator(x.device).manual_seed(seed) for seed in seeds]
    for _ in range(SETTINGS[name]["epochs"]):
        order = torch.stack([torch.randperm(y.shape[1], generator=g, device=x.device) for g in generators])
        for rows in order.tensor_split(max(1, y.shape[1] // SETTINGS[name]["batch"]), dim=1):
            optimizer.zero_grad()
            batch = x.gather(1, rows[:, :, None].expand(-1, -1, x.shape[2]))
            (loss_fn(nets(batch), y.gather(1, rows).T) * len(seeds)).backward()
            optimizer.step()
        yield nets


@torch.no_grad()
def score(nets: Nets, part: Part, metric: str) -> np.ndarray:
    """The score of each net."""
    logits = nets(part[0])
    return sl.score(logits, part[1].T, metric, task="multilabel", average="none").cpu().numpy()


# ---------------------------------------------------------------------------------------------------------------------
# Tuning, on validation rows
# ---------------------------------------------------------------------------------------------------------------------


def halves(part: Part) -> tuple[Part, Part]:
    """Every second positive and every second negative of each seed's rows, and the others."""
    x, y = part
    place = torch.where(y > 0, y.cumsum(1), (1 - y).cumsum(1)) % 2
    order = place.argsort(dim=1, stable=True)
    cut = int((place == 0).sum(1)[0])
    rows = (order[:, :cut], order[:, cut:])
    return tuple((x.gather(1, r[:, :, None].expand(-1, -1, x.shape[2])), y.gather(1, r)) for r in rows)


def validate(parts: list[Part], make: Callable[[int], Loss], name: str, decay: float) -> dict[str, float]:
    """The mean score on one half of the validation rows of the epoch that is best on the other."""
    held = halves(parts[1])
    curves: dict[str, list[np.ndarray]] = {metric: [] for metric in SCORES}
    for nets in train(parts[0], make, TUNING_SEEDS, name, decay):
        for metric, curve in curves.items():
            curve.append(np.stack([score(nets, half, metric) for half in held]))
    found = {}
    for metric, curve in curves.items():
        table = np.stack(curve)  # epochs, halves, seeds
        found[metric] = float(np.take_along_axis(table[:, ::-1], table.argmax(0)[None], 0).mean())
    return found


def tune(names: list[str], device: str) -> None:
    trials: dict[str, Callable[[int], Loss]] = {name: LOSSES[name] for name in ("cross-entropy", "AUCM")}
    for metric, margins in MARGINS.items():
        for margin in margins:
            trials[f"{metric} m={margin}"] = lambda _, metric=metric, margin=margin: sl.MetricLoss(
                metric, task="multilabel", margin=margin
            )
    record: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name in names:
        parts, record[name] = split(*load(name), TUNING_SEEDS, device), {}
        for label, make in trials.items():
            found = {f"{decay:g}": validate(parts, make, name, decay) for decay in SETTINGS[name]["decays"]}
            record[name][label] = found
            for decay, means in found.items():
                print(f"{name:12s} {label:24s}{decay:>6s}" + "".join(f"{means[m]:9.4f}" for m in SCORES), flush=True)
        write("tuning.json", {"seeds": TUNING_SEEDS, "validation": record, **about(device)})


def chosen_decay(name: str, label: str) -> float:
    """The weight decay of the best sum of both scores, at the margin that is the default."""
    record = json.loads((HERE / "tuning.json").read_text())["validation"][name]
    margin = sl.RANKINGS[label].defaults["margin"] if label in SCORES else None
    found = record[label if margin is None else f"{label} m={margin:g}"]
    return float(max(found, key=lambda decay: sum(found[decay].values())))


# ---------------------------------------------------------------------------------------------------------------------
# Comparison, on test rows
# ---------------------------------------------------------------------------------------------------------------------


def test(parts: list[Part], label: str, name: str) -> list[dict[str, float]]:
    """Each seed's test scores, of the epochs of best validation scores."""
    best = {metric: np.full(len(SEEDS), -1.0) for metric in SCORES}
    found = {metric: np.full(len(SEEDS), np.nan) for metric in SCORES}
    for nets in train(parts[0], LOSSES[label], SEEDS, name, chosen_decay(name, label)):
        for metric in SCORES:
            value = score(nets, parts[1], metric)
            better = value > best[metric]
            if better.any():
                found[metric] = np.where(better, score(nets, parts[2], metric), found[metric])
                best[metric] = np.maximum(best[metric], value)
    return [
        {metric: float(found[metric][i]) for metric in SCORES}
        | {f"validation {metric}": float(best[metric][i]) for metric in SCORES}
        for i in range(len(SEEDS))
    ]


def compare(names: list[str], labels: list[str], device: str) -> dict[str, dict[str, list[dict[str, float]]]]:
    started, results = time.time(), {}
    for name in names:
        parts, results[name] = split(*load(name), SEEDS, device), {}
        for label in labels:
            results[name][label] = test(parts, label, name)
            print(f"{name}, {label} ({time.time() - started:.0f} s)", flush=True)
    return results


def summary(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    lines = []
    for metric in SCORES:
        ahead, behind = 0, []
        for name, found in results.items():
            values = {label: np.array([run[metric] for run in runs]) for label, runs in found.items()}
            base = values["cross-entropy"]
            lines += [f"\ntest {metric}, {name}, {len(base)} seeds", f"  {'trained on':20s}{'mean':>9s}{'sd':>8s}"]
            lines[-1] += f"{'− cross-entropy':>18s}{'better on':>11s}"
            for label, value in values.items():
                gap, spread = value - base, value.std(ddof=1) if len(value) > 1 else 0.0
                lines.append(f"  {label:20s}{value.mean():9.4f}{spread:8.4f}{gap.mean():+18.4f}{(gap > 0).sum():11d}")
            if metric in values:
                gap = float((values[metric] - base).mean())
                ahead += gap > 0
                behind += [name] if gap < MUST["behind"] else []
        verdict = "held" if not behind and ahead >= min(MUST["ahead"], len(results)) else "MISSED"
        lines.append(
            f"\n{metric}: above cross-entropy on {ahead} of {len(results)} sets (asked: {MUST['ahead']}), more than"
            f" {-MUST['behind']} below it on {len(behind)} {behind or ''}: {verdict}"
        )
    return "\n".join(lines).strip()


def about(device: str) -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {"stepless": sl.__version__, "torch": torch.__version__, "numpy": np.__version__}
    chosen = {name: {k: str(v) for k, v in sl.RANKINGS[name].defaults.items()} for name in SCORES}
    settings = {"hidden": HIDDEN, "rate": RATE, "sets": SETTINGS, "options": chosen}
    return {"commit": commit, "device": device, "versions": versions, "settings": settings}


def write(file: str, record: object) -> None:
    (HERE / file).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tune", action="store_true", help="choose settings on validation rows")
    options = parser.parse_args()
    if options.tune:
        tune(options.datasets, options.device)
        return
    started = time.time()
    results = compare(options.datasets, options.losses, options.device)
    text = summary(results)
    print("\n" + text)
    decays = {name: {label: chosen_decay(name, label) for label in options.losses} for name in options.datasets}
    record = {**about(options.device), "seconds": round(time.time() - started), "seeds": SEEDS}
    write("results.json", {**record, "decays": decays, "runs": results})
    (HERE / "summary.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
