"""Files as rows of text: compression, encodings, delimiters and quotes, with errors that name the place.

A file is read as a stream and never held whole, so its size does not matter. Its first bytes say what it is, not its
name alone. Whatever is wrong with it is a `TableError`, a sentence with the file, the row and, where there is one, the
column.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

#: The most characters of a line and of a value: anything longer is no table, or has a quote left open.
_LONGEST_LINE = 1 << 26
_LONGEST_VALUE = 1 << 20
#: How many bytes are buffered, all of which are looked at to find the delimiter.
_HEAD = 1 << 16
_DELIMITERS = ",\t;|"
#: How many bytes of a pipe are kept in memory; more of them go to a temporary file.
_SPOOLED = 1 << 26
_PARQUET = b"PAR1"
#: A byte that does not decode, as Python's "surrogateescape" hands it on.
_STRAY = re.compile("[\udc80-\udcff]")
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
#: Byte order marks; that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
#: How files of other kinds begin, what they are called, and what to do.
_OTHERS = {
    rb"PK\x03\x04.*(_rels/\.rels|\[Content_Types\]|opendocument\.spreadsheet)": "a workbook; save its sheet as CSV",
    rb"PK\x03\x04": "a zip archive; unpack it, or compress the table with gzip",
    rb"\xd0\xcf\x11\xe0": "a workbook of an old Excel; save its sheet as CSV",
    rb"ARROW1\0\0": "an Arrow file, as Feather is; save it as Parquet",
    rb"\s*(\[\s*)?\{\s*\"": "JSON; save it as CSV or Parquet",
    rb"(\xef\xbb\xbf)?\"?sep=[^\r\n]{1,2}\r?\n": "CSV after a line for Excel (sep=…); remove that line",
}
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)


class TableError(ValueError):
    """A table that cannot be read; the sentence says where and why."""


class Source:
    """A table's file, or standard input (``-``), which can be read from its beginning more than once.

    Args:
        path: The file.
        delimiter: What separates values; None to find it.
        encoding: Of the text; None for UTF-8. A byte order mark goes before both.
        once: Whether the rows are read once only: then a pipe is not kept.
    """

    def __init__(
        self, path: str, *, delimiter: str | None = None, encoding: str | None = None, once: bool = False
    ) -> None:
        if delimiter is not None:
            delimiter = delimiter.replace("\\t", "\t")
            if len(delimiter) != 1 or delimiter in '"\r\n\0 ' or not delimiter.isascii():
                raise TableError(f"a delimiter is one character, such as ; or \\t; got {delimiter!r}.")
        if encoding is not None:
            try:
                " ".encode(encoding).decode(encoding, "replace")  # Python also knows encodings that are not of text
            except (LookupError, ValueError):
                raise TableError(f"{encoding!r} is no encoding that is known; try utf-8 or latin-1.") from None
        self.path, self.delimiter, self.encoding = path, delimiter, encoding
        self.name = "standard input" if path == "-" else path
        self._once = once
        self._pipe: io.BufferedReader | None = None
        self._kept: IO[bytes] | None = None

    @property
    def stem(self) -> str:
        """The file's name without the suffixes of its format: ``data`` of ``tables/data.csv.gz``."""
        name = "stdin" if self.path == "-" else Path(self.path).name
        for suffix in (*_SUFFIXES, ".csv", ".tsv", ".txt", ".tab", ".parquet", ".pq"):
            name = name[: -len(suffix)] if name.lower().endswith(suffix) and len(name) > len(suffix) else name
        return name

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet, by its first bytes."""
        with self.raw() as file:
            return file.peek(4).startswith(_PARQUET)

    def raw(self) -> io.BufferedReader:
        """The bytes of the file itself, from its beginning."""
        if self._pipe is None:
            try:
                file: IO[bytes] = sys.stdin.buffer if self.path == "-" else open(self.path, "rb", _HEAD)  # noqa: SIM115 - returned
                if self.path != "-" and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return file  # type: ignore[return-value]
            except OSError as error:
                raise self._unreadable(error) from None
            self._pipe = _Unclosed(file, _HEAD)  # type: ignore[arg-type]
            # Parquet begins at its end, so it is kept in any case
            if not self._once or self._pipe.peek(4).startswith(_PARQUET):
                self._kept = tempfile.SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 - kept until the source goes
                shutil.copyfileobj(self._pipe, self._kept)
        if self._kept is not None:
            self._kept.seek(0)
            return _Unclosed(self._kept, _HEAD)  # type: ignore[arg-type]
        return self._pipe

    def stream(self) -> io.BufferedReader:
        """The bytes, decompressed."""
        file = self.raw()
        opener = _opener(file.peek(6))
        return file if opener is None else io.BufferedReader(opener(file), _HEAD)

    def seekable(self) -> Any:
        """What a reader takes that jumps about: the path, or the kept bytes of a pipe."""
        with self.raw():
            return self.path if self._kept is None else self._kept

    def damaged(self, error: BaseException) -> TableError:
        """The sentence for a file whose compression is broken."""
        reason = str(error).strip().rstrip(".") or type(error).__name__
        return TableError(f"{self.name} cannot be read: it is damaged or cut short ({reason}).")

    def _unreadable(self, error: OSError) -> TableError:
        if isinstance(error, FileNotFoundError):
            folder = Path(self.path).parent
            near = _near_file(Path(self.path), os.listdir(folder)) if folder.is_dir() else ""
            return TableError(f"{self.name} does not exist.{near}")
        if isinstance(error, IsADirectoryError):
            return TableError(f"{self.name} is a folder; a table is a file.")
        return TableError(f"{self.name} cannot be read: {error.strerror}.")


class Rows:
    """The rows of a CSV or TSV file as lists of text.

    Attributes:
        header: The columns' names.
        row: How many rows have been read, blank lines not counted.
        delimiter: What separates values.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.row, self._line = source, 0, 0
        self.header: list[str] = []
        try:
            stream = source.stream()
            head = stream.peek(_HEAD)
        except _DAMAGE as error:
            raise source.damaged(error) from None
        if not head:
            raise TableError(f"{source.name} is empty.")
        for begin, what in _OTHERS.items():
            if re.match(begin, head, re.DOTALL | re.IGNORECASE):
                raise TableError(f"{source.name} is {what}.")
        default = source.encoding or "utf-8"
        self._encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), default)
        self.delimiter = source.delimiter or _sniff(head.decode(self._encoding, "replace"), source)
        self._text = io.TextIOWrapper(stream, self._encoding, "surrogateescape", newline="")
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_VALUE))
        self._reader = csv.reader(self._lines(), delimiter=self.delimiter, strict=True, skipinitialspace=True)
        self.header = self._read_header()

    def close(self) -> None:
        """Close the file."""
        self._text.close()

    def chunks(self, rows: int) -> Iterator[tuple[int, list[list[str]]]]:
        """Read this many rows at a time, each time with the number of the first (from 1)."""
        width, blank = len(self.header), 0
        chunk: list[list[str]] = []
        first = 1
        for row in self._parsed():
            if not row:
                # a blank line is a missing value in a table of one column, unless nothing comes after it
                blank += width == 1
                continue
            if len(row) != width:
                raise self._ragged(row, width)
            chunk += [[""] for _ in range(blank)]
            chunk.append(row)
            self.row += 1 + blank
            blank = 0
            if len(chunk) >= rows:
                yield first, chunk
                first, chunk = self.row + 1, []
        if chunk:
            yield first, chunk

    def _parsed(self) -> Iterator[list[str]]:
        try:
            yield from self._reader
        except csv.Error as error:
            raise self._misquoted(str(error)) from None
        except UnicodeError as error:
            # a multibyte encoding; the text is decoded ahead of the lines
            raise TableError(
                f"{self.source.name}, after line {self._line}, is not {self._encoding}: {error}."
            ) from None
        except _DAMAGE as error:
            raise self.source.damaged(error) from None

    def _lines(self) -> Iterator[str]:
        for line in iter(partial(self._text.readline, _LONGEST_LINE), ""):
            self._line += 1
            if "\0" in line:
                raise self._stray(line, line.index("\0"), "a NUL byte", "Remove it, or save the table as text anew.")
            if not line.isascii() and (found := _STRAY.search(line)):
                encoding = self._encoding.upper().removesuffix("-SIG")
                what = f"a byte (0x{ord(found[0]) - 0xDC00:02x}) that is no {encoding}"
                fix = "Save it as UTF-8, or name its encoding, as in --encoding latin-1."
                raise self._stray(line, found.start(), what, fix)
            if len(line) >= _LONGEST_LINE:
                raise TableError(
                    f"{self._here()} has more than {_LONGEST_LINE:,} characters: this is no table of text."
                )
            yield line

    def _read_header(self) -> list[str]:
        names = next((row for row in self._parsed() if row), None)
        if names is None:
            raise TableError(f"{self.source.name} is empty.")
        names = [name.strip() for name in names]
        if all(map(_is_number, names)):
            raise TableError(
                f"{self.source.name} must begin with a line that names the columns; its first line is numbers"
                f" ({', '.join(names[:3])}{', …' * (len(names) > 3)})."
            )
        return checked_names([name or f"column {i}" for i, name in enumerate(names, 1)], self.source.name)

    def _here(self) -> str:
        row = f"row {self.row + 1} (line {self._line})" if self.header else f"line {self._line}"
        return f"{self.source.name}, {row}"

    def _ragged(self, row: list[str], width: int) -> TableError:
        values = "one value" if len(row) == 1 else f"{len(row)} values"
        columns = "one column" if width == 1 else f"{width} columns"
        shown = self.delimiter.replace("\t", "tab")
        hint = f" If a value holds a {shown!r}, put it in double quotes." if len(row) > width else ""
        return TableError(f"{self._here()} has {values}, and the header names {columns}.{hint}")

    def _misquoted(self, reason: str) -> TableError:
        if "expected after" in reason:
            return TableError(
                f"{self._here()} has text right after a closing quote. A quote inside of quotes is written twice."
            )
        if "field larger" in reason:
            return TableError(
                f"{self._here()} has a value of more than {_LONGEST_VALUE:,} characters; a quote may be left open."
            )
        if "unexpected end" in reason:
            return TableError(f"{self._here()}: a double quote is opened and never closed.")
        return TableError(f"{self._here()} cannot be read: {reason}.")

    def _stray(self, line: str, place: int, what: str, fix: str) -> TableError:
        column = line[:place].count(self.delimiter)
        where = f", column {self.header[column]!r}" if column < len(self.header) else ""
        return TableError(f"{self._here()}{where} holds {what}. {fix}")


