"""What every table of the papers suite has in common: how it is stated, run, kept, judged and shown.

How to add a table
------------------
1. State it before running: ``config/<paper>.toml`` holds, under the table's name, the protocol, the seeds and the
   tolerances, and under its key ``printed`` what the paper prints. `Table.protocol` and `Table.printed` read them; the
   paper is what stands before the first ``_`` of the table's name. The protocol is copied into the results: where the
   two differ the results are stale, and are run again.
2. Write the table in a module of this folder that `MODULES` names, and put it in that module's list ``TABLES``::

       class Table1(Table):
           name, paper, title = "bridging_1", "Bridging the Gap", "Table 1: four tables, five losses"

           def cells(self, context):            # the names of all cells, "part/part/…", the coarsest part first
               return ["adult/bce", "adult/f1"]

           def compute(self, cells, context):   # of those missing; yield each (or each of a group) when it is done
               for cell in cells:
                   yield cell, {"f1": [0.61, 0.63]}          # JSON: every per-fold (per-trial) number

           def verdicts(self, folds):           # from the cells that are there to what holds; see Verdict
               return [Verdict("F1 on Adult", "0.65", "0.62", REPRODUCED)]

           def show(self, folds):               # markdown, without the heading and without the verdicts
               return [rows(["loss", "F1"], [["bce", mean_sd(folds["adult/bce"]["f1"])]]), picture("bridging_1", "…")]

           def summary(self, folds):            # a sentence or two for the head of the page: what holds, what not
               return "F1* beats BCE at ½, and ties with BCE + tuned threshold."

           def missing(self, folds):            # only where `cells` needs the data: how many cells have not run
               return 178 - len(folds)

           def draw(self, folds):               # matplotlib figures by file name; import matplotlib inside
               return {"bridging_1": figure}    # becomes docs/papers/bridging_1.svg

           def directions(self, folds):         # what must hold even in the slice that --quick runs
               return {"F1* beats BCE at ½ on F1": True}

   `verdicts`, `show` and `draw` must cope with cells that are not there yet.
3. ``context.quick`` asks for a slice: few sets, few folds, seconds. It goes to a folder of its own, never into the
   results. ``context.device`` is where to train; ``context.jobs`` how many threads there are.
4. At their head modules import torch, numpy, stepless and this folder's modules alone: the machine with the GPU has no
   other library. Import scikit-learn, pandas, matplotlib inside the functions that need them. Name in `Table.needs`
   what a table cannot run without; where it is missing the table is passed over. Data come from `packed`, which reads
   an ``.npz`` made from STEPLESS_DATA: put a function into ``PACKS`` of a module ``pack_<paper>.py``.

A file of results has one object: ``table``, ``commit``, ``protocol``, ``seconds``, ``versions``, ``machine``, ``runs``
(what each run was made with, by a digest), ``folds`` (by cell: ``value``, ``run``, ``seconds``) and ``verdicts``. It is
written whole or not at all, after each cell or group of cells, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stepless as sl

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results"
PACKED = Path(os.environ.get("STEPLESS_PACKED", ROOT / "build" / "papers"))
#: In the order of the page.
MODULES = (
    "anyloss_scale",
    "anyloss_sets",
    "anyloss_four",
    "anyloss_variants",
    "anyloss_time",
    "anyloss_large",
    "bridging",
    "theory",
    "east",
)
_LIBRARIES = ("torch", "numpy", "scikit-learn", "imbalanced-learn", "baycomp", "scipy")

REPRODUCED, NOT_REPRODUCED, NOT_RUNNABLE = "reproduced", "not reproduced", "not runnable here"

Json = Any
#: The values of a table's cells, by name.
Folds = dict[str, Json]


@dataclass(frozen=True)
class Verdict:
    """One claim of a paper, what we found, and what follows.

    Attributes:
        claim: In words.
        printed: What the paper prints.
        found: What we measured.
        verdict: `REPRODUCED`, `NOT_REPRODUCED` or `NOT_RUNNABLE`.
        reason: Why not; must be there unless it was reproduced.
    """

    claim: str
    printed: str
    found: str
    verdict: str
    reason: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in {REPRODUCED, NOT_REPRODUCED, NOT_RUNNABLE}:
            raise ValueError(
                f"a verdict is {REPRODUCED!r}, {NOT_REPRODUCED!r} or {NOT_RUNNABLE!r}; got {self.verdict!r}."
            )
        if self.verdict != REPRODUCED and not self.reason:
            raise ValueError(f"say why: {self.claim} is {self.verdict}, without a reason.")


def judged(claim: str, printed: str, found: str, *, holds: bool, reason: str) -> Verdict:
    """Reproduced if it holds, otherwise not, for the reason given."""
    return (
        Verdict(claim, printed, found, REPRODUCED, "")
        if holds
        else Verdict(claim, printed, found, NOT_REPRODUCED, reason)
    )


@dataclass(frozen=True)
class Context:
    """How to run: on which device, whether only a slice, and with how many threads."""

    device: str = "cpu"
    quick: bool = False
    jobs: int = 1


class Table:
    """A table (or a few that come from the same runs) of a paper; the head of this module says how to write one."""

    name: str
    paper: str
    title: str
    #: Libraries without which its cells cannot be computed.
    needs: tuple[str, ...] = ()
    #: Whether nothing else may run beside it: it measures time.
    alone: bool = False

    @property
    def protocol(self) -> Json:
        """What the config says of how to run and judge this table."""
        return {key: value for key, value in config(self.name.partition("_")[0])[self.name].items() if key != "printed"}

    @property
    def printed(self) -> Json:
        """What the paper prints, as the config has it."""
        return config(self.name.partition("_")[0])[self.name].get("printed", {})

    def cells(self, context: Context) -> list[str]:
        raise NotImplementedError

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        raise NotImplementedError

    def verdicts(self, folds: Folds) -> list[Verdict]:
        raise NotImplementedError

    def show(self, folds: Folds) -> list[str]:
        raise NotImplementedError

    def summary(self, folds: Folds) -> str:
        """What a reader should know of it in a minute; the verdicts are counted beside it."""
        return ""

    def missing(self, folds: Folds) -> int:
        """How many of its cells have not run; override where naming the cells needs the data."""
        return sum(cell not in folds for cell in self.cells(Context(device="cuda")))

    def draw(self, folds: Folds) -> dict[str, Any]:
        return {}

    def directions(self, folds: Folds) -> dict[str, bool]:
        return {}


@cache
def config(name: str) -> dict[str, Any]:
    """The config file of a paper."""
    return tomllib.loads((HERE / "config" / f"{name}.toml").read_text(encoding="utf-8"))


def tables(chosen: Sequence[str] = ()) -> list[Table]:
    """All tables, or those whose names match one of these patterns (``anyloss_6_slp``, ``bridging*``)."""
    found: list[Table] = []
    for module in MODULES:
        if (HERE / f"{module}.py").exists():
            found += importlib.import_module(module).TABLES
    if not chosen:
        return found
    if lost := [p for p in chosen if not any(fnmatch.fnmatch(t.name, p) for t in found)]:
        sys.exit(f"no table is called {', '.join(lost)}; there are {', '.join(t.name for t in found)}.")
    return [t for t in found if any(fnmatch.fnmatch(t.name, p) for p in chosen)]


def folds_of(name: str) -> Folds:
    """What the results of another table hold."""
    return Results.read(next(table for table in tables() if table.name == name)).folds


def packed(name: str) -> dict[str, np.ndarray]:
    """Arrays of ``build/papers/<name>.npz``, which is made from STEPLESS_DATA if it is not there."""
    path = PACKED / f"{name}.npz"
    if not path.exists():
        import pack  # noqa: PLC0415 - needs pandas

        pack.write(name)
    with np.load(path) as arrays:
        return {key: arrays[key] for key in arrays.files}


# ---------------------------------------------------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------------------------------------------------


@cache
def source() -> str:
    """A digest of the package's source and of this folder's."""
    digest = hashlib.sha256()
    for path in sorted([*Path(sl.__file__).parent.glob("**/*.py"), *HERE.glob("*.py")]):
        if path.name not in {"page.py", "run.py"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def about(device: str) -> dict[str, Any]:
    """What a result depends on beside the protocol: commit, source, versions, machine."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False)
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__
    machine = {"device": torch.cuda.get_device_name() if device.startswith("cuda") else _processor(),
               "cores": os.cpu_count(), "threads": torch.get_num_threads(), "system": platform.system()}  # fmt: skip
    commit = os.environ.get("STEPLESS_COMMIT") or asked.stdout.strip() or "unknown"
    return {"commit": commit, "source": source(), "versions": versions, "machine": machine}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@dataclass
