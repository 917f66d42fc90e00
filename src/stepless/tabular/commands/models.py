"""`stepless train` and `stepless predict`: from a table to a model folder, and from that to predictions."""

from __future__ import annotations

import csv
import gzip
import io
import os
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepless.tabular.commands.asked import COMPARISON, Asked, stated
from stepless.tabular.commands.console import Watch, as_json, clock, note, say
from stepless.tabular.commands.problems import Problem, show_columns
from stepless.tabular.comparing.contestants import CONTESTANTS, Aim, check_names, fit_contestant
from stepless.tabular.loading import load
from stepless.tabular.models.folders import check_place
from stepless.tabular.models.model import Model
from stepless.tabular.models.preprocessing import Category
from stepless.tabular.networks.spread import leader, over_ranks
from stepless.tabular.outcome import Outcome, format_cut, format_number
from stepless.tabular.persist import save_model
from stepless.tabular.tables.files import Source, TableError
from stepless.tabular.tables.frames import Kind
from stepless.tabular.tables.reading import Chunk, read_chunks
from stepless.tabular.whole_files import whole_file, whole_text

#: The contestant to fit without a comparison.
DEFAULT_CONTESTANT = "automatic"
#: File endings of other formats; predictions are written as CSV, plain or in gzip.
_NOT_CSV = (".parquet", ".pq", ".tsv", ".tab", ".json", ".jsonl", ".xlsx", ".bz2", ".xz", ".zst", ".zip")


def from_before(folder: str | None, given: dict[str, Any], said: Collection[str]) -> Asked:
    """Return what to fit for: the settings of a comparison, or the options if there is none.

    Args:
        folder: Folder of the comparison, of which the options may replace the table, its format and the seed.
        given: The values of all options.
        said: The options that the user wrote, including those written with their default.
    """
    if folder is None:
        for name in ("file", "target"):
            if given[name] is None:
                what = "a table" if name == "file" else "--target"
                raise TableError(f"stepless train needs {what}, or --from with a folder of stepless compare.")
        return Asked(**given)
    asked = Asked.load(Path(folder))
    if asked.file == "-" and given["file"] is None:
        raise TableError(
            f"the table of {folder} came from standard input; name it again: stepless train table.csv --from {folder},"
            " or - to pipe it in."
        )
    kept = {name: given[name] for name in said if name in ("file", "seed", "delimiter", "encoding")}
    for name in said:
        if name not in kept and given[name] != getattr(asked, name):
            raise TableError(
                f"--from {folder} says what the model is for: {stated(name, getattr(asked, name))} there and"
                f" {stated(name, given[name])} here. Leave out the one or the other."
            )
    return replace(asked, **kept)


def run_train(
    asked: Asked, contestant: str | None, *, before: str | None, out: str | None, distributed: bool, json_too: bool
) -> None:
    """Fit a contestant on a whole table and save it.

    Args:
        asked: The table, and what the model is for.
        contestant: Key of the contestant; None for the winner of ``before`` or the default.
        before: A folder of `stepless compare`.
        out: Folder for the model.
        distributed: Whether the ranks of torchrun share the work.
        json_too: Whether to print the answer as JSON.
    """
    compared = None if before is None else _compared(Path(before))
    key = contestant or (DEFAULT_CONTESTANT if compared is None else compared.winner)
    check_names((key,))
    if distributed and CONTESTANTS[key].fit.startswith("boosting"):
        raise TableError(f"--distributed shares networks among ranks; {CONTESTANTS[key].name} grows trees in threads.")
    asked.check()
    base = Path(before) if before is not None else Path(f"stepless-{Source(asked.file).stem}")
    folder = Path(out) if out is not None else base / "model"
    check_place(folder)  # saving checks too, but only after the time of a fit
    with over_ranks() if distributed else nullcontext():
        first = not distributed or leader()
        if first:
            note(f"reading {asked.file}")
        problem = asked.read()
        if first:
            show_columns(problem)
            note(f"fitting: {CONTESTANTS[key].name}")
        began = time.monotonic()
        aim = _aim(asked, problem)
        if compared is not None and compared.task == aim.task == "binary":
            aim = replace(aim, pos_label=compared.positive)  # in other rows the other class may be the rarer one
        shown = first and sys.stderr.isatty()
        fitted = fit_contestant(key, aim, problem.X, problem.y, problem.weight, verbose=shown)
        if not first:
            return
    model = fitted.model_
    if problem.labels is not None:
        model = replace(model, classes=np.array(problem.labels, dtype=object))
    save_model(model, folder)
    _answer(model, key, folder, time.monotonic() - began, json_too=json_too)


def _compared(folder: Path) -> Outcome:
    if not (folder / COMPARISON).exists():
        raise TableError(
            f"{folder} holds no finished comparison ({COMPARISON} is not there). Run stepless compare first, with"
            " --resume if it was stopped, or name a contestant without --from."
        )
    return Outcome.from_json(folder / COMPARISON)


