"""AnyLoss, Tables 8 and 9 and Fig. 5: what an epoch costs, and how many are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from anyloss_four import LOSSES, PACK, SETS, STAND_IN, Slp
from anyloss_runs import problem
from frame import Context, Folds, Json, Table, Verdict, judged, picture, rows
from perceptrons import METRICS, Objective, descend, make_rows
from torch import Tensor, nn

import stepless as sl

_SOL = ("accuracy", "f1", "balanced_accuracy")


def _plain_losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """One net's losses as one would write them."""
    made: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "bce": nn.functional.binary_cross_entropy_with_logits,
        "mse": lambda z, y: (z.sigmoid() - y).square().mean(),
    }
    for name, (metric, options) in METRICS.items():
        made[name] = sl.presets.anyloss(metric, **options)
    for name in _SOL:
        made[f"sol:{name}"] = sl.presets.score_oriented(METRICS[name][0])
    return made


class Ratios(Table):
    """Table 8."""

    name, paper = "anyloss_8", "AnyLoss"
    title = "Table 8: learning time as a multiple of BCE's"
    alone = True

    def cells(self, context: Context) -> list[str]:
        return [f"{name}/{net}" for name in (["3"] if context.quick else SETS) for net in ("slp", "mlp")]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        rounds = 3 if context.quick else self.protocol["rounds"]
        for cell in cells:
            name, _, net = cell.partition("/")
            given = problem(PACK, name)
            part = given.outer != 0
            x = torch.tensor((given.x[part] - given.x[part].mean(0)) / given.x[part].std(0), device=context.device)
            y = torch.tensor(given.y[part], dtype=torch.float32, device=context.device)
            times: dict[str, list[float]] = {loss: [] for loss in _plain_losses()}
            for _ in range(rounds):  # all in turn: a busy machine is busy for all
                for loss, made in _plain_losses().items():
                    times[loss].append(self._time(x, y, made, net))
            yield cell, {loss: [1000 * t for t in taken] for loss, taken in times.items()}

    def _time(self, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], net: str) -> float:
        """Seconds for so many steps."""
        torch.manual_seed(0)
        d = x.shape[1]
        if net == "slp":
            model, size = nn.Sequential(nn.Linear(d, 1), nn.Flatten(0)), len(x)
        else:
            model = nn.Sequential(nn.Linear(d, 2), nn.BatchNorm1d(2), nn.Sigmoid(), nn.Linear(2, 1), nn.Flatten(0))
            size = max(2, len(x) // 20)
        model.to(x.device)
        optimiser = (torch.optim.SGD if net == "slp" else torch.optim.Adam)(model.parameters(), lr=1e-2)
        batches = list(zip(x.split(size), y.split(size), strict=True))[: len(x) // size]
        begun = time.perf_counter()
        for step in range(self.protocol["steps"]):
            part, target = batches[step % len(batches)]
            optimiser.zero_grad()
            loss(model(part), target).backward()
            optimiser.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    def _ratios(self, value: Json) -> list[float]:
        """MSE, the mean of SOL, the mean of AnyLoss."""
        median = {loss: float(np.median(times)) for loss, times in value.items()}
        groups = (["mse"], [f"sol:{name}" for name in _SOL], list(METRICS))
        return [float(np.mean([median[loss] for loss in group])) / median["bce"] for group in groups]

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for net in ("slp", "mlp"):
            for name in SETS:
                if f"{name}/{net}" in folds:
                    ratio, said = self._ratios(folds[f"{name}/{net}"])[2], self.printed[net][name][2]
                    what = "stand-in for #2" if name == STAND_IN else SETS[name]
                    found.append(
                        judged(f"{what}, {net.upper()}: AnyLoss costs about what BCE does", f"{said:.3f}",
                               f"{ratio:.3f}", holds=ratio <= said + self.protocol["tolerance"],
                               reason="BCE is one fused call in PyTorch; in the paper's code it was not.")
                    )  # fmt: skip
        return found

    def summary(self, folds: Folds) -> str:
        found = [self._ratios(value)[2] for value in folds.values()]
        return f"AnyLoss takes {min(found):.2f} to {max(found):.2f} times what BCE does." if found else ""

    def show(self, folds: Folds) -> list[str]:
        body = []
        for name, title in SETS.items():
            for net in ("slp", "mlp"):
                if f"{name}/{net}" in folds:
                    pairs = zip(self.printed[net][name], self._ratios(folds[f"{name}/{net}"]), strict=True)
                    body.append([title, net.upper(), *(f"{said:.3f} / {ours:.3f}" for said, ours in pairs)])
        return [rows(["set", "network", *(f"{who}: printed / found" for who in ("MSE", "SOL", "AnyLoss"))], body)]


class Achievement(Table):
    """Table 9 and Fig. 5."""

    name, paper = "anyloss_9", "AnyLoss"
    title = "Table 9 and Fig. 5: how much of the loss is gone after so many epochs"

    def cells(self, context: Context) -> list[str]:
        kinds = ["bce", "f1"] if context.quick else ["bce", *METRICS]
        return [f"{name}/{kind}" for name in (["3"] if context.quick else SETS) for kind in kinds]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        rates = Slp().protocol["rates"]
        for cell in cells:
            name, _, kind = cell.partition("/")
            given = problem(PACK, name)
            placed, curve = make_rows(given.x, given.y, given.train, context.device), []
            descend(placed, Objective(kind, rates[name][kind]), self.protocol["steps"] + 1, curve)
            yield cell, {"curve": curve[::20]}

    def _rates(self, folds: Folds, cell: str) -> np.ndarray | None:
        if cell not in folds:
            return None
        curve = folds[cell]["curve"]
        return np.array([(curve[0] - curve[epoch // 20]) / (curve[0] - curve[-1]) for epoch in self.protocol["epochs"]])

    def _pair(self, folds: Folds, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        bce, others = self._rates(folds, f"{name}/bce"), [self._rates(folds, f"{name}/{kind}") for kind in METRICS]
        there = [rate for rate in others if rate is not None]
        return None if bce is None or not there else (bce, np.mean(there, 0))

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for name, title in SETS.items():
            pair = self._pair(folds, name)
            if pair is None or name == STAND_IN:
                continue
            bce, ours = pair[0][0], pair[1][0]
            said_bce, said_ours = self.printed[name]["bce"][0], self.printed[name]["mean"][0]
            near = self.protocol["tolerance"]
            found += [
                judged(f"{title}: achieved by BCE at epoch 100", f"{said_bce:.3f}", f"{bce:.3f}",
                       holds=abs(bce - said_bce) <= near, reason="No reason found."),
                judged(f"{title}: achieved by AnyLoss at epoch 100, mean", f"{said_ours:.3f}", f"{ours:.3f}",
                       holds=abs(ours - said_ours) <= near,
                       reason="The true gradient of G-mean is a quarter of the released one; no other reason found."),
                judged(f"{title}: AnyLoss is ahead of BCE at epoch 100", f"{said_ours:.3f} > {said_bce:.3f}",
                       f"{ours:.3f} and {bce:.3f}", holds=ours > bce, reason="It is not, at the paper's rates."),
            ]  # fmt: skip
        return found

    def show(self, folds: Folds) -> list[str]:
        body = []
        for name, title in SETS.items():
            pair = self._pair(folds, name)
            if pair is not None:
                for words, key, rates in (("BCE", "bce", pair[0]), ("mean of AnyLoss", "mean", pair[1])):
                    said = ["–"] * len(rates) if name == STAND_IN else [f"{v:.3f}" for v in self.printed[name][key]]
                    body.append([title, words, *(f"{s} / {r:.3f}" for s, r in zip(said, rates, strict=True))])
        words = "Each loss has its own learning rate, so the rates compare pairs of a loss and a rate, not losses."
        return [words, rows(["set", "loss", *(f"epoch {e}: printed / found" for e in self.protocol["epochs"])], body),
                picture("anyloss_fig5", "Fig. 5: learning curves of BCE (red) and AnyLoss (blue)")]  # fmt: skip

    def draw(self, folds: Folds) -> dict[str, Any]:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only where pictures are drawn

        figure = Figure((9, 2.5))
        for place, (name, title) in enumerate(SETS.items()):
            axes = figure.add_subplot(1, 4, place + 1)
            for kind in ("bce", *METRICS):
                if f"{name}/{kind}" in folds:
                    curve = folds[f"{name}/{kind}"]["curve"]
                    colour, steps = "#b5402a" if kind == "bce" else "#3a6ea5", [20 * i for i in range(len(curve))]
                    axes.plot(steps, curve, color=colour, linewidth=0.8, label=LOSSES[kind])
            axes.set_title(title.partition(":")[0], fontsize=8)
            axes.tick_params(labelsize=6)
        return {"anyloss_fig5": figure}

    def directions(self, folds: Folds) -> dict[str, bool]:
        return {f"{cell}: the loss falls": value["curve"][-1] < value["curve"][0] for cell, value in folds.items()}


TABLES = [Ratios(), Achievement()]
