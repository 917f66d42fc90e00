"""Verdicts: yes, no or cannot tell, with figures, and what to ship follows."""

import math

import numpy as np
import pytest

import stepless as sl
from stepless.rules import Rule
from stepless.tabular.comparing.cells import Cell
from stepless.tabular.comparing.contestants import BASELINE, CONTESTANTS
from stepless.tabular.comparing.correlated import posterior
from stepless.tabular.comparing.results import Results
from stepless.tabular.comparing.verdicts import reach_verdict
from stepless.tabular.outcome import Difference, Entry

NONE = np.empty(0)


def entry(key, mean, gap=None, spread=0.001, failed=None, threshold=0.23):
    difference = None
    if gap is not None:
        found = posterior(gap + spread * np.array([-1, -0.5, 0, 0.5, 1]), 5)
        difference = Difference(found.mean, found.interval(), *found.split(0.01))
    name = CONTESTANTS[key].name
    return Entry(key, name, (), mean, (mean - 0.02, mean + 0.02), 0.1, (), threshold, difference, NONE, None, failed)


BASE = entry(BASELINE, 0.612)


def verdict(*entries, task="binary", broken=(), doubts=None):
    return reach_verdict(entries, BASELINE, 0.01, "f1", task, broken, doubts or {})


def test_no_keeps_cross_entropy_and_its_threshold():
    winner, said = verdict(entry("metric", 0.615, 0.003), BASE, entry("automatic", 0.6, -0.012))
    assert winner == BASELINE
    assert said.startswith("no: keep cross-entropy and a threshold of 0.23 (f1 0.612, 0.592 to 0.632); of the others,")
    assert "trained on the metric is better by 0.003 (0.002 to 0.004)" in said
    assert said.endswith("with a probability of less than 1 %.")


def test_yes_names_the_better_one():
    winner, said = verdict(entry("metric", 0.66, 0.048), BASE)
    assert winner == "metric"
    assert said.startswith("yes: trained on the metric scores f1 0.660, better by 0.048 (0.047 to 0.049) than cross-en")
    assert said.endswith("by more than 0.01 with a probability of more than 99 %.")


def test_small_differences_that_count_are_shown():
    base = entry(BASELINE, 0.003, threshold=0.0042)
    unsure = reach_verdict([entry("metric", 0.0021, 0.0009, 0.01), base], BASELINE, 3e-5, "fp / n", "binary")[1]
    assert unsure.startswith("cannot tell: trained on the metric is better by 0.000900 (−0.")
    assert "keep cross-entropy and a threshold of 0.0042 (fp / n 0.003000, −0.017000 to 0.023000)" in unsure


def test_yes_for_what_is_not_trained_on_the_metric():
    winner, said = verdict(entry("boosting_tuned", 0.66, 0.048), BASE)
    assert winner == "boosting_tuned"
    assert said.startswith("yes, but not by training on f1: boosting + tuned threshold scores")


def test_yes_is_not_said_for_the_training_where_others_come_as_far():
    ours = entry("boosting_metric", 0.66, 0.048)
    said = verdict(ours, entry("boosting_tuned", 0.655, 0.043), BASE)[1]
    assert said.startswith("yes: boosting on the metric scores f1 0.660")
    assert said.endswith("99 %. Boosting + tuned threshold does as well without training on f1 (0.655).")
    for far in (entry("boosting_tuned", 0.63, 0.018), entry("metric", 0.655, 0.043)):
        assert verdict(ours, far, BASE)[1].endswith("99 %.")


def test_cannot_tell_keeps_the_simpler_way():
    winner, said = verdict(entry("metric", 0.64, 0.03, spread=0.1), BASE)
    assert winner == BASELINE
    assert said.startswith("cannot tell: trained on the metric is better by 0.030 (−")
    assert said.endswith("keep cross-entropy and a threshold of 0.23 (f1 0.612, 0.592 to 0.632).")


