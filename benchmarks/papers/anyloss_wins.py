"""AnyLoss, Tables 3, 4, 15 and 16 and Fig. 4 of one network: what the counts of 89 sets say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from anyloss_runs import mean, mlp, names, problem, scores, slp
from frame import Context, Folds, Json, Table, Verdict, folds_of, judged, packed, picture, rows
from judging import WORDS, Signs, duel, sign_test, wins
from perceptrons import METRICS
from wording import NOT_FOUND, RELEASED

PACK = "anyloss_sets"
#: How many of the paper's 102 sets it holds.
SETS = 89
#: The share of the larger class, as in Table 4.
GROUPS = ((0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))
#: Sets with columns that give the target away, which the paper kept.
LEAKING = ("37", "98", "99")
#: The cell with the authors' own scores of each set.
AUTHORS = "authors"
RIVAL = "BCE + tuned threshold"
_THREE = ("MSE", "BCE", "AnyLoss")
#: Scores of each of the three, or of others, set by set.
Scores = dict[str, np.ndarray]


def by_set(cells: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Cells "set/rest" as sets, each with its rests."""
    for name, group in groupby(cells, key=lambda cell: cell.partition("/")[0]):
        yield name, [cell.partition("/")[2] for cell in group]


def shown(value: float | None, digits: int = 3) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def authors(net: str) -> dict[str, dict[str, list[float]]]:
    """By set and metric, the authors' scores of MSE, BCE and the AnyLoss of that metric."""
    arrays, here = packed(PACK), set(names(PACK))
    found = {}
    for name, values in zip(arrays[f"paper_ids_{net}"].tolist(), arrays[f"paper_{net}"].tolist(), strict=True):
        if str(name) in here:
            pairs = enumerate(zip(METRICS, values, strict=True))
            found[str(name)] = {metric: [row[0], row[1], row[2 + i]] for i, (metric, row) in pairs}
    return found


