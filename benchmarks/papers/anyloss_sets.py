"""AnyLoss, Tables 3, 4, 13, 15 and 16 and Fig. 4: 89 of the paper's 102 sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from anyloss_runs import classifier, mean, names, problem, together
from anyloss_wins import PACK, SETS, Wins, by_set, shown
from frame import Context, Folds, Json, Table, Verdict, judged, rows
from judging import WORDS, wins
from perceptrons import Objective, make_rows


class Slp(Wins):
    name, net, base = "anyloss_3_slp", "slp", "delta"
    title = "Tables 3, 4 and 15, Fig. 4: a logistic unit on 89 of 102 sets"
    faulty = ("g_mean",)


class Mlp(Wins):
    name, net, base = "anyloss_3_mlp", "mlp", "mse"
    title = "Tables 3, 4 and 16, Fig. 4: a hidden layer of two on 89 of 102 sets"
    faulty = ("mse", "bce", "accuracy", "f1", "g_mean", "balanced_accuracy")


class Classifier(Table):
    """MetricClassifier on the 89; the tables of the two networks compare it set by set."""

    name, paper = "anyloss_3_classifier", "AnyLoss"
    title = "MetricClassifier as it comes, on the same sets"
    needs = ("sklearn",)

    def cells(self, context: Context) -> list[str]:
        return [f"{name}/classifier" for name in (self.protocol["quick"] if context.quick else names(PACK))]

    def missing(self, folds: Folds) -> int:
        return SETS - len(folds)

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        folds = self.protocol["folds"][: 1 if context.quick else None]
        for cell in cells:
            yield cell, classifier(problem(PACK, cell.partition("/")[0]), folds, self.protocol)

    def verdicts(self, folds: Folds) -> list[Verdict]:
        return []

    def show(self, folds: Folds) -> list[str]:
        means = {metric: [mean(folds, cell, metric) for cell in folds] for metric in self.protocol["metrics"]}
        body = [[WORDS[metric], len(found), shown(float(np.mean(found)))] for metric, found in means.items()]
        words = (
            f"On folds {', '.join(map(str, self.protocol['folds']))} of the ten; the tables above compare set by set."
        )
        return [words, rows(["metric", "sets", "mean"], body)]


class Scales(Table):
    """Table 13."""

    name, paper = "anyloss_13", "AnyLoss"
    title = "Table 13: the scale L on 89 of 102 sets"

    def cells(self, context: Context) -> list[str]:
        chosen, protocol = self.protocol["quick"] if context.quick else names(PACK), self.protocol
        return [f"{name}/{m}/{scale:g}" for name in chosen for m in protocol["metrics"] for scale in protocol["scales"]]

    def missing(self, folds: Folds) -> int:
        return SETS * len(self.protocol["metrics"]) * len(self.protocol["scales"]) - len(folds)

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = {**self.protocol, **({"epochs": 5} if context.quick else {})}
        for name, rests in by_set(cells):
            for rest, value in scaled(PACK, name, rests, protocol["rates"], protocol, context):
                yield f"{name}/{rest}", value

    def _scores(self, folds: Folds, metric: str, scales: Sequence[float]) -> np.ndarray:
        """``(sets, scales)``, of the sets that have them all."""
        sets = sorted({cell.partition("/")[0] for cell in folds})
        table = [[mean(folds, f"{name}/{metric}/{scale:g}", metric) for scale in scales] for name in sets]
        return np.array([row for row in table if None not in row], float).reshape(-1, len(scales))

    def _wins(self, folds: Folds, metric: str) -> tuple[dict[float, int], int]:
        """Strict wins of the paper's scales, and sets with ties."""
        scales = self.printed["scales"]
        columns = self._scores(folds, metric, scales).T
        strict, ties, _ = wins({f"{s:g}": column for s, column in zip(scales, columns, strict=True)})
        return {s: strict[f"{s:g}"] for s in scales}, ties

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for metric in self.protocol["metrics"]:
            sets = len(self._scores(folds, metric, self.printed["scales"]))
            if sets < SETS:
                continue
            strict, ties = self._wins(folds, metric)
            best = max(strict, key=lambda scale: strict[scale])
            said = f"{self.printed['wins'][metric][2]} of {self.printed['sets']}"
            ours = f"L = {best:g} with {strict[best]} of {sets}; 73 has {strict[73.0]}, {ties} are tied"
            means = self._scores(folds, metric, self.printed["scales"]).mean(0)
            reason = f"The means of the five scales lie within {np.ptp(means):.3f}, and ties count for none here."
            found.append(
                judged(f"{WORDS[metric]}: L = 73 wins most sets", said, ours, holds=best == 73.0, reason=reason)
            )
        return found

    def summary(self, folds: Folds) -> str:
        every = self.protocol["scales"]
        table = self._scores(folds, "f1", every)
        if not len(table):
            return ""
        best = int(table.mean(0).argmax())
        spread = float(np.ptp(table.mean(0)))
        return f"Mean F-1 is best at L = {every[best]:g}; all scales lie within {spread:.3f}."

    def show(self, folds: Folds) -> list[str]:
        body, scales, every = [], self.printed["scales"], self.protocol["scales"]
        for metric in self.protocol["metrics"]:
            table = self._scores(folds, metric, every)
            if len(table):
                strict, ties = self._wins(folds, metric)
                said, ours = ("/".join(map(str, counts)) for counts in (self.printed["wins"][metric], strict.values()))
                body.append([WORDS[metric], len(table), said, ours, ties, *map(shown, table.mean(0))])
        listed = "/".join(f"{s:g}" for s in scales)
        head = [
            "metric",
            "sets",
            f"printed wins of L = {listed}",
            "found, strict",
            "tied",
            *(f"mean, L = {s:g}" for s in every),
        ]
        return [rows(head, body)]


def scaled(
    pack: str, name: str, rests: Sequence[str], rates: dict[str, float], protocol: Json, context: Context
) -> Iterator[tuple[str, Json]]:
    """Cells "metric/scale" of a set, in the MLP."""
    given = problem(pack, name)
    placed = make_rows(given.x, given.y, given.train, context.device)
    for metric, group in groupby(sorted(rests), key=lambda rest: rest.partition("/")[0]):
        listed = list(group)
        objectives = [Objective(metric, rates[metric], scale=float(rest.partition("/")[2])) for rest in listed]
        for rest, (_, logits) in zip(listed, together(placed, objectives, protocol), strict=True):
            yield rest, {"counts": given.counts(logits)}


TABLES = [Slp(), Mlp(), Classifier(), Scales()]
