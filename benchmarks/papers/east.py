"""EAST, as far as its abstract allows: five targets on 13 tables, MNIST and CIFAR-10, whole and without its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from bridging_data import image_parts, images
from bridging_scores import has_sklearn
from east_losses import SCORED, TARGETS, make
from frame import Context, Folds, Json, Table, Verdict, judged, packed, rows
from stacked import ConvNet, Mlp, Net, Parts, Plan, train
from torch import Tensor

import stepless as sl

WORDS = {
    "ce": "cross-entropy",
    "offsets": "cross-entropy + offsets",
    "focal": "focal",
    "weighted": "class-weighted",
    "identity": "soft metric, identity step",
    "multisol": "MultiSOL",
    "east": "`presets.east`",
    "no_threshold": "… without the threshold of each sample",
    "no_matrix": "… without the d×d matrix",
    "ours": "`MetricLoss(blend=0)`, the metric alone (= `presets.east` without annealing)",
    "sharpened": "`presets.east`, and the step sharpens tenfold",
    "classifier": "`MetricClassifier`, our default",
}
METRICS = {"f1": "macro F1", "f025": "macro F_0.25", "f2": "macro F_2", "accuracy": "accuracy", "mcc": "MCC"}


class East(Table):
    """Cells are ``set/ce`` or ``set/east/f1``: every score of the networks of one loss, one number a trial."""

    paper = "EAST"
    sets: tuple[str, ...]

    def losses(self) -> list[str]:
        protocol = self.protocol
        return [*protocol["once"], *(f"{kind}/{m}" for kind in protocol["on_metric"] for m in protocol["metrics"])]

    def cells(self, context: Context) -> list[str]:
        if context.quick:
            quick = self.protocol["quick"]
            return [f"{quick.get('set', self.sets[0])}/{loss}" for loss in quick["losses"]]
        classified = [f"classifier/{m}" for m in self.protocol.get("classifier_metrics", [])]
        return [f"{name}/{loss}" for name in self.sets for loss in (*self.losses(), *classified)]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = {**self.protocol, **(self.protocol["quick"] if context.quick else {})}
        for name in self.sets:
            missing = [cell.partition("/")[2] for cell in cells if cell.partition("/")[0] == name]
            nets = [loss for loss in missing if not loss.startswith("classifier")]
            if nets:
                net, target, parts = self.stack(name, len(nets), protocol, context.device)
                shares = torch.bincount(target[parts.train[0]], minlength=int(target.max()) + 1) / parts.train.shape[1]
                made = [make(loss, shares, protocol, context.device) for loss in nets]
                plan = Plan(protocol["epochs"], protocol["batch_size"], protocol["learning_rate"], cosine=True)
                trained = train(net, target, parts, made, plan, 0)
                for place, loss in enumerate(nets):
                    yield f"{name}/{loss}", scores_of(
                        trained.val[place], trained.test[place], target, parts, tuned=loss == "ce")  # fmt: skip
            for loss in missing:
                if loss.startswith("classifier") and has_sklearn():
                    yield f"{name}/{loss}", self.classify(name, loss.partition("/")[2])

    def stack(self, name: str, losses: int, protocol: Json, device: str) -> tuple[Net, Tensor, Parts]:
        raise NotImplementedError

    def classify(self, name: str, metric: str) -> Json:
        raise NotImplementedError

    # -----------------------------------------------------------------------------------------------------------------
    # Judging
    # -----------------------------------------------------------------------------------------------------------------

    def found(self, folds: Folds, name: str, kind: str, metric: str) -> float | None:
        """The mean score of a way on a set, by this metric; None if it has not run."""
        cell = folds.get(f"{name}/{'ce' if kind == 'offsets' else kind}", folds.get(f"{name}/{kind}/{metric}"))
        key = f"{metric}_tuned" if kind == "offsets" else metric
        return float(np.mean(cell[key])) if cell is not None and key in cell else None

    def compared(self, folds: Folds, one: str, other: str, metric: str) -> tuple[int, int, int, float]:
        """Wins, ties, losses and mean difference of one way against another, over the sets where both have run."""
        both = [(self.found(folds, name, one, metric), self.found(folds, name, other, metric)) for name in self.sets]
        gaps = np.array([a - b for a, b in both if a is not None and b is not None])
        margin = self.protocol["margin"]
        wins, losses = int((gaps > margin).sum()), int((gaps < -margin).sum())
        return wins, len(gaps) - wins - losses, losses, float(gaps.mean()) if len(gaps) else 0.0

    def verdicts(self, folds: Folds) -> list[Verdict]:
        verdicts = []
        for metric in self.protocol["metrics"]:
            for other in ("ce", "no_threshold", "no_matrix", "ours"):
                claimed = "outperforms" if other == "ce" else "one of its three parts; no number"
                wins, ties, losses, gap = self.compared(folds, "east", other, metric)
                sets = wins + ties + losses
                if sets == 0:
                    continue
                against = "without annealing" if other == "ours" else WORDS[other].removeprefix("… ")
                text = f"{wins} wins, {ties} ties, {losses} losses on {sets} sets, mean {gap:+.4f}"
                if losses > wins:
                    reason = f"more losses than wins; on {ties} of {sets} sets the two are within the margin"
                else:
                    reason = f"as many losses as wins; on {ties} of {sets} sets the two are within the margin"
                verdicts.append(judged(f"{METRICS[metric]}: `presets.east` against {against}", claimed, text,
                                       holds=wins > losses, reason=reason))  # fmt: skip
        found = [self._preference(folds, name) for name in self.sets]
        known = [holds for holds in found if holds is not None]
        if known:
            verdicts.append(judged(
                "training on F_0.25 gives more macro precision, and on F_2 more macro recall, than on F1",
                "preference is reflected", f"{sum(known)} of {len(known)} sets", holds=2 * sum(known) > len(known),
                reason=self._why_not_preferred(folds)))  # fmt: skip
        return verdicts

    def _preference(self, folds: Folds, name: str) -> bool | None:
        cells = [folds.get(f"{name}/east/{m}") for m in ("f025", "f1", "f2")]
        if not all(cells):
            return None
        precise, plain, recalling = cells
        return bool(np.mean(precise["precision"]) > np.mean(plain["precision"])
                    and np.mean(recalling["recall"]) > np.mean(plain["recall"]))  # fmt: skip

    def _why_not_preferred(self, folds: Folds) -> str:
        """The sets on which it fails, with precision and recall of the two trainings."""
        lost = []
        for name in self.sets:
            if self._preference(folds, name) is False:
                precise, plain, recalling = (folds[f"{name}/east/{m}"] for m in ("f025", "f1", "f2"))
                lost.append(
                    f"{name}: precision {np.mean(precise['precision']):.4f} and {np.mean(plain['precision']):.4f},"
                    f" recall {np.mean(recalling['recall']):.4f} and {np.mean(plain['recall']):.4f}"
                )
        return f"on half of the sets or fewer; not on {'; '.join(lost)}"

    def _parts(self, folds: Folds) -> list[str]:
        """What each part is worth: the mean difference over sets, of each metric."""
        words = {"ours": "annealing", "no_threshold": "the threshold of each sample", "no_matrix": "the d×d matrix"}
        lines = []
        for other, part in words.items():
            gaps = [self.compared(folds, "east", other, metric) for metric in self.protocol["metrics"]]
            known = [gap for *counts, gap in gaps if sum(counts)]
            if known:
                lines.append(f"{part} {min(known):+.3f} to {max(known):+.3f}")
        return lines

    def summary(self, folds: Folds) -> str:
        parts = self._parts(folds)
        if not parts:
            return ""
        words = f"What each part of our build adds in the mean, by metric: {', '.join(parts)}."
        for other, name in (("ce", "cross-entropy"), ("offsets", "cross-entropy + offsets, the rival")):
            found = [self.compared(folds, "east", other, metric) for metric in self.protocol["metrics"]]
            if any(sum(counts) for *counts, _ in found):
                ahead = sum(wins > losses for wins, _, losses, _ in found)
                behind = sum(wins < losses for wins, _, losses, _ in found)
                words += f" Against {name}: wins more sets than it loses on {ahead}, fewer on {behind} of"
                words += f" {len(found)} metrics."
            else:
                words += f" Against {name}: not run so far."
        return words

    def show(self, folds: Folds) -> list[str]:
        metrics = self.protocol["metrics"]
        kinds = [
            kind for kind in WORDS if any(self.found(folds, n, kind, m) is not None for n in self.sets for m in metrics)
        ]
        body, counted = [], {m: self._complete(folds, kinds, m) for m in metrics}
        for kind in kinds:
            line = [WORDS[kind]]
            for metric in metrics:
                scores = [self.found(folds, name, kind, metric) for name in counted[metric]]
                known = [score for score in scores if score is not None]
                ranks = self._ranks(folds, kinds, metric, counted[metric]).get(kind)
                line.append(f"{np.mean(known):.3f} ({ranks:.1f})" if known and ranks is not None else "–")
            if any(text != "–" for text in line[1:]):
                body.append(line)
        number = ", ".join(f"{METRICS[m]} {len(counted[m])}" for m in metrics)
        plain = [WORDS[kind] for kind in kinds if kind in {"ce", "offsets", "focal", "weighted"}]
        ranked = " `MetricClassifier`, where it has run on fewer, is not ranked." if "classifier" in kinds else ""
        rival = (
            "The rival is cross-entropy with offsets of classes tuned on validation rows."
            if "offsets" in kinds
            else "**Cross-entropy, and with it the honest rival, has not run so far**: nothing is said of them here."
        )
        parts = [
            "Mean score, and in brackets the mean rank (1 is best), over the sets on which all of these have run"
            f" ({number}).{ranked} Each way is trained on the"
            f" metric of its column, but for {', '.join(plain)}. {rival} A difference in mean score below"
            f" {self.protocol['margin']} is a tie; the standard error of a mean over the trials of `presets.east` is"
            f" {self._error(folds):.4f} for the median set and metric. Of EAST only the abstract is known to us:"
            " `presets.east` is built from it, and where a claim fails, the paper's formulas may be others. The"
            " abstract names F1, F_0.25, accuracy and MCC; F_2 and the sets are ours. It names three parts, and that"
            " each of them is of use is implied at most.",
            rows(["trained on", *(METRICS[m] for m in metrics)], body),
        ]
        if "f1" in metrics:
            run = [name for name in self.sets if any(self.found(folds, name, k, "f1") is not None for k in kinds)]
            detail = [[name, *(f"{score:.3f}" if (score := self.found(folds, name, kind, "f1")) is not None else "–"
                               for kind in kinds)] for name in run]  # fmt: skip
            head = [WORDS[kind].removeprefix("… ").partition(" (")[0] for kind in kinds]
            parts += ["Macro F1 on each set:", rows(["set", *head], detail)]
        against = []
        for other in ("focal", "weighted", "identity", "multisol"):
            counts = {m: self.compared(folds, "east", other, m)[:3] for m in metrics}
            known = [f"{METRICS[m]} {'/'.join(map(str, c))}" for m, c in counts.items() if sum(c)]
            if known:
                against.append(f"- `presets.east` against {WORDS[other]}, wins/ties/losses: {', '.join(known)}.")
        for metric in metrics:
            for kind in ("east", "ours"):
                wins, ties, losses, gap = self.compared(folds, kind, "offsets", metric)
                if wins + ties + losses:
                    verb = "**loses** to" if losses > wins else "beats" if wins > losses else "draws with"
                    against.append(
                        f"- {METRICS[metric]}: {WORDS[kind].partition(' (')[0]} {verb} cross-entropy with offsets:"
                        f" {wins} wins, {ties} ties, {losses} losses, {gap:+.4f} in the mean."
                    )
        if against:
            parts.append("\n".join(against))
        return parts

    def _error(self, folds: Folds) -> float:
        """Of the mean over trials, of `presets.east`, for the median set and metric."""
        found = [np.std(cell[m], ddof=1) / len(cell[m]) ** 0.5 for name in self.sets for m in self.protocol["metrics"]
                 if (cell := folds.get(f"{name}/east/{m}")) is not None]  # fmt: skip
        return float(np.median(found)) if found else 0.0

    def _complete(self, folds: Folds, kinds: Sequence[str], metric: str) -> list[str]:
        """The sets on which all ways have run; `MetricClassifier`, which runs on fewer, need not."""
        asked = [kind for kind in kinds if kind != "classifier"]
        return [n for n in self.sets if all(self.found(folds, n, kind, metric) is not None for kind in asked)]

    def _ranks(self, folds: Folds, kinds: Sequence[str], metric: str, names: Sequence[str]) -> dict[str, float]:
        table = {kind: [self.found(folds, name, kind, metric) for name in names] for kind in kinds}
        whole = {kind: scores for kind, scores in table.items() if scores and None not in scores}
        if not whole:
            return {}
        scores = np.array(list(whole.values()), float)
        ranks = (scores[None] > scores[:, None]).sum(1) + ((scores[None] == scores[:, None]).sum(1) + 1) / 2
        return dict(zip(whole, ranks.mean(1), strict=True))


def scores_of(val: Tensor, test: Tensor, target: Tensor, parts: Parts, *, tuned: bool) -> dict[str, Any]:
    """Every score of one loss, a number a trial; ``tuned`` also with offsets tuned on the validation rows."""
    cell: dict[str, list[float]] = {}
    for trial in range(len(test)):
        y = target[parts.test[trial]]
        for key, (metric, options) in SCORED.items():
            score = sl.score(test[trial], y, metric, task="multiclass", **options)
            cell.setdefault(key, []).append(float(score))
            if tuned and key in TARGETS:
                found = sl.tune_threshold(val[trial].numpy(), target[parts.val[trial]].numpy(), metric,
                                          task="multiclass", inputs="logits", **options)  # fmt: skip
                score = sl.score(test[trial], y, metric, task="multiclass", threshold=found, **options)
                cell.setdefault(f"{key}_tuned", []).append(float(score))
    return cell


def stratified(target: np.ndarray, shares: Sequence[float], trial: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of three parts, each with its share of every class."""
    random, parts = np.random.default_rng(trial), ([], [], [])
    for label in range(target.max() + 1):
        mixed = random.permutation(np.flatnonzero(target == label))
        cuts = np.round(np.cumsum(shares)[:-1] * len(mixed)).astype(int)
        for part, found in zip(parts, np.split(mixed, cuts), strict=True):
            part.append(found)
    return tuple(random.permutation(np.concatenate(part)) for part in parts)


