"""Warnings: each is said of data that call for it, and none of data that do not."""

import numpy as np
import pandas as pd
import pytest

from stepless.tabular.comparing.cautions import describe_columns, find_cautions
from stepless.tabular.comparing.splits import split_rows
from stepless.tabular.tables.frames import read_table


def cautions(frame, target, task="binary", names=("no", "yes"), folds=5, grouped=False, asked=None):
    table = read_table(frame)
    target = np.asarray(target).astype(int)
    parts = split_rows(target, task, folds, 1, 0)
    return find_cautions(table, describe_columns(table), target, task, names, parts, asked=asked, grouped=grouped)


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
    assert said.startswith("class 'yes' has 12 rows, 2 or 3 a fold: a single row changes")
    (said,) = cautions(frame[:80], np.arange(80) < 39)
    assert said.startswith("class 'yes' has 39 rows, 7 or 8 a fold (and 1 more has fewer than 50): a single row")


def test_a_fold_without_a_class(clean):
    frame, _ = clean
    said = cautions(frame, np.arange(400) < 3)
    (said,) = [text for text in said if text.startswith("class 'yes' is missing from 2 of 5 test folds")]
    assert "a metric that is 0/0 there counts as 0, and lowers the mean" in said


def test_fewer_folds_than_were_asked_for(clean):
    frame, _ = clean
    said = cautions(frame, np.arange(400) < 3, folds=3, asked=5)
    assert said[0].startswith("class 'yes' has 3 rows, so there are 3 folds and not 5: in a fold without it, a metric")
    assert said[1].startswith("the answer rests on 3 folds, which differ by chance: repeat them before you rely on it")
    assert cautions(frame, np.arange(400) < 3, folds=3, asked=5, grouped=True)[0].startswith("the rarest class is in 3")


def test_labels_are_named(clean):
    frame, _ = clean
    rng = np.random.default_rng(1)
    target = np.stack([rng.random(400) < 0.4, np.arange(400) < 4], 1).astype(int)
    said = cautions(frame, target, "multilabel", ("sport", "chess"))
    assert said[0].startswith("label 'chess' has 4 rows, 0 or 1 a fold")
    assert said[1].startswith("label 'chess' is missing from 1 of 5 test folds")


def test_a_label_that_no_row_has_is_to_be_left_out(clean):
    frame, y = clean
    (said,) = cautions(frame, np.stack([y, np.zeros(400)], 1), "multilabel", ("sport", "chess"))
    assert said.startswith("label 'chess' is missing from 5 of 5 test folds, whose scores say nothing about it")
    assert said.endswith("No row has it: leave it out.")


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


@pytest.mark.parametrize(("rows", "positives"), [(300, 56), (100, 20), (1000, 400), (3000, 1000)])
def test_a_leak_is_seen_in_a_file_that_is_sorted_by_the_target(rows, positives):
    y = np.arange(rows) >= rows - positives
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"time": np.cumsum(rng.random(rows)), "age": rng.normal(size=rows)})
    said = cautions(frame, y)
    assert any(text.startswith("column 'time' nearly equals the target") for text in said)
    # one row out of place is one error
    frame.loc[rows - 1, "time"] = -1.0
    assert any("'time' nearly equals" in text for text in cautions(frame, y)) == (positives > 20)


@pytest.mark.parametrize("seed", range(5))
def test_a_good_column_is_no_leak(seed):
    rng = np.random.default_rng(seed)
    y = np.arange(300) < 60
    frame = pd.DataFrame({"good": 4.0 * y + rng.normal(size=300), "other": rng.normal(size=300)})
    assert not any("nearly equals" in text for text in cautions(frame, y))


@pytest.mark.parametrize("size", [1e38, 1e300])
def test_a_leak_is_seen_in_numbers_beyond_float32(size):
    y = np.arange(300) % 3
    rng = np.random.default_rng(0)
    other = 2.0 * (y > 0) + rng.normal(size=300)  # good enough that only a tree can judge it
    frame = pd.DataFrame({"leak": (y - 1.0 + 0.1 * rng.random(300)) * size, "other": other * size})
    names = ("a", "b", "c")
    (said,) = [text for text in cautions(frame, y, "multiclass", names) if "nearly equals" in text]
    assert said.startswith("column 'leak' nearly equals the target")
    assert not any("nearly equals" in text for text in cautions(frame[["other"]], y > 0))


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
    assert said == "column 'code' has a different value in every row, and can only be memorised; drop it."
    (said,) = cautions(frame.assign(code=[f"c{i}" for i in range(400)], name=[f"n{i}" for i in range(400)]), y)
    assert said.endswith("a different value in every row, and can only be memorised; drop them.")


