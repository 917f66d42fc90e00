"""Time and peak memory of `stepless compare` on 50,000 × 20, and of `stepless predict` on 5,000,000 rows.

    python benchmarks/compare/scale.py [--only compare|predict] [--rows 5000000] [--folder FOLDER]

The tables are drawn with a fixed seed. Memory is that of the command and all of its children, resident, sampled ten
times a second; the first word is the time until the command says anything on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
COLUMNS, COMPARED, PREDICTED = 20, 50_000, 5_000_000
NAMES = [f"x{i}" for i in range(COLUMNS - 2)]
CITIES = np.array(["Ulm", "Bonn", "Jena", "Kiel", "Trier"])


def draw(path: Path, rows: int, seed: int) -> None:
    """A CSV with 18 columns of numbers, two of categories, and a target of which a tenth is positive."""
    random = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8") as file:
        file.write(",".join([*NAMES, "city", "grade", "y"]) + "\n")
        for start in range(0, rows, 100_000):
            n = min(100_000, rows - start)
            x = random.normal(size=(n, len(NAMES)))
            city, grade = random.integers(len(CITIES), size=n), random.integers(9, size=n)
            score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * (city == 1) + 0.2 * grade + random.normal(size=n)
            y = (score > 3.4).astype(int)
            numbers = [[f"{v:.5g}" for v in row] for row in x.tolist()]
            file.writelines(
                f"{','.join(row)},{CITIES[c]},{'ABCDEFGHI'[g]},{t}\n"
                for row, c, g, t in zip(numbers, city, grade, y, strict=True)
            )


def measure(words: list[str]) -> dict[str, float]:
    """Run a command to its end."""
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    first: list[float] = []

    def listen() -> None:
        for line in process.stderr:
            first.append(time.perf_counter() - began)
            sys.stderr.write(line)

    listener = threading.Thread(target=listen)
    listener.start()
    peak, watched = 0, psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            family = [watched, *watched.children(recursive=True)]
        except psutil.Error:
            family = []
        for one in family:
            try:
                total += one.memory_info().rss
            except psutil.Error:  # it has ended
                continue
        peak = max(peak, total)
        time.sleep(0.1)
    listener.join()
    if process.returncode:
        sys.exit(f"{' '.join(words)} ended with {process.returncode}")
    return {"seconds": time.perf_counter() - began, "peak_bytes": peak, "first_word_seconds": first[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("compare", "predict"))
    parser.add_argument("--rows", type=int, default=PREDICTED, help="to predict")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the tables go, and stay")
    options = parser.parse_args()
    results = HERE / "scale.json"
    held = json.loads(results.read_text()) if results.exists() else {}
    stepless = [sys.executable, "-m", "stepless"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        train, new = folder / "train.csv", folder / "new.csv"
        draw(train, COMPARED, seed=0)
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False)
        about = {
            "commit": commit.stdout.strip(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "cores": os.cpu_count(), "python": platform.python_version(),
        }  # fmt: skip
        if options.only != "predict":
            words = ["compare", str(train), "--target", "y", "--jobs", str(options.jobs), "--out", str(folder / "out")]
            held["compare"] = {
                "rows": COMPARED,
                "columns": COLUMNS,
                "jobs": options.jobs,
                **measure([*stepless, *words]),
                **about,
            }
        if options.only != "compare":
            model = folder / "model"
            measure([*stepless, "train", str(train), "--target", "y", "--out", str(model)])
            if not new.exists():
                draw(new, options.rows, seed=1)
            words = ["predict", str(model), str(new), "--out", str(folder / "predictions.csv")]
            size = {"rows": options.rows, "columns": COLUMNS, "bytes": new.stat().st_size}
            held["predict"] = {**size, **measure([*stepless, *words]), **about}
    results.write_text(json.dumps(held, indent=1) + "\n")
    print(json.dumps(held, indent=1))


if __name__ == "__main__":
    main()