class Results:
    """The file of a table."""

    table: Table
    folder: Path = RESULTS
    runs: dict[str, Json] = field(default_factory=dict)
    cells: dict[str, Json] = field(default_factory=dict)
    #: What the file says, where the table is only shown and not run.
    verdicts: list[Verdict] = field(default_factory=list)

    @classmethod
    def read(cls, table: Table, folder: Path = RESULTS) -> Results:
        """What is there; nothing, if the protocol has changed since."""
        results, path = cls(table, folder), folder / f"{table.name}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["protocol"] == json.loads(json.dumps(table.protocol)):
                results.runs, results.cells = found["runs"], found["folds"]
                results.verdicts = [Verdict(**v) for v in found["verdicts"]]
        return results

    @property
    def folds(self) -> Folds:
        """The value of every cell there is."""
        return {name: cell["value"] for name, cell in self.cells.items()}

    def add(self, done: Iterable[tuple[str, Json]], seconds: float, device: str) -> None:
        """Cells that took so long together."""
        made, done = about(device), list(done)
        key = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:8]
        self.runs[key] = made
        for name, value in done:
            self.cells[name] = {"value": _short(value), "run": key, "seconds": round(seconds / len(done), 3)}
        used = {cell["run"] for cell in self.cells.values()}
        self.runs = {key: run for key, run in self.runs.items() if key in used}

    def merge(self, other: Results) -> None:
        """Take over what another file has: cells of another machine, for instance."""
        self.runs |= other.runs
        self.cells |= other.cells

    def write(self, *, judge: bool = True) -> None:
        """Write the file whole or not at all; verdicts of many sets take longer to find than to write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if judge:
            self.verdicts = self.table.verdicts(self.folds) if self.cells else []
        last = (
            self.runs[max(self.cells.values(), key=lambda c: list(self.runs).index(c["run"]))["run"]]
            if self.cells
            else {}
        )
        head = {
            "table": self.table.name,
            "commit": last.get("commit", ""),
            "versions": last.get("versions", {}),
            "machine": last.get("machine", {}),
            "seconds": round(sum(cell["seconds"] for cell in self.cells.values()), 1),
            "protocol": self.table.protocol,
            "runs": self.runs,
            "verdicts": [asdict(v) for v in self.verdicts],
        }
        lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
        cells = [f"  {json.dumps(name)}: {json.dumps(cell)}" for name, cell in sorted(self.cells.items())]
        lines.append(' "folds": {\n' + ",\n".join(cells) + "\n }")
        path = self.folder / f"{self.table.name}.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        part.replace(path)


def _short(value: Json) -> Json:
    """Six digits are more than any of these numbers has."""
    if isinstance(value, dict):
        return {str(k): _short(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_short(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}")
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class Choice:
    """Which cells of a table to compute.

    Attributes:
        patterns: Those that match one of these; all, if there are none.
        again: Also those that are there already.
        shard: ``(k, n)``: of the coarsest parts every n-th, from the k-th on.
    """

    patterns: Sequence[str] = ()
    again: bool = False
    shard: tuple[int, int] = (0, 1)

    def without_cell(self, cells: Sequence[str]) -> list[str]:
        """The patterns that match none of the cells."""
        return [pattern for pattern in self.patterns if not any(_matches(cell, pattern) for cell in cells)]

    def of(self, cells: Sequence[str]) -> list[str]:
        """Those of the cells that are chosen."""
        return [c for c in cells if not self.patterns or any(_matches(c, p) for p in self.patterns)]

    def share(self, cells: Sequence[str]) -> list[str]:
        """Those of the cells that are the shard's own."""
        parts = list(dict.fromkeys(cell.partition("/")[0] for cell in cells))
        mine = set(parts[self.shard[0] :: self.shard[1]])
        return [cell for cell in cells if cell.partition("/")[0] in mine]


