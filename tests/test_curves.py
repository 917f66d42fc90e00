"""Curves are scikit-learn's points, agree with each other and with `tune_threshold`, and can be drawn."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

import stepless as sl
from stepless import curves

mpl.use("Agg")


@st.composite
def problems(draw):
    """Scores with ties, both classes, and weights or none."""
    n = draw(st.integers(2, 30))
    levels = draw(st.integers(1, 12))
    scores = np.array(draw(st.lists(st.integers(0, levels), min_size=n, max_size=n))) / 16
    target = np.array([0, 1, *draw(st.lists(st.integers(0, 1), min_size=n - 2, max_size=n - 2))])
    weight = draw(st.none() | st.lists(st.integers(1, 4), min_size=n, max_size=n).map(np.array))
    return scores, target, weight


@settings(max_examples=200, deadline=None)
@given(problems())
def test_roc_is_scikit_learns(problem):
    scores, target, weight = problem
    curve = curves.roc(scores, target, weight)
    fpr, tpr, thresholds = metrics.roc_curve(target, scores, sample_weight=weight, drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    assert curve.area == pytest.approx(metrics.roc_auc_score(target, scores, sample_weight=weight))
    # the same decisions, by a cut below the score instead of on it
    np.testing.assert_array_equal(
        [(scores >= cut).sum() for cut in curve.thresholds], [(scores >= cut).sum() for cut in thresholds]
    )


@settings(max_examples=200, deadline=None)
@given(problems())
def test_precision_recall_is_scikit_learns_backwards(problem):
    scores, target, weight = problem
    curve = curves.precision_recall(scores, target, weight)
    precision, recall, _ = metrics.precision_recall_curve(target, scores, sample_weight=weight)
    np.testing.assert_allclose(curve.precision, precision[::-1])
    np.testing.assert_allclose(curve.recall, recall[::-1])
    expected = metrics.average_precision_score(target, scores, sample_weight=weight)
    assert curve.average_precision == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(problems(), st.sampled_from(["f1", "mcc", "balanced_accuracy", "specificity", "tp / (tp + fp + fn)"]))
def test_a_metric_is_what_it_scores_there(problem, metric):
    scores, target, weight = problem
    curve = curves.metric_curve(scores, target, metric, weight)
    for cut, value in zip(curve.thresholds, curve.values, strict=True):
        decided = (scores >= cut).astype(float)
        there = sl.score(decided, target, metric, inputs="probabilities", sample_weight=weight).item()
        assert value == pytest.approx(there)
    tuned = sl.tune_threshold(scores, target, metric, sample_weight=weight)
    assert tuned.score == pytest.approx(curve.values.max())
    assert curve.name == metric


def test_options_and_directions():
    scores, target = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
    np.testing.assert_allclose(
        curves.metric_curve(scores, target, "f_beta", beta=2).values, [0, 5 / 9, 0.5, 10 / 11, 10 / 12]
    )
    priced = curves.metric_curve(scores, target, "(5*fn + fp) / n", maximize=False).values
    np.testing.assert_allclose(curves.cost_curve(scores, target, [[0, 1], [5, 0]]).cost, priced)
    paid = curves.cost_curve(scores, target, [[-1, 1], [5, -2]], sample_weight=[1, 1, 2, 2]).cost
    assert paid[0] == pytest.approx((-1 * 2 + 5 * 4) / 6)  # nobody
    assert paid[-1] == pytest.approx((1 * 2 - 2 * 4) / 6)  # everybody


@settings(max_examples=50, deadline=None)
@given(problems())
def test_net_benefit(problem):
    scores, target, weight = problem
    w = np.ones(len(target)) if weight is None else weight
    points = [0.05, 0.25, 0.5, 0.6]  # 0.25 and 0.5 may be scores themselves: a score on the threshold says yes
    curve = curves.net_benefit_curve(scores, target, weight, thresholds=points)
    for i, p in enumerate(points):
        yes = scores >= p
        expected = ((w * yes * target).sum() - (w * yes * (1 - target)).sum() * p / (1 - p)) / w.sum()
        assert curve.net_benefit[i] == pytest.approx(expected)
        share = (w * target).sum() / w.sum()
        assert curve.treat_all[i] == pytest.approx(share - (1 - share) * p / (1 - p))
    assert not curve.treat_none.any()


def test_default_threshold_probabilities():
    curve = curves.net_benefit_curve([0.2, 0.7], [0, 1])
    np.testing.assert_allclose(curve.thresholds, np.linspace(0.01, 0.99, 99))


@pytest.mark.parametrize(
    "make",
    [
        curves.roc,
        curves.precision_recall,
        curves.metric_curve,
        lambda s, y: curves.cost_curve(s, y, [[0, 1], [1, 0]]),
        curves.net_benefit_curve,
    ],
    ids=["roc", "precision_recall", "metric_curve", "cost_curve", "net_benefit_curve"],
)
def test_bad_input(make):
    for scores, target, message in [
        ([0.1, 0.2], [1, 1], "one class only"),
        ([0.1, np.nan], [0, 1], "NaN"),
        ([0.1, 0.2], [0, 1, 1], "as many rows"),
        ([], [], "empty"),
        ([0.1, 0.2], [0, 2], "0 or 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(scores, target)


def test_bad_options():
    with pytest.raises(ValueError, match="probabilities must lie in"):
        curves.net_benefit_curve([0.1, 2.0], [0, 1])
    with pytest.raises(ValueError, match=r"in \(0, 1\); got \[0, 0.5\]"):
        curves.net_benefit_curve([0.1, 0.2], [0, 1], thresholds=[0, 0.5])
    with pytest.raises(ValueError, match="costs must be K×K"):
        curves.cost_curve([0.1, 0.2], [0, 1], [[0, 1]])
    with pytest.raises(ValueError, match=r"'auroc' reads the order of the scores, .* use stepless\.score"):
        curves.metric_curve([0.1, 0.2], [0, 1], "auroc")
    with pytest.raises(ValueError, match="unknown metric"):
        curves.metric_curve([0.1, 0.2], [0, 1], "f2")


# ---------------------------------------------------------------------------------------------------------------------
# Plots
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    target = (rng.random(80) < 0.3).astype(int)
    yield np.clip(rng.normal(0.3 + 0.3 * target, 0.2), 0, 1), target
    plt.close("all")


def curve_lines(ax):
    """What was drawn besides the grey guides."""
    return [line for line in ax.get_lines() if line.get_color() != "0.6"]


def test_plots_draw_the_curve(data):
    for plot, curve, x, y in [
        (sl.plots.plot_roc, curves.roc(*data), "fpr", "tpr"),
        (sl.plots.plot_precision_recall, curves.precision_recall(*data), "recall", "precision"),
        (sl.plots.plot_metric, curves.metric_curve(*data, "mcc"), "thresholds", "values"),
        (sl.plots.plot_cost, curves.cost_curve(*data, [[0, 1], [5, 0]]), "thresholds", "cost"),
        (sl.plots.plot_net_benefit, curves.net_benefit_curve(*data), "thresholds", "net_benefit"),
    ]:
        _, ax = plt.subplots()
        assert plot(curve, ax, color="C2", label="mine") is ax
        (line,) = curve_lines(ax)
        finite = np.isfinite(getattr(curve, x))
        np.testing.assert_array_equal(line.get_xdata(), getattr(curve, x)[finite])
        np.testing.assert_array_equal(line.get_ydata(), getattr(curve, y)[finite])
        assert line.get_color() == "C2"
        assert "mine" in [text.get_text() for text in ax.get_legend().get_texts()]
        assert plot(curve).figure is not ax.figure
        ax.figure.canvas.draw()


def test_the_chosen_threshold_is_marked(data):
    tuning = sl.tune_threshold(*data, "f1")
    ax = sl.plots.plot_tuning(tuning)
    line, mark = curve_lines(ax)
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (tuning.threshold, tuning.score)
    assert max(line.get_ydata()) == tuning.score

    scores, target = np.stack([data[0], 1 - data[0]], 1), np.stack([data[1], 1 - data[1]], 1)
    labels = sl.tune_threshold(scores, target, "f1", task="multilabel")
    mark = curve_lines(sl.plots.plot_tuning(labels, label=1))[1]
    assert mark.get_xdata()[0] == labels.threshold[1]


def test_thresholds_that_are_not_allowed_are_grey(data):
    """Each threshold in sight lies on grey ground exactly where its decisions break the constraint."""
    scores, target = data
    ax = sl.plots.plot_tuning(sl.tune_threshold(scores, target, "recall", "precision >= 0.5"))
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches]
    for threshold in np.linspace(*ax.get_xlim(), 203)[1:-1]:
        yes = scores >= threshold
        grey = any(low < threshold <= high for low, high in spans)
        assert grey == (not yes.any() or target[yes].mean() < 0.5)
    assert not sl.plots.plot_tuning(sl.tune_threshold(scores, target, "recall")).patches


def test_a_threshold_at_infinity_is_marked_at_the_edge(data):
    tuning = sl.tune_threshold(*data, "recall", subject_to="recall >= 1")
    everybody = sl.tune_threshold(data[0], data[1], "tp - fp + n*0")
    for found in (tuning, everybody, sl.tune_threshold([0.3, 0.3], [0, 1], "f1")):
        ax = sl.plots.plot_tuning(found)
        mark = curve_lines(ax)[1]
        assert ax.get_xlim()[0] <= mark.get_xdata()[0] <= ax.get_xlim()[1]
        assert mark.get_ydata()[0] == found.score


def test_multiclass_has_no_curve():
    rng = np.random.default_rng(0)
    tuning = sl.tune_threshold(rng.normal(size=(30, 3)), rng.integers(0, 3, 30), task="multiclass", inputs="logits")
    with pytest.raises(ValueError, match="no curve"):
        sl.plots.plot_tuning(tuning)


def test_a_score_of_infinity_is_a_place_like_any_other():
    scores, target = [np.inf, np.inf, 0.5], [1, 0, 0]
    assert curves.roc(scores, target).area == sl.score(scores, target, "auroc").item() == 0.75
    assert (
        curves.precision_recall(scores, target).average_precision
        == sl.score(scores, target, "average_precision").item()
    )
