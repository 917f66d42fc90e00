"""The protocol of AnyLoss on one set: what each loss, the honest rival and MetricClassifier decide in its ten folds.

A cell's value is ``{"counts": [[tp, fp, fn, tn], …]}``, a list for each fold; for those who decide for a metric
(``rival``, ``classifier``) it is a list for each metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from frame import Context, Folds, Json, packed
from judging import count, metric_of, tuned
from perceptrons import METRICS, Objective, Plan, descend, logits_of, make_rows, train_batches

FOLDS = 10
#: How the released code's gradient of G-mean compares with the true one.
RELEASED_SLOPE = 4.0


@dataclass(frozen=True, eq=False)
class Problem:
    """A set with its folds: ``outer[row]`` is the fold that holds the row out, ``inner[fold, row]`` its inner fold."""

    x: np.ndarray
    y: np.ndarray
    outer: np.ndarray
    inner: np.ndarray

    @property
    def train(self) -> np.ndarray:
        return self.outer[:, None] != np.arange(FOLDS)

    @property
    def nested(self) -> np.ndarray:
        """The training rows of every inner fold of every outer one: ``(rows, FOLDS · inner)``."""
        seen = self.inner[:, None] != np.arange(5)[None, :, None]
        return np.moveaxis(seen & (self.inner[:, None] != 255), 2, 0).reshape(len(self.y), -1)

    def counts(self, logits: np.ndarray) -> list[list[int]]:
        """Counts of each fold, of logits ``(rows, FOLDS)`` decided at ½."""
        held = [self.outer == fold for fold in range(FOLDS)]
        return [count(logits[rows, fold] > 0, self.y[rows]) for fold, rows in enumerate(held)]

    def rival(self, logits: np.ndarray, nested: np.ndarray) -> dict[str, list[list[int]]]:
        """The same by thresholds tuned on the held-out logits of the inner folds."""
        found: dict[str, list[list[int]]] = {name: [] for name in METRICS}
        for fold in range(FOLDS):
            seen, held = self.outer != fold, self.outer == fold
            scores = nested.reshape(len(self.y), FOLDS, 5)[seen, fold, self.inner[fold, seen]]
            for name, lists in found.items():
                decided, _ = tuned(scores, self.y[seen], logits[held, fold], name)
                lists.append(count(decided, self.y[held]))
        return found


@cache
def problem(pack: str, name: str) -> Problem:
    """A set of a file that pack.py made."""
    arrays = _arrays(pack)
    given = (arrays[f"{kind}_{name}"] for kind in ("x", "y", "outer", "inner"))
    x, y, outer, inner = given
    return Problem(x, y.astype(np.int64), outer, inner)


@cache
def _arrays(pack: str) -> dict[str, np.ndarray]:
    return packed(pack)


def names(pack: str) -> list[str]:
    """The sets of a file, by number."""
    found = [key.removeprefix("x_") for key in _arrays(pack) if key.startswith("x_")]
    return sorted(found, key=lambda name: int(name) if name.isdigit() else 0)


# ---------------------------------------------------------------------------------------------------------------------
# SLP
# ---------------------------------------------------------------------------------------------------------------------


def slp(
    given: Problem, wanted: Sequence[str], rates: dict[str, float], protocol: Json, context: Context
) -> Iterator[tuple[str, Json]]:
    """Of the losses, ``rival`` and ``released:g_mean`` those that are wanted."""
    steps = protocol["steps"]
    rows = make_rows(given.x, given.y, given.train, context.device)
    kept: dict[str, np.ndarray] = {}
    for name in wanted:
        if name == "rival":
            if "bce" not in kept:
                kept["bce"] = descend(rows, Objective("bce", rates["bce"]), steps).cpu().numpy()
            nested = make_rows(given.x, given.y, given.nested, context.device)
            inner = descend(nested, Objective("bce", rates["bce"]), steps).cpu().numpy()
            yield name, {"counts": given.rival(kept["bce"], inner)}
            continue
        if name.startswith("sol:"):
            plan = Plan(protocol["sol_epochs"], protocol["sol_batches"], 0, _seeds(protocol))
            nets = train_batches(rows, [Objective(name, rates[name])], plan)
            logits = logits_of(nets, rows)[:, :, 0].numpy()
        elif name.startswith("released:"):
            goal = name.removeprefix("released:")
            logits = descend(rows, Objective(goal, RELEASED_SLOPE * rates[goal]), steps).cpu().numpy()
        else:
            logits = descend(rows, Objective(name, rates[name]), steps).cpu().numpy()
        kept[name] = logits
        yield name, {"counts": given.counts(logits)}


# ---------------------------------------------------------------------------------------------------------------------
# MLP
# ---------------------------------------------------------------------------------------------------------------------


def mlp(
    given: Problem, wanted: Sequence[str], rates: dict[str, float], protocol: Json, context: Context
) -> Iterator[tuple[str, Json]]:
    """Of the losses, ``rival`` and ``released:<loss>`` those that are wanted."""
    plain = [Objective(name, rates[name]) for name in wanted if name in rates]
    rows = make_rows(given.x, given.y, given.train, context.device)
    for name, logits in together(rows, plain, protocol):
        yield name, {"counts": given.counts(logits)}
    if "rival" in wanted:
        objective = Objective("bce", rates["bce"])
        _, outside = next(together(rows, [objective], protocol))
        nested = make_rows(given.x, given.y, given.nested, context.device)
        _, inside = next(together(nested, [objective], protocol))
        yield "rival", {"counts": given.rival(outside, inside)}
    released = [name.removeprefix("released:") for name in wanted if name.startswith("released:")]
    for name, counts in _released(given, released, rates, protocol, context).items():
        yield f"released:{name}", {"counts": counts}


def together(rows: Any, objectives: Sequence[Objective], protocol: Json) -> Iterator[tuple[str, np.ndarray]]:
    """Objectives with batches of one size are trained together; the logits ``(rows, nets)`` of each."""
    for batches, group in _groups(objectives, protocol):
        plan = Plan(protocol["epochs"], batches, protocol["hidden"], _seeds(protocol, rows.nets))
        logits = logits_of(train_batches(rows, group, plan), rows).numpy()
        for place, objective in enumerate(group):
            yield objective.name, logits[:, :, place]


def _released(
    given: Problem, goals: Sequence[str], rates: dict[str, float], protocol: Json, context: Context
) -> dict[str, list[list[int]]]:
    """As released: nets go on from fold to fold, rows are standardised by all, L_G and L_B divide by the whole fold."""
    found: dict[str, list[list[int]]] = {goal: [] for goal in goals}
    everything = np.ones((len(given.y), 1), bool)
    objectives = [_as_released(goal, rates[goal], int(given.train[:, 0].sum()), protocol) for goal in goals]
    for batches, group in _groups(objectives, protocol):
        nets = None
        for fold in range(FOLDS):
            rows = make_rows(given.x, given.y, given.train[:, fold : fold + 1], context.device, everything)
            plan = Plan(protocol["epochs"], batches, protocol["hidden"], [protocol["seed"] + fold])
            nets = train_batches(rows, group, plan, nets)
            logits, held = logits_of(nets, rows)[:, 0].numpy(), given.outer == fold
            for place, objective in enumerate(group):
                found[objective.name].append(count(logits[held, place] > 0, given.y[held]))
    return found


def _as_released(goal: str, rate: float, rows: int, protocol: Json) -> Objective:
    return Objective(
        goal, rate, rows=rows if goal in {"g_mean", "balanced_accuracy"} and goal in protocol["halves"] else None
    )


def _groups(objectives: Sequence[Objective], protocol: Json) -> list[tuple[int, list[Objective]]]:
    halves = [o for o in objectives if o.name in protocol["halves"]]
    others = [o for o in objectives if o.name not in protocol["halves"]]
    return [(batches, group) for batches, group in ((protocol["batches"], others), (2, halves)) if group]


def _seeds(protocol: Json, nets: int = FOLDS) -> list[int]:
    return [protocol["seed"] + net for net in range(nets)]


# ---------------------------------------------------------------------------------------------------------------------
# MetricClassifier
# ---------------------------------------------------------------------------------------------------------------------


def classifier(given: Problem, folds: Sequence[int], protocol: Json) -> Json:
    """What MetricClassifier decides on some folds, for each metric."""
    import stepless as sl  # noqa: PLC0415 - the class needs scikit-learn

    torch.manual_seed(protocol["random_state"])
    found: dict[str, list[list[int]]] = {}
    for name in protocol["metrics"]:
        found[name] = []
        for fold in folds:
            seen, held = given.outer != fold, given.outer == fold
            metric, options = METRICS[name]
            model = sl.MetricClassifier(metric=metric, random_state=protocol["random_state"], **options)
            model.fit(given.x[seen], given.y[seen])
            found[name].append(count(np.asarray(model.predict(given.x[held])), given.y[held]))
    return {"counts": found, "folds": list(folds)}


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def scores(folds: Folds, cell: str, metric: str) -> np.ndarray | None:
    """The metric of each fold of a cell, if the cell is there."""
    if cell not in folds:
        return None
    counts = folds[cell]["counts"]
    return metric_of(counts[metric] if isinstance(counts, dict) else counts, metric)


def mean(folds: Folds, cell: str, metric: str) -> float | None:
    """Its mean over folds."""
    found = scores(folds, cell, metric)
    return None if found is None else float(found.mean())


def constant(folds: Folds, cell: str, metric: str) -> np.ndarray:
    """Of each fold, whether all of its rows are decided alike at ½: whether the net decides nothing there."""
    counts = folds[cell]["counts"]
    tp, fp, fn, tn = np.asarray(counts[metric] if isinstance(counts, dict) else counts).T
    return (tp + fp == 0) | (fn + tn == 0)
