"""`compare` from end to end: every task, any metric, any frame; scores that are the metric of honest decisions."""

import functools
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import make_classification
from sklearn.metrics import f1_score

import stepless as sl
from stepless.formula import resolve
from stepless.tabular.comparing.contestants import DEFAULT
from stepless.tabular.comparing.splits import split_rows
from stepless.tabular.outcome import Outcome

from .quick import data, quick, same_tables  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("quick")
ONE = {"contestants": ["cross_entropy"], "folds": 3, "repeats": 1}


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_every_task_with_its_default_contestants(task, tmp_path):
    X, y = data(task)
    outcome = sl.compare(X, y, "f1", folds=2, repeats=1, name="data")
    wanted = (
        DEFAULT if task != "multilabel" else [k for k in DEFAULT if k not in ("class_weighted",) and "boost" not in k]
    )
    assert sorted(e.key for e in outcome.entries) == sorted(wanted)
    assert all(e.failed is None for e in outcome.entries)
    means = [e.mean for e in outcome.entries]
    assert means == sorted(means, reverse=True)
    shape = {"binary": (150,), "multiclass": (150, 3), "multilabel": (150, 3)}[task]
    for entry in outcome.entries:
        assert entry.probabilities.shape == shape
        assert np.isfinite(entry.probabilities).all()
        assert len(entry.scores) == len(entry.thresholds) == 2
        assert entry.interval[0] <= entry.mean <= entry.interval[1]
        assert (entry.difference is None) == (entry.key == outcome.baseline)
        assert (entry.raw is None) == (entry.key in ("cross_entropy", "class_weighted"))
    assert outcome.verdict.split(":")[0].split(",")[0] in ("yes", "no", "cannot tell")
    assert "\n" not in outcome.verdict
    assert outcome.entry(outcome.winner).failed is None
    outcome.to_json(tmp_path / "o.json")
    assert same_tables(outcome, Outcome.from_json(tmp_path / "o.json"))


def test_a_score_is_the_metric_of_the_decisions_on_a_fold():
    X, y = data()
    outcome = sl.compare(X, y, "f1", **ONE)
    fold = split_rows(outcome.target, "binary", 3, 1, 0)[0]
    for entry in outcome.entries:
        for k, (score, threshold) in enumerate(zip(entry.scores, entry.thresholds, strict=True)):
            here = fold == k
            assert score == pytest.approx(f1_score(y[here], entry.probabilities[here] >= threshold))
    assert outcome.entry("cross_entropy").threshold == 0.5


def test_intervals_stay_where_scores_can_be():
    X, y = data()
    for metric, low in (("f1", 0.0), ("mcc", -1.0)):
        entries = sl.compare(X, y, metric, folds=2, repeats=1, contestants=["cross_entropy"]).entries
        assert all(low <= e.interval[0] <= e.mean <= e.interval[1] <= 1.0 for e in entries)
    assert sl.METRICS["cost"].range == (0.0, math.inf)
    assert sl.METRICS["fpr"].range == (0.0, 1.0)
    assert sl.METRICS["mcc"].range == (-1.0, 1.0)
    assert resolve("2*tp / (2*tp + fp + fn)").range == (-math.inf, 1.0)


def test_nothing_of_a_fold_is_seen_before_it_is_scored():
    # a target of pure chance and as many columns as one likes: whoever peeks, scores
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 30)), rng.integers(0, 2, 200)
    outcome = sl.compare(X, y, "accuracy", contestants=["metric", "boosting_metric"], folds=4, repeats=2)
    for entry in outcome.entries:
        assert entry.interval[0] < 0.55
        assert abs(entry.mean - 0.5) < 0.09
    assert not outcome.verdict.startswith("yes")


def test_pandas_polars_numpy_and_lists_are_the_same():
    X, y = data()
    names = list("abcde")
    outcomes = [
        sl.compare(pd.DataFrame(X, columns=names), pd.Series(y), **ONE),
        sl.compare(pl.DataFrame(X, schema=names), pl.Series(y), **ONE),
        sl.compare(X, y, feature_names=names, **ONE),
        sl.compare(X.tolist(), y.tolist(), feature_names=names, **ONE),
    ]
    assert all(same_tables(outcomes[0], other) for other in outcomes[1:])
    assert all([c.name for c in o.columns] == names for o in outcomes)


