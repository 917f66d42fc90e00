"""Where an installation from a checkout takes the distribution `stepless-tabular` from: the one that lies in it.

The extras require the `stepless-tabular` of their version, as `pyproject.toml` says. Source distributions, and wheels
that are built from them, say just that: these are what is published. A wheel that is built in a checkout names the
folder there instead, so that `pip install ".[sklearn]"` installs the two that belong together. (An index refuses such a
wheel, so none is published by mistake.) An editable installation has all modules without the second distribution.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TabularHere(BuildHookInterface):
    """Changes the requirement of `stepless-tabular` in the metadata of wheels that are built in a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Rewrite the extras before hatchling writes them."""
        here = Path(self.root, "src", "stepless", "tabular")
        if self.target_name != "wheel" or not here.is_dir():
            return
        for requirements in self.metadata.core.optional_dependencies.values():
            for wanted in [entry for entry in requirements if entry.startswith("stepless-tabular")]:
                requirements.remove(wanted)
                if version != "editable":
                    requirements.append(f"stepless-tabular @ {here.as_uri()}")
