"""Tables read from arrays, frames and lists: the same data, the same columns."""

import subprocess
import sys
import textwrap
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from stepless.tabular.tables.frames import Table, read_table

NAN = float("nan")


def check_column(X, kind, expected):
    table = read_table(X)
    assert table.kinds == (kind,)
    assert_array_equal(table.column(0), np.array(expected, dtype=float if kind == "number" else object))


def same(table: Table, other: Table) -> None:
    assert table.kinds == other.kinds
    assert table.rows == other.rows
    for i in range(table.width):
        assert_array_equal(table.column(i), other.column(i))


# Numbers in one array


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_floats_are_kept_without_a_copy(dtype, order):
    X = np.asarray(np.arange(12.0).reshape(4, 3), dtype=dtype, order=order)
    table = read_table(X)
    for array in (table.matrix(), table.column(1), table.part(1, 3).matrix()):
        assert np.shares_memory(array, X)
        assert array.dtype == dtype
    assert (table.names, table.kinds, table.rows, table.width) == (None, ("number",) * 3, 4, 3)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float16, np.float32),
        (np.bool_, np.float32),
        (np.int8, np.float32),
        (np.int64, np.float64),
        (np.uint64, np.float64),
        (np.longdouble, np.float64),
        (">f8", np.float64),
    ],
)
def test_other_numbers_become_floats(dtype, expected):
    X = np.array([[0, 1], [1, 1]]).astype(dtype)
    table = read_table(X)
    assert table.matrix().dtype == expected
    assert_array_equal(table.matrix(), [[0, 1], [1, 1]])
    assert_array_equal(table.column(0), [0, 1])


def test_a_pandas_frame_of_one_type_is_kept_without_a_copy():
    frame = pd.DataFrame(np.arange(6.0, dtype=np.float32).reshape(3, 2), columns=["a", "b"], copy=False)
    table = read_table(frame)
    assert np.shares_memory(table.matrix(), frame.to_numpy())
    assert table.names == ("a", "b")


def test_read_only_and_memory_mapped_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    X = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_array_equal(read_table(X).take([2, 0]).matrix(), [[4, 5], [0, 1]])


def test_an_object_with_an_array_interface_is_read():
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.array([[1.0, 2.0]], dtype=dtype)

    assert_array_equal(read_table(Wrapped()).matrix(), [[1.0, 2.0]])


def test_masked_values_are_missing():
    numbers = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]])
    assert_array_equal(read_table(numbers).matrix(), [[1, NAN], [3, 4]])
    assert_array_equal(read_table(numbers.astype(np.float32)).matrix(), [[1, NAN], [3, 4]])
    text = np.ma.masked_array([["a"], ["b"]], mask=[[0], [1]])
    check_column(text, "category", ["a", None])


# Columns of each type


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pd.array([1, None], dtype="Int64"), "number", [1, NAN]),
        (pd.array([1.5, None], dtype="Float64"), "number", [1.5, NAN]),
        (pd.array([1.5, None], dtype="Float32"), "number", [1.5, NAN]),
        (pd.array([True, None], dtype="boolean"), "number", [1, NAN]),
        (pd.array([True, False]), "number", [1, 0]),
        (pd.array([1, None], dtype="int64[pyarrow]"), "number", [1, NAN]),
        (pd.array([True, None], dtype="bool[pyarrow]"), "number", [1, NAN]),
        (pd.array([Decimal("1.5"), None], dtype=pd.ArrowDtype(pa.decimal128(5, 2))), "number", [1.5, NAN]),
        (pd.arrays.SparseArray([0.0, 1.0]), "number", [0, 1]),
        (pd.Categorical(["x", None]), "category", ["x", None]),
        (pd.Categorical([1, None]), "category", ["1", None]),
        (pd.Categorical([2.0, 2.5]), "category", ["2", "2.5"]),
        (pd.Categorical([True, False]), "category", ["True", "False"]),
        (pd.array(["a", None], dtype="str"), "category", ["a", None]),
        (pd.array(["a", None], dtype="string"), "category", ["a", None]),
        (pd.array(["a", None], dtype="string[pyarrow]"), "category", ["a", None]),
        (pd.array([None, None], dtype="str"), "category", [None, None]),
        (np.array(["a", pd.NA], dtype=object), "category", ["a", None]),
        (np.array([1, pd.NA], dtype=object), "number", [1, NAN]),
        (np.array([None, NAN], dtype=object), "number", [NAN, NAN]),
    ],
)
def test_columns_of_pandas(values, kind, expected):
    check_column(pd.DataFrame({"a": values}), kind, expected)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pl.Series([1, None]), "number", [1, NAN]),
        (pl.Series([1.5, NAN], dtype=pl.Float32), "number", [1.5, NAN]),
        (pl.Series([True, None]), "number", [1, NAN]),
        (pl.Series([True, False]), "number", [1, 0]),
        (pl.Series([Decimal("1.50"), None]), "number", [1.5, NAN]),
        (pl.Series([1, None], dtype=pl.Int128), "number", [1, NAN]),
        (pl.Series([None, None]), "number", [NAN, NAN]),
        (pl.Series(["a", None]), "category", ["a", None]),
        (pl.Series([None, None], dtype=pl.String), "category", [None, None]),
        (pl.Series(["a", None], dtype=pl.Categorical), "category", ["a", None]),
        (pl.Series(["b", None], dtype=pl.Enum(["a", "b"])), "category", ["b", None]),
        (pl.Series(["a", 1], dtype=pl.Object), "category", ["a", "1"]),
    ],
)
def test_columns_of_polars(values, kind, expected):
    check_column(pl.DataFrame({"a": values}), kind, expected)