def test_categories_and_missing_values_are_handled_inside_the_folds():
    X, y = data()
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame.loc[::7, "a"] = np.nan
    # a category that only one fold has
    frame["city"] = np.where(np.arange(150) % 50 == 0, "rare", np.where(X[:, 0] > 0, "Ulm", None))
    outcome = sl.compare(frame, y, contestants=["boosting_tuned"], folds=3, repeats=1)
    assert all(e.failed is None for e in outcome.entries)
    assert outcome.columns[0].missing == 22
    assert (outcome.columns[-1].kind, outcome.columns[-1].distinct) == ("category", 2)


def test_labels_of_every_kind():
    X, y = data()
    for labels, positive in ((np.array(["n", "p"])[y], "p"), (y == 1, True), (y * 2 - 1, 1)):
        outcome = sl.compare(X, labels, **ONE)
        assert outcome.positive == positive
        assert (outcome.target == y).all()
    outcome = sl.compare(X, pd.Series(np.array(["n", "p"])[y], dtype="category"), pos_label="n", **ONE)
    assert outcome.positive == "n"
    assert (outcome.target == 1 - y).all()
    outcome = sl.compare(X, pd.array(y, dtype="Int64"), **ONE)
    assert outcome.classes == (0, 1)


def test_multilabel_frames_name_their_labels():
    X, y = data("multilabel")
    frame = pd.DataFrame(y, columns=["sport", "<i>", "art"])
    outcome = sl.compare(X, frame, "f1", average="micro", **ONE)
    assert outcome.labels == ("sport", "<i>", "art")
    assert (outcome.task, outcome.average) == ("multilabel", "micro")
    assert len(outcome.entries[0].threshold) == 3
    assert sl.compare(X, y, **ONE).labels == ("0", "1", "2")


def test_formulas_options_and_costs():
    X, y = data()
    named = sl.compare(X, y, "f1", **ONE)
    written = sl.compare(X, y, "2*tp/(2*tp+fp+fn)", **ONE)
    assert [e.scores for e in named.entries] == [pytest.approx(e.scores) for e in written.entries]
    assert written.metric == "2*tp/(2*tp+fp+fn)"
    beta = sl.compare(X, y, "f_beta", beta=2, **ONE)
    assert (beta.metric, beta.metric_options) == ("f_beta", {"beta": 2})
    assert "f_beta (beta=2) 0." in beta.verdict
    assert "f_beta (beta=2)" in str(beta).splitlines()[0]


def test_the_verdict_says_which_class_is_positive():
    X, y = data()
    for labels, said in ((y, "1, "), (np.array(["yes", "no"])[y], "'no', ")):
        verdict = sl.compare(X, labels, **ONE).verdict
        assert verdict.endswith(f" The positive class is {said}{100 * y.mean():.3g} % of the rows.")
    X, y = data("multiclass")
    assert "positive" not in sl.compare(X, y, **ONE).verdict


@pytest.mark.parametrize(("metric", "arguments"), [("5*fn + fp", {"maximize": False}), ("error_rate", {})])
def test_less_may_be_better(metric, arguments):
    X, y = data()
    outcome = sl.compare(X, y, metric, **arguments, contestants=["cross_entropy", "boosting_tuned"], folds=3, repeats=1)
    assert not outcome.maximize
    means = [e.mean for e in outcome.entries]
    assert means == sorted(means)
    base = outcome.entry(outcome.baseline)
    for entry in outcome.entries:
        if entry.difference is not None:
            assert entry.difference.mean == pytest.approx(base.mean - entry.mean)
    assert outcome.rope == (0.01 if metric == "error_rate" else pytest.approx(0.01 * base.mean))


