"""What a command is asked: table, target and metric, from its options or from the folder of a comparison."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stepless.constraints import parse_constraints
from stepless.formula import resolve
from stepless.metrics import METRICS
from stepless.ranking import find_ranking
from stepless.tabular.commands.problems import Problem, read_problem
from stepless.tabular.tables.files import Source, TableError
from stepless.tabular.whole_files import write_whole

#: What a folder of `stepless compare` holds: the options, the outcome, the report, and the finished fits.
SETTINGS, COMPARISON, REPORT, CELLS = "settings.json", "comparison.json", "report.html", "cells"
#: Advice in errors for callers from Python, and its equivalent on the command line.
_IN_OPTIONS = {
    "start anew with resume=False": "start anew without --resume",
    "give more rows, or lower n_members": "give more rows",
    "pos_label=": "positive=",
}
_ARGUMENT = re.compile(r"""\b(address|average|backend|inputs|positive|task)=(['"])(.*?)\2(?: or (['"])(.*?)\4)?""")
#: Arguments of `stepless.formula.resolve` that are no options of a metric, and what to write instead.
_OPTIONS = {"metric": "--metric", "maximize": "--minimize, or nothing"}


@dataclass(frozen=True)
class Asked:
    """The options that say what a model is for; a comparison stores them for `stepless train`.

    Attributes:
        file: The table.
        target: The column to predict, or several with commas.
        metric: A name or a formula.
        options: Options of the metric, such as ``beta=2``.
        minimize: Whether smaller values of a formula are better.
        subject_to: Constraints.
        average: How classes or labels are averaged.
        positive: The positive class.
        weight: The column of weights.
        groups: The column of groups.
        drop: Columns to leave out.
        task: The task that the target must be; None for any.
        delimiter: Delimiter of the file.
        encoding: Encoding of the file.
        seed: Seed of all random numbers.
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
        """Read the table and split it into features, target, weights and groups."""
        return read_problem(
            Source(self.file, delimiter=self.delimiter, encoding=self.encoding), self.target, positive=self.positive,
            weight=self.weight, groups=self.groups, drop=self.drop, task=self.task,
        )  # fmt: skip

    @property
    def metric_options(self) -> dict[str, Any]:
        """The options of the metric by name, with their values parsed as JSON where possible."""
        found: dict[str, Any] = {}
        for text in self.options:
            name, sign, value = text.partition("=")
            name = name.strip()
            if not sign or not name.isidentifier():
                raise TableError(f"an option of a metric is written as in beta=2; got {text!r}.")
            if name in _OPTIONS:
                raise TableError(f"--option is for options of the metric, such as beta=2; {name} is {_OPTIONS[name]}.")
            if name in found:
                raise TableError(f"--option sets {name} twice; set it once.")
            try:
                found[name] = json.loads(value)
            except ValueError:
                found[name] = value.strip()
        return found

    def check(self) -> None:
        """Raise for an invalid metric or constraint, before the table is read."""
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
        """Write the options to a folder, with the absolute path of the table."""
        held = {**self.__dict__, "file": self.file if self.file == "-" else os.path.abspath(self.file)}
        write_whole(folder / SETTINGS, json.dumps(held, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Asked:
        """Read what `save` wrote."""
        try:
            held = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            _check_types(held)
            lists = {name: tuple(held[name]) for name in ("options", "drop")}
            return cls(**{**held, **lists})
        except (FileNotFoundError, IsADirectoryError):
            raise TableError(f"{folder} is no folder of `stepless compare`: it has no {SETTINGS}.") from None
        except (ValueError, TypeError, KeyError) as error:
            raise TableError(f"{folder / SETTINGS} is damaged: {error}.") from None


def in_options(text: str) -> str:
    """Replace arguments of Python in a message by options of the command line.

    >>> in_options("Resume it, or start anew with resume=False.")
    'Resume it, or start anew without --resume.'
    >>> in_options("average='macro' has no effect."), in_options("pass inputs='scores' or 'logits'.")
    ('--average macro has no effect.', 'pass --inputs scores or --inputs logits.')
    """
    for python, option in _IN_OPTIONS.items():
        text = text.replace(python, option)
    return _ARGUMENT.sub(lambda m: f"--{m[1]} {m[3]}" + (f" or --{m[1]} {m[5]}" if m[4] else ""), text)


def stated(name: str, value: Any) -> str:
    """A field of `Asked` as an error calls it.

    >>> stated("metric", "f1"), stated("subject_to", None), stated("drop", ("a", "b")), stated("minimize", True)
    ("metric 'f1'", 'no subject-to', "drop 'a', 'b'", 'minimize')
    """
    option = "option" if name == "options" else name.replace("_", "-")
    if value is None or value is False or value == ():
        return f"no {option}"
    if value is True:
        return option
    return f"{option} {', '.join(map(repr, value if isinstance(value, tuple) else [value]))}"


def _check_types(held: Any) -> None:
    """Raise a ValueError unless stored options are of the types that `Asked` has."""
    if not isinstance(held, dict):
        raise ValueError("it holds no options")
    for field in fields(Asked):
        if field.name not in held:
            continue
        value, kind = held[field.name], str(field.type)
        fits = {
            "tuple[str, ...]": isinstance(value, list) and all(isinstance(part, str) for part in value),
            "bool": isinstance(value, bool),
            "int": isinstance(value, int) and not isinstance(value, bool),
            "str | None": value is None or isinstance(value, str),
        }.get(kind, isinstance(value, str))
        if not fits:
            raise ValueError(f"{field.name} is {value!r}")


def keys(texts: Sequence[str]) -> tuple[str, ...]:
    """Split the values of an option that may be repeated or contain commas.

    >>> keys(["metric,smote", "automatic"])
    ('metric', 'smote', 'automatic')
    """
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())
