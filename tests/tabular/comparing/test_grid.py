"""The grid: the same cells for any number of jobs, after any interruption; one fit for who shares it; failures kept."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import stepless as sl
from stepless.tabular.comparing.cells import Cell, CellFolder
from stepless.tabular.comparing.contestants import FITS, Fit
from stepless.tabular.comparing.grid import _tasks
from tests.tabular.quick import data, quick, same_tables  # noqa: F401 - a fixture

FEW = {"contestants": ["cross_entropy", "boosting_tuned"], "folds": 3, "repeats": 1}
LEAST = {"contestants": [], "folds": 2, "repeats": 1}


def test_one_fit_serves_all_that_differ_in_the_cut():
    places = [(key, 0, fold) for fold in range(2) for key in ("cross_entropy", "cross_entropy_tuned", "automatic")]
    tasks = _tasks(places)
    assert [(t.fits, t.fold) for t in tasks[:2]] == [
        ((("automatic", ("automatic",)),), 0),
        ((("cross_entropy", ("cross_entropy", "cross_entropy_tuned")),), 0),
    ]
    assert len(tasks) == 4


@pytest.mark.usefixtures("quick")
def test_fits_that_have_trees_in_common_are_one_task_and_give_what_each_gives_alone():
    pytest.importorskip("lightgbm")
    trees = ["automatic", "boosting_metric", "boosting_tuned"]
    (task,) = _tasks([(key, 0, 0) for key in reversed(trees)])
    assert [fit for fit, _ in task.fits] == ["automatic", "boosting_metric", "boosting"]
    X, y = data()
    settings = {"folds": 2, "repeats": 1}
    together = sl.compare(X, y, "f1", contestants=trees, **settings)
    for key in trees:
        assert sl.compare(X, y, "f1", contestants=[key], **settings).entry(key).scores == together.entry(key).scores


def test_one_job_and_two_give_the_same_table():
    X, y = data(rows=60)
    settings = {**FEW, "folds": 2}
    threads = torch.get_num_threads()
    one = sl.compare(X, y, "f1", jobs=1, **settings)
    assert torch.get_num_threads() == threads
    assert same_tables(one, sl.compare(X, y, "f1", jobs=2, **settings))


def test_a_function_goes_to_other_processes_too():
    X, y = data(rows=60)
    outcome = sl.compare(X, y, lambda tp, fp, fn, tn: tp / (tp + fp + fn), **LEAST, jobs=2)
    np.testing.assert_allclose(outcome.entries[0].scores, sl.compare(X, y, "jaccard", **LEAST).entries[0].scores)


@pytest.mark.usefixtures("quick")
def test_every_cell_is_told_and_kept(tmp_path):
    X, y = data()
    steps = []
    sl.compare(X, y, folder=tmp_path, progress=steps.append, **FEW)
    assert [step.done for step in steps] == list(range(1, 10))
    assert {step.total for step in steps} == {9}
    assert len({(s.key, s.repeat, s.fold) for s in steps}) == 9
    assert len(list((tmp_path / "cells").glob("*.json"))) == 9
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.usefixtures("quick")
def test_resume_fits_nothing_that_is_there(tmp_path, monkeypatch):
    X, y = data()
    whole = sl.compare(X, y, folder=tmp_path, **FEW)
    for name in ("boosting_tuned-0-1.json", "cross_entropy-0-2.npz"):
        (tmp_path / "cells" / name).unlink()
    (tmp_path / "cells" / "cross_entropy_tuned-0-0.npz").write_bytes(b"cut short")
    fitted = []
    for key, fit in list(FITS.items()):
        build = lambda aim, key=key, fit=fit: fitted.append(key) or fit.build(aim)  # noqa: E731 - one a turn
        monkeypatch.setitem(FITS, key, replace(fit, build=build))
    steps = []
    resumed = sl.compare(X, y, folder=tmp_path, resume=True, progress=steps.append, **FEW)
    assert same_tables(whole, resumed)
    assert sorted(fitted) == ["boosting", "cross_entropy", "cross_entropy"]
    assert [step.done for step in steps] == list(range(1, 10))
    more = {**FEW, "contestants": ["boosting_metric", "boosting_tuned", "class_weighted"]}
    fitted.clear()
    sl.compare(X, y, folder=tmp_path, resume=True, **more)
    assert set(fitted) == {"boosting_metric", "class_weighted"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": 1}, "its data differs"),
        ({"folds": 4}, r"its settings differ \(folds was 3, is 4\)"),
        ({"metric": "mcc"}, r"its settings differ \(metric was 'f1', is 'mcc'\)"),
        ({"sample_weight": 1}, "its data differs"),
        ({"seed": 5}, r"\(seed was 0, is 5\)"),
    ],
)
def test_resume_with_something_else_is_a_sentence(tmp_path, change, said):
    X, y = data(rows=60)
    settings = {"metric": "f1", "contestants": [], "folds": 3, "repeats": 1, "folder": tmp_path}
    sl.compare(X, y, **settings)
    cells = sorted(path.name for path in (tmp_path / "cells").iterdir())
    other = y.copy()
    if "y" in change:
        other[:2] = 1 - other[:2]
    extra = {k: np.full(60, 2.0) if k == "sample_weight" else v for k, v in change.items() if k != "y"}
    with pytest.raises(ValueError, match=f"holds the cells of another comparison: .*{said}.*resume=False"):
        sl.compare(X, other, **{**settings, **extra}, resume=True)
    assert sorted(path.name for path in (tmp_path / "cells").iterdir()) == cells


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ['{"data": "2f', "[]"])
def test_resume_with_a_damaged_description_blames_no_data(tmp_path, text):
    X, y = data(rows=60)
    settings = {"contestants": [], "folds": 3, "repeats": 1, "folder": tmp_path}
    sl.compare(X, y, **settings)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json is damaged, so .*; start anew with resume=False\.$"):
        sl.compare(X, y, **settings, resume=True)


@pytest.mark.usefixtures("quick")
def test_starting_anew_removes_old_cells_and_nothing_else(tmp_path):
    X, y = data(rows=60)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "notes.txt").write_text("mine")
    (tmp_path / "report.html").write_text("mine")
    settings = {"contestants": [], "repeats": 1, "folder": tmp_path}
    sl.compare(X, y, folds=4, **settings)
    sl.compare(X, y, folds=2, **settings)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2
    assert (tmp_path / "cells" / "notes.txt").exists()
    assert (tmp_path / "report.html").exists()


def test_cells_come_back_as_they_were(tmp_path):
    store = CellFolder(tmp_path, {"data": "x"}, resume=False)
    cell = Cell("metric", 0, 1, 0.1 + 0.2, (0.5, -np.inf), 1.5, (np.nan,), np.random.rand(3, 2), None)
    store.write(cell)
    found = store.read(("metric", 0, 1))
    assert (found.score, found.threshold, found.seconds) == (cell.score, cell.threshold, 1.5)
    assert np.isnan(found.constraints[0])
    np.testing.assert_array_equal(found.probabilities, cell.probabilities)
    assert found.raw is None
    assert store.read(("metric", 0, 2)) is None
    store.write(Cell("metric", 0, 2, failed="no."))
    assert store.read(("metric", 0, 2)) is None  # what failed is tried again


def test_a_folder_that_is_a_file_is_a_sentence(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(ValueError, match=r"finished cells are kept in a folder; .* is a file"):
        CellFolder(tmp_path / "f", {}, resume=False)


SCRIPT = """
    import sys
    import numpy as np
    from sklearn.datasets import make_classification
    import stepless as sl

    held = np.load(sys.argv[1])
    sl.compare(
        held["X"], held["y"], contestants=["cross_entropy", "boosting_tuned"], folds=3, repeats=1,
        jobs=int(sys.argv[2]), folder=sys.argv[3],
    )
