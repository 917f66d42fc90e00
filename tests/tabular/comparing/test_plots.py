"""The figures of a comparison as files."""

import matplotlib as mpl
import pytest

from tests.tabular.outcomes import HOSTILE, make

mpl.use("Agg")
FIGURES = {"comparison", "roc", "precision_recall", "calibration"}


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_every_figure_is_drawn(task, tmp_path):
    files = make(task, rows=200, contestants=3).plots(tmp_path / "figures", formats=("png",))
    expected = FIGURES if task == "multiclass" else FIGURES | {"metric_by_threshold"}
    assert {path.stem for path in files} == expected
    for path in files:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_names_from_the_data_are_drawn_as_text_and_files_repeat(tmp_path):
    outcome = make("multilabel", rows=200, contestants=2, labels=(HOSTILE, "$x^{", r"\frac"))
    first, second = (outcome.plots(tmp_path / name, formats=("svg",)) for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert b"<script" not in one.read_bytes()


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="formats must be among 'png', 'svg', 'pdf'; got 'exe'"):
        make(rows=100, contestants=2).plots(tmp_path, formats=("exe",))
