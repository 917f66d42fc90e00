"""Warnings: each is said of data that call for it, and none of data that do not."""

import numpy as np
import pandas as pd
import pytest

from stepless.cautions import describe_columns, find_cautions
from stepless.frames import read_table
from stepless.splits import split_rows


def cautions(frame, target, task="binary", names=("no", "yes"), folds=5, grouped=False):
    table = read_table(frame)
    target = np.asarray(target).astype(int)
    parts = split_rows(target, task, folds, 1, 0)
    return find_cautions(table, describe_columns(table), target, task, names, parts, grouped=grouped)


@pytest.fixture
def clean():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=["age", "income", "score"])
    frame["city"] = rng.choice(["Ulm", "Bonn", "Köln"], 400)
    return frame, (frame.age + rng.normal(size=400) > 0.5).astype(int).to_numpy()


def test_good_data_call_for_nothing(clean):
    assert cautions(*clean) == []


def test_columns_are_described():
    table = read_table(pd.DataFrame({"a": [1.0, np.nan, 1.0], "b": ["x", None, "y"]}))
    a, b = describe_columns(table)
    assert (a.name, a.kind, a.missing, a.distinct) == ("a", "number", 1, 1)
    assert (b.name, b.kind, b.missing, b.distinct) == ("b", "category", 1, 2)


def test_few_rows_of_a_class(clean):
    frame, _ = clean
    (said,) = cautions(frame, np.arange(400) < 12)
    assert said.startswith("class 'yes' has 12 rows, 2 or 3 a fold: one row more or less")


def test_a_fold_without_a_class(clean):
    frame, _ = clean
    said = cautions(frame, np.arange(400) < 3)
    assert any(text.startswith("class 'yes' is missing from 2 of 5 test folds") for text in said)


def test_labels_are_named(clean):
    frame, _ = clean
    rng = np.random.default_rng(1)
    target = np.stack([rng.random(400) < 0.4, np.arange(400) < 4], 1).astype(int)
    said = cautions(frame, target, "multilabel", ("sport", "chess"))
    assert said[0].startswith("label 'chess' has 4 rows, 0 or 1 a fold")
    assert said[1].startswith("label 'chess' is missing from 1 of 5 test folds")


def test_constant_columns(clean):
    frame, y = clean
    assert cautions(frame.assign(k=1, none=np.nan), y) == [
        "columns 'k', 'none' have the same value in every row, and tell nothing."
    ]


@pytest.mark.parametrize("kind", ["number", "noisy", "category", "band"])
def test_a_column_that_equals_the_target(clean, kind):
    frame, y = clean
    rng = np.random.default_rng(0)
    leak = {
        "number": y * 2.0,
        "noisy": y + rng.normal(0, 0.05, 400),
        "category": np.where(y == 1, "p", "n"),
        "band": np.where(y == 1, rng.normal(0, 0.1, 400), rng.choice([-2, 2], 400) + rng.normal(0, 0.1, 400)),
    }[kind]
    (said,) = cautions(frame.assign(leak=leak), y)
    assert said.startswith("column 'leak' nearly equals the target: by itself it tells the classes apart.")


def test_a_column_that_equals_one_of_three_classes_is_no_target():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    frame = pd.DataFrame({"petal": (y == 0) * 5 + rng.normal(size=300), "width": rng.normal(size=300)})
    assert cautions(frame, y, "multiclass", ("a", "b", "c")) == []
    assert "nearly equals the target" in cautions(frame.assign(leak=y), y, "multiclass", ("a", "b", "c"))[0]


def test_a_group_column_is_seen_unless_groups_are_given(clean):
    frame, y = clean
    frame = frame.assign(patient_id=np.arange(400) // 4)
    (said,) = cautions(frame, y)
    assert said.startswith("column 'patient_id' looks like the name of a group, with several rows each.")
    assert "pass it as groups" in said
    assert cautions(frame, y, grouped=True) == []


def test_a_category_of_many_values_is_a_group(clean):
    frame, y = clean
    (said,) = cautions(frame.assign(street=[f"s{i // 5}" for i in range(400)]), y)
    assert said.startswith("column 'street' looks like")


def test_a_column_of_names_for_rows(clean):
    frame, y = clean
    (said,) = cautions(frame.assign(code=[f"c{i}" for i in range(400)]), y)
    assert said == "column 'code' has a different value in every row, and can only be learned by heart; drop it."
    (said,) = cautions(frame.assign(code=[f"c{i}" for i in range(400)], name=[f"n{i}" for i in range(400)]), y)
    assert said.endswith("a different value in every row, and can only be learned by heart; drop them.")


def test_equal_rows_in_different_folds(clean):
    frame, y = clean
    doubled = pd.concat([frame, frame[:100]], ignore_index=True)
    (said,) = cautions(doubled, np.concatenate([y, y[:100]]))
    assert "rows" in said
    assert "have an equal one, target and all, in another fold" in said


def test_equal_rows_of_another_class_are_not_equal(clean):
    frame, y = clean
    doubled = pd.concat([frame, frame[:100]], ignore_index=True)
    assert cautions(doubled, np.concatenate([y, 1 - y[:100]])) == []
