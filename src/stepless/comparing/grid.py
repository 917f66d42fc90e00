"""The grid of a comparison, contestants × repeats × folds, computed here, by several processes, or on a cluster.

Contestants that differ in the cut alone come from one fit, and fits that have trees in common are one task. The data go
to the workers once: as a file that processes of this machine map into memory, by ``ray.put``, or by Dask's ``scatter``;
a task is a few numbers. All chance comes from the seed, the repeat and the fold, and every cell computes with one
thread, so that cells do not depend on how many run at a time, or where.
"""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, get_args

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from stepless.comparing.cells import Cell, CellFolder, Place
from stepless.comparing.contestants import CONTESTANTS, FITS, Aim, read_fit
from stepless.constraints import parse_constraints
from stepless.ensembles.predicting import Predicting
from stepless.extras import needs
from stepless.models.calibration import Identity
from stepless.models.model import Model
from stepless.outcome import Progress, Threshold
from stepless.rules import Rule
from stepless.sharing import shared_fits
from stepless.tables.frames import Table

Backend = Literal["loky", "ray", "dask"]

#: How often a grid goes on after its workers have died.
_LIVES = 3
#: So many seconds an address is given to answer.
_PATIENCE = 10.0
#: So many tasks wait at a cluster's door at a time.
_MOST_WAITING = 256


@dataclass(frozen=True, eq=False)
class Work:
    """All that a cell needs; it goes to every worker once.

    Attributes:
        table: The rows.
        y: Their labels.
        weight: Their weights.
        folds: The fold of each row in each repeat, ``(repeats, rows)``.
        rule: How labels are read and decisions scored.
        aim: What contestants are told, but for the seed.
        seed: Of all chance.
    """

    table: Table
    y: NDArray[Any]
    weight: NDArray[np.float64] | None
    folds: NDArray[np.int16]
    rule: Rule
    aim: Aim
    seed: int


class Task(NamedTuple):
    """Fits of one kin: each for which contestants, on which fold of which repeat."""

    fits: tuple[tuple[str, tuple[str, ...]], ...]
    repeat: int
    fold: int


