"""The inputs and outputs of an exported graph, and how a table is fed to it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.models.columns import Category, numbers_of
from stepless.tabular.models.preprocessing import Features
from stepless.tabular.tables.frames import Table

#: The outputs of every graph.
OUTPUTS = ("label", "probabilities", "decision")


def feed(features: Features, table: Table) -> dict[str, NDArray[Any]]:
    """The inputs of an exported graph for the rows of a table, as onnxruntime's ``run`` takes them.

    Args:
        features: The model's features.
        table: The rows.
    """
    features.check(table)
    names = input_names(features)
    if all_numbers(features):
        if set(table.kinds) == {"number"}:
            return {names[0]: np.asarray(table.matrix(), np.float64)}
        return {names[0]: np.stack([numbers_of(table, i) for i in range(table.width)], 1)}
    inputs: dict[str, NDArray[Any]] = {}
    for i, (name, column) in enumerate(zip(names, features.columns, strict=True)):
        if isinstance(column, Category):
            missing = missing_text(column)
            unseen = _unused({*column.levels, missing})  # for an unseen text that would stand for missing
            texts = [missing if v is None else unseen if v == missing else v for v in table.text(i)]
            values: NDArray[Any] = np.array(texts, object)
        else:
            values = numbers_of(table, i)
        inputs[name] = values[:, None]
    return inputs


def input_names(features: Features) -> tuple[str, ...]:
    """The names of an exported graph's inputs: ``X`` alone, or those of the columns, except where they clash."""
    if all_numbers(features):
        return ("X",)
    given = features.names or [f"x{i}" for i in range(len(features.columns))]
    taken, names = {*OUTPUTS, *given, ""}, []
    for i, name in enumerate(given):
        new = name
        if name in (*OUTPUTS, ""):
            new = f"column {i}"
            while new in taken:
                new += "_"
            taken.add(new)
        names.append(new)
    return tuple(names)


def missing_text(column: Category) -> str:
    """The text of a missing value in a column of categories: empty, unless that is one of its levels."""
    return _unused(column.levels)


def _unused(taken: Container[str]) -> str:
    text = ""
    while text in taken:
        text = f"<missing{text}>"
    return text


def all_numbers(features: Features) -> bool:
    """Whether no column holds categories, so that one input takes them all."""
    return not any(isinstance(column, Category) for column in features.columns)
