"""``stepless`` and ``python -m stepless``: the command line, or an error if its packages are not installed."""

import sys

from stepless.extras import needs


def main() -> None:
    """Run the command line; if the extra ``cli`` is not installed, say so and exit as for bad input."""
    try:
        with needs("the command line needs stepless-tabular", "cli", "stepless.tabular"):
            from stepless.tabular.cli import main as run  # noqa: PLC0415 - so that a missing package is no traceback
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "stepless.tabular"):
            raise
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