def test_cannot_tell_says_why_equal_folds_are_no_evidence():
    alike = entry("metric", 0.612, 1e-9, spread=0.1)
    said = verdict(alike, BASE, doubts={"metric": "a fold has as few as 1 row of the rarest class"})[1]
    assert said.startswith(
        "cannot tell: trained on the metric is the same in every fold, which is no evidence, as a fold has as few"
        " as 1 row of the rarest class; until the data can tell, keep cross-entropy and a threshold of 0.23 ("
    )
    assert verdict(entry("metric", 0.612, 0.0, spread=0.0), BASE)[1].startswith("no: keep")


@pytest.mark.parametrize(
    ("scores", "fewest", "probabilities", "said"),
    [
        ((0.5, 0.7), 9, [0.1, 0.9], "a fold has as few as 9 rows of the rarest class"),
        ((0.5, 0.7), 10, [0.1, 0.9], None),
        ((0.0, 0.0), 10, [0.1, 0.9], "both score 0 in all of them"),
        ((0.5, 0.7), 10, [0.6, 0.9], "trained on the metric decides all rows of a fold alike"),
        ((0.5, math.nan), 1, [0.1, 0.9], "a fold has as few as 1 row of the rarest class"),
    ],
)
@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_when_equal_folds_are_no_evidence(task, scores, fewest, probabilities, said):
    cut = {"binary": 0.5, "multiclass": (0.0, 0.0), "multilabel": (0.5,)}[task]
    p = np.array(probabilities)
    p = {"binary": p, "multiclass": np.stack([1 - p, p], 1), "multilabel": p[:, None]}[task]
    grid = {
        (key, 0, k): Cell(key, 0, k, score=score, threshold=cut, probabilities=p)
        for key in ("metric", BASELINE)
        for k, score in enumerate(scores)
    }
    folds = np.array([[0, 0, 1, 1]], np.int16)
    ours, base = (Results(CONTESTANTS[key], grid, folds, task) for key in ("metric", BASELINE))
    assert ours.doubt(base, sl.METRICS["f1"], fewest) == said
    assert base.doubt(base, sl.METRICS["f1"], fewest) is None
    if math.isfinite(sum(scores)):
        assert (ours.entry(base, 2, sl.METRICS["f1"], 0.01, fewest).difference.same == 1) == (said is None)
    grid["metric", 0, 0] = Cell("metric", 0, 0, score=0.1, threshold=cut, probabilities=p)
    if math.isfinite(sum(scores)):
        assert Results(CONTESTANTS["metric"], grid, folds, task).doubt(base, sl.METRICS["f1"], fewest) is None


@pytest.mark.parametrize(
    ("task", "metric", "target", "p", "effect"),
    [
        ("binary", "f1", [0, 0, 0, 1] * 2, [0.1, 0.1, 0.1, 0.9] * 2, 1.0),  # the one hit of each fold becomes a miss
        ("binary", "f1", [0, 0, 0, 1] * 2, [0.1] * 8, 1.0),  # no hit: a miss becomes one
        ("binary", "accuracy", [0, 0, 0, 1] * 2, [0.1, 0.1, 0.1, 0.9] * 2, 0.25),
        ("multiclass", "accuracy", [0, 0, 1, 2] * 2, np.eye(3)[[0, 0, 1, 2] * 2], 0.25),
        ("multilabel", "f1", [[0, 1], [1, 0], [1, 1], [1, 0]] * 2, [[0, 1], [1, 0], [1, 1], [1, 0]] * 2, 1 / 6),
    ],
)
def test_how_much_one_row_changes_a_fold(task, metric, target, p, effect):
    cut = {"binary": 0.5, "multiclass": (0.0,) * 3, "multilabel": (0.5, 0.5)}[task]
    p, target = np.array(p, float), np.array(target)
    grid = {(BASELINE, 0, k): Cell(BASELINE, 0, k, 0.5, cut, probabilities=p[4 * k : 4 * k + 4]) for k in range(2)}
    results = Results(CONTESTANTS[BASELINE], grid, np.array([[0] * 4 + [1] * 4], np.int16), task)
    rule = Rule(task, np.arange(target.max() + 1), 1, "predict_proba", metric, {}, None, None, 0)
    assert results.row_effect(rule, target, None) == pytest.approx(effect)
    assert results.row_effect(rule, target, np.full(8, 2.0)) == pytest.approx(effect)


