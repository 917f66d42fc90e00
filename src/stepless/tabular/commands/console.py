"""Output of the commands: answers on standard output, notes and progress on standard error, errors as sentences."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stepless.extras import needs

with needs("the command line needs typer and rich", "cli", "typer", "rich"):
    import typer
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table as RichTable

__all__ = [
    "BAD_INPUT", "FAILED", "STOPPED", "Watch", "answers", "as_json", "clock", "grid", "handled_errors", "note", "notes",
    "say", "typer",
]  # fmt: skip

FAILED, BAD_INPUT, STOPPED = 1, 2, 130

#: Without a terminal, seconds between lines of progress, and the width of tables.
_EVERY = 5.0
_WIDE = 160


class _Terminal(Console):
    """A console that leaves a closed pipe to `handled_errors`, for which it is no failure."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def answers() -> Console:
    """Standard output."""
    _replace_unknown_letters(sys.stdout)
    return _Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)


def notes() -> Console:
    """Standard error."""
    _replace_unknown_letters(sys.stderr)
    return _Terminal(stderr=True, highlight=False, soft_wrap=True, width=None if sys.stderr.isatty() else _WIDE)


def _replace_unknown_letters(stream: Any) -> None:
    """Write a ? for letters that the encoding lacks: an answer must not be lost because of a minus sign."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


def say(text: str) -> None:
    """Print a line of the answer."""
    answers().print(escape(text))


def note(text: str) -> None:
    """Print a line about what is going on."""
    notes().print(escape(text))


@contextmanager
def handled_errors() -> Iterator[None]:
    """Turn any exception into a sentence and an exit code; ``STEPLESS_DEBUG=1`` shows the traceback too.

    A ValueError, a TypeError or a missing module is something the user can fix (2). Ctrl-C is 130. Anything else is a
    failed run (1).
    """
    try:
        with warnings.catch_warnings():
            # warnings of libraries are for programmers; the answer has warnings of its own
            if os.environ.get("STEPLESS_DEBUG") != "1":
                warnings.simplefilter("ignore")
            yield
            sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as error:
        _fail("Stopped.", error, STOPPED)
    except BrokenPipeError:
        # the reader closed the pipe; otherwise Python would complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (ValueError, TypeError, ModuleNotFoundError) as error:
        _fail(f"Error: {_sentence(error)}", error, BAD_INPUT)
    except MemoryError as error:
        _fail("The run failed: there is not enough memory for it.", error, FAILED)
    except Exception as error:
        _fail(
            f"The run failed: {_sentence(error)} ({type(error).__name__}; STEPLESS_DEBUG=1 shows where)", error, FAILED
        )


def _fail(sentence: str, error: BaseException, code: int) -> None:
    if os.environ.get("STEPLESS_DEBUG") == "1":
        traceback.print_exception(error)
    note(sentence)
    raise typer.Exit(code) from None


def _sentence(error: BaseException) -> str:
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip(" ^")) or type(error).__name__
    if len(text) > 2000:
        text = text[:2000] + "…"
    return text if text.endswith((".", "!", "?", "…", ")")) else text + "."


def as_json(value: Any) -> str:
    r"""Return JSON in which NaN is null and infinity is the text Infinity or -Infinity.

    >>> as_json([float("nan"), float("-inf")])
    '[\n  null,\n  "-Infinity"\n]'
    """
    wide = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    return json.dumps(_finite(value), indent=2, ensure_ascii=not wide, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def grid(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    title: str = "",
    spare: Sequence[int] = (),
) -> Any:
    """Return a table for `rich`, with the texts as they are.

    Args:
        columns: The headings.
        rows: The cells.
        right: Numbers of the right-aligned columns.
        title: The title of the table.
        spare: Numbers of the columns to leave out, in this order, while the others do not fit the terminal.
    """
    least = []
    for i, name in enumerate(columns):  # headings and the first column may be wrapped between words
        cells = [row[i] for row in rows]
        least.append(max(map(len, [*name.split(), *(" ".join(cells).split() if i == 0 else cells)]), default=0))
    kept = list(range(len(columns)))
    for place in spare if sys.stdout.isatty() else ():
        if sum(least[i] + 2 for i in kept) - 2 > answers().width:
            kept.remove(place)
    made = RichTable(title=escape(title) or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i in kept:
        side: Any = "right" if i in right else "left"
        made.add_column(escape(columns[i]), justify=side, overflow="fold", min_width=least[i] if spare else None)
    for row in rows:
        made.add_row(*(escape(row[i]) for i in kept))
    return made


def clock(seconds: float) -> str:
    """Format a time for display.

    >>> clock(75), clock(3.2)
    ('1 min 15 s', '3 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Watch:
    """Progress on standard error: a bar with the time left on a terminal, otherwise a line every few seconds.

    Args:
        what: The things that are counted, such as ``"fits"``.

    Example:
        >>> with Watch("fits") as watch:
        ...     watch(1, 10, "cross-entropy")
    """

    def __init__(self, what: str) -> None:
        self._what, self._console = what, notes()
        self._bar: Progress | None = None
        self._task: Any = None
        self._began = self._told = time.monotonic()
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TextColumn(self._what), TimeElapsedColumn(), TextColumn("gone, left"), TimeRemainingColumn(),
                console=self._console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self._what, total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None, text: str = "", *, restored: bool = False) -> None:
        """Report progress.

        Args:
            done: How much is done.
            total: How much there is; None if unknown.
            text: What was done last.
            restored: Whether it was read from disk, so that its time is no base for an estimate.
        """
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text or self._what)
            return
        if restored or (self._first is None and done):  # the first includes the start of the workers
            self._first = done, now
        first = self._first or (done, now)
        if now - self._told < _EVERY and done != total:
            return
        self._told = now
        of = "" if total is None else f" of {total:,}"
        left = ""
        if total is not None and done > first[0] and done < total:
            left = f", about {clock((now - first[1]) / (done - first[0]) * (total - done))} left"
        self._console.print(escape(f"{done:,}{of} {self._what}, {clock(now - self._began)}{left}"))
