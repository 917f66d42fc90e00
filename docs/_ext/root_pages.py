"""Files of the checkout's root as pages: CONTRIBUTING.md and CHANGELOG.md, their links turned to the site's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent.parent
PAGES = {"about/contributing": "CONTRIBUTING.md", "about/changelog": "CHANGELOG.md"}
LINKS = {"](CHANGELOG.md)": "](changelog.md)", "](CONTRIBUTING.md)": "](contributing.md)", "](docs/": "](../"}


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the file's text in the page's place."""
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
