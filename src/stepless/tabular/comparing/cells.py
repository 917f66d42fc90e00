"""The cells of a comparison, each one contestant on one fold, and the folder that stores finished ones.

```text
 folder/run.json                      identifies the comparison: hash of the data, settings, versions
 folder/cells/metric-0-3.npz          probabilities of the fold's rows
 folder/cells/metric-0-3.json         everything else; written last, so a cell with this file is complete
```

Every file is written under another name and then renamed, so it is complete whenever a process dies.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.outcome import Threshold
from stepless.tabular.tables.frames import Table
from stepless.tabular.whole_files import write_whole

_RUN, _CELLS = "run.json", "cells"
_OURS = re.compile(r"[a-z0-9_]+-\d+-\d+\.(json|npz)(-[0-9a-f]{8}\.tmp)?")

#: A contestant's key, the repeat and the fold.
Place = tuple[str, int, int]


@dataclass(frozen=True, eq=False)
class Cell:
    """A contestant on one fold.

    Attributes:
        key: Key of the contestant.
        repeat: Number of the repeat, from 0.
        fold: Number of the fold, from 0.
        score: The metric on the rows of the fold.
        threshold: The threshold that decided these rows.
        seconds: How long the fit took.
        constraints: The metric of each constraint on these rows.
        probabilities: Probabilities of these rows, in order; None after the first repeat.
        raw: The same before calibration; None without calibration.
        failed: The error message, if the contestant failed here.
    """

    key: str
    repeat: int
    fold: int
    score: float = float("nan")
    threshold: Threshold = float("nan")
    seconds: float = 0.0
    constraints: tuple[float, ...] = ()
    probabilities: NDArray[np.float64] | None = None
    raw: NDArray[np.float64] | None = None
    failed: str | None = None

    @property
    def place(self) -> Place:
        """Its position in the grid."""
        return self.key, self.repeat, self.fold


class CellFolder:
    """A folder of finished cells, for one comparison and no other.

    Args:
        path: The folder; created if it does not exist.
        run: What identifies the comparison, from `describe_run`.
        resume: Whether to keep existing cells; otherwise they are removed.
    """

    def __init__(self, path: str | os.PathLike[str], run: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"finished cells are kept in a folder; {self.path} is a file. Choose another path.")
        if resume:
            self._check_run(run)
        else:
            self._clear()
        (self.path / _CELLS).mkdir(parents=True, exist_ok=True)
        write_whole(self.path / _RUN, json.dumps(run, indent=1).encode())

    def write(self, cell: Cell) -> None:
        """Store a cell."""
        arrays = {name: a for name, a in (("probabilities", cell.probabilities), ("raw", cell.raw)) if a is not None}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        data = buffer.getvalue()
        held = {
            "score": repr(cell.score),
            "threshold": _texts(cell.threshold),
            "seconds": cell.seconds,
            "constraints": [repr(value) for value in cell.constraints],
            "failed": cell.failed,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        write_whole(self._file(cell.place, "npz"), data)
        write_whole(self._file(cell.place, "json"), json.dumps(held).encode())

    def read(self, place: Place) -> Cell | None:
        """Return a stored cell; None if it is missing, damaged or of a contestant that failed."""
        try:
            held = json.loads(self._file(place, "json").read_bytes())
            data = self._file(place, "npz").read_bytes()
            if held["failed"] is not None or hashlib.sha256(data).hexdigest() != held["sha256"]:
                return None
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            return Cell(
                *place, float(held["score"]), _numbers(held["threshold"]), float(held["seconds"]),
                tuple(map(float, held["constraints"])), found.get("probabilities"), found.get("raw"),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, BadZipFile):
            return None

    def _file(self, place: Place, ending: str) -> Path:
        key, repeat, fold = place
        return self.path / _CELLS / f"{key}-{repeat}-{fold}.{ending}"

    def _check_run(self, run: Mapping[str, Any]) -> None:
        """Raise if the folder belongs to another comparison."""
        try:
            before = json.loads((self.path / _RUN).read_bytes())
        except FileNotFoundError:
            self._clear()  # nothing tells what such cells belong to
            return
        except (OSError, ValueError):
            before = None
        if not isinstance(before, dict):
            raise ValueError(
                f"{self.path / _RUN} is damaged, so nothing tells what the cells there belong to; start anew with"
                " resume=False."
            )
        now = json.loads(json.dumps(run))
        if before == now:
            return
        differs = [name for name in now if before.get(name) != now[name]]
        what = " and ".join(differs) or "format"
        verb = "differ" if {*differs} - {"data"} else "differs"
        detail = ""
        if differs == ["settings"] and isinstance(before.get("settings"), dict):
            changed = [k for k in now["settings"] if before["settings"].get(k) != now["settings"][k]]
            detail = "".join(
                f" ({k} was {before['settings'].get(k)!r}, is {now['settings'][k]!r})" for k in changed[:2]
            )
        raise ValueError(
            f"{self.path} holds the cells of another comparison: its {what} {verb}{detail}. Resume with what it was"
            " begun with, or start anew with resume=False."
        )

    def _clear(self) -> None:
        (self.path / _RUN).unlink(missing_ok=True)
        cells = self.path / _CELLS
        for file in cells.iterdir() if cells.is_dir() else ():
            if _OURS.fullmatch(file.name):
                file.unlink()


def describe_run(
    table: Table,
    y: NDArray[Any],
    weight: NDArray[Any] | None,
    groups: NDArray[Any] | None,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Describe a comparison in short: two runs with equal descriptions have equal cells.

    Args:
        table: The rows.
        y: The labels.
        weight: The row weights.
        groups: The group of each row.
        settings: Everything else that the cells depend on, as JSON.
        versions: Versions of the libraries that compute the cells.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([table.names, table.kinds, table.rows]).encode())
    for i in range(table.width):
        _feed(digest, table.column(i))
    for array in (y, weight, groups):
        digest.update(b"|")
        if array is not None:
            _feed(digest, array)
    return {"data": digest.hexdigest(), "settings": dict(settings), "versions": dict(versions)}


def _feed(digest: Any, values: NDArray[Any]) -> None:
    digest.update(f"{values.dtype.kind}{values.shape}".encode())
    if values.dtype.kind in "OUT":
        for value in values.ravel().tolist():
            text = "" if value is None else str(value)
            digest.update(f"{'-' if value is None else len(text)}:{text}".encode("utf-8", "surrogatepass"))
    else:
        wide = values.astype(np.float64) if values.dtype.kind == "f" else values
        digest.update(np.ascontiguousarray(wide).tobytes())


def _texts(threshold: Threshold) -> Any:
    return [repr(t) for t in threshold] if isinstance(threshold, tuple) else repr(threshold)


def _numbers(held: Any) -> Threshold:
    return tuple(map(float, held)) if isinstance(held, list) else float(held)
