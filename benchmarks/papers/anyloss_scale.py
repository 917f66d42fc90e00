"""AnyLoss, Table 1 and Fig. 3: which scales L are valid, and what learning curves look like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from anyloss_runs import problem
from frame import REPRODUCED, Context, Folds, Json, Table, Verdict, judged, picture, rows
from perceptrons import Objective, descend, make_rows

import stepless as sl


class Range(Table):
    """Table 1, derived from the two conditions with float64 arithmetic."""

    name, paper = "anyloss_1", "AnyLoss"
    title = "Table 1: the valid range of L"

    def cells(self, context: Context) -> list[str]:
        return [f"{level:g}" for level in self.protocol["levels"]]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        for cell in cells:
            level = float(cell)
            yield cell, {"lower": _lower(level), "upper": _upper(level), "upper_step": _upper_step(level)}

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found, printed = [], self.printed
        for place, level in enumerate(self.protocol["levels"]):
            value = folds.get(f"{level:g}")
            if value is None:
                continue
            pair = printed["lower"][place], printed["upper"][place]
            gap = max(abs(value["lower"] - pair[0]), abs(value["upper"] - pair[1]))
            found.append(
                judged(f"range of L at t = {level:g}", f"{pair[0]} to {pair[1]}",
                       f"{value['lower']:.2f} to {value['upper']:.2f}", holds=gap <= self.protocol["tolerance"],
                       reason="Reason not found: the two conditions are solved here as the paper states them.")
            )  # fmt: skip
        return found

    def summary(self, folds: Folds) -> str:
        held = sum(v.verdict == REPRODUCED for v in self.verdicts(folds))
        return (
            f"The two conditions give {held} of {len(folds)} printed ranges; the upper end is one of rounding near 1."
        )

    def show(self, folds: Folds) -> list[str]:
        body = [[f"{level:g}", f"{v['lower']:.2f}", f"{v['upper']:.2f}", f"{v['upper_step']:.2f}",
                 "none" if v["lower"] > v["upper"] else f"{v['lower']:.2f} to {v['upper']:.2f}"]
                for level in self.protocol["levels"] if (v := folds.get(f"{level:g}")) is not None]  # fmt: skip
        words = (
            "The least L amplifies t and 1 − t; the greatest keeps 1/(1 + exp(−L(p − ½))) from being exactly 1 in"
            " float64. The upper bound is one of rounding near 1, not of the method: near 0, where the same decision is"
            " written as a small number, `sl.Sigmoid` is above 0 up to an L of more than a thousand."
        )
        return [words, rows(["t", "least L", "greatest L", "greatest L, low side of `sl.Sigmoid`", "valid"], body)]

    def directions(self, folds: Folds) -> dict[str, bool]:
        return {v.claim: v.verdict == "reproduced" for v in self.verdicts(folds)}


def _lower(level: float) -> float:
    """σ(L(½ − t)) ≥ 1 − t, solved for L."""
    return math.log((1 - level) / level) / (0.5 - level)


def _bisect(saturated: Any, high: float) -> float:
    """The greatest L, to 0.001, before a step saturates."""
    low = 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if saturated(middle) else (middle, high)
    return low


def _upper(level: float) -> float:
    """The greatest L for which 1/(1 + exp(−L(½ − t))) is below 1 in float64."""
    return _bisect(lambda scale: 1 / (1 + np.exp(-scale * (1 - level - 0.5))) == 1.0, 200.0)


def _upper_step(level: float) -> float:
    """The same at the low side, of the step that trains here."""
    p = torch.tensor([level], dtype=torch.float64)
    return _bisect(lambda scale: float(sl.Sigmoid(k=scale)(p, 0.5)) == 0.0, 4000.0)


class Curves(Table):
    """Fig. 3."""

    name, paper = "anyloss_fig3", "AnyLoss"
    title = "Fig. 3: learning curves at several L"

    def cells(self, context: Context) -> list[str]:
        return [f"{scale:g}" for scale in self.protocol["scales"]]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = self.protocol
        given = problem("anyloss_four", protocol["set"])
        placed = make_rows(given.x, given.y, given.train[:, :1], context.device)
        for cell in cells:
            curve: list[float] = []
            descend(placed, Objective(protocol["loss"], protocol["rate"], scale=float(cell)), protocol["steps"], curve)
            yield cell, {"curve": curve[::10] + curve[-1:]}

    def _last(self, folds: Folds) -> dict[float, float]:
        return {s: folds[f"{s:g}"]["curve"][-1] for s in self.protocol["scales"] if f"{s:g}" in folds}

    def verdicts(self, folds: Folds) -> list[Verdict]:
        last = self._last(folds)
        if len(last) < len(self.protocol["scales"]):
            return []
        text = ", ".join(f"{value:.3f} at L = {scale:g}" for scale, value in last.items())
        curve = folds["100"]["curve"]
        learnt = (curve[0] - curve[-1]) / (folds["73"]["curve"][0] - last[73.0])
        return [
            judged("a larger L of 1, 5, 10 ends at a smaller loss", "yes", text,
                   holds=last[1.0] > last[5.0] > last[10.0], reason="Final losses are not in that order."),
            judged("with L = 100 the model abruptly stops learning", "yes",
                   f"it learns {learnt:.0%} of what L = 73 does", holds=learnt < 0.5,
                   reason="Reason not found: the figure's data, loss and rate are not printed. A scale beyond Table 1's"
                          " range alone does not stop the learning of set #1."),
        ]  # fmt: skip

    def summary(self, folds: Folds) -> str:
        last = self._last(folds)
        if len(last) < len(self.protocol["scales"]):
            return ""
        holds = "learns more" if last[1.0] > last[5.0] > last[10.0] else "does not always learn more"
        return f"On set #1 a larger L {holds}; L = 100 ends at {last[100.0]:.3f}, L = 73 at {last[73.0]:.3f}."

    def show(self, folds: Folds) -> list[str]:
        return [picture("anyloss_fig3", "Loss against steps at several L, set #1, a logistic unit, 1 − soft F1")]

    def draw(self, folds: Folds) -> dict[str, Any]:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only where pictures are drawn

        figure = Figure((6, 3.2))
        axes = figure.add_subplot()
        for scale in self.protocol["scales"]:
            if f"{scale:g}" in folds:
                curve = folds[f"{scale:g}"]["curve"]
                axes.plot(
                    [min(10 * i, self.protocol["steps"]) for i in range(len(curve))], curve, label=f"L = {scale:g}"
                )
        axes.set(xlabel="steps", ylabel="1 − soft F1")
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return {"anyloss_fig3": figure}

    def directions(self, folds: Folds) -> dict[str, bool]:
        last = self._last(folds)
        return {"a larger L of 1, 5, 10 ends at a smaller loss": last[1.0] > last[5.0] > last[10.0]}


TABLES = [Range(), Curves()]
