"""What is fitted without a look at the metric, once for a set and all its metrics: probabilities of every row.

A row of a fold's test part is scored by a model of all the training rows; a training row by a model of the inner folds
that do not hold it. Thresholds are tuned on the latter and used on the former.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightgbm import LGBMClassifier
from losses import class_weighted, counts_of, cross_entropy, focal, logit_adjusted
from networks import Loss, Nets, Rows, train
from problems import CONFIG, SEED, Problem
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from xgboost import XGBClassifier

Model = Callable[[], Any]
_NEIGHBOURS = 5  #: of SMOTE, as published
_CHUNK = 1024  #: rows that nets score at once

_TREES = {"n_estimators": CONFIG["trees"], "random_state": SEED, "n_jobs": 1}


def _catboost() -> Any:
    from catboost import CatBoostClassifier  # noqa: PLC0415 - large; whoever runs without it leaves this one out

    return CatBoostClassifier(
        iterations=CONFIG["trees"], random_seed=SEED, thread_count=1, verbose=0, allow_writing_files=False
    )


MODELS: dict[str, Model] = {
    "logistic regression, balanced": lambda: LogisticRegression(class_weight="balanced", max_iter=1000),
    "LightGBM": lambda: LGBMClassifier(**_TREES, verbose=-1),
    "LightGBM, is_unbalance": lambda: LGBMClassifier(**_TREES, verbose=-1, is_unbalance=True),
    "XGBoost": lambda: XGBClassifier(**_TREES),
    "CatBoost": _catboost,
}


@dataclass(frozen=True, eq=False)
class Scores:
    """Probabilities for each fold, ``(folds, rows)`` or ``(folds, rows, classes or labels)``; NaN where none is known.

    Attributes:
        table: The probabilities.
        seconds: The processor time of a fold.
    """

    table: np.ndarray
    seconds: float

    def joined(self, other: Scores) -> Scores:
        """Both, where they know different rows."""
        return Scores(np.where(np.isnan(self.table), other.table, self.table), self.seconds + other.seconds)


class Fits:
    """The fits of a problem, each made when it is first asked for; ``shared`` holds what ours have in common."""

    def __init__(self, problem: Problem, shared: Any) -> None:
        self.problem, self.shared = problem, shared
        self._kept: dict[tuple[str, bool], Scores] = {}

    def test(self, kind: str) -> Scores:
        """Probabilities of the test rows: ``"cross-entropy"``, another loss, or a name of `MODELS`."""
        return self._ask(kind, inner=False)

    def both(self, kind: str) -> Scores:
        """Probabilities of test rows and, out of fold, of training rows."""
        return self.test(kind).joined(self._ask(kind, inner=True))

    def on_loss(self, loss: Loss) -> Scores:
        """Probabilities of the test rows, by nets of a loss of one's own."""
        return self._nets(loss, self._rows(inner=False), self._tests(inner=False))

    def _ask(self, kind: str, *, inner: bool) -> Scores:
        if (kind, inner) not in self._kept:
            self._kept[kind, inner] = (
                self._models(MODELS[kind], inner=inner) if kind in MODELS else self._of_loss(kind, inner=inner)
            )
        return self._kept[kind, inner]

    # -----------------------------------------------------------------------------------------------------------------
    # Networks
    # -----------------------------------------------------------------------------------------------------------------

    def _of_loss(self, kind: str, *, inner: bool) -> Scores:
        rows = self._smote() if kind == "SMOTE" else self._rows(inner=inner)
        target, classes = rows.target.numpy().astype(np.int64), max(2, self.problem.outputs)
        losses: dict[str, Callable[[], Loss]] = {
            "cross-entropy": lambda: cross_entropy,
            "SMOTE": lambda: cross_entropy,
            "focal": lambda: focal,
            "class-weighted": lambda: class_weighted(counts_of(target, rows.parts, classes)),
            "logit adjustment": lambda: logit_adjusted(counts_of(target, rows.parts, classes)),
        }
        return self._nets(losses[kind](), rows, self._tests(inner=inner))

    def _rows(self, *, inner: bool) -> Rows:
        problem = self.problem
        n, folds = len(problem.target), len(problem.folds)
        splits = problem.inner if inner else [[split] for split in problem.folds]
        parts = [seen + fold * n for fold, own in enumerate(splits) for seen, _ in own]
        target = torch.from_numpy(np.concatenate([problem.target] * folds))
        return Rows(
            torch.from_numpy(problem.matrices.reshape(folds * n, -1)),
            target if problem.task == "multiclass" else target.float(),
            parts,
        )

    def _tests(self, *, inner: bool) -> list[tuple[int, np.ndarray]]:
        """The fold of each net, and the rows it scores."""
        splits = self.problem.inner if inner else [[split] for split in self.problem.folds]
        return [(fold, held) for fold, own in enumerate(splits) for _, held in own]

    def _nets(self, loss: Loss, rows: Rows, tests: list[tuple[int, np.ndarray]]) -> Scores:
        seeds = [SEED + place for place in range(len(tests))]
        nets = train(rows, self.problem.outputs, loss, seeds)
        table = self._empty()
        for place, (fold, held) in enumerate(tests):
            one = Nets([w[place : place + 1] for w in nets.weights], [b[place : place + 1] for b in nets.biases], 0.0)
            x = torch.from_numpy(self.problem.matrices[fold][held])
            logits = torch.cat([one(part[None])[0] for part in x.split(_CHUNK)]).double()
            soft = self.problem.task == "multiclass"
            table[fold, held] = (
                (logits.softmax(1) if soft else logits.sigmoid()).numpy().reshape(table[fold, held].shape)
            )
        return Scores(table, nets.seconds * len(tests) / len(self.problem.folds))

    def _smote(self) -> Rows:
        """The training rows of each fold, and between neighbours of the rarer class as many as it lacks."""
        matrix, target, parts, begin = [], [], [], 0
        for fold, (seen, _) in enumerate(self.problem.folds):
            random = np.random.default_rng(SEED + fold)
            x, y = self.problem.matrices[fold][seen], self.problem.target[seen]
            rare = x[y == 1]
            near = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(rare) - 1) + 1).fit(rare).kneighbors(rare)[1]
            one = random.integers(len(rare), size=max(0, len(y) - 2 * len(rare)))
            other = near[one, random.integers(1, near.shape[1], size=len(one))]
            made = rare[one] + random.random((len(one), 1), np.float32) * (rare[other] - rare[one])
            matrix += [x, made]
            target += [y, np.ones(len(made), np.int64)]
            parts.append(np.arange(begin, begin := begin + len(x) + len(made)))
        return Rows(torch.from_numpy(np.concatenate(matrix)), torch.from_numpy(np.concatenate(target)).float(), parts)

    # -----------------------------------------------------------------------------------------------------------------
    # Other models
    # -----------------------------------------------------------------------------------------------------------------

    def _models(self, make: Model, *, inner: bool) -> Scores:
        begun, table, problem = time.process_time(), self._empty(), self.problem
        for fold, split in enumerate(problem.folds):
            for seen, held in problem.inner[fold] if inner else [split]:
                x = problem.matrices[fold]
                found = make().fit(x[seen], problem.target[seen]).predict_proba(x[held])
                table[fold, held] = found[:, 1] if problem.task == "binary" else found
        return Scores(table, (time.process_time() - begun) / len(problem.folds))

    def _empty(self) -> np.ndarray:
        shape = () if self.problem.task == "binary" else (self.problem.outputs,)
        return np.full((len(self.problem.folds), len(self.problem.target), *shape), np.nan)
