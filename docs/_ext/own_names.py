"""Resolve names in single backticks: a link if the reference has them, code if they exist, else a warning.

Docstrings say `MetricLoss`, `stepless.loss.MetricLoss` or `stepless.costs`. The first two are the same, which the
reference lists as `stepless.MetricLoss`; the last is a module for contributors, which it does not list.
"""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import stepless

#: What docstrings may name besides our own: other libraries, and Python itself.
OTHERS = (
    "torch",
    "numpy",
    "np",
    "sklearn",
    "torchmetrics",
    "matplotlib",
    "lightning",
    "inspect",
    "collections",
    "DistributedDataParallel",
)
#: Where names without a module are looked for.
PLACES = ("stepless", "stepless.curves", "stepless.boosting", "stepless.presets", "stepless.integrations.mlflow")


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.Element) -> nodes.Node | None:
    """Return the node for a name that Sphinx cannot resolve."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"]).removesuffix("()").lstrip("~.")
    known = env.get_domain("py").objects  # type: ignore[attr-defined]
    within = [node.get("py:class"), node.get("py:module")]
    for name in _public_names(target, [place for place in within if place]):
        if name in known:
            found = known[name]
            return nodes.reference(
                "", "", shown, internal=True, reftitle=name,
                refuri=f"{app.builder.get_relative_uri(str(node['refdoc']), found.docname)}#{found.node_id}",
            )  # fmt: skip
    fitted = target.endswith("_")  # an attribute of a fitted estimator
    return shown if fitted or target.partition(".")[0] in OTHERS or exists(target, within) else None


def _public_names(target: str, within: list[str]) -> list[str]:
    """Return the names under which the reference may list it."""
    last = target.rpartition(".")[2]
    method = ".".join(target.split(".")[-2:])
    classes = [f"stepless.{place}.{target}" for place in within] + [f"{place}.{target}" for place in within]
    return [target, *classes, *(f"{place}.{name}" for place in PLACES for name in (target, method, last))]


def exists(target: str, within: list[str | None] | tuple[()] = ()) -> bool:
    """Whether the package has such a module, or such a name in one.

    >>> exists("stepless.costs"), exists("stepless.loss.MetricLoss"), exists("stepless.nothing")
    (True, True, False)
    """
    for start in ("", "stepless.", *(f"stepless.{place}." for place in within if place)):
        module, _, rest = f"{start}{target}".partition(".")
        if module != "stepless":
            continue
        thing: Any = stepless
        for part in rest.split("."):
            thing = _step(thing, part)
        if thing is not None:
            return True
    # a bare name of the module that mentions it: `Batch`, `across_cut`
    return any(hasattr(import_module(f"stepless.{name}"), target) for name in ("ordering", "costs", "tabular.outcome"))


def _step(thing: Any, part: str) -> Any:
    found = getattr(thing, part, None)
    if found is None and hasattr(thing, "__path__") and find_spec(f"{thing.__name__}.{part}"):
        return import_module(f"{thing.__name__}.{part}")
    if found is None and inspect.isclass(thing):
        fields = {**getattr(thing, "__annotations__", {})}
        return fields.get(part)
    return found


def of_init(app: Sphinx, what: str, name: str, thing: Any, *_: Any) -> tuple[str, str] | None:
    """Show the arguments of ``__init__`` for `MetricLoss`, whose ``__new__`` only dispatches rankings."""
    if what != "class" or "__new__" not in vars(thing) or not inspect.isfunction(thing.__init__):
        return None
    read = inspect.signature(partial(thing.__init__, None))
    bare = [p.replace(annotation=p.empty) for p in read.parameters.values()]
    return str(read.replace(parameters=bare, return_annotation=read.empty)), ""


def plain_first_line(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from reading "The area: …" of a property as the type "The area": split its first line."""
    if what in ("property", "attribute") and " " in lines[0]:
        lines[0:1] = lines[0].split(" ", 1)


def skip_routing(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to every estimator."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", of_init)
    app.connect("autodoc-process-docstring", plain_first_line, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", skip_routing)
    return {"parallel_read_safe": True}