def checked_names(names: list[str], file: str) -> list[str]:
    """The names of columns; raise a `TableError` unless they differ."""
    for name, times in Counter(names).items():
        if times > 1:
            places = [str(i) for i, other in enumerate(names, 1) if other == name]
            shown = f"{', '.join(places[:-1])} and {places[-1]}" if times < 10 else f"{', '.join(places[:9])}, …"
            raise TableError(f"{file}: columns {shown} are named {name!r} alike; every column needs a name of its own.")
    return names


def _opener(head: bytes) -> Any:
    """What decompresses a stream with these first bytes; None for one that is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return lambda file: gzip.GzipFile(fileobj=file, mode="rb")
    if head.startswith(b"BZh"):
        return bz2.BZ2File
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd
    return None


def _zstd(file: IO[bytes]) -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - needed for this alone
    except ModuleNotFoundError:
        raise TableError('reading .zst needs pyarrow: pip install "stepless[cli]"') from None
    return pyarrow.CompressedInputStream(file, "zstd")


def _sniff(head: str, source: Source) -> str:
    """The delimiter: a tab for .tsv, otherwise the one that splits the first lines evenly and into the most values.

    Quoted text is left out; among equals the comma comes first.
    """
    if re.search(r"\.(tsv|tab)(\.\w+)?$", source.path.lower()):
        return "\t"
    plain = re.sub(r'"(?:[^"]|"")*"', "", head)
    lines = [line for line in re.split(r"\r\n|\r|\n", plain) if line.strip()][:20]
    if len(head) >= _HEAD and len(lines) > 1:
        lines.pop()  # it may be cut off
    if not lines:
        return ","
    counts = {mark: [line.count(mark) for line in lines] for mark in _DELIMITERS}
    even = [mark for mark in _DELIMITERS if counts[mark][0] and len(set(counts[mark])) == 1]
    return max(even or _DELIMITERS, key=lambda mark: counts[mark][0])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _near_file(path: Path, known: list[str]) -> str:
    """Suggest the files with a similar name, whatever their suffixes: that two end in .csv makes them no more alike."""
    stems = {name: name.partition(".")[0].lower() for name in known}
    near = _matches(path.name.partition(".")[0].lower(), stems.values(), 0.7)
    return _suggestion(sorted(name for name, stem in stems.items() if stem in near and stem)[:3])


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of a sentence about a name that is not there: the nearest names, or else the first ones.

    >>> did_you_mean("inocme", ["age", "income"])
    " Did you mean 'income'?"
    """
    lowered = {other.lower(): other for other in known}
    if name.lower() in lowered:
        return _suggestion([lowered[name.lower()]])
    shown = ", ".join(map(repr, known[:8])) + ", …" * (len(known) > 8)
    return _suggestion(_matches(name, known, 0.6)) or f" The columns are {shown}."


def _matches(name: str, known: Iterable[str], cutoff: float) -> list[str]:
    import difflib  # noqa: PLC0415 - needed only where something is wrong

    return difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=cutoff)


def _suggestion(names: list[str]) -> str:
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""


class _Unclosed(io.BufferedReader):
    """A stream that stays open when its reader is done with it."""

    def close(self) -> None:
        pass
