"""Files that are written whole or not at all.

A file is written beside its place and then moved there by one rename, so after a failure or a kill at any moment the
old file or the new one is there. The next write removes what a kill has left, once it is an hour old.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

#: After this many seconds a temporary file is taken to belong to no running process.
STALE = 3600.0


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write into, which replaces ``path`` when the block succeeds; otherwise ``path`` stays as it was.

    Links are followed. A path that is no plain file, such as ``/dev/null`` or a pipe, is written to directly, since a
    rename would put a file in its place.

    Args:
        path: The file, in a folder that exists.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with whole_file(f"{folder}/a.txt") as file:
        ...         _ = file.write(b"whole")
        ...     os.listdir(folder)
        ['a.txt']
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file to be written.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} into; make it first.")
    if target.exists() and not target.is_file():
        with open(target, "wb") as file:
            yield file
        return
    temporary = target.with_name(f"{target.name}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)  # the rename itself must outlive a loss of power
    _sweep(target)


@contextmanager
def whole_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """The same as `whole_file` for text in UTF-8, without conversion of line ends."""
    with whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # flushes, and leaves the file open


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a whole file at once; text as UTF-8."""
    with whole_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, on systems that can open a folder."""
    with suppress(AttributeError, PermissionError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sweep(target: Path) -> None:
    """Remove what interrupted writes of the same file left an hour ago or earlier."""
    left_over = re.compile(re.escape(target.name) + r"-[0-9a-f]{8}\.tmp")
    with suppress(OSError):  # what cannot be removed does no harm
        for name in os.listdir(target.parent):
            left = target.with_name(name)
            if left_over.fullmatch(name) and time.time() - left.lstat().st_mtime >= STALE:
                left.unlink()
