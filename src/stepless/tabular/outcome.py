"""`Outcome`, the result of `stepless.compare`: table, verdict, JSON, report and plots; and how it is displayed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.whole_files import write_whole

#: Binary: the threshold. Multilabel: one a label. Multiclass: the classes' offsets.
Threshold = float | tuple[float, ...]

FORMAT = "stepless comparison 1"


class Progress(NamedTuple):
    """Progress of a comparison: one contestant has finished one fold.

    Attributes:
        done: How many pairs of contestant and fold are finished, including this one.
        total: How many there are.
        key: Key of the contestant.
        repeat: Number of the repeat, from 0.
        fold: Number of the fold, from 0.
        score: The metric on this fold; None if the contestant failed.
        seconds: How long the fit took; 0 if the result was read from disk.
        failed: The error message, if it failed.
    """

    done: int
    total: int
    key: str
    repeat: int
    fold: int
    score: float | None
    seconds: float
    failed: str | None


@dataclass(frozen=True)
class Difference:
    """A contestant minus the baseline, in the metric, with the sign that makes greater better.

    Attributes:
        mean: The mean over the folds.
        interval: Contains the difference with a probability of 95 %.
        better: The probability that the contestant is better by more than the rope.
        same: The probability that they differ by no more than the rope.
        worse: The probability that it is worse by more than the rope.
    """

    mean: float
    interval: tuple[float, float]
    better: float
    same: float
    worse: float


@dataclass(frozen=True, eq=False)
class Entry:
    """The results of one contestant.

    Attributes:
        key: Such as ``"cross_entropy_tuned"``.
        name: The displayed name, such as ``"cross-entropy + tuned threshold"``.
        scores: The metric on every fold of every repeat. Empty if it failed.
        mean: The mean of the scores. NaN if it failed.
        interval: Contains the mean with a probability of 95 %.
        fit_seconds: How long a fit took, on average.
        thresholds: The threshold of each fold. Multilabel: one per label. Multiclass: class offsets.
        threshold: Their median; None if it failed.
        difference: From the baseline; None for the baseline itself, and if either failed.
        probabilities: Of all rows, each by a model that has not seen it (first repeat): ``(n,)`` of the positive class,
            or ``(n, K)``. Calibrated if the contestant calibrates.
        raw: The same before calibration; None if the contestant does not calibrate.
        failed: The error message, if it could not be fitted.
        constraints: For each constraint, the mean of its metric over the folds.
    """

    key: str
    name: str
    scores: tuple[float, ...]
    mean: float
    interval: tuple[float, float]
    fit_seconds: float
    thresholds: tuple[Threshold, ...]
    threshold: Threshold | None
    difference: Difference | None
    probabilities: NDArray[np.float64]
    raw: NDArray[np.float64] | None
    failed: str | None = None
    constraints: tuple[float, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column of the data.

    Attributes:
        name: Its name in the data, or its number.
        kind: ``"number"`` or ``"category"``.
        missing: How many values are missing.
        distinct: How many different values there are.
    """

    name: str
    kind: str
    missing: int
    distinct: int


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of `stepless.compare`.

    Attributes:
        metric: Name of the metric, or the formula.
        metric_options: Its options, such as ``{"beta": 2}``.
        maximize: Whether greater is better.
        average: How classes or labels are averaged; None for the metric's default.
        subject_to: The constraints, as text.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        classes: The classes, in order. Multilabel: the numbers of the labels.
        positive: Binary: the positive class.
        labels: Multilabel: the names of the labels.
        columns: The columns of the data.
        n_rows: The number of rows.
        folds: The number of folds.
        repeats: How often the rows were divided into folds.
        seed: Seed of all random numbers.
        jobs: How many fits ran in parallel.
        entries: The contestants, best mean first. Those that break a constraint come later, those that failed last.
        baseline: Key of the contestant that all others are compared with.
        rope: Contestants that differ by no more than this count as equal in practice.
        target: Binary: ``(n,)``, 1 for the positive class, else 0. Multiclass: indices into `classes`. Multilabel:
            ``(n, L)``.
        weight: The row weights, if there are any.
        winner: Key of the contestant to use.
        verdict: One line with the answer, its figures and, for two classes, which one is positive.
        warnings: Reasons why the data may not support the verdict.
        seconds: How long the comparison took.
        versions: Versions of the libraries that were used.
        name: Name of the data.
        resolved: The metric itself; None if the outcome was read from a file, which holds no functions.
    """

    metric: str
    metric_options: dict[str, Any]
    maximize: bool
    average: str | None
    subject_to: str | None
    task: str
    classes: tuple[Any, ...]
    positive: Any
    labels: tuple[str, ...] | None
    columns: tuple[Column, ...]
    n_rows: int
    folds: int
    repeats: int
    seed: int
    jobs: int
    entries: tuple[Entry, ...]
    baseline: str
    rope: float
    target: NDArray[np.int64]
    weight: NDArray[np.float64] | None
    winner: str
    verdict: str
    warnings: tuple[str, ...]
    seconds: float
    versions: dict[str, str]
    name: str
    resolved: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the metric itself, which may be a function that cannot be pickled."""
        return {**self.__dict__, "resolved": None}

    def entry(self, key: str) -> Entry:
        """Return the entry of the contestant with this key."""
        for entry in self.entries:
            if entry.key == key:
                return entry
        raise KeyError(f"no contestant {key!r}; there are {', '.join(entry.key for entry in self.entries)}.")

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per contestant, best first: all single numbers and texts, and the metrics of the constraints."""
        return [_row(entry, self.constraints) for entry in self.entries]

    @property
    def constraints(self) -> tuple[str, ...]:
        """The constraints, each as text. ``constraints`` of each entry has the values that were reached."""
        return tuple(self.subject_to.split(" and ")) if self.subject_to else ()

    def __str__(self) -> str:
        return "\n".join([*_text_table(self), "", self.verdict, *(f"warning: {text}" for text in self.warnings)])

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return everything as JSON holds it. Numbers that are not finite become the texts NaN, Infinity and -Infinity.

        Args:
            arrays: Whether to include what is as long as the data: target, weights and probabilities.
        """
        left_out = {"resolved", *(() if arrays else ("target", "weight"))}
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        held["entries"] = [
            {f.name: getattr(e, f.name) for f in fields(e) if arrays or f.name not in ("probabilities", "raw")}
            for e in self.entries
        ]
        return {"format": FORMAT, **{name: _to_json(value) for name, value in held.items()}}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a JSON file, which `from_json` reads.

        Args:
            path: The file.
        """
        write_whole(path, json.dumps(self.to_dict(), allow_nan=False))

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Outcome:
        """Read a file that was written by `to_json`.

        Args:
            path: The file.
        """
        try:
            held = json.loads(Path(path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"{path} must be a comparison that to_json wrote; it is not JSON: {error}.") from None
        if not isinstance(held, dict) or held.get("format") != FORMAT:
            raise ValueError(f"{path} must be a comparison that to_json wrote; its format is not {FORMAT!r}.")
        names = {f.name for f in fields(cls)} - {"resolved"}
        missing = sorted(names - set(held))
        if missing:
            raise ValueError(f"{path} must hold a whole comparison; it lacks {', '.join(missing)}.")
        made = {name: held[name] for name in names}
        try:
            made["entries"] = tuple(_read_entry(entry) for entry in held["entries"])
            made["columns"] = tuple(Column(**column) for column in held["columns"])
            for name in ("classes", "warnings"):
                made[name] = tuple(held[name])
            made["labels"] = None if held["labels"] is None else tuple(held["labels"])
            made["target"] = np.array(held["target"], np.int64)
            made["weight"] = None if held["weight"] is None else np.array(held["weight"], np.float64)
            made["rope"], made["seconds"] = float(held["rope"]), float(held["seconds"])
            if held["winner"] not in {entry.key for entry in made["entries"]}:
                raise ValueError(f"winner is {held['winner']!r}, which did not take part")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} must hold a whole comparison; it is damaged ({error}).") from None
        return cls(**made)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file that needs nothing else.

        Args:
            path: The file.
        """
        import_module("stepless.tabular.report").write_report(self, path)

    def plots(self, folder: str | os.PathLike[str], formats: Iterable[str] = ("png", "svg")) -> list[Path]:
        """Draw the curves of the report into files, and return their paths. This needs the extra ``plots``.

        Args:
            folder: The folder for the files.
            formats: File formats: ``"png"``, ``"svg"`` or ``"pdf"``.
        """
        return import_module("stepless.tabular.comparing.plots").draw(self, folder, tuple(formats))


