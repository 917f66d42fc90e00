"""The pictures of the contest's page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from page import CLAIMED, halved, picture_name
from summary import TUNED_NET, Record, Standing, standing

_OURS, _OTHERS, _LINE = "#b5402a", "#333333", "#999999"


def draw(records: Sequence[Record], folder: Path) -> None:
    """Write the pictures of every metric that is finished on two sets or more."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "stepless"  # the same results give the same file
    for metric in CLAIMED:
        found = standing(halved(records), metric)
        if found is not None and len(found.records) > 1:
            for kind, make in (("ranks", ranks), ("wins", wins), ("gain", gain)):
                figure = make(found)
                path = folder / f"{kind}_{picture_name(metric)}.svg"
                figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def _colour(name: str) -> str:
    return _OURS if name.startswith("Metric") else _OTHERS


def ranks(found: Standing) -> Figure:
    """A critical-difference diagram: contestants at their mean ranks, bars over those that are not told apart."""
    mean = sorted(found.ranks().items(), key=lambda pair: pair[1])
    width = found.critical_difference()
    half = (len(mean) + 1) // 2  # the better half is named on the left, the other on the right
    figure = Figure((8, 0.3 * half + 1.5))
    axes = figure.add_subplot()
    axes.set(xlim=(1, len(mean)), ylim=(-half - 0.5, 3), xlabel=f"mean rank ({found.metric}; 1 is the best)")
    for place, (name, rank) in enumerate(mean):
        depth, left = -(place + 1 if place < half else len(mean) - place), place < half
        axes.plot([rank, rank], [0, depth], color=_colour(name), linewidth=0.7)
        side = {"x": rank - 0.1, "ha": "right"} if left else {"x": rank + 0.1, "ha": "left"}
        axes.text(y=depth, s=f"{name} {rank:.2f}", color=_colour(name), va="center", fontsize=8, **side)
    values, height, reached = [rank for _, rank in mean], 0.3, -1
    for i, low in enumerate(values):
        last = max(j for j, rank in enumerate(values) if rank - low <= width)
        if last > max(i, reached):
            axes.plot([low, values[last]], [height, height], color=_LINE, linewidth=2.5, solid_capstyle="butt")
            height, reached = height + 0.4, last
    axes.set_title(f"critical difference {width:.2f}, {len(found.records)} sets", fontsize=9)
    axes.set_yticks([])
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    return figure


def wins(found: Standing) -> Figure:
    """How often the row's contestant beats the column's, less how often it loses."""
    names = sorted(found.names, key=lambda name: found.ranks()[name])
    duels = [[found.duel(one, other) for other in names] for one in names]
    balance = np.array([[duel.wins - duel.losses for duel in row] for row in duels])
    figure = Figure((0.52 * len(names) + 2, 0.4 * len(names) + 2))
    axes = figure.add_subplot()
    top = max(1, len(found.records))
    axes.imshow(balance, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto")
    for i, row in enumerate(duels):
        for j, duel in enumerate(row):
            if i != j:
                axes.text(j, i, str(duel), ha="center", va="center", fontsize=6)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_title(f"{found.metric}: wins/ties/losses of the row against the column", fontsize=9)
    return figure


def gain(found: Standing) -> Figure:
    """What MetricClassifier and MetricBooster gain over tuned cross-entropy, set by set."""
    figure = Figure((9, 3.4))
    sides = figure.subplots(1, 2, sharey=True)
    for axes, key, label in zip(sides, ("rarest", "rows"), ("share of the rarer class", "rows"), strict=True):
        place = [record[key] for record in found.records]
        for name, marker in (("MetricClassifier", "o"), ("MetricBooster", "^")):
            if name in found.names:
                axes.scatter(place, found.of(name) - found.of(TUNED_NET), s=16, marker=marker, label=name, alpha=0.8)
        axes.axhline(0, color=_LINE, linewidth=0.8)
        axes.set(xscale="log", xlabel=label)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.tick_params(axis="x", labelsize=8)
        axes.xaxis.set_minor_formatter(NullFormatter())  # it would write its numbers over the others
    sides[0].set_ylabel(f"{found.metric} − that of {TUNED_NET}", fontsize=8)
    sides[0].legend(fontsize=8)
    return figure
