"""Columns of a table as a matrix: equal to scikit-learn's transformers, whole whatever the values, exact in JSON."""

import json
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from stepless.tabular.models.columns import NEAR
from stepless.tabular.models.preprocessing import CONSTANT, LIMIT, AsIs, Category, Features, Number, fit_features
from stepless.tabular.tables.frames import read_table

NAN = float("nan")
FRAME = pd.DataFrame(
    {
        "age": [31.0, NAN, 58.0, 44.0, 23.0],
        "children": [0, 2, 2, 1, 0],
        "city": ["Ulm", "Bonn", None, "Ulm", "Jena"],
    }
)


def fitted(X, *args, **options):
    table = read_table(X)
    features = fit_features(table, *args, **options)
    return features, features.matrix(table)


def rows_of(rng, n=200):
    """A frame of numbers and text with missing values in it."""
    text = rng.choice(["a", "b", "c", "d"], n).astype(object)
    text[rng.random(n) < 0.1] = None
    number = rng.normal(1e3, 5.0, n)
    number[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame({"x": number, "i": rng.integers(0, 5, n), "s": text, "y": rng.exponential(size=n)})


# What the columns are


def test_numbers_equal_scikit_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4)) * [1, 1e-6, 1e6, 1] + [0, 1, 1e9, 0]
    X[rng.random(500) < 0.2, 3] = np.nan
    features, matrix = fitted(X)
    imputed = SimpleImputer(strategy="median", add_indicator=True).fit_transform(X)
    scaler = StandardScaler().fit(X)
    expected = (imputed[:, :4] - scaler.mean_) / scaler.scale_
    assert_allclose(matrix[:, :4], expected, rtol=1e-5, atol=1e-5)
    assert_array_equal(matrix[:, 4], imputed[:, 4])
    assert features.feature_names_out == ("x0", "x1", "x2", "x3", "x3 (missing)")
    assert matrix.dtype == np.float32
    assert matrix.flags.c_contiguous


def test_categories_equal_scikit_learn():
    frame = rows_of(np.random.default_rng(1))[["s"]]
    features, matrix = fitted(frame)
    assert features.columns == (Category(("a", "b", "c", "d"), other=False, missing=True),)
    text = np.where(frame.isna(), None, frame.astype(object))
    assert_array_equal(matrix, OneHotEncoder(sparse_output=False).fit_transform(text))


def test_a_mixed_frame():
    features, matrix = fitted(FRAME)
    assert features.names == ("age", "children", "city")
    assert features.columns[0].fill == 37.5
    assert features.width == matrix.shape[1] == 7
    assert features.feature_names_out == (
        *("age", "age (missing)", "children"),
        *("city=Bonn", "city=Jena", "city=Ulm", "city (missing)"),
    )
    assert_array_equal(matrix[:, 1], [0, 1, 0, 0, 0])
    assert_array_equal(matrix[:, 3:], [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]])


def test_the_most_frequent_levels_have_columns_and_the_rest_share_one():
    X = [[value] for value in "ccccbbbaade"]
    features, matrix = fitted(X, max_levels=2)
    assert features.columns == (Category(("b", "c"), other=True, missing=False),)
    assert_array_equal(matrix.sum(axis=0), [3, 4, 4])
    # Levels as frequent as each other: by the alphabet, whatever their order in the data.
    for order in ("zyx", "xyz"):
        assert fitted([[value] for value in order], max_levels=2)[0].columns[0].levels == ("x", "y")
    assert fitted(X, max_levels=5)[0].columns[0] == Category(tuple("abcde"), other=False, missing=False)


@pytest.mark.parametrize(
    ("column", "unseen", "missing"),
    [
        (Category(("a",), other=False, missing=False), [0], [0]),
        (Category(("a",), other=True, missing=False), [0, 1], [0, 1]),
        (Category(("a",), other=False, missing=True), [0, 0], [0, 1]),
        (Category(("a",), other=True, missing=True), [0, 1, 0], [0, 0, 1]),
    ],
)
def test_unseen_and_missing_levels(column, unseen, missing):
    matrix = Features(None, (column,)).matrix(read_table([["a"], ["new"], [None]]))
    assert_array_equal(matrix, [[1] + [0] * (column.width - 1), unseen, missing])


