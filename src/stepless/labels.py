"""One threshold a label: exact where the average separates the labels, else by sweeping one label at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from stepless.averaging import evaluate
from stepless.counts import Counts, counts_of
from stepless.sweep import Floats, Sweep, best_entry, merit, score_counts, sweep, violation
from stepless.tuning import Job, Tuning, best_cut, infeasible

_ROUNDS = 50  # a search ends when a round changes nothing, usually after a few


def tune_labels(job: Job, x: Floats, y: np.ndarray[Any, Any], w: Floats | None) -> Tuning:
    """One threshold for each column of ``x``."""
    sweeps = tuple(sweep(x[:, j], y[:, j], w) for j in range(x.shape[1]))
    if job.average in ("macro", "weighted", "none"):
        entries = [best_cut(job, swept, swept.counts) for swept in sweeps]
    elif job.average == "micro":
        entries = _tune_micro(job, sweeps, x, y, w)
    else:
        entries = _tune_samples(job, sweeps, x, y, w)
    threshold = tuple(swept.threshold(entry) for swept, entry in zip(sweeps, entries, strict=True))

    def again(times: Floats) -> Tuning:
        kept = times > 0
        return tune_labels(job, x[kept], y[kept], times[kept] if w is None else times[kept] * w[kept])

    def score_at(threshold: Any, times: Floats) -> float:
        return _score_labels(job, x >= np.array(threshold), y, times if w is None else times * w)

    value = score_at(threshold, np.ones(len(x)))
    counts = Counts(*(np.array([s.counts[i][e] for s, e in zip(sweeps, entries, strict=True)]) for i in range(4)))
    return Tuning(threshold, value, counts, job.task, job.inputs, sweeps, job.metric, again, score_at, len(x))


def _score_labels(job: Job, yes: np.ndarray[Any, Any], y: np.ndarray[Any, Any], w: Floats) -> float:
    """The score of multilabel decisions, in the job's average."""
    four = [yes * y, yes * (1 - y), ~yes * y, ~yes * (1 - y)]
    if job.average == "samples":
        rows = score_counts(job.metric, Counts(*(cell.sum(1).astype(float) for cell in four)))
        known = ~np.isnan(rows)
        return float((rows * w)[known].sum() / w[known].sum()) if w[known].any() else math.nan
    table = np.stack([(cell * w[:, None]).sum(0) for cell in four], -1)[None, None]
    return float(evaluate(job.metric, table, "multilabel", job.average)[0, 0])


def _tune_micro(job: Job, sweeps: tuple[Sweep, ...], x: Floats, y: np.ndarray[Any, Any], w: Floats | None) -> list[int]:
    common = sweep(x.reshape(-1), y.reshape(-1), None if w is None else np.repeat(w, x.shape[1]))
    tables = [np.stack(swept.counts, -1) for swept in sweeps]

    def improve(entries: list[int]) -> tuple[tuple[float, float], list[int]]:
        key = (-math.inf, -math.inf)
        for _ in range(_ROUNDS):
            before = key
            for j, (swept, table) in enumerate(zip(sweeps, tables, strict=True)):
                others = sum(t[e] for i, (t, e) in enumerate(zip(tables, entries, strict=True)) if i != j)
                counts = counts_of(table + others)
                broken = _broken(job, counts)
                entry = best_entry(swept, merit(job.metric, score_counts(job.metric, counts)), broken)
                merits = merit(job.metric, score_counts(job.metric, Counts(*(c[entry : entry + 1] for c in counts))))
                trial = (-float(np.broadcast_to(broken, counts.tp.shape)[entry]), float(merits[0]))
                if trial > key:
                    key, entries = trial, [*entries[:j], entry, *entries[j + 1 :]]
            if key == before:
                break
        return key, entries

    free = replace(job, constraints=())
    own = [best_cut(free, swept, swept.counts) for swept in sweeps]
    cut = common.threshold(best_cut(free, common, common.counts))
    shared = [int((swept.scores >= cut).sum()) for swept in sweeps]
    key, entries = max(improve(own), improve(shared), key=lambda found: found[0])
    if key[0] < 0:
        totals = counts_of(sum(table[entry] for table, entry in zip(tables, entries, strict=True)))
        raise infeasible(job.constraints, [score_counts(c.metric, totals) for c in job.constraints], searched=True)
    return entries