@pytest.mark.parametrize(
    ("formula", "maximize", "is_rate"),
    [
        ("tp - fp", None, False),  # a perfect prediction scores as many as there are positives
        ("tp / n", None, False),
        ("tp / (tp + fp + fn)", False, False),  # decisions score less than a perfect prediction, which is asked for
        ("(tp - 2*fp) / (tp + fn)", None, True),
    ],
)
def test_intervals_of_formulas_have_only_bounds_that_hold(formula, maximize, is_rate):
    X, y = data()
    outcome = sl.compare(X, y, formula, maximize=maximize, contestants=["cross_entropy"], folds=3, repeats=1)
    for entry in outcome.entries:
        assert entry.interval[0] <= entry.mean <= entry.interval[1]
    base = outcome.entry(outcome.baseline)
    assert outcome.rope == (0.01 if is_rate else pytest.approx(0.01 * abs(base.mean)))


def test_constraints_leave_out_what_cannot_move_and_are_reported():
    X, y = data(rows=300)
    outcome = sl.compare(X, y, "recall", subject_to="precision >= 0.5", folds=3, repeats=1, without=["boosting_metric"])
    assert outcome.subject_to == "precision >= 0.5"
    assert {"cross_entropy", "class_weighted"}.isdisjoint(e.key for e in outcome.entries)
    assert any(
        text.startswith("cross_entropy was left out: cross-entropy at ½ decides at ½") for text in outcome.warnings
    )
    for entry in outcome.entries:
        if entry.failed is None:
            assert 0 <= entry.constraints[0] <= 1
            missed = entry.constraints[0] < 0.5
            said = any(f"for {entry.name}" in text for text in outcome.warnings if text.startswith("precision >="))
            assert missed == said


def test_groups_stay_together_and_silence_the_warning():
    X, y = data()
    groups = np.array([f"g{i // 3}" for i in range(150)], object)
    groups[:2] = None
    frame = pd.DataFrame(X, columns=list("abcde")).assign(patient_id=np.arange(150) // 3)
    assert any("pass it as groups" in text for text in sl.compare(frame, y, **ONE).warnings)
    outcome = sl.compare(frame, y, groups=pd.Series(groups), **ONE)
    assert sl.compare(frame, y, groups=pd.Series(groups, dtype="string"), **ONE).verdict == outcome.verdict
    assert not any("groups" in text for text in outcome.warnings)


def test_a_weight_of_two_is_a_row_twice_in_scores():
    X, y = data()
    weight = np.where(np.arange(150) % 3 == 0, 2.0, 1.0)
    outcome = sl.compare(X, y, "f1", sample_weight=weight, **ONE)
    fold = split_rows(outcome.target, "binary", 3, 1, 0)[0]
    entry = outcome.entry("cross_entropy")
    here = fold == 1
    expected = f1_score(y[here], entry.probabilities[here] >= 0.5, sample_weight=weight[here])
    assert entry.scores[1] == pytest.approx(expected)
    assert (outcome.weight == weight).all()


def test_small_tables_are_repeated_and_seeds_matter():
    X, y = data(rows=60)
    outcome = sl.compare(X, y, contestants=[], folds=2)
    assert (outcome.repeats, len(outcome.entries[0].scores)) == (2, 4)
    other = sl.compare(X, y, contestants=[], folds=2, seed=1)
    assert outcome.entries[0].scores != other.entries[0].scores


def test_a_class_that_training_rows_lack():
    X, y = data("multiclass", 90)
    y = y.astype("<U6")
    y[5] = "single"
    outcome = sl.compare(X, y, "accuracy", contestants=["cross_entropy", "boosting_tuned"], folds=3, repeats=1)
    assert all(e.failed is None for e in outcome.entries)
    assert outcome.entries[0].probabilities.shape == (90, 4)
    assert any("class 'single' is missing from 2 of 3 test folds" in text for text in outcome.warnings)


def test_no_fold_is_without_a_class_that_has_fewer_rows_than_there_are_folds(tmp_path):
    # in two of five folds even a perfect model would count as 0, and come to 0.6 at best
    X, y = np.r_[np.full(37, -4.0), np.full(3, 4.0)].reshape(-1, 1), np.r_[np.zeros(37, int), np.ones(3, int)]
    arguments = {"contestants": ["cross_entropy"], "folds": 5, "repeats": 2, "folder": tmp_path}
    seen = []
    outcome = sl.compare(X, y, "recall", progress=seen.append, **arguments)
    assert outcome.folds == 3
    assert {step.total for step in seen} == {2 * 2 * 3}
    assert all(len(e.scores) == 6 for e in outcome.entries)
    assert outcome.entry(outcome.baseline).mean > 0.6
    assert any("class 1 has 3 rows, so there are 3 folds and not 5" in text for text in outcome.warnings)
    assert not any("missing from" in text for text in outcome.warnings)
    again = sl.compare(X, y, "recall", progress=seen.append, resume=True, **arguments)
    assert same_tables(outcome, again)
    assert all(step.seconds == 0 for step in seen[12:])


def _capped(tp, fp, fn, tn, cap=1.0):
    return sl.minimum(tp / (tp + fp), cap * tp / (tp + fn))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda tp, fp, fn, tn: sl.minimum(tp, tn) / (tp + fp + fn + tn),
         lambda tp, fp, fn, tn: sl.maximum(tp, tn) / (tp + fp + fn + tn)),
        (functools.partial(_capped, cap=0.5), functools.partial(_capped, cap=0.9)),
    ],
)  # fmt: skip
def test_a_run_of_another_function_is_not_gone_on_with(tmp_path, one, other):
    X, y = make_classification(60, random_state=0)
    arguments = {"contestants": ["cross_entropy"], "folds": 2, "repeats": 1, "folder": tmp_path}
    outcome = sl.compare(X, y, one, **arguments)
    with pytest.raises(ValueError, match="metric"):
        sl.compare(X, y, other, resume=True, **arguments)
    assert same_tables(outcome, sl.compare(X, y, one, resume=True, **arguments))


