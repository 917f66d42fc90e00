"""Tables that nobody wants to meet: a small good one, and ways to spoil it."""

import bz2
import gzip
import lzma

import numpy as np

PACKERS = [gzip.compress, bz2.compress, lzma.compress]
NAMES = ["x", "z", "city", "y"]


def good_rows(random, rows=None):
    rows = int(random.integers(12, 40)) if rows is None else rows
    x, z = random.normal(size=rows), random.integers(0, 9, rows)
    city = random.choice(["Ulm", "Bonn", "Köln", ""], rows)
    y = (x + random.normal(size=rows) > 0.3).astype(int)
    y[: min(4, rows)] = [0, 1, 0, 1][: min(4, rows)]
    return [NAMES, *([f"{a:.4g}", str(b), str(c), str(d)] for a, b, c, d in zip(x, z, city, y, strict=True))]


def written(rows, mark=","):
    return "\n".join(mark.join(row) for row in rows) + "\n"


def _column(rows, place, make):
    return [rows[0], *([*row[:place], make(i), *row[place + 1 :]] for i, row in enumerate(rows[1:]))]


def _cell(random, rows, text, place=None):
    rows = [list(row) for row in rows]
    row = int(random.integers(1, len(rows))) if len(rows) > 1 else 0
    rows[row][int(random.integers(3)) if place is None else place] = text
    return rows


def _rename(rows, place, name):
    names = list(rows[0])
    names[place] = name
    return [names, *rows[1:]]


ODD_CELLS = [
    '"', '""', '"a"b', 'a"b', '"a', "'", "a\nb", '"a\nb"', "a,b", '"a,b"', "\\", "\t", " ", "\u200b", "\ufeff", "💥",
    "ß" * 500,
    "=1+1", "<script>alert(1)</script>", "NaN", "inf", "-inf", "1e999", "1e-999", "9" * 19, "9" * 400, "0x1F", "1_000",
    "1,000", "1.234.567", "٣", "½", "None", "null", "true", "2024-02-30", "2024-01-01T00:00:00Z", "12:30", "-0", "+5",
    "1e5", ".5", "5.", "--", "#REF!", "\x07", "\x1b[31m", "%s%n", "../../etc", "[bold]x[/bold]", "[/]", "\r",
    "a" * 200_000,
]  # fmt: skip
ODD_NAMES = [
    "", " ", "y ", "Y", "x", "probability", "label", "<b>x</b>", "[red]", "--target", "a,b", "💥", "\u202ex", "1",
    "n" * 5000, "nan", "index", "column 1", "target", "cells", "__class__", "\\n", "'", '"q"',
]  # fmt: skip

