"""AnyLoss, Tables 6, 17 and 18: four imbalanced sets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from anyloss_runs import FOLDS, classifier, constant, mean, mlp, problem, scores, slp
from anyloss_wins import by_set, shown
from frame import NOT_RUNNABLE, Context, Folds, Json, Table, Verdict, folds_of, judged, rows
from judging import WORDS, metric_of
from perceptrons import METRICS
from wording import LEVELS, NOT_FOUND, RELEASED, level, listing, tally

PACK = "anyloss_four"
SETS = {"1": "#1 Random", "2": "#2 stand-in: creditcard, 20:1", "3": "#3 Breast Cancer", "4": "#4 Diabetes"}
STAND_IN = "2"
_NOT_HAD = "Credit Card Fraud 2023 could not be had; another credit-card set stands in, so no number can be compared."
#: The one number of Table 6 that is another in Table 18: the set, the loss and the metric.
OF_TABLE_6 = {("mlp", "3", "mse", "f1"): 0.833}
LOSSES = {
    "delta": "MSE", "mse": "MSE", "bce": "BCE", "accuracy": "L_A", "f1": "L_F1", "f05": "L_F.5", "f2": "L_F2",
    "g_mean": "L_G", "balanced_accuracy": "L_B", "sol:accuracy": "S_A", "sol:f1": "S_F", "sol:balanced_accuracy": "S_B",
}  # fmt: skip


class _Four(Table):
    """Tables 6 and 17 or 18, of one network."""

    paper = "AnyLoss"
    net: str

    def extra(self) -> list[str]:
        raise NotImplementedError

    def cells(self, context: Context) -> list[str]:
        if context.quick:
            kinds = ["bce", "f1", "balanced_accuracy", "rival"] if self.net == "slp" else ["bce", "f1", "released:f1"]
            return [f"{'1' if self.net == 'slp' else '3'}/{kind}" for kind in kinds]
        rates = self.protocol["rates"]
        return [f"{name}/{kind}" for name in SETS for kind in (*rates[name], "rival", *self.extra())]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol, train = self.protocol, slp if self.net == "slp" else mlp
        if context.quick and self.net == "mlp":
            protocol = {**protocol, "epochs": 20}
        for name, kinds in by_set(cells):
            for kind, value in train(problem(PACK, name), kinds, protocol["rates"][name], protocol, context):
                yield f"{name}/{kind}", value

    def verdicts(self, folds: Folds) -> list[Verdict]:
        """The score of each loss at what it aims at, and of MSE and BCE at all three of Table 6."""
        found = []
        three = ("accuracy", "f1", "balanced_accuracy")
        for name, listed in self.printed.items():
            if name == STAND_IN:
                continue
            for kind, values in listed.items():
                goals = three if kind in {"delta", "mse", "bce"} else (kind.rpartition(":")[2],)
                for metric in (goal for goal in goals if goal in self.protocol["metrics"]):
                    ours = mean(folds, f"{name}/{kind}", metric)
                    if ours is None:
                        continue
                    printed = values[self.protocol["metrics"].index(metric)]
                    other = OF_TABLE_6.get((self.net, name, kind, metric))
                    text = f"{printed:.3f}" if other is None else f"{printed:.3f}, in Table 6 {other:.3f}"
                    both = [printed] if other is None else [printed, other]
                    found.append(
                        judged(
                            f"{SETS[name]}, {self.net.upper()}: {WORDS[metric]} of {LOSSES[kind]}", text,
                            f"{ours:.3f}", holds=self._met(ours, both),
                            reason=self._reason(folds, name, kind, metric, both),
                        )
                    )  # fmt: skip
        if any(cell.startswith(f"{STAND_IN}/") for cell in folds):
            found.append(Verdict("#2 Credit Card, all numbers", "Table 5: 298,531 rows", "–", NOT_RUNNABLE, _NOT_HAD))
        return found

    def _met(self, score: float, printed: list[float]) -> bool:
        """Whether a score is one of the printed ones."""
        return any(abs(score - said) <= self.protocol["tolerance"] for said in printed)

    def _reason(self, folds: Folds, name: str, kind: str, metric: str, printed: list[float]) -> str:
        """What the counts of the folds say of a number that is not met; it may be printed twice, not alike."""
        cell, again = f"{name}/{kind}", f"{name}/released:{kind}"
        found, same, released = scores(folds, cell, metric), constant(folds, cell, metric), mean(folds, again, metric)
        assert found is not None
        parts = []
        if same.any():
            text = f"In {same.sum()} of {FOLDS} folds every row is decided alike"
            if (~same).sum() > 1:
                rest = float(found[~same].mean())
                text += f"; the mean of the other {FOLDS - same.sum()} is {rest:.3f}" + (
                    ", as printed" if self._met(rest, printed) else ""
                )
            parts.append(text)
        if released is not None:
            text = f"as released, where a net goes on from fold to fold, it is {released:.3f}"
            if same.any():
                alike = constant(folds, again, metric).sum()
                text += f", with {alike or 'no'} such fold{'s' if alike > 1 else ''}"
            ends = RELEASED if self._met(released, printed) else f"which is not it either; {NOT_FOUND}"
            parts.append(f"{text}, {ends}")
        elif not same.any():
            parts.append(NOT_FOUND)
            worth = _one_row(folds[cell]["counts"], metric, better=printed[0] > found.mean())
            if abs(found.mean() - printed[0]) <= 2 * worth:
                parts.append(f"one row decided otherwise can move it by {worth:.3f}: the gap is that of a row or two")
        if kind.startswith("sol:") and self.net == "slp":
            moved = self.protocol["rates"][name][kind] * self.protocol["sol_epochs"] * self.protocol["sol_batches"]
            parts.append("batches and start of SOL's unit are not printed")
            if moved < 1:  # a step of Adam is about the rate
                parts.append(
                    f"at the printed rate no weight moves by more than about {moved:.1g} from the start drawn here"
                )
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def _near(self, folds: Folds) -> tuple[int, int, int]:
        """Printed scores of the sets that are the paper's: met, met as released, and all."""
        near, total, as_released = 0, 0, 0
        for name, listed in self.printed.items():
            for kind, values in listed.items():
                for metric, said in zip(self.protocol["metrics"], values, strict=True):
                    ours = mean(folds, f"{name}/{kind}", metric)
                    released = mean(folds, f"{name}/released:{kind}", metric)
                    if ours is not None and name != STAND_IN:
                        total += 1
                        near += abs(ours - said) <= self.protocol["tolerance"]
                        again = ours if released is None else released
                        as_released += abs(again - said) <= self.protocol["tolerance"]
        return near, as_released, total

    def _against(self, folds: Folds) -> dict[str, list[str]]:
        """By how the loss of a metric stands to the rival: on which sets and metrics."""
        found: dict[str, list[str]] = {kind: [] for kind in LEVELS}
        for name, title in SETS.items():
            for metric in self.protocol["metrics"]:
                ours, rival = (scores(folds, f"{name}/{kind}", metric) for kind in (metric, "rival"))
                if ours is not None and rival is not None:
                    words = f"{title.partition(':')[0]} {WORDS[metric]} ({ours.mean():.3f}, {rival.mean():.3f})"
                    found[level(ours, rival)].append(words)
        return found

    def summary(self, folds: Folds) -> str:
        near, released, total = self._near(folds)
        if not total:
            return ""
        sets = [title.partition(" ")[0] for name, title in SETS.items()
                if name != STAND_IN and any(cell.startswith(f"{name}/") for cell in folds)]  # fmt: skip
        words = f"{listing(sets)}: {near} of {total} printed scores are met"
        if released != near:
            words += f", {released} by the code as released"
        stuck = [int(constant(folds, f"{name}/{kind}", kind).sum()) for name in SETS for kind in METRICS
                 if f"{name}/{kind}" in folds]  # fmt: skip
        if sum(stuck):
            words += f"; AnyLoss decides all rows alike in {sum(stuck)} of {FOLDS * len(stuck)} folds"
        against = [kind for kind, cases in self._against(folds).items() for _ in cases]
        if not against:
            return f"{words}."
        return f"{words}. Against BCE + tuned threshold, set by set and metric by metric, AnyLoss is {tally(against)}."

    def show(self, folds: Folds) -> list[str]:
        parts, beside = [], folds_of("anyloss_6_classifier")
        if any(cell.startswith(f"{STAND_IN}/") for cell in folds):
            parts.append(
                f"{SETS[STAND_IN]}: {_NOT_HAD} All 492 frauds of it and 20 times as many others, drawn with seed 100."
            )
        for name, title in SETS.items():
            listed = self.printed[name]
            body = []
            for kind, words in LOSSES.items():
                if f"{name}/{kind}" not in folds:
                    continue
                row = [words]
                for place, metric in enumerate(self.protocol["metrics"]):
                    ours = shown(mean(folds, f"{name}/{kind}", metric))
                    released = mean(folds, f"{name}/released:{kind}", metric)
                    said = "–" if name == STAND_IN else f"{listed[kind][place]:.3f}"
                    text = f"{said} / {ours}" + ("" if released is None else f" / {released:.3f}")
                    row.append(f"**{text}**" if kind.rpartition(":")[2] == metric else text)
                body.append(row)
            if not body:
                continue
            row = ["BCE + tuned threshold"]
            row += [shown(mean(folds, f"{name}/rival", metric)) for metric in self.protocol["metrics"]]
            body.append(row)
            cell = f"{name}/classifier"
            if cell in beside:
                used = beside[cell]["folds"]
                row = [f"MetricClassifier ({len(used)} of {FOLDS} folds; L of that metric on the same)"]
                for metric in self.protocol["metrics"]:
                    theirs = scores(beside, cell, metric) if metric in beside[cell]["counts"] else None
                    ours = scores(folds, f"{name}/{metric}", metric)
                    row.append(
                        "" if theirs is None or ours is None else f"{theirs.mean():.3f} ({ours[used].mean():.3f})"
                    )
                body.append(row)
            shape = "printed / found / as released" if any("released:" in c for c in folds) else "printed / found"
            head = [f"{title}: {shape}", *(WORDS[m] for m in self.protocol["metrics"])]
            parts.append(rows(head, body))
        lines = [f"- {verb}: {', '.join(cases)}" for verb, cases in self._against(folds).items() if cases]
        if lines:
            head = "The loss of each metric against the honest rival, BCE + tuned threshold (both means in brackets):"
            parts += [head, "\n".join(lines)]
        return parts

    def directions(self, folds: Folds) -> dict[str, bool]:
        found = {}
        if self.net == "slp":
            f1, bce, balanced, rival = (
                mean(folds, f"1/{kind}", "f1") for kind in ("f1", "bce", "balanced_accuracy", "rival")
            )
            if f1 is not None and bce is not None:
                found["set #1, SLP: AnyLoss on F1 beats BCE at ½ on F1"] = f1 > bce + 0.05
            if f1 is not None and balanced is not None:
                found["set #1, SLP: each loss is best at its own metric"] = f1 > balanced and (
                    mean(folds, "1/balanced_accuracy", "balanced_accuracy") > mean(folds, "1/f1", "balanced_accuracy")
                )
            if rival is not None and f1 is not None:
                found["set #1, SLP: a tuned threshold closes the gap on F1"] = abs(rival - f1) < 0.02
        else:
            ours, released = mean(folds, "3/f1", "f1"), mean(folds, "3/released:f1", "f1")
            if ours is not None and released is not None:
                found["set #3, MLP: nets that go on from fold to fold look better than they are"] = released > ours
        return found