def run_grid(
    work: Work,
    keys: Sequence[str],
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    address: str | None = None,
    store: CellFolder | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> dict[Place, Cell]:
    """Compute all cells, but for those that the folder has.

    Args:
        work: What they need.
        keys: Of the contestants.
        jobs: How many fits run at a time on this machine; −1 for as many as there are cores. A cluster uses all it has.
        backend: ``"loky"`` for processes of this machine, ``"ray"`` or ``"dask"`` for a cluster.
        address: Of the cluster.
        store: Where finished cells are kept.
        progress: Called for every cell that is finished.
    """
    _check_backend(backend, address, jobs)
    repeats, folds = len(work.folds), int(work.folds.max()) + 1
    places = [(key, repeat, fold) for repeat in range(repeats) for fold in range(folds) for key in keys]
    done: dict[Place, Cell] = {}

    def finish(cell: Cell, seconds: float) -> None:
        done[cell.place] = cell
        if progress is not None:
            score = None if cell.failed is not None else cell.score
            step = (len(done), len(places), cell.key, cell.repeat, cell.fold, score, seconds, cell.failed)
            progress(Progress(*step))

    if store is not None:
        for place in places:
            if (cell := store.read(place)) is not None:
                finish(cell, 0.0)
    for life in range(_LIVES):
        tasks = _tasks([place for place in places if place not in done])
        if not tasks:
            break
        try:
            with _results(work, tasks, jobs, backend, address) as results:
                for cells in results:
                    for cell in cells:
                        if cell.place not in done:
                            if store is not None:
                                store.write(cell)
                            finish(cell, cell.seconds)
        except BrokenExecutor as error:
            if life == _LIVES - 1:
                raise RuntimeError(
                    f"worker processes died {_LIVES} times, most likely for want of memory; lower jobs. ({error})"
                ) from error
    return done


def run_task(work: Work, task: Task) -> list[Cell]:
    """The cells of a task's fits; a contestant that fails leaves its sentence."""
    seed = int(np.random.SeedSequence([work.seed, task.repeat, task.fold]).generate_state(1)[0]) % 2**31
    aim = replace(work.aim, seed=seed)
    held = work.folds[task.repeat] == task.fold
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    given = work.table.take(train), work.y[train], None if work.weight is None else work.weight[train]
    rows = work.table.take(test)
    cells = []
    with _one_thread(), shared_fits() as shared, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fit, keys in task.fits:
            failed: dict[str, str] = {}
            begun = time.perf_counter() + shared.saved  # what another fit has spent counts for this one too
            try:
                fitted = FITS[fit](aim, *given)
            except Exception as error:
                failed = dict.fromkeys(keys, _sentence(error))
            seconds = time.perf_counter() + shared.saved - begun
            for key in keys:
                cell = Cell(key, task.repeat, task.fold, seconds=seconds)
                if key not in failed:
                    try:
                        cell = judge(work, read_fit(CONTESTANTS[key], fitted), rows, test, cell)
                    except Exception as error:
                        failed[key] = _sentence(error)
                cells.append(replace(cell, failed=failed.get(key)))
    return cells


def judge(work: Work, fitted: Predicting, rows: Table, test: NDArray[np.intp], cell: Cell) -> Cell:
    """A cell with the score of its fold: of decisions by the threshold that the fit has chosen on other rows.

    Args:
        work: What the grid is about.
        fitted: The classifier.
        rows: Of the fold.
        test: Their numbers.
        cell: What is known of the cell.
    """
    rule, model = work.rule, fitted.model_
    scores = model.scores(rows)
    probabilities = model.probabilities_of(scores)
    decided = rule.encode(model.labels_of(model.decide_of(model.decision_of(probabilities))))
    target = rule.encode(work.y[test])
    weight = None if work.weight is None else work.weight[test]
    constraints = (replace(rule, metric=c.metric, options={}) for c in parse_constraints(rule.subject_to))
    kept = raw = None
    if cell.repeat == 0:
        kept = _aligned(probabilities, model, rule)
        if not isinstance(model.calibration, Identity):
            plain = replace(model, calibration=Identity(model.task))
            raw = _aligned(plain.probabilities_of(scores), model, rule)
    return replace(
        cell,
        score=rule.score(decided, target, weight),
        threshold=_threshold(model, rule),
        constraints=tuple(other.score(decided, target, weight) for other in constraints),
        probabilities=kept,
        raw=raw,
    )


def _aligned(probabilities: NDArray[np.float64], model: Model, rule: Rule) -> NDArray[np.float64]:
    """Of the positive class, or of all classes; one that the training rows lack has no chance."""
    if rule.task == "binary":
        assert model.positive is not None
        return probabilities[:, model.positive]
    if rule.task == "multilabel" or len(model.classes) == len(rule.classes):
        return probabilities
    every = np.zeros((len(probabilities), len(rule.classes)))
    every[:, np.searchsorted(rule.classes, model.classes)] = probabilities
    return every


def _threshold(model: Model, rule: Rule) -> Threshold:
    """The model's own; of several classes an offset for each, 0 for those that its training rows lack."""
    if rule.task != "multiclass" or len(model.classes) == len(rule.classes):
        return model.threshold
    offsets = np.zeros(len(rule.classes))
    if isinstance(model.threshold, tuple):
        offsets[np.searchsorted(rule.classes, model.classes)] = model.threshold
    return tuple(offsets.tolist())


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _tasks(places: Iterable[Place]) -> list[Task]:
    """The fits that these cells need; within a fold the costly come first, so that none of them is left to the end."""
    keys: dict[tuple[int, int, str], list[str]] = {}
    for key, repeat, fold in places:
        keys.setdefault((repeat, fold, CONTESTANTS[key].fit), []).append(key)
    kin: dict[tuple[int, int, str], list[tuple[str, tuple[str, ...]]]] = {}
    for repeat, fold, fit in sorted(keys, key=lambda at: (at[0], at[1], -FITS[at[2]].cost)):
        own = (fit, tuple(keys[repeat, fold, fit]))
        kin.setdefault((repeat, fold, FITS[fit].kin or fit), []).append(own)
    return [Task(tuple(fits), repeat, fold) for (repeat, fold, _), fits in kin.items()]


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for all that computes: how sums are split must not depend on how many cores are free."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------------------------
# Where it runs
# ---------------------------------------------------------------------------------------------------------------------


def _check_backend(backend: Any, address: Any, jobs: Any) -> None:
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(map(repr, get_args(Backend)))}; got {backend!r}.")
    if backend == "loky" and address is not None:
        raise ValueError(f'address={address!r} is that of a cluster; pass backend="ray" or backend="dask" with it.')
    if isinstance(jobs, bool) or not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise ValueError(f"jobs must be a whole number from 1 up, or −1 for all cores; got {jobs!r}.")


