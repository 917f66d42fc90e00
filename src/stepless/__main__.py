"""``stepless`` and ``python -m stepless``: the command line, or a sentence where what it needs is not installed."""

import sys


def main() -> None:
    """Run the command line; where the extra ``cli`` is missing, say so and exit as for bad input."""
    try:
        from stepless.cli import main as run  # noqa: PLC0415 - what is missing is told here, and not as a traceback
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