def _one_row(counts: Json, metric: str, *, better: bool) -> float:
    """By how much the mean over folds can move when one row is decided better, or worse."""
    here, most = metric_of(counts, metric), 0.0
    for right, wrong in ((0, 2), (3, 1)):
        to, of = (right, wrong) if better else (wrong, right)
        moved = np.array(counts)
        able = moved[:, of] > 0
        moved[able, to] += 1
        moved[able, of] -= 1
        most = max(most, float(np.abs(metric_of(moved, metric) - here).max()))
    return most / len(counts)


class Slp(_Four):
    name, net = "anyloss_6_slp", "slp"
    title = "Tables 6 and 17: a logistic unit on four imbalanced sets"

    def extra(self) -> list[str]:
        return ["released:g_mean"]


class Mlp(_Four):
    name, net = "anyloss_6_mlp", "mlp"
    title = "Tables 6 and 18: a hidden layer of two on four imbalanced sets"

    def extra(self) -> list[str]:
        return [f"released:{kind}" for kind in self.protocol["rates"]["1"]]


class Classifier(Table):
    """MetricClassifier on the four; its numbers stand in the tables of the two networks."""

    name, paper = "anyloss_6_classifier", "AnyLoss"
    title = "MetricClassifier as it comes, on the four sets"
    needs = ("sklearn",)

    def cells(self, context: Context) -> list[str]:
        return [f"{name}/classifier" for name in (["3"] if context.quick else SETS)]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        for cell in cells:
            name = cell.partition("/")[0]
            folds = self.protocol["folds"][name][: 1 if context.quick else None]
            yield cell, classifier(problem(PACK, name), folds, self.protocol)

    def verdicts(self, folds: Folds) -> list[Verdict]:
        return []

    def show(self, folds: Folds) -> list[str]:
        body = [
            [title, len(folds[f"{name}/classifier"]["folds"]),
             *(shown(mean(folds, f"{name}/classifier", metric)) for metric in self.protocol["metrics"])]
            for name, title in SETS.items() if f"{name}/classifier" in folds
        ]  # fmt: skip
        return [rows(["set", "folds", *(WORDS[m] for m in self.protocol["metrics"])], body)]


TABLES = [Slp(), Mlp(), Classifier()]
assert set(METRICS) <= set(LOSSES)
