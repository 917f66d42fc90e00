"""Each preset equals its paper's formula, written out here again, sample by sample, in numpy."""

import math

import numpy as np
import pytest
import torch

import stepless as sl
from stepless import presets

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=60) * 2
TARGET = (RNG.random(60) < 0.3).astype(float)
LABEL_LOGITS, LABELS = RNG.normal(size=(30, 4)) * 2, (RNG.random((30, 4)) < 0.4).astype(float)
CLASS_LOGITS, CLASSES = RNG.normal(size=(40, 5)) * 2, RNG.integers(0, 5, 40)

# The metrics, from the papers: AnyLoss Table 2 and Bridging the Gap, Section 4.
FORMULAS = {
    "accuracy": lambda tp, fp, fn, tn: (tp + tn) / (tp + fp + fn + tn),
    "f1": lambda tp, fp, fn, tn: 2 * tp / (2 * tp + fp + fn),
    "g_mean": lambda tp, fp, fn, tn: math.sqrt(tp / (tp + fn) * tn / (tn + fp)),
    "balanced_accuracy": lambda tp, fp, fn, tn: (tp / (tp + fn) + tn / (tn + fp)) / 2,
    "mcc": lambda tp, fp, fn, tn: (
        (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    ),
}  # fmt: skip


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def soft_score(metric, decision, target):
    """The metric of the soft counts: tp sums the decisions of the positives, fn what they lack of 1, and so on."""
    positive, negative = decision[target == 1], decision[target == 0]
    return FORMULAS[metric](positive.sum(), negative.sum(), (1 - positive).sum(), (1 - negative).sum())


def value(loss_fn, scores, target):
    """The preset's loss, in float64."""
    return loss_fn(torch.from_numpy(scores), torch.from_numpy(target)).item()


# ---------------------------------------------------------------------------------------------------------------------
# AnyLoss
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amplification", [73.0, 10.0])
@pytest.mark.parametrize("metric", ["accuracy", "f1", "g_mean", "balanced_accuracy"])
def test_anyloss(metric, amplification):
    decision = sigmoid(amplification * (sigmoid(LOGITS) - 0.5))
    expected = 1 - soft_score(metric, decision, TARGET)
    assert value(presets.anyloss(metric, amplification=amplification), LOGITS, TARGET) == pytest.approx(expected, 1e-9)


def test_anyloss_amplifies_by_73_unless_told():
    assert value(presets.anyloss(), LOGITS, TARGET) == value(presets.anyloss(amplification=73), LOGITS, TARGET)


def test_anyloss_f_beta():
    decision = sigmoid(73 * (sigmoid(LOGITS) - 0.5))
    tp, fp, fn = (decision * TARGET).sum(), (decision * (1 - TARGET)).sum(), ((1 - decision) * TARGET).sum()
    expected = 1 - 5 * tp / (5 * tp + 4 * fn + fp)
    assert value(presets.anyloss("f_beta", beta=2), LOGITS, TARGET) == pytest.approx(expected, 1e-9)


# Table 1 of AnyLoss: accuracy level t, and the least and greatest amplification L that are valid for it.
VALID_RANGES = {
    0.1: (5.50, 91.84), 0.01: (9.38, 74.97), 0.001: (13.85, 73.62), 1e-14: (64.48, 73.47), 1e-15: (69.08, 73.47),
    1e-16: (73.69, 73.47),
}  # fmt: skip


def least_amplification(t):
    """From A(t) ≤ t: 1 + exp(L(½ − t)) ≥ 1/t. The table has two digits, so the bound is rounded up to be valid."""
    return math.ceil(100 * math.log((1 - t) / t) / (0.5 - t)) / 100


def greatest_amplification(t):
    """The last L, in steps of 0.01, at which neither A(t) nor A(1 − t) is exactly 0 or 1 in float64."""
    amplification = np.arange(1, 20_000)[:, None] / 100
    approximation = sigmoid(amplification * (np.array([t, 1 - t]) - 0.5))
    valid = ((approximation > 0) & (approximation < 1)).all(1)
    return amplification[valid].max()


@pytest.mark.parametrize("t", VALID_RANGES)
def test_valid_amplifications(t):
    assert (least_amplification(t), greatest_amplification(t)) == VALID_RANGES[t]


def test_no_amplification_is_valid_at_the_last_level():
    assert least_amplification(1e-16) > greatest_amplification(1e-16)
    assert least_amplification(1e-15) <= 73 <= greatest_amplification(1e-15), "the paper's 73 is valid at 1e-15"


@pytest.mark.parametrize("t", [t for t, (least, greatest) in VALID_RANGES.items() if least <= greatest])
def test_our_step_keeps_the_valid_range(t):
    ends = torch.tensor([t, 1 - t], dtype=torch.float64)
    least, greatest = VALID_RANGES[t]
    low, high = sl.Sigmoid(k=least)(ends, 0.5)
    assert low <= ends[0]
    assert high >= ends[1]
    decision = sl.Sigmoid(k=greatest)(ends, 0.5)
    assert ((decision > 0) & (decision < 1)).all()
    assert sl.Sigmoid(k=greatest + 0.01)(ends, 0.5)[1] == 1
    assert sl.Sigmoid(k=least - 0.01)(ends, 0.5)[0] > t


# ---------------------------------------------------------------------------------------------------------------------
# Soft sets
# ---------------------------------------------------------------------------------------------------------------------

TAUS = np.arange(1, 10) / 10


def linear_heaviside(p, tau, delta=0.2):
    """Through the five points of the paper's Eq. 5."""
    m = min(tau, 1 - tau)
    return np.interp(p, [0, tau - m / 2, tau, tau + m / 2, 1], [0, delta, 0.5, 1 - delta, 1])


def sigmoid_heaviside(p, tau):
    return sigmoid(10 * (p - tau))


HEAVISIDES = {"linear": linear_heaviside, "sigmoid": sigmoid_heaviside}


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc"])
@pytest.mark.parametrize("step", HEAVISIDES)
def test_soft_sets(step, metric):
    p = sigmoid(LOGITS)
    scores = [soft_score(metric, HEAVISIDES[step](p, tau), TARGET) for tau in TAUS]
    assert value(presets.soft_sets(metric, step=step), LOGITS, TARGET) == pytest.approx(1 - np.mean(scores), 1e-9)


def test_soft_sets_are_linear_unless_told():
    assert value(presets.soft_sets("f1"), LOGITS, TARGET) == value(presets.soft_sets(step="linear"), LOGITS, TARGET)


def test_soft_sets_report_the_mean_over_the_same_thresholds():
    scores = [soft_score("f1", (sigmoid(LOGITS) >= tau).astype(float), TARGET) for tau in TAUS]
    reported = presets.soft_sets("f1").score(torch.from_numpy(LOGITS), torch.from_numpy(TARGET))
    assert reported.item() == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("labels", [4, 9])  # nine thresholds are not one for each of nine labels
def test_soft_sets_of_labels_average_over_labels_and_thresholds(labels):
    logits, target = np.resize(LABEL_LOGITS, (30, labels)), np.resize(LABELS, (30, labels))
    p = sigmoid(logits)
    scores = [soft_score("f1", linear_heaviside(p[:, k], tau), target[:, k]) for tau in TAUS for k in range(labels)]
    loss_fn = presets.soft_sets("f1", task="multilabel")
    assert value(loss_fn, logits, target) == pytest.approx(1 - np.mean(scores), 1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Score-oriented losses and sigmoidF1
# ---------------------------------------------------------------------------------------------------------------------


def raised_cosine(p, delta, mu=0.5):
    """The CDF of a threshold with density (1 + cos(π(x − μ)/δ)) / 2δ on [μ − δ, μ + δ]."""
    inside = (1 + (p - mu) / delta + np.sin(np.pi * (p - mu) / delta) / np.pi) / 2
    return np.where(p < mu - delta, 0.0, np.where(p > mu + delta, 1.0, inside))


@pytest.mark.parametrize("metric", FORMULAS)
@pytest.mark.parametrize("delta", [0.1, 0.4])
def test_score_oriented_raised_cosine(metric, delta):
    expected = 1 - soft_score(metric, raised_cosine(sigmoid(LOGITS), delta), TARGET)
    assert value(presets.score_oriented(metric, delta=delta), LOGITS, TARGET) == pytest.approx(expected, 1e-9)


def test_score_oriented_band_is_a_tenth_unless_told():
    expected = 1 - soft_score("f1", raised_cosine(sigmoid(LOGITS), 0.1), TARGET)
    assert value(presets.score_oriented(), LOGITS, TARGET) == pytest.approx(expected, 1e-9)


@pytest.mark.parametrize("metric", FORMULAS)
def test_score_oriented_uniform(metric):
    expected = 1 - soft_score(metric, sigmoid(LOGITS), TARGET)
    assert value(presets.score_oriented(metric, prior="uniform"), LOGITS, TARGET) == pytest.approx(expected, 1e-9)


@pytest.mark.parametrize(("sharpness", "offset"), [(1.0, 0.0), (10.0, 0.0), (3.0, 1.5), (0.5, -2.0)])
def test_sigmoid_f1(sharpness, offset):
    decision = sigmoid(sharpness * (LABEL_LOGITS - offset))
    scores = [soft_score("f1", decision[:, label], LABELS[:, label]) for label in range(LABELS.shape[1])]
    loss_fn = presets.sigmoid_f1(sharpness=sharpness, offset=offset)
    assert value(loss_fn, LABEL_LOGITS, LABELS) == pytest.approx(1 - np.mean(scores), 1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# EAST, as we build it from its abstract
# ---------------------------------------------------------------------------------------------------------------------


def east_matrix(logits, classes):
    """Row a: how the samples of class a are shared out, each by its own threshold between its two likeliest classes."""
    matrix = np.zeros((logits.shape[1],) * 2)
    for row, label in zip(logits, classes, strict=True):
        p = np.exp(row) / np.exp(row).sum()
        second, first = np.sort(p)[-2:]
        share = linear_heaviside(p, (first + second) / 2, delta=0.1)
        matrix[label] += share / share.sum()
    return matrix


def east_score(metric, matrix, beta=1.0):
    """Macro F_β, accuracy, or the K-class correlation as the ratio of covariances of truth and decision."""
    true, decided, right, n = matrix.sum(1), matrix.sum(0), np.diag(matrix), matrix.sum()
    if metric == "accuracy":
        return right.sum() / n
    if metric == "mcc":
        covariance = right.sum() * n - true @ decided
        return covariance / math.sqrt((n**2 - decided @ decided) * (n**2 - true @ true))
    fp, fn = decided - right, true - right
    return np.mean((1 + beta**2) * right / ((1 + beta**2) * right + beta**2 * fn + fp))


def cross_entropy(logits, classes):
    return np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, classes, strict=True)])