@pytest.mark.parametrize("metric", ["f1", "2*tp/(2*tp+fp+fn)"])
def test_equal_scores_of_few_rows_are_no_evidence(metric):
    X = np.random.default_rng(0).normal(size=(300, 3))
    outcome = sl.compare(X, [0] * 298 + [1, 1], metric, contestants=["cross_entropy"], folds=5, repeats=1)
    assert outcome.folds == 2
    assert outcome.verdict.startswith("cannot tell:")


def test_equal_scores_of_many_rows_are_evidence_where_something_was_decided():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4 == 0
    X = np.c_[np.where(y, 8.0, -8.0) + rng.normal(size=400), rng.normal(size=400)]
    clear = sl.compare(X, y, "accuracy", **ONE)
    assert {e.mean for e in clear.entries} == {1.0}
    assert clear.verdict.startswith("no:")
    # with nothing to go by, all are called negative by both
    blank = sl.compare(np.ones((400, 1)), y, "accuracy", **ONE)
    assert all(e.mean == pytest.approx(0.75, abs=0.01) for e in blank.entries)
    assert "decides all rows of a fold alike" in blank.verdict
    assert blank.verdict.startswith("cannot tell:")
    gap = blank.entry("cross_entropy").difference
    assert gap.interval[0] < 0 < gap.interval[1]
    assert gap.better > 0.05