def test_missing_in_a_column_without_any_in_training_is_the_median():
    features, _ = fitted([[1.0], [2.0], [9.0]])
    (column,) = features.columns
    assert column == Number(mean=4.0, scale=math.sqrt(38 / 3), fill=2.0, flag=False)
    assert_array_equal(features.matrix(read_table([[NAN]])), features.matrix(read_table([[2.0]])))


def test_a_column_of_one_value_is_0_whatever_comes_later():
    features, matrix = fitted([[7.0, NAN, 1.0], [7.0, 7.0, 2.0]])
    assert features.columns[0] == Number(7.0, CONSTANT, 7.0, flag=False)
    assert_array_equal(matrix, [[0, 0, 1, -1], [0, 0, 0, 1]])
    assert_array_equal(features.matrix(read_table([[1e9, -1e9, 1.0]]))[:, :2], [[0, 0]])


def test_a_column_that_is_always_missing_is_0():
    features, matrix = fitted([[NAN, 1.0], [NAN, 2.0]])
    assert_array_equal(matrix[:, 0], [0, 0])
    assert features.width == 2
    assert_array_equal(features.matrix(read_table([[5.0, 1.0]]))[:, 0], [0])
    features, matrix = fitted(pl.DataFrame({"a": pl.Series([None, None], dtype=pl.String)}))
    assert features.columns == (Category((), other=False, missing=True),)
    assert_array_equal(features.matrix(read_table(pl.DataFrame({"a": ["x", None]}))), [[0], [1]])


def test_far_out_values_stop_at_the_limit():
    features, _ = fitted([[0.0], [1.0]])
    matrix = features.matrix(read_table([[1e308], [-1e308], [1e5]]))
    assert_array_equal(matrix[:, 0], np.float32([LIMIT, -LIMIT, 2e5 - 1]))


SENTINELS = {"int32": (2147483647.0, 0.05), "nines": (-999999999.0, 0.4), "one": (1e20, 0.001)}


def with_sentinel(values, name):
    far, share = SENTINELS[name]
    changed = values.copy()
    changed[: max(1, int(share * len(values)))] = far
    return changed


@pytest.mark.parametrize("name", SENTINELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_far_value_does_not_merge_the_others(name, weighted):
    """Mean and scale left 2 to 4 values of 1000: to float32 the others were one."""
    random = np.random.default_rng(0)
    whole = random.normal(size=1000)
    x = with_sentinel(whole, name)
    weight = random.integers(1, 4, 1000) if weighted else None
    features, matrix = fitted(x[:, None], weight)
    (column,) = features.columns
    far = x == SENTINELS[name][0]
    assert len(np.unique(matrix)) == len(np.unique(x))
    assert (np.diff(matrix[np.argsort(x), 0]) >= 0).all()
    assert_allclose(column.inner, (whole[~far].mean(), whole[~far].std()), atol=0.05)
    # Within reach of a net: no farther than mean and scale alone allow, and the second part's limit.
    assert NEAR < abs(matrix[far]).max() <= NEAR + math.sqrt(weight.sum() if weighted else 1000)
    # Alone, beside other columns, beside text, and from JSON: all the same.
    for X in (np.c_[x, whole], pd.DataFrame({"x": x, "s": "a"})):
        assert_array_equal(fitted(X, weight)[1][:, :1], matrix)
    assert features.to_json()["columns"][0]["inner"] == list(column.inner)
    assert Features.from_json(json.loads(json.dumps(features.to_json()))) == features


@pytest.mark.parametrize("levels", [[0, 1, 2147483647], [-999999999, 0, 1, 2147483647], [*range(100), -1e9, 1e20]])
def test_few_values_beside_a_far_one_stay_apart(levels):
    _, matrix = fitted(np.repeat(np.array(levels, float), 7)[:, None])
    assert len(np.unique(matrix)) == len(levels)


def test_missing_values_of_a_column_with_a_far_value_are_its_median():
    x = with_sentinel(np.random.default_rng(0).normal(size=1000), "int32")
    x[500:] = np.nan
    features, matrix = fitted(x[:, None])
    assert features.columns[0].inner is not None
    filled = features.matrix(read_table([[features.columns[0].fill]]))
    assert_array_equal(matrix[500:], np.full((500, 2), [filled[0, 0], 1], np.float32))


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=20_000),
        np.random.default_rng(0).standard_cauchy(1000),
        np.exp(3 * np.random.default_rng(0).normal(size=1000)),
        np.random.default_rng(0).normal(size=1000).astype(np.float32) + np.float32(1e6),
        1.7e9 + np.arange(1000.0),
        np.r_[np.zeros(999), 1.0],
        np.array([0.0, 0.3, 0.1 + 0.2, 1.0]),  # 0.3 in two roundings
        np.array([0.0, 1e300]),
    ],
    ids=["normal", "cauchy", "lognormal", "float32", "seconds", "rare", "rounded", "two"],
)
def test_an_ordinary_column_has_no_second_part(values):
    features, matrix = fitted(values[:, None])
    (column,) = features.columns
    assert column.inner is None
    assert "inner" not in column.to_json()  # files are as they were
    assert_array_equal(matrix[:, 0], ((values.astype(float) - column.mean) / column.scale).astype(np.float32))