def _tune_samples(
    job: Job, sweeps: tuple[Sweep, ...], x: Floats, y: np.ndarray[Any, Any], w: Floats | None
) -> list[int]:
    if job.constraints:
        raise ValueError('subject_to cannot be combined with average="samples"; tune macro or micro.')
    weight = np.ones(len(x)) if w is None else w
    truth = y.astype(float)

    def rows(yes: np.ndarray[Any, Any]) -> list[Floats]:
        return [(cell).sum(1) for cell in (yes * truth, yes * (1 - truth), ~yes * truth, ~yes * (1 - truth))]

    def improve(entries: list[int]) -> tuple[float, list[int]]:
        yes = np.stack([x[:, j] >= s.threshold(e) for j, (s, e) in enumerate(zip(sweeps, entries, strict=True))], 1)
        best = -math.inf
        for _ in range(_ROUNDS):
            before = best
            for j, swept in enumerate(sweeps):
                cells, t, mine = rows(yes), truth[:, j], yes[:, j]
                base = [
                    cells[0] - mine * t,
                    cells[1] - mine * (1 - t),
                    cells[2] - ~mine * t,
                    cells[3] - ~mine * (1 - t),
                ]
                if_yes = score_counts(job.metric, Counts(base[0] + t, base[1] + 1 - t, base[2], base[3]))
                if_no = score_counts(job.metric, Counts(base[0], base[1], base[2] + t, base[3] + 1 - t))
                # a sample that passes the cut trades its "no" score for its "yes" score
                order = np.argsort(-x[:, j], kind="stable")
                gained = np.cumsum((weight * (if_yes - if_no))[order])
                ends = np.searchsorted(-x[order, j], -swept.scores, side="right")
                totals = (weight * if_no).sum() + np.concatenate([[0.0], gained[ends - 1]])
                merits = merit(job.metric, totals)
                entry = best_entry(swept, merits)
                if merits[entry] > best + 1e-12 * abs(best) or best == -math.inf:
                    best = float(merits[entry])
                    entries = [*entries[:j], entry, *entries[j + 1 :]]
                    yes[:, j] = x[:, j] >= swept.threshold(entry)
            if best == before:
                break
        return best, entries

    common = sweep(x.reshape(-1), y.reshape(-1))
    cut = common.threshold(best_entry(common, _samples_at_common_cuts(job, common, x, truth, weight)))
    shared = [int((swept.scores >= cut).sum()) for swept in sweeps]
    own = [best_cut(job, swept, swept.counts) for swept in sweeps]
    return max(improve(own), improve(shared), key=lambda found: found[0])[1]


def _samples_at_common_cuts(job: Job, common: Sweep, x: Floats, truth: Floats, weight: Floats) -> Floats:
    """Merit of each common cut: as a cut passes an entry, its row trades one score for the next."""
    order = np.argsort(-x, 1, kind="stable")
    t = np.take_along_axis(truth, order, 1)
    zero = np.zeros((len(x), 1))
    tp = np.concatenate([zero, np.cumsum(t, 1)], 1)
    fp = np.concatenate([zero, np.cumsum(1 - t, 1)], 1)
    rows = score_counts(job.metric, Counts(tp, fp, tp[:, -1:] - tp, fp[:, -1:] - fp))
    gain = (np.diff(rows, axis=1) * weight[:, None]).reshape(-1)
    passed = np.take_along_axis(x, order, 1).reshape(-1)
    order = np.argsort(-passed, kind="stable")
    ends = np.searchsorted(-passed[order], -common.scores, side="right")
    return merit(job.metric, (rows[:, 0] * weight).sum() + np.concatenate([[0.0], np.cumsum(gain[order])[ends - 1]]))


def _broken(job: Job, counts: Counts) -> Floats | float:
    return violation(job.constraints, [score_counts(c.metric, counts) for c in job.constraints])