@pytest.mark.parametrize("name", ["column 1", "age"])
def test_a_column_that_counts_the_rows_is_seen_whatever_its_name(clean, name):
    frame, y = clean
    counted = frame.drop(columns="age").assign(**{name: np.arange(400) + 17})
    assert cautions(counted, y) == [
        f"column {name!r} has a different value in every row, and can only be memorised; drop it."
    ]
    counted[name] = np.random.default_rng(0).permutation(400)
    assert cautions(counted, y) == []
    assert cautions(counted.assign(**{name: np.arange(400) + 0.5}), y) == []


@pytest.mark.parametrize("repeats", [1, 4])  # a different value in every row, and a few rows each
@pytest.mark.parametrize(
    "write",
    [
        "{:,.0f}",
        "{:.1f}%",
        "${:.2f}",
        "$-{:.2f}",
        "€ {:,.2f}",
        "{:.0f} %",
        "-{:,.1f}",
        "{:.1f}€",
        "1,{:05.0f}",
        ",{:.0f}",
    ],
)
def test_formatted_numbers_are_neither_names_nor_groups(clean, write, repeats):
    frame, y = clean
    texts = [write.format(61_234 + 11 * (i // repeats)) for i in range(400)]
    texts[7] = "unknown"
    (said,) = cautions(frame.assign(price=texts), y)
    assert said.startswith(f"column 'price' holds formatted numbers, such as {texts[0]!r}, which make it one of categ")
    assert "write plain numbers, as in 1234.5" in said
    (again,) = cautions(frame.assign(price=texts), y, grouped=True)
    assert again == said


@pytest.mark.parametrize("rows", [1, 4])  # a different one in every row, and a few rows each
@pytest.mark.parametrize("freq", ["7h", "1D"])
def test_dates_are_neither_names_nor_groups(clean, freq, rows):
    frame, y = clean
    days = pd.date_range("2021-03-01", periods=400 // rows, freq=freq).astype(str).repeat(rows)
    (said,) = cautions(frame.assign(day=days), y)
    assert said == (
        "column 'day' holds dates or times, each of them a category, and nothing is known of a new one: write numbers,"
        " such as the year, the day of the week, or the days since an event."
    )
    assert cautions(frame.assign(day=days), y, grouped=True) == [said]
    assert cautions(frame.assign(day=np.resize(days[::rows][:3], 400)), y) == []  # three dates are three kinds


def test_numbers_with_a_stray_text_are_no_names(clean):
    frame, y = clean
    texts = [f"{i / 8}" for i in range(400)]
    texts[7] = "oops"
    (said,) = cautions(frame.assign(price=texts), y)
    assert said.startswith("column 'price' holds numbers and the text 'oops', which makes it one of categories")


@pytest.mark.parametrize("write", ["{:05d}", "10.0.{:d}.7", "{:02d}.05.2020", "A-{:d}", "{0:d}, {0:d}", "1-{:03d}"])
def test_names_that_have_digits_are_no_formatted_numbers(clean, write):
    frame, y = clean
    (said,) = cautions(frame.assign(code=[write.format(i) for i in range(400)]), y)
    assert said == "column 'code' has a different value in every row, and can only be memorised; drop it."


def test_equal_rows_in_different_folds(clean):
    frame, y = clean
    doubled = pd.concat([frame, frame[:100]], ignore_index=True)
    (said,) = cautions(doubled, np.concatenate([y, y[:100]]))
    assert "rows" in said
    assert "have a duplicate, target included, in another fold" in said


def test_equal_rows_of_another_class_are_not_equal(clean):
    frame, y = clean
    doubled = pd.concat([frame, frame[:100]], ignore_index=True)
    assert cautions(doubled, np.concatenate([y, 1 - y[:100]])) == []