def test_the_arithmetic_is_float64_then_cast():
    rng = np.random.default_rng(2)
    X = rng.normal(1e6, 1.0, size=(1000, 3)).astype(np.float32)
    X[::9, 1] = np.nan
    features, matrix = fitted(X)
    for i, column in enumerate(features.columns):
        values = X[:, i].astype(np.float64)
        values[np.isnan(values)] = column.fill
        assert_array_equal(matrix[:, [0, 1, 3][i]], ((values - column.mean) / column.scale).astype(np.float32))


def test_preprocessing_switched_off():
    features, matrix = fitted([[1, 2], [3, 4]], enabled=False)
    assert features.columns == (AsIs(), AsIs())
    assert_array_equal(matrix, np.float32([[1, 2], [3, 4]]))
    for X, match in (
        ([[1.0, "a"]], "preprocessing is switched off, but column 1 holds text: switch it on"),
        ([[1.0, NAN]], r"Input X contains NaN.\nColumn 1 has missing values and preprocessing, .* is switched off"),
        ([[1.0, 1e39]], r"Input X contains infinity or a value too large for dtype\('float32'\)"),
    ):
        with pytest.raises(ValueError, match=match):
            fit_features(read_table(X), enabled=False)
        with pytest.raises(ValueError, match=match):
            features.matrix(read_table(X))


# Whole whatever the values

numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 5e-324, CONSTANT]))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(numbers, st.just(NAN)), min_size=1, max_size=8), st.lists(numbers, min_size=1, max_size=4))
@example([-1.7e308, 1.7e308], [1.7e308])
@example([0.0, 5e-324], [1.0])
@example([1e300, 1e300 * (1 + 2e-16)], [0.0])
def test_any_finite_numbers_give_finite_features(train, test):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features, matrix = fitted(np.array(train)[:, None])
        later = features.matrix(read_table(np.array(test)[:, None]))
    assert np.isfinite(matrix).all()
    assert np.isfinite(later).all()
    known = np.array(train)[~np.isnan(train)]
    (column,) = features.columns
    if len(known):
        assert known.min() <= column.fill <= known.max()
        # √n holds for exact numbers. The mean of neighbouring floats is rounded by as much as they differ, and
        # differences overflow, and so stop at the limit, near the largest float.
        bound = 2 * math.sqrt(len(train)) if abs(known).max() < CONSTANT / 2 else LIMIT
        assert abs(matrix[:, 0]).max() <= bound + (NEAR if column.inner else 0)
        # In order, as far as float32 tells them apart.
        assert (np.diff(matrix[np.argsort(train)[: len(known)], 0]) >= 0).all()


def test_standardised_features_have_mean_0_and_deviation_1_far_from_0():
    rng = np.random.default_rng(3)
    for size in (1e-300, 1e-12, 1.0, 1e12, 1e300):
        for offset in (0.0, 1e3):
            _, matrix = fitted(((rng.normal(size=1000) + offset) * size)[:, None])
            assert_allclose([matrix.mean(dtype=float), matrix.std(dtype=float)], [0, 1], atol=1e-6)


# The same whatever brings the data, and in whatever parts


