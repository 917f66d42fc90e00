"""The figures of the report as files for papers and slides, drawn with matplotlib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stepless.curves import metric_curve, precision_recall, roc
from stepless.cuts.sweep import score_counts
from stepless.extras import needs
from stepless.metrics import METRICS
from stepless.plots import plot_metric, plot_precision_recall, plot_roc
from stepless.tabular.outcome import Entry, Outcome
from stepless.tabular.page.figures import (
    chosen_metric,
    class_names,
    counts_at,
    curve_units,
    metric_name,
    short,
    shown,
    unit_scores,
    unit_target,
)
from stepless.tabular.page.reliability import reliability

with needs("Outcome.plots needs matplotlib", "plots", "matplotlib"):
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
_GUIDE: dict[str, Any] = {"color": "0.75", "linewidth": 1.0, "zorder": 0}
_COLOURS = ("#1f5fae", "#cf5b1b", "#2c8253", "#8550a8", "#b8384f", "#11809a", "#93751a", "#66707c")


def draw(outcome: Outcome, folder: str | os.PathLike[str], formats: Iterable[str] = ("png", "svg")) -> list[Path]:
    """Draw intervals, ROC, precision–recall, the metric by threshold and calibration into files.

    Args:
        outcome: The result of `stepless.compare`.
        folder: The folder for the files; created if it does not exist.
        formats: ``"png"``, ``"svg"`` or ``"pdf"``.

    Returns:
        The paths of the files.
    """
    formats = tuple(formats)
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"formats must be among {', '.join(map(repr, FORMATS))}; got {name!r}.")
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = []
    for name, make in _figures(outcome).items():
        # names come from the data, so a dollar sign in one does not start a formula
        with plt.rc_context({"text.parse_math": False, "svg.hashsalt": "stepless", "font.size": 9.0}):
            figure = make(outcome)
            for kind in formats:
                path = Path(folder) / f"{name}.{kind}"
                figure.savefig(path, dpi=200, metadata={"Date": None} if kind == "svg" else None)
                files.append(path)
            plt.close(figure)
    return files


def _figures(outcome: Outcome) -> dict[str, Callable[[Outcome], Any]]:
    made: dict[str, Callable[[Outcome], Any]] = {"comparison": _intervals}
    if shown(outcome) and _units(outcome):
        made |= {"roc": _roc, "precision_recall": _precision_recall, "calibration": _calibration}
        if outcome.task != "multiclass" and chosen_metric(outcome) is not None:
            made["metric_by_threshold"] = _metric
    return made


def _intervals(outcome: Outcome) -> Any:
    entries = [e for e in outcome.entries if e.failed is None][::-1]
    figure, ax = plt.subplots(figsize=(6.4, 1.0 + 0.38 * max(len(entries), 1)), layout="constrained")
    for place, entry in enumerate(entries):
        colour = _colour(outcome, entry)
        ax.plot(entry.interval, [place, place], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
        ax.plot(entry.scores, [place] * len(entry.scores), ".", color="0.4", markersize=3)
        ax.plot([entry.mean], [place], "o", color=colour, markersize=7)
    ax.set_yticks(range(len(entries)), [short(entry.name) for entry in entries])
    ax.set(xlabel=metric_name(outcome), ylim=(-0.6, len(entries) - 0.4))
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _roc(outcome: Outcome) -> Any:
    def each(ax: Axes, entry: Entry, unit: int, line: dict[str, Any]) -> None:
        curve = roc(unit_scores(entry.probabilities, unit), unit_target(outcome, unit), outcome.weight)
        plot_roc(curve, ax, **{**line, "label": _label(outcome, entry, curve.area)})

    return _panels(outcome, each)


def _precision_recall(outcome: Outcome) -> Any:
    def each(ax: Axes, entry: Entry, unit: int, line: dict[str, Any]) -> None:
        curve = precision_recall(unit_scores(entry.probabilities, unit), unit_target(outcome, unit), outcome.weight)
        plot_precision_recall(curve, ax, **{**line, "label": _label(outcome, entry, curve.average_precision)})

    return _panels(outcome, each)


def _metric(outcome: Outcome) -> Any:
    metric = chosen_metric(outcome) or METRICS["f1"]

    def each(ax: Axes, entry: Entry, unit: int, line: dict[str, Any]) -> None:
        scores, target = unit_scores(entry.probabilities, unit), unit_target(outcome, unit)
        curve = metric_curve(scores, target, metric, outcome.weight)
        plot_metric(curve, ax, **{**line, "label": short(entry.name)})
        place = 0 if outcome.task == "binary" else unit
        cut = entry.threshold[place] if isinstance(entry.threshold, tuple) else entry.threshold
        if cut is not None and np.isfinite(cut):
            cells = counts_at(scores, target, outcome.weight, np.array([cut]))
            ax.plot([cut], score_counts(metric, cells), "o", color=line["color"], markersize=5)

    return _panels(outcome, each)


def _calibration(outcome: Outcome) -> Any:
    def each(ax: Axes, entry: Entry, unit: int, line: dict[str, Any]) -> None:
        target = unit_target(outcome, unit)
        ax.plot([0, 1], [0, 1], **_GUIDE)
        after = reliability(unit_scores(entry.probabilities, unit), target, outcome.weight)
        ax.plot(after.predicted, after.observed, **{**line, "linestyle": "-"}, marker=".", label=short(entry.name))
        if entry.raw is not None:
            before = reliability(unit_scores(entry.raw, unit), target, outcome.weight)
            ax.plot(before.predicted, before.observed, color=line["color"], linestyle=":", linewidth=1.0)
        ax.set(xlabel="predicted (dotted: before calibration)", ylabel="observed share", xlim=(0, 1), ylim=(0, 1))
        ax.set_aspect("equal")
        ax.spines[["top", "right"]].set_visible(False)

    return _panels(outcome, each)


def _panels(outcome: Outcome, each: Callable[[Axes, Entry, int, dict[str, Any]], None]) -> Any:
    """One panel per class or label, with one line per contestant, and one legend for all panels."""
    units = _units(outcome)
    wide = min(len(units), 3)
    tall = -(-len(units) // wide)
    figure, axes = plt.subplots(
        tall, wide, figsize=(3.6 * wide + 3.0 * (wide == 1), 3.5 * tall), layout="constrained", squeeze=False
    )
    names = class_names(outcome)
    for ax, unit in zip(axes.flat, units, strict=False):
        for entry in shown(outcome):
            strong = entry.key in (outcome.baseline, outcome.winner)
            dashed = "--" if entry.key == outcome.baseline else "-"
            line = {"color": _colour(outcome, entry), "linewidth": 1.8 if strong else 1.1, "linestyle": dashed}
            each(ax, entry, unit, line)
        if ax.get_legend() is not None:
            ax.get_legend().remove()
        if outcome.task != "binary":
            ax.set_title(names[unit], fontsize=9)
    for ax in axes.flat[len(units) :]:
        ax.set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    style: dict[str, Any] = {"loc": "outside right center"}
    if wide > 1:
        style = {"loc": "outside lower center", "ncols": min(wide, len(labels))}
    figure.legend(handles, labels, frameon=False, fontsize=7.5, **style)
    return figure


def _units(outcome: Outcome) -> list[int]:
    """The classes or labels that have curves, except those that all rows or none have."""
    return [unit for unit in curve_units(outcome) if 0 < unit_target(outcome, unit).mean() < 1]


def _label(outcome: Outcome, entry: Entry, area: float) -> str:
    """The name, and the area if there is a single panel."""
    return short(entry.name) if len(_units(outcome)) > 1 else f"{short(entry.name)}, {area:.3f}"


def _colour(outcome: Outcome, entry: Entry) -> str:
    """The colour of a contestant, the same in every figure and in the report."""
    keys = [e.key for e in shown(outcome)]
    return _COLOURS[keys.index(entry.key) % len(_COLOURS)] if entry.key in keys else "0.5"
