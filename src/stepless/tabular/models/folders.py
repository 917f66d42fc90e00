"""The folder of a saved model: written whole or not at all, and not trusted when it is read.

```text
 path/model.json            the document: names and hashes of the other files, and a hash of itself
 path/members-1f3a9c2b/     the files of this document, in a folder that no other document has used
```

Saving writes the files into a new ``members-…`` folder, then replaces ``model.json`` by a single rename, and then
removes the files of the old document. A reader sees the old document with its files or the new one with its own, even
if the writer is killed in between. That leaves a folder or a ``.tmp`` file, which a save an hour later removes. Several
processes may save and load at once; the last one to save wins. A model saved to two new places is the same bytes in
both.

The hashes find files that are damaged or mixed up. They are no signature: whoever can write files can write hashes. So
reading is harmless whatever the files hold: JSON, and bytes that members check themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepless.tabular.whole_files import STALE, sync_folder, write_whole

FORMAT, FORMAT_VERSION = "stepless model", 1

_DOCUMENT = "model.json"
_LARGEST_DOCUMENT = 2**24
_FOLDER, _FILE, _SHA256 = (
    re.compile(p) for p in (r"members-[0-9a-f]{8}", r"[a-z0-9][a-z0-9._-]{0,79}", r"[0-9a-f]{64}")
)
_TEMPORARY = re.compile(r"model\.json-[0-9a-f]{8}\.tmp")
#: The keys of a document that are added to it when it is written.
HEAD = ("format", "format_version", "sha256", "folder", "files")
_TRIES = 5


class ModelFileError(ValueError):
    """A saved model that cannot be read: truncated, altered, foreign, or from a newer version."""


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def to_text(document: Mapping[str, Any], files: Mapping[str, bytes], folder: str) -> bytes:
    """The bytes of ``model.json``: the document, with the hashes of its files and of itself."""
    for name in files:
        if not _FILE.fullmatch(name):
            raise ValueError(f"the name of a member's file must be of a-z, 0-9, '.', '_' and '-'; got {name!r}.")
    entries = {name: {"bytes": len(data), "sha256": _digest(data)} for name, data in files.items()}
    head = {"format": FORMAT, "format_version": FORMAT_VERSION}
    whole = {**head, **document, "folder": folder, "files": entries}
    try:
        text = json.dumps({**whole, "sha256": _digest(_canonical(whole))}, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"a saved model holds what JSON does, and finite numbers alone: {error}.") from None
    if len(text) > _LARGEST_DOCUMENT:
        raise ValueError(
            f"{_DOCUMENT} may have {_LARGEST_DOCUMENT} bytes; this model's would have {len(text)}. Most of it will be"
            " the levels of categories: let rare ones share a column."
        )
    return text


def write_folder(path: str | os.PathLike[str], document: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a document and its files, in place of what the folder held."""
    root = Path(path)
    check_place(root)
    folder = _make_folder(root, f"members-{_digest(to_text(document, files, ''))[:8]}")
    text = to_text(document, files, folder)
    for name, data in files.items():
        write_whole(root / folder / name, data)
    sync_folder(root)
    sync_folder(root.parent)
    replaced = _folder_of(root)
    write_whole(root / _DOCUMENT, text)
    _tidy(root, folder, replaced)


def _make_folder(root: Path, own: str) -> str:
    """Make the members' folder; in a new place under its own name, so that a model is always the same bytes there.

    Beside a document the name is random: another process may be about to remove a folder of the own name.
    """
    try:
        (root / own).mkdir(parents=True)
    except FileExistsError:
        pass  # the same model is saved there, or being saved
    else:
        if not (root / _DOCUMENT).exists():
            return own
        shutil.rmtree(root / own, ignore_errors=True)
    name = f"members-{secrets.token_hex(4)}"
    (root / name).mkdir()
    return name


def check_place(root: Path) -> None:
    """Raise a ValueError if a save would write into something other than a model's folder.

    Where nothing may be written, raise a PermissionError.
    """
    nearest = next((place for place in (root, *root.parents) if place.exists()), root)
    if not nearest.is_dir():
        raise ValueError(f"a model is saved as a folder; {nearest} is a file. Choose another path.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(
            f"a model cannot be saved in {nearest}, which may not be written to. Choose another path."
        )
    if not root.exists():
        return
    names = set(os.listdir(root))
    if _DOCUMENT in names:
        try:
            found = json.loads(_read(root / _DOCUMENT, _LARGEST_DOCUMENT))
        except (OSError, ValueError, RecursionError):
            return  # a damaged document may be replaced
        ours = isinstance(found, dict) and found.get("format") == FORMAT
    else:
        ours = all(_FOLDER.fullmatch(name) or _TEMPORARY.fullmatch(name) for name in names)
    if not ours:
        raise ValueError(
            f"{root} holds other files than a model's. Choose a path that is new, empty, or a saved model."
        )


