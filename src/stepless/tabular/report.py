"""The report of a comparison: one self-contained HTML file that needs no network.

Names from the data (columns, classes) are always text: they are escaped in HTML, and JSON inside the page contains no
``<``. Scripts run only if their hash is in the page's content security policy.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from html import escape
from importlib.resources import files
from string import Template

import numpy as np

from stepless.tabular.outcome import (
    Entry,
    Outcome,
    clip,
    difference_word,
    format_number,
    format_range,
    format_threshold,
    score_digits,
)
from stepless.tabular.page.figures import class_names, metric_name, page_data, short, shown
from stepless.tabular.page.formulas import PRELUDE
from stepless.tabular.whole_files import write_whole

_MOST_COLUMNS = 200
_MOST_WARNINGS = 30
_LONGEST_TEXT = 1000
_COLOURS = 8  # k0 to k7 in style.css
_NUMERIC, _NUMBER = {1, 2, 3, 5, 6}, " class=number"  # columns of the table of contestants


def write_report(outcome: Outcome, path: str | os.PathLike[str]) -> None:
    """Write the report of a comparison to a file.

    Args:
        outcome: The result of `stepless.compare`.
        path: The file. An existing one is replaced in one step.
    """
    write_whole(path, render_report(outcome))


def render_report(outcome: Outcome) -> str:
    """Return the report as text.

    Args:
        outcome: The result of `stepless.compare`.
    """
    data = page_data(outcome)
    scripts = {
        "library": f"/*\n{_page('uplot-licence.txt')}\n*/\n{_page('uplot.js')}",  # the licence travels with the code
        "formulas": f'"use strict";{PRELUDE}\nconst FORMULAS = {data.formulas};',
        "charts": _page("charts.js"),
        "explorer": _page("explorer.js"),
    }
    style = _page("uplot.css") + _page("style.css")
    hashes = " ".join(map(_hash, scripts.values()))
    name = short(outcome.name)
    return Template(_page("template.html")).substitute(
        policy=f"default-src 'none'; script-src {hashes}; style-src {_hash(style)}; img-src data:",
        title=escape(f"{name}: {metric_name(outcome)}"),
        style=style,
        name=escape(name),
        facts=escape(_facts(outcome)),
        verdict=_verdict(outcome.verdict),
        tiles=_tiles(outcome),
        warnings=_warnings(outcome),
        comparison_note=escape(_comparison_note(outcome)),
        table=_table(outcome),
        columns=_columns(outcome),
        settings=_settings(outcome),
        data=embedded(data.held),
        **scripts,
    )


def embedded(held: object) -> str:
    r"""Return JSON for a script element, which no text in it can end.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    text = json.dumps(held, allow_nan=False, separators=(",", ":"))  # ASCII alone, so no line separator either
    return text.replace("<", "\\u003c")