def test_columns_of_pyarrow():
    table = read_table(
        pa.table({"a": [1, None], "b": ["x", None], "c": pa.array(["x", None]).dictionary_encode(), "d": [None, None]})
    )
    assert table.names == ("a", "b", "c", "d")
    assert table.kinds == ("number", "category", "category", "number")
    assert_array_equal(table.column(0), [1, NAN])
    assert table.column(1).tolist() == table.column(2).tolist() == ["x", None]
    assert_array_equal(table.column(3), [NAN, NAN])


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, 2.5, True, None], "number", [1, 2.5, 1, NAN]),
        ([np.float32(0.5), np.int64(3), np.bool_(True), NAN], "number", [0.5, 3, 1, NAN]),
        ([Decimal("0.1"), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 2)], "number", [0.1, NAN, NAN, 0.5]),
        (["a", 1, 2.0, 2.5, True, None, NAN], "category", ["a", "1", "2", "2.5", "True", None, None]),
        (["", np.str_("b"), np.bool_(False), Decimal("3.0"), pd.NaT], "category", ["", "b", "False", "3", None]),
        (["a", 2.0**53, 1e300, 10**30], "category", ["a", "9007199254740992", "1e+300", str(10**30)]),
    ],
)
def test_columns_of_objects(values, kind, expected):
    X = np.empty((len(values), 1), dtype=object)
    X[:, 0] = values
    check_column(X, kind, expected)


@pytest.mark.parametrize("dtype", ["U3", object, np.dtypes.StringDType()])
def test_text_is_a_category_also_where_it_looks_like_a_number(dtype):
    table = read_table(np.array([["1", "a"], ["2", "b"]], dtype=dtype))
    assert table.kinds == ("category", "category")
    assert table.column(0).tolist() == ["1", "2"]
    assert all(type(value) is str for value in table.column(0))


def test_a_list_keeps_its_numbers_beside_its_text():
    table = read_table([[1.5, "a"], [2, "b"]])
    assert table.kinds == ("number", "category")
    assert table.column(0).tolist() == [1.5, 2.0]


def test_numbers_as_text_where_they_stand_for_categories():
    table = read_table(pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [1.0, NAN], "d": ["x", "y"]}))
    texts = [table.text(i).tolist() for i in range(4)]
    assert texts == [["1", "2"], ["True", "False"], ["1", None], ["x", "y"]]


ID = 2**60 + 1  # not a float