def _aim(asked: Asked, problem: Problem) -> Aim:
    classes = len(np.unique(problem.y))
    task: Any = "multilabel" if problem.labels else "binary" if classes == 2 else "multiclass"
    if asked.task not in (None, task):
        raise TableError(f"--task {asked.task} does not fit the target, which is {task}.")
    options = {**asked.metric_options, **({"maximize": False} if asked.minimize else {})}
    return Aim(task, asked.metric, options, asked.subject_to, asked.average, problem.positive, asked.seed)


def _answer(model: Model, key: str, folder: Path, seconds: float, *, json_too: bool) -> None:
    score = model.settings.get("score")
    if json_too:
        print(as_json({
            "model": str(folder), "contestant": key, "metric": model.metric, "task": model.task,
            "classes": model.classes, "threshold": model.threshold, "held_out_score": score, "seconds": seconds,
            "columns": list(model.features.names or ()),
        }))  # fmt: skip
        return
    cut = f", threshold {format_cut(model.threshold, 3)}" if isinstance(model.threshold, float) else ""
    say(f"Fitted {CONTESTANTS[key].name} in {clock(seconds)}{cut}.")
    if score is not None:
        say(f"{model.metric} on held-out rows, which also chose the model and its threshold: {format_number(score)}.")
    say(f"The model: {folder}")
    say(f"To use it:  stepless predict {shlex.quote(str(folder))} new-rows.csv --out predictions.csv")


# ---------------------------------------------------------------------------------------------------------------------
# Predicting
# ---------------------------------------------------------------------------------------------------------------------


def run_predict(model_folder: str, source: Source, *, out: str | None, keep: Sequence[str]) -> None:
    """Predict the rows of a table one chunk after another, and write them as CSV.

    Args:
        model_folder: A folder that `stepless train` wrote.
        source: The table; columns may be in any order, and other columns are ignored.
        out: The file, compressed if it ends in ``.gz``; None for standard output.
        keep: Columns of the table to write before the predictions.
    """
    model = load(model_folder).model_
    if model.features.names is None:
        raise TableError(f"the model in {model_folder} was fitted without names of columns, and a file has names.")
    kinds: dict[str, Kind] = {
        name: "category" if isinstance(column, Category) else "number"
        for name, column in zip(model.features.names, model.features.columns, strict=True)
    }
    names = _headings(model)
    twice = next((name for name in keep if keep.count(name) > 1), None)
    if twice is not None:
        raise TableError(f"--keep names the column {twice!r} twice; name each column once.")
    clash = [name for name in keep if name in names]
    if clash:
        raise TableError(f"the column {clash[0]!r} is called as one of the predictions; it cannot be kept beside them.")
    if out not in (None, "-") and source.path != "-" and _is_same(out, source.path):
        raise TableError(f"--out {out} is the table itself, which the predictions would replace; name another file.")
    if out is not None and Path(out.removesuffix(".gz")).suffix.lower() in _NOT_CSV:
        raise TableError(f"predictions are written as CSV, and {out} would be another format: name it .csv or .csv.gz.")
    done = 0
    with _written(out) as file, Watch("rows") as watch:
        writer = csv.writer(file, lineterminator="\n")
        for chunk in read_chunks(source, kinds, list(keep)):
            if not done:  # not before the first chunk, so that an error leaves no header behind
                writer.writerow([*keep, *names])
            writer.writerows(zip(*chunk.kept.values(), *_predictions(model, chunk), strict=True))
            done += chunk.table.rows
            watch(done, None, "predicting")
        if not done:
            writer.writerow([*keep, *names])
    if done == 0:
        note(f"{source.name} has a header and no rows; so have the predictions.")
    elif out is not None:
        note(f"{done:,} rows predicted: {out}")


def _headings(model: Model) -> list[str]:
    """The columns of predictions: probability, decision and label, or one of them per class or label."""
    if model.task == "binary":
        return ["probability", "decision", "label"]
    each = [f"probability_{name}" for name in model.classes]
    if model.task == "multiclass":
        return [*each, "label"]
    return [heading for name in model.classes for heading in (f"probability_{name}", f"decision_{name}")]


def _predictions(model: Model, chunk: Chunk) -> list[list[Any]]:
    """The values of the columns that `_headings` names."""
    probabilities = model.probabilities(chunk.table)
    decided = model.decide_of(model.decision_of(probabilities))
    if model.task == "binary":
        yes = probabilities[:, model.positive].tolist()
        return [yes, decided.astype(int).tolist(), model.labels_of(decided).tolist()]
    columns = probabilities.T.tolist()
    if model.task == "multiclass":
        return [*columns, model.labels_of(decided).tolist()]
    return [part for pair in zip(columns, decided.astype(int).T.tolist(), strict=True) for part in pair]


def _is_same(one: Any, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return False


@contextmanager
def _written(out: str | None) -> Iterator[Any]:
    """Yield standard output, or a file that appears only when it is complete."""
    if out is None or out == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(out)
    if path.is_dir():
        raise TableError(f"{out} is a folder; predictions go into a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".gz":
        with whole_text(path) as file:
            yield file
        return
    with (
        whole_file(path) as whole,
        gzip.GzipFile("", "wb", fileobj=whole, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file
