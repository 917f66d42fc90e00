"""One threshold per label: exact if the average separates the labels, else by sweeping one label at a time.

Micro and samples scores read all labels at once. Their search cycles through the labels, each time taking the cut that
is best with the others fixed, until nothing improves. It starts from the labels' own best cuts, from the best common
cut, and, for micro, from the best point of the labels' joint frontier. If there are few combinations of cuts, all are
tried. Constraints come first: as long as they are violated, the search reduces the violation, and if it ends with one,
it starts again from where each constraint's metric is best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepless.averaging import evaluate
from stepless.constraints import Constraint
from stepless.counts import Counts, counts_of
from stepless.cuts.sweep import Floats, Sweep, best_entry, outcomes, reachable, score_counts, sweep
from stepless.cuts.tuning import Data, Job, Key, Tuning, best_cut, improves, infeasible

#: A search usually ends after a few rounds, when one changes nothing.
_ROUNDS = 50
#: The most numbers that an exhaustive search over all combinations of cuts may hold.
_LARGEST_TRY = 500_000
#: Totals of weights up to this are 0 but for rounding.
_ROUNDING = 1e-12

Found = tuple[Key, list[int]]


class LabelData(Data):
    """Scores and targets ``(N, labels)``."""

    def tune(self) -> Tuning:
        """Find one threshold per label."""
        job = self.job
        sweeps = tuple(reachable(sweep(self.x[:, j], self.y[:, j], self.w)) for j in range(self.x.shape[1]))
        if job.average in ("macro", "weighted"):
            entries = [_tune_label(job, j, swept) for j, swept in enumerate(sweeps)]
        else:
            entries = _tune_jointly(Joint(job, sweeps, self.x, self.y.astype(float), self.weight))
        threshold = tuple(swept.threshold(entry) for swept, entry in zip(sweeps, entries, strict=True))
        found = [swept.at(entry) for swept, entry in zip(sweeps, entries, strict=True)]
        counts = Counts(*map(np.array, zip(*found, strict=True)))
        return Tuning(threshold, self.score(threshold), counts, job.task, job.inputs, sweeps, job.metric, self)

    def score(self, threshold: Any) -> float:
        """Compute the metric of "score ≥ threshold", in the job's average."""
        each = outcomes(self.x >= np.array(threshold), self.y)
        if self.job.average == "samples":
            rows = score_counts(self.job.metric, Counts(*(cell.sum(1).astype(float) for cell in each)))
            return float(_mean_of_known(rows, self.weight))
        table = np.stack([self.weight @ cell for cell in each], -1)[None, None]
        return float(evaluate(self.job.metric, table, "multilabel", self.job.average)[0, 0])


def _tune_label(job: Job, label: int, swept: Sweep) -> int:
    try:
        return best_cut(job, swept)
    except ValueError as error:
        raise ValueError(f"label {label}: {error}") from None


def _mean_of_known(rows: Floats, weight: Floats) -> Floats:
    """The weighted mean over the last axis, without rows whose score is undefined."""
    known = ~np.isnan(rows)
    total = (weight * known).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, rows * weight, 0.0).sum(-1) / total)