def test_arrays_frames_and_their_parts_give_the_same_matrix():
    frame = rows_of(np.random.default_rng(4), 300)
    features, matrix = fitted(frame)
    for X in (
        pl.from_pandas(frame),
        frame.astype({"s": "category"}),
        frame.astype({"i": "Int64", "x": "Float64"}),
        frame.astype(object),
        pl.from_pandas(frame).with_columns(pl.col("s").cast(pl.Categorical)),
    ):
        other, same = fitted(X)
        assert other == features
        assert_array_equal(same, matrix)
    for X in (frame.astype(object).to_numpy(), frame.astype(object).to_numpy().tolist()):
        other, same = fitted(X)
        assert other.columns == features.columns
        assert_array_equal(same, matrix)
    table = read_table(frame)
    parts = [features.matrix(table.part(start, start + 7)) for start in range(0, 300, 7)]
    assert_array_equal(np.concatenate(parts), matrix)
    assert_array_equal(features.matrix(table.take([5, 5, 0])), matrix[[5, 5, 0]])


def test_many_rows_go_through_in_parts_unseen():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(150_000, 3))
    X[rng.random(len(X)) < 0.01, 1] = np.nan
    features, matrix = fitted(X)
    assert_array_equal(matrix[[0, 99_999, 149_999]], features.matrix(read_table(X[[0, 99_999, 149_999]])))
    columns, same = fitted(pl.DataFrame(X, nan_to_null=True))
    assert columns.columns == features.columns
    assert_array_equal(same, matrix)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(-1e6, 1e6)),
            st.integers(-9, 9),
            st.sampled_from(["a", "b", "", "Ü"]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_numpy_pandas_and_polars_give_the_same_matrix(rows):
    names = ["f", "i", "s"]
    array = np.empty((len(rows), 3), dtype=object)
    array[:] = rows
    polars = pl.DataFrame(rows, schema={"f": pl.Float64, "i": pl.Int64, "s": pl.String}, orient="row")
    pandas = pd.DataFrame(rows, columns=names).astype({"f": float})
    features, matrix = fitted(array)
    for X in (polars, pandas):
        other, same = fitted(X)
        assert other.columns == features.columns
        assert_array_equal(same, matrix)
        assert_array_equal(matrix, features.matrix(read_table(X)))


def test_a_column_may_come_as_another_type_later():
    features, _ = fitted(
        pd.DataFrame({"n": [1.0, 2.0], "c": pd.Categorical([1, 2]), "b": pd.Categorical([True, False])})
    )
    expected = features.matrix(read_table([[NAN, "1", "True"]]))
    assert_array_equal(expected, [[0, 1, 0, 0, 1]])
    for X in (
        pd.DataFrame({"n": pd.Series([None], dtype="str"), "c": [1], "b": [True]}),
        pd.DataFrame({"n": [None], "c": [1.0], "b": ["True"]}),
    ):
        assert_array_equal(features.matrix(read_table(X)), expected)
    # A row in which all of an object column is missing tells nothing of the column's type.
    features, _ = fitted(np.array([["a", 1], [None, 2]], dtype=object))
    assert_array_equal(features.matrix(read_table(np.array([[None, None]], dtype=object))), [[0, 1, 0]])
    with pytest.raises(ValueError, match="column 1 held numbers when the model was fitted; got text such as 'x'"):
        features.matrix(read_table([["a", "x"]]))


@pytest.mark.parametrize("values", [[True, False, "unknown"], [2**60, 2**60 + 1, "unknown"], [1, 0, "unknown"]])
def test_a_level_is_found_also_where_the_rows_hold_no_text(values):
    """Bools and large integers were read as floats there, whose text was an unseen level."""
    features, matrix = fitted(np.array([[value] for value in values], dtype=object))
    assert_array_equal(matrix.sum(axis=1), [1, 1, 1])
    for X in (
        np.array([[value] for value in values[:2]], dtype=object),
        np.array([[value] for value in values[:2]]),
        [[value] for value in values[:2]],
        pd.DataFrame({"a": pd.Series(values[:2], dtype=object)}).rename(columns={"a": 0}),
        pl.DataFrame({"a": values[:2]}),
        pa.table({"a": [*values[:2], None]}).slice(0, 2),
    ):
        assert_array_equal(features.matrix(read_table(X)), matrix[:2])
    missing = pl.DataFrame({"a": [*values[:2], None]})
    assert_array_equal(features.matrix(read_table(missing))[:2], matrix[:2])


# Weights


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_weight_counts_rows(data):
    n = data.draw(st.integers(1, 12))
    number = st.one_of(st.just(NAN), st.integers(-5, 5).map(float))
    rows = data.draw(st.lists(st.tuples(number, st.sampled_from(["a", "b", "c", None])), min_size=n, max_size=n))
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any)))
    frame = pd.DataFrame(rows, columns=["x", "s"]).astype({"x": float, "s": "str"})
    often = frame.loc[np.repeat(np.arange(n), weight)]
    for scale in (1.0, 0.1, 5e307):
        weighted = fit_features(read_table(frame), weight * scale, max_levels=2)
        repeated = fit_features(read_table(often), max_levels=2)
        assert weighted.columns[1] == repeated.columns[1]
        got, expected = weighted.columns[0], repeated.columns[0]
        assert got.flag == expected.flag
        assert got.fill == expected.fill
        assert_allclose([got.mean, got.scale], [expected.mean, expected.scale], atol=1e-12, rtol=1e-12)


