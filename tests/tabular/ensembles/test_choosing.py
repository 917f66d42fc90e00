"""Which ensemble decides, and where: what is chosen is best on rows that chose nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score

from stepless.rules import Held, Rule
from stepless.tabular.ensembles.choosing import Pool, _cross_fitted, choose, expected
from stepless.tabular.ensembles.portfolio import Ensemble
from stepless.tabular.models.calibration import Identity

ROWS = 600
ONE_FOLD = np.zeros(ROWS, int)
FOLDS = np.repeat(np.arange(3), ROWS // 3)


def rule(metric="f1", task="binary", classes=2, **settings):
    given = {"options": {}, "subject_to": None, "average": None, **settings}
    return Rule(task, np.arange(classes), int(task == "binary"), "predict_proba", metric, seed=0, **given)


def ensemble(name, scores):
    return Ensemble(name, None, np.asarray(scores, np.float64))


@pytest.fixture(scope="module")
def data():
    """A target, scores that know much of it and scores that know less than nothing."""
    random = np.random.default_rng(0)
    y = (random.random(ROWS) < 0.2).astype(np.int64)
    return y, 2.5 * y - 2 + random.normal(size=ROWS), -1.5 * y - 1 + 3 * random.normal(size=ROWS)


def decided(choice, ensembles, rule):
    """The held-out rows' decisions, by the calibration and the threshold that were chosen."""
    weights = np.array(choice.option.weights)
    p = (weights[:, None] / (1 + np.exp(-np.stack([e.held for e in ensembles])))).sum(0)
    return choice.calibration.probabilities(np.log(p / (1 - p))) >= choice.threshold


def test_the_better_scores_are_chosen(data):
    y, good, poor = data
    both = [ensemble("poor", poor), ensemble("good", good)]
    choice = choose(both, rule(), y, None, FOLDS)
    assert choice.option.name == "good"
    assert choice.option.weights == (0.0, 1.0)
    assert [o.name for o in choice.options] == ["poor", "poor", "good", "good", "average", "average"]
    assert [o.tuned for o in choice.options] == [False, True] * 3
    assert choice.option.score == max(o.score for o in choice.options)


def test_the_average_is_chosen_where_errors_cancel(data):
    y, good, _ = data
    noise = np.random.default_rng(1).normal(size=ROWS)
    choice = choose([ensemble("a", good + noise), ensemble("b", good - noise)], rule(), y, None, FOLDS)
    assert choice.option.name == "average"
    assert choice.option.weights == (0.5, 0.5)


def test_a_cost_is_small_where_it_is_better(data):
    y, good, poor = data
    cost = rule("5*fn + fp", options={"maximize": False})
    choice = choose([ensemble("poor", poor), ensemble("good", good)], cost, y, None, FOLDS)
    assert choice.option.score == min(o.score for o in choice.options)
    assert choice.option.name != "poor"


