"""Imports of optional packages, with an error that says how to install what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(who: str, extra: str, *packages: str) -> Iterator[None]:
    """Wrap imports of packages that an extra installs.

    Args:
        who: The beginning of the error: what needs the package.
        extra: The extra to install.
        packages: The extra's packages that are imported; an error about any other module is not changed.
            ``stepless.tabular`` is one of them, where it is needed: it comes with the extras.

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
        name = f"{error.name}."
        missing = next((package for package in packages if name.startswith(f"{package}.")), None)
        if missing is None:
            raise
        raise ModuleNotFoundError(f'{who}: pip install "stepless[{extra}]"', name=missing) from None
