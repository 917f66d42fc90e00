"""The documents keep their word: every Python block runs, and what they list is what there is."""

import importlib.util
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import torch

import stepless as sl

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


@pytest.fixture
def clean_slate(monkeypatch):
    """Leave the registry of metrics, torch's random state and its threads as they were."""
    # A registry has no way to remove a name, on purpose; only a test wants one, so it swaps the private dictionaries.
    monkeypatch.setattr(sl.METRICS, "_things", dict(sl.METRICS._things))
    monkeypatch.setattr(sl.METRICS, "_aliases", dict(sl.METRICS._aliases))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small only wait for a second thread
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(path, clean_slate):
    text = path.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    results_alone = path.name in ("contest.md", "papers.md")
    assert blocks or results_alone, f"{path.name} has no Python block"
    assert len(blocks) == text.count("```python"), f"{path.name} has a Python block this test cannot read"
    namespace = {"__name__": f"{path.stem}_blocks"}
    for block in blocks:
        above = "\n" * text.count("\n", 0, block.start(1))  # so that a traceback names the document's own line
        exec(compile(above + block[1], str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_rows_of_tables_have_the_cells_of_their_heads(path):
    """A bar ends a cell, also one within code: what follows it is not shown."""
    cells = 0
    for line in FENCED.sub("", path.read_text(encoding="utf-8")).splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or not bars or bars == cells, f"{path.name}: {line}"
        cells = bars


def test_readme_lists_what_there_is():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is here")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([\w.]+)`", table))
    presets = {f"presets.{name}" for name in dir(sl.presets) if is_preset(name)}
    assert {*sl.METRICS, *sl.STEPS, *presets} <= listed

    rows = {row.split("|")[1].strip(): set(re.findall(r"`(\w+)`", row)) for row in table.splitlines() if "|" in row}
    for kind, row in {"class": "one class", "joint": "all classes", "matrix": "the whole matrix"}.items():
        assert rows[f"metrics of {row}"] == {name for name, metric in sl.METRICS.items() if metric.kind == kind}
    assert rows["steps"] == set(sl.STEPS)


def is_preset(name):
    thing = getattr(sl.presets, name)
    return callable(thing) and getattr(thing, "__module__", "") == "stepless.presets" and not name.startswith("_")


def test_design_lists_the_modules_in_the_layers_of_the_contracts():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Modules")[2].partition("\n## ")[0]
    top = {module: int(level) for level, module in re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE)}
    within = {}
    for package, module in re.findall(r"^\| `([\w.]+)` \| `(\w+)` \|", text, re.MULTILINE):
        within.setdefault(f"stepless.{package}", []).append(module)

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    assert all(contract["exhaustive"] for contract in contracts)  # so no module is left out of them
    layers = {contract["containers"][0]: [line.split(" : ") for line in contract["layers"]] for contract in contracts}
    assert top == {module: level for level, line in enumerate(layers.pop("stepless"), start=1) for module in line}
    assert within == {package: list(chain(*lines)) for package, lines in layers.items()}
    source = ROOT / "src"
    packages = {".".join(path.parent.relative_to(source).parts) for path in source.glob("stepless/*/**/__init__.py")}
    assert set(layers) == packages


def test_speed_tables_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("render", ROOT / "benchmarks" / "speed" / "render.py")
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert render.replaced(text) == text, "run python benchmarks/speed/render.py"


def test_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {sl.__version__}\n" in citation