# ---------------------------------------------------------------------------------------------------------------------
# All labels at once
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joint:
    """Labels whose cuts are scored together, by the micro score or by the mean of the samples' scores."""

    job: Job
    sweeps: tuple[Sweep, ...]
    x: Floats
    truth: Floats
    weight: Floats

    @cached_property
    def tables(self) -> list[Floats]:
        """The cells ``(cuts, 4)`` of each label."""
        return [np.stack(swept.counts, -1) for swept in self.sweeps]

    def along(self, j: int, entries: list[int]) -> list[Floats]:
        """The job's metrics at each cut of label ``j``, with the cuts of the other labels fixed."""
        if self.job.average == "samples":
            return self._samples_along(j, entries)
        fixed = np.array([table[entry] for table, entry in zip(self.tables, entries, strict=True)])
        counts = counts_of(self.tables[j] + np.delete(fixed, j, 0).sum(0))
        return [score_counts(metric, counts) for metric in self.job.metrics]

    def common(self) -> tuple[Sweep, list[Floats]]:
        """The cuts of all labels' scores pooled, and the job's metrics with each as the common cut."""
        labels = self.x.shape[1]
        flat = reachable(sweep(self.x.reshape(-1), self.truth.reshape(-1), np.repeat(self.weight, labels)))
        if self.job.average == "micro":
            return flat, [score_counts(metric, flat.counts) for metric in self.job.metrics]
        order = np.argsort(-self.x, 1, kind="stable")
        t, none = np.take_along_axis(self.truth, order, 1), np.zeros((len(self.x), 1))
        tp, fp = (np.concatenate([none, np.cumsum(part, 1)], 1) for part in (t, 1 - t))
        passed = np.take_along_axis(self.x, order, 1).reshape(-1)
        values = []
        for metric in self.job.metrics:
            rows = score_counts(metric, Counts(tp, fp, tp[:, -1:] - tp, fp[:, -1:] - fp))
            before, after = rows[:, :-1].reshape(-1), rows[:, 1:].reshape(-1)
            values.append(self._trade(rows[:, 0], passed, before, after, np.repeat(self.weight, labels), flat.scores))
        return flat, values

    def _samples_along(self, j: int, entries: list[int]) -> list[Floats]:
        cuts = np.array([swept.threshold(entry) for swept, entry in zip(self.sweeps, entries, strict=True)])
        t = self.truth[:, j]
        others = outcomes(np.delete(self.x >= cuts, j, 1), np.delete(self.truth, j, 1))
        tp, fp, fn, tn = (cell.sum(1) for cell in others)
        if_yes, if_no = Counts(tp + t, fp + 1 - t, fn, tn), Counts(tp, fp, fn + t, tn + 1 - t)
        values = []
        for metric in self.job.metrics:
            before, after = score_counts(metric, if_no), score_counts(metric, if_yes)
            values.append(self._trade(before, self.x[:, j], before, after, self.weight, self.sweeps[j].scores))
        return values

    def _trade(
        self, start: Floats, passed: Floats, before: Floats, after: Floats, weight: Floats, scores: Floats
    ) -> Floats:
        """The samples' mean as a cut falls: each value it passes takes its row from ``before`` to ``after``."""
        order = np.argsort(-passed, kind="stable")
        ends = np.searchsorted(-passed[order], -scores, side="right")

        def total(start: Floats, change: Floats) -> Floats:
            gained = np.concatenate([[0.0], np.cumsum((weight * change)[order])[ends - 1]])
            return np.asarray((self.weight * start).sum() + gained)

        known = total(1.0 * ~np.isnan(start), 1.0 * ~np.isnan(after) - ~np.isnan(before))
        summed = total(np.nan_to_num(start), np.nan_to_num(after) - np.nan_to_num(before))
        found = np.divide(summed, known, out=np.full_like(summed, math.nan), where=known > _ROUNDING)
        if scores[0] == np.inf:  # no threshold rejects it
            found[0] = found[1]
        return found

    def combine(self, entries: np.ndarray[Any, Any]) -> list[Floats]:
        """The job's metrics of combinations of cuts ``(combinations, labels)``."""
        if self.job.average == "micro":
            counts = counts_of(sum(table[entries[:, j]] for j, table in enumerate(self.tables)))
            return [score_counts(metric, counts) for metric in self.job.metrics]
        yes = np.stack([(self.x[:, j] >= s.thresholds[:, None])[entries[:, j]] for j, s in enumerate(self.sweeps)], -1)
        counts = Counts(*(cell.sum(-1) for cell in outcomes(yes, self.truth)))
        return [_mean_of_known(score_counts(metric, counts), self.weight) for metric in self.job.metrics]


def _tune_jointly(joint: Joint) -> list[int]:
    key, entries = found = _search(joint)
    for constraint in joint.job.constraints if key[0] < 0 else ():
        aimed = replace(joint, job=joint.job.aimed_at(constraint, joint.job.others(constraint)))
        found = max(found, _improve(joint, _search(aimed)[1]), key=lambda f: f[0])
    key, entries = found
    if key[0] < 0:
        raise infeasible(joint.job, lambda c, others: _best_found(joint, c, others), searched=True)
    return entries


def _search(joint: Joint) -> Found:
    """The best key found, and the labels' cuts there, as entries of their sweeps."""
    free = replace(joint.job, constraints=())
    starts = [[best_cut(free, swept) for swept in joint.sweeps]]
    common, values = joint.common()
    broken, merits = joint.job.judge(values)
    for least_broken in (0.0, broken):  # the best of all common cuts, then of the least broken
        cut = common.threshold(best_entry(common, merits, least_broken))
        starts.append([int((swept.scores >= cut).sum()) for swept in joint.sweeps])
    if joint.job.average == "micro":
        starts.append(_on_the_frontier(joint))
    found = max((_improve(joint, start) for start in starts), key=lambda f: f[0])
    sizes = [len(swept.scores) + 1 for swept in joint.sweeps]
    each = 4 if joint.job.average == "micro" else joint.x.size
    if math.prod(sizes) * each > _LARGEST_TRY:
        return found
    every = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, len(sizes))
    best, key = joint.job.best(joint.combine(every))
    return (key, every[best].tolist()) if improves(key, found[0]) else found


def _on_the_frontier(joint: Joint) -> list[int]:
    """The best combination of cuts that maximise tp − price · fp in every label, over a grid of prices."""
    prices = np.geomspace(1e-3, 1e3, 61)
    every = np.array([[int(np.argmax(s.tp - price * s.fp)) for s in joint.sweeps] for price in prices])
    return [int(entry) for entry in every[joint.job.best(joint.combine(every))[0]]]


def _improve(joint: Joint, entries: list[int]) -> Found:
    """Improve the cut of one label at a time until no single one improves."""
    key = (-math.inf, -math.inf)
    for _ in range(_ROUNDS):
        before = key
        for j, swept in enumerate(joint.sweeps):
            broken, merits = joint.job.judge(joint.along(j, entries))
            entry = best_entry(swept, merits, broken)
            trial = -float(np.broadcast_to(broken, merits.shape)[entry]), float(merits[entry])
            if improves(trial, key):
                key, entries = trial, [*entries[:j], entry, *entries[j + 1 :]]
        if key == before:
            break
    return key, entries


def _best_found(joint: Joint, constraint: Constraint, others: tuple[Constraint, ...]) -> float:
    """The best value found of a constraint's metric where others hold; NaN if they could not be met."""
    aimed = replace(joint, job=joint.job.aimed_at(constraint, others))
    key, entries = _search(aimed)
    return math.nan if key[0] < 0 else float(aimed.combine(np.array([entries]))[0][0])
