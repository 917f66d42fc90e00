"""AnyLoss, Tables 7 and 12: resampling, and the scale L, on the four imbalanced sets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from anyloss_four import PACK, SETS, STAND_IN, Slp
from anyloss_runs import FOLDS, Problem, constant, mean, problem
from anyloss_sets import scaled
from anyloss_wins import RIVAL, by_set, shown
from frame import Context, Folds, Json, Table, Verdict, folds_of, judged, rows
from judging import WORDS, count, metric_of
from perceptrons import Objective, descend, make_rows
from resampling import smote, thinned


class Resampled(Table):
    """Table 7: SMOTE and random under-sampling, with a rate chosen on the test folds, and honestly."""

    name, paper = "anyloss_7", "AnyLoss"
    title = "Table 7: SMOTE and under-sampling with BCE, a logistic unit"

    def cells(self, context: Context) -> list[str]:
        return [f"{name}/{kind}" for name in (["3"] if context.quick else SETS) for kind in ("smote", "under")]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        rates = Slp().protocol["rates"]
        for cell in cells:
            name, _, kind = cell.partition("/")
            yield cell, self._folds(problem(PACK, name), kind, rates[name]["bce"], context)

    def _folds(self, given: Problem, kind: str, rate: float, context: Context) -> Json:
        """Counts of each fold and ratio (None where the set is more balanced as it is), and the ratio chosen inside."""
        counts, chosen = [], []
        for fold in range(1 if context.quick else FOLDS):
            seen, held = given.outer != fold, given.outer == fold
            decided = self._decide(given, seen, held, kind, rate, fold, context)
            counts.append([None if d is None else count(d, given.y[held]) for d in decided])
            part = seen & (given.inner[fold] != 0)
            kept = seen & (given.inner[fold] == 0)
            inside = self._decide(given, part, kept, kind, rate, fold, context)
            merits = [-1.0 if d is None else float(metric_of([count(d, given.y[kept])], "f1")[0]) for d in inside]
            chosen.append(int(np.argmax(merits)))
        return {"counts": counts, "chosen": chosen}

    def _decide(
        self, given: Problem, seen: np.ndarray, held: np.ndarray, kind: str, rate: float, fold: int, context: Context
    ) -> list[np.ndarray | None]:
        """Decisions on the held-out rows after resampling the others to each ratio; one column a ratio."""
        protocol = self.protocol
        random = np.random.default_rng([protocol["seed"], fold])
        x, y = given.x[seen].astype(np.float64), given.y[seen]
        x_held = (given.x[held] - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        resample = smote if kind == "smote" else thinned
        grown, target, used = resample(x, y, protocol["ratios"], random, protocol["neighbours"])
        blank = np.zeros((len(x_held), used.shape[1]), bool)
        basis = np.zeros((len(grown) + len(x_held), used.shape[1]), bool)
        basis[: len(x)] = True
        placed = make_rows(np.concatenate([grown, x_held]), np.concatenate([target, np.zeros(len(x_held))]),
                           np.concatenate([used, blank]), context.device, basis)  # fmt: skip
        logits = descend(placed, Objective("bce", rate), protocol["steps"])[len(grown) :].cpu().numpy()
        return [(logits[:, i] > 0) if used[:, i].any() else None for i in range(len(protocol["ratios"]))]

    def _scores(self, value: Json, metric: str) -> tuple[float, float, float]:
        """The score at the ratio best on the held-out folds, that ratio, and the score at ratios chosen inside."""
        ratios = self.protocol["ratios"]
        whole = [i for i in range(len(ratios)) if all(fold[i] is not None for fold in value["counts"])]
        means = {i: metric_of([fold[i] for fold in value["counts"]], "f1").mean() for i in whole}
        best = max(means, key=lambda i: means[i])
        inside = [fold[i] for fold, i in zip(value["counts"], value["chosen"], strict=True)]
        return (float(metric_of([fold[best] for fold in value["counts"]], metric).mean()), ratios[best],
                float(metric_of(inside, metric).mean()))  # fmt: skip

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for name, kinds in self.printed.items():
            for kind, values in kinds.items():
                if name == STAND_IN or f"{name}/{kind}" not in folds:
                    continue
                ours = self._scores(folds[f"{name}/{kind}"], "f1")[0]
                printed = values[self.protocol["metrics"].index("f1")]
                found.append(judged(f"{SETS[name]}: F-1 with {kind}", f"{printed:.3f}", f"{ours:.3f}",
                                    holds=abs(ours - printed) <= self.protocol["tolerance"],
                                    reason="Reason not found: the resampling's draws are not printed."))  # fmt: skip
        return found

    def _beside(self, folds: Folds) -> dict[str, dict[str, float]]:
        """By set: F-1 of the honest resampling, of AnyLoss and of the rival, the best first."""
        beside, found = folds_of("anyloss_6_slp"), {}
        for name, title in SETS.items():
            known = {f"BCE with {kind}": self._scores(folds[f"{name}/{kind}"], "f1")[2]
                     for kind in ("smote", "under") if f"{name}/{kind}" in folds}  # fmt: skip
            for words, kind in (("AnyLoss", "f1"), (RIVAL, "rival")):
                if (score := mean(beside, f"{name}/{kind}", "f1")) is not None:
                    known[words] = score
            if len(known) == 4:
                found[title] = dict(sorted(known.items(), key=lambda pair: -pair[1]))
        return found

    def summary(self, folds: Folds) -> str:
        gaps = []
        for value in folds.values():
            best, _, honest = self._scores(value, "f1")
            gaps.append(best - honest)
        if not gaps:
            return ""
        first = [next(iter(known)) for known in self._beside(folds).values()]
        best = [first.count("AnyLoss"), first.count(RIVAL), sum(words.startswith("BCE with") for words in first)]
        return (
            f"Choosing the ratio on the test folds adds {np.mean(gaps):.3f} to F-1 on average. With honest choices"
            f" AnyLoss has the best F-1 on {best[0]}, {RIVAL} on {best[1]} and resampling on {best[2]} of {len(first)}"
            " sets."
        )

    def show(self, folds: Folds) -> list[str]:
        body, beside = [], folds_of("anyloss_6_slp")
        for name, title in SETS.items():
            for kind in ("smote", "under"):
                if f"{name}/{kind}" not in folds:
                    continue
                row = [title, kind]
                for place, metric in enumerate(self.protocol["metrics"]):
                    best, ratio, honest = self._scores(folds[f"{name}/{kind}"], metric)
                    said = "–" if name == STAND_IN else f"{self.printed[name][kind][place]:.3f}"
                    row.append(f"{said} / {best:.3f} / {honest:.3f}")
                rival = [shown(mean(beside, f"{name}/rival", m)) for m in self.protocol["metrics"]]
                ours = [shown(mean(beside, f"{name}/{m}", m)) for m in self.protocol["metrics"]]
                body.append([*row, f"1:{ratio:g}", " ".join(ours), " ".join(rival)])
        words = (
            "Each cell: printed / found with the ratio whose F-1 is best on the held-out folds, as the paper chose it /"
            " found with ratios chosen inside the training folds."
        )
        return [
            words,
            rows(
                [
                    "set",
                    "resampling",
                    *(WORDS[m] for m in self.protocol["metrics"]),
                    "ratio chosen on test",
                    "AnyLoss, same metrics",
                    "BCE + tuned threshold",
                ],
                body,
            ),
            "F-1 with everything chosen inside the training folds, best first:",
            "\n".join(
                f"- {title}: " + ", ".join(f"{words} {score:.3f}" for words, score in known.items())
                for title, known in self._beside(folds).items()
            ),
        ]


class Scales(Table):
    """Table 12."""

    name, paper = "anyloss_12", "AnyLoss"
    title = "Table 12: the scale L on four imbalanced sets"

    def cells(self, context: Context) -> list[str]:
        if context.quick:
            return ["3/f1/30", "3/f1/73"]
        return [
            f"{name}/{metric}/{scale:g}"
            for name in SETS
            for metric in self.protocol["metrics"]
            for scale in self.protocol["scales"]
        ]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = {**self.protocol, **({"epochs": 10} if context.quick else {})}
        for name, rests in by_set(cells):
            for rest, value in scaled(PACK, name, rests, protocol["rates"][name], protocol, context):
                yield f"{name}/{rest}", value

    def _means(self, folds: Folds, name: str, metric: str) -> dict[float, float] | None:
        """By scale, if all have run."""
        found = {s: mean(folds, f"{name}/{metric}/{s:g}", metric) for s in self.protocol["scales"]}
        return None if None in found.values() else {s: float(v) for s, v in found.items() if v is not None}

    def _alike(self, folds: Folds) -> dict[float, int]:
        """By scale, how many folds decide all rows alike, of those sets and metrics that have all scales."""
        whole = [f"{name}/{m}" for name in SETS for m in self.protocol["metrics"] if self._means(folds, name, m)]
        return {s: sum(int(constant(folds, f"{cell}/{s:g}", "").sum()) for cell in whole)
                for s in self.protocol["scales"]}  # fmt: skip

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for name, title in SETS.items():
            means = {m: self._means(folds, name, m) for m in self.protocol["metrics"]}
            if name == STAND_IN or None in means.values():
                continue
            best = {m: max(by_scale, key=lambda s, by=by_scale: by[s]) for m, by_scale in means.items() if by_scale}
            ours = [m for m, scale in best.items() if means[m][73.0] >= means[m][scale]]
            printed = [values[2] >= max(values) for values in self.printed[name].values()]
            text = ", ".join(
                f"{WORDS[m]} {means[m][73.0]:.3f}, {means[m][s]:.3f} at L = {s:g}" for m, s in best.items()
            )
            stuck = {s: sum(int(constant(folds, f"{name}/{m}/{s:g}", m).sum()) for m in means)
                     for s in self.protocol["scales"]}  # fmt: skip
            said = ", ".join(f"{number} at L = {s:g}" for s, number in stuck.items())
            why = "Reason not found; folds that decide all rows alike"
            if stuck[73.0] > min(stuck.values()):
                why = "Nets get stuck, at this L more often than at another; folds that decide all rows alike"
            found.append(
                judged(f"{title}: L = 73 mostly has the best score", f"best in {sum(printed)} of {len(printed)}",
                       f"best in {len(ours)} of {len(best)}: {text}", holds=2 * len(ours) > len(best),
                       reason=f"{why}: {said}, of {FOLDS * len(means)}.")
            )  # fmt: skip
        return found

    def summary(self, folds: Folds) -> str:
        every = {s: [means[s] for name in SETS for m in self.protocol["metrics"]
                     if (means := self._means(folds, name, m))] for s in self.protocol["scales"]}  # fmt: skip
        number = len(every[73.0])
        if not number:
            return ""
        level_of = ", ".join(f"{np.mean(values):.3f} at L = {s:g}" for s, values in every.items())
        alike = ", ".join(map(str, self._alike(folds).values()))
        return f"Mean score of {number} rows: {level_of}; folds that decide all rows alike: {alike}."

    def show(self, folds: Folds) -> list[str]:
        body = []
        for name, title in SETS.items():
            for metric in self.protocol["metrics"]:
                found = self._means(folds, name, metric)
                if found is None:
                    continue
                said = ["–"] * len(found) if name == STAND_IN else [f"{v:.3f}" for v in self.printed[name][metric]]
                row = [title, WORDS[metric]]
                for value, (scale, ours) in zip(said, found.items(), strict=True):
                    alike = int(constant(folds, f"{name}/{metric}/{scale:g}", metric).sum())
                    row.append(f"{value} / {ours:.3f}" + (f" ({alike})" if alike else ""))
                body.append(row)
        words = f"In brackets: in how many of the {FOLDS} folds the net decides all rows alike."
        head = ["set", "metric", *(f"L = {s:g}: printed / found" for s in self.protocol["scales"])]
        return [words, rows(head, body)]


TABLES = [Resampled(), Scales()]
