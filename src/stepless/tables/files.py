"""From a file to rows of text: compression, encodings, delimiters and quotes, with errors that name the place.

A file is read as a stream and never held whole, so that its size does not matter. What it is, is told by its first
bytes and not by its name alone. Whatever is wrong with it is a `TableError`, a sentence with the file, the row and,
where there is one, the column.
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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

#: How many characters a line may have, and a value: what is longer is a file that is no table, or a quote left open.
_LONGEST_LINE = 1 << 26
_LONGEST_VALUE = 1 << 20
#: How much of a file is looked at to find its delimiter.
_HEAD = 1 << 16
_DELIMITERS = ",\t;|"
#: Of standard input so much is kept in memory, the rest in a temporary file.
_SPOOLED = 1 << 26
#: A byte that is no UTF-8, as Python's "surrogateescape" hands it on.
_STRAY = re.compile("[\udc80-\udcff]")
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)


class TableError(ValueError):
    """A table that cannot be read; the sentence says where and why."""


class Source:
    """A table's file, or standard input (``-``), that can be opened from its beginning.

    Args:
        path: The file.
        delimiter: What stands between values; None to find it.
        encoding: Of the text; None for UTF-8, or what the first bytes say.
        once: Whether it is opened once only: then what comes through a pipe is not kept.
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
                codecs.lookup(encoding)
            except LookupError:
                raise TableError(f"{encoding!r} is no encoding that is known; try utf-8 or latin-1.") from None
        self.path, self.delimiter, self.encoding = path, delimiter, encoding
        self.name = "standard input" if path == "-" else path
        self._once, self._kept = once, None  # type: tuple[bool, IO[bytes] | None]

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
        if self.path == "-" and self._once:
            # a pipe cannot go back, and Parquet begins at its end; so it is kept after all
            head = sys.stdin.buffer.peek(4) if hasattr(sys.stdin.buffer, "peek") else b""
            self._once = not head.startswith(b"PAR1")
            if self._once:
                return False
        with self.raw() as file:
            return file.read(4) == b"PAR1"

    def raw(self) -> Any:
        """The bytes as they are, from the beginning."""
        if self._kept is not None:
            self._kept.seek(0)
            return _Unclosed(self._kept)
        try:
            file: IO[bytes] = sys.stdin.buffer if self.path == "-" else open(self.path, "rb")  # noqa: SIM115 - returned
            whole = self.path != "-" and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        except OSError as error:
            raise self._unreadable(error) from None
        if whole:
            return file
        if self._once:
            return _Unclosed(file) if self.path == "-" else file
        self._kept = tempfile.SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 - kept until the source goes
        shutil.copyfileobj(file, self._kept)
        return self.raw()

    def stream(self) -> Any:
        """The bytes, decompressed."""
        file = self.raw()
        buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)
        opener = _opener(buffered.peek(6)[:6])
        if opener is None:
            return buffered
        return io.BufferedReader(opener(buffered), _HEAD)

    def seekable(self) -> Any:
        """What a reader that jumps about takes: the path, or what was kept of a pipe."""
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
    """The rows of a CSV or TSV file as lists of text, and where they stand in it.

    Attributes:
        header: The columns' names.
        row: How many rows have been read, blank lines not counted.
        delimiter: What stands between values.
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
        encoding = next((name for mark, name in _MARKS if head.startswith(mark)), source.encoding or "utf-8")
        self._lenient = encoding.replace("_", "-").lower() in ("utf-8", "utf-8-sig", "utf8")
        self._encoding = encoding
        errors = "surrogateescape" if self._lenient else "strict"
        self.delimiter = source.delimiter or _sniff(head.decode(encoding, "replace"), source)
        self._text = io.TextIOWrapper(stream, encoding, errors, newline="")
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_VALUE))
        self._reader = csv.reader(self._lines(), delimiter=self.delimiter, strict=True, skipinitialspace=True)
        self.header = self._read_header()

    def close(self) -> None:
        """Let go of the file."""
        self._text.close()

    def chunks(self, rows: int) -> Iterator[tuple[int, list[list[str]]]]:
        """So many rows at a time, with the number of the first (from 1)."""
        width, blank = len(self.header), 0
        chunk: list[list[str]] = []
        first = 1
        for row in self._parsed():
            if len(row) != width:
                if not row:
                    # in a table of one column it is a missing value, unless nothing comes after it
                    blank += width == 1
                    continue
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
            raise TableError(f"{self._here()} is not {self._encoding}: {error}.") from None
        except _DAMAGE as error:
            raise self.source.damaged(error) from None

    def _lines(self) -> Iterator[str]:
        for line in iter(partial(self._text.readline, _LONGEST_LINE), ""):
            self._line += 1
            if self._line == 1 and line.startswith("PK\x03\x04"):
                raise TableError(f"{self.source.name} is a zip archive; unpack it, or compress the table with gzip.")
            if "\0" in line:
                raise self._stray(line, line.index("\0"), "a NUL byte", "Remove it, or save the table as text anew.")
            if not line.isascii() and self._lenient and (found := _STRAY.search(line)):
                byte = f"a byte (0x{ord(found[0]) - 0xDC00:02x}) that is no UTF-8"
                raise self._stray(
                    line, found.start(), byte, "Save it as UTF-8, or name its encoding, as in --encoding latin-1."
                )
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
    """Columns' names, if they differ and can be written down; a `TableError` otherwise."""
    for name, times in Counter(names).items():
        if times > 1:
            places = [str(i) for i, other in enumerate(names, 1) if other == name]
            shown = f"{', '.join(places[:-1])} and {places[-1]}" if times < 10 else f"{', '.join(places[:9])}, …"
            raise TableError(f"{file}: columns {shown} are named {name!r} alike; every column needs a name of its own.")
    return names