def test_the_first_of_equals_is_chosen_and_a_half_before_a_tuned_threshold():
    y = np.tile([0, 0, 1], 100)
    sure = np.where(y == 1, 4.0, -4.0)
    choice = choose([ensemble("a", sure), ensemble("b", sure)], rule(), y, None, np.arange(300) // 100)
    assert (choice.option.name, choice.option.tuned, choice.option.score) == ("a", False, 1.0)


def test_a_tuned_threshold_is_judged_on_rows_it_was_not_tuned_on(data):
    y, good, _ = data
    p = 1 / (1 + np.exp(-good))
    choice = choose([ensemble("good", good)], rule(), y, None, FOLDS, cut="tuned")
    by_hand = np.zeros(ROWS, bool)
    for fold in range(3):
        here = fold == FOLDS
        cuts = np.unique(p[~here])[-120:]
        scores = [f1_score(y[~here], p[~here] >= cut) for cut in cuts]
        by_hand[here] = p[here] >= cuts[int(np.argmax(scores))]
    # between two neighbouring scores any cut is as good on the rows it is tuned on
    assert choice.option.score == pytest.approx(f1_score(y, by_hand), abs=0.01)
    held = Held(p, y, None, np.arange(ROWS), FOLDS)
    assert choice.option.score == f1_score(y, _cross_fitted(rule(), held))


def test_the_rows_of_a_single_fold_are_halved(data):
    y, good, _ = data
    choice = choose([ensemble("good", good)], rule(), y, None, np.zeros(ROWS, int), cut="tuned")
    assert 0 < choice.option.score < 1


def test_folds_without_two_classes_are_cut_at_a_half():
    """The one positive is in the first fold: what is tuned without it says nothing."""
    y = np.arange(ROWS) == 7
    scores = np.where(y, 2.0, -2.0)
    for cut in ("tuned", "auto"):
        choice = choose([ensemble("a", scores)], rule(), y.astype(int), None, FOLDS, cut=cut)
        assert choice.option.score == 1.0
    none = choose([ensemble("a", scores)], rule(), np.zeros(ROWS, int), None, FOLDS, cut="tuned")
    assert not none.option.tuned
    assert math.isfinite(none.threshold)


@pytest.mark.parametrize("calibrate", [True, False])
def test_a_half_of_the_ensembles_own_probabilities(data, calibrate):
    y, good, _ = data
    alone = [ensemble("good", good)]
    choice = choose(alone, rule(), y, None, FOLDS, cut="half", calibrate=calibrate)
    np.testing.assert_array_equal(decided(choice, alone, rule()), good >= 0)
    assert calibrate or choice.threshold == 0.5


def test_weights_count(data):
    y, good, poor = data
    # the rows on which "poor" is right
    weight = np.where((poor >= 0) == y, 50.0, 1.0)
    both = [ensemble("good", good), ensemble("poor", poor)]
    assert choose(both, rule("accuracy"), y, weight, FOLDS, cut="half").option.name == "poor"
    assert choose(both, rule("accuracy"), y, None, FOLDS, cut="half").option.name == "good"


def test_constraints_hold_on_the_held_out_rows(data):
    y, good, poor = data
    both = [ensemble("poor", poor), ensemble("good", good)]
    asked = rule("recall", subject_to="precision >= 0.8")
    choice = choose(both, asked, y, None, FOLDS)
    said = decided(choice, both, asked)
    assert precision_score(y, said) >= 0.8
    assert said[y == 1].mean() > 0.2
    assert all(o.tuned for o in choice.options)
    assert choice.option.violation == min(o.violation for o in choice.options)


def test_constraints_that_cannot_be_met_without_a_fold():
    """Only the first fold holds the rows that meet them; what is tuned on all of them is taken then."""
    y = np.array([1] * 20 + [0] * 180 + [1, 0] * 200)
    scores = np.concatenate([np.full(20, 3.0), np.full(180, -3.0), np.zeros(400)])
    choice = choose([ensemble("a", scores)], rule("recall", subject_to="precision >= 0.9"), y, None, FOLDS)
    assert choice.option.violation == math.inf
    assert precision_score(y, choice.calibration.probabilities(scores) >= choice.threshold) >= 0.9


def test_constraints_that_cannot_be_met_at_all(data):
    y, _, poor = data
    with pytest.raises(ValueError, match="no threshold meets"):
        choose([ensemble("poor", np.zeros(ROWS))], rule("recall", subject_to="precision >= 0.9"), y, None, FOLDS)
    with pytest.raises(ValueError, match='constraints are met by moving the threshold; threshold="half" leaves it'):
        choose([ensemble("poor", poor)], rule("recall", subject_to="fpr <= 0.1"), y, None, FOLDS, cut="half")
    with pytest.raises(
        ValueError, match=r"threshold must be one of 'expected', 'auto', 'tuned', 'half', or the .*; got 'best'"
    ):
        choose([ensemble("poor", poor)], rule(), y, None, FOLDS, cut="best")


def test_labels_and_classes():
    random = np.random.default_rng(2)
    y = random.integers(0, 3, ROWS)
    logits = 2 * np.eye(3)[y] + random.normal(size=(ROWS, 3))
    scores = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    choice = choose([ensemble("a", scores)], rule("f1", "multiclass", 3, average="macro"), y, None, FOLDS)
    assert len(choice.threshold) == 3
    assert choice.option.score > 0.7
    Y = np.eye(3, dtype=np.int64)[y]
    for average in ("macro", "micro", "samples"):
        many = choose([ensemble("a", 2 * logits - 2)], rule("f1", "multilabel", 3, average=average), Y, None, FOLDS)
        assert len(many.threshold) == 3
        assert many.option.score > 0.7


def test_a_pool_keeps_the_latest():
    def pool(n, weight, value):
        return Pool(np.full((2, n), value), np.full(n, int(value)), weight, np.arange(n) % 5)

    old, new = pool(15_000, None, 0.0), pool(10_000, np.full(10_000, 2.0), 1.0)
    assert new.after(None) is new
    both = new.after(old)
    assert both.scores.shape == (2, 20_000)
    assert len(both.target) == len(both.weight) == len(both.folds) == 20_000
    assert both.target.sum() == 10_000
    assert both.weight.sum() == 10_000 + 2 * 10_000
    assert old.after(pool(3, None, 0.0)).weight is None


def test_an_expected_cut_never_says_the_same_of_every_row():
    random = np.random.default_rng(3)
    y = (random.random(ROWS) < 0.4).astype(np.int64)
    for metric in ("f1", "recall", "specificity", "precision"):
        held = 0.1 * random.normal(size=ROWS)
        found = expected(held, rule(metric), y, None, ONE_FOLD, calibrate=False)
        assert 0 < (Identity("binary").probabilities(held) >= found.threshold).mean() < 1
    alike = expected(np.zeros(ROWS), rule("f1"), y, None, ONE_FOLD, calibrate=True)
    assert alike.threshold == -np.inf  # nothing can be told apart


def test_expected_offsets_are_best_if_rows_are_of_their_classes_as_often_as_calibrated():
    random = np.random.default_rng(4)
    p = random.dirichlet([2.0, 1.0, 0.2], 600)
    y = (p.cumsum(1) > random.random((600, 1))).argmax(1)
    several = rule("f1", "multiclass", 3, average="macro")
    found = choose([ensemble("one", np.log(p))], several, y, None, np.arange(600) % 3, cut="expected")
    p = found.calibration.probabilities(np.log(p))

    def worth(offsets):
        decided = np.eye(3)[several.decide(p, offsets)]
        tp, predicted, support = (p * decided).sum(0), decided.sum(0), p.sum(0)
        return (2 * tp / (predicted + support)).mean()

    others = [np.zeros(3), *random.normal(size=(300, 3))]
    assert worth(found.threshold) > worth(np.zeros(3)) + 0.01
    assert worth(found.threshold) >= max(map(worth, others)) - 1e-3
    plain = choose([ensemble("one", np.log(p))], several, y, None, np.arange(600) % 3, cut="expected", calibrate=False)
    assert len(plain.options) == 2  # the better of offsets tuned on labels and none


def test_expected_offsets_of_many_rows_are_those_of_an_even_part(monkeypatch):
    random = np.random.default_rng(5)
    p = random.dirichlet([2.0, 1.0, 0.3], 3000)
    y = (p.cumsum(1) > random.random((3000, 1))).argmax(1)
    several = rule("f1", "multiclass", 3, average="macro")
    whole = expected(np.log(p), several, y, None, np.zeros(len(y), int), calibrate=True)
    seen = []
    tune = Rule.tune
    monkeypatch.setattr(Rule, "tune", lambda self, held: seen.append(len(held.scores)) or tune(self, held))
    monkeypatch.setattr("stepless.tabular.ensembles.choosing._MOST_PROBABILITIES", 6_000)
    part = expected(np.log(p), several, y, None, np.zeros(len(y), int), calibrate=True)
    assert seen[0] * 3 <= 6_600
    assert part.option.score == pytest.approx(whole.option.score, abs=0.02)


def test_where_no_model_tells_rows_apart_the_folds_do_not_either():
    """Models of two folds that know nothing but how many positives they have seen."""
    y, folds = (np.arange(ROWS) % 4 == 0).astype(np.int64), np.arange(ROWS) % 2
    found = expected(np.where(folds == 0, -1.09, -1.11), rule("f1"), y, None, folds, calibrate=True)
    assert found.threshold == -np.inf  # and not between the two


def test_folds_of_one_row_are_cut_like_others(data):
    """No fold has two scores that could differ, which says nothing about the model."""
    y, good, _ = data
    several = expected(good, rule("f1"), y, None, FOLDS, calibrate=True)
    single = expected(good, rule("f1"), y, None, np.arange(ROWS), calibrate=True)
    assert single.threshold == several.threshold > 0