def ways_without_text(values):
    """A column of bools, integers or missing values, as each library would hold it when there is no text in it."""
    kind = "boolean" if isinstance(values[0], bool) else "Int64"
    yield "pandas objects", pd.DataFrame({"a": pd.Series(values, dtype=object)})
    yield "pandas nullable", pd.DataFrame({"a": pd.Series(values, dtype=kind)})
    yield "pandas arrow", pd.DataFrame({"a": pd.Series(values, dtype=pd.ArrowDtype(pa.array(values).type))})
    yield "pandas categories", pd.DataFrame({"a": pd.Categorical(values)})
    yield "polars", pl.DataFrame({"a": values})
    yield "polars objects", pl.DataFrame({"a": pl.Series(values, dtype=pl.Object)})
    yield "pyarrow", pa.table({"a": values})
    yield "numpy", np.array([[value] for value in values], dtype=object)
    yield "list", [[value] for value in values]
    yield "list beside floats", [[value, 0.5] for value in values]
    masked = [[value is None] for value in values]
    yield "masked", np.ma.masked_array([[value or 0] for value in values], mask=masked, dtype=type(values[0]))
    if None not in values:
        yield "pandas", pd.DataFrame({"a": values})
        yield "list beside integers", [[value, 5] for value in values]
        yield "array", np.array(values)[:, None]


@pytest.mark.parametrize(
    "values", [[True, False], [True, None, False], [ID, -ID, 1], [ID, None, 1]], ids=["bool", "bool?", "int", "int?"]
)
def test_a_value_has_the_same_text_whatever_stands_beside_it(values):
    beside_text = read_table(np.array([[value] for value in [*values, "unknown"]], dtype=object)).text(0)[:-1].tolist()
    assert beside_text == [None if value is None else str(value) for value in values]
    for name, X in ways_without_text(values):
        table = read_table(X)
        assert table.text(0).tolist() == beside_text, name
        assert table.part(0, 1).text(0).tolist() == beside_text[:1], name
        if table.kinds[0] == "number":
            assert_array_equal(table.column(0), np.array(values, dtype=float), err_msg=name)
            assert table.matrix().dtype.kind == "f", name


def test_bools_and_numbers_in_one_column_keep_their_own_texts():
    X = np.array([[True], [1], [1.0], [ID], [Decimal("2.5")], [None]], dtype=object)
    table = read_table(X)
    assert table.kinds == ("number",)
    assert table.text(0).tolist() == ["True", "1", "1", str(ID), "2.5", None]
    assert_array_equal(table.column(0), [1, 1, 1, ID, 2.5, NAN])


# The same data from every library

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)


@st.composite
def mixed_columns(draw):
    """Columns of one length, each of numbers or of text, with some of it missing but not all."""
    rows = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(["float", "int", "bool", "text"]), min_size=1, max_size=4))
    values = {
        "float": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "int": st.one_of(st.none(), st.integers(-(2**53), 2**53)),
        "bool": st.one_of(st.none(), st.booleans()),
        "text": st.one_of(st.none(), texts),
    }
    columns = [draw(st.lists(values[kind], min_size=rows, max_size=rows)) for kind in kinds]
    for kind, values in zip(kinds, columns, strict=True):
        if kind == "text" and all(value is None for value in values):
            values[0] = "a"
    return kinds, columns


POLARS = {"float": pl.Float64, "int": pl.Int64, "bool": pl.Boolean, "text": pl.String}
PANDAS = {"float": "float64", "int": "Int64", "bool": "boolean", "text": "str"}


def every_way(kinds, columns):
    """One table of data as each library would hold it."""
    names = [f"c{i}" for i in range(len(kinds))]
    yield (
        "polars",
        pl.DataFrame([pl.Series(n, v, dtype=POLARS[k]) for n, k, v in zip(names, kinds, columns, strict=True)]),
    )
    yield (
        "pandas",
        pd.DataFrame({n: pd.Series(v, dtype=PANDAS[k]) for n, k, v in zip(names, kinds, columns, strict=True)}),
    )
    yield "pandas objects", pd.DataFrame({n: pd.Series(v, dtype=object) for n, v in zip(names, columns, strict=True)})
    yield (
        "pandas categories",
        pd.DataFrame(
            {
                n: pd.Series(v, dtype="category" if k == "text" else PANDAS[k])
                for n, k, v in zip(names, kinds, columns, strict=True)
            }
        ),
    )
    yield "pyarrow", pa.table(dict(zip(names, columns, strict=True)))
    X = np.empty((len(columns[0]), len(kinds)), dtype=object)
    for i, values in enumerate(columns):
        X[:, i] = values
    yield "numpy", X
    yield "list", [list(row) for row in zip(*columns, strict=True)]