@contextmanager
def _results(
    work: Work, tasks: list[Task], jobs: int, backend: Backend, address: str | None
) -> Iterator[Iterable[list[Cell]]]:
    """The cells of each task, as they come."""
    if backend != "loky":
        # threads that wait, for both alike: Dask's own backend for joblib loses the tasks of a worker that dies
        with (_ray if backend == "ray" else _dask)(work, address) as call:
            yield _parallel(min(len(tasks), _MOST_WAITING), (joblib.delayed(call)(task) for task in tasks), "threading")
    elif jobs == 1:
        yield map(partial(run_task, work), tasks)
    else:
        with TemporaryDirectory(prefix="stepless-", ignore_cleanup_errors=True) as folder:
            path = str(Path(folder) / "work")
            joblib.dump((work.table, work.y, work.weight, work.folds), path)
            # a metric may be a lambda, which loky can send and a file cannot hold
            call = joblib.delayed(partial(_run_from_file, path, (work.rule, work.aim, work.seed)))
            yield _parallel(jobs, (call(task) for task in tasks), "loky")


def _parallel(jobs: int, calls: Iterable[Any], backend: str) -> Iterable[list[Cell]]:
    parallel = joblib.Parallel(jobs, backend=backend, return_as="generator_unordered", batch_size=1)
    return parallel(calls)


#: The arrays of the grid that this worker works for.
_LOADED: dict[str, Any] = {}


def _run_from_file(path: str, rest: tuple[Rule, Aim, int], task: Task) -> list[Cell]:
    """What a process of this machine runs: it maps the data into memory once."""
    if path not in _LOADED:
        _LOADED.clear()
        _LOADED[path] = joblib.load(path, mmap_mode="r")
    table, y, weight, folds = _LOADED[path]
    return run_task(Work(table, y, weight, folds, *rest), task)


def _module(name: str, extra: str) -> Any:
    with needs(f'backend="{extra}" needs {name}', extra, name.partition(".")[0]):
        return import_module(name)


def _knock(address: str | None) -> None:
    """Raise where nobody listens at ``host:port``; Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at {address!r}: {error}.") from None


@contextmanager
def _ray(work: Work, address: str | None) -> Iterator[Callable[[Task], list[Cell]]]:
    """What runs a task on a Ray cluster, which starts it again elsewhere when its worker dies."""
    ray = _module("ray", "ray")
    begun = not ray.is_initialized()
    if begun:
        _knock(address)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"no Ray cluster answers at {address!r}: {_sentence(error)}") from None
    shared = ray.put(work)
    remote = ray.remote(num_cpus=1, max_retries=_LIVES)(run_task)

    def call(task: Task) -> list[Cell]:
        try:
            return ray.get(remote.remote(shared, task))
        except ray.exceptions.RayError as error:
            raise BrokenExecutor(_sentence(error)) from error

    try:
        yield call
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _dask(work: Work, address: str | None) -> Iterator[Callable[[Task], list[Cell]]]:
    """What runs a task on a Dask cluster, which starts it again elsewhere when its worker dies."""
    dask = _module("distributed", "dask")
    try:
        client = dask.get_client() if address is None else dask.Client(address, timeout=_PATIENCE, set_as_default=False)
    except OSError as error:
        raise ValueError(f"no Dask scheduler answers at {address!r}: {_sentence(error)}") from None
    except ValueError:
        raise ValueError('backend="dask" needs the address of a scheduler, or a Client in this process.') from None
    # the name of a scattered value is otherwise its hash, under which a value that was lost may still be known
    shared = client.scatter(work, broadcast=True, hash=False)

    def call(task: Task) -> list[Cell]:
        try:
            return client.submit(run_task, shared, task, pure=False, retries=_LIVES).result()
        except (dask.scheduler.KilledWorker, dask.CancelledError) as error:
            raise BrokenExecutor(_sentence(error)) from error

    try:
        yield call
    finally:
        if address is not None:
            client.close()
