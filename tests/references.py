"""What every metric should be: scikit-learn's number where it has the metric, plain numpy on the counts elsewhere.

A reference takes decided labels and scikit-learn's arguments: `reference(y_true, y_pred, sample_weight=…, labels=…,
average=…, **options)`. Vectors are a binary task (`average="binary"`) or a multiclass one, matrices a multilabel one.
To add a metric, add one line to `REFERENCES`.
"""

from functools import partial
from statistics import harmonic_mean

import numpy as np
from sklearn import metrics as sk


def per_class(score):
    """`score` of yes/no problems, for each class against the rest (`samples`: for each row), averaged."""

    def reference(y_true, y_pred, *, sample_weight=None, labels=None, average="binary", **options):
        weight = np.ones(len(y_true)) if sample_weight is None else sample_weight
        if average == "binary":
            return score(y_true, y_pred, sample_weight=weight, **options)
        if y_true.ndim == 1:
            y_true, y_pred = ((y[:, None] == np.asarray(labels)).astype(int) for y in (y_true, y_pred))
        if average == "micro":
            return score(y_true.ravel(), y_pred.ravel(), sample_weight=weight.repeat(len(labels)), **options)
        if average == "samples":
            rows = [score(y_true[i], y_pred[i], sample_weight=None, **options) for i in weight.nonzero()[0]]
            return mean(np.array(rows), weight[weight > 0])
        columns = zip(y_true.T, y_pred.T, strict=True)
        scores = np.array([score(t, p, sample_weight=weight, **options) for t, p in columns])
        return scores if average is None else mean(scores, weight @ y_true if average == "weighted" else None)

    return reference


def joint(score, *, needs_labels=False):
    """`score` of all classes at once; of a multilabel task each label, or row, is a problem of two classes."""

    def reference(y_true, y_pred, *, sample_weight=None, labels=None, average=None, **options):
        if y_true.ndim == 1:
            return of(labels)(y_true, y_pred, sample_weight=sample_weight, **options)
        two = per_class(of([0, 1]))
        return two(y_true, y_pred, sample_weight=sample_weight, labels=labels, average=average, **options)

    def of(labels):
        return partial(score, labels=labels) if needs_labels else score

    return reference


def cells(formula):
    """`formula(tp, fp, fn, tn, **options)` of each class, averaged."""

    def score(y_true, y_pred, sample_weight, **options):
        (tn, fp), (fn, tp) = sk.confusion_matrix(y_true, y_pred, labels=[0, 1], sample_weight=sample_weight).tolist()
        return formula(tp, fp, fn, tn, **options)

    return per_class(score)


def matrix(formula):
    """`formula(confusion_matrix, **options)` of all classes."""

    def score(y_true, y_pred, sample_weight, labels, **options):
        return formula(sk.confusion_matrix(y_true, y_pred, labels=labels, sample_weight=sample_weight), **options)

    return joint(score, needs_labels=True)


def over(a, b, zero_division=0.0):
    """The quotient a / b, and `zero_division` where b is 0."""
    return a / b if b else zero_division


def mean(scores, weight=None):
    """The mean of the scores that are defined; like scikit-learn, without the weights where they are all 0."""
    known = ~np.isnan(scores)
    if not known.any():
        return np.nan
    weight = None if weight is None or not weight[known].any() else weight[known]
    return np.average(scores[known], weights=weight)


def zero_if_undefined(score):
    """scikit-learn's `score`, and 0 where it gives NaN or infinity."""
    return lambda *y, **options: float(np.nan_to_num(score(*y, **options), nan=0.0, posinf=0.0, neginf=0.0))


def other_label(score):
    """The yes/no `score` with "no" as the positive label."""
    return lambda t, p, **options: score(1 - t, 1 - p, **options)


def jaccard_score(*y, zero_division, **options):
    """scikit-learn's, which refuses NaN: a division by zero shows in that 0 and 1 give different scores."""
    if not np.isnan(zero_division):
        return sk.jaccard_score(*y, zero_division=zero_division, **options)
    low, high = (sk.jaccard_score(*y, zero_division=value, **options) for value in (0.0, 1.0))
    return low if low == high else np.nan


def tversky(tp, fp, fn, tn, *, alpha=0.5, beta=0.5, zero_division=0.0):
    return over(tp, tp + alpha * fp + beta * fn, zero_division)


def gilbert(tp, fp, fn, tn):
    # both sides of the fraction times n: exact, so that 0/0 is seen to be 0/0
    return over(tp * tn - fp * fn, tp * tn - fp * fn + (fp + fn) * (tp + fp + fn + tn))


def p4(tp, fp, fn, tn):
    return harmonic_mean([over(tp, tp + fp), over(tp, tp + fn), over(tn, tn + fp), over(tn, tn + fn)])


def net_benefit(tp, fp, fn, tn, *, threshold_probability=0.5):
    return (tp - fp / (1 / threshold_probability - 1)) / (tp + fp + fn + tn)


def g_mean(*y, **options):
    recalls = sk.recall_score(*y, average=None, zero_division=0, **options)
    return recalls.prod() ** (1 / len(recalls))


def heidke(m):
    n, by_chance = m.sum(), m.sum(0) @ m.sum(1)  # accuracy and chance times n²: exact, as above
    return over(n * m.trace() - by_chance, n * n - by_chance)


def cost(m, costs=None):
    return np.average(1 - np.eye(len(m)) if costs is None else costs, weights=m)


REFERENCES = {
    "precision": sk.precision_score,
    "recall": sk.recall_score,
    "specificity": per_class(other_label(sk.recall_score)),
    "npv": per_class(other_label(sk.precision_score)),
    "fpr": cells(lambda tp, fp, fn, tn, zero_division: over(fp, fp + tn, zero_division)),
    "fnr": cells(lambda tp, fp, fn, tn, zero_division: over(fn, fn + tp, zero_division)),
    "fdr": cells(lambda tp, fp, fn, tn, zero_division: over(fp, fp + tp, zero_division)),
    "false_omission_rate": cells(lambda tp, fp, fn, tn, zero_division: over(fn, fn + tn, zero_division)),
    "f1": sk.f1_score,
    "f_beta": partial(sk.fbeta_score, beta=1.0),
    "jaccard": per_class(jaccard_score),
    "tversky": cells(tversky),
    "markedness": cells(lambda tp, fp, fn, tn: over(tp, tp + fp) + over(tn, tn + fn) - 1),
    "fowlkes_mallows": cells(lambda tp, fp, fn, tn: (over(tp, tp + fp) * over(tp, tp + fn)) ** 0.5),
    "gilbert": cells(gilbert),
    "p4": cells(p4),
    "net_benefit": cells(net_benefit),
    "accuracy": joint(sk.accuracy_score),
    "error_rate": joint(sk.zero_one_loss),
    "balanced_accuracy": joint(sk.balanced_accuracy_score),
    "informedness": joint(zero_if_undefined(partial(sk.balanced_accuracy_score, adjusted=True))),
    "g_mean": joint(g_mean, needs_labels=True),
    "mcc": joint(sk.matthews_corrcoef),
    "cohen_kappa": joint(zero_if_undefined(sk.cohen_kappa_score)),
    "weighted_kappa": joint(zero_if_undefined(partial(sk.cohen_kappa_score, weights="quadratic")), needs_labels=True),
    "heidke": matrix(heidke),
    "cost": matrix(cost),
}
