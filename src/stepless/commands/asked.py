"""What a command was asked: the table, the target, the metric; as options say it, and as a folder keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepless.commands.problems import Problem, read_problem
from stepless.constraints import parse_constraints
from stepless.formula import resolve
from stepless.metrics import METRICS
from stepless.ranking import find_ranking
from stepless.tables.files import Source, TableError
from stepless.whole_files import write_whole

#: What a folder of `stepless compare` holds: how it was asked for, what was found, the report, and the fits.
SETTINGS, COMPARISON, REPORT, CELLS = "settings.json", "comparison.json", "report.html", "cells"
#: What errors tell those who call from Python, and what the command line has in its place.
_IN_OPTIONS = {
    "start anew with resume=False": "start anew without --resume",
    "give more rows, or lower n_members": "give more rows",
    "pass inputs='probabilities' or inputs='logits'": "say --inputs probabilities or --inputs logits",
}


@dataclass(frozen=True)
class Asked:
    """What the user wants to know about a table; everything that `stepless train` needs to know again.

    Attributes:
        file: The table.
        target: The column to predict, or several with commas.
        metric: A name or a formula.
        options: Of the metric.
        minimize: Whether less of a formula is better.
        subject_to: Constraints.
        average: How classes or labels are averaged.
        positive: The positive class.
        weight: The column of weights.
        groups: The column of groups.
        drop: Columns to leave out.
        task: What the user says it is.
        delimiter: Of the file.
        encoding: Of the file.
        seed: Of all chance.
    """

    file: str
    target: str
    metric: str = "f1"
    options: tuple[str, ...] = ()
    minimize: bool = False
    subject_to: str | None = None
    average: str | None = None
    positive: str | None = None
    weight: str | None = None
    groups: str | None = None
    drop: tuple[str, ...] = ()
    task: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    seed: int = 0

    def read(self) -> Problem:
        """The table, taken apart."""
        return read_problem(
            Source(self.file, delimiter=self.delimiter, encoding=self.encoding), self.target, positive=self.positive,
            weight=self.weight, groups=self.groups, drop=self.drop, task=self.task,
        )  # fmt: skip

    @property
    def metric_options(self) -> dict[str, Any]:
        """The metric's options by name: of ``beta=2``, the number 2."""
        found: dict[str, Any] = {}
        for text in self.options:
            name, sign, value = text.partition("=")
            if not sign or not name.strip().isidentifier():
                raise TableError(f"an option of a metric is written as in beta=2; got {text!r}.")
            try:
                found[name.strip()] = json.loads(value)
            except ValueError:
                found[name.strip()] = value.strip()
        return found

    def check(self) -> None:
        """Raise for a metric or constraints that cannot be, before a table is read for them."""
        if self.minimize and self.metric.strip() in METRICS:
            raise TableError(f"--minimize is for formulas; {self.metric} knows whether more or less of it is better.")
        if find_ranking(self.metric) is not None:
            raise TableError(
                f"{self.metric} scores how rows are ranked, and a decision needs a metric of decisions, such as f1; see"
                " stepless metrics."
            )
        resolve(self.metric, maximize=False if self.minimize else None, **self.metric_options)
        parse_constraints(self.subject_to)

    def save(self, folder: Path) -> None:
        """Write it into a folder, with the whole path of the table."""
        held = {**self.__dict__, "file": self.file if self.file == "-" else os.path.abspath(self.file)}
        write_whole(folder / SETTINGS, json.dumps(held, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Asked:
        """What `save` wrote."""
        try:
            held = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            lists = {name: tuple(held[name]) for name in ("options", "drop")}
            return cls(**{**held, **lists})
        except (FileNotFoundError, IsADirectoryError):
            raise TableError(f"{folder} is no folder of `stepless compare`: it has no {SETTINGS}.") from None
        except (ValueError, TypeError, KeyError) as error:
            raise TableError(f"{folder / SETTINGS} is damaged: {error}.") from None


def in_options(text: str) -> str:
    """A sentence with options of the command line where it names arguments of Python.

    >>> in_options("Resume it, or start anew with resume=False.")
    'Resume it, or start anew without --resume.'
    """
    for python, option in _IN_OPTIONS.items():
        text = text.replace(python, option)
    return text


def keys(texts: Sequence[str]) -> tuple[str, ...]:
    """Contestants from options that may be repeated or hold commas.

    >>> keys(["metric,smote", "automatic"])
    ('metric', 'smote', 'automatic')
    """
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())