class Tables(East):
    name, title = "east_tables", "Thirteen multiclass tables"
    sets = (
        "letter", "satimage", "pendigits", "pmlb_ann-thyroid", "pmlb_shuttle", "cardiotocography", "nursery",
        "wall-robot-navigation", "pmlb_connect-4", "one-hundred-plants-shape", "pmlb_sleep", "kropt",
        "first-order-theorem-proving",
    )  # fmt: skip

    def problem(self, name: str, trials: int) -> tuple[Tensor, Tensor, Parts]:
        data = packed("east")
        matrix, target = data[name].astype(np.float32), data[f"{name}_target"].astype(np.int64)
        parts = Parts.of([stratified(target, self.protocol["split"], trial) for trial in range(trials)])
        return torch.from_numpy(matrix), torch.from_numpy(target), parts

    def stack(self, name: str, losses: int, protocol: Json, device: str) -> tuple[Net, Tensor, Parts]:
        matrix, target, parts = self.problem(name, protocol["trials"])
        net = Mlp(matrix, parts, protocol["hidden"], int(target.max()) + 1, losses, 0, device=device)
        return net, target, parts

    def classify(self, name: str, metric: str) -> Json:
        trials, (short, options) = self.protocol["classifier_trials"], TARGETS[metric]
        matrix, target, parts = self.problem(name, trials)
        cell: dict[str, list[float]] = {}
        for trial in range(trials):
            known, test = torch.cat([parts.train[trial], parts.val[trial]]), parts.test[trial]
            model = sl.MetricClassifier(metric=short, metric_options=options or None, random_state=trial)
            model.fit(matrix[known].numpy(), target[known].numpy())
            decided = torch.from_numpy(model.predict(matrix[test].numpy()))
            hot = torch.nn.functional.one_hot(decided, int(target.max()) + 1).float()
            for key, (scored, more) in SCORED.items():
                score = sl.score(hot, target[test], scored, task="multiclass", inputs="probabilities", **more)
                cell.setdefault(key, []).append(float(score))
        return cell

    def directions(self, folds: Folds) -> dict[str, bool]:
        name = self.protocol["quick"]["set"]
        low, high = (float(np.mean(folds[f"{name}/east/{m}"]["recall"])) for m in ("f025", "f2"))
        return {"trained on F_2, macro recall is above that of F_0.25": high > low}


class Images(East):
    name, title = "east_images", "MNIST and CIFAR-10"
    sets = ("mnist", "cifar")

    def stack(self, name: str, losses: int, protocol: Json, device: str) -> tuple[Net, Tensor, Parts]:
        pictures, target, known = images(name)
        parts = image_parts(known, len(target), protocol["trials"], protocol["validation"], protocol.get("images"))
        net = ConvNet(pictures, protocol["trials"], protocol["channels"], 10, losses, 0, device=device)
        return net, target, parts


TABLES: list[Table] = [Tables(), Images()]
