"""What the AnyLoss tables read: 89 of the 102 sets, the four imbalanced ones, donors, MNIST; and the folds of each."""

from __future__ import annotations

import numpy as np
import pandas as pd
from data import data_folder, load_binary, manifest, read_table
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedKFold

Arrays = dict[str, np.ndarray]
_SCORES = ("Acc", "F1", "F.5", "F2", "Gmean", "B_Acc")


def folds(y: np.ndarray, inner: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """The fold that holds each row out, and for each outer fold the inner one of its training rows (else 255)."""
    outer = np.empty(len(y), np.uint8)
    nested = np.full((10, len(y)), 255, np.uint8)
    for number, (train, held) in enumerate(StratifiedKFold(10, shuffle=True, random_state=2).split(y, y)):
        outer[held] = number
        for part, (_, kept) in enumerate(StratifiedKFold(inner, shuffle=True, random_state=3).split(train, y[train])):
            nested[number, train[kept]] = part
    return outer, nested


def _set(name: str, x: np.ndarray, y: np.ndarray) -> Arrays:
    outer, nested = folds(y)
    return {f"x_{name}": x, f"y_{name}": y.astype(np.uint8), f"outer_{name}": outer, f"inner_{name}": nested}


def _paper_scores(kind: str) -> Arrays:
    """The authors' scores of each set: (sets, metrics, losses), losses being MSE, BCE and AnyLoss at that metric."""
    table = pd.read_csv(data_folder() / "anyloss102" / f"paper_scores_{kind}.csv", encoding="utf-8-sig", header=None)
    head = table.iloc[0].tolist()
    names = ["Delta" if kind == "mlp" else "MSE", "BCE", "AccAim", "F1Aim", "F.5Aim", "F2Aim", "GAim", "BAim"]
    places = [head.index(name) for name in names]
    blocks = [table.iloc[start : start + 6] for start in range(1, len(table), 7)]
    ids = [int(block.iloc[2, 1]) for block in blocks]
    values = [block.iloc[:, places].to_numpy(float) for block in blocks]
    return {f"paper_ids_{kind}": np.array(ids, np.int64), f"paper_{kind}": np.array(values, np.float32)}


def sets() -> Arrays:
    """The 89; columns that leak the target stay, as in the paper."""
    arrays = {**_paper_scores("slp"), **_paper_scores("mlp")}
    listed = manifest()
    for name in (n for n in listed.index if n.startswith("anyloss_ds")):
        row = listed.loc[name]
        table = read_table(data_folder() / row["file"])
        target = table[row["target"]].to_numpy()
        labels, counts = np.unique(target, return_counts=True)
        x = table.drop(columns=[row["target"]]).to_numpy(np.float32)
        arrays |= _set(name.removeprefix("anyloss_ds").lstrip("0"), x, target == labels[counts.argmin()])
    return arrays


def first() -> Arrays:
    """#1 is made, not read."""
    x, y = make_classification(
        n_samples=10000, n_classes=2, weights=[0.9, 0.1], class_sep=1.2, n_features=5, n_informative=3, n_redundant=1,
        n_clusters_per_class=1, random_state=0,
    )  # fmt: skip
    return _set("1", PCA(2).fit_transform(x).astype(np.float32), y)


def four() -> Arrays:
    """#1 to #4; #2 could not be had, and all frauds of another set with 20 times as many others stand in for it."""
    arrays = first()
    parts = [read_table(data_folder() / f"creditcard/creditcard_part{part}.csv.xz") for part in (1, 2)]
    cards = pd.concat(parts, ignore_index=True).drop(columns="Time")
    frauds, others = cards[cards["Class"] == 1], cards[cards["Class"] == 0]
    cards = pd.concat([others.sample(n=20 * len(frauds), random_state=100), frauds])
    arrays |= _set("2", cards.drop(columns="Class").to_numpy(np.float32), cards["Class"].to_numpy())
    table = read_table(data_folder() / "tabular/anyloss_breast_cancer.csv.xz")
    table["y"] = (table["diagnosis"] == "M").astype(int)
    table = table.drop(columns=[c for c in table.columns if c in {"id", "diagnosis"}])
    rest = table[table["y"] == 0]
    table = pd.concat([rest, table[table["y"] == 1].sample(n=round(0.1 * len(rest)), random_state=100)])
    arrays |= _set("3", table.drop(columns="y").to_numpy(np.float32), table["y"].to_numpy())
    table = read_table(data_folder() / "tabular/anyloss_diabetes_prediction.csv.xz")
    y = table.pop("diabetes").to_numpy()
    for column in table.columns:
        if not pd.api.types.is_numeric_dtype(table[column]):
            table[column] = table[column].astype("category").cat.codes  # in the order of the alphabet
    return arrays | _set("4", table.to_numpy(np.float32), y)


def donors() -> Arrays:
    """619,326 rows, in place of Huge Titanic."""
    return _set("donors", *load_binary("adbench_donors"))


def mnist() -> Arrays:
    """The first 30,000 images for training, and the 10,000 for testing."""
    with np.load(data_folder() / "images" / "mnist.npz") as given:
        arrays = {key: given[key] for key in given.files}
    train = 30_000
    return {
        "x_train": arrays["x_train"][:train], "y_train": arrays["y_train"][:train].astype(np.uint8),
        "x_test": arrays["x_test"], "y_test": arrays["y_test"].astype(np.uint8),
    }  # fmt: skip


PACKS = {"anyloss_sets": sets, "anyloss_four": four, "anyloss_donors": donors, "anyloss_mnist": mnist}