def test_folds_of_one_positive_that_nearly_agree_are_no_certainty():
    scores = {"metric": (1.0, 0.96, 1.0), BASELINE: (0.04, 0.0, 0.02)}
    p = np.array([0.1, 0.9])
    grid = {(key, 0, k): Cell(key, 0, k, s, 0.5, probabilities=p) for key in scores for k, s in enumerate(scores[key])}
    ours, base = (Results(CONTESTANTS[key], grid, np.array([[0, 0, 1, 1, 2, 2]], np.int16), "binary") for key in scores)
    better = [ours.entry(base, 3, sl.METRICS["f1"], 0.01, 1, effect).difference.better for effect in (0.0, 1.0)]
    assert better[0] > 0.99
    assert better[1] < 0.95


@pytest.mark.parametrize(
    ("threshold", "said"),
    [
        (-math.inf, "a threshold that calls every row positive"),
        (math.inf, "a threshold that calls no row positive"),
        (math.nan, "a threshold on which the folds do not agree"),
    ],
)
def test_a_threshold_that_is_no_number_is_told_in_words(threshold, said):
    base = entry(BASELINE, 0.612, threshold=threshold)
    assert f"keep cross-entropy and {said} (f1 0.612" in verdict(base, entry("metric", 0.5, -0.1))[1]


def test_a_contestant_that_breaks_the_constraints_does_not_win():
    winner, said = verdict(BASE, entry("automatic", 0.58, -0.03), entry("metric", 0.9, 0.29), broken={"metric"})
    assert winner == BASELINE
    assert said.startswith("no:")


def test_without_a_baseline_nothing_can_be_told():
    failed = entry(BASELINE, math.nan, failed="no threshold will do.")
    winner, said = verdict(entry("metric", 0.6), failed)
    assert winner == "metric"
    assert said.startswith(
        "cannot tell: the baseline could not be fitted (no threshold will do); of the others trained on the metric"
    )
    winner, said = verdict(entry("metric", 0.6, 0.1), BASE, broken={BASELINE})
    assert "the baseline does not meet the constraints" in said
    winner, said = verdict(BASE, broken={BASELINE})
    assert winner == BASELINE
    assert said.startswith("cannot tell: no contestant meets the constraints on rows it has not seen")


@pytest.mark.parametrize(
    ("task", "way"), [("multiclass", "its class offsets"), ("multilabel", "a threshold for each l")]
)
def test_other_tasks_have_other_words(task, way):
    assert f"keep cross-entropy and {way}" in verdict(BASE, entry("metric", 0.5, -0.1), task=task)[1]


def test_a_baseline_alone():
    kept = "keep cross-entropy and a threshold of 0.23 (f1 0.612, 0.592 to 0.632)."
    assert verdict(BASE)[1] == f"cannot tell: nothing else took part; {kept}"
    failed = entry("metric", 0.6, failed="no threshold meets precision >= 0.9.")
    assert verdict(BASE, failed)[1] == f"cannot tell: no other contestant could be fitted on every fold; {kept}"
    broken, other = entry("metric", 0.9, 0.29), entry("automatic", 0.6, failed="it failed.")
    assert verdict(BASE, broken, broken={"metric"})[1].startswith("cannot tell: no other contestant meets the constr")
    assert "could be fitted on every fold and meets" in verdict(BASE, broken, other, broken={"metric"})[1]
