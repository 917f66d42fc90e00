"""Verdicts: yes, no or cannot tell, with figures, and what to ship follows."""

import math

import numpy as np
import pytest

from stepless.contestants import BASELINE, CONTESTANTS
from stepless.correlated import posterior
from stepless.outcome import Difference, Entry
from stepless.verdicts import reach_verdict

NONE = np.empty(0)


def entry(key, mean, gap=None, spread=0.001, failed=None, threshold=0.23):
    difference = None
    if gap is not None:
        found = posterior(gap + spread * np.array([-1, -0.5, 0, 0.5, 1]), 5)
        difference = Difference(found.mean, found.interval(), *found.split(0.01))
    name = CONTESTANTS[key].name
    return Entry(key, name, (), mean, (mean - 0.02, mean + 0.02), 0.1, (), threshold, difference, NONE, None, failed)


BASE = entry(BASELINE, 0.612)


def verdict(*entries, task="binary", broken=()):
    return reach_verdict(entries, BASELINE, 0.01, "f1", task, broken)


def test_no_keeps_cross_entropy_and_its_threshold():
    winner, said = verdict(entry("metric", 0.615, 0.003), BASE, entry("automatic", 0.6, -0.012))
    assert winner == BASELINE
    assert said.startswith("no: keep cross-entropy and a threshold of 0.23 (f1 0.612, 0.592 to 0.632); of the others,")
    assert "trained on the metric differs by +0.003 (0.002 to 0.004)" in said
    assert said.endswith("with a probability of less than 1 %.")


def test_yes_names_the_better_one():
    winner, said = verdict(entry("metric", 0.66, 0.048), BASE)
    assert winner == "metric"
    assert said.startswith("yes: trained on the metric scores f1 0.660, better by 0.048 (0.047 to 0.049) than cross-en")
    assert said.endswith("by more than 0.01 with a probability of more than 99 %.")


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
    assert said.startswith("cannot tell: trained on the metric differs by +0.030 (−")
    assert said.endswith("keep cross-entropy and a threshold of 0.23 (f1 0.612, 0.592 to 0.632).")


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
