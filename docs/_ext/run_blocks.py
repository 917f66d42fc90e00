"""The Python blocks of the guides, run when the page is read; what they print is shown below them.

The blocks of a page share one namespace, in a folder of their own. One that fails is a warning, and so fails the build.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

import stepless as sl

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def clean_slate() -> Iterator[None]:
    """A folder to write in, and the registry, the random state and the warnings as they were afterwards."""
    # a registry has no way to remove a name, on purpose; what a page registers is gone with the page
    kept = [(registry, dict(registry._things), dict(registry._aliases)) for registry in (sl.METRICS, sl.RANKINGS)]
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(), warnings.catch_warnings():
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)
            for registry, things, aliases in kept:
                registry._things, registry._aliases = things, aliases


def run_page(app: Sphinx, doctree: nodes.document) -> None:
    """Run the blocks of a page and put their output below them."""
    docname = app.env.docname
    if not docname.startswith("guides/") and docname not in ("index", "migration"):
        return
    blocks = [node for node in doctree.findall(nodes.literal_block) if node.get("language") == "python"]
    namespace: dict[str, Any] = {"__name__": "guide"}
    with clean_slate():
        for block in blocks:
            printed = io.StringIO()
            above = "\n" * ((block.line or 1) - 1)  # so that a traceback names the page's own line
            try:
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                    exec(compile(above + block.astext(), f"{docname}.md", "exec"), namespace)
            except Exception:
                logger.warning("a Python block fails:\n%s", traceback.format_exc(), location=block)
                return
            text = printed.getvalue().rstrip()
            if text:
                output = nodes.container("", nodes.literal_block(text, text, language="text"), classes=["output"])
                block.parent.insert(block.parent.index(block) + 1, output)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", run_page)
    return {"parallel_read_safe": False}
