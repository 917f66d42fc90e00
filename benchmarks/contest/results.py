"""The results of the contest: one file a set, with a score for each contestant, metric and fold."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import stepless as sl

HERE = Path(__file__).parent
FOLDER = HERE / "results"
_LIBRARIES = ("torch", "numpy", "scikit-learn", "lightgbm", "xgboost-cpu", "catboost")

Record = dict[str, Any]


@cache
def about() -> dict[str, Any]:
    """What a result depends on beside the config: the commit, a digest of the package's source, and versions."""
    given = os.environ.get("STEPLESS_COMMIT")  # where there is a copy of the files alone
    asked = ["git", "rev-parse", "HEAD"]
    commit = given or subprocess.run(asked, capture_output=True, text=True, cwd=HERE, check=False).stdout.strip()
    digest = hashlib.sha256()
    for path in sorted(Path(sl.__file__).parent.glob("**/*.py")):
        digest.update(path.read_bytes())
    versions = {name: version(name) for name in _LIBRARIES if _installed(name)}
    return {"commit": commit, "source": digest.hexdigest()[:12], "versions": versions}


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:  # a contestant that was left out
        return False


def read(name: str, folder: Path = FOLDER) -> Record | None:
    """The results of a set, if there are any."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_all(folder: Path = FOLDER) -> list[Record]:
    """The results of all sets there are, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def write(record: Record, folder: Path = FOLDER) -> None:
    """Write the results of a set whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['set']}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    lines = [f' "{key}": {json.dumps(value)}' for key, value in record.items() if key != "entries"]
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record["entries"].items()]
    lines.append(' "entries": {\n' + ",\n".join(entries) + "\n }")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(path)
