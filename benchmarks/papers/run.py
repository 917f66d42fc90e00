"""Run the tables of the papers, where something is missing from their results.

    STEPLESS_DATA=… python benchmarks/papers/run.py [table …] [--quick] [--set 1 …] [--cell "1/slp/*" …] [--again]
        [--device cuda] [--jobs 2] [--workers 2] [--folder …] [--merge FOLDER …] [--list]

One cell anew: ``run.py anyloss_6_slp --cell 1/f1 --again``. What is done is written at once, so a run that was stopped
goes on where it was. ``--workers`` shares the sets out among processes of one thread each. ``--quick`` runs a slice of
every table in a folder of its own, and fails if a direction that must hold does not. ``--merge`` takes over cells that
another machine computed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from frame import RESULTS, Choice, Context, Results, Table, run, tables


def merge(chosen: Sequence[Table], folder: Path, others: Sequence[Path]) -> None:
    """Take over into a folder what others have."""
    for table in chosen:
        results, found = Results.read(table, folder), [Results.read(table, other) for other in others]
        for other in found:
            results.merge(other)
        if any(other.cells for other in found):
            results.write()


def share(chosen: Sequence[Table], folder: Path, workers: int, arguments: Sequence[str]) -> None:
    """Run in so many processes, and gather what they did, also what was left by a run that was stopped."""
    shards = folder / "shards"
    merge(chosen, folder, sorted(shards.glob("*")))
    names = [table.name for table in chosen if not table.alone]
    if not names:
        return
    commands = [
        [
            sys.executable,
            __file__,
            *names,
            *arguments,
            "--jobs",
            "1",
            "--folder",
            str(folder),
            "--shard",
            f"{k}/{workers}",
        ]
        for k in range(workers)
    ]
    started = [subprocess.Popen(command) for command in commands]
    codes = [process.wait() for process in started]
    merge(chosen, folder, sorted(shards.glob("*")))
    if any(codes):
        sys.exit(f"{sum(code != 0 for code in codes)} of {workers} workers failed; what they had done is kept.")
    shutil.rmtree(shards, ignore_errors=True)


def listed(chosen: Sequence[Table], context: Context, folder: Path) -> None:
    """Print how much of each table is there."""
    for table in chosen:
        there, wanted = Results.read(table, folder).cells, table.cells(context)
        print(f"{table.name:24} {sum(cell in there for cell in wanted):5} of {len(wanted):5}  {table.title}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="names or patterns; all, if none is given")
    parser.add_argument("--quick", action="store_true", help="a slice of each table, and what must hold in it")
    parser.add_argument("--set", nargs="+", default=[], help="cells whose name begins so", dest="sets")
    parser.add_argument("--cell", nargs="+", default=[], help="cells whose name matches", dest="cells")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=int(os.environ["OMP_NUM_THREADS"]), help="threads")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--shard", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+", help="folders of results to take over")
    parser.add_argument("--list", action="store_true", help="tables and how many of their cells are there")
    given = parser.parse_args()
    torch.set_num_threads(given.jobs)
    context, chosen = Context(given.device, given.quick, given.jobs), tables(given.tables)
    folder = given.folder or (Path(tempfile.mkdtemp(prefix="papers-quick-")) if given.quick else RESULTS)
    if given.list or given.merge:
        merge(chosen, folder, given.merge or [])
        return listed(chosen, context, folder)
    patterns, begun = [*given.sets, *given.cells], time.perf_counter()
    k, n = map(int, given.shard.split("/"))
    if patterns and n == 1:  # a worker is given all patterns, but not all tables
        lost = Choice(patterns).without_cell([cell for table in chosen for cell in table.cells(context)])
        if lost:
            sys.exit(f"no cell is called {', '.join(lost)} in {', '.join(table.name for table in chosen)}.")
    if given.workers > 1:
        passed = ["--device", given.device, *(["--cell", *patterns] if patterns else [])]
        passed += [flag for flag, on in (("--quick", given.quick), ("--again", given.again)) if on]
        share(chosen, folder, given.workers, passed)
        given.again = False  # what is left is done by this process: tables that must run alone
    into = folder / "shards" / str(k) if n > 1 else None
    broken = []
    for table in chosen:
        results = run(table, context, folder, Choice(patterns, given.again, (k, n)), into)
        if given.quick and n == 1 and results.cells:
            for words, holds in table.directions(results.folds).items():
                print(f"  {'holds' if holds else 'FAILS'}: {words}", flush=True)
                broken += [] if holds else [f"{table.name}: {words}"]
    print(f"{time.perf_counter() - begun:.0f} s", flush=True)
    return sys.exit("does not hold: " + "; ".join(broken)) if broken else None


if __name__ == "__main__":
    main()
