"""Where the benchmarks find their tables: the folder that STEPLESS_DATA names (default ./data)."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd


def data_folder() -> Path:
    folder = Path(os.environ.get("STEPLESS_DATA", "data"))
    if not (folder / "MANIFEST.csv").exists():
        sys.exit(f"no data in {folder.resolve()}: set STEPLESS_DATA to the folder that holds MANIFEST.csv.")
    return folder


def manifest() -> pd.DataFrame:
    return read_table(data_folder() / "MANIFEST.csv").set_index("name")


def read_table(path: Path) -> pd.DataFrame:
    # one set has a class literally called "None"
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


#: Columns that leak the target and that the manifest does not list: an indicator of each of the ten classes.
LEAKING = {"cardiotocography": [f"V{i}" for i in range(26, 36)]}


def leaking(row: pd.Series) -> list[str]:
    listed = [] if pd.isna(row["drop"]) else re.split("[;,] *", str(row["drop"]))
    return [*listed, *LEAKING.get(row.name, [])]


def load_binary(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numeric features and a 0/1 target whose positive class is the rarer one; leaking columns dropped."""
    row = manifest().loc[name]
    table = read_table(data_folder() / row["file"])
    target = table[row["target"]].to_numpy()
    labels, counts = np.unique(target, return_counts=True)
    features = table.drop(columns=[row["target"], *leaking(row)])
    return features.to_numpy(np.float32), (target == labels[counts.argmin()]).astype(np.int64)


#: The multiclass tables of the data folder, but for images and for what is there for its size.
MULTICLASS = (
    "letter", "satimage", "pendigits", "pmlb_ann-thyroid", "pmlb_shuttle", "cardiotocography", "nursery",
    "wall-robot-navigation", "pmlb_connect-4", "one-hundred-plants-shape", "pmlb_sleep", "kropt",
    "first-order-theorem-proving",
)  # fmt: skip


def load_multiclass(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Features as they are, numbers or text, and class indices 0 … K−1 in the order of the labels."""
    row = manifest().loc[name]
    table = read_table(data_folder() / row["file"])
    _, target = np.unique(table[row["target"]].to_numpy(), return_inverse=True)
    return table.drop(columns=[row["target"], *leaking(row)]), target