def run(
    table: Table, context: Context, folder: Path, choice: Choice | None = None, into: Path | None = None
) -> Results:
    """Compute the chosen cells that are missing from a folder, and keep them at once, there or in another folder."""
    choice = choice or Choice()
    results = Results.read(table, folder)
    results.folder = into or folder
    again, wanted = choice.again, choice.of(table.cells(context))
    missing = wanted if again else [c for c in wanted if c not in results.cells]
    there = len(wanted) - len(missing)
    missing = choice.share(missing)
    if lacks := [name for name in table.needs if importlib.util.find_spec(name) is None]:
        print(f"{table.name}: passed over, {', '.join(lacks)} not here", flush=True)
        return results
    print(f"{table.name}: {there} of {len(wanted)} cells there, {len(missing)} to do", flush=True)
    begun = since = time.perf_counter()
    group: list[tuple[str, Json]] = []
    left = len(missing)
    for cell, value in table.compute(missing, context) if missing else ():
        group.append((cell, value))
        left -= 1
        now = time.perf_counter()
        # cells of one batch come at once: a write for each would cost more than they did
        if now - since >= 1.0 or left == 0:
            results.add(group, now - since, context.device)
            results.write(judge=False)
            print(f"{table.name}: {group[-1][0]} and before, {left} left, {now - begun:.0f} s", flush=True)
            group, since = [], time.perf_counter()
    if group:
        results.add(group, time.perf_counter() - since, context.device)
    if missing:
        results.write()
    return results


def _matches(cell: str, pattern: str) -> bool:
    """A pattern of the whole name, or of its first parts."""
    return fnmatch.fnmatch(cell, pattern) or fnmatch.fnmatch(cell, f"{pattern}/*")


# ---------------------------------------------------------------------------------------------------------------------
# Words
# ---------------------------------------------------------------------------------------------------------------------


def rows(head: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """A markdown table."""
    if any(len(row) != len(head) for row in body):
        raise ValueError(f"every row must have the {len(head)} columns of the head: {', '.join(head)}.")
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *body])


def picture(name: str, words: str) -> str:
    """A link to a picture that `Table.draw` makes."""
    return f"![{words}](papers/{name}.svg)"


def mean_sd(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation, or the one value there is."""
    array = np.asarray(values, float)
    text = f"{array.mean():.{digits}f}"
    return f"{text} ± {array.std(ddof=1):.{digits}f}" if array.size > 1 else text
