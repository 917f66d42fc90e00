"""Hostile tables: an answer or a sentence, in good time, and never half an answer."""

import os
import signal
from dataclasses import replace

import pandas as pd
import pytest

import stepless as sl
from stepless.tabular.comparing import contestants
from stepless.tabular.outcome import Outcome

from .cli_runs import QUICK, run
from .hostile_tables import SPOILT, hostile

#: How many tables there are in all, and in a part that is quick.
ALL, PART = 600, len(SPOILT)


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Networks that hardly train: what is tried here is all around them."""
    fit = contestants.FITS["cross_entropy"]

    def build(aim):
        return fit.build(aim).set_params(epochs=2, n_members=2, hidden=(4,))

    monkeypatch.setitem(contestants.FITS, "cross_entropy", replace(fit, build=build))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    frame = pd.DataFrame([[float(i % 7), float(i % 3), "Ulm"] for i in range(30)], columns=["x", "z", "city"])
    sl.MetricClassifier(epochs=1, n_members=2, random_state=0).fit(frame, [i % 2 for i in range(30)]).save(folder / "m")
    return folder / "m"


def stop(*_):
    raise AssertionError("a minute has passed")


def told(result):
    assert result.exit_code in (0, 2), result.output[-2000:]
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert result.stderr.rstrip().endswith((".", "!", "?", "…", ")", "│", "╯")), result.stderr[-500:]


def try_out(number, folder, model):
    kind, data = hostile(number)
    file, out, predicted = folder / "table.csv", folder / "out", folder / "predicted.csv"
    file.write_bytes(data)
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    try:
        result = run(["compare", str(file), "--target", "y", *QUICK.split(), "--out", str(out)])
        told(result)
        if result.exit_code == 0:
            assert Outcome.from_json(out / "comparison.json").verdict
            assert (out / "report.html").stat().st_size > 1000
        else:
            assert not (out / "report.html").exists()
            assert not (out / "comparison.json").exists()
        guessed = run(["predict", str(model), str(file), "--out", str(predicted)])
        told(guessed)
        assert predicted.exists() == (guessed.exit_code == 0)
        assert [name for name in os.listdir(folder) if name.endswith(".tmp")] == []
        told(run(["tune", str(file), "--score", "x", "--target", "y", "--resamples", "2"]))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return kind, result.exit_code


@pytest.mark.parametrize("number", range(PART), ids=list(SPOILT))
def test_one_table_of_each_kind(number, tmp_path, model):
    try_out(number, tmp_path, model)


@pytest.mark.full
@pytest.mark.parametrize("start", range(PART, ALL, 25))
def test_many_hostile_tables(start, tmp_path, model):
    for number in range(start, min(start + 25, ALL)):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            try_out(number, folder, model)
        except BaseException as error:
            error.add_note(f"table {number}, {hostile(number)[0]}")
            raise


def test_good_tables_are_answered(tmp_path, model):
    for kind in (
        "good",
        "words",
        "codes",
        "semicolons",
        "tabs",
        "quoted",
        "zipped",
        "mark",
        "dates",
        "levels",
        "many classes",
    ):
        folder = tmp_path / kind
        folder.mkdir()
        assert try_out(list(SPOILT).index(kind), folder, model) == (kind, 0)
