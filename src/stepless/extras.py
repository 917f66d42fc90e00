"""What comes with an extra: imports that say how to install what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(who: str, extra: str, *packages: str) -> Iterator[None]:
    """Around imports of packages that an extra brings.

    Args:
        who: Who needs what, the beginning of the sentence where one is missing.
        extra: What to install then.
        packages: Those it is about; what they lack themselves is told in Python's own words.

    Example:
        >>> with needs("this example needs Fortran77", "legacy", "fortran77"):
        ...     import fortran77
        Traceback (most recent call last):
            ...
        ModuleNotFoundError: this example needs Fortran77: pip install "stepless[legacy]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        raise ModuleNotFoundError(f'{who}: pip install "stepless[{extra}]"', name=missing) from None
