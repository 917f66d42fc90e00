"""`stepless compare` and `stepless demo`: run a comparison, print the answer and write it to a folder."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepless.tabular.commands.asked import CELLS, COMPARISON, REPORT, SETTINGS, Asked, in_options, stated
from stepless.tabular.commands.console import Watch, answers, as_json, clock, grid, note, say
from stepless.tabular.commands.problems import show_columns
from stepless.tabular.comparing.contestants import CONTESTANTS, check_names
from stepless.tabular.comparison import compare
from stepless.tabular.outcome import Outcome, Progress, clip, difference_word, format_metric, format_rows, score_digits
from stepless.tabular.tables.files import Source, TableError


@dataclass(frozen=True)
class Plan:
    """How a comparison runs.

    Attributes:
        only: Contestants that take part; None for the default ones.
        extra: Contestants to add.
        without: Contestants to leave out.
        folds: The number of folds.
        repeats: How often the rows are divided into folds; None for a number that suits the table.
        jobs: How many fits run in parallel.
        backend: Where fits run.
        address: Address of a cluster.
        resume: Whether to continue a run that was stopped.
        out: Folder for the results; None for the default one.
        plots: Whether to draw the curves into files.
        json: Whether to print the answer as JSON.
    """

    only: tuple[str, ...] | None = None
    extra: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    folds: int = 5
    repeats: int | None = None
    jobs: int = 1
    backend: str = "loky"
    address: str | None = None
    resume: bool = False
    out: str | None = None
    plots: bool = False
    json: bool = False


def run_compare(asked: Asked, plan: Plan) -> None:
    """Compare, write the results to the folder and print the answer."""
    source = Source(asked.file, delimiter=asked.delimiter, encoding=asked.encoding)
    folder = Path(plan.out if plan.out is not None else f"stepless-{source.stem}")
    _check_folder(folder, asked, resume=plan.resume)
    asked.check()
    check_names((*(plan.only or ()), *plan.extra, *plan.without))
    _run(asked, plan, folder)


def _run(asked: Asked, plan: Plan, folder: Path) -> None:
    """Run the comparison in a folder that has been checked."""
    note(f"reading {Source(asked.file).name}")
    problem = asked.read()
    show_columns(problem)
    results = _ResultFolder(folder, asked)
    task: Any = asked.task
    backend: Any = plan.backend
    with Watch("fits") as watch, results:
        watch(0, None, "starting")

        def tell(step: Progress) -> None:
            results.begin()
            watch(step.done, step.total, CONTESTANTS[step.key].name, restored=not step.seconds)

        try:
            outcome = compare(
                problem.X, problem.target, asked.metric, maximize=False if asked.minimize else None,
                subject_to=asked.subject_to, average=asked.average, task=task,
                pos_label=problem.positive, sample_weight=problem.weight,
                groups=problem.groups, contestants=plan.only, extra=plan.extra, without=plan.without,
                folds=plan.folds, repeats=plan.repeats, seed=asked.seed, jobs=plan.jobs, backend=backend,
                address=plan.address, folder=folder, resume=plan.resume, progress=tell, name=problem.name,
                **asked.metric_options,
            )  # fmt: skip
        except KeyboardInterrupt:
            if results.begun:
                note(f"What is done is kept in {folder / CELLS}; the same command with --resume goes on from there.")
            raise
    _write(outcome, folder, plots=plan.plots)
    _answer(outcome, folder, asked, json_too=plan.json)


class _ResultFolder:
    """The folder of a comparison, left as it was until there is a first result.

    Only then the results of an earlier run are removed, so that a wrong option does not cost them.
    """

    def __init__(self, folder: Path, asked: Asked) -> None:
        self._folder, self._asked = folder, asked
        self._new, self._begun = not folder.exists(), False

    @property
    def begun(self) -> bool:
        """Whether there is a result; Ctrl-C may come after one was stored and before `begin`."""
        return self._begun or (self._new and any((self._folder / CELLS).glob("*.json")))

    def __enter__(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / SETTINGS).exists():  # marks the folder as ours, whenever the run ends
            self._asked.save(self._folder)

    def begin(self) -> None:
        """Prepare the folder for the first result."""
        if not self._begun:
            for stale in (COMPARISON, REPORT):
                (self._folder / stale).unlink(missing_ok=True)
            self._asked.save(self._folder)
            self._begun = True

    def __exit__(self, *_: Any) -> None:
        if self._new and not self.begun:
            shutil.rmtree(self._folder, ignore_errors=True)


def run_demo(plan: Plan, *, seed: int) -> None:
    """Compare on scikit-learn's breast-cancer table without most of its malignant cases."""
    from stepless.tabular.commands.demo import write_demo  # noqa: PLC0415 - needed by this command alone

    folder = Path(plan.out if plan.out is not None else "stepless-demo")
    file = folder / "breast-cancer.csv"
    asked = Asked(str(file), "malignant", seed=seed)
    _check_folder(folder, asked, resume=plan.resume)
    if file.exists() and not _is_demo(folder, file.name, asked.target):
        raise TableError(f"{file} is not the demo's, which would write over it. Name another folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SETTINGS).exists():
        asked.save(folder)  # before the table: marks the folder as ours, whenever the run ends
    write_demo(file)
    # a single repeat, because a demo should answer quickly
    _run(asked, replace(plan, repeats=plan.repeats or 1), folder)


def _is_demo(folder: Path, name: str, target: str) -> bool:
    """Whether the comparison in a folder is of the demo's table; the folder may have been moved since."""
    before = Asked.load(folder)
    return (Path(before.file).name, before.target) == (name, target)


def _check_folder(folder: Path, asked: Asked, *, resume: bool) -> None:
    """Raise if results would be mixed with other files, or if there is nothing to resume."""
    if folder.exists() and not folder.is_dir():
        raise TableError(f"{folder} is a file; results go into a folder. Name another one with --out.")
    if resume and not (folder / SETTINGS).exists():
        raise TableError(f"there is nothing to resume in {folder}: no comparison was begun there.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        before = Asked.load(folder)
    except TableError:
        if resume:
            raise
        # other programs write a settings.json too; the folder is ours only if it holds what `Asked.save` writes
        raise TableError(f"{folder} holds other files than a comparison's. Name another folder with --out.") from None
    if resume:
        now = Asked(**{**asked.__dict__, "file": before.file})
        changed = [name for name in before.__dict__ if getattr(before, name) != getattr(now, name)]
        if changed:
            was = ", ".join(stated(name, getattr(before, name)) for name in changed)
            raise TableError(f"{folder} holds a comparison with {was}. Resume it as it was, or begin anew elsewhere.")


def _write(outcome: Outcome, folder: Path, *, plots: bool) -> None:
    """Write the files of a finished comparison, the report last, so that it marks a complete folder."""
    outcome.to_json(folder / COMPARISON)
    if plots:
        outcome.plots(folder / "plots")
    outcome.to_html(folder / REPORT)


def _answer(outcome: Outcome, folder: Path, asked: Asked, *, json_too: bool) -> None:
    if json_too:
        say_json = {
            "verdict": in_options(outcome.verdict),
            "winner": outcome.winner,
            "baseline": outcome.baseline,
            "metric": outcome.metric,
            "metric_options": outcome.metric_options,
            "average": outcome.average,
            "task": outcome.task,
            "positive": outcome.positive,
            "rows": outcome.n_rows,
            "folds": outcome.folds,
            "repeats": outcome.repeats,
            "table": outcome.table,
            "warnings": list(outcome.warnings),
            "seconds": outcome.seconds,
            "report": str(folder / REPORT),
            "comparison": str(folder / COMPARISON),
        }
        print(as_json(say_json))
        return
    answers().print()
    answers().print(_table(outcome))
    for entry in outcome.entries:
        if entry.failed is not None:
            say(in_options(f"{entry.name} failed: {entry.failed}"))
    say("")
    say(in_options(outcome.verdict))
    for warning in outcome.warnings:
        say(f"Caution: {warning}")
    say("")
    say(f"{clock(outcome.seconds)}. The whole answer: {folder / REPORT}")
    table = "" if asked.file != "-" else "table.csv "  # standard input cannot be read again
    say(f"To fit the winner:  stepless train {table}--from {shlex.quote(str(folder))}")


def _table(outcome: Outcome) -> Any:
    heads = (
        "", "mean", "95 % interval", difference_word(outcome), "better / same / worse", *outcome.constraints,
        "offsets" if outcome.task == "multiclass" else "threshold", "fit",
    )  # fmt: skip
    average = f", average {outcome.average}" if outcome.average else ""
    metric = clip(format_metric(outcome.metric, outcome.metric_options), 60)
    title = f"{metric}{average} on rows that no model has seen; {outcome.repeats} × {outcome.folds} folds"
    last = len(heads) - 1
    rows = format_rows(outcome, score_digits(outcome.rope))
    return grid(heads, rows, right=(1, 3, 4, *range(5, last - 1), last), title=title, spare=(last, 4, last - 1))
