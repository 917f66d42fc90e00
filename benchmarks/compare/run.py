"""What `stepless compare` says on six real tables: the command as a user types it, its answer kept as JSON.

    STEPLESS_DATA=… python benchmarks/compare/run.py [--sets mammography …] [--jobs 2] [--cells FOLDER]

The tables were chosen before the first run: Adult, Mammography, diabetes_prediction, and of the AnyLoss sets credit-g,
pc1 and page-blocks. Metric F1, default contestants, 5 folds, seed 0. With --cells, a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from stepless.tabular.outcome import Outcome

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import data_folder, leaking, manifest, read_table

HERE = Path(__file__).resolve().parent
METRIC, SEED = "f1", 0
SETS = (
    "mammography", "adult_uci", "anyloss_diabetes_prediction", "anyloss_ds054", "anyloss_ds061", "anyloss_ds096",
)  # fmt: skip


def labelled(name: str, scratch: Path) -> Path:
    """The file of a set; where rows have no class, which the command refuses to guess, a copy without them."""
    row = manifest().loc[name]
    path = data_folder() / row["file"]
    table = read_table(path)
    if not table[row["target"]].isna().any():
        return path
    copy = scratch / f"{name}.csv"
    table.dropna(subset=[row["target"]]).to_csv(copy, index=False)
    return copy


def command(name: str, path: Path, jobs: int, out: Path) -> list[str]:
    """The command for a set; columns that leak the target, and those that are no features, are dropped."""
    row = manifest().loc[name]
    drop = leaking(row)
    words = [
        sys.executable, "-m", "stepless", "compare", str(path), "--target", str(row["target"]),
        "--metric", METRIC, "--seed", str(SEED), "--jobs", str(jobs), "--out", str(out), "--json",
    ]  # fmt: skip
    return [*words, *(["--drop", ",".join(drop)] if drop else [])]


def record(name: str, words: list[str], out: Path) -> dict[str, object]:
    """Everything but what is as long as the table."""
    outcome = Outcome.from_json(out / "comparison.json")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "src"], capture_output=True, text=True, cwd=HERE, check=False
    )
    shown = [Path(word).name if os.sep in word else word for word in words[2:]]
    return {
        "set": name,
        "command": " ".join(shown),
        "commit": commit.stdout.strip() + ("+" if changed.stdout.strip() else ""),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        **outcome.to_dict(arrays=False),
        "table": outcome.table,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", type=Path, help="keeps what is finished, so that a stopped run goes on")
    options = parser.parse_args()
    failed = []
    for name in options.sets:
        with tempfile.TemporaryDirectory() as scratch:
            out = (options.cells or Path(scratch)) / name
            words = command(name, labelled(name, Path(scratch)), options.jobs, out)
            done = subprocess.run(
                words + ["--resume"] * (out / "run.json").exists(), stdout=subprocess.PIPE, check=False
            )
            if done.returncode:
                failed.append(name)
                continue
            held = record(name, words, out)
        (HERE / f"{name}.json").write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: {held['verdict']}", flush=True)
    if failed:
        sys.exit(f"no answer on {', '.join(failed)}")


if __name__ == "__main__":
    main()
