"""Boosted trees as members of a model: scored by their library, kept in its own format.

LightGBM's models are text, XGBoost's JSON, CatBoost's a binary table (cbm); reading them runs no code. But the readers
are C++ that was not written for malicious files. Accidental damage never reaches them, because hashes are compared
first; files that were altered together with their hash are checked by `stepless.tabular.trees.files`. What cannot be
checked is the inside of CatBoost's tables: a forged one may end the process.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.extras import needs
from stepless.tabular.models.members import MEMBER_KINDS, Factory, Files, check_keys
from stepless.tabular.trees.files import check_catboost, check_lightgbm, check_xgboost

#: The file ending of each library.
_ENDINGS = {"lightgbm": "txt", "xgboost": "json", "catboost": "cbm"}
#: The most classes and features of a file that is read.
_MOST = 1_000_000


@dataclass(frozen=True, eq=False)
class BoosterMember:
    """Boosters of one library that score rows together, as a `stepless.tabular.models.members.Member`.

    Args:
        kind: The library: ``"lightgbm"``, ``"xgboost"`` or ``"catboost"``.
        boosters: The trees of each booster, as the library writes them.
        inputs: The number of features.
        initial: The initial scores of each booster: one number, or one per class.
    """

    kind: str
    boosters: tuple[bytes, ...]
    inputs: int
    initial: tuple[tuple[float, ...], ...]

    @property
    def outputs(self) -> int:
        return len(self.initial[0])

    @property
    def n(self) -> int:
        """The number of boosters."""
        return len(self.boosters)

    def scores(self, matrix: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        """Compute logits ``(n, N, outputs)``."""
        shape = len(matrix), self.outputs
        grown = [np.asarray(_PREDICT[self.kind](trees, matrix), np.float64) for trees in self.trees]
        for scores in grown:
            if scores.size != len(matrix) * self.outputs:
                raise ValueError(f"the trees must give {self.outputs} scores per row; they give shape {scores.shape}.")
        return np.stack([z.reshape(shape) + np.array(start) for z, start in zip(grown, self.initial, strict=True)])

    def to_files(self, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        files = {f"{name}.{place}.{_ENDINGS[self.kind]}": data for place, data in enumerate(self.boosters)}
        return {"inputs": self.inputs, "initial": [list(i) for i in self.initial], "files": list(files)}, files

    @cached_property
    def trees(self) -> list[Any]:
        """The boosters as objects of their library; a ValueError if it cannot read them."""
        library, found = _library(self.kind), []
        for data in self.boosters:
            try:
                trees, width = _READ[self.kind](library, data, self.inputs, self.outputs)
            except Exception as error:  # each library has errors of its own
                raise ValueError(f"these are no trees of {self.kind}: {str(error)[:300]}") from None
            if width != self.inputs:
                raise ValueError(f"the trees must take {self.inputs} features; they take {width}.")
            found.append(trees)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the library's own objects, which are made again on use."""
        return {name: getattr(self, name) for name in ("kind", "boosters", "inputs", "initial")}


def _library(kind: str) -> Any:
    with needs(f"a model with trees of {kind} needs it", kind, kind):
        return import_module(kind)


# ---------------------------------------------------------------------------------------------------------------------
# The libraries
# ---------------------------------------------------------------------------------------------------------------------


def _read_lightgbm(library: Any, data: bytes, inputs: int, outputs: int) -> tuple[Any, int]:
    trees = library.Booster(model_str=check_lightgbm(data, inputs, outputs))
    return trees, trees.num_feature()


def _read_xgboost(library: Any, data: bytes, inputs: int, outputs: int) -> tuple[Any, int]:
    check_xgboost(data, inputs, outputs)
    trees = library.Booster({"nthread": 1}, model_file=bytearray(data))
    return trees, trees.num_features()


def _read_catboost(library: Any, data: bytes, inputs: int, outputs: int) -> tuple[Any, int]:
    check_catboost(data)
    trees = library.CatBoost()
    trees.load_model(blob=data, format="cbm")
    return trees, len(trees.feature_names_)


def catboost_bytes(model: Any, form: str = "cbm") -> bytes:
    """A CatBoost model as bytes in one of the library's formats; it can only write to a path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{form}"
        model.save_model(str(path), format=form)
        return path.read_bytes()


_READ = {"lightgbm": _read_lightgbm, "xgboost": _read_xgboost, "catboost": _read_catboost}
_PREDICT = {
    "lightgbm": lambda trees, matrix: trees.predict(matrix, raw_score=True),
    "xgboost": lambda trees, matrix: trees.inplace_predict(matrix, predict_type="margin"),
    "catboost": lambda trees, matrix: trees.predict(matrix, prediction_type="RawFormulaVal", thread_count=1),
}


def _reader(kind: str) -> Any:
    def read(entry: dict[str, Any], files: Files, factory: Factory | None) -> BoosterMember:
        """Read what `to_files` returned; raise a ValueError for anything else."""
        check_keys(entry, ("inputs", "initial", "files"), "an entry of boosters")
        inputs, initial, names = entry["inputs"], entry["initial"], entry["files"]
        if type(inputs) is not int or not 0 < inputs <= _MOST:
            raise ValueError(f"inputs must be a whole number above 0; got {str(inputs)[:100]}.")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and n in files for n in names):
            raise ValueError(f"a member's files must be its own, {', '.join(files)}; got {str(names)[:100]}.")
        if len(set(names)) < len(names) or len(names) < len(files):
            raise ValueError(f"each file of a member must be named once; got {str(names)[:100]}.")
        member = BoosterMember(kind, tuple(files[n] for n in names), inputs, _starts(initial, len(names)))
        _ = member.trees  # raises for trees that do not fit
        return member

    return read


def _starts(initial: Any, boosters: int) -> tuple[tuple[float, ...], ...]:
    good = isinstance(initial, list) and len(initial) == boosters and all(isinstance(i, list) for i in initial)
    good = good and len({len(i) for i in initial}) == 1 and 0 < len(initial[0]) <= _MOST
    if not good or not all(type(v) is float and math.isfinite(v) for i in initial for v in i):
        raise ValueError(f"initial must hold finite numbers, as many for each booster; got {str(initial)[:100]}.")
    return tuple(tuple(i) for i in initial)


MEMBER_KINDS.update({kind: _reader(kind) for kind in _ENDINGS})
