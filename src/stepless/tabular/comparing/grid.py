"""The grid of a comparison, contestants × repeats × folds, computed here, by several processes, or on a cluster.

Contestants that differ only in the threshold share a fit, and fits that share trees are one task. The data are sent to
each worker once: as a file that local processes map into memory, by ``ray.put``, or by Dask's ``scatter``; a task is a
few numbers. Random numbers depend only on seed, repeat and fold, and every task uses one thread, so the results do not
depend on how many tasks run at a time, or where.
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

from stepless.constraints import parse_constraints
from stepless.extras import needs
from stepless.numerics import is_whole
from stepless.rules import Rule
from stepless.tabular.comparing.cells import Cell, CellFolder, Place
from stepless.tabular.comparing.contestants import CONTESTANTS, FITS, Aim, read_fit
from stepless.tabular.ensembles.predicting import Predicting
from stepless.tabular.models.calibration import Identity
from stepless.tabular.models.model import Model
from stepless.tabular.outcome import Progress, Threshold
from stepless.tabular.sharing import shared_fits
from stepless.tabular.tables.frames import Table

Backend = Literal["loky", "ray", "dask"]

#: How many times a grid, or a task on a cluster, is tried when worker processes die.
_TRIES = 3
#: Seconds until a cluster must have answered.
_TIMEOUT = 10.0
#: The most tasks submitted to a cluster at a time.
_MOST_SUBMITTED = 256


@dataclass(frozen=True, eq=False)
class Work:
    """Everything that cells are computed from; sent to every worker once.

    Attributes:
        table: The rows.
        y: The labels.
        weight: The row weights.
        folds: The fold of each row in each repeat, ``(repeats, rows)``.
        rule: How labels are encoded and decisions scored.
        aim: What contestants are fitted for; each fold sets its own seed.
        seed: Seed of all random numbers.
    """

    table: Table
    y: NDArray[Any]
    weight: NDArray[np.float64] | None
    folds: NDArray[np.int16]
    rule: Rule
    aim: Aim
    seed: int


class Task(NamedTuple):
    """Fits with the same kin on one fold of one repeat, each with the keys of its contestants."""

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
    """Compute all cells, except those that the store already has.

    Args:
        work: The data and settings.
        keys: Keys of the contestants.
        jobs: How many fits run in parallel on this machine; −1 for all cores. A cluster uses all its workers.
        backend: ``"loky"`` for processes on this machine, ``"ray"`` or ``"dask"`` for a cluster.
        address: Address of the cluster.
        store: The folder of finished cells.
        progress: Called for every finished cell.
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
    for attempt in range(1, _TRIES + 1):
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
            if attempt == _TRIES:
                raise RuntimeError(
                    f"worker processes died {_TRIES} times, most likely for want of memory; lower jobs. ({error})"
                ) from error
    return done


def run_task(work: Work, task: Task) -> list[Cell]:
    """Return the cells of a task; that of a contestant that fails holds the error message."""
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
            begun = time.perf_counter() + shared.saved  # including what a shared model cost an earlier fit
            try:
                fitted = FITS[fit](aim, *given)
            except Exception as error:
                failed = dict.fromkeys(keys, _message(error))
            seconds = time.perf_counter() + shared.saved - begun
            for key in keys:
                cell = Cell(key, task.repeat, task.fold, seconds=seconds)
                if key not in failed:
                    try:
                        cell = judge(work, read_fit(CONTESTANTS[key], fitted), rows, test, cell)
                    except Exception as error:
                        failed[key] = _message(error)
                cells.append(replace(cell, failed=failed.get(key)))
    return cells