def _page(name: str) -> str:
    return files("stepless.tabular.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---------------------------------------------------------------------------------------------------------------------
# The parts without a script
# ---------------------------------------------------------------------------------------------------------------------


def _seconds(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 100 else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"


def _verdict(text: str) -> str:
    """The verdict as HTML, with its answer (yes, no, cannot tell) emphasised."""
    text = clip(text[:1].upper() + text[1:], _LONGEST_TEXT)
    answer, colon, reason = text.partition(": ")
    if not colon or len(answer) > 40:
        return f"<strong>{escape(text)}</strong>"
    return f"<strong>{escape(answer)}:</strong> {escape(reason)}"


def _facts(outcome: Outcome) -> str:
    names = class_names(outcome)
    target = outcome.target
    if outcome.task == "binary":
        what = f"positive: {names[1]} ({100 * np.mean(target):.1f} % of the rows) against {names[0]}"
    else:
        what = f"{len(names)} {'labels' if outcome.task == 'multilabel' else 'classes'}"
    average = f", average {outcome.average}" if outcome.average else ""
    bound = (outcome.subject_to or "").replace(">=", "≥").replace("<=", "≤")
    under = f", subject to {bound}" if bound else ""
    rows = f"{outcome.n_rows:,} rows, {len(outcome.columns):,} columns"
    return f"{metric_name(outcome)}{average}{under} · {rows} · {what}"


def _tile(title: str, value: str, more: str = "") -> str:
    small = f"<small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{escape(title)}</dt><dd>{escape(value)}{small}</dd></div>"


def _tiles(outcome: Outcome) -> str:
    entries = {entry.key: entry for entry in outcome.entries if entry.failed is None}
    winner, baseline = entries.get(outcome.winner), entries.get(outcome.baseline)
    metric, tiles, digits = metric_name(outcome), [], score_digits(outcome.rope)
    for entry in dict.fromkeys(entry for entry in (winner, baseline) if entry is not None):
        interval = format_range(entry.interval, digits)
        tiles.append(_tile(f"{metric}, {entry.name}", format_number(entry.mean, digits), interval))
    gap = None if winner is None else winner.difference
    if gap is not None:
        parts = ((gap.better, "better"), (gap.same, "same"), (gap.worse, "worse"))
        odds = ", ".join(f"{format_number(100 * share, 0)} % {word}" for share, word in parts)
        tiles.append(_tile(difference_word(outcome), format_number(gap.mean, digits, sign=True), odds))
    if winner is not None and winner.threshold is not None:
        kind = {"binary": "threshold", "multilabel": "thresholds", "multiclass": "class offsets"}[outcome.task]
        tiles.append(_tile(f"{kind} to ship", format_threshold(winner.threshold, 3), "median over the folds"))
    return "".join(tiles)


def _warnings(outcome: Outcome) -> str:
    if not outcome.warnings:
        return ""
    texts = list(outcome.warnings[:_MOST_WARNINGS])
    if len(outcome.warnings) > len(texts):
        texts.append(f"and {len(outcome.warnings) - len(texts)} more")
    lines = "".join(f"<li><b>Caution:</b> {escape(clip(text, _LONGEST_TEXT))}</li>" for text in texts)
    return f'<ul class="cautions" aria-label="Warnings">{lines}</ul>'


def _comparison_note(outcome: Outcome) -> str:
    times = f"{outcome.folds} folds" + (f", repeated {outcome.repeats} times" if outcome.repeats > 1 else "")
    direction = "" if outcome.maximize else " Less is better; a positive gain is an improvement."
    return (
        f"Mean over {times}, with its 95 % interval; each small dot is a fold. Two contestants count as the same within"
        f" {outcome.rope:.2g} (Bayesian correlated t-test).{direction}"
    )


def _table(outcome: Outcome) -> str:
    metric = escape(metric_name(outcome))
    kind = "offsets" if outcome.task == "multiclass" else "threshold"
    heads = (
        "contestant",
        metric,
        "95 % interval",
        difference_word(outcome),
        "better / same / worse",
        kind,
        "fit of a fold",
    )
    head = "".join(f'<th scope="col"{_NUMBER if i in _NUMERIC else ""}>{title}</th>' for i, title in enumerate(heads))
    colours = {entry.key: i for i, entry in enumerate(shown(outcome))}
    rows = "".join(_row(outcome, entry, i, colours.get(entry.key), heads) for i, entry in enumerate(outcome.entries))
    return f'<table class="contest"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _row(outcome: Outcome, entry: Entry, rank: int, colour: int | None, heads: tuple[str, ...]) -> str:
    tags = [tag for tag, key in (("winner", outcome.winner), ("baseline", outcome.baseline)) if entry.key == key]
    dot = "" if colour is None else f" k{colour % _COLOURS}"
    tag = f' <span class="tag">{", ".join(tags)}</span>' if tags else ""
    name = (
        f'<th scope="row"><span class="name"><span class="rank">{rank + 1}</span>'
        f'<span class="swatch{dot}" aria-hidden="true"></span><span>{escape(short(entry.name))}{tag}</span></span></th>'
    )
    if entry.failed is not None:
        return f'<tr class="failed">{name}<td colspan="6">failed: {escape(clip(entry.failed, _LONGEST_TEXT))}</td></tr>'
    gap, digits = entry.difference, score_digits(outcome.rope)
    cells = (
        format_number(entry.mean, max(4, digits)),
        format_range(entry.interval, digits),
        "–" if gap is None else format_number(gap.mean, digits, sign=True),
        "–" if gap is None else _odds(gap.better, gap.same, gap.worse),
        escape(format_threshold(entry.threshold, 3)) or "–",
        _seconds(entry.fit_seconds),
    )
    columns = "".join(
        f'<td{_NUMBER if i in _NUMERIC else ""} data-title="{heads[i]}">{cell}</td>' for i, cell in enumerate(cells, 1)
    )
    return f"<tr{' class=winner' if 'winner' in tags else ''}>{name}{columns}</tr>"


def _odds(better: float, same: float, worse: float) -> str:
    shares = [max(0.0, 100 * share) if math.isfinite(share) else 0.0 for share in (better, same, worse)]
    starts = (0.0, shares[0], shares[0] + shares[1])
    bars = "".join(
        f'<rect class="{kind}" x="{start:.1f}" width="{share:.1f}" height="8"/>'
        for kind, start, share in zip(("better", "same", "worse"), starts, shares, strict=True)
    )
    text = " / ".join(f"{share:.0f}" for share in shares)
    svg = f'<svg class="odds" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'
    return f'{svg}<span class="odds-text">{text} %</span>'


def _columns(outcome: Outcome) -> str:
    if not outcome.columns:
        return '<p class="note">No columns were recorded.</p>'
    listed = outcome.columns[:_MOST_COLUMNS]
    rows = "".join(
        f'<tr><th scope="row">{escape(short(c.name))}</th><td>{escape(short(c.kind))}</td>'
        f'<td class="number">{c.missing:,}</td><td class="number">{c.distinct:,}</td></tr>'
        for c in listed
    )
    head = (
        '<thead><tr><th scope="col">column</th><th scope="col">read as</th><th scope="col" class="number">missing</th>'
        '<th scope="col" class="number">distinct</th></tr></thead>'
    )
    rest = len(outcome.columns) - len(listed)
    more = f'<p class="note">And {rest:,} more columns.</p>' if rest else ""
    table = f"<table>{head}<tbody>{rows}</tbody></table>{more}"
    if len(listed) <= 25:
        return table
    return f"<details><summary>{len(outcome.columns):,} columns</summary>{table}</details>"


def _settings(outcome: Outcome) -> str:
    facts = {
        "metric": f"{metric_name(outcome)}, {'more' if outcome.maximize else 'less'} is better",
        "average": outcome.average or ("" if outcome.task == "binary" else "the metric's default"),
        "subject to": outcome.subject_to or "",
        "task": outcome.task,
        "classes": ", ".join(class_names(outcome)[:50]),
        "folds": str(outcome.folds),
        "repeats": str(outcome.repeats),
        "seed": str(outcome.seed),
        "weights": "" if outcome.weight is None else "one per row",
        "same within": f"{outcome.rope:.2g}",
        "contestants": ", ".join(entry.key for entry in outcome.entries),
        "jobs": str(outcome.jobs),
        "time": _seconds(outcome.seconds),
        "versions": ", ".join(f"{name} {version}" for name, version in outcome.versions.items()),
    }
    return "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(clip(text, _LONGEST_TEXT))}</dd>" for name, text in facts.items() if text
    )
