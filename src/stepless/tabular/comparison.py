"""`compare`: find out which way to make a classifier is best for a metric on given data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stepless.constraints import Constraint, parse_constraints
from stepless.rules import Rule
from stepless.tabular.comparing.cautions import describe_columns, find_cautions
from stepless.tabular.comparing.cells import CellFolder, describe_run
from stepless.tabular.comparing.contestants import BASELINE, CONTESTANTS, Aim, choose_contestants
from stepless.tabular.comparing.given import (
    class_names,
    counted_rows,
    make_rule,
    read_counts,
    read_labels,
    read_rows,
)
from stepless.tabular.comparing.grid import Backend, Work, run_grid
from stepless.tabular.comparing.results import ENOUGH, Results, choose_rope, unmet
from stepless.tabular.comparing.splits import count_folds, fewest_rows, split_rows
from stepless.tabular.comparing.verdicts import reach_verdict
from stepless.tabular.fingerprints import fingerprint, written
from stepless.tabular.models.model import library_versions
from stepless.tabular.outcome import Entry, Outcome, Progress, format_metric, format_number
from stepless.tabular.progress_bars import progress_bar
from stepless.tasks import Task


def compare(
    X: Any,
    y: Any,
    metric: Any = "f1",
    *,
    maximize: bool | None = None,
    average: str | None = None,
    subject_to: Any = None,
    task: Task | None = None,
    pos_label: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    contestants: Sequence[str] | None = None,
    extra: Sequence[str] = (),
    without: Sequence[str] = (),
    folds: int = 5,
    repeats: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    backend: Backend = "loky",
    address: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], object] | bool | None = None,
    name: str = "table",
    feature_names: Sequence[str] | None = None,
    **metric_options: Any,
) -> Outcome:
    """Compare ways to make a classifier for a metric, by nested and repeated cross-validation.

    Everything that is learned, including preprocessing, calibration and thresholds, is learned from the training rows
    of a fold only. All are compared with cross-entropy and a tuned threshold, by the Bayesian correlated t-test.

    Args:
        X: Rows: an array, a list of rows, or a pandas or polars frame. Categories and missing values are handled.
        y: Labels ``(N,)``, or 0 and 1 ``(N, labels)``.
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        maximize: For formulas only: whether greater is better. By default this is found by trying the formula.
        average: Over classes: ``"macro"`` (default), ``"micro"``, ``"weighted"``, or ``"samples"`` (multilabel only).
        subject_to: Constraints, such as ``"precision >= 0.9"``.
        task: The task that ``y`` must be, or an error is raised. Default: any.
        pos_label: Binary: the positive class. Default: 1 (or True) of ``{0, 1}`` or ``{-1, 1}``, else the rarer class.
        sample_weight: One weight per row, for training and scores.
        groups: The group of each row. Rows of one group are held out together.
        contestants: Keys of `stepless.tabular.comparing.contestants.CONTESTANTS`, or None for the default ones. The
            baseline always takes part.
        extra: Keys to add, such as ``"smote"``.
        without: Keys to leave out.
        folds: The number of folds. A binary task has fewer if a class has fewer rows.
        repeats: How often the rows are divided into folds. Default: twice up to 10,000 rows, else once.
        seed: Seed of all random numbers.
        jobs: How many fits run in parallel on this machine; −1 for all cores. The result does not depend on it.
        backend: ``"loky"`` for processes on this machine, ``"ray"`` or ``"dask"`` for a whole cluster.
        address: Address of the cluster.
        folder: A folder that keeps what is finished, so that a stopped run can be resumed.
        resume: Whether to continue with what the folder keeps. Data and settings must be the same.
        progress: A function, called with a `stepless.tabular.outcome.Progress` for each contestant on each fold; or
            True for a progress bar.
        name: Name of the data, for reports.
        feature_names: Names of the columns, if X has none.
        metric_options: Options of the metric, such as ``beta=2``.

    Returns:
        A `stepless.Outcome`. ``print`` shows its table and verdict, and ``to_html`` writes a report.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(150, weights=[0.8], random_state=0)
        >>> outcome = compare(X, y, "f1", contestants=["cross_entropy"], folds=3, repeats=1)
        >>> sorted(row["key"] for row in outcome.table)
        ['cross_entropy', 'cross_entropy_tuned']
        >>> outcome.verdict.split(":")[0] in ("yes", "no", "cannot tell")
        True
    """
    start = time.perf_counter()
    table = read_rows(X, feature_names)
    labels, found, target_y = read_labels(y)
    if len(target_y) != table.rows:
        raise ValueError(f"X and y must have as many rows; X has {table.rows} and y {len(target_y)}.")
    table, target_y, weight, group_codes = counted_rows(table, target_y, sample_weight, groups)
    rule = make_rule(
        found, task, target_y, metric, maximize, metric_options, subject_to, average, pos_label, seed, group_codes
    )
    target = rule.encode(target_y)
    folds, repeats = read_counts(folds, repeats, seed, table.rows)
    constraints = parse_constraints(subject_to)
    chosen, left_out = choose_contestants(
        rule.task, constrained=bool(constraints), contestants=contestants, extra=extra, without=without
    )
    asked, folds = folds, count_folds(target, rule.task, folds, group_codes)
    parts = split_rows(target, rule.task, folds, repeats, seed, group_codes)
    columns = describe_columns(table)
    shown = list(labels or ()) or class_names(rule)
    cautions = find_cautions(table, columns, target, rule.task, shown, parts, asked=asked, grouped=groups is not None)
    positive = rule.classes.tolist()[rule.positive] if rule.task == "binary" else None
    aim = Aim(rule.task, metric, rule.options, subject_to, average, positive, seed)
    work = Work(table, target_y, weight, parts, rule, aim, seed)
    versions = _versions()
    store = None
    if folder is not None:
        settings = _settings(rule, positive, folds, repeats, seed)
        run = describe_run(table, target_y, weight, group_codes, settings, versions)
        store = CellFolder(folder, run, resume=resume)
    elif resume:
        raise ValueError("resume=True needs the folder that keeps what is finished: pass folder.")
    keys = [c.key for c in chosen]
    with _shown(progress, len(keys) * folds * repeats) as report:
        cells = run_grid(work, keys, jobs=jobs, backend=backend, address=address, store=store, progress=report)

    resolved = rule.resolved
    sign = 1.0 if resolved.greater_is_better else -1.0
    results = {c.key: Results(c, cells, parts, rule.task) for c in chosen}
    if all(r.failed is not None for r in results.values()):
        said = "; ".join(f"{r.contestant.name}: {str(r.failed).rstrip('.')}" for r in results.values())
        raise ValueError(f"no contestant could be fitted. {said}.")
    base, fewest = results[BASELINE], fewest_rows(target, rule.task, parts)
    rope = choose_rope(resolved, base)
    broken = {key for key, r in results.items() if r.failed is None and r.breaks(constraints, folds)}
    effects = {
        key: r.row_effect(rule, target, weight) if fewest < ENOUGH and r.failed is None else 0.0
        for key, r in results.items()
    }
    entries = [
        r.entry(base, folds, resolved, rope, fewest, max(effects[key], effects[BASELINE])) for key, r in results.items()
    ]
    entries.sort(key=lambda e: (e.failed is not None, e.key in broken, -sign * e.mean, keys.index(e.key)))
    able = [r for r in (results.values() if base.failed is None else ()) if r.failed is None]
    doubts = {r.contestant.key: why for r in able if (why := r.doubt(base, resolved, fewest)) is not None}
    scored = format_metric(resolved.name, metric_options)
    winner, verdict = reach_verdict(entries, BASELINE, rope, scored, rule.task, broken, doubts)
    verdict += _short_of(constraints, next(entry for entry in entries if entry.key == winner))
    if rule.task == "binary":  # without it the figures are ambiguous
        verdict += f" The positive class is {positive!r}, {100 * target.mean():.3g} % of the rows."
    return Outcome(
        metric=resolved.name,
        metric_options=dict(metric_options),
        maximize=resolved.greater_is_better,
        average=average,
        subject_to=" and ".join(map(str, constraints)) or None,
        task=rule.task,
        classes=tuple(rule.classes.tolist()),
        positive=positive,
        labels=labels if labels or rule.task != "multilabel" else tuple(map(str, rule.classes.tolist())),
        columns=columns,
        n_rows=table.rows,
        folds=folds,
        repeats=repeats,
        seed=seed,
        jobs=jobs,
        entries=tuple(entries),
        baseline=BASELINE,
        rope=rope,
        target=target,
        weight=weight,
        winner=winner,
        verdict=verdict,
        warnings=(*cautions, *left_out, *unmet(entries, constraints)),
        seconds=time.perf_counter() - start,
        versions=versions,
        name=name,
        resolved=resolved,
    )


def _short_of(constraints: Sequence[Constraint], shipped: Entry) -> str:
    """Return what to add to a verdict whose recommended model violates a constraint on average."""
    return "".join(
        f" Its {constraint.metric.name} on rows not seen is {format_number(value)}, short of {constraint}."
        for constraint, value in zip(constraints, shipped.constraints, strict=False)  # empty if it failed
        if constraint.violation(value) > 0
    )


def _settings(rule: Rule, positive: Any, folds: int, repeats: int, seed: int) -> dict[str, Any]:
    """Everything that cells depend on, except the data."""
    metric = rule.resolved.name
    if callable(rule.metric):
        metric += " " + fingerprint([written(rule.metric)], [])[:16]
    return {
        "task": rule.task,
        "metric": metric,
        "options": {key: str(value) for key, value in sorted(rule.options.items())},
        "subject_to": [str(c) for c in parse_constraints(rule.subject_to)],
        "average": rule.average,
        "positive": str(positive),
        "folds": folds,
        "repeats": repeats,
        "seed": seed,
    }


def _versions() -> dict[str, str]:
    """Versions of all libraries that contestants may use, so that a resumed run may add contestants."""
    found = library_versions()
    for package in ("scikit-learn", "lightgbm", "imbalanced-learn"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@contextmanager
def _shown(progress: Any, total: int) -> Iterator[Callable[[Progress], object] | None]:
    """Yield what to call for each finished cell: the user's function, a bar's, or None."""
    if progress is None or progress is False:
        yield None
        return
    if progress is not True:
        if not callable(progress):
            raise TypeError(f"progress must be a function, True or None; got {type(progress).__name__}.")
        yield progress
        return
    with progress_bar(total, "comparing") as move:
        yield lambda step: move(step.done, f"comparing: {CONTESTANTS[step.key].name}")
