"""``python -m stepless``: the command line."""

from stepless.cli import main

if __name__ == "__main__":
    main()