def _opener(head: bytes) -> Any:
    """What decompresses a stream that begins so; None for one that is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return lambda file: gzip.GzipFile(fileobj=file)
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
    """The delimiter: a tab for .tsv, otherwise what divides the first lines into as many values each, and most of them.

    Quoted text is left out; of equals the comma comes first.
    """
    if re.search(r"\.(tsv|tab)(\.\w+)?$", source.path.lower()):
        return "\t"
    plain = re.sub(r'"(?:[^"]|"")*"', "", head)
    lines = [line for line in re.split(r"\r\n|\r|\n", plain) if line.strip()][:20]
    if len(head) >= _HEAD and len(lines) > 1:
        lines.pop()  # it may be cut
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


def _near(name: str, known: list[str]) -> str:
    import difflib  # noqa: PLC0415 - of use when something is wrong

    found = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def _near_file(path: Path, known: list[str]) -> str:
    """The files that are called alike, or but for the suffix; that two end in .csv makes them no more alike."""
    import difflib  # noqa: PLC0415 - of use when something is wrong

    stems = {name: name.partition(".")[0].lower() for name in known}
    wanted = path.name.partition(".")[0].lower()
    near = set(difflib.get_close_matches(wanted, set(stems.values()), n=3, cutoff=0.7))
    found = sorted(name for name, stem in stems.items() if stem in near and stem)[:3]
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of a sentence about a name that is not there: the nearest ones, or the first of all.

    >>> did_you_mean("inocme", ["age", "income"])
    " Did you mean 'income'?"
    """
    lowered = {other.lower(): other for other in known}
    near = [lowered[name.lower()]] if name.lower() in lowered else []
    if near:
        return f" Did you mean {near[0]!r}?"
    shown = ", ".join(map(repr, known[:8])) + ", …" * (len(known) > 8)
    return _near(name, known) or f" The columns are {shown}."


class _Unclosed(io.RawIOBase):
    """A stream that stays open when its reader is done with it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(len(buffer)) if hasattr(self._file, "read1") else self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