@settings(deadline=None, max_examples=150)
@given(mixed_columns())
def test_the_same_data_give_the_same_table(data):
    kinds, columns = data
    tables = {name: read_table(X) for name, X in every_way(kinds, columns)}
    for table in tables.values():
        same(table, tables["polars"])
    assert tables["polars"].kinds == tuple("category" if kind == "text" else "number" for kind in kinds)


# Rows


@pytest.mark.parametrize(
    "X",
    [
        np.arange(12.0).reshape(6, 2),
        pd.DataFrame({"a": range(6), "b": list("uvwxyz")}),
        pl.DataFrame({"a": range(6), "b": list("uvwxyz")}),
    ],
    ids=["numpy", "pandas", "polars"],
)
def test_parts_and_rows(X):
    table = read_table(X)
    whole = [table.column(i) for i in range(2)]
    for rows, got in (
        (slice(1, 4), table.part(1, 4)),
        (slice(4, 6), table.part(4, 100)),
        (slice(0, 0), table.part(3, 3)),
        ([5, 0, 0], table.take([5, 0, 0])),
        ([1, 3], table.take(np.array([False, True, False, True, False, False]))),
    ):
        assert got.names == table.names
        assert got.kinds == table.kinds
        assert got.rows == len(whole[0][rows])
        for i in range(2):
            assert_array_equal(got.column(i), whole[i][rows])


def test_a_matrix_of_columns_of_numbers():
    table = read_table(pl.DataFrame({"a": [1, 2], "b": [0.5, None], "c": [True, False]}))
    assert_array_equal(table.matrix(), [[1, 0.5, 1], [2, NAN, 0]])
    assert table.matrix().dtype == np.float64
    with pytest.raises(ValueError, match="a matrix needs numbers alone; column 'b' holds text"):
        read_table(pl.DataFrame({"a": [1], "b": ["x"]})).matrix()


def test_names():
    assert read_table(pd.DataFrame([[1, 2]])).names is None
    assert read_table(pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]))).names is None
    with pytest.raises(TypeError, match=r"Feature names are only supported if all .* \['int', 'str'\]"):
        read_table(pd.DataFrame([[1, 2]], columns=[0, "a"]))
    with pytest.raises(ValueError, match=r"(?s)the columns of X need different names\. .*'a'"):
        read_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))


