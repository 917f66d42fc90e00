"""Boosted trees as members of a model: scored by their library, kept in its own format.

LightGBM's models are text, XGBoost's JSON, CatBoost's a binary table (cbm); reading them runs no code. But the readers
are C++ that was not written for files made to harm. Damage by accident never comes so far, because the hashes are
compared first; what was altered together with its sha256 is looked through by `stepless.trees.files`. That leaves the
inside of CatBoost's tables, which only the library knows: one that was forged may end the process.
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
from stepless.models.members import MEMBER_KINDS, Factory, Files, check_keys
from stepless.trees.files import check_catboost, check_lightgbm, check_xgboost

#: The ending of each library's files.
_ENDINGS = {"lightgbm": "txt", "xgboost": "json", "catboost": "cbm"}
#: More classes, and more features, than anyone boosts.
_MOST = 1_000_000


@dataclass(frozen=True, eq=False)
class BoosterMember:
    """Boosters of one library, which score together as the nets of a `stepless.models.members.NetMember` do.

    Args:
        kind: Their library: ``"lightgbm"``, ``"xgboost"`` or ``"catboost"``.
        boosters: The trees of each, as the library writes them.
        inputs: How many features they take.
        initial: Where the scores of each start: one number, or one a class.
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
        """How many boosters there are."""
        return len(self.boosters)

    def scores(self, matrix: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        """Logits ``(n, N, outputs)``."""
        shape = len(matrix), self.outputs
        grown = [np.asarray(_PREDICT[self.kind](trees, matrix), np.float64) for trees in self.trees]
        for scores in grown:
            if scores.size != len(matrix) * self.outputs:
                raise ValueError(f"the trees must give {self.outputs} scores a row; they give shape {scores.shape}.")
        return np.stack([z.reshape(shape) + np.array(start) for z, start in zip(grown, self.initial, strict=True)])

    def to_files(self, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        files = {f"{name}.{place}.{_ENDINGS[self.kind]}": data for place, data in enumerate(self.boosters)}
        return {"inputs": self.inputs, "initial": [list(i) for i in self.initial], "files": list(files)}, files

    @cached_property
    def trees(self) -> list[Any]:
        """The boosters as their library reads them; a ValueError where it cannot."""
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
        """Without the library's own objects, which are made again."""
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
    """A CatBoost model as bytes, in a format of the library's; it writes to paths alone."""
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
        """What `to_files` gave; anything else is a ValueError."""
        check_keys(entry, ("inputs", "initial", "files"), "an entry of boosters")
        inputs, initial, names = entry["inputs"], entry["initial"], entry["files"]
        if type(inputs) is not int or not 0 < inputs <= _MOST:
            raise ValueError(f"inputs must be a whole number above 0; got {str(inputs)[:100]}.")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and n in files for n in names):
            raise ValueError(f"a member's files must be its own, {', '.join(files)}; got {str(names)[:100]}.")
        if len(set(names)) < len(names) or len(names) < len(files):
            raise ValueError(f"each file of a member must be named once; got {str(names)[:100]}.")
        member = BoosterMember(kind, tuple(files[n] for n in names), inputs, _starts(initial, len(names)))
        _ = member.trees  # which says what does not fit
        return member

    return read


def _starts(initial: Any, boosters: int) -> tuple[tuple[float, ...], ...]:
    good = isinstance(initial, list) and len(initial) == boosters and all(isinstance(i, list) for i in initial)
    good = good and len({len(i) for i in initial}) == 1 and 0 < len(initial[0]) <= _MOST
    if not good or not all(type(v) is float and math.isfinite(v) for i in initial for v in i):
        raise ValueError(f"initial must hold finite numbers, as many for each booster; got {str(initial)[:100]}.")
    return tuple(tuple(i) for i in initial)


MEMBER_KINDS.update({kind: _reader(kind) for kind in _ENDINGS})
