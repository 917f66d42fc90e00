"""The directive `command-help`: the commands with their options, read from the command line itself."""

from __future__ import annotations

from typing import Any

import typer.main
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from stepless.tabular.cli import app as command_line


class CommandHelp(Directive):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Usage, sentence, and options."""
        group: Any = typer.main.get_command(command_line)
        return [self._section(name, command) for name, command in group.commands.items()]

    def _section(self, name: str, command: Any) -> nodes.section:
        section = nodes.section(names=[f"stepless {name}"], ids=[f"stepless-{name}"])
        section += nodes.title("", "", nodes.literal("", f"stepless {name}"))
        self.state.document.note_implicit_target(section)
        for paragraph in (command.help or "").split("\n\n"):
            section += nodes.paragraph("", " ".join(paragraph.split()))
        items = []
        for parameter in command.params:
            term = nodes.term("", "", nodes.literal("", _head(parameter)))
            said = nodes.definition("", nodes.paragraph("", f"{parameter.help or ''}{_default(parameter)}"))
            items.append(nodes.definition_list_item("", term, said))
        section += nodes.definition_list("", *items, classes=["options"])
        examples = [line.strip() for line in (command.epilog or "").split("\n\n")[1:]]
        if examples:
            text = "\n".join(examples)
            section += nodes.literal_block(text, text, language="console")
        return section


def _head(parameter: Any) -> str:
    """Return how it is written: ``FILE``, ``--seed …``, ``--json``."""
    if parameter.param_type_name != "option":
        return str(parameter.name).upper()
    return ", ".join(parameter.opts) + ("" if parameter.is_flag else " …")


def _default(parameter: Any) -> str:
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    plain = isinstance(shown, str | int | float) and not isinstance(shown, bool) and shown != ""
    return f" By default {shown}." if plain else ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
