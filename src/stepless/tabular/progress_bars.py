"""A progress bar on the error stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepless.extras import needs


@contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar; the function it gives takes how much is done, and the text to show beside the bar."""
    with needs("a progress bar needs rich", "sklearn", "rich"):
        from rich.console import Console  # noqa: PLC0415 - without a bar rich is not needed
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)
