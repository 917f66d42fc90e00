"""The worked example of CONTRIBUTING.md: a metric is added in two places, and everything finds it."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import stepless as sl

ROOT = Path(__file__).parent.parent
NAME = "sorgenfrei"


def section():
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a metric")[2].partition("\n## ")[0]


def python_blocks():
    """The function, as it goes into metrics.py, and the code that tries it."""
    function, trial = re.findall(r"^```python\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL)
    return function, trial


def reference_line():
    """The one line that is added to the references."""
    (line,) = re.findall(r"^\+(.*)$", section(), re.MULTILINE)
    return line


def references():
    spec = importlib.util.spec_from_file_location("references_for_contributing", ROOT / "tests" / "references.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def worked_example(monkeypatch):
    """The example has run; afterwards the registry is as it was."""
    # A registry has no way to remove a name, on purpose; only a test wants one, so it swaps the private dictionaries.
    monkeypatch.setattr(sl.METRICS, "_things", dict(sl.METRICS._things))
    monkeypatch.setattr(sl.METRICS, "_aliases", dict(sl.METRICS._aliases))
    assert NAME not in sl.METRICS, "the example must add a metric that does not exist"
    namespace = {"__name__": "worked_example"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in python_blocks():
            exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
        yield namespace


@pytest.fixture
def reference():
    module = references()
    assert NAME not in module.REFERENCES
    return eval("{" + reference_line() + "}", vars(module))[NAME]


def test_is_found(worked_example):
    assert NAME in sl.METRICS
    assert sl.METRICS[NAME].function is worked_example[NAME]
    assert sl.METRICS[NAME].summary
    assert sl.METRICS[NAME].source


@pytest.mark.parametrize(
    ("task", "average"),
    [("binary", None), *((task, a) for task in ("multiclass", "multilabel") for a in ("macro", "micro", "weighted"))],
)
def test_scores_as_its_reference(worked_example, reference, task, average):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=80 if task == "binary" else (80, 3))
    if task == "multiclass":
        y, decided = rng.integers(0, 3, 80), logits.argmax(1)
    else:
        y, decided = rng.integers(0, 2, logits.shape), (logits >= 0).astype(int)
    expected = reference(y, decided, labels=range(3), average=average or "binary")
    ours = sl.score(logits, y, NAME, task=task, average=average).item()
    assert ours == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_trains(worked_example, task):
    logits = torch.randn(40, requires_grad=True) if task == "binary" else torch.randn(40, 3, requires_grad=True)
    target = torch.randint(3, (40,)) if task == "multiclass" else torch.randint(2, logits.shape)
    sl.MetricLoss(NAME, task=task)(logits, target).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.any()


def test_formulas_and_constraints_know_it(worked_example):
    logits, target = torch.randn(40), torch.rand(40) < 0.5
    by_name = sl.score(logits, target, NAME)
    assert sl.score(logits, target, f"1 - {NAME}", maximize=False) == 1 - by_name
    violation = sl.MetricLoss("f1", subject_to=f"{NAME} >= 0.9").violations(logits, target)
    assert violation == {f"{NAME} >= 0.9": pytest.approx(0.9 - by_name.item())}


def test_the_registry_is_as_it_was():
    assert NAME not in sl.METRICS


def test_no_other_module_lists_metrics():
    """Two places are enough because no module but `metrics` holds a collection of metric names."""
    for path in (ROOT / "src" / "stepless").rglob("*.py"):
        if path.name == "metrics.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
                entries = node.keys if isinstance(node, ast.Dict) else node.elts
                named = {e.value for e in entries if isinstance(e, ast.Constant) and isinstance(e.value, str)}
                assert len(named & set(sl.METRICS)) < 2, f"{path.name}:{node.lineno} lists metrics by hand"


@pytest.fixture
def changed_project(tmp_path):
    """A copy of the package and its tests with the two additions, each in its place, and nothing else changed."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    metrics = tmp_path / "src" / "stepless" / "metrics.py"
    function = python_blocks()[0]
    function = function[function.index("@metric") :]  # the imports are there already
    metrics.write_text(metrics.read_text(encoding="utf-8") + "\n\n" + function, encoding="utf-8")

    listed = tmp_path / "tests" / "references.py"
    text = listed.read_text(encoding="utf-8")
    assert text.count("REFERENCES = {\n") == 1
    listed.write_text(text.replace("REFERENCES = {\n", f"REFERENCES = {{\n{reference_line()}\n"), encoding="utf-8")
    return tmp_path


def run(project, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_two_places_are_enough(changed_project):
    code = f"""
import sys, torch, stepless as sl
sys.path.insert(0, "tests")
from references import REFERENCES
assert sl.__file__.startswith({str(changed_project)!r}), sl.__file__
assert {NAME!r} in sl.METRICS and {NAME!r} in REFERENCES
logits = torch.linspace(-1, 1, 9).requires_grad_()
sl.MetricLoss({NAME!r})(logits, torch.arange(9) % 2).backward()
assert logits.grad.isfinite().all() and logits.grad.any()
"""
    done = run(changed_project, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_other_tests_take_it_up(changed_project):
    """Every test over the registry runs for the new metric, though none was told of it."""
    here = [f"--ignore=tests/{name}" for name in ("test_readme.py", "test_docs.py", Path(__file__).name)]
    done = run(changed_project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full", "-k", NAME, *here)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\d+ passed", done.stdout)
