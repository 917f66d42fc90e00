"""What the tables of *Bridging the Gap* have in common: cells, verdicts, rows, and the rival in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from bridging_data import WORDS
from bridging_scores import has_sklearn
from frame import NOT_REPRODUCED, NOT_RUNNABLE, REPRODUCED, Context, Folds, Json, Table, Verdict, mean_sd
from wording import NOT_FOUND, RELEASED, level, listing, tally

PAPER = "Bridging the Gap"
LOSSES = {"f1": "F1*", "f2": "F2*", "f3": "F3*", "accuracy": "accuracy*", "auroc": "AUROC*", "wmw": "WMW", "bce": "BCE"}


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def near(found: float, printed: Sequence[float], tolerance: float) -> bool:
    return abs(found - printed[0]) <= tolerance + printed[1] + 1e-9


def words_of(loss: str) -> str:
    released = loss.startswith("released_")
    return LOSSES[loss.removeprefix("released_")] + (", as released" if released else "")


def _two(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


class Bridging(Table):
    """Cells are ``set/loss``; all missing losses of a set train together."""

    paper = PAPER
    sets: tuple[str, ...]
    #: What is printed of each cell, in order.
    measures: tuple[str, ...] = ("f1", "accuracy")
    seed = 0

    def cells(self, context: Context) -> list[str]:
        quick = self.protocol["quick"]
        every = [f"{name}/{loss}" for name in self.sets for loss in self.protocol["losses"]]
        if not context.quick:
            return every
        return quick.get("cells", [cell for cell in every if cell.startswith(f"{self.sets[0]}/")])

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        for name in self.sets:
            losses = [c.partition("/")[2] for c in cells if c.partition("/")[0] == name]
            nets = [loss for loss in losses if not loss.startswith("classifier_")]
            if nets:
                found = self.fit(
                    name, nets, {**self.protocol, **(self.protocol["quick"] if context.quick else {})}, context
                )
                yield from ((f"{name}/{loss}", cell) for loss, cell in found.items())
            for loss in losses:
                if loss.startswith("classifier_") and has_sklearn():
                    yield f"{name}/{loss}", self.fit_classifier(name, loss.partition("_")[2])

    def fit(self, name: str, losses: list[str], protocol: Json, context: Context) -> dict[str, Json]:
        raise NotImplementedError

    def fit_classifier(self, name: str, metric: str) -> Json:
        raise NotImplementedError

    def printed_of(self, name: str) -> Json:
        return self.printed[name]

    # -----------------------------------------------------------------------------------------------------------------
    # Judging
    # -----------------------------------------------------------------------------------------------------------------

    def verdicts(self, folds: Folds) -> list[Verdict]:
        """One for each set and loss: reproduced if every number printed for it is within the tolerance."""
        found = []
        for name in self.sets:
            for loss, printed in self.printed_of(name).items():
                where = f"{WORDS[name]}, {LOSSES.get(loss, 'adversarial F1†')}: {', '.join(self.measures)}"
                text = ", ".join(f"{m:.2f}" for m, _ in printed)
                if loss == "adversarial":
                    reason = "the adversarial loss (AP-Perf) is not implemented here; the numbers are the paper's"
                    found.append(Verdict(where, text, "–", NOT_RUNNABLE, reason))
                elif f"{name}/{loss}" in folds:
                    found.append(self._judge(name, loss, where, text, folds))
        return found

    def _judge(self, name: str, loss: str, where: str, text: str, folds: Folds) -> Verdict:
        printed, tolerance = self.printed_of(name)[loss], self.protocol["tolerance"]

        def means(cell: Json, suffix: str = "") -> list[float]:
            return [mean(cell[f"{m}{suffix}"]) for m in self.measures]

        def missed(values: list[float]) -> list[str]:
            return [m for m, v, p in zip(self.measures, values, printed, strict=True) if not near(v, p, tolerance)]

        ours = means(folds[f"{name}/{loss}"])
        shown = ", ".join(f"{v:.2f}" for v in ours)
        if not missed(ours):
            return Verdict(where, text, shown, REPRODUCED)
        reason = f"{', '.join(missed(ours))} off by more than {tolerance} and a printed standard deviation"
        # the same networks cut as the released code cuts them, or those trained on its losses
        cell = folds.get(f"{name}/{loss}" if loss == "bce" else f"{name}/released_{loss}")
        suffix = "_of_logits" if loss in {"bce", "wmw"} else ""
        if cell is not None and f"{self.measures[0]}{suffix}" in cell:
            faulty = means(cell, suffix)
            how = {
                "bce": "with its logits cut at 0.1 … 0.9, as released",
                "wmw": "trained on the loss as released and its logits cut at 0.1 … 0.9",
            }.get(loss, "trained on the loss as released")
            lost = missed(faulty)
            if not lost:
                reason += f"; {how}: {_two(faulty)}, {RELEASED}"
                return Verdict(where, text, shown, NOT_REPRODUCED, reason)
            reason += f"; {how}: {_two(faulty)}, which misses {', '.join(lost)} too"
        return Verdict(where, text, shown, NOT_REPRODUCED, f"{reason}; {self._beyond_the_loss(folds, name)}")

    def _beyond_the_loss(self, folds: Folds, name: str) -> str:
        """Whether the losses that need no correction score above the print, too: then it is not the loss."""
        known = [
            loss for loss in ("f1", "accuracy", "bce") if f"{name}/{loss}" in folds and loss in self.printed_of(name)
        ]
        above = []
        for loss in known:
            pairs = zip(self.measures, self.printed_of(name)[loss], strict=True)
            above.append(all(mean(folds[f"{name}/{loss}"][m]) >= printed[0] for m, printed in pairs))
        if len(known) > 1 and all(above):
            return (
                f"{listing([LOSSES[loss] for loss in known])} all score above the print on this set, which points to"
                f" data, features or training rather than to the loss; {NOT_FOUND}"
            )
        return NOT_FOUND

    def body(self, folds: Folds, name: str, keys: Sequence[tuple[str, str]]) -> list[list[str]]:
        """A row for each loss: printed, and every column that its cell has; a tick where a printed number holds."""
        lines = []
        every = [*self.protocol["losses"], *(f"classifier_{m}" for m in ("f1", "f2", "f3", "accuracy"))]
        for loss in every:
            cell = folds.get(f"{name}/{loss}")
            if cell is None:
                continue
            printed = self.printed_of(name).get(loss.removeprefix("released_"), [])
            line = [words_of(loss) if "classifier" not in loss else f"`MetricClassifier({loss.partition('_')[2]!r})`"]
            line.append(", ".join(f"{m:.2f}" for m, _ in printed) or "–")
            for place, key in enumerate(k for k, _ in keys):
                text = mean_sd(cell[key], 0 if key == "epochs" else 3) if key in cell else "–"
                if place < len(printed) and key in cell:
                    holds = near(mean(cell[key]), printed[place], self.protocol["tolerance"])
                    text += " ✓" if holds else " ✗"
                cut = cell.get(f"{key}_of_logits")
                line.append(text + (f" (logits cut: {mean(cut):.2f})" if cut else ""))
            lines.append(line)
        return lines

    def against_rival(self, folds: Folds, name: str, loss: str = "f1", key: str = "f1") -> str:
        """In words: the paper's loss against cross-entropy with a tuned threshold, and against our default."""
        ours, rival = folds.get(f"{name}/{loss}"), folds.get(f"{name}/bce")
        if ours is None or rival is None:
            return ""
        plain, tuned = self.levels(folds, name, loss, key)
        metric, best = key.upper() if key.startswith("f") else key, mean(rival[f"{key}_tuned"])
        text = (
            f"{WORDS[name]}, {metric} of {LOSSES[loss]} against BCE + tuned τ, {best:.3f}: over all τ, as the paper"
            f" uses it, {mean(ours[key]):.3f}, {plain}; with a tuned τ, too, {mean(ours[f'{key}_tuned']):.3f}, {tuned}."
            f" BCE over all τ has {mean(rival[key]):.3f}"
        )
        default = folds.get(f"{name}/classifier_{key}")
        return text + (f"; `MetricClassifier` {mean(default[key]):.3f}." if default else ".")

    def levels(self, folds: Folds, name: str, loss: str = "f1", key: str = "f1") -> tuple[str, str]:
        """How a loss, over all τ and with a tuned τ, stands to cross-entropy with a tuned τ."""
        ours, rival = folds[f"{name}/{loss}"], folds[f"{name}/bce"]
        return tuple(level(ours[k], rival[f"{key}_tuned"]) for k in (key, f"{key}_tuned"))

    def rivals(self, folds: Folds, sets: Sequence[str], losses: Sequence[str] = ("f1", "accuracy")) -> str:
        """For the head of the page: how each loss, over all τ as the paper uses it, stands to the honest rival."""
        parts = []
        for loss in losses:
            known = [name for name in sets if f"{name}/{loss}" in folds and f"{name}/bce" in folds]
            if known:
                parts.append(f"{LOSSES[loss]} {tally([self.levels(folds, name, loss, loss)[0] for name in known])}")
        return f"At its own metric, against BCE + tuned τ: {'; '.join(parts)}." if parts else ""
