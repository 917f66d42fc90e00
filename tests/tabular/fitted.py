"""Models of every task, quickly made: real preprocessing and calibration, nets as they are before training."""

import numpy as np
import pandas as pd

from stepless.tabular.models.calibrating import fit_calibration
from stepless.tabular.models.members import NetMember
from stepless.tabular.models.model import Model
from stepless.tabular.models.preprocessing import fit_features
from stepless.tabular.networks.nets import Architecture, Members
from stepless.tabular.tables.frames import read_table

TASKS = ("binary", "multiclass", "multilabel")


def frame(rows=300, seed=0):
    """Numbers, one with missing values, and categories, some missing."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(40, 12, rows),
            "income": np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(10, 1, rows)),
            "city": rng.choice(["Ulm", "Bonn", "Köln", None], rows),
        }
    )


def net(inputs, outputs, n=3, seed=0, hidden=(8,)):
    kind = "mlp" if hidden else "linear"
    return NetMember.of(Members(Architecture(kind, inputs, outputs, hidden), n, range(seed, seed + n)))


def make_model(task="binary", X=None, *, positive=1, classes=None, threshold=None, sizes=(3, 2), **changes):
    """A model over the columns of ``X``, of as many members as ``sizes`` has numbers of nets."""
    table = read_table(frame() if X is None else X)
    features = fit_features(table)
    outputs = 1 if task == "binary" else 3
    if classes is None:
        classes = {"binary": ["bad", "good"], "multiclass": ["a", "b", "c"], "multilabel": [0, 1, 2]}[task]
    if threshold is None:
        threshold = {"binary": 0.4, "multiclass": (0.1, -0.2, 0.1), "multilabel": (0.3, 0.5, 0.6)}[task]
    members = tuple(net(features.width, outputs, n, 10 * i, (8,) if i % 2 == 0 else ()) for i, n in enumerate(sizes))
    rng = np.random.default_rng(0)
    scores = rng.normal(size=200 if task == "binary" else (200, 3))
    target = rng.integers(0, 3, 200) if task == "multiclass" else (scores + rng.normal(size=scores.shape) > 0)
    settings = {
        "task": task,
        "classes": np.asarray(classes),
        "positive": positive if task == "binary" else None,
        "metric": "f1",
        "features": features,
        "members": members,
        "weights": tuple(float(n / sum(sizes)) for n in sizes),
        "calibration": fit_calibration(scores, target.astype(int), None, task),
        "threshold": threshold,
    }
    return Model(**{**settings, **changes})
