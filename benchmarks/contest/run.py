"""The contest: every contestant on every set, in folds, where something is missing from the results.

    STEPLESS_DATA=… OMP_NUM_THREADS=1 python benchmarks/contest/run.py [--quick] [--half development]
        [--sets anyloss_ds001 …] [--contestants "cross-entropy" …] [--metrics F1 …] [--parts] [--jobs 2] [--again]

A set is the work of one process. What a contestant has done on a set is written at once, so a run that was stopped goes
on where it was.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and the boosters read it

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import torch
from contestants import CONTESTANTS, PARTS, Outcome
from fits import Fits
from goals import GOALS, Goal
from problems import CONFIG, FULL, Problem, data_folder, load, sets
from results import FOLDER, about, read, write

import stepless as sl

Choice = tuple[list[str] | None, list[str] | None, bool]


def check(given: Sequence[str] | None, known: Sequence[str], kind: str) -> None:
    """Exit if a name is none of the known ones, which would do nothing."""
    if lost := [name for name in given or () if name not in known]:
        names = ["; ".join(map(repr, dict.fromkeys(each))) for each in (lost, known)]  # some have a comma
        sys.exit(f"no {kind} is called {names[0]}; there are {names[1]}.")


def missing(name: str, task: str, half: str, choice: Choice, folder: Path) -> list[tuple[str, Goal]]:
    """What is still to be done on a set."""
    contestants, metrics, again = choice
    if half == FULL:
        contestants = [n for n in CONFIG["full"]["contestants"] if contestants is None or n in contestants]
        metrics = [n for n in CONFIG["full"]["metrics"] if metrics is None or n in metrics]
    record = read(name, folder)
    done = {} if record is None or again else record["entries"]
    return [
        (contestant, goal)
        for contestant in (*CONTESTANTS[task], *PARTS)
        for goal in GOALS[task]
        if contestant in (CONTESTANTS[task] if contestants is None else contestants)
        and (metrics is None or goal.label in metrics)
        and goal.label not in done.get(contestant, {})
    ]


def run_set(name: str, task: str, half: str, choice: Choice, folder: Path) -> tuple[str, float]:
    """Do what is missing on a set."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    begun = time.perf_counter()
    problem = load(name, task, half)
    record = read(name, folder) or {
        "set": name, "task": task, "half": half, "rows": len(problem.target), "columns": problem.features.shape[1],
        "rarest": round(problem.rarest, 5), "made": {}, "entries": {},
    }  # fmt: skip
    record["made"][about()["source"]] = {key: about()[key] for key in ("commit", "versions")}
    with sl.shared_fits() as shared:
        fits = Fits(problem, shared)
        for contestant, goal in missing(name, task, half, choice, folder):
            before = time.process_time()
            outcome = {**CONTESTANTS[task], **PARTS}[contestant](fits, goal)
            spent = {"spent": round(time.process_time() - before, 3)}
            record["entries"].setdefault(contestant, {})[goal.label] = {**judged(problem, goal, outcome), **spent}
            write(record, folder)
    return name, time.perf_counter() - begun


def judged(problem: Problem, goal: Goal, outcome: Outcome) -> dict[str, object]:
    """The scores of the folds, what each takes alone, and whether all decisions of a fold were the same."""
    scores = []
    for decided, (_, held) in zip(outcome.decided, problem.folds, strict=True):
        scores.append(round(goal.score(decided, problem.target[held]), 6))
    single = [bool((decided == decided[0]).all()) for decided in outcome.decided]
    seconds = [round(s, 3) for s in outcome.seconds]
    return {"scores": scores, "seconds": seconds, "single": single, "source": about()["source"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the quick sets and metrics of the config alone")
    parser.add_argument("--half", choices=[*CONFIG["halves"], FULL])
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--contestants", nargs="+")
    parser.add_argument("--metrics", nargs="+")
    parser.add_argument("--parts", action="store_true", help="the parts of the recipe, and nothing else")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    metrics = given.metrics or (CONFIG["quick_metrics"] if given.quick else None)
    check(given.sets, [name for name, _, _ in sets()], "set")
    check(given.contestants, [*(name for named in CONTESTANTS.values() for name in named), *PARTS], "contestant")
    check(given.metrics, [goal.label for goals in GOALS.values() for goal in goals], "metric")
    choice = (list(PARTS) if given.parts else given.contestants, metrics, given.again)
    chosen = [
        row for row in sets()
        if (not given.quick or row[0] in CONFIG["quick"])
        and (not given.parts or row[1] == "binary")
        and (given.half is None or row[2] == given.half)
        and (given.sets is None or row[0] in given.sets)
        and missing(*row, choice, given.folder)
    ]  # fmt: skip
    if given.sets is not None:  # in the order they are given: the longest first, for one
        chosen.sort(key=lambda row: given.sets.index(row[0]))
    about()  # before the source can change under a long run
    if chosen:
        data_folder()  # or every set would fail by itself
    begun, times, failed = time.perf_counter(), [], []
    with ProcessPoolExecutor(given.jobs, max_tasks_per_child=None) as pool:
        waiting = {pool.submit(run_set, *row, choice, given.folder): row[0] for row in chosen}
        for done in as_completed(waiting):
            if (error := done.exception()) is not None:  # the other sets go on
                failed.append(waiting[done])
                traceback.print_exception(error)
            name, seconds = (waiting[done], 0.0) if error else done.result()
            times.append(seconds)
            left = (len(chosen) - len(times)) * (time.perf_counter() - begun) / len(times)
            print(f"{len(times)}/{len(chosen)} {name} {seconds:.0f} s, about {left / 60:.0f} min left", flush=True)
    print(f"{len(times)} sets, {np.sum(times) / 60:.1f} min of work", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
