"""The directive `module-picture`: the layers of the package, drawn from the contracts that import-linter checks.

A row is a layer, and imports only from below. A box is a module, or a package with its own layers in it; its tooltip is
the first line of its docstring.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stepless"


def layers() -> dict[str, list[list[str]]]:
    """Return the layers within each container, from the top down.

    >>> layers()["stepless"][:2], layers()["stepless.tabular.tables"][0]
    ([['__main__'], ['integrations']], ['reading'])
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [layer.split(" : ") for layer in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers"
    }


def job(module: str) -> str:
    """Return the first line of a module's docstring.

    >>> job("counts").startswith("The four cells of a confusion matrix")
    True
    """
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0].replace("`", "")


def picture() -> str:
    """Draw the layers as HTML."""
    held = layers()
    rows = (_row([_box(name, held) for name in layer]) for layer in held["stepless"])
    return f'<div class="picture modules" role="img" aria-label="The modules in layers">{"".join(rows)}</div>'


def _row(boxes: list[str]) -> str:
    return f'<div class="layer">{"".join(boxes)}</div>'


def _box(name: str, held: dict[str, list[list[str]]]) -> str:
    """Draw a module, or a package with what is in it."""
    inside = held.get(f"stepless.{name}", [])
    rows = [_row([_box(f"{name}.{part}", held) for part in layer]) for layer in inside]
    kind, shown = "package" if inside else "module", name.rpartition(".")[2]
    return f'<span class="{kind}" title="{escape(job(name))}"><b>{escape(shown)}</b>{"".join(rows)}</span>'


class ModulePicture(Directive):
    """The directive."""

    def run(self) -> list[nodes.Node]:
        """One node of HTML."""
        return [nodes.raw("", picture(), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("module-picture", ModulePicture)
    return {"parallel_read_safe": True}
