"""From cells of text to numbers, categories and missing values: what a column is, and one column's values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tables.frames import Kind

Array = NDArray[Any]

_MISSING = ("", "na", "n/a", "nan", "null", "<na>", "#n/a")
#: Among numbers these are missing too; among words they may be words.
_NO_NUMBERS = ("?", "-", "--", ".", "none", "nil", "#value!", "#div/0!", "#ref!", "#null!", "#num!")
_BOOLS = {"true": 1.0, "false": 0.0}


def _spellings(words: Sequence[str]) -> set[str]:
    return {spelt for word in words for spelt in (word, word.upper(), word.capitalize())}


#: What text stands for no value at all, and what stands for none where a number should be.
MISSING = frozenset(_spellings(_MISSING) | {"NaN"})
_NONE_OF_NUMBER = frozenset(MISSING | _spellings(_NO_NUMBERS))
_LEADING_ZERO = re.compile(r"\n[+-]?0[0-9]")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})([T ]\d{1,2}:\d{2}(:\d{2})?)?"
    r"|(-?\d+ days? )?[+-]?\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
#: A number with what people put into numbers: separators of thousands, a decimal comma, percent, a currency.
_SIGN = "[$¢-¥₠-⃀%‰]"
_FORMATTED = re.compile(
    rf"\(?[+−-]?\s*{_SIGN}?\s*[+−-]?\s*"
    r"([1-9][0-9]{0,2}([ ,.'’\u00a0\u202f][0-9]{3})+([.,][0-9]+)?|(0|[1-9][0-9]*)([.,][0-9]+)?|[.,][0-9]+)"
    rf"\s*{_SIGN}?\)?"
)


class CellError(ValueError):
    """A cell that is not what its column is: its place among the cells, and why."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def numbers(cells: Sequence[str], *, decimal_comma: bool = False) -> Array:
    """The numbers of a column, NaN where one is missing; a `CellError` for the first that is none.

    Args:
        cells: The text of each.
        decimal_comma: Whether 1,5 is one and a half, as in files whose delimiter is a semicolon.

    Example:
        >>> numbers(["1.5", " 2", "NA", ""])
        array([1.5, 2. , nan, nan])
    """
    text = "\n".join(cells)
    plain = "_" not in text and text.isascii()  # Python reads 1_000 and other scripts' digits; a table has none
    if decimal_comma and "," in text:
        plain = False
    values = None
    if plain:
        try:
            values = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            known = ["nan" if cell in _NONE_OF_NUMBER else cell for cell in cells]
            try:
                values = np.fromiter(map(float, known), np.float64, len(cells))
            except ValueError:
                values = None
    if values is None:
        values = np.array([_number(place, cell, decimal_comma) for place, cell in enumerate(cells)], np.float64)
    if np.isinf(values).any():
        place = int(np.flatnonzero(np.isinf(values))[0])
        raise CellError(place, f"holds {shown(cells[place])}, which is no finite number")
    return values


def _number(place: int, cell: str, decimal_comma: bool) -> float:
    text = cell.strip()
    if text in _NONE_OF_NUMBER:
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
    """The categories of a column, without the space around them, None where one is missing.

    >>> words(["a ", "NA", ""])
    ['a', None, None]
    """
    return [None if (word := cell.strip()) in MISSING else word for cell in cells]


def shown(cell: str) -> str:
    """A cell as an error shows it."""
    return repr(cell if len(cell) <= 40 else cell[:40] + "…")


def are_dates(levels: Sequence[str]) -> bool:
    """Whether all of some categories are dates or times.

    >>> are_dates(["2024-02-29", "2024-03-01T12:00"]), are_dates(["2024-02-29", "soon"])
    (True, False)
    """
    return bool(levels) and all(_DATE.fullmatch(level) for level in levels)


def formatted(levels: Sequence[str], *, decimal_comma: bool = False) -> str | None:
    """The first of some categories that is a number but for how it is written, if most are numbers in that sense.

    >>> formatted(["61,234", "999"]), formatted(["12.5%", "3%"]), formatted(["1", "one"])
    ('61,234', '12.5%', None)
    """
    odd = [level for level in levels if not is_number(level, decimal_comma)]
    found = [level for level in odd if _FORMATTED.fullmatch(level)]
    return found[0] if found and 2 * (len(odd) - len(found)) < len(levels) else None


@dataclass
class Guess:
    """What a column of text is, from all of its cells.

    A column is one of numbers if every cell is a number or missing, and none is written with a leading zero, as codes
    are. ``true`` and ``false`` are 1 and 0 where there is nothing else. Whatever else is there makes it a category.

    Attributes:
        decimal_comma: As for `numbers`.
        number: Whether it may still be a number.
        bools: How many cells are true or false.
        found: How many numbers there were before it turned out to be a category.
        odd: The row and the cell because of which it is one.
    """

    decimal_comma: bool = False
    number: bool = True
    bools: int = 0
    found: int = 0
    odd: tuple[int, str] | None = field(default=None)

    @property
    def kind(self) -> Kind:
        """``"number"`` or ``"category"``."""
        return "number" if self.number else "category"

    def look(self, cells: Sequence[str], first: int) -> None:
        """Take some more cells into account, the first of which stands in that row."""
        if not self.number:
            return
        try:
            values = numbers(cells, decimal_comma=self.decimal_comma)
        except CellError as error:
            if "finite" in str(error):
                raise
            self._give_up(cells, first, error.place)
            return
        if _LEADING_ZERO.search("\n" + "\n".join(cells)):
            place = next(i for i, cell in enumerate(cells) if _LEADING_ZERO.match("\n" + cell.strip()))
            self._give_up(cells, first, place, code=True)
            return
        has_bools = sum(cell.strip().lower() in _BOOLS for cell in cells) if _may_be_bool(cells) else 0
        present = int((~np.isnan(values)).sum())
        self.bools += has_bools
        self.found += present - has_bools
        if self.bools and self.found:  # true among numbers is a word
            place = next((i for i, c in enumerate(cells) if (c.strip().lower() in _BOOLS) == (present > has_bools)), 0)
            self._give_up(cells, first, place)

    def _give_up(self, cells: Sequence[str], first: int, place: int, *, code: bool = False) -> None:
        self.number = False
        if not code:
            self.found += sum(is_number(cell, self.decimal_comma) for cell in cells[:1000])
            self.odd = first + place, cells[place]


def _may_be_bool(cells: Sequence[str]) -> bool:
    """Whether some cell is true or false, when all are numbers, missing, or that."""
    return any(cell[:1] in "tTfF" for cell in cells if cell)


def is_number(cell: str, decimal_comma: bool = False) -> bool:
    """Whether a cell holds a number as it is."""
    try:
        return not math.isnan(_number(0, cell, decimal_comma))
    except CellError:
        return False