def judge(work: Work, fitted: Predicting, rows: Table, test: NDArray[np.intp], cell: Cell) -> Cell:
    """Return a cell completed with the score of its fold, decided by the threshold chosen on the training rows.

    Args:
        work: The data and settings.
        fitted: The classifier.
        rows: The rows of the fold.
        test: Their indices in the whole table.
        cell: The cell without its results.
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
    """Probabilities of the positive class or of all classes, 0 for a class that the training rows lack."""
    if rule.task == "binary":
        assert model.positive is not None
        return probabilities[:, model.positive]
    if rule.task == "multilabel" or len(model.classes) == len(rule.classes):
        return probabilities
    every = np.zeros((len(probabilities), len(rule.classes)))
    every[:, np.searchsorted(rule.classes, model.classes)] = probabilities
    return every


def _threshold(model: Model, rule: Rule) -> Threshold:
    """The model's threshold; multiclass: an offset for every class, 0 for those that the training rows lack."""
    if rule.task != "multiclass" or len(model.classes) == len(rule.classes):
        return model.threshold
    offsets = np.zeros(len(rule.classes))
    if isinstance(model.threshold, tuple):
        offsets[np.searchsorted(rule.classes, model.classes)] = model.threshold
    return tuple(offsets.tolist())


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _tasks(places: Iterable[Place]) -> list[Task]:
    """The fits that these cells need; within a fold costly ones come first, so that none starts last."""
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
    """Compute with one thread, because how sums are split, and so rounded, depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------------------------
# Backends
# ---------------------------------------------------------------------------------------------------------------------


def _check_backend(backend: Any, address: Any, jobs: Any) -> None:
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(map(repr, get_args(Backend)))}; got {backend!r}.")
    if backend == "loky" and address is not None:
        raise ValueError(f'address={address!r} is that of a cluster; pass backend="ray" or backend="dask" with it.')
    if not is_whole(jobs) or (jobs < 1 and jobs != -1):
        raise ValueError(f"jobs must be a whole number from 1 up, or −1 for all cores; got {jobs!r}.")


@contextmanager
def _results(
    work: Work, tasks: list[Task], jobs: int, backend: Backend, address: str | None
) -> Iterator[Iterable[list[Cell]]]:
    """Yield the cells of each task in order of completion."""
    if backend != "loky":
        # local threads wait for the results: joblib's own Dask backend loses the tasks of a worker that dies
        with (_ray if backend == "ray" else _dask)(work, address) as call:
            yield _parallel(call, tasks, min(len(tasks), _MOST_SUBMITTED), "threading")
    elif jobs == 1:
        yield map(partial(run_task, work), tasks)
    else:
        with TemporaryDirectory(prefix="stepless-", ignore_cleanup_errors=True) as folder:
            path = str(Path(folder) / "work")
            joblib.dump((work.table, work.y, work.weight, work.folds), path)
            # a metric may be a lambda, which loky can pickle and joblib.dump cannot
            yield _parallel(partial(_run_from_file, path, (work.rule, work.aim, work.seed)), tasks, jobs, "loky")


def _parallel(call: Callable[[Task], list[Cell]], tasks: list[Task], jobs: int, backend: str) -> Iterable[list[Cell]]:
    parallel = joblib.Parallel(jobs, backend=backend, return_as="generator_unordered", batch_size=1)
    return parallel(joblib.delayed(call)(task) for task in tasks)


#: In a worker process: the arrays of the current grid, by the path of their file.
_LOADED: dict[str, Any] = {}


def _run_from_file(path: str, rest: tuple[Rule, Aim, int], task: Task) -> list[Cell]:
    """Run a task in a local worker process, which maps the data into memory once."""
    if path not in _LOADED:
        _LOADED.clear()
        _LOADED[path] = joblib.load(path, mmap_mode="r")
    table, y, weight, folds = _LOADED[path]
    return run_task(Work(table, y, weight, folds, *rest), task)


def _module(name: str, extra: str) -> Any:
    with needs(f'backend="{extra}" needs {name}', extra, name.partition(".")[0]):
        return import_module(name)


def _check_ray_address(address: str | None) -> None:
    """Raise if nothing listens at the address, for which Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), _TIMEOUT).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at {address!r}: {error}.") from None


@contextmanager
def _ray(work: Work, address: str | None) -> Iterator[Callable[[Task], list[Cell]]]:
    """Yield a function that runs a task on a Ray cluster, which restarts the task if its worker dies."""
    ray = _module("ray", "ray")
    connected_here = not ray.is_initialized()
    if connected_here:
        _check_ray_address(address)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"no Ray cluster answers at {address!r}: {_message(error)}") from None
    shared = ray.put(work)
    remote = ray.remote(num_cpus=1, max_retries=_TRIES)(run_task)

    def call(task: Task) -> list[Cell]:
        try:
            return ray.get(remote.remote(shared, task))
        except ray.exceptions.RayError as error:
            raise BrokenExecutor(_message(error)) from error

    try:
        yield call
    finally:
        if connected_here:
            ray.shutdown()


@contextmanager
def _dask(work: Work, address: str | None) -> Iterator[Callable[[Task], list[Cell]]]:
    """Yield a function that runs a task on a Dask cluster, which restarts the task if its worker dies."""
    dask = _module("distributed", "dask")
    try:
        client = dask.get_client() if address is None else dask.Client(address, timeout=_TIMEOUT, set_as_default=False)
    except OSError as error:
        raise ValueError(f"no Dask scheduler answers at {address!r}: {_message(error)}") from None
    except ValueError:
        raise ValueError('backend="dask" needs the address of a scheduler, or a Client in this process.') from None
    # not named by its hash, under which the scheduler may still know a value that was lost
    shared = client.scatter(work, broadcast=True, hash=False)

    def call(task: Task) -> list[Cell]:
        try:
            return client.submit(run_task, shared, task, pure=False, retries=_TRIES).result()
        except (dask.scheduler.KilledWorker, dask.CancelledError) as error:
            raise BrokenExecutor(_message(error)) from error

    try:
        yield call
    finally:
        if address is not None:
            client.close()
