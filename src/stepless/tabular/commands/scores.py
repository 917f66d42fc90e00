"""`stepless tune`, the best threshold for the scores of any model, and `stepless metrics`, the list of metrics."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.cuts.tuning import Tuning
from stepless.formula import resolve, with_costs_of_decisions
from stepless.metrics import METRICS
from stepless.ranking import RANKINGS
from stepless.rules import positive_class
from stepless.scoring import score as score_hard
from stepless.tabular.commands.asked import Asked
from stepless.tabular.commands.console import answers, as_json, grid, note, say
from stepless.tabular.commands.problems import (
    classes_of,
    odd_cell,
    parts,
    positive_of,
    sorted_classes,
    weights_of,
    yes_no_of,
)
from stepless.tabular.outcome import format_cut, format_number, format_range
from stepless.tabular.tables.files import Source, TableError
from stepless.tabular.tables.reading import Loaded, load_table
from stepless.thresholds import tune_threshold

Array = NDArray[Any]


def run_tune(asked: Asked, score: str, *, inputs: str | None, resamples: int, json_too: bool) -> None:
    """Find the best threshold for the scores in a table, and its interval."""
    asked.check()
    source = Source(asked.file, delimiter=asked.delimiter, encoding=asked.encoding)
    truth = [asked.target, *parts(asked.target)]
    needed = [*truth, score, *parts(score), *([] if asked.weight is None else [asked.weight])]
    table = load_table(source, as_text=truth, needed=needed)
    columns = _named(table, score, "of scores")
    targets = _named(table, asked.target, "for the target")
    if set(targets) & set(columns):
        raise TableError(
            f"{table.file}: the target cannot be a column of scores as well; got {asked.target!r} for both."
        )
    scores = np.stack([_scores(table, name) for name in columns], 1)
    classes: list[Any]
    weight = None if asked.weight is None else weights_of(table, asked.weight)
    metric = resolve(asked.metric, maximize=False if asked.minimize else None, **asked.metric_options)
    if len(targets) > 1:
        if len(columns) != len(targets):
            raise TableError(f"{len(targets)} targets need as many columns of scores; --score names {len(columns)}.")
        task, target, classes = "multilabel", np.stack([yes_no_of(table, name) for name in targets], 1), targets
    elif len(columns) > 1:
        labels = classes_of(table, targets[0])
        task, classes = "multiclass", _in_order(table, labels, columns)
        places = {label: place for place, label in enumerate(classes)}
        target = np.array([places[label] for label in labels.tolist()])
    else:
        labels = classes_of(table, targets[0])
        found = np.unique(labels)
        if len(found) > 2:
            raise TableError(
                f"{table.file}, column {targets[0]!r} has {len(found)} classes; --score then names one column for each."
            )
        named = positive_of(table, targets[0], labels, asked.positive)
        place = positive_class(found, labels, named, weight)
        yes = found[place]
        metric = with_costs_of_decisions(metric, place)
        task, classes = "binary", [yes.item() if hasattr(yes, "item") else yes]
        target, scores = labels == yes, scores[:, 0]
    if asked.positive is not None and task != "binary":
        raise TableError(f"--positive is for two classes; this is a {task} table.")
    given = inputs or ("probabilities" if task == "multiclass" else "scores")
    tuned = tune_threshold(
        scores, target.astype(np.int64), metric, asked.subject_to, weight, task=task, average=asked.average,
        inputs=given, random_state=asked.seed,
    )  # fmt: skip
    interval = tuned.interval(resamples, random_state=asked.seed) if resamples else None
    cautions = _turned(scores, target == 1, classes[0], found) if task == "binary" else []
    _answer(tuned, interval, asked, task, classes, cautions, json_too=json_too)


def _turned(scores: Array, positive: Array, name: Any, classes: Array) -> list[str]:
    """Return a caution if the positives have the lower scores, which probably belong to the other class."""
    area = score_hard(scores, positive, "auroc").item()
    if area >= 0.5:
        return []
    other = next(label for label in classes.tolist() if label != name)
    return [
        f"rows of class {name!r} have the lower scores (area under the ROC curve {area:.3f}); if the scores are for"
        f" {other!r}, say --positive {other}."
    ]


def _named(table: Loaded, text: str, what: str) -> list[str]:
    names = [text] if text in table.columns else parts(text)
    for name in names or [text]:
        table.column(name, what)
    return names


def _scores(table: Loaded, name: str) -> Array:
    values = table.columns[name]
    if values.dtype == object:
        raise TableError(f"{table.file}, column {name!r} holds text; scores are numbers.{odd_cell(table, name)}")
    missing = np.isnan(values)
    if missing.any():
        row = int(np.flatnonzero(missing)[0]) + 1
        raise TableError(f"{table.file}, row {row}, column {name!r} has no score. Leave out such rows.")
    return values


def _in_order(table: Loaded, labels: Array, columns: list[str]) -> list[Any]:
    """Return the classes in the order of the columns of scores, whose names may contain them; otherwise sorted."""
    found = sorted_classes(labels)
    by_text = {str(label): label for label in found}
    first = str(found[0])
    # the text around the first class in a column's name may be around every class; the shortest is tried first
    around = {(name[: m.start()], name[m.end() :]) for name in columns for m in re.finditer(re.escape(first), name)}
    for before, after in sorted(around, key=lambda pair: (len("".join(pair)), pair)):
        if all(name.startswith(before) and name.removeprefix(before).endswith(after) for name in columns):
            names = [name.removeprefix(before).removesuffix(after) for name in columns]
            if set(by_text) <= set(names):
                return [by_text.get(name, name) for name in names]
    if len(found) == len(columns):
        taken = ", ".join(f"{name!r} for {str(label)!r}" for name, label in zip(columns, found, strict=True))
        note(
            f"the names of the columns of scores do not hold the classes, which are taken in sorted order: {taken}."
            f" If that is wrong, name the columns in another order, or call them as the classes, as in p_{first}."
        )
        return found
    raise TableError(
        f"{table.file}: the target has {len(found)} classes, and --score names {len(columns)} columns. Name one for"
        " each class, in sorted order, or call the columns as the classes, with the same text around each."
    )


def _answer(
    tuned: Tuning, interval: Any, asked: Asked, task: str, classes: list[Any], cautions: list[str], *, json_too: bool
) -> None:
    thresholds = [tuned.threshold] if task == "binary" else list(tuned.threshold)
    counts = {
        name: np.asarray(cell).tolist() for name, cell in zip(("tp", "fp", "fn", "tn"), tuned.counts, strict=True)
    }
    if json_too:
        held = {
            "metric": asked.metric, "subject_to": asked.subject_to, "task": task, "classes": classes,
            "threshold": tuned.threshold, "score": tuned.score, "counts": counts,
            "threshold_interval": None if interval is None else interval.threshold,
            "score_interval": None if interval is None else interval.score, "warnings": cautions,
        }  # fmt: skip
        print(as_json(held))
        return
    between = [None] * len(thresholds)
    if interval is not None:
        between = [interval.threshold] if task == "binary" else list(interval.threshold)
    what = {"binary": "yes where the score is at least", "multilabel": "threshold", "multiclass": "offset"}[task]
    rows = [
        (
            str(name), format_cut(cut, 4), "" if pair is None else " to ".join(format_cut(end, 4) for end in pair),
            *(f"{np.atleast_1d(cell)[place]:g}" for cell in counts.values()),
        )
        for place, (name, cut, pair) in enumerate(zip(classes, thresholds, between, strict=True))
    ]  # fmt: skip
    answers().print(grid(("class", what, "95 % interval", "tp", "fp", "fn", "tn"), rows, right=(1, 3, 4, 5, 6)))
    sure = "" if interval is None else f" (95 % interval {format_range(interval.score, 4)})"
    held_to = f", subject to {asked.subject_to}" if asked.subject_to else ""
    say("")
    say(f"{asked.metric} {format_number(tuned.score, 4)}{sure}{held_to}, on the scores that it was tuned on.")
    for caution in cautions:
        say(f"Caution: {caution}")
    if task == "multiclass":
        say("Subtract the offsets from the logarithms of the probabilities; the largest decides.")


def run_metrics(name: str | None, *, json_too: bool) -> None:
    """List the metrics, or describe one."""
    if name is not None:
        known = METRICS if name in METRICS or name not in RANKINGS else RANKINGS
        if name not in known:
            raise ValueError(METRICS.unknown(name))
        shown: dict[str, Any] = {known[name].name: known[name]}
    else:
        shown = {**METRICS, **RANKINGS}
    entries = [_entry(thing) for thing in shown.values()]
    if json_too:
        print(as_json(entries if name is None else entries[0]))
        return
    if name is not None:
        say("\n".join(f"{key}: {_text(value)}" for key, value in entries[0].items() if value not in ("", [], {})))
        return
    rows = [
        (e["name"], "more" if e["more_is_better"] else "less", e["formula"], ", ".join(e["aliases"])) for e in entries
    ]
    count = len(METRICS)
    heads = ("metric", "better", "what it is", "other names")
    answers().print(grid(heads, rows[:count], title="Metrics of decisions"))
    answers().print()
    answers().print(
        grid(heads, rows[count:], title="Metrics of the ranking: for stepless.MetricLoss, not for decisions")
    )
    say(
        '\nA formula of your own goes wherever a name does, as in --metric "2*tp / (2*tp + fp + fn)"; add --minimize'
        " where less is better."
    )


def _entry(thing: Any) -> dict[str, Any]:
    registry = METRICS if thing.name in METRICS else RANKINGS
    return {
        "name": thing.name,
        "formula": thing.summary.replace("``", ""),
        "more_is_better": getattr(thing, "greater_is_better", True),
        "of": {"class": "one class", "joint": "all classes", "matrix": "the whole matrix"}.get(
            getattr(thing, "kind", ""), "the ranking of scores; for losses, not for decisions"
        ),
        "options": {k: "required" if v is inspect.Parameter.empty else v for k, v in thing.defaults.items()},
        "aliases": [alias for alias, stands_for in registry.aliases.items() if stands_for == thing.name],
        "source": thing.source,
    }


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={part}" for key, part in value.items())
    return (
        ", ".join(value) if isinstance(value, list) else "yes" if value is True else "no" if value is False else value
    )
