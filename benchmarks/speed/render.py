"""The README's speed tables, from results.json and gpu_results.json beside this file.

python benchmarks/speed/render.py     writes them between the markers in README.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent.parent / "README.md"
BEGIN, END = "<!-- speed: begin (benchmarks/speed/render.py) -->", "<!-- speed: end -->"

#: The most that ours may cost on the GPU, by the group of gpu_results.json.
GPU_MUST = {"2^28 fp32": 0.33, "2^28 bf16": 0.33, "2^20 graph": 1.0, "multiclass": 1.1}


def load(name: str) -> dict[str, Any]:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def cell(ratio: float | None, must: float | None = None) -> str:
    """A ratio; bold where it misses what it must hold."""
    if ratio is None:
        return "–"
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"**{text}** (missed)" if must is not None and ratio > must else text


def threads(record: dict[str, Any]) -> str:
    return f"{record['threads']} thread{'s' * (record['threads'] != 1)} of {record['cores']} cores"


def cpu(record: dict[str, Any]) -> list[str]:
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["ratios"]))
    asked = list(record["rows"][0]["held"])
    ours = [*asked, *record["unasked"]]
    lines = [
        f"CPU ({threads(record)}, torch {record['torch']}), times cross-entropy, forward and backward:",
        "",
        "| | " + " | ".join([*(row["name"] for row in record["rows"])]) + " |",
        "| --- |" + " --- |" * len(record["rows"]),
        "| must | " + " | ".join("–" if r["must"] is None else f"≤ {r['must']:g}" for r in record["rows"]) + " |",
    ]
    for name in [*ours, *(name for name in names if name not in ours)]:
        cells = [cell(row["ratios"].get(name), row["must"] if name in asked else None) for row in record["rows"]]
        metric, *rest = name.split(", ")
        title = ", ".join([f"`{metric}`", *rest]) + " (of which nothing is asked)" * (name in record["unasked"])
        lines.append(f"| {title if name in ours else name + ', as published'} | " + " | ".join(cells) + " |")
    return lines


def gpu(record: dict[str, Any]) -> list[str]:
    """Every group of the GPU's record that has ratios, whatever it is called."""
    lines = [
        f"{record['device']} (torch {record['torch']}), times cross-entropy, forward and backward:",
        "",
        "| | must | times cross-entropy |",
        "| --- | --- | --- |",
    ]
    for group, values in record.items():
        if isinstance(values, dict) and "ratios" in values:
            must = GPU_MUST.get(group)
            ours = ((name, ratio) for name, ratio in values["ratios"].items() if name != "cross-entropy")
            shown = ", ".join(f"`{name}` {cell(ratio, must)}" for name, ratio in ours)
            lines.append(f"| {group} | {'–' if must is None else f'≤ {must:g}'} | {shown} |")
    return lines


def render() -> str:
    """The section between the markers."""
    return "\n".join([BEGIN, *cpu(load("results.json")), "", *gpu(load("gpu_results.json")), END])


def replaced(text: str) -> str:
    """The README's text with the section brought up to date."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md must hold the markers {BEGIN!r} and {END!r}.")
    return before + render() + after


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    README.write_text(replaced(README.read_text(encoding="utf-8")), encoding="utf-8")