def format_number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Format a number for display; None and NaN become a dash.

    Example:
        >>> format_number(-0.12345), format_number(0.5, 1, sign=True), format_number(None), format_number(math.inf)
        ('−0.123', '+0.5', '–', '∞')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:{'+' if sign else ''}{f'.{digits}f' if abs(value) < 1e4 else '.3g'}}".replace("-", "−")


def format_range(interval: tuple[float, float], digits: int = 3, *, sign: bool = False) -> str:
    """Format an interval for display.

    >>> format_range((-0.1, 0.25))
    '−0.100 to 0.250'
    """
    return " to ".join(format_number(end, digits, sign=sign) for end in interval)


def score_digits(rope: float, least: int = 3) -> int:
    """Return the number of decimals for scores: more than the least if the rope is smaller than they can show.

    >>> score_digits(0.01), score_digits(0.00003)
    (3, 6)
    """
    return max(least, min(12, 1 - math.floor(math.log10(rope)))) if 0 < rope < 1 else least


def clip(text: str, length: int) -> str:
    """Shorten a text to this length, with an ellipsis at the end.

    >>> clip("threshold", 7)
    'thresh…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def format_metric(name: str, options: Mapping[str, Any]) -> str:
    """Format a metric with its options for display.

    >>> format_metric("f_beta", {"beta": 2})
    'f_beta (beta=2)'
    """
    told = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} ({told})" if told else name


def format_threshold(threshold: Threshold | None, digits: int = 2) -> str:
    """Format one or several thresholds for display.

    Example:
        >>> format_threshold(0.2345), format_threshold((0.1, -2.0)), format_threshold(None)
        ('0.23', '0.10, −2.00', '')
        >>> format_threshold(-math.inf)
        'calls every row positive'
    """
    if threshold is None:
        return ""
    if isinstance(threshold, tuple):
        shown = ", ".join(format_cut(t, digits) for t in threshold[:4])
        return shown + (", …" if len(threshold) > 4 else "")
    if math.isinf(threshold):
        return f"calls {'no' if threshold > 0 else 'every'} row positive"
    return format_cut(threshold, digits)


def format_cut(value: float, digits: int = 2) -> str:
    """Format one threshold for display, with more digits if it would be shown as 0 or 1.

    >>> format_cut(0.2345), format_cut(0.00421), format_cut(0.99987), format_cut(-2.0)
    ('0.23', '0.0042', '0.99987', '−2.00')
    """
    if not 0 < value < 1 or 0 < round(value, digits) < 1:
        return format_number(value, digits)
    places = 1 - math.floor(math.log10(min(value, 1 - value)))
    return format_number(value, places) if places <= 12 else f"{value:.2g}".replace("-", "−")


def _row(entry: Entry, constraints: tuple[str, ...]) -> dict[str, Any]:
    gap = entry.difference
    names = ("difference_mean", "difference_low", "difference_high", "better", "same", "worse")
    values = (None,) * 6 if gap is None else (gap.mean, *gap.interval, gap.better, gap.same, gap.worse)
    return {
        "key": entry.key,
        "name": entry.name,
        "mean": entry.mean,
        "low": entry.interval[0],
        "high": entry.interval[1],
        "threshold": entry.threshold,
        "fit_seconds": entry.fit_seconds,
        "failed": entry.failed,
        "constraints": dict(zip(constraints, entry.constraints, strict=False)),  # empty if it failed
        **dict(zip(names, values, strict=True)),
    }


def difference_word(outcome: Outcome) -> str:
    """Return the heading of differences from the baseline: positive is better, even if less of the metric is."""
    return "difference" if outcome.maximize else "gain"


def format_rows(outcome: Outcome, digits: int) -> list[tuple[str, ...]]:
    """Return one row of texts per contestant: name, mean, interval, difference, odds, constraints, threshold, fit time.

    Args:
        outcome: The result of `stepless.compare`.
        digits: Decimals of the scores.
    """
    rows = []
    for entry in outcome.entries:
        if entry.failed is not None:
            rows.append((entry.name, "failed", *[""] * (5 + len(outcome.constraints))))
            continue
        gap = entry.difference
        difference = "" if gap is None else format_number(gap.mean, digits, sign=True)
        rows.append((
            entry.name,
            format_number(entry.mean, digits),
            format_range(entry.interval, digits),
            "baseline" if entry.key == outcome.baseline else difference,
            "" if gap is None else f"{gap.better:.0%} / {gap.same:.0%} / {gap.worse:.0%}",
            *(format_number(value, digits) for value in entry.constraints),
            format_threshold(entry.threshold),
            f"{entry.fit_seconds:.1f} s",
        ))  # fmt: skip
    return rows


def _text_table(outcome: Outcome) -> list[str]:
    metric = clip(format_metric(outcome.metric, outcome.metric_options), 40)
    odds = "better / same / worse"
    head = ("contestant", metric, "95 %", difference_word(outcome), odds, *outcome.constraints, "threshold", "fit")
    rows = [head, *format_rows(outcome, score_digits(outcome.rope, 4))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    errors = ["", *(f"  {entry.failed}" if entry.failed is not None else "" for entry in outcome.entries)]
    return [line + error for line, error in zip(lines, errors, strict=True)]


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _to_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(part) for part in value]
    if isinstance(value, Difference | Column):
        return {f.name: _to_json(getattr(value, f.name)) for f in fields(value)}
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _read_entry(held: dict[str, Any]) -> Entry:
    texts, arrays = ("key", "name", "failed"), ("probabilities", "raw")
    made = {name: value if name in (*texts, *arrays) else _read_numbers(value) for name, value in held.items()}
    for name in arrays:  # NumPy reads the texts NaN, Infinity and -Infinity as numbers, as `float` does
        made[name] = None if held[name] is None else np.array(held[name], np.float64)
    made["difference"] = None if held["difference"] is None else Difference(**made["difference"])
    return Entry(**made)


def _read_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return tuple(map(_read_numbers, value))
    return None if value is None else float(value)
