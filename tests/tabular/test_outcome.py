"""An outcome as values: JSON and back without loss, a table, a text, and sentences for files that are no outcome."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from stepless.tabular.outcome import Column, Difference, Entry, Outcome, format_threshold


def make(**changes):
    gap = Difference(0.01, (-0.01, 0.03), 0.5, 0.4, 0.1)
    p = np.array([0.1, 1 / 3, math.nan])
    best = Entry(
        "metric", "trained on the metric", (0.5, 0.7), 0.6, (0.4, 0.8), 1.5, (0.4, math.inf), 0.4, gap, p, p / 2, None,
        (0.875,),
    )  # fmt: skip
    base = Entry(
        "cross_entropy_tuned", "cross-entropy + tuned threshold", (0.5, 0.6), 0.55, (0.4, 0.7), 1.0, (0.3, 0.2), 0.25,
        None, p, None, None, (0.9,),
    )  # fmt: skip
    bad = Entry(
        "smote", "SMOTE", (), math.nan, (math.nan, math.nan), 0.0, (), None, None, np.empty(0), None, "no rows."
    )
    held = {
        "metric": "f_beta", "metric_options": {"beta": 2}, "maximize": True, "average": None,
        "subject_to": "precision >= 0.9", "task": "binary", "classes": ("no", "yes"), "positive": "yes", "labels": None,
        "columns": (Column("<b>", "number", 1, 2),), "n_rows": 3, "folds": 2, "repeats": 1, "seed": 0, "jobs": 1,
        "entries": (best, base, bad), "baseline": "cross_entropy_tuned", "rope": 0.01, "target": np.array([0, 1, 1]),
        "weight": np.array([1.0, 2.0, 0.5]), "winner": "metric", "verdict": "cannot tell: …",
        "warnings": ("few rows.",), "seconds": 2.5, "versions": {"python": "3"}, "name": "data",
    }  # fmt: skip
    return Outcome(**{**held, **changes})


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)
    if isinstance(a, Outcome | Entry):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_json_and_back(tmp_path, task):
    outcome = make()
    if task == "multilabel":
        entries = [
            replace(
                e, probabilities=np.ones((3, 2)), raw=None, thresholds=((0.1, -math.inf),) * 2, threshold=(0.1, 0.2)
            )
            for e in outcome.entries
        ]
        outcome = make(
            task=task, classes=(0, 1), positive=None, labels=("a", "b"), target=np.ones((3, 2), int), weight=None,
            entries=tuple(entries),
        )  # fmt: skip
    outcome.to_json(tmp_path / "o.json")
    assert same(outcome, Outcome.from_json(tmp_path / "o.json"))
    assert [f.name for f in tmp_path.iterdir()] == ["o.json"]


def test_json_is_strict_and_may_leave_out_what_is_as_long_as_the_data():
    held = make().to_dict(arrays=False)
    text = json.dumps(held, allow_nan=False)
    assert "probabilities" not in text
    assert "target" not in held
    assert held["entries"][0]["thresholds"] == [0.4, "Infinity"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[]", "its format is not"),
        ('{"format": "stepless comparison 1"}', "it l"),
        (json.dumps({**make().to_dict(), "entries": [{"key": "metric"}]}), "it is damaged"),
        (json.dumps({**make().to_dict(), "winner": "nobody"}), "it is damaged .winner is 'nobody', which did not"),
    ],
)
def test_a_file_that_is_no_outcome_is_a_sentence(tmp_path, text, said):
    (tmp_path / "o.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        Outcome.from_json(tmp_path / "o.json")


def test_the_table_and_the_text_say_the_same():
    outcome = make()
    rows = outcome.table
    assert [row["key"] for row in rows] == ["metric", "cross_entropy_tuned", "smote"]
    assert (rows[0]["mean"], rows[0]["difference_mean"], rows[0]["better"]) == (0.6, 0.01, 0.5)
    assert rows[1]["better"] is None
    assert [row["constraints"] for row in rows] == [{"precision >= 0.9": 0.875}, {"precision >= 0.9": 0.9}, {}]
    text = str(outcome).splitlines()
    assert text[1].split()[:5] == ["trained", "on", "the", "metric", "0.6000"]
    assert "f_beta (beta=2)" in text[0]
    assert "precision >= 0.9" in text[0]
    assert "0.8750" in text[1]
    assert "baseline" in text[2]
    assert text[3].endswith("no rows.")
    assert text[-2:] == ["cannot tell: …", "warning: few rows."]
    assert outcome.constraints == ("precision >= 0.9",)
    assert make(subject_to=None).constraints == ()


def test_entries_are_found_by_their_keys():
    assert make().entry("smote").failed == "no rows."
    with pytest.raises(KeyError, match="no contestant 'x'; there are metric, cross_entropy_tuned, smote"):
        make().entry("x")


def test_infinite_thresholds_are_told_in_words():
    assert format_threshold(-math.inf) == "calls every row positive"
    assert format_threshold(math.inf) == "calls no row positive"
    assert format_threshold((0.1, -math.inf)) == "0.10, −∞"


def test_a_threshold_is_never_shown_as_0_or_1_unless_it_is():
    assert format_threshold((0.004, 0.9971, 0.0, 1.0)) == "0.0040, 0.9971, 0.00, 1.00"
    assert [format_threshold(cut) for cut in (0.005001, 0.996, 1e-20)] == ["0.01", "0.9960", "1e−20"]
    assert format_threshold((-0.004, 1.004)) == "−0.00, 1.00"  # offsets, of which so little is nothing


def test_long_thresholds_are_cut_short():
    assert format_threshold((0.1,) * 6) == "0.10, 0.10, 0.10, 0.10, …"
