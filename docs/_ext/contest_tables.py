"""The directive `contest`: tables of docs/contest.md, so that no page has its numbers typed by hand.

`{contest} standing` shows the standing for a metric (`:metric:`) of some contestants (`:only:`, separated by
semicolons), on the confirmation sets if there are any, else on the development sets. `{contest} where` shows on which
kind of sets our estimators help.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.application import Sphinx

PAGE = Path(__file__).parent.parent / "contest.md"
HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)


def sections() -> dict[str, str]:
    """Return the page's sections by title."""
    pieces = HEADING.split(PAGE.read_text(encoding="utf-8"))
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def table(text: str) -> list[list[str]]:
    """Return the rows of the first table of a text, its head first."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            break
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]] if len(rows) > 2 else []


def standing(metric: str, task: str = "binary") -> tuple[str, list[list[str]]]:
    """Return the title and the table of a metric, on the confirmation sets if any is finished."""
    found = {title: text for title, text in sections().items() if title.startswith(f"{metric}, {task}, ")}
    for half in ("confirmation", "development"):
        for title, text in found.items():
            if f", {half}:" in title:
                return title, table(text)
    raise LookupError(f"docs/contest.md has no standing of {metric}, {task}.")


class Contest(Directive):
    """A table of the contest."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "metric": directives.unchanged, "task": directives.unchanged, "only": directives.unchanged,
        "columns": directives.unchanged,
    }  # fmt: skip

    def run(self) -> list[nodes.Node]:
        """The table, titled by its section."""
        metric = self.options.get("metric", "F1")
        try:
            if self.arguments[0] == "standing":
                title, rows = standing(metric, self.options.get("task", "binary"))
                only = [name.strip() for name in self.options.get("only", "").split(";") if name.strip()]
                rows = [rows[0], *(row for row in rows[1:] if not only or row[0].strip("*") in only)]
            elif self.arguments[0] == "where":
                title, text = next((t, s) for t, s in sections().items() if t.startswith("Where it helps"))
                rows = table(text)
                if not rows:  # no table yet: show the sentence that says so
                    return [nodes.paragraph("", " ".join(text.split()))]
                rows = [rows[0], *(row for row in rows[1:] if row[0] == metric)]
            else:
                raise self.error(f"contest takes standing or where; got {self.arguments[0]!r}.")
        except (IndexError, LookupError, StopIteration) as problem:
            raise self.error(f"the contest's page has no such table: {problem}") from None
        columns = [int(c) for c in self.options.get("columns", "").split(",") if c] or range(len(rows[0]))
        made = as_table([[row[c] for c in columns] for row in rows], title)
        self.state.document.settings.env.note_dependency(str(PAGE))
        return [made]


def as_table(rows: list[list[str]], title: str) -> nodes.table:
    """Build a table node."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in rows[0]), cols=len(rows[0]))
    group += nodes.thead("", _row(rows[0]))
    group += nodes.tbody("", *(_row(row) for row in rows[1:]))
    return nodes.table("", nodes.title("", title), group, classes=["contest"])


def _row(cells: list[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", _cell(cell))) for cell in cells))


def _cell(text: str) -> nodes.Node:
    bold = text.startswith("**") and text.endswith("**")
    return nodes.strong("", text.strip("*")) if bold else nodes.Text(text.replace("-0.", "−0.").replace("`", ""))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("contest", Contest)
    return {"parallel_read_safe": True}
