"""Write docs/papers.md and its pictures from the results, and the verdicts into the results.

python benchmarks/papers/page.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frame import NOT_REPRODUCED, NOT_RUNNABLE, REPRODUCED, ROOT, Results, Table, rows, tables

PAGE = ROOT / "docs" / "papers.md"
PICTURES = ROOT / "docs" / "papers"

_HEAD = """\
# The papers, reproduced

What three papers print, run again with `stepless`'s public names, beside an honest rival (cross-entropy, and a
threshold tuned on held-out scores) and beside `MetricClassifier` as it comes. Made by `benchmarks/papers/page.py` from
`benchmarks/papers/results`; protocols, seeds and tolerances were stated before running, in `benchmarks/papers/config`.

Run a table, or one cell of it, again: `python benchmarks/papers/run.py TABLE [--cell CELL] --again`, with the names in
grey below; `--list` names all tables."""


def render(everything: Sequence[Results]) -> str:
    """The page of these results."""
    begun = [results for results in everything if results.cells]
    parts = [_HEAD, "## In a minute", _minute(begun)]
    paper = ""
    for results in begun:
        table = results.table
        if table.paper != paper:
            paper = table.paper
            parts.append(f"## {paper}")
        parts += [f"### {table.title}", _facts(results), *table.show(results.folds), _verdicts(results)]
    parts += ["## Made with", _made(begun)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _minute(everything: Sequence[Results]) -> str:
    body, failed = [], []
    for results in everything:
        table, found = results.table, Counter(v.verdict for v in results.verdicts)
        counts = [found.get(verdict, 0) or "" for verdict in (REPRODUCED, NOT_REPRODUCED, NOT_RUNNABLE)]
        body.append([table.paper, f"[{table.title}](#{anchor(table.title)})", *counts, table.summary(results.folds)])
        failed += [
            f"- {table.paper}, {table.title.partition(':')[0]}: {v.claim}. Printed: {v.printed}; found: {v.found}."
            f" {v.reason}"
            for v in results.verdicts
            if v.verdict != REPRODUCED
        ]
    parts = [rows(["paper", "table", REPRODUCED, NOT_REPRODUCED, NOT_RUNNABLE, "in words"], body)]
    if failed:
        words = f"All {len(failed)} claims that were not reproduced or could not be run, and why"
        head = f"<details><summary>{words}</summary>"
        parts += [head, "\n".join(failed), "</details>"]
    return "\n\n".join(parts)


def anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return "".join(c for c in title.lower() if c.isalnum() or c in " -_").replace(" ", "-")


def _facts(results: Results) -> str:
    machines = " and ".join(sorted({run["machine"]["device"] for run in results.runs.values()}))
    seconds = sum(cell["seconds"] for cell in results.cells.values())
    return f"<sub>`{results.table.name}`: {len(results.cells)} cells, {seconds / 60:.1f} min on {machines}</sub>"


def _verdicts(results: Results) -> str:
    if not results.verdicts:
        return ""
    body = []
    for v in results.verdicts:
        verdict = v.verdict if v.verdict == REPRODUCED else f"**{v.verdict}**: {v.reason}"
        body.append([v.claim, v.printed, v.found, verdict])
    return rows(["claim", "printed", "found", "verdict"], body)


def _made(everything: Sequence[Results]) -> str:
    made = {}
    for results in everything:
        for run in results.runs.values():
            versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
            made[f"- commit {run['commit'][:12]}, source digest {run['source']}, {run['machine']['device']}"
                 f" ({run['machine']['cores']} cores): {versions}"] = None  # fmt: skip
    return "\n".join(sorted(made))


def read() -> list[Results]:
    """The results of every table, with the verdicts their files hold."""
    return [Results.read(table) for table in tables()]


def _draw(table: Table, results: Results) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - not needed to compare the page with the results

    PICTURES.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "stepless"  # the same results give the same file
    for name, figure in table.draw(results.folds).items():
        figure.savefig(PICTURES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    everything = read()
    for results in everything:
        if results.cells:
            results.write()
            _draw(results.table, results)
    PAGE.write_text(render(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
