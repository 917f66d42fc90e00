"""EAST's consistency, measured: the soft metric of the d×d matrix against the hard one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from frame import Context, Folds, Json, Table, Verdict, judged, picture
from torch import Tensor

import stepless as sl


def drawn(protocol: Json, n: int, repetition: int) -> tuple[Tensor, Tensor]:
    """Logits and classes of n samples; the classes' shares fall as 1, ½, ⅓, …"""
    random = np.random.default_rng((protocol["seed"], n, repetition))
    shares = 1 / np.arange(1, protocol["classes"] + 1)
    y = random.choice(protocol["classes"], n, p=shares / shares.sum())
    z = random.normal(size=(n, protocol["classes"]))
    z[np.arange(n), y] += protocol["bonus"]
    return torch.from_numpy(z), torch.from_numpy(y)


class Annealed(Table):
    """Cells: metrics; each holds |soft − hard| by sharpness at the largest n, and by n at both ends of sharpness."""

    name, paper, title = "theory_east", "Theory", "The annealed matrix meets the hard one (EAST)"

    def cells(self, context: Context) -> list[str]:
        return list(self.protocol["metrics"])

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = {**self.protocol, **(self.protocol["quick"] if context.quick else {})}
        sizes, sharpness = protocol["sizes"], protocol["sharpness"]

        def gap(metric: str, n: int, sharp: float) -> float:
            found = []
            for repetition in range(max(3, min(protocol["repetitions"], 100_000 // n))):
                z, y = drawn(protocol, n, repetition)
                loss = sl.MetricLoss(metric, task="multiclass", step=sl.Linear(delta=0.1).sharpened(float(sharp)))
                found.append(abs(float(1 - loss(z, y) - loss.score(z, y))))
            return float(np.mean(found))

        for metric in cells:
            yield (
                metric,
                {
                    "sharpness": sharpness,
                    "by_sharpness": [gap(metric, sizes[-1], s) for s in sharpness],
                    "n": sizes,
                    "by_n": {str(s): [gap(metric, n, s) for n in sizes] for s in (sharpness[0], sharpness[-1])},
                },
            )

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for metric, cell in folds.items():
            tolerance, last = self.protocol["tolerance"], cell["by_sharpness"][-1]
            found.append(
                judged(
                    f"soft {metric} of the d×d matrix → hard {metric} as the step sharpens",
                    "consistent",
                    f"apart by {cell['by_sharpness'][0]:.3f} to {last:.5f} at n = {cell['n'][-1]:,}",
                    holds=last <= tolerance,
                    reason=f"above {tolerance}",
                )
            )
        return found

    def show(self, folds: Folds) -> list[str]:
        words = "EAST's formulas are not known to us: matrix and annealing are built from its abstract."
        stays = {m: c["by_n"][str(c["sharpness"][0])][-1] for m, c in folds.items()}
        if any(gap > self.protocol["stays"] for gap in stays.values()):
            largest = next(iter(folds.values()))["n"][-1]
            words += (
                f" With the step as given, soft and hard stay apart at n = {largest:,}"
                f" ({', '.join(f'{m} by {gap:.3f}' for m, gap in stays.items())}): more samples, or a weight that moves"
                " to the metric, do not close that; sharpening does."
            )
        return [words, picture(self.name, "distance of soft and hard metric against sharpness and n")]

    def summary(self, folds: Folds) -> str:
        if not folds:
            return ""
        first, last = (max(cell["by_sharpness"][place] for cell in folds.values()) for place in (0, -1))
        return (
            f"As the step sharpens, soft and hard metric of our build meet (at most {first:.3f} apart, then"
            f" {last:.5f})."
        )

    def draw(self, folds: Folds) -> dict[str, Any]:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only where pictures are drawn

        figure = Figure(figsize=(10, 3.6))
        left, right = figure.subplots(1, 2, sharey=True)
        for place, (metric, cell) in enumerate(sorted(folds.items())):
            left.plot(cell["sharpness"], np.maximum(cell["by_sharpness"], 1e-6), "o-", markersize=3, label=metric)
            for sharp, gaps in cell["by_n"].items():
                dashes = "-" if float(sharp) == 1 else "--"
                right.plot(
                    cell["n"], np.maximum(gaps, 1e-6), dashes, color=f"C{place}", label=f"{metric}, sharpness {sharp}"
                )
        left.set(
            xscale="log", yscale="log", xlabel="sharpness of the step", ylabel="|soft − hard|", title="at the largest n"
        )
        right.set(xscale="log", xlabel="n", title="as n grows")
        left.legend(fontsize=8)
        right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return {self.name: figure}

    def directions(self, folds: Folds) -> dict[str, bool]:
        return {
            f"soft {m} meets hard {m} as the step sharpens": c["by_sharpness"][-1] < c["by_sharpness"][0] / 5
            for m, c in folds.items()
        }
