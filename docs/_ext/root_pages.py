"""CONTRIBUTING.md and CHANGELOG.md as pages of the site, with their links rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent.parent
PAGES = {"about/contributing": "CONTRIBUTING.md", "about/changelog": "CHANGELOG.md"}
LINKS = {"](CHANGELOG.md)": "](changelog.md)", "](CONTRIBUTING.md)": "](contributing.md)", "](docs/": "](../"}


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the page's text by that of the file."""
    if docname not in PAGES:
        return
    path = ROOT / PAGES[docname]
    text = path.read_text(encoding="utf-8")
    for link, ours in LINKS.items():
        text = text.replace(link, ours)
    source[0] = text
    app.env.note_dependency(str(path))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
