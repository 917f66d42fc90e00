"""The table of `stepless demo`: real, small and imbalanced, and already on the machine."""

from __future__ import annotations

import csv
import os

import numpy as np

from stepless.extras import needs
from stepless.tabular.whole_files import whole_text

with needs("the demo needs scikit-learn", "cli", "sklearn"):
    from sklearn.datasets import load_breast_cancer


def write_demo(path: str | os.PathLike[str]) -> None:
    """Write scikit-learn's breast-cancer table as CSV, with a tenth of its rows malignant.

    Args:
        path: The file.
    """
    data = load_breast_cancer()
    malignant, benign = np.flatnonzero(data.target == 0), np.flatnonzero(data.target == 1)
    kept = np.random.default_rng(0).choice(malignant, round(len(benign) / 9), replace=False)
    rows = np.sort(np.concatenate([benign, kept]))
    with whole_text(path) as file:
        writer = csv.writer(file)
        writer.writerow([*data.feature_names, "malignant"])
        writer.writerows(
            [*values, int(label == 0)]
            for values, label in zip(data.data[rows].tolist(), data.target[rows], strict=True)
        )