def test_levels_are_equally_frequent_but_for_rounding():
    """Three tenths twice are more than six tenths in other parts to a float, and no more to anybody else."""
    frame = pd.DataFrame({"s": [*"cc", *"bbb", *"aaaa"]})
    weight = np.array([3, 3, 2, 3, 1, 9, 9, 9, 9]) * 0.1
    for order in (np.arange(9), np.arange(9)[::-1]):
        fitted = fit_features(read_table(frame.iloc[order]), weight[order], max_levels=2)
        assert fitted.columns[0].levels == ("a", "b")


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        ([1.0], r"one weight per row, shape \(2,\); got shape \(1,\)"),
        ([[1.0], [1.0]], r"got shape \(2, 1\)"),
        ([1.0, NAN], "sample_weight must be finite, not below 0, and above 0 somewhere"),
        ([1.0, np.inf], "must be finite"),
        ([1.0, -1.0], "not below 0"),
        ([0.0, 0.0], "above 0 somewhere"),
    ],
)
def test_bad_weights(weight, match):
    with pytest.raises(ValueError, match=match):
        fit_features(read_table([[1.0], [2.0]]), weight)


@pytest.mark.parametrize("max_levels", [0, -1, True, 2.0, "3", None])
def test_bad_max_levels(max_levels):
    with pytest.raises(ValueError, match=f"max_levels must be an integer from 1; got {max_levels!r}"):
        fit_features(read_table([[1.0]]), max_levels=max_levels)


# Wrong columns


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f[["city", "age", "children"]], "Feature names must be in the same order as they were in fit.\n"),
        (lambda f: f.rename(columns={"age": "b"}), "unseen at fit time:\n- b\nFeature .* now missing:\n- age\n"),
        (lambda f: f.assign(extra=1), "unseen at fit time:\n- extra\n$"),
        (lambda f: f[["age"]], "Feature names seen at fit time, yet now missing:\n- children\n- city\n$"),
        (
            lambda f: f.assign(**{f"e{i}": 1 for i in range(9)}),
            "time:\n- e0\n- e1\n- e2\n- e3\n- e4\n- \\.\\.\\.\n$",
        ),
    ],
    ids=["reordered", "renamed", "extra", "missing", "many"],
)
def test_wrong_columns(change, match):
    features, _ = fitted(FRAME)
    for call in (features.check, features.matrix):
        with pytest.raises(
            ValueError, match="The feature names should match those that were passed during fit"
        ) as info:
            call(read_table(change(FRAME)))
        assert info.match(match)


def test_wrong_number_of_columns():
    features, _ = fitted(np.zeros((2, 3)))
    for X in (np.zeros((2, 1)), pd.DataFrame({"a": [1]})):
        with pytest.raises(ValueError, match=r"X has 1 features, but Net is expecting 3 features as input\."):
            features.check(read_table(X), owner="Net")
        with pytest.raises(ValueError, match=r"X has 1 features, but Features is expecting 3 features as input\."):
            features.matrix(read_table(X))


