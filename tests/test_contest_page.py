"""docs/contest.md says what the recorded results say; ranks, wins and collapses are right on results made by hand."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "contest"


@pytest.fixture(scope="module")
def contest():
    """The modules that the page needs; they lie beside each other, as in a run."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in ("summary", "page", "results", "goals")}
    finally:
        sys.path.remove(str(FOLDER))


def record(name, half="development", **scores):
    entries = {
        contestant: {"F1": {"scores": values, "seconds": [1.0] * len(values), "single": [False] * len(values)}}
        for contestant, values in scores.items()
    }
    return {"set": name, "task": "binary", "half": half, "rows": 300, "rarest": 0.1, "made": {}, "entries": entries}


def test_the_page_is_that_of_the_results(contest):
    page = contest["page"]
    records, readme = contest["results"].read_all(), page.README.read_text(encoding="utf-8")
    assert page.render(records) == page.PAGE.read_text(encoding="utf-8")
    assert page.with_table(readme, records) == readme


def test_every_result_is_of_a_set_in_its_half(contest):
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    halves, whole = config["halves"], [f"{name}_all" for name in config["full"]["sets"]]
    for result in contest["results"].read_all():
        listed = whole if result["half"] == "full" else halves[result["half"]][result["task"]]
        assert result["set"] in listed
    names = [name for tasks in halves.values() for listed in tasks.values() for name in listed]
    assert len(names) == len(set(names))


def test_ranks_and_wins(contest):
    records = [record("a", x=[0.2, 0.4], y=[0.3, 0.3]), record("b", x=[0.5, 0.5], y=[0.6, 0.6]),
               record("c", x=[0.9, 0.9], y=[0.1, 0.1])]  # fmt: skip
    more = [*records * 4, record("d", x=[0.9, 0.9])]
    assert [r["set"] for r in contest["summary"].standing(more, "F1").records] == ["a", "b", "c"] * 4  # d lacks one
    slow = [*records, record("d", x=[0.9, 0.9])]  # where a contestant is far behind, it waits
    assert contest["summary"].behind(slow, ["x", "y"], "F1") == {"y": 3}
    assert contest["summary"].standing(slow, "F1").names == ["x"]
    found = contest["summary"].standing(records, "F1")
    assert found.ranks() == {"x": 1.5, "y": 1.5}
    duel = found.duel("x", "y")
    assert (duel.wins, duel.ties, duel.losses, duel.surely) == (1, 1, 1, pytest.approx(0.5))
    assert contest["summary"].Duel(9, 0, 1).surely > 0.99


def test_ranks_have_the_ties_of_duels(contest):
    """Fold scores are kept to six places: means that differ by less than half of the last one are equal."""
    found = contest["summary"].standing([record("a", x=[0.9988296], y=[0.9988298], z=[0.9988306])], "F1")
    assert [found.duel("y", other).ties for other in "xz"] == [1, 0]
    assert found.ranks() == {"x": 2.5, "y": 2.5, "z": 1.0}


def test_a_shared_first_place_is_not_first(contest):
    page = contest["page"]
    assert page._first({"ours": 1.5, "theirs": 2.0}, "ours") == ("first: ours (1.50)", True)
    assert page._first({"theirs": 1.5, "ours": 1.5}, "ours") == ("first: theirs and ours (1.50)", False)
    assert page._first({"theirs": 1.5, "ours": 2.0}, "ours") == ("first: theirs (1.50); ours has 2.00", False)


def test_a_collapse_is_one_that_cross_entropy_does_not_have(contest):
    one, both = record("a", y=[0.5], **{"cross-entropy": [0.5]}), record("b", y=[0.5], **{"cross-entropy": [0.5]})
    one["entries"]["y"]["F1"]["single"] = both["entries"]["y"]["F1"]["single"] = [True]
    both["entries"]["cross-entropy"]["F1"]["single"] = [True]
    found = contest["summary"].standing([one, both], "F1")
    assert (found.collapses("y"), found.collapses("cross-entropy")) == (1, 0)


def test_results_are_written_whole(contest, tmp_path):
    results, given = contest["results"], record("a", x=[0.5])
    results.write(given, tmp_path)
    assert results.read("a", tmp_path) == given == results.read_all(tmp_path)[0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("kind", ["set", "contestant", "metric"])
def test_a_run_of_an_unknown_name_says_so(tmp_path, kind):
    ran = subprocess.run(
        [sys.executable, FOLDER / "run.py", f"--{kind}s", "nosuch", "--folder", tmp_path],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"no {kind} is called 'nosuch'; there are '")


def test_scores_from_counts_are_the_scores(contest):
    random = np.random.default_rng(0)
    for goal in contest["goals"].GOALS["binary"]:
        for share in (0.0, 0.3, 1.0):
            target, decided = random.integers(0, 2, 40), (random.random(40) < share).astype(int)
            assert goal.score_counts(target, decided) == pytest.approx(goal.score(decided, target))


@pytest.mark.parametrize("duel", [(38, 3, 5), (30, 3, 13), (20, 0, 22), (10, 6, 9)])
def test_the_sign_test_is_that_of_baycomp(contest, duel):
    """In closed form, so that the page is the same every time; baycomp draws samples."""
    baycomp = pytest.importorskip("baycomp")
    wins, ties, losses = duel
    gains = np.repeat([1.0, 0.0, -1.0], duel)
    _, better = baycomp.SignTest.probs(np.zeros(len(gains)), gains, rope=0)
    assert contest["summary"].Duel(wins, ties, losses).surely == pytest.approx(better, abs=0.03)
