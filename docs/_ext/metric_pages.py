"""The directive `metric-list`: an entry for every metric of a kind, generated from the registries."""

from __future__ import annotations

import html
import inspect
import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from metric_facts import (
    at_nothing,
    gradient_notes,
    ranking_at_nothing,
    ranking_gradient_notes,
    ranking_range,
    value_range,
)
from printed_formulas import printed
from sphinx.application import Sphinx

import stepless as sl
from stepless.ranking import Ranking
from stepless.registry import Metric

KINDS = ("class", "joint", "matrix", "ranking")
#: Values for the options of rankings that have no default.
NEEDED = {"max_fpr": 0.1, "precision": 0.9, "k": 2}

#: Options that move a metric's range.
FREE = {"threshold_probability", "costs"}


class MetricList(Directive):
    """Entries of the metrics of one kind."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A section each."""
        kind = self.arguments[0]
        if kind not in KINDS:
            raise self.error(f"metric-list takes one of {', '.join(KINDS)}; got {kind!r}.")
        if kind == "ranking":
            return [_section(self.state.document, r.name, _ranking(r)) for r in sl.RANKINGS.values()]
        found = [metric for metric in sl.METRICS.values() if metric.kind == kind]
        return [_section(self.state.document, metric.name, _metric(metric)) for metric in found]


def _section(document: nodes.document, name: str, parts: list[nodes.Node]) -> nodes.section:
    section = nodes.section(names=[name], classes=["metric"])
    section += nodes.title("", "", nodes.literal("", name))
    document.note_implicit_target(section)
    section["ids"] = [f"metric-{name.replace('_', '-')}"]
    section += parts
    return section


def _metric(metric: Metric) -> list[nodes.Node]:
    term = printed(metric)
    low, high = value_range(metric)
    better = "higher is better" if metric.greater_is_better else "lower is better"
    zero = at_nothing(metric)
    if "zero_division" in metric.defaults:
        zero += " zero_division= sets another value."
    rows = [
        ("range", f"{low} to {high}{' at the default options' if set(metric.defaults) & FREE else ''}; {better}"),
        ("at 0/0", zero),
        ("gradient", " ".join(gradient_notes(metric))),
        ("options", _options({k: v for k, v in metric.defaults.items() if k != "zero_division"})),
        ("other names", _aliases(sl.METRICS.aliases, metric.name)),
        ("source", metric.source),
    ]
    formula = [nodes.raw("", term.mathml(), format="html")] if term is not None else []
    return [_sentence(inspect.getdoc(metric.function) or "", formula=term is not None), *formula, _facts(rows)]


def _ranking(ranking: Ranking) -> list[nodes.Node]:
    needed = {name: value for name, value in NEEDED.items() if name in ranking.defaults}
    low, high = ranking_range(ranking.name, **needed)
    at = "".join(f", at `{name}={value}`" for name, value in needed.items())
    loss = (inspect.getdoc(ranking.surrogate) or "").split("\n\n")
    rows = [
        ("range", f"{low} to {high}{at}; higher is better"),
        ("at 0/0", ranking_at_nothing(ranking.name, **needed)),
        ("gradient", " ".join(ranking_gradient_notes(ranking.name, **needed)).strip()),
        ("options", _options(ranking.defaults)),
        ("other names", _aliases(sl.RANKINGS.aliases, ranking.name)),
        ("source", ranking.source),
    ]
    parts: list[nodes.Node] = [_sentence(inspect.getdoc(ranking.exact) or "", formula=False), _facts(rows)]
    parts.append(nodes.paragraph("", "", nodes.strong("", "The loss. "), *_inline(loss[0])))
    return [*parts, *(nodes.paragraph("", "", *_inline(paragraph)) for paragraph in loss[1:])]


def _sentence(text: str, *, formula: bool) -> nodes.paragraph:
    text = text.partition("\n\n")[0] if not formula else _without_formula(text)
    return nodes.paragraph("", "", *_inline(text))


def _without_formula(text: str) -> str:
    """Drop the formula that follows the first sentence's colon, and keep the rest."""
    first, _, rest = text.partition("\n\n")
    before, colon, formula = first.partition(":")
    kept = f"{before}." if colon and re.search(r"\b(tp|fp|fn|tn)\b", formula) else first
    return f"{kept} {rest}".strip()


def _facts(rows: list[tuple[str, str]]) -> nodes.Node:
    shown = "".join(f"<dt>{head}</dt><dd>{_code(text)}</dd>" for head, text in rows if text)
    return nodes.raw("", f'<dl class="facts">{shown}</dl>', format="html")


def _code(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = escaped.replace("zero_division=", "<code>zero_division=</code>")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)


def _options(defaults: dict[str, Any]) -> str:
    def shown(name: str, default: Any) -> str:
        return f"`{name}`" if default is inspect.Parameter.empty else f"`{name}={default!r}`"

    return ", ".join(shown(*pair) for pair in defaults.items())


def _aliases(aliases: Any, name: str) -> str:
    return ", ".join(f"`{alias}`" for alias, stands_for in aliases.items() if stands_for == name)


def _inline(text: str) -> list[nodes.Node]:
    pieces = re.split(r"``([^`]+)``|`([^`]+)`", " ".join(text.split()))
    found: list[nodes.Node] = []
    for place in range(0, len(pieces), 3):
        found.append(nodes.Text(pieces[place]))
        code = [piece for piece in pieces[place + 1 : place + 3] if piece]
        found += [nodes.literal("", code[0])] if code else []
    return found


class MetricTable(Directive):
    """All names at a glance, each a link to its entry."""

    def run(self) -> list[nodes.Node]:
        """A table of kinds and names."""
        rows = {
            "one class": [m.name for m in sl.METRICS.values() if m.kind == "class"],
            "all classes": [m.name for m in sl.METRICS.values() if m.kind == "joint"],
            "the whole matrix": [m.name for m in sl.METRICS.values() if m.kind == "matrix"],
            "the ranking": list(sl.RANKINGS),
        }
        shown = "".join(
            f"<dt>{kind}</dt><dd>"
            + " ".join(f'<a href="#metric-{n.replace("_", "-")}"><code>{n}</code></a>' for n in names)
            + "</dd>"
            for kind, names in rows.items()
        )
        return [nodes.raw("", f'<dl class="facts names">{shown}</dl>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("metric-list", MetricList)
    app.add_directive("metric-table", MetricTable)
    return {"parallel_read_safe": True}