def test_names_on_one_side_alone_give_a_warning():
    named, array = fitted(pd.DataFrame({"a": [1.0, 2.0]}))[0], read_table([[1.0]])
    plain, frame = fitted([[1.0], [2.0]])[0], read_table(pd.DataFrame({"a": [1.0]}))
    with pytest.warns(UserWarning, match="X does not have valid feature names, but Net was fitted with feature names"):
        named.check(array, owner="Net")
    with pytest.warns(UserWarning, match="X has feature names, but Net was fitted without feature names"):
        plain.check(frame, owner="Net")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named.check(frame)
        plain.check(array)
        named.matrix(array)


# Kept as JSON


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_json_keeps_features_exactly(data):
    floats = st.floats(allow_nan=False, allow_infinity=False)
    scales = st.floats(0, exclude_min=True, allow_infinity=False)
    column = st.one_of(
        st.builds(Number, floats, scales, floats, st.booleans(), st.none() | st.tuples(floats, scales)),
        st.builds(
            Category,
            st.lists(st.text(), unique=True, min_size=1).map(tuple),
            other=st.booleans(),
            missing=st.booleans(),
        ),
        st.just(AsIs()),
    )
    columns = tuple(data.draw(st.lists(column, min_size=1, max_size=5)))
    names = data.draw(
        st.none() | st.lists(st.text(), min_size=len(columns), max_size=len(columns), unique=True).map(tuple)
    )
    features = Features(names, columns)
    again = Features.from_json(json.loads(json.dumps(features.to_json(), allow_nan=False)))
    assert again == features
    assert again.to_json() == features.to_json()
    assert hash(again) == hash(features)


def test_kept_features_give_the_same_matrix():
    frame = rows_of(np.random.default_rng(6))
    features, matrix = fitted(frame)
    for again in (
        Features.from_json(json.loads(json.dumps(features.to_json()))),
        pickle.loads(pickle.dumps(features)),
    ):
        assert again == features
        assert_array_equal(again.matrix(read_table(frame)), matrix)


