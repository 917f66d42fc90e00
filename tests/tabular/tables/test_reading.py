"""Tables from files: what columns are taken for, and sentences that name the place of what is wrong."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepless.tabular.tables.cells import Guess, numbers, words
from stepless.tabular.tables.files import Rows, Source, TableError
from stepless.tabular.tables.frames import read_table
from stepless.tabular.tables.reading import load_table, read_chunks

TEXT = """age,city,joined,code,member
31,Ulm,2024-02-01,007,true
,Köln,2024-03-01,012,false
4e1, NA ,2024-03-02,100,true
"""


def write(folder, text, name="data.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Source(str(path))


def load(folder, text, name="data.csv", **options):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_table(Source(str(path), **options))


def complaint(folder, text, name="data.csv", **options):
    with pytest.raises(TableError) as caught:
        load(folder, text, name, **options)
    return str(caught.value).replace(str(folder) + "/", "")


def test_columns_are_what_all_of_their_rows_say(tmp_path):
    table = load(tmp_path, TEXT)
    assert {name: table.kind(name) for name in table.names} == {
        "age": "number", "city": "category", "joined": "category", "code": "category", "member": "number",
    }  # fmt: skip
    np.testing.assert_array_equal(table.columns["age"], [31, np.nan, 40])
    assert table.columns["city"].tolist() == ["Ulm", "Köln", None]
    assert table.columns["code"].tolist() == ["007", "012", "100"]
    assert table.columns["member"].tolist() == [1, 0, 1]


def test_infinity_is_a_word_among_words_wherever_they_stand(tmp_path):
    table = load(tmp_path, "x\ninf\n" + "1\n" * 40_000 + "none of it\n")
    assert table.kind("x") == "category"
    assert table.columns["x"][0] == "inf"


def test_one_word_in_the_last_row_makes_a_category_and_that_is_said(tmp_path):
    rows = "".join(f"{i}\n" for i in range(40_000))
    table = load(tmp_path, f"x\n{rows}many\n")
    (column,) = table.describe()
    assert column.kind == "category"
    assert column.note == "holds numbers, and 'many' in row 40001; so it is taken as categories"
    assert table.columns["x"][:2].tolist() == ["0", "1"]


def test_notes_say_what_is_worth_knowing(tmp_path):
    rows = "".join(f"{i},2024-01-{i % 28 + 1:02d},,same,k{i},{i % 3 - 1} days 00:{i:02d}:00\n" for i in range(60))
    notes = {column.name: column.note for column in load(tmp_path, f"id,day,none,one,name,took\n{rows}").describe()}
    assert notes["id"] == notes["name"] == "differs in every row; if it only names the rows, drop it"
    assert notes["day"].startswith("dates, taken as categories")
    assert notes["took"] == notes["day"]  # as pandas writes the time that something took
    assert notes["none"] == "nothing but missing values"
    assert notes["one"] == "the same in every row"


@pytest.mark.parametrize(
    "cells",
    [
        ['"61,234"', '"1,002,003.50"', '"-4,000"'],
        ['"61,234"', "999", "12"],
        ["12.5%", "3 %", "0.1%"],
        ["$3.10", "$-0.76", "-$5"],
        ["3.10 €", "€ 5", "(£7)"],
        ['"1,2882"', '"-0,7645"', '",5"'],
        ["61 234", "1\u202f000", "2'500"],
        ["−5", "−7.5", "3"],
        ["5%", "7%", "unknown"],
    ],
)
def test_numbers_in_the_dress_of_text_are_pointed_out(tmp_path, cells):
    table = load(tmp_path, "x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells * 2)))
    first = cells[0].strip('"')
    assert table.describe()[0].kind == "category"
    assert table.describe()[0].note.startswith(f"numbers written as {first!r}, taken as categories; ")
    (tmp_path / "b").mkdir()
    pq.write_table(pa.table({"x": [cell.strip('"') for cell in cells]}), tmp_path / "b" / "x.parquet")
    (column,) = load_table(Source(str(tmp_path / "b" / "x.parquet"))).describe()
    assert column.note.startswith(f"numbers written as {first!r}, ")


@pytest.mark.parametrize(
    "cells", [["007", "012", "100"], ["5%", "low", "high"], ["1-2", "3-4", "5+"], ["1.2.3", "1.2.4"]]
)
def test_what_is_no_number_in_any_dress_is_not(tmp_path, cells):
    table = load(tmp_path, "x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells * 2)))
    assert table.describe()[0].note == ""


def test_a_decimal_comma_that_is_read_is_no_dress(tmp_path):
    table = load(tmp_path, "x;y\n1,5;1\n2,5;2\nold;3\n")
    assert table.describe()[0].note == "holds numbers, and 'old' in row 3; so it is taken as categories"
    table = load(tmp_path, "x;y\n1.234,5;1\n2.000,5;2\n")
    assert table.describe()[0].note.startswith("numbers written as '1.234,5', ")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: data])
def test_compression_is_told_by_the_bytes(tmp_path, pack):
    assert load(tmp_path, pack(TEXT.encode())).rows == 3


def test_zstandard(tmp_path):
    sink = io.BytesIO()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(TEXT.encode())
        stream.flush()
        packed = sink.getvalue()
    with pa.CompressedOutputStream(str(tmp_path / "whole.zst"), "zstd") as stream:
        stream.write(TEXT.encode())
    assert packed.startswith(b"\x28\xb5\x2f\xfd")
    assert load_table(Source(str(tmp_path / "whole.zst"))).rows == 3


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_delimiters_are_found(tmp_path, mark):
    text = f'a{mark}b{mark}c\n1{mark}"x, y; z|"{mark}3\n2{mark}q{mark}4\n'
    table = load(tmp_path, text, "data.txt")
    assert table.names == ["a", "b", "c"]
    assert table.columns["b"][0] == "x, y; z|"


def test_a_semicolon_brings_decimal_commas(tmp_path):
    table = load(tmp_path, "a;b\n1,5;x\n-2;y\n3.25;z\n")
    assert table.columns["a"].tolist() == [1.5, -2.0, 3.25]


def test_delimiters_and_encodings_can_be_named(tmp_path):
    assert load(tmp_path, "a:b\n1:2\n", delimiter=":").names == ["a", "b"]
    assert load(tmp_path, "a,b\né,2\n".encode("latin-1"), encoding="latin-1").columns["a"][0] == "é"
    assert load(tmp_path, "a,b\né,2\n".encode("utf-16")).columns["a"][0] == "é"
    assert load(tmp_path, "\ufeffa,b\né,2\n").names == ["a", "b"]
    with pytest.raises(TableError, match="one character"):
        Source("x", delimiter="::")
    for name in ("klingon", "rot13", "hex", "idna", "undefined", "as\0cii"):  # the rest are not encodings of text
        with pytest.raises(TableError, match="is no encoding that is known"):
            Source("x", encoding=name)


def test_byte_order_marks_go_before_a_named_encoding(tmp_path):
    for mark in ("utf-8-sig", "utf-16", "utf-32"):
        assert load(tmp_path, "a,b\né,2\n".encode(mark), encoding="latin-1").columns["a"][0] == "é"


def test_the_place_of_a_byte_that_does_not_decode_is_exact_in_every_encoding(tmp_path):
    text = ("a,b\n" + "1,x\n" * 40_000).encode()
    said = complaint(tmp_path, text + b"2,\x81\n" + text[4:], encoding="cp1252")
    assert said.startswith("data.csv, row 40001 (line 40002), column 'b' holds a byte (0x81) that is no CP1252. ")
    said = complaint(tmp_path, "a,b\n1,é\n".encode("utf-16")[:-1])
    assert said.startswith("data.csv, after line 1, is not utf-16: ")


def test_the_delimiter_of_long_lines_is_found_past_a_small_buffer(tmp_path):
    names = ";".join(f"x, y, z {i}" for i in range(300))
    row = ";".join(["1,5"] * 300)
    assert len(load(tmp_path, names + "\n" + (row + "\n") * 12).names) == 300


def test_line_ends_blank_lines_and_quotes(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        table = load(tmp_path, f'a,b{end}1,"two{end}lines, and ""quotes"""{end}{end}2,x{end}{end}')
        assert table.rows == 2
        assert table.columns["b"][0].replace(end, "|") == 'two|lines, and "quotes"'
    np.testing.assert_array_equal(load(tmp_path, "a\n1\n\n2\n\n\n").columns["a"], [1, np.nan, 2])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "data.csv is empty."),
        ("\n\n", "data.csv is empty."),
        ("a,b\n", "data.csv has a header and no rows."),
        ("a,b\n1,2\n3\n", "data.csv, row 2 (line 3) has one value, and the header names 2 columns."),
        (
            "a,b\n1,2\n3,4,5\n",
            "data.csv, row 2 (line 3) has 3 values, and the header names 2 columns. If a value holds a ',', put it in"
            " double quotes.",
        ),
        (
            b"a,b\n1,caf\xe9\n",
            "data.csv, row 1 (line 2), column 'b' holds a byte (0xe9) that is no UTF-8. Save it as UTF-8, or name its"
            " encoding, as in --encoding latin-1.",
        ),
        (
            "a,b\n1,x\0y\n",
            "data.csv, row 1 (line 2), column 'b' holds a NUL byte. Remove it, or save the table as text anew.",
        ),
        ("a,b,a\n1,2,3\n", "data.csv: columns 1 and 3 are named 'a' alike; every column needs a name of its own."),
        ('a,b\n1,"x\n2,y\n', "data.csv, row 1 (line 3): a double quote is opened and never closed."),
        (
            'a,b\n1,"x"y\n',
            "data.csv, row 1 (line 2) has text right after a closing quote. A quote inside of quotes is written twice.",
        ),
        (
            "1,2.5\n3,4\n",
            "data.csv must begin with a line that names the columns; its first line is numbers (1, 2.5).",
        ),
        ("a,b\n1,2\ninf,3\n", "data.csv, row 2, column 'a' holds 'inf', which is no finite number."),
        ("a,b\n1,2\n1e999,3\n", "data.csv, row 2, column 'a' holds '1e999', which is no finite number."),
        ("a\n" + "1\n" * 40_000 + "inf\n", "data.csv, row 40001, column 'a' holds 'inf', which is no finite number."),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, sentence):
    assert complaint(tmp_path, text) == sentence


