"""Where the benchmarks find their tables: the folder that STEPLESS_DATA names (default ./data)."""

from __future__ import annotations

import os
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


def load_binary(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numeric features and a 0/1 target whose positive class is the rarer one; leaking columns dropped."""
    row = manifest().loc[name]
    table = read_table(data_folder() / row["file"])
    leaking = [] if pd.isna(row["drop"]) else [column.strip() for column in str(row["drop"]).split(",")]
    target = table[row["target"]].to_numpy()
    labels, counts = np.unique(target, return_counts=True)
    features = table.drop(columns=[row["target"], *leaking])
    return features.to_numpy(np.float32), (target == labels[counts.argmin()]).astype(np.int64)
