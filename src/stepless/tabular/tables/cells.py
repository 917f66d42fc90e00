"""Cells of text as numbers, categories and missing values, and the kind of a column that follows from its cells."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.tables.frames import Kind

Array = NDArray[Any]

_BOOLS = {"true": 1.0, "false": 0.0}


def _spellings(*words: str) -> set[str]:
    return {spelling for word in words for spelling in (word, word.upper(), word.capitalize())}


#: Text that stands for a missing value in any column.
MISSING = frozenset(_spellings("", "na", "n/a", "nan", "null", "<na>", "#n/a") | {"NaN"})
#: Text that stands for a missing value among numbers; among words it may be a word.
_MISSING_NUMBER = MISSING | _spellings(
    "?", "-", "--", ".", "none", "nil", "#value!", "#div/0!", "#ref!", "#null!", "#num!"
)
#: Searched for in cells joined by line ends, each after one.
_LEADING_ZERO = re.compile(r"\n\s*[+-]?0[0-9]")
_BOOL = re.compile("true|false", re.IGNORECASE)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})([T ]\d{1,2}:\d{2}(:\d{2})?)?"
    r"|(-?\d+ days? )?[+-]?\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
#: A number as people write it: with thousands separators, a decimal comma, a percent sign or a currency.
_SIGN = "[$¢-¥₠-⃀%‰]"
_FORMATTED = re.compile(
    rf"\(?[+−-]?\s*{_SIGN}?\s*[+−-]?\s*"
    r"([1-9][0-9]{0,2}([ ,.'’\u00a0\u202f][0-9]{3})+([.,][0-9]+)?|(0|[1-9][0-9]*)([.,][0-9]+)?|[.,][0-9]+)"
    rf"\s*{_SIGN}?\)?"
)


class CellError(ValueError):
    """A cell that does not fit its column's kind.

    Args:
        place: The index of the cell.
        why: The end of the sentence about it.
    """

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def numbers(cells: Sequence[str], *, decimal_comma: bool = False) -> Array:
    """Parse a column of numbers, NaN where one is missing; raise a `CellError` for the first cell that is none.

    Args:
        cells: The text of each cell.
        decimal_comma: Whether 1,5 is one and a half, as in files whose delimiter is a semicolon.

    Example:
        >>> numbers(["1.5", " 2", "NA", ""])
        array([1.5, 2. , nan, nan])
    """
    values = _parsed(cells, decimal_comma)
    if np.isinf(values).any():
        place = int(np.flatnonzero(np.isinf(values))[0])
        raise CellError(place, f"holds {shown(cells[place])}, which is no finite number")
    return values


def _parsed(cells: Sequence[str], decimal_comma: bool) -> Array:
    """The numbers of a column, which may be infinite."""
    text = "".join(cells)
    # Python also reads 1_000 and the digits of other scripts, which are no numbers in a table.
    if "_" not in text and text.isascii() and not (decimal_comma and "," in text):
        with suppress(ValueError):
            return np.fromiter(map(float, cells), np.float64, len(cells))
        with suppress(ValueError):
            known = ("nan" if cell in _MISSING_NUMBER else cell for cell in cells)
            return np.fromiter(map(float, known), np.float64, len(cells))
    return np.array([_number(place, cell, decimal_comma) for place, cell in enumerate(cells)], np.float64)


def _number(place: int, cell: str, decimal_comma: bool) -> float:
    text = cell.strip()
    if text in _MISSING_NUMBER:
        return math.nan
    if decimal_comma and "," in text and "." not in text:
        text = text.replace(",", ".", 1)
    if text.isascii() and "_" not in text:
        try:
            return float(text)
        except ValueError:
            if text.lower() in _BOOLS:
                return _BOOLS[text.lower()]
    raise CellError(place, f"holds {shown(cell)}, which is no number")


def words(cells: Sequence[str]) -> list[str | None]:
    """Strip the categories of a column, None where one is missing.

    >>> words(["a ", "NA", ""])
    ['a', None, None]
    """
    return [None if (word := cell.strip()) in MISSING else word for cell in cells]


def shown(cell: str) -> str:
    """Shorten a cell for an error message."""
    return repr(cell if len(cell) <= 40 else cell[:40] + "…")


def are_dates(levels: Sequence[str]) -> bool:
    """Whether all of these categories are dates or times.

    >>> are_dates(["2024-02-29", "2024-03-01T12:00"]), are_dates(["2024-02-29", "soon"])
    (True, False)
    """
    return bool(levels) and all(_DATE.fullmatch(level) for level in levels)


def formatted(levels: Sequence[str], *, decimal_comma: bool = False) -> str | None:
    """The first of these categories that is a formatted number, if most of them are numbers, plain or formatted.

    >>> formatted(["61,234", "999"]), formatted(["12.5%", "3%"]), formatted(["1", "one"])
    ('61,234', '12.5%', None)
    """
    rest = [level for level in levels if not is_number(level, decimal_comma)]
    found = [level for level in rest if _FORMATTED.fullmatch(level)]
    return found[0] if found and 2 * (len(rest) - len(found)) < len(levels) else None


@dataclass
class Guess:
    """The kind of a column of text, found from all of its cells.

    A column holds numbers if every cell is a number or missing, and none has a leading zero, as codes have. ``true``
    and ``false`` are 1 and 0 in a column of nothing else. Any other column holds categories.

    Attributes:
        decimal_comma: As for `numbers`.
        number: Whether all cells so far fit a column of numbers.
        bools: How many cells were true or false.
        found: How many numbers came before the column turned out to hold categories.
        odd: The row and the text of the cell that made it one of categories; None where a code did.
    """

    decimal_comma: bool = False
    number: bool = True
    bools: int = 0
    found: int = 0
    odd: tuple[int, str] | None = None

    @property
    def kind(self) -> Kind:
        """``"number"`` or ``"category"``."""
        return "number" if self.number else "category"

    def look(self, cells: Sequence[str], first: int) -> None:
        """Take more cells into account; the first of them is in row ``first``."""
        if not self.number:
            return
        try:
            values = _parsed(cells, self.decimal_comma)
        except CellError as error:
            self._give_up(cells, first, error.place)
            return
        text = "\n" + "\n".join(cells)
        if _LEADING_ZERO.search(text):
            self.number = False
            return
        bools = sum(_is_bool(cell) for cell in cells) if _BOOL.search(text) else 0
        present = int((~np.isnan(values)).sum())
        self.bools += bools
        self.found += present - bools
        if self.bools and self.found:  # true among numbers is a word
            mixed = present > bools
            self._give_up(cells, first, next((i for i, cell in enumerate(cells) if _is_bool(cell) == mixed), 0))

    def _give_up(self, cells: Sequence[str], first: int, place: int) -> None:
        self.number = False
        self.found += sum(is_number(cell, self.decimal_comma) for cell in cells[:1000])
        self.odd = first + place, cells[place]


def _is_bool(cell: str) -> bool:
    return cell.strip().lower() in _BOOLS


def is_number(cell: str, decimal_comma: bool = False) -> bool:
    """Whether a cell is a plain number."""
    try:
        return not math.isnan(_number(0, cell, decimal_comma))
    except CellError:
        return False