@pytest.mark.parametrize(("metric", "options"), [("f1", {}), ("f_beta", {"beta": 2.0}), ("accuracy", {}), ("mcc", {})])
@pytest.mark.parametrize("until", [1.0, 0.5])
def test_east(metric, options, until):
    score = east_score(metric, east_matrix(CLASS_LOGITS, CLASSES), **options)
    loss_fn = presets.east(metric, anneal_until=until, **options)
    for progress in (0.0, 0.3, 0.5, 0.8, 1.0):
        loss_fn.advance(progress)
        share = max(0.0, 1 - progress / until)
        expected = share * cross_entropy(CLASS_LOGITS, CLASSES) + (1 - share) * (1 - score)
        # progress is kept in float32, and so is the share
        assert value(loss_fn, CLASS_LOGITS, CLASSES) == pytest.approx(expected, 1e-6)


def test_east_starts_at_cross_entropy_and_ends_at_the_metric():
    loss_fn = presets.east("f1")
    assert value(loss_fn, CLASS_LOGITS, CLASSES) == pytest.approx(cross_entropy(CLASS_LOGITS, CLASSES), 1e-9)
    loss_fn.advance(1.0)
    score = east_score("f1", east_matrix(CLASS_LOGITS, CLASSES))
    assert value(loss_fn, CLASS_LOGITS, CLASSES) == pytest.approx(1 - score, 1e-9)


def test_east_evaluates_the_argmax():
    hard = np.zeros((5, 5))
    np.add.at(hard, (CLASSES, CLASS_LOGITS.argmax(1)), 1)
    score = presets.east("f1").score(torch.from_numpy(CLASS_LOGITS), torch.from_numpy(CLASSES))
    assert score.item() == pytest.approx(east_score("f1", hard))


def test_presets_hand_settings_on():
    loss_fn = presets.anyloss("f1", task="multilabel", average="micro", inputs="probabilities")
    p = sigmoid(LABEL_LOGITS)
    expected = 1 - soft_score("f1", sigmoid(73 * (p - 0.5)), LABELS)
    assert value(loss_fn, p, LABELS) == pytest.approx(expected, 1e-9)
