"""Bad input is refused in a sentence that says what we need, what we got and what to do; and nothing changes by it."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch

import stepless as sl
from stepless import MetricLoss, Schedule

NAN, INF = math.nan, math.inf
EITHER = (TypeError, ValueError)

LOGITS, TARGET = torch.tensor([1.0, -1.0, 0.5, -0.5]), torch.tensor([1, 0, 0, 1])
CLASS_LOGITS, CLASSES = torch.arange(12.0).view(4, 3).sin(), torch.tensor([0, 1, 2, 0])
LABELS = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]])

multiclass, multilabel = {"task": "multiclass"}, {"task": "multilabel"}
probabilities = {"inputs": "probabilities"}


def formula(function):
    return lambda: MetricLoss(function)


def stopped(tp, fp, fn, tn):
    raise TypeError("no more.")


def build(*args, **settings):
    return lambda: MetricLoss(*args, **settings)


# What is wrong before the first batch: (what is done, the error, what its sentence says).
def own_f1(tp, fp, fn, tn):
    return sl.ratio(2 * tp, 2 * tp + fp + fn)


class OwnLoss(MetricLoss):
    pass


def registered(function, kind="class"):
    """Register a function and make a loss of it."""

    def act():
        function.__name__ = "wrong"
        sl.metric(best=1.0, kind=kind)(function)
        MetricLoss("wrong", task="multiclass")

    return act


SETTINGS = {
    # metric
    "metric misspelt": (build("precison"), ValueError, "unknown metric 'precison'; did you mean 'precision'"),
    "metric in capitals": (build("F1"), ValueError, "unknown metric 'F1'; did you mean 'f1'"),
    "metric unlike any": (build("zzzzqq"), ValueError, "unknown metric 'zzzzqq'; known are .*recall.*mcc"),
    "metric a number": (build(3), TypeError, "metric must be a name .*formula.*function of .tp, fp, fn, tn.*got int"),
    "metric as a title": (build("Balanced Accuracy"), ValueError, "did you mean 'balanced_accuracy'"),
    "metric with a hyphen": (build("f1-score"), ValueError, "unknown metric 'f1-score'; did you mean 'f1'"),
    "ranking in capitals": (build("AUROC"), ValueError, "unknown metric 'AUROC'; did you mean 'auroc'"),
    "ranking with a hyphen": (build("average-precision"), ValueError, "did you mean 'average_precision'"),
    "registered as a ranking": (lambda: sl.metric(best=1.0, aliases=("auc",))(own_f1), ValueError, "'auc' is"),
    "an alias that is a text": (lambda: sl.metric(best=1.0, aliases="zq")(own_f1), TypeError, "aliases must be a seq"),
    "mixed entries": (
        build(lambda tp, fp, fn, tn: torch.cumsum(tp, -1)), ValueError, "must treat each entry of .* by itself",
    ),
    "a metric of all classes in a function": (
        formula(lambda tp, fp, fn, tn: sl.METRICS["mcc"](tp, fp, fn, tn) / 2), ValueError,
        "mcc reads the counts of all classes, and a formula has those of one",
    ),
    "a ranking of one's own class": (
        lambda: OwnLoss("auroc"), TypeError, "trains on metrics of counts, and 'auroc' ranks samples; call",
    ),
    "costs as a number": (build("cost", costs=5), ValueError, "costs must be K×K for K classes"),
    "costs as text": (build("cost", costs=[["a", "b"], ["c", "d"]]), ValueError, "costs must be finite"),
    "gradients misspelt": (build("f1", sync=False, gradients="men"), ValueError, 'gradients must be "mean"'),
    "gradients of nothing": (build("f1", sync=False, gradients="sum"), ValueError, "no effect with sync=False"),
    "schedule of text": (lambda: Schedule(blend=("a", "b")), ValueError, "blend is a pair of numbers"),
    "sharpness as text": (lambda: sl.presets.sigmoid_f1(sharpness="a"), ValueError, "sharpness must lie above 0"),
    "delta of a uniform prior": (
        lambda: sl.presets.score_oriented(prior="uniform", delta=0.3), ValueError, "delta has no effect with prior",
    ),
    "k too large": (lambda: sl.Sigmoid(k=1e300), ValueError, "Sigmoid's k must lie between 1e-30 and 1e\\+30"),
    "registry lookup": (lambda: sl.METRICS["precison"], KeyError, "unknown metric 'precison'; did you mean"),
    "option of another metric": (build("f1", beta=2), TypeError, "'f1' has no option 'beta'; it has 'zero_division'"),
    "option of none": (build("mcc", beta=2), TypeError, "'mcc' has no option 'beta'; it has none"),
    "option of a formula": (build("tp + fp", beta=2), TypeError, "a formula has no options; got 'beta'"),
    "setting misspelt": (build("f1", treshold=0.4), TypeError, "'treshold'.*did you mean.*'threshold'"),
    "beta negative": (build("f_beta", beta=-1), ValueError, "beta must .*got -1"),
    "beta NaN": (build("f_beta", beta=NAN), ValueError, "beta must .*got nan"),
    "beta as text": (build("f_beta", beta="2"), EITHER, "beta must .*got '2'"),
    "alpha negative": (build("tversky", alpha=-1), ValueError, "alpha must .*got -1"),
    "zero_division as in scikit-learn": (build("f1", zero_division="warn"), EITHER, "zero_division must .*got 'warn'"),
    "weights unknown": (build("weighted_kappa", weights="cubic"), ValueError, '"linear" or "quadratic"; got \'cubic\''),
    "threshold_probability of 1": (build("net_benefit", threshold_probability=1.0), ValueError, "between 0 and 1; got"),
    "maximize as text": (build("5*fn + fp", maximize="no"), TypeError, "maximize must be True or False; got 'no'"),
    "cost NaN": (build("cost", costs=[[0.0, NAN], [1.0, 0.0]]), ValueError, "costs must be finite; got"),
    "until as text": (lambda: Schedule(until="1"), ValueError, r"until must lie in \(0, 1\]; got '1'"),
    "a setting that scores have not": (
        lambda: sl.score(LOGITS, TARGET, "f1", overlap="min"), TypeError, "a setting of MetricLoss that has no effect",
    ),
    "offset beyond a probability": (lambda: sl.presets.sigmoid_f1(offset=-1000), ValueError, "between -36 and 36; got"),
    "thresholds of soft sets": (lambda: sl.presets.soft_sets(threshold=[0.5]), ValueError, "thresholds of their own"),
    "thresholds of soft sets' area": (
        lambda: sl.presets.soft_sets("auroc", thresholds=(0.5,)), ValueError, "thresholds of their own",
    ),
    "maximize a maximised metric": (build("f1", maximize=False), ValueError, "'f1' is always maximised; maximize= is"),
    "maximize a minimised metric": (build("fpr", maximize=True), ValueError, "'fpr' is always minimised; maximize= is"),
    # task, inputs, average, weight
    "task": (build("f1", task="multi"), ValueError, "task must be one of 'binary'.*'multilabel'; got 'multi'"),
    "inputs": (build("f1", inputs="probs"), ValueError, '"logits".*or "probabilities".*; got \'probs\''),
    "average": (build("f1", **multiclass, average="mean"), ValueError, "average must be one of 'macro'.*; got 'mean'"),
    "average of one class": (build("f1", average="macro"), ValueError, "no effect on a binary task.*leave it out"),
    "average of a joint metric": (build("mcc", **multiclass, average="macro"), ValueError, "at once: .*leave"),
    "average of a matrix": (build("cost", **multiclass, average="macro"), ValueError, "all classes at once.*leave"),
    "samples of one label": (build("f1", **multiclass, average="samples"), ValueError, 'it needs task="multilabel"'),
    "samples of images": (build("f1", **multilabel, average="samples", per_image=True), ValueError, "no per_image"),
    "no average in a loss": (build("f1", **multiclass, average="none"), ValueError, "loss is one number; use .*score"),
    "weight of a binary task": (build("f1", weight=[1, 2]), ValueError, "for binary use sample_weight"),
    "weight negative": (build("f1", **multiclass, weight=[1, -1]), ValueError, r"not negative; got \[1, -1\]"),
    "weight NaN": (build("f1", **multiclass, weight=[1, NAN]), ValueError, "finite numbers .*nan"),
    "weight nested": (build("f1", **multiclass, weight=[[1, 2]]), ValueError, r"flat sequence .*got \[\[1, 2\]\]"),
    "weight by name": (build("f1", **multiclass, weight="balanced"), ValueError, "flat sequence .*got 'balanced'"),
    "weight without a macro mean": (build("f1", **multilabel, average="micro", weight=[1, 2]), ValueError, "macro"),
    "weight beside supports": (build("f1", **multilabel, average="weighted", weight=[1, 2]), ValueError, "macro"),
    "weight of samples": (build("f1", **multilabel, average="samples", weight=[1, 2]), ValueError, "macro"),
    "ignore_index a fraction": (build("f1", ignore_index=1.5), EITHER, "ignore_index must be an integer; got 1.5"),
    "ignore_index as text": (build("f1", ignore_index="x"), EITHER, "ignore_index must be an integer; got 'x'"),
    "overlap": (build("f1", overlap="max"), ValueError, "overlap must be \"expected\" or \"min\"; got 'max'"),
    "overlap of a matrix": (build("cost", **multiclass, overlap="min"), ValueError, "'cost' reads .* not defined"),
    "overlap of a held matrix": (
        build("f1", **multiclass, overlap="min", subject_to="weighted_kappa >= 0"), ValueError,
        "'weighted_kappa' reads .* not defined",
    ),
    # threshold
    "threshold in multiclass": (build("f1", **multiclass, threshold=0.5), ValueError, "0.5 has no meaning; .*offset"),
    "threshold by name": (build("f1", **multiclass, threshold="auto"), ValueError, "'auto' has no meaning; .*offset"),
    "offset NaN": (build("f1", **multiclass, threshold=[0.0, NAN]), ValueError, "offset.*nan"),
    "threshold 0": (build("f1", threshold=0), ValueError, "strictly between 0 and 1; got 0"),
    "threshold 1": (build("f1", threshold=1.0), ValueError, "strictly between 0 and 1; got 1"),
    "threshold NaN": (build("f1", threshold=NAN), ValueError, "strictly between 0 and 1; got nan"),
    "threshold as text": (build("f1", threshold="0.5"), ValueError, "strictly between 0 and 1; got '0.5'"),
    "one threshold of two": (build("f1", threshold=[0.5, 1.5]), ValueError, r"between 0 and 1; got \(0.5, 1.5\)"),
    "no thresholds": (build("f1", threshold=[]), ValueError, r"threshold.*got \(\)"),
    "binary thresholds nested": (build("f1", threshold=[[0.5]]), ValueError, "a number, or a flat sequence"),
    "threshold rows ragged": (build("f1", **multilabel, threshold=[[0.5, 0.2], [0.1]]), ValueError, "threshold"),
    "thresholds half nested": (build("f1", **multilabel, threshold=[[0.5, 0.2], 0.1]), ValueError, "threshold"),
    "thresholds too deep": (build("f1", **multilabel, threshold=[[[0.5]]]), ValueError, "threshold"),
    # step
    "step misspelt": (build("f1", step="lnear"), ValueError, "unknown step 'lnear'; did you mean 'linear'"),
    "step a number": (build("f1", step=3), TypeError, r"such as Linear\(delta=0.1\), or its name; got 3"),
    "step a class": (build("f1", step=sl.Linear), TypeError, r"such as Linear\(delta=0.1\), or its name; got <class"),
    "hard step": (build("f1", step=sl.Hard()), ValueError, "no gradient.*use stepless.score"),
    "hard step by name": (build("f1", step="hard"), ValueError, "no gradient.*use stepless.score"),
    "k 0": (lambda: sl.Sigmoid(k=0), ValueError, "Sigmoid's k must lie above 0.*got 0"),
    "k as text": (lambda: sl.Sigmoid(k="10"), TypeError, "Sigmoid's k must be a number; got '10'"),
    "k infinite": (lambda: sl.Sigmoid(k=INF), ValueError, "Sigmoid's k must .*finite.*got inf"),
    "delta above ½": (lambda: sl.Linear(delta=0.6), ValueError, r"Linear's delta must lie in \[0, 0.5\]; got 0.6"),
    "delta negative": (lambda: sl.Linear(delta=-0.1), ValueError, r"Linear's delta must lie in \[0, 0.5\]; got -0.1"),
    "width 0": (lambda: sl.Linear(width=0), ValueError, r"Linear's width must lie in \(0, 1\]; got 0"),
    "width 2": (lambda: sl.Linear(width=2), ValueError, r"Linear's width must lie in \(0, 1\]; got 2"),
    "raised cosine of width 0": (lambda: sl.RaisedCosine(delta=0), ValueError, "RaisedCosine's delta must .*got 0"),
    "temperature 0": (lambda: sl.LogitSigmoid(temperature=0), ValueError, "temperature must lie above 0.*got 0"),
    # blend and schedule
    "blend above 1": (build("f1", blend=1.5), ValueError, r"blend is the share of cross-entropy.*\[0, 1\]; got 1.5"),
    "blend negative": (build("f1", blend=-0.1), ValueError, r"blend is the share of cross-entropy.*got -0.1"),
    "blend NaN": (build("f1", blend=NAN), ValueError, r"blend is the share of cross-entropy.*got nan"),
    "blend as text": (build("f1", blend="half"), EITHER, "blend is the share of cross-entropy.*got 'half'"),
    "cross_entropy without blend": (build("f1", cross_entropy="balanced"), ValueError, "no effect without a blend"),
    "cross_entropy unknown": (build("f1", cross_entropy="focal", blend=0.5), ValueError, "balanced\"; got 'focal'"),
    "two blends": (build("f1", blend=0.5, schedule=Schedule()), ValueError, "give one of them"),
    "schedule by name": (build("f1", schedule="linear"), TypeError, "schedule must be a .*Schedule.*got 'linear'"),
    "schedule of nothing": (lambda: Schedule(blend=None), ValueError, "blend, sharpness or both; got neither"),
    "schedule blend above 1": (lambda: Schedule(blend=(2.0, 0.0)), ValueError, r"within \[0, 1\]; got \(2.0, 0.0\)"),
    "schedule blend a number": (lambda: Schedule(blend=0.5), EITHER, "blend .*first and .*last.*got 0.5"),
    "schedule blend of three": (lambda: Schedule(blend=(1.0, 0.5, 0.0)), ValueError, "blend .*first and .*last"),
    "schedule too blunt": (lambda: Schedule(sharpness=(0.5, 2.0)), ValueError, r"not go below 1.*got \(0.5, 2.0\)"),
    "schedule infinitely sharp": (lambda: Schedule(sharpness=(1.0, INF)), ValueError, "sharpness must .*inf"),
    "schedule sharpness a number": (lambda: Schedule(sharpness=4.0), EITHER, "sharpness .*first and .*last.*got 4"),
    "schedule until 0": (lambda: Schedule(until=0.0), ValueError, r"until must lie in \(0, 1\]; got 0"),
    "schedule until 2": (lambda: Schedule(until=2.0), ValueError, r"until must lie in \(0, 1\]; got 2"),
    "nothing to sharpen": (
        build("f1", step="identity", schedule=Schedule(sharpness=(1, 4))), TypeError, "Identity has no sharpness",
    ),
    "schedule in a function": (
        lambda: sl.metric_loss(LOGITS, TARGET, "f1", schedule=Schedule()), TypeError, "keeps state.*use MetricLoss",
    ),
    # constraints
    "constraint with ==": (build("f1", subject_to="precision == 0.9"), ValueError, 'as in "precision >= 0.9"; got'),
    "constraint with >": (build("f1", subject_to="precision > 0.9"), ValueError, 'as in "precision >= 0.9"; got'),
    "constraint reversed": (build("f1", subject_to="0.9 <= precision"), ValueError, 'as in "precision >= 0.9"; got'),
    "constraint chained": (build("f1", subject_to="0.5 <= recall <= 0.9"), ValueError, 'as in "precision >= 0.9"; got'),
    "constraint with or": (build("f1", subject_to="recall >= 0.5 or fpr <= 0.1"), ValueError, "a constraint is .*got"),
    "constraint with a comma": (build("f1", subject_to="recall >= 0.5, fpr <= 0.1"), ValueError, "constraint is .*got"),
    "constraint without number": (build("f1", subject_to="precision >= high"), ValueError, "a number.*got 'precision"),
    "constraint of NaN": (build("f1", subject_to="precision >= nan"), ValueError, "a number.*got 'precision >= nan'"),
    "constraint in percent": (build("f1", subject_to="precision >= 90%"), ValueError, "number.*got 'precision >= 90%'"),
    "constraint cut short": (build("f1", subject_to="precision >= 0.9 and"), ValueError, "a constraint is .*got ''"),
    "constraint empty": (build("f1", subject_to=""), ValueError, "a constraint is .*got ''"),
    "constraint a number": (build("f1", subject_to=0.9), TypeError, 'text such as "precision >= 0.9"; got float'),
    "constraints numbers": (build("f1", subject_to=[0.9]), TypeError, 'text such as "precision >= 0.9"; got float'),
    "constraint misspelt": (build("f1", subject_to="precison >= 0.9"), ValueError, "did you mean 'precision'"),
    "constraint out of reach": (build("f1", subject_to="precision >= 1.1"), ValueError, "never hold: the best .* is 1"),
    "constraint always met": (build("f1", subject_to="recall >= -0.5"), ValueError, "always holds: the worst .* is 0"),
    "constraint never met": (build("f1", subject_to="recall <= -0.5"), ValueError, "never hold: the worst recall is 0"),
    "constraint as an object": (
        build("f1", subject_to=sl.Constraint(sl.METRICS["recall"], True, 1.5)), ValueError, "can never hold",
    ),
    "constraint of NaN as an object": (
        build("f1", subject_to=sl.Constraint(sl.METRICS["recall"], True, NAN)), ValueError, "must be a finite number",
    ),
    "a constraint's sign as text": (
        build("f1", subject_to=sl.Constraint("fpr", "<=", 0.1)), TypeError, r"at_least must be True .*; got '<='",
    ),
    "a constraint's bound as text": (
        build("f1", subject_to=sl.Constraint("fpr", False, "0.1")), TypeError, "must be a finite number; got '0.1'",
    ),
    "constraint of a ranking": (build("f1", subject_to="auroc >= 0.9"), ValueError, "'auroc' about the order of"),
    "constraint below reach": (build("f1", subject_to="fpr <= -0.1"), ValueError, "never hold: the best fpr is 0"),
    "constraint in a function": (
        lambda: sl.metric_loss(LOGITS, TARGET, "f1", subject_to="fpr <= 0.1"), TypeError, "keeps state.*use MetricLoss",
    ),
    # formulas that are no scalar function of the counts
    "formula constant": (formula(lambda tp, fp, fn, tn: 1.0), ValueError, "one number for each entry.*got a float"),
    "formula constant as text": (build("1 + 1"), ValueError, "one number for each entry|no gradient"),
    "formula constant tensor": (
        formula(lambda tp, fp, fn, tn: torch.ones(3)), ValueError, "no gradient with respect to the counts",
    ),
    "formula flat": (formula(lambda tp, fp, fn, tn: tp * 0), ValueError, "no gradient with respect to the counts"),
    "formula flat as text": (build("tp - tp"), ValueError, "no gradient with respect to the counts"),
    "formula rounded": (
        formula(lambda tp, fp, fn, tn: torch.round(tp)), ValueError, "no gradient with respect to the counts",
    ),
    "formula summed": (formula(lambda tp, fp, fn, tn: torch.sum(tp)), ValueError, r"got shape \(\) for shape \(3,\)"),
    "formula stacked": (
        formula(lambda tp, fp, fn, tn: torch.stack([tp, fp])), ValueError, r"got shape \(2, 3\) for shape \(3,\)",
    ),
    "formula of a tuple": (formula(lambda tp, fp, fn, tn: (tp, fp)), ValueError, "one number .*got a tuple"),
    "formula of None": (formula(lambda tp, fp, fn, tn: None), ValueError, "one number .*got a NoneType"),
    "formula detached": (formula(lambda tp, fp, fn, tn: tp.detach()), ValueError, "detach.*arithmetic on the four"),
    "formula of one item": (formula(lambda tp, fp, fn, tn: tp.item()), ValueError, "item.*arithmetic on the four"),
    "formula whose error ends in a stop": (formula(stopped), ValueError, r"TypeError: no more\. It must be arithmetic"),
    "formula with a float": (formula(lambda tp, fp, fn, tn: float(tp)), ValueError, "arithmetic on the four counts"),
    "formula that branches": (
        formula(lambda tp, fp, fn, tn: tp if tp > fp else fp), ValueError, "cannot branch on a count.*maximum",
    ),
    "formula that branches on zero": (
        formula(lambda tp, fp, fn, tn: tp if tp else fp), ValueError, "cannot branch on a count.*maximum",
    ),
    "formula with max": (formula(lambda tp, fp, fn, tn: max(tp, fp)), ValueError, "cannot branch .*maximum"),
    "formula with ==": (formula(lambda tp, fp, fn, tn: tp * (tp == fp)), ValueError, "cannot branch .*maximum"),
    "formula of three counts": (formula(lambda tp, fp, fn: tp), ValueError, r"from \(tp, fp, fn, tn\).*3 positional"),
    "formula with an unknown name": (formula(lambda tp, fp, fn, tn: tpr), ValueError, "name 'tpr' is not defined"),  # noqa: F821
    # presets and registration
    "soft sets' step": (lambda: sl.presets.soft_sets(step="cos"), ValueError, '"linear" and "sigmoid"; got \'cos\''),
    "soft sets of classes": (lambda: sl.presets.soft_sets("f1", **multiclass), ValueError, "multiclass"),
    "step of a preset": (lambda: sl.presets.anyloss(step="linear"), TypeError, "presets.anyloss sets step itself"),
    "task of a preset": (lambda: sl.presets.east(task="binary", step="sigmoid"), TypeError, "east sets step and task"),
    "prior": (lambda: sl.presets.score_oriented(prior="normal"), ValueError, "\"uniform\"; got 'normal'"),
    "sharpness 0": (lambda: sl.presets.sigmoid_f1(sharpness=0), ValueError, "sharpness must .*got 0"),
    "metric without best": (lambda: sl.metric(lambda tp, fp, fn, tn: tp), TypeError, r"@(sl\.)?metric\(best="),
    "metric of an unknown kind": (
        lambda: sl.metric(best=1.0, kind="rows")(lambda tp, fp, fn, tn: tp), ValueError,
        "kind must be one of 'class', 'joint', 'matrix'; got 'rows'",
    ),
    "a best score as text": (lambda: sl.metric(best="1")(own_f1), ValueError, "best must be a finite number; got '1'"),
    "a worst score without end": (
        lambda: sl.metric(best=1.0, worst=-math.inf)(own_f1), ValueError, "worst must be a finite number; got -inf",
    ),
    "a direction as text": (
        lambda: sl.metric(best=0.0, greater_is_better="no")(own_f1), TypeError, "must be True or False; got 'no'",
    ),
    "a direction that is forgotten": (
        lambda: sl.metric(best=0.0, worst=1.0)(own_f1), ValueError,
        "best=0.0 and worst=1.0 contradict greater_is_better=True; pass greater_is_better=False",
    ),
    "a metric without a name": (lambda: sl.metric(best=1.0)(partial(own_f1)), TypeError, "with a name of its own"),
    "one number for all entries": (
        registered(lambda tp, fp, fn, tn: tp.sum() / (tp + fn).sum()), ValueError,
        r"must give one number for each entry of \(tp, fp, fn, tn\); got shape \(\) for shape \(2, 2\)",
    ),
    "a number of Python's": (registered(lambda tp, fp, fn, tn: 1.0), ValueError, "each entry .*; got a float"),
    "one number a class of all": (
        registered(lambda tp, fp, fn, tn: sl.ratio(tp, tp + fn), kind="joint"), ValueError,
        r"one number for each row .*, whose last axis holds the classes; got shape \(2, 2\)",
    ),
    "one number a row of a matrix": (
        registered(lambda matrix: matrix.sum(-1), kind="matrix"), ValueError, r"each matrix.*; got shape \(2,\)",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _metrics_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(sl.METRICS, "_things", dict(sl.METRICS._things))


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case):
    act, error, sentence = SETTINGS[case]
    with pytest.raises(error, match=sentence):
        act()


# What is wrong in a batch whatever its values: (settings, input, target, sample_weight, error, sentence).
SHAPE = "must have the input's shape .*Nothing is broadcast"
INDICES = "multiclass targets must be integer class indices of shape .*or class probabilities .*got "
BATCHES = {
    "(N, 1) and (1, N)": ({}, LOGITS[:, None], TARGET[None], None, ValueError, SHAPE),
    "(N,) and (1, N)": ({}, LOGITS, TARGET[None], None, ValueError, SHAPE),
    "(1, N) and (N,)": ({}, LOGITS[None], TARGET, None, ValueError, SHAPE),
    "(N, 1) and (M,)": ({}, LOGITS[:, None], TARGET[:3], None, ValueError, SHAPE),
    "(N,) and (M,)": ({}, LOGITS, TARGET[:3], None, ValueError, SHAPE),
    "(N,) and ()": ({}, LOGITS[:1], TARGET[0], None, ValueError, SHAPE),
    "(N, 2) and (N,)": ({}, CLASS_LOGITS[:, :2], TARGET, None, ValueError, SHAPE + ".*pass task='multiclass'"),
    "(N, 1, 1) and (N,)": ({}, LOGITS[:, None, None], TARGET, None, ValueError, SHAPE),
    "labels (N, L) and (N,)": (multilabel, CLASS_LOGITS, CLASSES, None, ValueError, SHAPE),
    "labels without a dimension": (multilabel, LOGITS, TARGET, None, ValueError, "For one label use task='binary'"),
    "classes without a dimension": (multiclass, LOGITS, TARGET, None, ValueError, "one score per sample .*'binary'"),
    "one class": (multiclass, LOGITS[:, None], TARGET, None, ValueError, "with K ≥ 2 classes; got .4, 1."),
    "float indices": (multiclass, CLASS_LOGITS, CLASSES.float(), None, ValueError, INDICES + "float32 of shape .4,"),
    "bool indices": (multiclass, CLASS_LOGITS, CLASSES.bool(), None, ValueError, INDICES + "bool of shape .4,"),
    "indices (N, 1)": (multiclass, CLASS_LOGITS, CLASSES[:, None], None, ValueError, INDICES + "int64 of shape .4, 1."),
    "one-hot integers": (multiclass, CLASS_LOGITS, LABELS, None, ValueError, INDICES + r"int64.*target.argmax\(1\)"),
    "integer scores": ({}, TARGET, TARGET, None, TypeError, "floating-point scores; got int64"),
    "complex scores": ({}, LOGITS.to(torch.complex64), TARGET, None, TypeError, "scores; got complex64"),
    "complex targets": ({}, LOGITS, TARGET.to(torch.complex64), None, TypeError, "bool, integer or float; got complex"),
    "weights of other samples": ({}, LOGITS, TARGET, torch.ones(3), ValueError, r"one entry per sample, shape \(4,\)"),
    "weights (N, 1)": ({}, LOGITS, TARGET, torch.ones(4, 1), ValueError, r"shape \(4,\); got \(4, 1\)"),
    "one weight": ({}, LOGITS, TARGET, torch.tensor(1.0), ValueError, r"shape \(4,\); got \(\)"),
    "weights of classes": (multiclass, CLASS_LOGITS, CLASSES, torch.ones(4, 3), ValueError, r"shape \(4,\); got \(4,"),
    "weights of labels": (multilabel, CLASS_LOGITS, LABELS, torch.ones(4, 3), ValueError, r"shape \(4,\); got \(4, 3"),
    "complex weights": ({}, LOGITS, TARGET, LOGITS.to(torch.complex64), TypeError, "real numbers; got complex64"),
    "no label": (multilabel, torch.zeros(4, 0), torch.zeros(4, 0), None, ValueError, "must have a label at least; got"),
    "weights of labels that are not there": (
        {**multilabel, "weight": [1, 2]}, LOGITS[:, None], TARGET[:, None], None, ValueError, "1 labels; got 2",
    ),
    "weight for two of three classes": (
        {**multiclass, "weight": [1, 2]}, CLASS_LOGITS, CLASSES, None, ValueError, "each of the 3 classes; got 2",
    ),
    "weight for two of three labels": (
        {**multilabel, "weight": [1, 2]}, CLASS_LOGITS, LABELS, None, ValueError, "each of the 3 labels; got 2",
    ),
    "threshold for two of three labels": (
        {**multilabel, "threshold": [0.5, 0.2]}, CLASS_LOGITS, LABELS, None, ValueError, "threshold.*3 labels; got 2",
    ),
    "threshold for one of three labels": (
        {**multilabel, "threshold": [0.5]}, CLASS_LOGITS, LABELS, None, ValueError, "threshold.*3 labels; got 1",
    ),
    "thresholds for two of three labels": (
        {**multilabel, "threshold": [[0.5, 0.2], [0.1, 0.3]]}, CLASS_LOGITS, LABELS, None, ValueError,
        "threshold.*3 labels; got 2",
    ),
    "offsets for two of three classes": (
        {**multiclass, "threshold": [0.5, 0.2]}, CLASS_LOGITS, CLASSES, None, ValueError, "threshold.*3 classes; got 2",
    ),
    "offset for one of three classes": (
        {**multiclass, "threshold": [0.5]}, CLASS_LOGITS, CLASSES, None, ValueError, "threshold.*3 classes; got 1",
    ),
    "ignore_index of probabilities": (
        {**multiclass, "ignore_index": 1}, CLASS_LOGITS, CLASS_LOGITS.softmax(1), None, ValueError,
        "no effect on targets that are class probabilities; .*weight of 0",
    ),
}  # fmt: skip

# Class indices out of range are reported on the CPU unasked, because torch stops there in words of its own.
RANGE = r"class indices in \[0, 3\); got {}\. .*ignore_index"
INDEX = {
    "index 7": (multiclass, CLASS_LOGITS, torch.tensor([0, 1, 7, 0]), None, ValueError, RANGE.format(7)),
    "index 3": (multiclass, CLASS_LOGITS, CLASSES + 1, None, ValueError, RANGE.format(3)),
    "index -1": (multiclass, CLASS_LOGITS, CLASSES - 1, None, ValueError, RANGE.format(-1)),
    "index -100 not ignored": (
        {**multiclass, "ignore_index": 9}, CLASS_LOGITS, CLASSES - 100, None, ValueError, RANGE.format(-100),
    ),
    "index 7 with class weights": (
        {**multiclass, "weight": [1, 2, 3]}, CLASS_LOGITS, torch.tensor([0, 1, 7, 0]), None, ValueError,
        RANGE.format(7),
    ),
    "index 3 of the second image": (
        {**multiclass, "per_image": True}, torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2, 0], [0, 1, 3, 0]]), None,
        ValueError, RANGE.format(3),
    ),
}  # fmt: skip

# What is wrong in the values: reported by score always, and by forward when asked to validate.
CLASS_PROBABILITIES = CLASS_LOGITS.softmax(1)
VALUES = {
    "target 2": ({}, LOGITS, TARGET * 2, None, ValueError, "0 or 1, or probabilities.*got 2.*task='multiclass'"),
    "target -1": ({}, LOGITS, TARGET * 2 - 1, None, ValueError, r"0 or 1, or prob.*got -1.*pass \(target > 0\)"),
    "target NaN": ({}, LOGITS, TARGET * NAN, None, ValueError, "0 or 1, or probabilities between them; got nan"),
    "label 2": (multilabel, CLASS_LOGITS, LABELS * 2, None, ValueError, "0 or 1, or probabilities.*got 2"),
    "score NaN": ({}, LOGITS * torch.tensor([1, NAN, 1, 1]), TARGET, None, ValueError, "not be NaN; 1 of 4 are"),
    "class score NaN": (multiclass, CLASS_LOGITS * NAN, CLASSES, None, ValueError, "not be NaN; 12 of 12 are"),
    "class logit inf": (multiclass, CLASS_LOGITS + INF, CLASSES, None, ValueError, r"may be -inf .*but not \+inf"),
    "all class logits -inf": (multiclass, CLASS_LOGITS - INF, CLASSES, None, ValueError, "nor -inf for every class"),
    "probability 1.5": (probabilities, LOGITS * 1.5, TARGET, None, ValueError, r"in \[0, 1\]; got 1.5.*'logits'"),
    "probability -1": (probabilities, -LOGITS, TARGET, None, ValueError, r"in \[0, 1\]; got -1.*inputs='logits'"),
    "class probability 2": (
        {**multiclass, **probabilities}, CLASS_LOGITS + 2, CLASSES, None, ValueError, r"in \[0, 1\]; got 2",
    ),
    "class probabilities sum to 0.9": (
        {**multiclass, **probabilities}, CLASS_PROBABILITIES * 0.9, CLASSES, None, ValueError, "sum to 1.*off by 0.1",
    ),
    "target probabilities sum to 2": (
        multiclass, CLASS_LOGITS, torch.full((4, 3), 2 / 3), None, ValueError,
        "target.*sum to 1.*task='multilabel'",
    ),
    "target probability negative": (
        multiclass, CLASS_LOGITS, -CLASS_PROBABILITIES, None, ValueError,
        r"targets .*probabilities.*got -0\.\d+\.(?!.*'multiclass')",
    ),
    "weight negative": ({}, LOGITS, TARGET, torch.tensor([1, 1, -1, 1]), ValueError, "not negative; got -1"),
    "weight NaN": ({}, LOGITS, TARGET, torch.tensor([1, 1, NAN, 1]), ValueError, "not negative; got nan"),
    "weight inf": ({}, LOGITS, TARGET, torch.tensor([1, 1, INF, 1]), ValueError, "finite .*got inf"),
}  # fmt: skip


def stateful(settings, **more):
    """A loss that has all the state a loss can have, in the middle of training."""
    loss_fn = MetricLoss("recall", schedule=Schedule(), subject_to="precision >= 0.9", **settings, **more)
    loss_fn.advance(0.25)
    loss_fn.multipliers.fill_(2.5)
    return loss_fn


def refuse(call, loss_fn, batch, error, sentence):
    """The call is refused, and the loss is what it was."""
    before = copy.deepcopy(loss_fn.state_dict())
    with pytest.raises(error, match=sentence):
        call(*batch)
    assert before.keys() == loss_fn.state_dict().keys() == {"progress", "multipliers"}
    assert all(torch.equal(value, loss_fn.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize("case", {**BATCHES, **INDEX})
def test_batches_in_training(case):
    settings, *batch, error, sentence = {**BATCHES, **INDEX}[case]
    loss_fn = stateful(settings)
    refuse(loss_fn, loss_fn, batch, error, sentence)


@pytest.mark.parametrize("case", {**INDEX, **VALUES})
def test_values_in_training(case):
    settings, *batch, error, sentence = {**INDEX, **VALUES}[case]
    loss_fn = stateful(settings, validate=True)
    refuse(loss_fn, loss_fn, batch, error, sentence)


@pytest.mark.parametrize("case", {**BATCHES, **INDEX, **VALUES})
def test_evaluation(case):
    settings, *batch, error, sentence = {**BATCHES, **INDEX, **VALUES}[case]
    loss_fn = stateful(settings)
    refuse(loss_fn.score, loss_fn, batch, error, sentence)


@pytest.mark.parametrize("index", [3, 7, -1])
@pytest.mark.parametrize("metric", ["f1", "mcc", "weighted_kappa"])
def test_every_way_of_counting_names_the_index(metric, index):
    with pytest.raises(ValueError, match=RANGE.format(index)):
        MetricLoss(metric, task="multiclass", blend=0.5)(CLASS_LOGITS, torch.tensor([0, index, 1, 2]))


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (([0.5, 1.0], TARGET[:2]), "input must be a torch.Tensor; got list. Convert it with torch.as_tensor"),
        ((np.zeros(2), TARGET[:2]), "input must be a torch.Tensor; got ndarray. Convert it with torch.as_tensor"),
        ((LOGITS, [1, 0, 0, 1]), "target must be a torch.Tensor; got list. Convert it with torch.as_tensor"),
        ((LOGITS, TARGET, [1.0] * 4), "sample_weight must be a torch.Tensor; got list"),
    ],
)
def test_training_needs_tensors(batch, sentence):
    loss_fn = stateful({})
    refuse(loss_fn, loss_fn, batch, TypeError, sentence)


@pytest.mark.parametrize("scores", [None, ["a", "b"], [[1.0], [2.0, 3.0]]])
def test_evaluation_needs_numbers(scores):
    with pytest.raises(EITHER, match="input must "):
        sl.score(scores, [1, 0], "f1")


@pytest.mark.parametrize("read", [sl.score, sl.tune_threshold])
def test_masked_entries_are_not_counted(read):
    masked = np.ma.array([2.0, -1.0, 0.5, -3.0], mask=[0, 0, 0, 1])
    with pytest.raises(TypeError, match="must be a plain array; it has masked entries, which would be counted"):
        read(masked, [1, 1, 0, 0], "f1")
    read(np.ma.array(masked.data), [1, 1, 0, 0], "f1")  # none of these is


@pytest.mark.parametrize("kind", [">f8", ">f4", np.longdouble])
def test_numbers_of_other_machines_are_read(kind):
    scores, target = np.array([2.0, -1.0, 0.5, -3.0]).astype(kind), np.array([1, 1, 0, 0]).astype(">i4")
    assert sl.score(scores, target, "f1") == 0.5


@pytest.mark.parametrize("costs", [[0, 1], [[0, 1]], [[0, 1, 2], [1, 0, 2]], "01"])
def test_costs_must_be_square(costs):
    with pytest.raises(EITHER, match=r"costs must be (2×2|K×K|finite)"):
        MetricLoss("cost", costs=costs)(LOGITS, TARGET)


@pytest.mark.parametrize("progress", [-0.1, 1.5, NAN, "1"])
@pytest.mark.parametrize("schedule", [None, Schedule()])
def test_progress_out_of_range(schedule, progress):
    loss_fn = MetricLoss("f1", schedule=schedule)
    loss_fn.advance(0.5)
    before = loss_fn.progress.clone()
    with pytest.raises(EITHER, match=r"progress must lie in \[0, 1\], as in step / total_steps; got "):
        loss_fn.advance(progress)
    assert torch.equal(loss_fn.progress, before)


@pytest.mark.parametrize(
    ("settings", "input", "target"),
    [
        ({}, LOGITS, TARGET[:, None]),
        ({}, LOGITS[:, None], TARGET),
        ({}, LOGITS[:, None], TARGET[:, None].bool()),
        ({"ignore_index": -1}, LOGITS, torch.tensor([1, 0, -1, 1])),
        (multiclass, CLASS_LOGITS, torch.tensor([0, 1, -100, 0])),
        (multiclass, CLASS_LOGITS.masked_fill(torch.eye(4, 3).bool(), -INF), CLASSES.flip(0)),
        (multiclass, CLASS_LOGITS, CLASS_PROBABILITIES),
        ({**multiclass, **probabilities}, CLASS_PROBABILITIES.half(), CLASSES.to(torch.uint8)),
        (multilabel, CLASS_LOGITS, LABELS.bool()),
    ],
)
def test_what_is_allowed_is_not_refused(settings, input, target):
    loss_fn = MetricLoss("f1", validate=True, **settings)
    assert loss_fn(input, target).isfinite()
    assert loss_fn.score(input, target).isfinite()


@pytest.mark.parametrize("settings", [{}, multilabel])
def test_unchecked_nan_is_seen_in_the_loss(settings):
    scores, target = (CLASS_LOGITS, LABELS) if settings else (LOGITS, TARGET)
    scores = scores.clone()
    scores[1] = NAN
    assert MetricLoss("f1", **settings)(scores, target).isnan()
    assert MetricLoss("mcc", task="multiclass")(CLASS_LOGITS * NAN, CLASSES).isnan()


@pytest.mark.parametrize("weight", [NAN, INF])
def test_a_bad_batch_does_not_spoil_the_multipliers(weight):
    loss_fn = MetricLoss("recall", subject_to="precision >= 0.9")
    loss_fn(LOGITS, TARGET, torch.tensor([1, 1, weight, 1]))
    assert loss_fn.multipliers.isfinite().all()
