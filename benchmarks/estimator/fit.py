"""How long a default `MetricClassifier` takes to fit, and how much memory it takes to predict.

*Fit*: 10,000 rows × 30 features, against scikit-learn's TunedThresholdClassifierCV(MLPClassifier) with the same layers
and as many epochs, one run each, on one thread. Ours fits networks of two losses, a linear model and two kinds of trees
on five folds, theirs one loss on five folds and once on all rows. Asked for: at most twice their time. Processor time
is what is compared: unlike time by the clock, it is the same on a busy machine.

*Predict*: a million rows × 30 features. What is needed beyond the rows and the result must not grow with them.

    python benchmarks/estimator/fit.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import TunedThresholdClassifierCV, train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

import stepless as sl

HERE = Path(__file__).parent
MUST = 2.0  # times scikit-learn's time
ROWS, FEATURES, SEED = 10_000, 30, 0


def timed(run: Callable[[], object]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return {"seconds": time.process_time() - processor, "by the clock": time.perf_counter() - wall}


def fit() -> dict[str, object]:
    x, y = make_classification(ROWS + 10_000, FEATURES, n_informative=10, weights=[0.9], random_state=SEED)
    x, x_test, y, y_test = train_test_split(x, y, train_size=ROWS, stratify=y, random_state=SEED)
    ours = sl.MetricClassifier("f1", random_state=SEED)
    first = timed(lambda: ours.fit(x, y))
    epochs = len(ours.history_.train)
    net = MLPClassifier((64, 64), max_iter=epochs, n_iter_no_change=epochs, tol=0.0, random_state=SEED)
    theirs = TunedThresholdClassifierCV(net, scoring="f1")
    second = timed(lambda: theirs.fit(x, y))
    return {
        "epochs": epochs,
        "candidate": ours.best_candidate_,
        "ours": {**first, "f1": f1_score(y_test, ours.predict(x_test))},
        "scikit-learn": {**second, "f1": f1_score(y_test, theirs.predict(x_test))},
        "ratio": first["seconds"] / second["seconds"],
        "asked": MUST,
    }


def status(key: str) -> float:
    """A line of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def predict(rows: int) -> dict[str, float]:
    """Memory at its peak above what was there before, the rows included, in MB; run in a process of its own."""
    x, y = make_classification(2_000, FEATURES, random_state=SEED)
    model = sl.MetricClassifier("f1", epochs=3, random_state=SEED).fit(x, y)
    many = np.random.default_rng(SEED).standard_normal((rows, FEATURES))
    model.predict(many[:2_000])
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    used = timed(lambda: model.predict(many))
    return {"rows": rows, "MB of rows": many.nbytes / 2**20, "MB more at the peak": status("VmHWM") - before, **used}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, help="only predict so many rows, in this process")
    rows = parser.parse_args().rows
    if rows is not None:
        print(json.dumps(predict(rows)))
        return
    with threadpool_limits(1):
        record: dict[str, object] = {"fit": fit()}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    record["predict"] = [
        json.loads(
            subprocess.run(
                [sys.executable, __file__, str(rows)], capture_output=True, check=True, env=environment
            ).stdout
        )
        for rows in (100_000, 1_000_000)
    ]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    record |= {
        "commit": commit,
        "seed": SEED,
        "processor": platform.processor() or platform.machine(),
        "versions": {"stepless": sl.__version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__},
    }
    (HERE / "fit.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
