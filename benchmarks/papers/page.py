"""Write docs/papers.md and its pictures from the results, and the verdicts into the results.

python benchmarks/papers/page.py
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from frame import NOT_REPRODUCED, NOT_RUNNABLE, REPRODUCED, ROOT, Results, Table, Verdict, rows, tables
from wording import NOT_FOUND, RELEASED

PAGE = ROOT / "docs" / "papers.md"
PICTURES = ROOT / "docs" / "papers"
_VERDICTS = (REPRODUCED, NOT_REPRODUCED, NOT_RUNNABLE)
#: Reproduced claims are folded away where there are more: their numbers stand in the table above them.
_FOLDED = 6
_SIDE_BY_SIDE = 2  #: processes
#: What may take how many minutes on so many processors: words, tables (all, where none is named), minutes.
_ASKED = (
    ("AnyLoss's logistic units on 89 sets", ("anyloss_3_slp",), 15),
    ("AnyLoss's hidden layers on 89 sets", ("anyloss_3_mlp",), 40),
    ("everything that ran on CPUs", (), 180),
)

_HEAD = """\
# The papers, reproduced

The published results of three papers, run again with `stepless`'s public names. Beside them are an honest rival
(cross-entropy with a threshold tuned on held-out scores) and, where it was run, `MetricClassifier` with its defaults.
Protocols, seeds and tolerances were fixed before running, in `benchmarks/papers/config`. This page is made by
`benchmarks/papers/page.py` from `benchmarks/papers/results`.

*Reproduced*: within the stated tolerance or, for a claim in words, confirmed. *Not reproduced*: not so, with the reason
as far as the results show it. *Not runnable here*: the data or the method was not available. Verdicts are on the
corrected protocol; “as released” is the public code with its faults. *Clearly* above or below the rival means by more
than two standard errors of the difference over folds or trials. These share rows, so it is a rough measure.

To run a table, or one cell of it, again: `python benchmarks/papers/run.py TABLE [--cell CELL] --again`, with the names
in grey below. `--list` shows all tables."""


def render(everything: Sequence[Results]) -> str:
    """The page of these results."""
    begun = [results for results in everything if results.cells]
    parts = [_HEAD, "## Summary", _minute(everything)]
    paper = ""
    for results in begun:
        table = results.table
        if table.paper != paper:
            paper = table.paper
            parts.append(f"## {paper}")
        parts += [f"### {table.title}", _facts(results), *table.show(results.folds), _verdicts(results)]
    parts += ["## Run time", _took(everything), "## Made with", _made(begun)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _minute(everything: Sequence[Results]) -> str:
    body, failed = [], []
    for paper in dict.fromkeys(results.table.paper for results in everything):
        mine = [results for results in everything if results.table.paper == paper]
        total = Counter(v.verdict for results in mine for v in results.verdicts)
        waiting = sum(results.table.missing(results.folds) for results in mine)
        body.append(_line(f"**{paper}**", "all tables", total, waiting, _why(mine)))
        for results in mine:
            table, found = results.table, Counter(v.verdict for v in results.verdicts)
            if not results.cells:
                body.append(_line(paper, table.title, found, table.missing({}), "Not run so far."))
                continue
            words = table.summary(results.folds)
            linked = f"[{table.title}](#{anchor(table.title)})"
            body.append(_line(paper, linked, found, table.missing(results.folds), words))
            failed += [f"- {paper}, {table.title.partition(':')[0]}: {_sentence(v)}" for v in results.verdicts
                       if v.verdict != REPRODUCED]  # fmt: skip
    parts = [
        "The numbers count claims, one for each printed number or sentence judged. *Still to run* counts cells.",
        rows(["paper", "table", *_VERDICTS, "still to run", "what holds and what does not"], body),
    ]
    if failed:
        words = f"All {len(failed)} claims that were not reproduced or could not be run, and why"
        parts += [f"<details><summary>{words}</summary>", "\n".join(failed), "</details>"]
    return "\n\n".join(parts)


def _why(mine: Sequence[Results]) -> str:
    """What the reasons of a paper's claims say, counted."""
    reasons = [v.reason.lower() for results in mine for v in results.verdicts if v.verdict == NOT_REPRODUCED]
    if not reasons:
        return ""
    faults, unknown = (sum(words in reason for reason in reasons) for words in (RELEASED, NOT_FOUND))
    counted = ((faults, "are met by the code as released, with its faults"), (unknown, "have no known reason"))
    parts = [f"{number} {words}" for number, words in counted if number]
    return f"Of the {len(reasons)} not reproduced, {', and '.join(parts)}." if parts else ""


def _line(paper: str, table: str, found: Counter[str], waiting: int, words: str) -> list[str | int]:
    return [paper, table, *(found.get(verdict, 0) or "" for verdict in _VERDICTS), waiting or "", words]


def _sentence(verdict: Verdict) -> str:
    return f"{verdict.claim}. Printed: {verdict.printed}; found: {verdict.found}. {verdict.reason}"


def anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return "".join(c for c in title.lower() if c.isalnum() or c in " -_").replace(" ", "-")


def _facts(results: Results) -> str:
    machines = " and ".join(sorted({run["machine"]["device"] for run in results.runs.values()}))
    seconds = sum(cell["seconds"] for cell in results.cells.values())
    number, waiting = len(results.cells), results.table.missing(results.folds)
    facts = f"<sub>`{results.table.name}`: {number} cells, {seconds / 60:.1f} min on {machines}</sub>"
    if not waiting:
        return facts
    return f"{facts}\n\n**Partly run**: {waiting} of {number + waiting} cells are missing. The rest is shown below."


def _verdicts(results: Results) -> str:
    held = [v for v in results.verdicts if v.verdict == REPRODUCED]
    others = [v for v in results.verdicts if v.verdict != REPRODUCED]
    if len(held) <= _FOLDED:
        return _claims(results.verdicts)
    head = f"<details><summary>The {len(held)} claims that were reproduced</summary>"
    return "\n\n".join(part for part in (_claims(others), head, _claims(held), "</details>") if part)


def _claims(verdicts: Sequence[Verdict]) -> str:
    body = []
    for v in verdicts:
        verdict = v.verdict if v.verdict == REPRODUCED else f"**{v.verdict}**: {v.reason}"
        body.append([v.claim, v.printed, v.found, verdict])
    return rows(["claim", "printed", "found", "verdict"], body) if body else ""


def _took(everything: Sequence[Results]) -> str:
    """The minutes of processes on a processor, two of which run side by side, against what was asked."""
    body = []
    for what, names, most in _ASKED:
        chosen = [results for results in everything if not names or results.table.name in names]
        cells = [(cell, results.runs[cell["run"]]) for results in chosen for cell in results.cells.values()]
        minutes = (
            sum(cell["seconds"] for cell, run in cells if "NVIDIA" not in run["machine"]["device"]) / 60 / _SIDE_BY_SIDE
        )
        waiting = sum(results.table.missing(results.folds) for results in chosen)
        so_far = f", {waiting} cells still to run" if waiting else ""
        body.append([what, f"{most} min", f"{minutes:.0f} min{so_far}", "met" if minutes <= most else "**missed**"])
    return rows([f"on {_SIDE_BY_SIDE} processors", "goal: at most", "result", ""], body)


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
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    everything = read()
    for results in everything:
        if results.cells:
            results.write()
            _draw(results.table, results)
    PAGE.write_text(render(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