def test_a_bar_can_be_shown(capsys):
    pytest.importorskip("rich")
    X, y = data(rows=60)
    sl.compare(X, y, contestants=[], folds=2, repeats=1, progress=True)
    assert "comparing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"y": np.zeros(60)}, ValueError, r"y has one class only \(0.0\): nothing to decide"),
        ({"y": np.arange(60)}, ValueError, "y has 60 different values in 60 rows: these are no classes"),
        ({"y": np.arange(60) / 7}, ValueError, "Unknown label type: continuous"),
        ({"y": np.r_[1, np.zeros(59)]}, ValueError, "class 1.0 has a single row: held out, none is left to learn from"),
        ({"y": np.array([None, "a"] * 30, object)}, ValueError, "y must have a label in every row; 30 are missing"),
        ({"y": [0, 1] * 10}, ValueError, "X and y must have as many rows; X has 60 and y 20"),
        ({"metric": "f2"}, ValueError, "unknown metric 'f2'"),
        (
            {"metric": "auroc"},
            ValueError,
            "compare needs a metric that scores decisions, as 'f1' does; 'auroc' scores a",
        ),
        ({"metric": "f1", "beta": 2}, TypeError, "metric 'f1' has no option 'beta'"),
        (
            {"metric": "cost", "maximize": False, "average": "none"},
            ValueError,
            'average="none" gives one for each class',
        ),
        ({"maximize": False}, ValueError, "metric 'f1' is always maximised"),
        ({"subject_to": "precision"}, ValueError, "a constraint is a metric"),
        ({"task": "multilabel"}, ValueError, "task='multilabel' does not fit y, which is that of a binary task"),
        ({"pos_label": "x"}, ValueError, "pos_label must be one of the classes"),
        ({"folds": 1}, ValueError, "folds must be a whole number from 2 up; got 1"),
        ({"folds": 61}, ValueError, "60 rows cannot be divided into 61 folds"),
        ({"repeats": 0}, ValueError, "repeats must be a whole number from 1 up; got 0"),
        ({"seed": -1}, ValueError, "seed must be a whole number from 0 up; got -1"),
        ({"sample_weight": np.full(60, -1.0)}, ValueError, "sample_weight must be finite, nowhere below 0"),
        ({"sample_weight": np.ones(3)}, ValueError, r"sample_weight must be one number per row, \(60,\); got \(3,\)"),
        ({"groups": [1, 2]}, ValueError, r"groups must be one a row, \(60,\); got \(2,\)"),
        (
            {"y": np.r_[np.ones(9), np.zeros(51)], "groups": np.r_[np.zeros(9), np.arange(51) // 3]},
            ValueError,
            "all rows of class 1.0 are in one group: held out, none is left to learn from",
        ),
        ({"feature_names": ["a"]}, ValueError, "feature_names must be 5 different names, one a column; got 1"),
        ({"progress": 3}, TypeError, "progress must be a function, True or None; got int"),
    ],
)
def test_bad_input_is_a_sentence(change, error, said):
    X, y = data(rows=60)
    arguments = {"y": y, "metric": "f1", "contestants": [], "folds": 2, "repeats": 1, **change}
    with pytest.raises(error, match=said):
        sl.compare(X, arguments.pop("y"), arguments.pop("metric"), **arguments)


def test_a_named_metric_may_be_told_what_it_is():
    X, y = data(rows=60)
    assert sl.compare(X, y, "f1", maximize=True, contestants=[], folds=2, repeats=1).maximize
    assert not sl.compare(X, y, "error_rate", maximize=False, contestants=[], folds=2, repeats=1).maximize
    assert not sl.compare(X, y, "error_rate", maximize=True, contestants=[], folds=2, repeats=1).maximize


def test_versions_and_seconds_are_recorded():
    X, y = data(rows=60)
    outcome = sl.compare(X, y, contestants=["boosting_tuned"], folds=2, repeats=1)
    assert {"python", "stepless", "torch", "numpy", "scikit-learn", "lightgbm"} <= set(outcome.versions)
    assert outcome.seconds > 0
    assert math.isfinite(outcome.entries[0].fit_seconds)


def test_rows_of_weight_0_are_none():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(240, 3)), np.array(["a"] * 100 + ["b"] * 140)
    X[:, 0] += y == "a"
    weight = np.where(np.arange(240) < 160, 1.0, 0.0)  # of the rows that count b is the rarer
    whole = sl.compare(X, y, sample_weight=weight, **ONE)
    part = sl.compare(X[:160], y[:160], sample_weight=weight[:160], **ONE)
    assert whole.positive == part.positive == "b"
    assert (whole.verdict, whole.warnings, whole.n_rows) == (part.verdict, part.warnings, part.n_rows)
    assert [e.scores for e in whole.entries] == [e.scores for e in part.entries]


def test_settings_may_be_numbers_of_numpy():
    X, y = data(rows=60)
    settings = {"folds": np.int64(2), "repeats": np.int32(1), "seed": np.int64(0), "jobs": np.int64(1)}
    outcome = sl.compare(X, y, contestants=[], **settings)
    assert (outcome.folds, outcome.jobs) == (2, 1)