#: Each takes a random generator and gives the bytes of a file.
SPOILT = {
    "good": lambda r: written(good_rows(r)),
    "odd cell": lambda r: written(_cell(r, good_rows(r), str(r.choice(ODD_CELLS)))),
    "odd target": lambda r: written(_cell(r, good_rows(r), str(r.choice(ODD_CELLS)), 3)),
    "odd name": lambda r: written(_rename(good_rows(r), int(r.integers(4)), str(r.choice(ODD_NAMES)))),
    "short row": lambda r: written([*(g := good_rows(r))[:5], g[5][: int(r.integers(4))], *g[6:]]),
    "long row": lambda r: written([*(g := good_rows(r))[:5], [*g[5], *"ab"[: int(r.integers(1, 3))]], *g[6:]]),
    "no rows": lambda r: written(good_rows(r, 0)),
    "few rows": lambda r: written(good_rows(r, int(r.integers(1, 6)))),
    "one class": lambda r: written(_column(good_rows(r), 3, lambda i: "1")),
    "one positive": lambda r: written(_column(good_rows(r), 3, lambda i: str(int(i == 3)))),
    "many classes": lambda r: written(_column(good_rows(r), 3, lambda i: f"k{i % 9}")),
    "target differs": lambda r: written(_column(good_rows(r), 3, lambda i: f"k{i}")),
    "fractions": lambda r: written(_column(good_rows(r), 3, lambda i: f"{r.normal():.3f}")),
    "half classes": lambda r: written(_column(good_rows(r), 3, lambda i: str(r.choice(["0.5", "1.5"])))),
    "words": lambda r: written(_column(good_rows(r), 3, lambda i: str(r.choice(["yes", "no", "YES "])))),
    "codes": lambda r: written(_column(good_rows(r), 3, lambda i: str(r.choice(["01", "02"])))),
    "missing target": lambda r: written(_column(good_rows(r), 3, lambda i: "" if i % 7 == 3 else str(i % 2))),
    "no target": lambda r: written([row[:3] for row in good_rows(r)]),
    "target alone": lambda r: written([row[3:] for row in good_rows(r)]),
    "same names": lambda r: written(_rename(good_rows(r), 1, "x")),
    "all missing": lambda r: written(_column(_column(good_rows(r), 0, lambda i: ""), 1, lambda i: "NA")),
    "constant": lambda r: written(_column(good_rows(r), 0, lambda i: "7")),
    "dates": lambda r: written(_column(good_rows(r), 0, lambda i: f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d}")),
    "huge": lambda r: written(_column(good_rows(r), 0, lambda i: str(10 ** int(r.integers(15, 300))))),
    "tiny": lambda r: written(_column(good_rows(r), 0, lambda i: f"{r.normal():.3f}e-30{r.integers(9)}")),
    "ids": lambda r: written(_column(good_rows(r), 0, lambda i: f"id-{r.integers(10**9)}")),
    "same rows": lambda r: written([(g := good_rows(r))[0], *g[1:3] * 12]),
    "wide": lambda r: written(
        [[*(f"c{i}" for i in range(9999)), "y"], *([*map(str, r.integers(0, 9, 9999)), str(k % 2)] for k in range(9))]
    ),
    "no header": lambda r: written(good_rows(r)[1:]),
    "semicolons": lambda r: written(_column(good_rows(r), 0, lambda i: f"{i},{r.integers(99)}"), ";"),
    "tabs": lambda r: written(good_rows(r), "\t"),
    "two marks": lambda r: written((g := good_rows(r))[:6]) + written(g[6:], ";"),
    "returns": lambda r: written(good_rows(r)).replace("\n", str(r.choice(["\r\n", "\r", "\n\n", "\n\r\n"]))),
    "spaces": lambda r: written(good_rows(r)).replace(",", " , "),
    "quoted": lambda r: "\n".join(",".join(f'"{c}"' for c in row) for row in good_rows(r)),
    "open quote": lambda r: written(_cell(r, good_rows(r), '"open')),
    "comments": lambda r: "# made by hand\n" + written(good_rows(r)),
    "trailing": lambda r: written([[*row, ""] for row in good_rows(r)]),
    "latin": lambda r: written(good_rows(r)).encode("latin-1"),
    "utf-16": lambda r: written(good_rows(r)).encode(str(r.choice(["utf-16", "utf-16-le", "utf-32"]))),
    "mark": lambda r: b"\xef\xbb\xbf" + written(good_rows(r)).encode(),
    "nul": lambda r: _inserted(r, written(good_rows(r)).encode(), b"\0"),
    "stray byte": lambda r: _inserted(r, written(good_rows(r)).encode(), bytes([int(r.integers(128, 256))])),
    "any byte": lambda r: _inserted(r, written(good_rows(r)).encode(), bytes(r.integers(0, 256, 3).tolist())),
    "noise": lambda r: r.bytes(int(r.integers(1, 3000))),
    "empty": lambda r: str(r.choice(["", "\n", " \n", "\r\n\r\n", ",\n", '""\n', "\ufeff"])),
    "html": lambda r: "<!doctype html><html><body><table><tr><td>1,2</td></tr></table></body></html>\n" * 3,
    "json": lambda r: '{"x": [1, 2, 3], "y": [0, 1, 0]}\n',
    "zipped": lambda r: PACKERS[r.integers(3)](written(good_rows(r)).encode()),
    "cut zip": lambda r: PACKERS[r.integers(3)](r.bytes(500))[: int(r.integers(6, 90))],
    "parquet": lambda r: b"PAR1" + r.bytes(int(r.integers(1, 300))) + b"PAR1",
    "cut": lambda r: (whole := written(good_rows(r)).encode())[: int(r.integers(1, len(whole)))],
    "levels": lambda r: written(_column(good_rows(r, 60), 2, lambda i: f"level {i % 45} " + "ü" * (i % 3))),
    "shuffled": lambda r: _shuffled(r, written(good_rows(r))),
}  # fmt: skip


def _inserted(random, data, part):
    place = int(random.integers(len(data)))
    return data[:place] + part + data[place:]


def _shuffled(random, text):
    """Some characters in other places."""
    letters = list(text)
    for _ in range(int(random.integers(1, 6))):
        i, j = random.integers(len(letters), size=2)
        letters[i], letters[j] = letters[j], letters[i]
    return "".join(letters)


def hostile(number):
    """The table of a number: its kind and its bytes. Kinds take turns."""
    kind = list(SPOILT)[number % len(SPOILT)]
    made = SPOILT[kind](np.random.default_rng(number))
    return kind, made.encode("utf-8", "surrogatepass") if isinstance(made, str) else made
