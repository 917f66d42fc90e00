"""The tables of the contest: rows, folds and the matrices that networks and trees of other libraries read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import data_folder, leaking, load_multiclass, manifest, read_table

HERE = Path(__file__).parent
CONFIG: dict[str, Any] = json.loads((HERE / "config.json").read_text(encoding="utf-8"))
SEED, FOLDS, INNER = CONFIG["seed"], CONFIG["folds"], CONFIG["inner_folds"]
LABELS = {"mulan_scene": 6, "mulan_yeast": 14}  #: the last columns, of which the manifest names only one
ALL, FULL = "_all", "full"  #: a set with all its rows, and what stands where others have their half
_CREDITCARD = ("creditcard_fraud_part1", "creditcard_fraud_part2")

Split = tuple[np.ndarray, np.ndarray]


def sets() -> Iterator[tuple[str, str, str]]:
    """Name, task and half of every set, the quick ones first and those with all rows, of no half, last."""
    for names in (CONFIG["quick"], None):
        for half, tasks in CONFIG["halves"].items():
            for task, listed in tasks.items():
                yield from ((n, task, half) for n in listed if (n in CONFIG["quick"]) == (names is not None))
    yield from ((f"{name}{ALL}", "binary", FULL) for name in CONFIG["full"]["sets"])


@dataclass(frozen=True, eq=False)
class Problem:
    """A table with its folds.

    Attributes:
        name: As in the manifest.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        half: ``"development"``, ``"confirmation"``, or ``"full"`` for a set with all its rows.
        features: The columns as they are.
        target: 0 and 1 (the rarer class), class indices, or 0 and 1 for each label.
    """

    name: str
    task: str
    half: str
    features: pd.DataFrame
    target: np.ndarray

    @property
    def outputs(self) -> int:
        """How many logits a row gets."""
        return {"binary": 1, "multiclass": int(self.target.max()) + 1, "multilabel": self.target.shape[-1]}[self.task]

    @property
    def rarest(self) -> float:
        """The share of the rarest class or label."""
        if self.task == "multilabel":
            return float(self.target.mean(0).min())
        return float(np.bincount(self.target).min() / len(self.target))

    @cached_property
    def folds(self) -> list[Split]:
        """Training and test rows."""
        return self._split(np.arange(len(self.target)), FOLDS)

    @cached_property
    def inner(self) -> list[list[Split]]:
        """For each fold, the splits of its training rows, as row numbers of the whole table."""
        return [self._split(train, INNER) for train, _ in self.folds]

    def _split(self, rows: np.ndarray, n: int) -> list[Split]:
        kind = KFold if self.task == "multilabel" else StratifiedKFold
        parts = kind(n, shuffle=True, random_state=SEED).split(rows, self.target[rows])
        return [(rows[train], rows[test]) for train, test in parts]

    @cached_property
    def matrices(self) -> np.ndarray:
        """All rows for each fold, ``(folds, rows, columns)``: filled, scaled and coded by its training rows alone."""
        found = [self._matrix(train) for train, _ in self.folds]
        width = max(matrix.shape[1] for matrix in found)
        return np.stack([np.pad(m, ((0, 0), (0, width - m.shape[1]))) for m in found])

    def _matrix(self, train: np.ndarray) -> np.ndarray:
        numbers = self.features.select_dtypes("number").columns
        others = self.features.columns.difference(numbers, sort=False)
        coding = make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
                           StandardScaler()), list(numbers)),
            (OneHotEncoder(handle_unknown="ignore", max_categories=64, sparse_output=False), list(others)),
        )  # fmt: skip
        return coding.fit(self.features.iloc[train]).transform(self.features).astype(np.float32)


def load(name: str, task: str, half: str) -> Problem:
    """A set by the name that the config gives it, with no more rows than the contest takes."""
    loaders = {"binary": _binary, "multiclass": load_multiclass, "multilabel": _multilabel}
    features, target = loaders[task](name.removesuffix(ALL))
    if half != FULL and len(target) > CONFIG["row_limit"]:
        keep, _ = train_test_split(
            np.arange(len(target)), train_size=CONFIG["row_limit"], random_state=SEED,
            stratify=None if task == "multilabel" else target,
        )  # fmt: skip
        features, target = features.iloc[np.sort(keep)], target[np.sort(keep)]
    if task == "multiclass":  # a class must be in every part of every split
        enough = np.bincount(target)[target] >= CONFIG["fewest_rows_of_a_class"]
        features, target = features[enough], np.unique(target[enough], return_inverse=True)[1]
    return Problem(name, task, half, features.reset_index(drop=True), target)


def _binary(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    known = manifest()
    parts = _CREDITCARD if name == "creditcard" else (name,)
    row = known.loc[parts[0]]
    table = pd.concat([read_table(data_folder() / known.loc[part, "file"]) for part in parts])
    table = table.dropna(subset=[row["target"]])  # the last row of Mammography has no class
    _, codes, counts = np.unique(table[row["target"]].to_numpy(), return_inverse=True, return_counts=True)
    return table.drop(columns=[row["target"], *leaking(row)]), (codes == counts.argmin()).astype(np.int64)


def _multilabel(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    table = read_table(data_folder() / manifest().loc[name, "file"])
    return table.iloc[:, : -LABELS[name]], table.iloc[:, -LABELS[name] :].to_numpy(np.int64)