def _folder_of(root: Path) -> str | None:
    """The members' folder of the current document; None if it cannot be read."""
    try:
        return str(json.loads(_read(root / _DOCUMENT, _LARGEST_DOCUMENT))["folder"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _tidy(root: Path, kept: str, replaced: str | None) -> None:
    """Remove the files of the replaced document, and what interrupted saves left an hour ago or earlier."""
    for name in os.listdir(root):
        if name == kept or not _FOLDER.fullmatch(name):
            continue
        path = root / name
        try:
            if name != replaced and time.time() - path.lstat().st_mtime < STALE:
                continue  # another process may be saving
            shutil.rmtree(path)
        except OSError:
            continue  # what cannot be removed does no harm


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def read_folder(path: str | os.PathLike[str], max_bytes: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the document of a folder and its files; raise a `ModelFileError` unless all are as they were written.

    Args:
        path: The folder.
        max_bytes: The largest total size of the files.
    """
    root = Path(path)
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise ModelFileError(f"a saved model is a folder with a {_DOCUMENT}; {root} {found}.")
    text = _read(root / _DOCUMENT, _LARGEST_DOCUMENT)
    for _ in range(_TRIES):
        try:
            document = from_text(text)
            return document, _read_files(root, document, max_bytes)
        except ModelFileError:
            before, text = text, _read(root / _DOCUMENT, _LARGEST_DOCUMENT)
            if text == before:
                raise
    raise ModelFileError(f"{root} is being saved to again and again. Load it when that is over.")


def from_text(text: bytes) -> dict[str, Any]:
    """Parse a ``model.json``; raise a `ModelFileError` unless it is whole."""
    try:
        document = json.loads(
            text.decode(), object_pairs_hook=_distinct, parse_constant=_refuse_constant, parse_float=_finite
        )
        foreign = not isinstance(document, dict) or document.get("format") != FORMAT
        # a hash of the JSON and not of the text, so that line ends and indentation do not matter
        digest = "" if foreign else _digest(_canonical({k: v for k, v in document.items() if k != "sha256"}))
    except RecursionError:
        raise ModelFileError(f"{_DOCUMENT} is nested too deeply to be one that stepless wrote.") from None
    except ValueError as error:  # also UnicodeDecodeError and JSONDecodeError
        raise ModelFileError(f"{_DOCUMENT} is truncated or damaged: {_short(error)}.") from None
    if foreign:
        raise ModelFileError(f'{_DOCUMENT} was not written by stepless: it does not say "format": "{FORMAT}".')
    version = document.get("format_version")
    if type(version) is not int or version < 1:
        raise ModelFileError(f"{_DOCUMENT} must have a format_version of 1 or more; got {_short(version)}.")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{_DOCUMENT} has format version {_short(version)} and this stepless reads up to {FORMAT_VERSION}: a newer"
            ' one wrote it. Upgrade: pip install --upgrade "stepless[sklearn]"'
        )
    if document.get("sha256") != digest:
        raise ModelFileError(f"{_DOCUMENT} was altered after it was saved: its contents do not match its sha256.")
    missing = [name for name in HEAD if name not in document]
    if missing:
        raise ModelFileError(f"{_DOCUMENT} lacks {', '.join(missing)}.")
    return document


def _read_files(root: Path, document: dict[str, Any], max_bytes: int) -> dict[str, bytes]:
    folder, entries = document["folder"], document["files"]
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise ModelFileError(f"the members' folder must be named as in members-1f3a9c2b; got {_short(folder)}.")
    if not isinstance(entries, dict):
        raise ModelFileError(f"files must be a dict of names; got {_short(entries)}.")
    total = 0
    for name, entry in entries.items():
        if not _FILE.fullmatch(name):  # no separator, no "..": it stays in its folder
            raise ModelFileError(f"the name of a member's file must be of a-z, 0-9, '.', '_', '-'; got {_short(name)}.")
        good = isinstance(entry, dict) and set(entry) == {"bytes", "sha256"} and type(entry["bytes"]) is int
        if not good or not isinstance(entry["sha256"], str) or not _SHA256.fullmatch(entry["sha256"]):
            raise ModelFileError(f"the entry of {name} must have its bytes and its sha256; got {_short(entry)}.")
        total += max(entry["bytes"], 0)
    if total > max_bytes:
        raise ModelFileError(
            f"the model's files may have {max_bytes} bytes and have {_short(total)}. If you trust them, pass a larger"
            " max_bytes."
        )
    try:
        if not stat.S_ISDIR(os.lstat(root / folder).st_mode):
            raise ModelFileError(f"{folder} must be a folder, and no link to one.")
    except FileNotFoundError:
        raise ModelFileError(f"the model's folder {folder} is missing. Copy a saved model as a whole.") from None
    files = {}
    for name, entry in entries.items():
        data = _read(root / folder / name, entry["bytes"])
        if len(data) != entry["bytes"] or _digest(data) != entry["sha256"]:
            raise ModelFileError(f"{folder}/{name} was altered or cut short after it was saved: its sha256 differs.")
        files[name] = data
    return files


def _read(path: Path, limit: int) -> bytes:
    """Read a plain file of at most ``limit`` bytes, without following links or waiting for pipes."""
    try:
        handle = os.open(path, os.O_RDONLY | sum(getattr(os, f, 0) for f in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")))
    except FileNotFoundError:
        raise ModelFileError(f"a saved model needs {path.name}, which is not there: {path}.") from None
    except OSError as error:
        raise ModelFileError(f"{path} must be a plain file that can be read: {error.strerror}.") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} must be a plain file; it is something else.")
        if status.st_size > limit:
            raise ModelFileError(f"{path} may have {limit} bytes; it has {status.st_size}.")
        with open(handle, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(handle)


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key occurs twice in one dict")
    return entries


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{_short(text)} is too large for a number")
    return number


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