NUMBER = {"kind": "number", "mean": 0.5, "scale": 2.0, "fill": 0.0, "flag": True}
CATEGORY = {"kind": "category", "levels": ["a", "b"], "other": True, "missing": False}


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (None, "features must be a dictionary with the keys names, columns; got None"),
        ([], "features must be a dictionary"),
        ({}, "features must be a dictionary with the keys names, columns; got {}"),
        ({"names": None}, "features must be a dictionary with the keys"),
        ({"names": None, "columns": [NUMBER], "more": 1}, "features must be a dictionary with the keys"),
        ({"names": None, "columns": []}, "features need at least one column; got none"),
        ({"names": None, "columns": {}}, "columns must be a list; got {}"),
        ({"names": "ab", "columns": [NUMBER]}, "names must be a list; got 'ab'"),
        ({"names": [1], "columns": [NUMBER]}, "the names of columns must be text"),
        ({"names": ["a", "b"], "columns": [NUMBER]}, "features need a name a column; got 2 for 1 columns"),
        ({"names": ["a", "a"], "columns": [NUMBER, NUMBER]}, "the names of columns must differ"),
        ({"names": None, "columns": [{"kind": "category", "levels": [], "other": False, "missing": False}]}, "got 0"),
    ],
)
def test_malformed_features(value, match):
    with pytest.raises(ValueError, match=match):
        Features.from_json(value)


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (None, "a column must be a dictionary of kind 'number', 'category' or 'as_is'; got None"),
        ({"kind": "pickle"}, "a column must be a dictionary of kind"),
        ({"kind": ["number"]}, "a column must be a dictionary of kind"),
        ({"kind": "as_is", "more": 1}, "a column as it is must be a dictionary with the keys kind;"),
        (
            {**NUMBER, "more": 1},
            "a column of numbers must be a dictionary with the keys kind, mean, scale, fill, flag;",
        ),
        ({**NUMBER, "mean": NAN}, "the mean of a column must be a finite number; got nan"),
        ({**NUMBER, "mean": "0"}, "the mean of a column must be a finite number; got '0'"),
        ({**NUMBER, "mean": True}, "the mean of a column must be a finite number; got True"),
        ({**NUMBER, "fill": None}, "the fill of a column must be a finite number; got None"),
        ({**NUMBER, "fill": 10**400}, "the fill of a column must be a finite number; got"),
        ({**NUMBER, "fill": 10**5000}, "the fill of a column must be a finite number; got"),
        ({**NUMBER, "scale": math.inf}, "the scale of a column must be a finite number; got inf"),
        ({**NUMBER, "scale": 0}, "the scale of a column must be above 0; got 0.0"),
        ({**NUMBER, "scale": -1.0}, "the scale of a column must be above 0; got -1.0"),
        ({**NUMBER, "inner": None}, "inner must be a list; got None"),
        ({**NUMBER, "inner": [1.0]}, "inner must be a mean and a scale; got"),
        ({**NUMBER, "inner": [NAN, 1.0]}, "the mean of a column must be a finite number; got nan"),
        ({**NUMBER, "inner": [0.0, 0.0]}, "the scale of a column must be above 0; got 0.0"),
        ({**NUMBER, "flag": 1}, "flag must be true or false; got 1"),
        ({**CATEGORY, "levels": "ab"}, "levels must be a list; got 'ab'"),
        ({**CATEGORY, "levels": ["a", 1]}, "the levels of a category must be text"),
        ({**CATEGORY, "levels": ["a", ["b"]]}, "the levels of a category must be text"),
        ({**CATEGORY, "levels": ["a", "a"]}, "the levels of a category must differ"),
        ({**CATEGORY, "levels": [str(i) for i in range(1_000_001)]}, "must be 1 to 1000000 columns wide; got 1000002"),
        ({**CATEGORY, "other": None}, "other must be true or false; got None"),
        ({**CATEGORY, "missing": "no"}, "missing must be true or false; got 'no'"),
        ({key: value for key, value in CATEGORY.items() if key != "other"}, "a column of categories must be a dict"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else "",
)
def test_malformed_columns(column, match):
    with pytest.raises(ValueError, match=match) as info:
        Features.from_json(
            {"names": None, "columns": [NUMBER, column]}
            if "wide" not in match
            else {"names": None, "columns": [column]}
        )
    assert len(str(info.value)) < 500


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from(["number", "category"])
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def places(value, path=()):
    """The path of every value inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_a_changed_dictionary_is_read_or_refused_with_a_sentence(data):
    whole = {"names": ["a", "b", "c"], "columns": [dict(NUMBER), {**CATEGORY, "levels": ["a", "b"]}, {"kind": "as_is"}]}
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(whole))))
        if not path:
            whole = data.draw(values)
            continue
        inner = whole
        for key in path[:-1]:
            inner = inner[key]
        action = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "replace":
            inner[path[-1]] = data.draw(values)
        elif action == "remove":
            del inner[path[-1]]
        elif isinstance(inner, dict):
            inner[data.draw(st.text(max_size=3))] = data.draw(values)
        else:
            inner.append(data.draw(values))
    try:
        features = Features.from_json(whole)
    except ValueError as error:
        assert "must" in str(error) or "need" in str(error)  # noqa: PT017 (either way is right)
    else:
        assert Features.from_json(json.loads(json.dumps(features.to_json(), allow_nan=False))) == features


def test_columns_refuse_what_they_cannot_hold():
    with pytest.raises(ValueError, match="the levels of a category must be text"):
        Category(["a"], other=False, missing=False)
    with pytest.raises(ValueError, match="the scale of a column must be above 0"):
        Number(0.0, 0.0, 0.0, flag=False)


# Under a scikit-learn estimator


class Probe(ClassifierMixin, BaseEstimator):
    """The least estimator on top of tables and features."""

    def fit(self, X, y, sample_weight=None):
        table = read_table(X)
        y = column_or_1d(y, warn=True)
        if len(y) != table.rows:
            raise ValueError(f"Found input variables with inconsistent numbers of samples: {[table.rows, len(y)]}")
        check_classification_targets(y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, np.zeros((table.rows, 1)))
        features = fit_features(table, weight)
        model = LogisticRegression(C=1e-2).fit(features.matrix(table).astype(float), y, weight)
        self.features_, self.model_, self.classes_ = features, model, model.classes_
        self.n_features_in_ = table.width
        if table.names is not None:
            self.feature_names_in_ = np.array(table.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def predict_proba(self, X):
        check_is_fitted(self)
        table = read_table(X)
        self.features_.check(table, owner=type(self).__name__)
        return self.model_.predict_proba(self.features_.matrix(table).astype(float))

    def predict(self, X):
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def test_an_estimator_on_top_passes_check_estimator():
    results = check_estimator(Probe(), on_skip=None)
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}
