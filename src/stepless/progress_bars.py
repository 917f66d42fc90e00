"""A bar that shows how far long work has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepless.extras import needs


@contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int, str], None]]:
    """A bar on the error stream, and what moves it: how much is done, and what to write beside it."""
    with needs("a progress bar needs rich", "sklearn", "rich"):
        from rich.console import Console  # noqa: PLC0415 - whoever wants no bar needs no rich
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)
