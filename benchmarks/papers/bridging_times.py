"""How long *Bridging the Gap*'s loss takes to train."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from bridging_data import SETS, WORDS, problem
from bridging_losses import make
from frame import NOT_RUNNABLE, Context, Folds, Json, Results, Table, Verdict, judged, rows
from stacked import Mlp, Plan, train


class Times(Table):
    """Cells are sets: seconds an epoch of one network on F1* and on BCE."""

    name, paper, title = "bridging_times", "Bridging the Gap", "Times of training on F1*"
    alone = True

    def __init__(self, first: Table) -> None:
        self._first = first

    def cells(self, context: Context) -> list[str]:
        return list(self.protocol["quick"]["sets"] if context.quick else SETS)

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol, threads = self.protocol, torch.get_num_threads()
        epochs = protocol["quick"]["epochs"] if context.quick else protocol["epochs"]
        torch.set_num_threads(1)
        for name in cells:
            data, cell = problem(name, 1), {}
            for loss in ("f1", "bce"):
                net = Mlp(data.matrix, data.parts, (32, 16), 1, 1, 0, dropout=0.5)
                plan = Plan(epochs, protocol["batch_size"], protocol["learning_rate"], patience=epochs + 1)
                begun = time.process_time()
                train(net, data.target, data.parts, [make(loss)], plan, 0)
                cell[loss] = (time.process_time() - begun) / epochs
            yield name, cell
        torch.set_num_threads(threads)

    def minutes(self, folds: Folds) -> dict[str, float]:
        """Of a whole trial on F1*: the epochs it ran in Table 1, to its best one and on for as long as it waited."""
        first = Results.read(self._first)
        waited = first.table.protocol["patience"]
        return {
            name: cell["f1"] * (float(np.median(first.folds[f"{name}/f1"]["epochs"])) + waited) / 60
            for name, cell in folds.items()
            if f"{name}/f1" in first.folds
        }

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = self.minutes(folds)
        reason = "the adversarial loss (AP-Perf) is not implemented here; cited from the paper"
        verdicts = [
            Verdict(
                "adversarial F1†, minutes (median)", f"{self.printed['adversarial'][0]:.0f}", "–", NOT_RUNNABLE, reason
            )
        ]
        if found:
            median = float(np.median(list(found.values())))
            verdicts.insert(
                0,
                judged(
                    "F1* trains in minutes on a CPU (median over sets)",
                    f"{self.printed['f1'][0]}",
                    f"{median:.2f}",
                    holds=median <= self.printed["f1"][0] + self.printed["f1"][1],
                    reason="slower here, on one thread",
                ),
            )
        return verdicts

    def summary(self, folds: Folds) -> str:
        ratios = [cell["f1"] / cell["bce"] for cell in folds.values()]
        return f"An epoch of F1* takes {min(ratios):.1f} to {max(ratios):.1f} times one of BCE." if ratios else ""

    def show(self, folds: Folds) -> list[str]:
        minutes = self.minutes(folds)
        body = [
            [
                WORDS[name],
                f"{cell['f1']:.3f}",
                f"{cell['bce']:.3f}",
                f"{cell['f1'] / cell['bce']:.2f}",
                f"{minutes[name]:.1f}" if name in minutes else "–",
            ]
            for name, cell in folds.items()
        ]
        return [rows(["set", "F1*: s an epoch", "BCE: s an epoch", "F1* / BCE", "F1*: min a trial"], body)]
