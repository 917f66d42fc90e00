"""AnyLoss, Tables 8 and 9 and Fig. 5: what an epoch costs, and how many are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from anyloss_four import PACK, SETS, STAND_IN, Slp
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

    def _step(self, value: Json, losses: Iterable[str]) -> float:
        """Milliseconds a step, the mean of these losses."""
        return float(np.mean([np.median(value[loss]) for loss in losses])) / self.protocol["steps"]

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for net in ("slp", "mlp"):
            for name in SETS:
                if f"{name}/{net}" in folds:
                    ratio, said = self._ratios(folds[f"{name}/{net}"])[2], self.printed[net][name][2]
                    what = "stand-in for #2" if name == STAND_IN else SETS[name]
                    bce, ours = self._step(folds[f"{name}/{net}"], ["bce"]), self._step(folds[f"{name}/{net}"], METRICS)
                    found.append(
                        judged(f"{what}, {net.upper()}: AnyLoss costs about what BCE does", f"{said:.3f}",
                               f"{ratio:.3f}", holds=ratio <= said + self.protocol["tolerance"],
                               reason=f"A step takes {bce:.2f} ms with BCE, which is one operation of PyTorch, and"
                                      f" {ours:.2f} ms with AnyLoss, which is several.")
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

    def _faster(self, folds: Folds, name: str) -> str:
        """How much faster our curve of BCE would have to run to give the printed rates, whatever it ends at."""
        curve, printed = np.array(folds[f"{name}/bce"]["curve"]), np.array(self.printed[name]["bce"])
        epochs, steps, spreads = np.array(self.protocol["epochs"]), 20 * np.arange(len(curve)), {}
        for factor in np.arange(0.5, 20, 0.25):
            within = factor * epochs <= steps[-1]
            if within.sum() < 3:
                break
            # the fall of the loss over the printed rate is the whole fall, the same at every epoch
            whole = (curve[0] - np.interp(factor * epochs[within], steps, curve)) / printed[within]
            spreads[float(factor)] = float(np.ptp(whole) / whole.mean())
        best = min(spreads, key=lambda factor: spreads[factor])
        if best == 1 or spreads[best] > 0.02:
            return "no other speed of our curve gives the printed row"
        more = " or more" if best == max(spreads) else ""
        return (
            f"the printed row is that of our curve run {best:g} times as fast{more}, as by a larger rate than printed"
        )

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
                       holds=abs(bce - said_bce) <= near,
                       reason=f"Reason not found at the rate of Table 17; {self._faster(folds, name)}."),
                judged(f"{title}: achieved by AnyLoss at epoch 100, mean", f"{said_ours:.3f}", f"{ours:.3f}",
                       holds=abs(ours - said_ours) <= near,
                       reason=self._not_g_mean(folds, name, ours, said_ours)),
                judged(f"{title}: AnyLoss is ahead of BCE at epoch 100", f"{said_ours:.3f} > {said_bce:.3f}",
                       f"{ours:.3f} and {bce:.3f}", holds=ours > bce, reason="It is not, at the paper's rates."),
            ]  # fmt: skip
        return found

    def _not_g_mean(self, folds: Folds, name: str, ours: float, said: float) -> str:
        """Whether the released gradient of G-mean, four times the true one, could be what is missing."""
        rates = {kind: rate[0] for kind in METRICS if (rate := self._rates(folds, f"{name}/{kind}")) is not None}
        most = ours + (1 - rates.get("g_mean", 1.0)) / len(rates)
        if most >= said - self.protocol["tolerance"]:
            return "Perhaps the gradient of G-mean, which is four times the true one in the released code."
        return (
            "Reason not found. It is not the released gradient of G-mean, four times the true one: had G-mean achieved"
            f" all by then, the mean would be {most:.3f}."
        )

    def summary(self, folds: Folds) -> str:
        pairs = [pair for name in SETS if (pair := self._pair(folds, name)) is not None]
        if not pairs:
            return ""
        ahead = sum(bool((ours > bce).all()) for bce, ours in pairs)
        first = sum(bool(ours[0] > bce[0]) for bce, ours in pairs)
        return (
            f"AnyLoss has achieved more than BCE at epoch 100 on {first} of {len(pairs)} sets, and at every epoch shown"
            f" on {ahead}; each loss has its own rate, so this does not compare losses alone."
        )

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

        figure = Figure((11, 3), layout="constrained")
        for place, (name, title) in enumerate(SETS.items()):
            axes = figure.add_subplot(1, 4, place + 1)
            for kind in (*METRICS, "bce"):
                if f"{name}/{kind}" in folds:
                    curve = folds[f"{name}/{kind}"]["curve"]
                    colour, steps = "#b5402a" if kind == "bce" else "#3a6ea5", [20 * i for i in range(len(curve))]
                    label = {"bce": "BCE", "f1": "AnyLoss (six)"}.get(kind)
                    axes.plot(steps, curve, color=colour, linewidth=1.6 if kind == "bce" else 1, label=label)
            axes.set_title(title.partition(":")[0], fontsize=10)
            axes.set_xlabel("epochs", fontsize=9)
            axes.set_ylim(0, 1)
            axes.tick_params(labelsize=8)
        figure.axes[0].set_ylabel("loss", fontsize=9)
        figure.axes[-1].legend(fontsize=8)
        return {"anyloss_fig5": figure}

    def directions(self, folds: Folds) -> dict[str, bool]:
        return {f"{cell}: the loss falls": value["curve"][-1] < value["curve"][0] for cell, value in folds.items()}


TABLES = [Ratios(), Achievement()]