class Wins(Table):
    """The tables of one network."""

    paper = "AnyLoss"
    net: str
    #: What stands for MSE.
    base: str
    #: Losses that are also run as released.
    faulty: tuple[str, ...]

    def cells(self, context: Context) -> list[str]:
        if context.quick:
            return [f"{name}/{kind}" for name in self.protocol["quick"] for kind in (self.base, "bce", "f1", "rival")]
        return [AUTHORS, *(f"{name}/{kind}" for name in names(PACK) for kind in self._kinds())]

    def _kinds(self) -> list[str]:
        return [self.base, "bce", *METRICS, "rival", *(f"released:{loss}" for loss in self.faulty)]

    def missing(self, folds: Folds) -> int:
        return SETS * len(self._kinds()) + 1 - len(folds)

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol, train = self.protocol, slp if self.net == "slp" else mlp
        if context.quick and self.net == "mlp":
            protocol = {**protocol, "epochs": 20}
        if AUTHORS in cells:
            yield AUTHORS, authors(self.net)
        for name, kinds in by_set([cell for cell in cells if cell != AUTHORS]):
            for kind, value in train(problem(PACK, name), kinds, protocol["rates"], protocol, context):
                yield f"{name}/{kind}", value

    # -----------------------------------------------------------------------------------------------------------------
    # Scores
    # -----------------------------------------------------------------------------------------------------------------

    def table(self, folds: Folds, metric: str, kinds: dict[str, str]) -> tuple[list[str], Scores]:
        """Sets on which all of these cells are there, and the mean score of each on them."""
        sets = sorted({cell.partition("/")[0] for cell in folds if cell != AUTHORS}, key=int)
        found = {word: [mean(folds, f"{name}/{kind}", metric) for name in sets] for word, kind in kinds.items()}
        keep = [i for i in range(len(sets)) if all(values[i] is not None for values in found.values())]
        return [sets[i] for i in keep], {word: np.array([v[i] for i in keep], float) for word, v in found.items()}

    def three(self, folds: Folds, metric: str, *, released: bool = False) -> tuple[list[str], Scores]:
        """MSE, BCE and the AnyLoss of that metric; as released, where the released code does something else."""
        kinds = dict(zip(_THREE, (self.base, "bce", metric), strict=True))
        if released:
            kinds = {word: f"released:{kind}" if kind in self.faulty else kind for word, kind in kinds.items()}
            if metric not in self.faulty:
                return [], {word: np.empty(0) for word in _THREE}
        return self.table(folds, metric, kinds)

    def authors(self, folds: Folds, metric: str) -> Scores:
        """The authors' own scores, as their repository has them, on the sets that are finished here."""
        given = folds.get(AUTHORS, {})
        found = np.array([given[name][metric] for name in self.three(folds, metric)[0] if name in given])
        return dict(zip(_THREE, found.T, strict=True)) if len(found) else {}

    def signs(self, folds: Folds, metric: str, *, released: bool = False) -> dict[tuple[float, str], Signs]:
        """The sign test of AnyLoss by rope and rival."""
        _, found = self.three(folds, metric, released=released)
        pairs = [(rope, rival) for rope in self.protocol["ropes"] for rival in ("MSE", "BCE")]
        ours = found["AnyLoss"]
        return {pair: sign_test(ours, found[pair[1]], pair[0]) for pair in pairs} if len(ours) else {}

    def gains(self, folds: Folds, metric: str, found: Scores) -> list[list[tuple[float, float]] | None]:
        """By group, mean and deviation of the gain over MSE and over BCE."""
        sets = self.three(folds, metric)[0]
        share = np.array([_larger(folds, name) for name in sets])
        by_group: list[list[tuple[float, float]] | None] = []
        for low, high in GROUPS:
            keep = (share >= low) & (share < high)
            gaps = [(found["AnyLoss"] - found[word])[keep] for word in ("MSE", "BCE")]
            by_group.append([(float(g.mean()), float(g.std())) for g in gaps] if keep.any() else None)
        return by_group

    # -----------------------------------------------------------------------------------------------------------------
    # Verdicts
    # -----------------------------------------------------------------------------------------------------------------

    def verdicts(self, folds: Folds) -> list[Verdict]:
        """Once all sets have run: the paper's shares are of all of them."""
        found = []
        if any(len(self.three(folds, metric)[0]) < SETS for metric in self.protocol["metrics"]):
            return []
        for metric in self.protocol["metrics"]:
            found.append(self._judge_wins(folds, metric))
            found += self._judge_signs(folds, metric)
        for metric in self.printed["gains"]:
            found += self._judge_gains(folds, metric)
        return found

    def _judge_wins(self, folds: Folds, metric: str) -> Verdict:
        sets, three = self.three(folds, metric)
        sets_printed, said = self.printed["sets"], self.printed["wins"][metric][2]
        least = said / sets_printed - self.protocol["tolerance"]
        strict, _, shared = wins(three)
        if shared["AnyLoss"] / len(sets) >= least:
            reason = f"With ties counted as wins of AnyLoss, as released, it is {shared['AnyLoss']}, {RELEASED}."
        elif theirs := self.authors(folds, metric):
            reason = f"The authors' own scores of these sets give {wins(theirs)[0]['AnyLoss']} strictly; {NOT_FOUND}."
        else:
            reason = f"{NOT_FOUND.capitalize()}."
        again, released = self.three(folds, metric, released=True)
        if again:
            text = f"As released, ties counted as wins, it is {wins(released)[2]['AnyLoss']} of {len(again)}"
            holds = wins(released)[2]["AnyLoss"] / len(again) >= least
            reason = f"{text}, {RELEASED}." if holds else f"{text}, which is not it either; {NOT_FOUND}."
        return judged(
            f"{WORDS[metric]}, {self.net.upper()}: AnyLoss beats MSE and BCE", f"{said} of {sets_printed}",
            f"{strict['AnyLoss']} of {len(sets)} strictly", holds=strict["AnyLoss"] / len(sets) >= least, reason=reason,
        )  # fmt: skip

    def _judge_signs(self, folds: Folds, metric: str) -> list[Verdict]:
        found, again, theirs = [], self.signs(folds, metric, released=True), self.authors(folds, metric)
        for place, (key, signs) in enumerate(self.signs(folds, metric).items()):
            printed = Signs(*reversed(self.printed["signs"][metric][place]))
            reason = f"{NOT_FOUND.capitalize()}."
            if theirs:
                other = sign_test(theirs["AnyLoss"], theirs[key[1]], key[0])
                reason = f"The authors' own scores of these sets give {other.likeliest} ({other}); {NOT_FOUND}."
            if key in again:
                same = RELEASED if again[key].likeliest == printed.likeliest else f"not as printed; {NOT_FOUND}"
                reason = f"As released: {again[key].likeliest} ({again[key]}), {same}."
            found.append(
                judged(f"{WORDS[metric]}, {self.net.upper()}: what is most probable against {key[1]}, rope {key[0]}",
                       f"{printed.likeliest} ({printed})", f"{signs.likeliest} ({signs})",
                       holds=signs.likeliest == printed.likeliest, reason=reason)
            )  # fmt: skip
        return found

    def _judge_gains(self, folds: Folds, metric: str) -> list[Verdict]:
        _, three = self.three(folds, metric)
        groups = self.gains(folds, metric, three)
        if None in groups:
            return []
        ours, said = [g[1][0] for g in groups if g], [pair[1] for pair in self.printed["gains"][metric]]
        texts = [" ".join(f"{value:+.3f}" for value in values) for values in (said, ours)]
        worst = _apart(ours, said)
        found = [
            judged(f"{WORDS[metric]}, {self.net.upper()}: gain over BCE in the four groups of Table 4", *texts,
                   holds=worst <= self.protocol["gain_tolerance"],
                   reason=self._why_gains(folds, metric, worst))
        ]  # fmt: skip
        if metric != "accuracy":
            found.append(
                judged(f"{WORDS[metric]}, {self.net.upper()}: the gain over BCE is larger where a class is rare",
                       *texts, holds=ours[-1] > ours[0], reason="The last group gains no more than the first.")
            )  # fmt: skip
        return found

    def _why_gains(self, folds: Folds, metric: str, worst: float) -> str:
        """Whether the authors' own scores of these sets have the printed gains, and whether ours have theirs."""
        near, said = self.protocol["gain_tolerance"], [pair[1] for pair in self.printed["gains"][metric]]
        text, theirs = f"The largest gap is {worst:.3f}", self.authors(folds, metric)

        def over_bce(found: Scores) -> list[float]:
            return [group[1][0] for group in self.gains(folds, metric, found) if group]

        if len(theirs.get("BCE", ())) < SETS:
            return f"{text}; {NOT_FOUND}."
        known = over_bce(theirs)
        gap, off = _apart(known, said), _apart(over_bce(self.three(folds, metric)[1]), known)
        text += f"; the authors' own scores of these {SETS} of {self.printed['sets']} sets are off by {gap:.3f}"
        if gap > near and off <= near:
            return f"{text}, and ours are within {off:.3f} of those: it is the sets."
        again, released = self.three(folds, metric, released=True)
        if not again:
            return f"{text}, and ours are off those by {off:.3f}; {NOT_FOUND}."
        back = _apart(over_bce(released), known)
        why = f"it is the corrected protocol{', and the sets' if gap > near else ''}" if back <= near else NOT_FOUND
        return f"{text}; ours are off those by {off:.3f}, and by {back:.3f} as released; {why}."

    # -----------------------------------------------------------------------------------------------------------------
    # The page
    # -----------------------------------------------------------------------------------------------------------------

    def summary(self, folds: Folds) -> str:
        sets, three = self.three(folds, "f1")
        _, two = self.table(folds, "f1", {"AnyLoss": "f1", RIVAL: "rival"})
        if not len(sets) or not len(two[RIVAL]):
            return ""
        won, tied, lost = duel(two["AnyLoss"], two[RIVAL])
        return (
            f"F-1: AnyLoss beats MSE and BCE at ½ on {wins(three)[0]['AnyLoss']} of {len(sets)} sets strictly; against"
            f" {RIVAL} it wins {won}, ties {tied} and loses {lost}."
        )

    def show(self, folds: Folds) -> list[str]:
        finished = self.three(folds, "f1")[0]
        if not finished:
            return ["No set is finished so far."]
        parts = [
            f"Wins of MSE/BCE/AnyLoss on {len(finished)} sets, the paper's on {self.printed['sets']}. A strict win is"
            " that of one that is best alone. With ties, a shared best is a win of AnyLoss if it shares it, and else of"
            " BCE. The paper must have counted so: its three numbers add up to all sets.",
            self._show_wins(folds),
            self._show_rivals(folds),
            *self._words(folds),
            "Bayesian sign test: P(win)/P(draw)/P(lose) of AnyLoss.",
            self._show_signs(folds),
            picture(f"{self.name}_signs", f"Fig. 4, {self.net.upper()}: win, draw and lose by metric, rival and rope"),
            "Table 4: mean gain of AnyLoss ± deviation over sets, by the share of the larger class.",
            self._show_gains(folds),
        ]
        leaking = [name for name in LEAKING if name in finished]
        if leaking:
            parts.append(
                f"Sets {', '.join(leaking)} hold a column that gives the target away; the paper kept it, so do we."
            )
        return parts

    def _show_wins(self, folds: Folds) -> str:
        body = []
        for metric in METRICS:
            sets, three = self.three(folds, metric)
            if not sets:
                continue
            printed = self.printed["wins"].get(metric)
            theirs, (_, released) = self.authors(folds, metric), self.three(folds, metric, released=True)
            row = [WORDS[metric], "not printed" if printed is None else "/".join(map(str, printed)), _line(theirs)]
            near = [np.abs(three[w] - theirs[w]) <= self.protocol["near"] for w in _THREE] if theirs else []
            row += [_line(three), _line(three, ties=True), _line(released, ties=True)]
            body.append([*row, f"{np.mean(near):.0%}" if near else ""])
        head = ["metric", "printed", "strict, by the authors' scores of these sets", "strict", "with ties",
                "as released, with ties", f"scores within {self.protocol['near']} of the authors'"]  # fmt: skip
        return rows(head, body)

    def _show_rivals(self, folds: Folds) -> str:
        body, beside = [], folds_of("anyloss_3_classifier")
        for metric in METRICS:
            sets, found = self.table(folds, metric, {"BCE": "bce", "AnyLoss": metric, RIVAL: "rival"})
            if sets:
                means = [shown(float(found[word].mean())) for word in ("BCE", "AnyLoss", RIVAL)]
                against = "/".join(map(str, duel(found["AnyLoss"], found[RIVAL])))
                body.append([WORDS[metric], *means, against, *self._classifier(folds, beside, metric)])
        head = ["metric", "mean of BCE at ½", "of AnyLoss at ½", f"of {RIVAL}", "wins/ties/losses of AnyLoss",
                "sets and folds with MetricClassifier", "mean of AnyLoss there", "of MetricClassifier",
                "wins/ties/losses of MetricClassifier"]  # fmt: skip
        return rows(head, body)

    def _classifier(self, folds: Folds, beside: Folds, metric: str) -> list[str]:
        """On the folds that MetricClassifier was fitted for."""
        pairs, used = [], 0
        for cell, value in beside.items():
            ours = scores(folds, f"{cell.partition('/')[0]}/{metric}", metric)
            if metric in value["counts"] and ours is not None:
                theirs = scores(beside, cell, metric)
                assert theirs is not None
                pairs.append((float(ours[value["folds"]].mean()), float(theirs.mean())))
                used = len(value["folds"])
        if not pairs:
            return [""] * 4
        ours, theirs = np.array(pairs).T
        means = [shown(float(v.mean())) for v in (ours, theirs)]
        return [f"{len(pairs)} × {used}", *means, "/".join(map(str, duel(theirs, ours)))]

    def _words(self, folds: Folds) -> list[str]:
        lost = []
        for metric in METRICS:
            sets, found = self.table(folds, metric, {"AnyLoss": metric, RIVAL: "rival"})
            won, _, loses = duel(found["AnyLoss"], found[RIVAL])
            if sets and loses >= won:
                lost.append(f"{WORDS[metric]} ({won} won, {loses} lost)")
        if not lost:
            return [f"Against the honest rival, {RIVAL}, AnyLoss wins more sets than it loses on every metric."]
        return [
            f"Against the honest rival, {RIVAL}, AnyLoss does not win more sets than it loses on {', '.join(lost)}."
        ]

    def _show_signs(self, folds: Folds) -> str:
        body = []
        for metric in self.protocol["metrics"]:
            again = self.signs(folds, metric, released=True)
            for place, (key, signs) in enumerate(self.signs(folds, metric).items()):
                printed = Signs(*reversed(self.printed["signs"][metric][place]))
                body.append([WORDS[metric], key[1], key[0], printed, signs, again.get(key, "")])
        return rows(["metric", "against", "rope", "printed", "found", "as released"], body)

    def _show_gains(self, folds: Folds) -> str:
        body = []
        for metric, printed in self.printed["gains"].items():
            theirs = self.authors(folds, metric)
            ours = self.gains(folds, metric, self.three(folds, metric)[1])
            again = self.gains(folds, metric, theirs) if theirs else [None] * len(GROUPS)
            for group, said, gain, other in zip(GROUPS, printed, ours, again, strict=True):
                if gain is not None:
                    authors_gain = [""] * 2 if other is None else [f"{value:+.3f}" for value, _ in other]
                    share, told = f"{group[0]:.0%} to {min(group[1], 1):.0%}", [f"{value:+.3f}" for value in said]
                    ours_gain = [f"{value:+.3f} ± {spread:.3f}" for value, spread in gain]
                    body.append([WORDS[metric], share, *told, *authors_gain, *ours_gain])
        columns = ("printed", "the authors' on these sets", "found")
        return rows(["metric", "larger class", *(f"{c}: over {w}" for c in columns for w in ("MSE", "BCE"))], body)

    def draw(self, folds: Folds) -> dict[str, Any]:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only where pictures are drawn

        figure = Figure((10, 3.4), layout="constrained")
        for place, rope in enumerate(self.protocol["ropes"]):
            axes = figure.add_subplot(1, 2, place + 1)
            found = {f"{WORDS[metric]}\n{key[1]}": signs for metric in self.protocol["metrics"]
                     for key, signs in self.signs(folds, metric).items() if key[0] == rope}  # fmt: skip
            bottom = np.zeros(len(found))
            for kind, colour in (("lose", "#b5402a"), ("draw", "#cccccc"), ("win", "#3a6ea5")):
                heights = np.array([getattr(signs, kind) for signs in found.values()])
                axes.bar(range(len(found)), heights, bottom=bottom, color=colour, label=kind)
                bottom = bottom + heights
            axes.set_xticks(range(len(found)), list(found), fontsize=7)
            axes.set_title(f"{self.net.upper()}, rope {rope}", fontsize=9)
        figure.axes[0].set_ylabel("probability", fontsize=9)
        figure.axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return {f"{self.name}_signs": figure}

    def directions(self, folds: Folds) -> dict[str, bool]:
        found = {}
        for name in sorted({cell.partition("/")[0] for cell in folds if cell != AUTHORS}):
            ours, bce, rival = (mean(folds, f"{name}/{kind}", "f1") for kind in ("f1", "bce", "rival"))
            if ours is not None and bce is not None and self.net == "slp":
                found[f"set {name}, SLP: AnyLoss on F1 beats BCE at ½ on F1"] = ours > bce
            if rival is not None and bce is not None:
                found[f"set {name}, {self.net.upper()}: a tuned threshold does not hurt BCE's F1"] = rival >= bce
        return found


def _line(found: Scores, *, ties: bool = False) -> str:
    if not found or not len(found["AnyLoss"]):
        return ""
    strict, tied, shared = wins(found)
    return "/".join(map(str, (shared if ties else strict).values())) + ("" if ties or not tied else f", {tied} tied")


def _apart(some: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(some, others, strict=True))


def _larger(folds: Folds, name: str) -> float:
    """The share of the larger class."""
    tp, fp, fn, tn = np.array(folds[f"{name}/bce"]["counts"]).sum(0)
    return float(max(tp + fn, fp + tn) / (tp + fp + fn + tn))