# Bad input


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        (np.arange(3.0), ValueError, r"Expected 2D array, got 1D array instead:\narray=\[0. 1. 2.\].\nReshape your"),
        (["a", "b"], ValueError, "Expected 2D array, got 1D array instead"),
        (3.0, ValueError, "Expected 2D array, got scalar array instead"),
        (None, ValueError, "Expected 2D array, got scalar array instead"),
        ({"a": [1]}, ValueError, "Expected 2D array, got scalar array instead"),
        (np.zeros((2, 2, 2)), ValueError, "Found array with dim 3, while dim <= 2 is required"),
        (pd.Series([1.0]), ValueError, "Expected a 2-dimensional container but got <class 'pandas"),
        (pl.Series([1.0]), ValueError, "Expected a 2-dimensional container but got <class 'polars"),
        (np.zeros((0, 3)), ValueError, r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is"),
        (np.zeros((12, 0)), ValueError, r"0 feature\(s\) \(shape=\(12, 0\)\) while a minimum of 1 is required."),
        (pd.DataFrame({"a": []}), ValueError, r"Found array with 0 sample\(s\)"),
        (pd.DataFrame(index=[1, 2]), ValueError, r"Found array with 0 feature\(s\)"),
        (pl.DataFrame({"a": []}), ValueError, r"Found array with 0 sample\(s\)"),
        (pl.DataFrame(), ValueError, r"Found array with 0 sample\(s\)"),
        ([], ValueError, "Expected 2D array, got 1D array instead"),
        ([[]], ValueError, r"Found array with 0 feature\(s\)"),
        ([[1, 2], [3]], ValueError, "inhomogeneous"),
        (scipy.sparse.csr_array(np.eye(2)), TypeError, "Sparse data was passed for X, but dense data is required"),
        (scipy.sparse.coo_matrix(np.eye(2)), TypeError, "Sparse data"),
        (np.asmatrix(np.eye(2)), TypeError, "np.matrix is not supported"),
        (np.array([[1j]]), ValueError, "Complex data not supported"),
        (np.array([[1j, "a"]], dtype=object), ValueError, "Complex data not supported"),
        (pd.DataFrame({"a": [1j], "b": ["x"]}), ValueError, "Complex data not supported"),
        (np.array([[np.inf]]), ValueError, r"Input X contains infinity or a value too large for dtype\('float64'\)"),
        (np.array([[-np.inf]], dtype=np.float32), ValueError, r"too large for dtype\('float32'\)"),
        (np.array([[np.inf]], dtype=object), ValueError, "Input X contains infinity"),
        (np.array([[10**400]], dtype=object), ValueError, "Input X contains infinity"),
        (np.array([[np.longdouble(10) ** 400]]), ValueError, "Input X contains infinity"),
        (pl.DataFrame({"a": [np.inf], "b": ["x"]}), ValueError, "Input X contains infinity"),
        (pd.DataFrame({"a": [np.inf]}), ValueError, "Input X contains infinity"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), TypeError, "turn them into numbers"),
        (np.array([[date(2020, 1, 1)]]), TypeError, "column 0 holds dates or times: turn them into numbers"),
        ([["a"], [datetime(2020, 1, 1)]], TypeError, "column 0 holds dates or times"),
        (pd.DataFrame({"a": pd.to_datetime(["2020"])}), TypeError, "column 'a' holds dates or times"),
        (pd.DataFrame({"a": [timedelta(1)]}), TypeError, "column 'a' holds dates or times"),
        (pl.DataFrame({"a": [1], "b": [date(2020, 1, 1)]}), TypeError, "column 'b' holds dates or times"),
        (pl.LazyFrame({"a": [1]}), TypeError, r"X is a lazy frame, .*: call .collect\(\) on it first"),
        (np.array([[{"foo": "bar"}]]), TypeError, "column 0: argument must be a string or a number, not 'dict'"),
        ([["a"], [b"a"]], TypeError, "argument must be a string or a number, not 'bytes'"),
        (np.array([[b"a"]]), TypeError, "a table needs numbers or text; got an array of |S1"),
        (np.zeros((2, 2), dtype=[("a", float)]), TypeError, "a table needs numbers or text"),
        (pl.DataFrame({"a": [[1]]}), TypeError, r"column 'a': argument must be .* number, not 'List\(Int64\)'"),
        (pl.DataFrame({"a": [{"b": 1}]}), TypeError, "column 'a': argument must be a string or a number"),
        (pl.DataFrame({"a": [b"x"]}), TypeError, "column 'a': argument must be a string or a number"),
        (pd.DataFrame({"a": pd.interval_range(0, 1)}), TypeError, "not 'Interval'"),
        (pd.DataFrame({"a": pd.period_range("2024", periods=2, freq="M")}), TypeError, "holds dates or times: turn"),
        (pd.DataFrame({"a": pd.Categorical(pd.to_datetime(["2020"]))}), TypeError, "column 'a' holds dates or times"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_bad_input(X, error, match):
    with pytest.raises(error, match=match):
        read_table(X)


def test_errors_call_the_rows_what_they_are():
    with pytest.raises(ValueError, match="Input rows to predict contains infinity"):
        read_table([[np.inf]], what="rows to predict")


def test_infinity_is_found_wherever_it_stands():
    X = np.zeros((300_000, 3), dtype=np.float32)
    for row in (0, 150_000, 299_999):
        X[row, 1] = np.inf
        with pytest.raises(ValueError, match="infinity"):
            read_table(X)
        X[row, 1] = np.nan
    read_table(X)


def test_the_error_without_narwhals_gives_the_fix():
    code = textwrap.dedent(
        """
        import sys
        sys.modules["narwhals"] = None  # as if it were not installed
        try:
            import stepless.tabular.tables.frames
        except ModuleNotFoundError as error:
            assert str(error) == 'reading tables needs narwhals: pip install "stepless[sklearn]"', error
        else:
            raise AssertionError("imported without narwhals")
        """
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_intervals_are_categories():
    """What pandas.cut makes of a column of numbers."""
    made = pd.cut([1.0, 2.0, 9.0, np.nan], [0, 5, 10])
    table = read_table(pd.DataFrame({"cut": made}))
    assert table.kinds == ("category",)
    assert list(table.column(0)) == [str(cell) if isinstance(cell, pd.Interval) else None for cell in made]