def test_damaged_and_absent_files(tmp_path):
    assert "is damaged or cut short" in complaint(tmp_path, gzip.compress(TEXT.encode() * 1000)[:60])
    assert "is damaged or cut short" in complaint(tmp_path, b"PAR1 and no more")
    write(tmp_path, TEXT)
    with pytest.raises(TableError, match=r"dat.csv does not exist. Did you mean 'data.csv'\?"):
        load_table(Source(str(tmp_path / "dat.csv")))
    with pytest.raises(TableError, match="is a folder"):
        load_table(Source(str(tmp_path)))


def test_parquet(tmp_path):
    import datetime

    table = pa.table(
        {
            "n": pa.array([1, None, 3]),
            "t": pa.array(["x", None, "z"]).dictionary_encode(),
            "b": [True, False, None],
            "d": [datetime.date(2024, 1, 1)] * 3,
            "e": pa.nulls(3),
            "s": pa.array([90, None, -1], pa.duration("s")),
            "ns": pa.array([90_000_000_000, None, 1], pa.duration("ns")),
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    loaded = load_table(Source(str(tmp_path / "data.parquet")))
    np.testing.assert_array_equal(loaded.columns["n"], [1, np.nan, 3])
    assert loaded.columns["t"].tolist() == ["x", None, "z"]
    assert loaded.columns["d"][0] == "2024-01-01"
    assert np.isnan(loaded.columns["e"]).all()
    np.testing.assert_array_equal(loaded.columns["b"], [1, 0, np.nan])
    np.testing.assert_array_equal(loaded.columns["s"], [90, np.nan, -1])  # a time that something took is a number
    np.testing.assert_array_equal(loaded.columns["ns"], [90, np.nan, 1e-9])
    pq.write_table(pa.table({"l": [[1], [2]]}), tmp_path / "nested.parquet")
    with pytest.raises(TableError, match=r"column 'l' holds list<.*>; a table has numbers and text"):
        load_table(Source(str(tmp_path / "nested.parquet")))
    pq.write_table(pa.table({"x": [1.0, float("inf")]}), tmp_path / "inf.parquet")
    with pytest.raises(TableError, match="row 2, column 'x' holds an infinite value"):
        load_table(Source(str(tmp_path / "inf.parquet")))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_parquet_do_not_depend_on_the_unit(tmp_path, unit):
    import datetime

    days = [datetime.datetime(2024, 10, 20), datetime.datetime(2024, 1, 1, 12, 30, 10), None]
    table = pa.table(
        {
            "plain": pa.array(days, pa.timestamp(unit)),
            "zoned": pa.array(days, pa.timestamp(unit, "UTC")),
            "clock": pa.array(
                [datetime.time(10, 20), datetime.time(0), None], pa.time64("us" if unit != "ns" else unit)
            ),
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    loaded = load_table(Source(str(tmp_path / "data.parquet")))
    # a model that was trained on the CSV must know the dates of the Parquet
    assert loaded.columns["plain"].tolist() == ["2024-10-20", "2024-01-01 12:30:10", None]
    assert loaded.columns["zoned"].tolist() == ["2024-10-20 00:00:00Z", "2024-01-01 12:30:10Z", None]
    assert loaded.columns["clock"].tolist() == ["10:20:00", "00:00:00", None]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_fractions_of_a_second_in_parquet_keep_their_digits(tmp_path, unit):
    import datetime

    half = datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000)
    pq.write_table(pa.table({"t": pa.array([half], pa.timestamp(unit))}), tmp_path / "data.parquet")
    assert load_table(Source(str(tmp_path / "data.parquet"))).columns["t"].tolist() == ["2024-01-01 00:00:00.5"]


def test_chunks_read_what_they_are_told_in_any_order(tmp_path):
    source = write(tmp_path, "z,b,a\nq,1,x\nr,,\n")
    (chunk,) = read_chunks(source, {"a": "category", "b": "number"}, ["z"])
    assert chunk.table.names == ("a", "b")
    assert chunk.table.column(0).tolist() == ["x", None]
    np.testing.assert_array_equal(chunk.table.column(1), [1, np.nan])
    assert chunk.kept == {"z": ["q", "r"]}
    with pytest.raises(TableError, match=r"row 1, column 'a' holds 'x', which is no number\."):
        list(read_chunks(source, {"a": "number"}))
    with pytest.raises(TableError, match=r"has no column 'c'\. The columns are 'z', 'b', 'a'\."):
        list(read_chunks(source, {"c": "number"}))
    with pytest.raises(TableError, match=r"lacks 2 of the columns that are needed: 'c', 'd'\."):
        list(read_chunks(source, {"c": "number", "a": "category", "d": "number"}))


def test_chunks_of_parquet_are_what_the_model_takes(tmp_path):
    pq.write_table(pa.table({"n": ["1.5", None], "c": [2, 3]}), tmp_path / "x.parquet")
    (chunk,) = read_chunks(Source(str(tmp_path / "x.parquet")), {"n": "number", "c": "category"}, ["c"])
    np.testing.assert_array_equal(chunk.table.column(0), [1.5, np.nan])
    assert chunk.table.column(1).tolist() == ["2", "3"]


def test_categories_of_parquet_are_spelt_in_full(tmp_path):
    table = pa.table({"flag": [True, None], "id": pa.array([2**60 + 1, 3]).dictionary_encode(), "x": [1.0, 0.1]})
    pq.write_table(table, tmp_path / "x.parquet")
    (chunk,) = read_chunks(Source(str(tmp_path / "x.parquet")), dict.fromkeys(table.column_names, "category"))
    found = [chunk.table.column(i).tolist() for i in range(3)]
    assert found == [["True", None], ["1152921504606846977", "3"], ["1", "0.1"]]
    assert found[:2] == [read_table(table).text(i).tolist() for i in range(2)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04\x14\0\x06\0[Content_Types].xml\0", "is a workbook; save its sheet as CSV."),
        (b"PK\x03\x04\x14\0\x06\0rows.csv\0", "is a zip archive; unpack it"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", "is a workbook of an old Excel; save its sheet as CSV."),
        (b"ARROW1\0\0\xff", "is an Arrow file, as Feather is; save it as Parquet."),
        (b'{"x":1,"y":0}\n{"x":2,"y":1}\n', "is JSON; save it as CSV or Parquet."),
        (b'[\n  {\n    "x": 1}]', "is JSON; save it as CSV or Parquet."),
        (b"\xef\xbb\xbfsep=;\r\nx;y\r\n1;0\r\n", r"is CSV after a line for Excel \(sep=…\); remove that line."),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(tmp_path, content, said):
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(TableError, match=said):
        load_table(Source(str(tmp_path / "data.csv")))
    (tmp_path / "data.csv").write_bytes(b"[x],{y},ARROW1,sep=;\n1,2,3,4\n")
    assert load_table(Source(str(tmp_path / "data.csv"))).names == ["[x]", "{y}", "ARROW1", "sep=;"]


def test_parquet_without_rows_or_of_which_nothing_is_read(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "x.parquet")
    with pytest.raises(TableError, match="has a header and no rows"):
        load_table(Source(str(tmp_path / "x.parquet")))
    pq.write_table(pa.table({}), tmp_path / "x.parquet")
    with pytest.raises(TableError, match="has no columns"):
        load_table(Source(str(tmp_path / "x.parquet")))
    pq.write_table(pa.table({"x": [[1], [2]]}), tmp_path / "x.parquet")
    assert load_table(Source(str(tmp_path / "x.parquet")), unread=["x"]).rows == 2


def test_parquet_as_text_has_the_digits_of_the_file(tmp_path):
    from decimal import Decimal

    table = pa.table(
        {
            "id": [0, 9007199254740995, None],
            "small": pa.array([2**64 - 1, 1, 2], pa.uint64()),
            "flag": [True, False, None],
            "narrow": pa.array([0.1, float("nan"), 3.0], pa.float32()),
            "wide": [0.1, None, 1e300],
            "price": [Decimal("1.50"), None, Decimal("0.10")],
            "word": pa.array(["x", None, "z"]).dictionary_encode(),
            "nothing": pa.nulls(3),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    source = Source(str(tmp_path / "x.parquet"))
    # a column may be kept, and be one of the model's as well
    (chunk,) = read_chunks(source, {"wide": "number", "flag": "number"}, table.column_names)
    assert chunk.kept == {
        "id": ["0", "9007199254740995", ""],
        "small": ["18446744073709551615", "1", "2"],
        "flag": ["True", "False", ""],
        "narrow": ["0.1", "", "3.0"],
        "wide": ["0.1", "", "1e+300"],
        "price": ["1.50", "", "0.10"],
        "word": ["x", "", "z"],
        "nothing": ["", "", ""],
    }
    np.testing.assert_array_equal(chunk.table.column(1), [1, 0, np.nan])
    loaded = load_table(source, as_text=["flag", "absent"])
    assert loaded.names == table.column_names
    assert loaded.columns["flag"].tolist() == ["True", "False", None]
    with pytest.raises(TableError, match=r"has no column 'ident'"):
        list(read_chunks(source, {"wide": "number"}, ["ident"]))


def test_standard_input_is_read_twice(tmp_path):
    program = "from stepless.tabular.tables.reading import *; print(load_table(Source('-')).columns)"
    done = subprocess.run(
        [sys.executable, "-c", program], input=gzip.compress(b"a,b\n1,x\n2,y\n"), capture_output=True, check=True
    )
    assert b"array([1., 2.])" in done.stdout
    program = (
        "from stepless.tabular.tables.reading import *;"
        " print(list(read_chunks(Source('-', once=True), {'a': 'number'})))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=b"a,b\n1,x\n", capture_output=True, check=True)
    assert b"array([1.])" in done.stdout


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", ["csv", "gzip", "parquet"])
def test_a_named_pipe_is_read_as_a_file_is(tmp_path, once, kind):
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1.0, 2.0]}), sink)
    data = {"csv": b"a\n1\n2\n", "gzip": gzip.compress(b"a\n1\n2\n"), "parquet": sink.getvalue()}[kind]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    source = Source(str(pipe), once=once)
    (chunk,) = read_chunks(source, {"a": "number"})
    np.testing.assert_array_equal(chunk.table.column(0), [1, 2])
    writer.join()
    if not once:
        np.testing.assert_array_equal(load_table(source).columns["a"], [1, 2])


def test_a_chunk_holds_few_rows_of_a_wide_table(tmp_path):
    names = ",".join(f"c{i}" for i in range(10_000))
    row = ",".join(["1"] * 10_000)
    source = write(tmp_path, names + "\n" + (row + "\n") * 120)
    chunks = list(read_chunks(source, {"c0": "number", "c9999": "number"}))
    assert [chunk.table.rows for chunk in chunks] == [52, 52, 16]
    assert load_table(source).rows == 120


cells = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr), st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["", "NA", "?", "nan", "-", "null", " 7 "]),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(cells, min_size=1))
def test_numbers_are_read_as_python_reads_them(texts):
    read = numbers(texts)
    for text, value in zip(texts, read, strict=True):
        try:
            expected = float(text)
        except ValueError:
            expected = float("nan")
        assert value == expected or (np.isnan(value) and np.isnan(expected))


@settings(deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        | st.sampled_from(["1", "2.5", "true", " False ", " 07", "inf", "-Infinity", "1e999", "", "NA", "?", "x"]),
        min_size=1,
    ),
    st.integers(1, 4),
)
def test_a_column_is_the_same_however_it_is_cut(texts, size):
    def guess(size):
        made = Guess()
        for start in range(0, len(texts), size):
            made.look(texts[start : start + size], start + 1)
        return made.kind

    assert guess(len(texts)) == guess(size)
    assert len(words(texts)) == len(texts)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(texts, min_size=3, max_size=3), min_size=1, max_size=8))
def test_what_csv_writes_is_read_back(tmp_path_factory, rows):
    import csv

    path = tmp_path_factory.mktemp("t") / "data.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c"])
        writer.writerows(rows)
    read = [row for _, chunk in Rows(Source(str(path), delimiter=",")).chunks(3) for row in chunk]
    # spaces after a delimiter are left out, which a quoted value keeps
    assert [[cell.strip() for cell in row] for row in read] == [[cell.strip() for cell in row] for row in rows]
