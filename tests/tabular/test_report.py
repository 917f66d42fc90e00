"""The report: what it says, that it is safe and bounded, and that its formulas and counts are Python's."""

import base64
import json
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

import stepless as sl
from stepless.averaging import evaluate
from stepless.registry import Metric
from stepless.tabular.outcome import Column
from stepless.tabular.page.figures import chosen_metric, metric_name, page_data
from stepless.tabular.page.formulas import is_priced, trace
from stepless.tabular.page.reliability import brier, log_loss, reliability
from stepless.tabular.report import embedded, render_report, write_report

from .outcomes import HOSTILE, make

TASKS = ("binary", "multiclass", "multilabel")


def run(formula, cells=(), matrix=(), prices=(1.0, 1.0)):
    """What the page computes: the same lines are Python too."""
    names = {
        "c": [float(x) for x in np.ravel(cells)],
        "m": [float(x) for x in np.ravel(matrix)],
        "p": prices,
        "where": lambda holds, yes, no: yes if holds else no,
        "power": lambda x, e: float(np.power(x, e)),
        "nan": math.nan,
        "inf": math.inf,
    }
    exec("\n".join(formula.lines), names)
    return names[formula.result]


def held(page):
    """The JSON of a page."""
    return json.loads(re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL).group(1))


class Parsed(HTMLParser):
    """All elements and all text that a browser would see."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self._inside = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text.append(data)


# ---------------------------------------------------------------------------------------------------------------------
# Formulas
# ---------------------------------------------------------------------------------------------------------------------

#: To three places: of 1e-8 beside 100 two orders of the same sums keep half of the digits.
cell = st.one_of(st.just(0.0), st.integers(0, 500).map(float), st.floats(0, 100).map(lambda x: round(x, 3)))


@settings(max_examples=40, deadline=None)
@given(cells=st.lists(st.tuples(cell, cell, cell, cell), min_size=3, max_size=3), data=st.data())
@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
def test_a_traced_metric_is_the_metric(average, cells, data):
    name = data.draw(st.sampled_from(sorted(sl.METRICS)))
    metric = sl.METRICS[name]
    table = np.array(cells)
    binary = evaluate(metric, table[None, None, :1], "binary", "macro")[0, 0]
    if not is_priced(metric):
        np.testing.assert_allclose(run(trace(metric), table[0]), binary, rtol=1e-9, atol=1e-12)
        labels = evaluate(metric, table[None, None], "multilabel", average)[0, 0]
        got = run(trace(metric, 3, "multilabel", average), table)
        np.testing.assert_allclose(got, labels, rtol=1e-9, atol=1e-12)
    matrix = np.array(cells)[:, :3]
    joint = metric.kind != "class"
    classes = evaluate(metric, matrix[None, None], "multiclass", "macro" if joint else average, matrix=True)[0, 0]
    formula = trace(metric, 3, "multiclass", "macro" if joint else average)
    got = run(formula, _cells(matrix), matrix)
    np.testing.assert_allclose(got, classes, rtol=1e-9, atol=1e-12)


def _cells(matrix):
    tp = matrix.diagonal()
    off = matrix - np.diag(tp)
    others = [[i for i in range(3) if i != k] for k in range(3)]
    tn = [matrix[np.ix_(rest, rest)].sum() for rest in others]
    return np.stack([tp, off.sum(0), off.sum(1), tn], -1)


def test_the_size_of_equal_differences_has_two_digits():
    page = render_report(make(rope=0.00296911))
    assert "count as the same within 0.003 (" in page
    assert "0.00297" not in page
    assert "0.002969" not in page


def test_what_errors_cost_is_left_open():
    cells = (30.0, 10.0, 5.0, 55.0)
    cost = sl.METRICS["cost"].bind(costs=((0, 2), (7, 0)))
    net = sl.METRICS["net_benefit"].bind(threshold_probability=2 / 9)
    assert run(trace(sl.METRICS["cost"]), cells, prices=(2.0, 7.0)) == pytest.approx((2 * 10 + 7 * 5) / 100)
    assert run(trace(sl.METRICS["net_benefit"]), cells, prices=(2.0, 7.0)) == pytest.approx(float(net(*cells)))
    assert run(trace(cost), cells, prices=(1.0, 1.0)) == pytest.approx((2 * 10 + 7 * 5) / 100)


def test_a_metric_that_is_no_arithmetic_has_no_formula():
    branching = Metric("branching", lambda tp, fp, fn, tn: tp if tp > fp else fp)
    assert trace(branching) is None
    assert trace(sl.METRICS["precision"].bind(zero_division=math.nan), 3, "multilabel") is None


def test_every_registered_metric_reaches_the_page():
    for task in TASKS:
        names = [metric["name"] for metric in page_data(make(task)).held["metrics"]]
        assert sorted(names) == sorted(sl.METRICS)
        assert names[0] == "f1"


# ---------------------------------------------------------------------------------------------------------------------
# Counts
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_the_counts_at_cuts_are_those_of_score(weighted):
    outcome = make(rows=300, weighted=weighted)
    unit = page_data(outcome).held["explorer"]["units"][0]
    formula = trace(sl.METRICS["f1"])
    for i, entry in enumerate(outcome.entries[:2]):
        assert entry.threshold in unit["cuts"]
        assert 0.5 in unit["cuts"]
        for place in range(1, len(unit["cuts"]) - 1, 17):
            tp, fp = unit["tp"][i][place], unit["fp"][i][place]
            cells = (tp, fp, unit["positive"] - tp, unit["negative"] - fp)
            expected = sl.score(
                entry.probabilities, outcome.target, "f1", sample_weight=outcome.weight, inputs="probabilities",
                threshold=unit["cuts"][place],
            )  # fmt: skip
            assert run(formula, cells) == pytest.approx(expected.item(), abs=1e-7)
        assert unit["tp"][i][0] == unit["positive"]
        assert unit["fp"][i][0] == unit["negative"]


def test_the_counts_of_labels_are_those_of_score():
    outcome = make("multilabel", rows=300)
    units = page_data(outcome).held["explorer"]["units"]
    entry = outcome.entries[0]
    cuts = [unit["cuts"][len(unit["cuts"]) // 2] for unit in units]
    cells = []
    for unit in units:
        place = len(unit["cuts"]) // 2
        tp, fp = unit["tp"][0][place], unit["fp"][0][place]
        cells.append((tp, fp, unit["positive"] - tp, unit["negative"] - fp))
    for name in ("f1", "mcc", "weighted_kappa"):
        expected = sl.score(
            entry.probabilities, outcome.target, name, task="multilabel", inputs="probabilities", threshold=cuts
        )
        assert run(trace(sl.METRICS[name], 3, "multilabel"), cells) == pytest.approx(expected.item())


def test_the_sample_of_classes_decides_as_score_does():
    outcome = make("multiclass", rows=400)
    sample = page_data(outcome).held["explorer"]
    assert sample["rows"] == sample["of"] == 400
    assert sample["weight"] is None
    target = np.frombuffer(base64.b64decode(sample["target"]), "<u2").astype(int)
    entry = outcome.entries[0]
    logs = np.frombuffer(base64.b64decode(sample["logs"][0]), "<f4").reshape(400, 3)
    matrix = np.zeros((3, 3))
    np.add.at(matrix, (target, np.argmax(logs - np.array(entry.threshold), 1)), 1)
    for name in ("f1", "mcc", "weighted_kappa"):
        options = {"task": "multiclass", "inputs": "probabilities", "threshold": entry.threshold}
        expected = sl.score(entry.probabilities, outcome.target, name, **options)
        formula = trace(sl.METRICS[name], 3, "multiclass")
        assert run(formula, _cells(matrix), matrix) == pytest.approx(expected.item())


def test_a_large_sample_stands_for_all_rows():
    outcome = make("multiclass", rows=60_000)
    sample = page_data(outcome).held["explorer"]
    assert sample["rows"] < sample["of"] == 60_000
    target = np.frombuffer(base64.b64decode(sample["target"]), "<u2").astype(int)
    stands = np.bincount(target, sample["weight"])
    np.testing.assert_allclose(stands, np.bincount(outcome.target), rtol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Curves
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_areas_are_those_of_scikit_learn(task):
    outcome = make(task)
    curves = page_data(outcome).held["curves"]
    entry = outcome.entries[0]
    for unit in curves:
        k = unit["unit"]
        target = outcome.target[:, k] if task == "multilabel" else outcome.target == k
        scores = entry.probabilities if task == "binary" else entry.probabilities[:, k]
        assert unit["contestants"][0]["area"] == pytest.approx(roc_auc_score(target, scores), abs=1e-6)
        assert unit["contestants"][0]["roc"][-1] == 1
        assert unit["contestants"][0]["precision"][-1] >= unit["prevalence"] - 1e-4
    assert len(curves) == (1 if task == "binary" else 3)


def test_reliability_groups_all_rows():
    rng = np.random.default_rng(0)
    p = rng.random(1000)
    y = (rng.random(1000) < p).astype(float)
    found = reliability(p, y)
    assert len(found.predicted) == 10
    assert found.weight.sum() == 1000
    np.testing.assert_allclose(found.observed @ found.weight, y.sum())
    assert found.error < 0.06
    assert reliability(np.full(50, 0.3), y[:50]).weight.tolist() == [50]
    weight = rng.uniform(0.5, 2, 1000)
    assert brier(p, y, weight) == pytest.approx(brier_score_loss(y, p, sample_weight=weight))
    assert log_loss(p, y, weight) == pytest.approx(sklearn_log_loss(y, p, sample_weight=weight))


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(tmp_path):
    outcome = make(subject_to="recall >= 0.7")
    outcome.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = " ".join(" ".join(Parsed(page).text).split())
    assert text.index(outcome.verdict) < text.index("Comparison") < text.index("Data") < text.index("Settings")
    for said in (
        "14 rows occur twice",
        "cross-entropy + tuned threshold",
        "income",
        "590",
        f"stepless {sl.__version__}",
    ):
        assert said in text
    assert f"{outcome.entries[0].mean:.4f}" in text
    assert held(page)["constraints"] == [{"text": "recall >= 0.7", "atLeast": True, "bound": 0.7, "formula": 27}]
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]


def test_nothing_is_asked_of_a_network():
    page = render_report(make())
    for _, attributes in Parsed(page).tags:
        assert not {"src", "srcset", "action"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page


@pytest.mark.parametrize("task", TASKS)
def test_names_from_the_data_are_text(task):
    outcome = make(task)
    entries = outcome.entries
    outcome = replace(
        outcome,
        name=HOSTILE,
        verdict=f"Yes: {HOSTILE}",
        warnings=(f"{HOSTILE} nearly equals the target", "</style><b onclick=x>"),
        columns=(Column(HOSTILE, HOSTILE, 0, 1), Column('"><img src=x onerror=alert(1)>', "number", 0, 1)),
        classes=("a", HOSTILE) if task == "binary" else (HOSTILE, "</script>", "<!--<script>"),
        positive=HOSTILE,
        labels=(HOSTILE, "</script>", "]]>") if task == "multilabel" else None,
        versions={HOSTILE: HOSTILE},
        entries=(*entries, replace(entries[0], key="bad", name=HOSTILE, failed=f"no {HOSTILE}", scores=())),
    )
    page = render_report(outcome)
    seen = Parsed(page)
    assert [tag for tag, _ in seen.tags].count("script") == 5
    assert not {"img", "b"} & {tag for tag, attributes in seen.tags if attributes}
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)
    assert HOSTILE in unescape(" ".join(seen.text))
    assert HOSTILE in held(page)["classes"]
    assert "<" not in embedded(page_data(outcome).held)


def test_numbers_that_are_none_show_as_dashes():
    entries = list(make().entries)
    nothing = replace(entries[0].difference, mean=math.nan, interval=(math.nan, math.inf), better=math.nan)
    entries[0] = replace(
        entries[0], mean=math.nan, interval=(math.nan, math.nan), threshold=math.inf, difference=nothing
    )
    page = render_report(make(entries=tuple(entries)))
    assert "nan" not in " ".join(Parsed(page).text).lower().replace("finance", "")
    assert held(page)["contestants"][0]["mean"] is None
    assert held(page)["contestants"][0]["tuned"] == [1.0]


def test_a_threshold_that_calls_every_row_positive_is_told_in_words():
    outcome = make()
    entries = tuple(replace(e, threshold=-math.inf) for e in outcome.entries)
    page = render_report(replace(outcome, entries=entries))
    assert "<dt>threshold to ship</dt><dd>calls every row positive<small>" in page
    assert "∞" not in " ".join(Parsed(page).text)


def test_contestants_that_failed_have_a_row_and_no_curve():
    entries = list(make().entries)
    empty = np.array([])
    entries[-1] = replace(entries[-1], failed="it needs lightgbm", scores=(), probabilities=empty, threshold=None)
    page = render_report(make(entries=tuple(entries)))
    assert "failed: it needs lightgbm" in " ".join(Parsed(page).text)
    assert len(held(page)["contestants"]) == len(entries) - 1
    all_failed = tuple(replace(e, failed="no", scores=(), probabilities=empty) for e in entries)
    page = render_report(make(entries=all_failed))
    assert held(page)["explorer"] is None


@pytest.mark.parametrize("metric", ["2*tp/(2*tp+fp+fn)", "auroc", "a metric of my own"])
def test_any_metric_has_a_report(metric):
    outcome = replace(make(), metric=metric)
    page = held(render_report(outcome))
    assert page["metric"] == metric
    assert page["metrics"][0]["chosen"] == ("tp" in metric)
    assert page["explorer"] is not None


def test_an_average_that_counts_cannot_tell_is_not_shown_as_the_metric():
    for average, shown in ((None, "macro"), ("micro", "micro"), ("samples", "macro")):
        page = held(render_report(make("multilabel", rows=200, contestants=2, average=average)))
        assert page["average"] == shown
        assert page["metrics"][0]["chosen"] == (average != "samples")


def test_options_of_the_metric_are_bound():
    page = held(render_report(replace(make(), metric="f_beta", metric_options={"beta": 2})))
    assert page["metric"] == "f_beta (beta=2)"
    assert [m["name"] for m in page["metrics"]].count("f_beta") == 1


def test_sizes_are_bounded(tmp_path):
    long = "x" * 100_000
    columns = tuple(Column(f"{long}{i}", "number", 0, 1) for i in range(1000))
    large = make(rows=40_000, contestants=7, columns=columns, warnings=(long,) * 500, weighted=True)
    assert len(render_report(large)) < 1_000_000
    many = make("multiclass", rows=1_500, classes=25, contestants=2)
    assert len(render_report(many)) < 2_000_000
    labels = make("multilabel", rows=600, classes=50, contestants=2)
    assert len(render_report(labels)) < 2_000_000
    write_report(large, tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 1_000_000


def test_costs_are_in_the_order_of_the_classes():
    """Of classes bad and good, the first of which is positive."""
    metric = sl.METRICS["cost"].bind(costs=[[0, 10], [1, 0]])
    outcome = replace(
        make(), metric="cost", metric_options={"costs": [[0, 10], [1, 0]]}, classes=("bad", "good"),
        positive="bad", resolved=None,
    )  # fmt: skip
    assert chosen_metric(outcome).option("costs") == ((0, 1), (10, 0))
    assert chosen_metric(replace(outcome, positive="good")) == metric
    assert metric_name(outcome) == metric_name(replace(outcome, positive="good"))