"""


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_killed_run_goes_on_to_the_same_table(tmp_path, jobs):
    X, y = data(rows=60)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    script = tmp_path / "run.py"
    # without the guard the children of a script would run it once more
    script.write_text('if __name__ == "__main__":\n' + textwrap.indent(textwrap.dedent(SCRIPT), "    "))
    folder = tmp_path / "cells of a run"
    command = [sys.executable, str(script), str(tmp_path / "data.npz"), str(jobs), str(folder)]
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("cells/*.json"))) < 2:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    kept = len(list(folder.glob("cells/*.json")))
    steps = []
    resumed = sl.compare(X, y, folder=folder, resume=True, progress=steps.append, **FEW)
    assert sum(step.seconds == 0 for step in steps) >= min(kept, 8) > 0
    assert same_tables(resumed, sl.compare(X, y, **FEW))


def test_processes_that_die_are_replaced(tmp_path):
    marker = tmp_path / "dead"

    def deadly(tp, fp, fn, tn, marker=str(marker)):
        import multiprocessing
        import pathlib

        if multiprocessing.parent_process() is not None and not pathlib.Path(marker).exists():
            pathlib.Path(marker).touch()
            os._exit(9)
        return 2 * tp / (2 * tp + fp + fn)

    X, y = data(rows=60)
    outcome = sl.compare(X, y, deadly, **LEAST, jobs=2)
    expected = sl.compare(X, y, "f1", **LEAST)
    assert marker.exists()
    np.testing.assert_allclose(outcome.entries[0].scores, expected.entries[0].scores)


@pytest.mark.usefixtures("quick")
def test_a_contestant_that_fails_does_not_stop_the_others(monkeypatch):
    def broken(estimator, X, y, weight):
        raise RuntimeError("out of\n luck")

    monkeypatch.setitem(FITS, "class_weighted", Fit(FITS["class_weighted"].build, broken))
    X, y = data()
    outcome = sl.compare(X, y, contestants=["class_weighted"], folds=2, repeats=1)
    last = outcome.entries[-1]
    assert (last.key, last.failed, last.scores) == ("class_weighted", "RuntimeError: out of luck", ())
    assert outcome.entries[0].failed is None
    assert "RuntimeError: out of luck" in str(outcome)
    json.dumps(outcome.to_dict(), allow_nan=False)


@pytest.mark.usefixtures("quick")
def test_a_contestant_that_fails_on_one_fold_says_on_which(monkeypatch):
    calls = []

    def sometimes(estimator, X, y, weight):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("not this one.")
        return estimator.fit(X, y, weight)

    monkeypatch.setitem(FITS, "class_weighted", Fit(FITS["class_weighted"].build, sometimes))
    X, y = data()
    outcome = sl.compare(X, y, contestants=["class_weighted"], folds=2, repeats=1)
    assert outcome.entry("class_weighted").failed == "repeat 1, fold 2: not this one."


def test_all_failing_is_an_error():
    X, y = data(rows=60)
    with pytest.raises(ValueError, match=r"no contestant could be fitted\. cross-entropy \+ tuned threshold: .*recall"):
        sl.compare(X, y, "f1", subject_to="recall >= 0.99 and fpr <= 0.0001", **LEAST)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"backend": "spark"}, "backend must be one of 'loky', 'ray', 'dask'; got 'spark'"),
        ({"address": "host:1"}, "address='host:1' is that of a cluster"),
        ({"jobs": 0}, "jobs must be a whole number from 1 up, or −1 for all cores; got 0"),
        ({"resume": True}, "resume=True needs the folder"),
    ],
)
def test_bad_settings_are_sentences(arguments, said):
    X, y = data(rows=60)
    with pytest.raises(ValueError, match=said):
        sl.compare(X, y, contestants=[], **arguments)


def test_no_path_of_this_machine_is_kept(tmp_path):
    X, y = data(rows=60)
    sl.compare(X, y, **LEAST, folder=tmp_path)
    assert str(Path.home()) not in (tmp_path / "run.json").read_text()
