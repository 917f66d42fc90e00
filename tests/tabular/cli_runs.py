"""The command line, called in this process: quick, and with its two outputs apart."""

import shlex

import numpy as np
from typer.testing import CliRunner

from stepless.tabular.cli import app

#: As little as a comparison can be.
QUICK = "--only cross_entropy --folds 2 --repeats 1 --jobs 1"


def run(line, stdin=None):
    """The result of ``stepless <line>``: exit_code, stdout, stderr."""
    words = shlex.split(line) if isinstance(line, str) else list(line)
    return CliRunner().invoke(app, words, input=stdin)


def write_table(path, rows=120, seed=0, extra=""):
    """A table with numbers, a category, missing values, an id, and a target y with few yeses."""
    random = np.random.default_rng(seed)
    lines = ["id,age,income,city,y"]
    for i in range(rows):
        age, income = random.integers(18, 80), random.normal(30, 10)
        yes = (age - 40) / 20 + (income - 30) / 10 + random.normal() > 1.5
        shown = "" if random.random() < 0.05 else f"{income:.2f}"
        lines.append(f"r{i},{age},{shown},{random.choice(['Ulm', 'Bonn', 'Köln'])},{int(yes)}")
    path.write_text("\n".join(lines) + "\n" + extra, encoding="utf-8")
    return path
