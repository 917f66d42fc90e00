"""Every public name with its signature, as tests/public_names.txt has it: a rename is a decision and not an accident.

To accept a change, run `python -m tests.test_public_names` and commit the file with a line in CHANGELOG.md.
"""

import difflib
import inspect
import os
import re
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

import stepless as sl

SNAPSHOT = Path(__file__).parent / "public_names.txt"
MODULES = ("boosting", "curves", "plots", "presets")
#: What each integration is for. Its modules are read when their library is there.
INTEGRATIONS = {
    "jax": ["metric_loss"],
    "keras": ["MetricLoss"],
    "lightning": ["MetricCallback", "accumulate"],
    "mlflow": ["Served", "log", "log_model", "save_model"],
    "torchmetrics": ["EpochScore"],
    "transformers": ["TrainerLoss"],
}
NEEDED = ("catboost", "jax", "keras", "lightgbm", "lightning", "matplotlib", "mlflow", "sklearn", "torchmetrics")


def public_names():
    """Full names: of the package, of its public modules, and of the integrations."""
    top = sorted({*sl.__all__, *sl._EXTRAS})
    names = [f"stepless.{name}" for name in top if name != "integrations"]
    names += [f"stepless.{module}.{name}" for module in MODULES for name in own_names(getattr(sl, module))]
    return names + [f"stepless.integrations.{module}.{name}" for module, held in INTEGRATIONS.items() for name in held]


def own_names(module):
    """What a module defines and does not hide."""
    return sorted(
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and getattr(thing, "__module__", None) == module.__name__
        and (inspect.isclass(thing) or inspect.isfunction(thing))
    )


def find(name):
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def described(name):
    """A name as lines: its signature, and for a class those of its own public methods."""
    thing = find(name)
    if inspect.ismodule(thing):
        return [f"module {name}"]
    if isinstance(thing, Mapping):
        return [f"mapping {name}"]
    if not inspect.isclass(thing):
        return [f"{name}{signature(thing)}"]
    lines = [f"class {name}{signature(thing)}"]
    for member in sorted(dir(thing)):
        holder = next((base for base in thing.__mro__ if member in vars(base)), object)
        of_sklearn = member.startswith("set_") and member.endswith("_request")  # made by scikit-learn, and its own
        if member.startswith("_") or of_sklearn or not holder.__module__.startswith("stepless"):
            continue
        held = inspect.getattr_static(thing, member)
        if isinstance(held, property):
            lines.append(f"    .{member}")
        elif callable(getattr(thing, member)) and not inspect.isclass(getattr(thing, member)):
            lines.append(f"    .{member}{signature(getattr(thing, member))}")
    return lines


def signature(thing):
    """Names, order, kinds and defaults; types are for mypy."""
    made = inspect.isclass(thing) and inspect.isfunction(thing.__init__)
    try:
        # of a class that has a __new__ as well, the arguments are those of __init__
        read = inspect.signature(partial(thing.__init__, None) if made else thing)
    except (TypeError, ValueError):  # exceptions of C, which take anything
        return "(...)"
    bare = read.replace(
        parameters=[p.replace(annotation=p.empty) for p in read.parameters.values()], return_annotation=read.empty
    )
    return re.sub(r" at 0x[0-9a-f]+", "", str(bare))


def metric_lines():
    """What a user may write as a metric or a step: names, options and aliases."""
    for what, registry in (("metric", sl.METRICS), ("ranking", sl.RANKINGS)):
        for name, thing in sorted(registry.items()):
            options = ", ".join(
                option if default is inspect.Parameter.empty else f"{option}={default!r}"
                for option, default in thing.defaults.items()
            )
            aliases = sorted(alias for alias, stands_for in registry.aliases.items() if stands_for == name)
            yield f"{what} {name}({options})" + (f" = {', '.join(aliases)}" if aliases else "")
    yield from (f"step {name} = {type(step).__name__ if not inspect.isclass(step) else step.__name__}"
                for name, step in sorted(sl.STEPS.items()))  # fmt: skip


def snapshot():
    """The whole file."""
    return "\n".join([*(line for name in public_names() for line in described(name)), *metric_lines()]) + "\n"


def test_public_names_are_those_agreed_on(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "torch"))
    for library in (*NEEDED, "transformers"):
        pytest.importorskip(library)
    agreed, found = SNAPSHOT.read_text(encoding="utf-8").splitlines(), snapshot().splitlines()
    changed = [
        line for line in difflib.unified_diff(agreed, found, "agreed", "found", lineterm="", n=0) if line[:2] != "@@"
    ]
    assert not changed, (
        "public names or signatures have changed:\n"
        + "\n".join(changed)
        + "\nIf that is meant, accept it with: python -m tests.test_public_names"
        " and say so in CHANGELOG.md; people's code depends on these."
    )


@pytest.mark.parametrize("module", ["boosting", "curves", "plots", "presets"])
def test_public_modules_are_not_empty(module):
    assert own_names(getattr(sl, module))


def test_integrations_are_all_listed():
    folder = Path(sl.__file__).parent / "integrations"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules - {"arrays", "keras_arrays"} == set(INTEGRATIONS), "the last two are shared by JAX and Keras"


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "torch")
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
    print(f"wrote {SNAPSHOT}")
