"""`MetricLoss`: the distance from the best score, and what may be added to it."""

import copy
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import stepless as sl
from stepless import METRICS, MetricLoss, Schedule
from stepless.cross_entropy import mean_cross_entropy
from stepless.loss import CLASSES_BLEND, DEFAULT_STEP


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


LOGITS = torch.randn(50, dtype=torch.float64, generator=generator(0)) * 2
TARGET = torch.rand(50, generator=generator(1)) < 0.4
LABEL_LOGITS = torch.randn(40, 3, dtype=torch.float64, generator=generator(2)) * 2
LABELS = (torch.rand(40, 3, generator=generator(3)) < 0.4).long()
CLASSES = torch.randint(0, 3, (40,), generator=generator(4))
SHARES = torch.rand(40, 3, dtype=torch.float64, generator=generator(5)).softmax(1)  #: class probabilities as targets
WEIGHT = torch.rand(50, dtype=torch.float64, generator=generator(6)) + 0.1

BATCHES = {
    "binary": (LOGITS, TARGET),
    "multiclass": (LABEL_LOGITS, CLASSES),
    "multilabel": (LABEL_LOGITS, LABELS),
}
tasks = pytest.mark.parametrize("task", BATCHES)


# ---------------------------------------------------------------------------------------------------------------------
# Distance
# ---------------------------------------------------------------------------------------------------------------------


@tasks
@pytest.mark.parametrize("name", METRICS)
def test_loss_is_the_distance_of_the_score_from_the_best(name, task):
    scores, target = BATCHES[task]
    loss_fn = MetricLoss(name, task=task, step="identity")
    metric, score = METRICS[name], loss_fn.score(scores, target)
    expected = metric.best - score if metric.greater_is_better else score - metric.best
    certain = scores * 1e4  # so large that the probability is the decision
    torch.testing.assert_close(loss_fn(certain, target), expected, rtol=1e-6, atol=1e-6)


@tasks
@pytest.mark.parametrize("name", [name for name in METRICS if name != "net_benefit"])  # its best depends on the batch
def test_loss_of_a_perfect_decision_is_zero(name, task):
    target = BATCHES[task][1]
    right = F.one_hot(target, 3) if task == "multiclass" else target
    loss = MetricLoss(name, task=task, step="identity", inputs="probabilities")(right.double(), target)
    assert loss == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("metric", "maximize"), [("f1", None), ("error_rate", None), ("5*fn + fp", False)])
def test_a_step_down_the_gradient_improves_the_score(metric, maximize):
    scores = torch.zeros(50, dtype=torch.float64, requires_grad=True)
    loss_fn = MetricLoss(metric, maximize=maximize)
    (grad,) = torch.autograd.grad(loss_fn(scores, TARGET), scores)
    assert loss_fn(scores - 0.1 * grad.sign(), TARGET) < loss_fn(scores, TARGET)


@pytest.mark.parametrize("bound", ["precision >= 0.9", "fpr <= 0.01"])
def test_constraints_take_infinite_logits(bound):
    logits = torch.tensor([math.inf, -2.0, 1.0, -math.inf, math.inf], requires_grad=True)
    loss = MetricLoss("recall", subject_to=bound)(logits, torch.tensor([1.0, 0, 1, 0, 0]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_the_loss_is_a_function_of_sums_that_add():
    for task, (scores, target) in BATCHES.items():
        loss_fn = MetricLoss("f1", task=task, blend=0.3, subject_to="precision >= 0.9")
        parts = [loss_fn.measure(scores[rows], target[rows]) for rows in (slice(0, 17), slice(17, None))]
        torch.testing.assert_close(loss_fn.finish(parts[0] + parts[1]), loss_fn.eval()(scores, target))


def test_the_default_step_leaves_no_score_without_a_gradient():
    scores = torch.tensor([-9.0, -3.0, 0.0, 3.0, 9.0], requires_grad=True)
    MetricLoss("f1")(scores, torch.tensor([1, 0, 1, 0, 1])).backward()
    assert (scores.grad != 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# Blend
# ---------------------------------------------------------------------------------------------------------------------


def weighted(loss, weight):
    """The weighted mean over samples of a loss that has one row per sample."""
    rows = loss.flatten(1).mean(1) if loss.dim() > 1 else loss
    return (rows * weight).sum() / weight.sum()


CLASS_WEIGHT = [1.0, 2.0, 0.5]
IGNORED = torch.where(torch.arange(40) % 5 == 0, -100, CLASSES)
MASKED = torch.where(torch.arange(50) % 5 == 0, 9, TARGET.long())
COUNTED = MASKED != 9
MASKED_LABELS = torch.where(torch.rand(40, 3, generator=generator(9)) < 0.3, 9, LABELS)
PIXELS, PIXEL_CLASSES = torch.randn(4, 3, 5, 6, dtype=torch.float64, generator=generator(7)), CLASSES[:30].view(5, 6)
bce, ce = F.binary_cross_entropy_with_logits, F.cross_entropy

# (settings, batch, what torch says)
BLENDS = {
    "binary": ({}, (LOGITS, TARGET), bce(LOGITS, TARGET.double())),
    "binary, weights": (
        {}, (LOGITS, TARGET, WEIGHT), weighted(bce(LOGITS, TARGET.double(), reduction="none"), WEIGHT),
    ),
    "binary, ignored": ({"ignore_index": 9}, (LOGITS, MASKED), bce(LOGITS[COUNTED], TARGET[COUNTED].double())),
    "binary, soft": ({}, (LOGITS, WEIGHT.clamp(max=1)), bce(LOGITS, WEIGHT.clamp(max=1))),
    "binary, probabilities": (
        {"inputs": "probabilities"}, (LOGITS.sigmoid(), TARGET),
        F.binary_cross_entropy(LOGITS.sigmoid(), TARGET.double()),
    ),
    "binary, probabilities 0 and 1": (
        {"inputs": "probabilities"}, (TARGET.double(), TARGET.flip(0)),
        F.binary_cross_entropy(TARGET.double(), TARGET.flip(0).double()),
    ),
    "binary, pixels": ({}, (LOGITS.view(2, 5, 5), TARGET.view(2, 5, 5)), bce(LOGITS, TARGET.double())),
    "multilabel": ({"task": "multilabel"}, (LABEL_LOGITS, LABELS), bce(LABEL_LOGITS, LABELS.double())),
    "multilabel, weights": (
        {"task": "multilabel"}, (LABEL_LOGITS, LABELS, WEIGHT[:40]),
        weighted(bce(LABEL_LOGITS, LABELS.double(), reduction="none"), WEIGHT[:40]),
    ),
    "multilabel, ignored": (  # the mean over samples, then over labels
        {"task": "multilabel", "ignore_index": 9}, (LABEL_LOGITS, MASKED_LABELS),
        torch.stack([bce(z[y != 9], y[y != 9].double()) for z, y in zip(LABEL_LOGITS.T, MASKED_LABELS.T, strict=True)])
        .mean(),
    ),
    "multilabel, soft": ({"task": "multilabel"}, (LABEL_LOGITS, SHARES), bce(LABEL_LOGITS, SHARES)),
    "multilabel, probabilities": (
        {"task": "multilabel", "inputs": "probabilities"}, (LABEL_LOGITS.sigmoid(), LABELS),
        bce(LABEL_LOGITS, LABELS.double()),
    ),
    "multiclass": ({"task": "multiclass"}, (LABEL_LOGITS, CLASSES), ce(LABEL_LOGITS, CLASSES)),
    "multiclass, class weights": (
        {"task": "multiclass", "weight": CLASS_WEIGHT}, (LABEL_LOGITS, CLASSES),
        ce(LABEL_LOGITS, CLASSES, torch.tensor(CLASS_WEIGHT, dtype=torch.float64)),
    ),
    "multiclass, -100": ({"task": "multiclass"}, (LABEL_LOGITS, IGNORED), ce(LABEL_LOGITS, IGNORED)),
    "multiclass, ignored": (
        {"task": "multiclass", "ignore_index": 1}, (LABEL_LOGITS, CLASSES), ce(LABEL_LOGITS, CLASSES, ignore_index=1),
    ),
    "multiclass, weights": (
        {"task": "multiclass"}, (LABEL_LOGITS, CLASSES, WEIGHT[:40]),
        weighted(ce(LABEL_LOGITS, CLASSES, reduction="none"), WEIGHT[:40]),
    ),
    "multiclass, soft": ({"task": "multiclass"}, (LABEL_LOGITS, SHARES), ce(LABEL_LOGITS, SHARES)),
    "multiclass, probabilities": (
        {"task": "multiclass", "inputs": "probabilities"}, (LABEL_LOGITS.softmax(1), CLASSES),
        ce(LABEL_LOGITS, CLASSES),
    ),
    "multiclass, probabilities 0 and 1": (  # a logarithm has a floor of -100, as in F.binary_cross_entropy
        {"task": "multiclass", "inputs": "probabilities"}, (F.one_hot(CLASSES.flip(0), 3).double(), CLASSES),
        100 * (CLASSES.flip(0) != CLASSES).double().mean(),
    ),
    "multiclass, pixels": (
        {"task": "multiclass"}, (PIXELS, PIXEL_CLASSES.expand(4, 5, 6)), ce(PIXELS, PIXEL_CLASSES.expand(4, 5, 6)),
    ),
    "multiclass, a class ruled out": (
        {"task": "multiclass"}, (LABEL_LOGITS - torch.tensor([0, 0, torch.inf]), CLASSES % 2),
        ce(LABEL_LOGITS[:, :2], CLASSES % 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("blend", [0.25, 1.0])
@pytest.mark.parametrize("case", BLENDS)
def test_blend_is_a_mean_of_metric_and_cross_entropy(case, blend):
    settings, batch, entropy = BLENDS[case]
    alone = MetricLoss("f1", blend=0.0, **settings)(*batch)
    blended = MetricLoss("f1", blend=blend, **settings)(*batch)
    torch.testing.assert_close(blended, (1 - blend) * alone + blend * entropy)


@pytest.mark.parametrize("metric", ["f1", "mcc", "weighted_kappa"])
@pytest.mark.parametrize("target", [CLASSES, SHARES], ids=["indices", "shares"])
def test_of_three_classes_and_more_a_part_is_cross_entropy(metric, target):
    share = CLASSES_BLEND.share
    alone = MetricLoss(metric, task="multiclass", blend=0.0)(LABEL_LOGITS, target)
    expected = (1 - share) * alone + share * ce(LABEL_LOGITS, target)
    torch.testing.assert_close(MetricLoss(metric, task="multiclass")(LABEL_LOGITS, target), expected)
    torch.testing.assert_close(sl.metric_loss(LABEL_LOGITS, target, metric, task="multiclass"), expected)


def test_what_is_said_of_step_blend_or_schedule_is_all_there_is():
    batch = LABEL_LOGITS, CLASSES
    alone = MetricLoss("mcc", task="multiclass", blend=0.0)(*batch)
    torch.testing.assert_close(MetricLoss("mcc", task="multiclass", step=DEFAULT_STEP)(*batch), alone)
    moved = MetricLoss("mcc", task="multiclass", schedule=Schedule(blend=None, sharpness=(1.0, 2.0)))
    torch.testing.assert_close(moved(*batch), alone)
    assert "blend" not in repr(MetricLoss("mcc", task="multiclass", step="linear"))
    assert f"blend={CLASSES_BLEND.share:g}" in repr(MetricLoss("mcc", task="multiclass"))


@pytest.mark.parametrize("metric", ["cost", "net_benefit", "5*fn + fp", "(tp - fp) / (tp + fn)"])
def test_what_may_leave_the_unit_is_alone(metric):
    loss_fn = MetricLoss(metric, task="multiclass")
    torch.testing.assert_close(
        loss_fn(LABEL_LOGITS, CLASSES), MetricLoss(metric, task="multiclass", blend=0.0)(LABEL_LOGITS, CLASSES)
    )


def test_a_formula_that_is_a_share_is_trained_as_a_metric_is():
    text, name = (MetricLoss(m, task="multiclass") for m in ("tp / (tp + fp + fn)", "jaccard"))
    torch.testing.assert_close(text(LABEL_LOGITS, CLASSES), name(LABEL_LOGITS, CLASSES))


def test_a_metric_is_bounded_by_its_ends_or_as_its_formula_is(monkeypatch):
    def overlap(tp, fp, fn, tn):
        return tp / (tp + fp + fn)

    assert sl.Metric("overlap", overlap, worst=0.0).bounded
    assert not sl.Metric("overlap", overlap, worst=-3.0).bounded
    assert MetricLoss(overlap, task="multiclass").blending == CLASSES_BLEND
    monkeypatch.setattr(METRICS, "_things", dict(METRICS._things))
    sl.metric(best=1.0)(overlap)
    assert MetricLoss("overlap", task="multiclass").blending == CLASSES_BLEND


def test_two_classes_and_other_tasks_are_the_metric_alone():
    pair = torch.stack([torch.zeros_like(LOGITS), LOGITS], 1)
    two = MetricLoss("mcc", task="multiclass")(pair, TARGET.long())
    torch.testing.assert_close(two, MetricLoss("mcc")(LOGITS, TARGET))
    for task in ("binary", "multilabel"):
        batch = BATCHES[task]
        torch.testing.assert_close(MetricLoss("f1", task=task)(*batch), MetricLoss("f1", task=task, blend=0.0)(*batch))


def test_the_part_of_cross_entropy_may_be_balanced_without_saying_how_large_it_is():
    share, batch = CLASSES_BLEND.share, (LABEL_LOGITS, CLASSES)
    said = MetricLoss("f1", task="multiclass", blend=share, cross_entropy="balanced")(*batch)
    torch.testing.assert_close(MetricLoss("f1", task="multiclass", cross_entropy="balanced")(*batch), said)


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if metric.bounded])
def test_a_metric_that_does_not_see_how_rare_a_class_is_goes_with_such_a_cross_entropy(metric):
    """Rows of one class that count thrice change neither the score nor the part of cross-entropy, or both."""
    loss_fn = MetricLoss(metric, task="multiclass")
    thrice = 1 + 2 * (CLASSES == 1).double()
    scores = (loss_fn.score(LABEL_LOGITS, CLASSES, weight) for weight in (None, thrice))
    same = torch.isclose(*scores)
    assert loss_fn.blending.balanced == same
    assert ("cross_entropy='balanced'" in repr(loss_fn)) == same
    if same:
        torch.testing.assert_close(*(loss_fn(LABEL_LOGITS, CLASSES, weight) for weight in (None, thrice)))


def test_cross_entropy_is_plain_where_a_metric_averages_by_frequency_or_its_part_is_the_user_s():
    for settings in ({"average": "weighted"}, {"average": "micro"}, {"blend": 0.5}, {"step": "sigmoid", "blend": 0.5}):
        assert not MetricLoss("recall", task="multiclass", **settings).blending.balanced
    assert not MetricLoss("g_mean", task="multiclass", cross_entropy="plain").blending.balanced
    weighted = MetricLoss("g_mean", task="multiclass", weight=[1, 2, 3])
    assert not weighted.blending.balanced, "the weights would have no effect at all"
    assert MetricLoss(lambda tp, fp, fn, tn: tp / (tp + fn), task="multiclass").blending.balanced
    assert MetricLoss("tp / (tp + fn)", task="multiclass").blending.balanced


def test_a_true_class_that_is_ruled_out_costs_much_and_pulls_nothing():
    logits = LABEL_LOGITS.masked_fill(
        torch.nn.functional.one_hot(CLASSES, 3).bool() & (CLASSES == 1)[:, None], -math.inf
    )
    for target in (CLASSES, torch.nn.functional.one_hot(CLASSES, 3).double()):
        leaf = logits.clone().requires_grad_()
        loss = MetricLoss("f1", task="multiclass", blend=1.0)(leaf, target)
        loss.backward()
        assert 100 * (CLASSES == 1).double().mean() < loss < 110
        assert (leaf.grad[CLASSES == 1] == 0).all()
        assert leaf.grad[CLASSES != 1].abs().min() > 0


@pytest.mark.parametrize("case", BLENDS)
def test_blend_has_a_finite_gradient(case):
    settings, (scores, *rest), _ = BLENDS[case]
    scores = scores.clone().requires_grad_()
    MetricLoss("f1", blend=0.5, **settings)(scores, *rest).backward()
    assert scores.grad.isfinite().all()


def test_balanced_cross_entropy_is_the_mean_of_the_class_means():
    def balanced(loss, target):
        return torch.stack([loss[target == k].mean() for k in target.unique()]).mean()

    for task, (scores, target) in BATCHES.items():
        loss = MetricLoss("f1", task=task, blend=1.0, cross_entropy="balanced")(scores, target)
        if task == "multiclass":
            expected = balanced(ce(scores, target, reduction="none"), target)
        else:
            each = bce(scores, target.double(), reduction="none").view(len(scores), -1)
            labels = target.view(len(scores), -1)
            expected = torch.stack([balanced(each[:, k], labels[:, k]) for k in range(each.shape[1])]).mean()
        torch.testing.assert_close(loss, expected)


def test_balanced_cross_entropy_does_not_see_how_rare_a_class_is():
    logits, target = torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1, 1, 0, 0])
    rare = torch.cat([logits, logits[2:].repeat(99)]), torch.cat([target, target[2:].repeat(99)])
    loss_fn = MetricLoss("f1", blend=1.0, cross_entropy="balanced")
    torch.testing.assert_close(loss_fn(*rare), loss_fn(logits, target))


def test_balanced_cross_entropy_of_one_class_is_that_class_s_mean():
    loss = MetricLoss("f1", blend=1.0, cross_entropy="balanced")(LOGITS, torch.ones(50))
    torch.testing.assert_close(loss, bce(LOGITS, torch.ones_like(LOGITS)))


# ---------------------------------------------------------------------------------------------------------------------
# Soft targets
# ---------------------------------------------------------------------------------------------------------------------


def test_a_soft_target_is_two_weighted_rows():
    soft = torch.rand(50, dtype=torch.float64, generator=generator(8))
    twice = torch.cat([LOGITS, LOGITS]), torch.cat([torch.ones(50), torch.zeros(50)]), torch.cat([soft, 1 - soft])
    for metric in ("f1", "mcc", "cost"):
        torch.testing.assert_close(MetricLoss(metric, blend=0.2)(LOGITS, soft), MetricLoss(metric, blend=0.2)(*twice))


def test_soft_classes_are_weighted_rows():
    rows = LABEL_LOGITS.repeat_interleave(3, 0), torch.arange(3).repeat(40), SHARES.flatten()
    for metric in ("f1", "mcc", "weighted_kappa"):
        loss_fn = MetricLoss(metric, task="multiclass")
        torch.testing.assert_close(loss_fn(LABEL_LOGITS, SHARES), loss_fn(*rows))


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_minimal_overlap_is_best_exactly_at_the_target(task):
    soft = SHARES[:, 0] if task == "binary" else SHARES
    settings = {"task": task, "inputs": "probabilities", "step": "identity"}
    at_target = soft.clone().requires_grad_()
    loss = MetricLoss("f1", overlap="min", **settings)(at_target, soft)
    torch.testing.assert_close(loss, torch.zeros_like(loss))
    for other in (soft * 0.9, 0.5 * soft + 0.5 * soft.flip(0)):
        assert MetricLoss("f1", overlap="min", **settings)(other, soft) > 0.01
    assert MetricLoss("f1", **settings)(soft, soft) > 0.1, "expected counts are not"


# ---------------------------------------------------------------------------------------------------------------------
# Schedules
# ---------------------------------------------------------------------------------------------------------------------


@tasks
def test_a_schedule_moves_the_blend(task):
    batch = BATCHES[task]
    scheduled = MetricLoss("f1", task=task, schedule=Schedule(blend=(0.8, 0.2), until=0.5))
    for progress, blend in {0.0: 0.8, 0.25: 0.5, 0.5: 0.2, 0.75: 0.2, 1.0: 0.2}.items():
        scheduled.advance(progress)
        torch.testing.assert_close(
            scheduled(*batch), MetricLoss("f1", task=task, blend=blend)(*batch), rtol=1e-6, atol=1e-7
        )


@tasks
@pytest.mark.parametrize("step", [sl.Linear(), sl.Sigmoid(), sl.RaisedCosine(delta=0.4), sl.LogitSigmoid()])
def test_a_schedule_sharpens_the_step(task, step):
    batch = BATCHES[task]
    scheduled = MetricLoss("f1", task=task, step=step, schedule=Schedule(blend=None, sharpness=(1.0, 9.0)))
    for progress, sharpness in {0.0: 1.0, 0.25: 3.0, 1.0: 9.0}.items():
        scheduled.advance(progress)
        expected = MetricLoss("f1", task=task, step=step.sharpened(sharpness))(*batch)
        torch.testing.assert_close(scheduled(*batch), expected, rtol=1e-6, atol=1e-7)


def test_progress_is_kept_in_checkpoints():
    first, second = (MetricLoss("f1", schedule=Schedule()) for _ in range(2))
    first.advance(0.3)
    second.load_state_dict(first.state_dict())
    assert second.progress == first.progress
    assert second(LOGITS, TARGET) == first(LOGITS, TARGET)
    assert copy.deepcopy(first)(LOGITS, TARGET) == first(LOGITS, TARGET)


def test_progress_reaches_a_gradient():
    scores = LOGITS.clone().requires_grad_()
    loss_fn = MetricLoss("f1", schedule=Schedule(blend=(1.0, 0.0), sharpness=(1.0, 4.0)))
    loss_fn.advance(0.5)
    loss_fn(scores, TARGET).backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


def test_advance_without_a_schedule_does_nothing():
    loss_fn = MetricLoss("f1", blend=0.5)
    before = loss_fn(LOGITS, TARGET)
    loss_fn.advance(0.7)
    assert loss_fn(LOGITS, TARGET) == before
    assert not loss_fn.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(150):
            loss_fn(LOGITS, TARGET)


def test_a_schedule_that_stands_still_warns_once():
    loss_fn = MetricLoss("f1", schedule=Schedule())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            loss_fn(LOGITS, TARGET)
        for _ in range(50):
            loss_fn.eval()(LOGITS, TARGET)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(150):
            loss_fn.train()(LOGITS, TARGET)
    assert len(caught) == 1
    assert "100 training batches without advance(): the schedule stands still." in str(caught[0].message)
    assert caught[0].filename == __file__, "the warning points at the training loop"


@pytest.mark.parametrize("by", ["a hook", "accumulate"])
def test_the_warning_points_at_the_training_loop_however_the_loss_is_called(by):
    loss_fn, model = MetricLoss("f1", schedule=Schedule()), torch.nn.Identity()
    logits = LOGITS.clone().requires_grad_()
    if by == "a hook":
        loss_fn.register_forward_hook(lambda *_: None)  # then torch calls forward through one more function
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(100):
            if by == "a hook":
                loss_fn(logits, TARGET)
            else:
                sl.accumulate(loss_fn, model, [(logits, TARGET)])
    assert [warning.filename for warning in caught] == [__file__]


def test_a_schedule_that_moves_does_not_warn():
    loss_fn = MetricLoss("f1", schedule=Schedule())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn.advance(0.0)
        for _ in range(150):
            loss_fn(LOGITS, TARGET)


# ---------------------------------------------------------------------------------------------------------------------
# Constraints
# ---------------------------------------------------------------------------------------------------------------------

#: tp = fp = fn = tn = 1: precision and recall are a half
EVEN = torch.tensor([2.0, 1.0, -1.0, -2.0]), torch.tensor([1, 0, 1, 0])


def test_multipliers_grow_while_their_constraint_is_violated():
    loss_fn = MetricLoss("recall", subject_to="precision >= 0.9 and fpr <= 0.9 and npv >= 0.7")
    history = [loss_fn.multipliers.clone()]
    for _ in range(3):
        loss_fn(*EVEN)
        history.append(loss_fn.multipliers.clone())
    held, free, also_held = torch.stack(history, 1)
    assert (held.diff() > 0).all()
    assert (also_held.diff() > 0).all()
    assert (free.diff() == 0).all()
    assert (held.diff() > also_held.diff()).all(), "the greater the violation, the faster"


def test_multipliers_rest_in_evaluation():
    loss_fn = MetricLoss("recall", subject_to="precision >= 0.9").eval()
    before = loss_fn.multipliers.clone()
    loss_fn(*EVEN)
    loss_fn.train().score(*EVEN)
    loss_fn.violations(*EVEN)
    loss_fn.measure(*EVEN)
    assert torch.equal(loss_fn.multipliers, before)


def test_multipliers_are_kept_in_checkpoints():
    first, second = (MetricLoss("recall", subject_to="precision >= 0.9") for _ in range(2))
    for _ in range(5):
        first(*EVEN)
    second.load_state_dict(first.state_dict())
    assert second.multipliers == first.multipliers > 1
    assert second.eval()(*EVEN) == first.eval()(*EVEN)
    assert set(MetricLoss("recall").state_dict()) == set()


def test_a_violation_is_added_to_the_loss_and_one_that_holds_is_not():
    plain = MetricLoss("recall")(*EVEN)
    violated = MetricLoss("recall", subject_to="precision >= 0.9").eval()
    holds = MetricLoss("recall", subject_to="precision >= 0.4 and fpr <= 0.5").eval()
    torch.testing.assert_close(violated(*EVEN), plain + violated.multipliers[0] * 0.4)
    torch.testing.assert_close(holds(*EVEN), plain)
    assert violated.violations(*EVEN) == pytest.approx({"precision >= 0.9": 0.4})
    assert holds.violations(*EVEN) == pytest.approx({"precision >= 0.4": -0.1, "fpr <= 0.5": 0.0})


def test_a_violation_pulls_and_one_that_holds_does_not():
    scores, target = EVEN[0].clone().requires_grad_(), EVEN[1]

    def grad(**settings):
        return torch.autograd.grad(MetricLoss("recall", **settings)(scores, target), scores)[0]

    torch.testing.assert_close(grad(subject_to="precision >= 0.4"), grad())
    pull = grad(subject_to="precision >= 0.9") - grad()
    assert (pull[target == 0] > 0).all(), "false alarms go down"


@pytest.mark.parametrize(
    "constraint", ["precision >= 0.5", ["precision >= 0.5"], sl.Constraint(METRICS["precision"], True, 0.5)]
)
def test_constraints_come_as_text_or_made(constraint):
    assert MetricLoss("recall", subject_to=constraint).violations(*EVEN) == {"precision >= 0.5": 0.0}


def test_constraints_are_told_apart():
    f_beta = sl.METRICS["f_beta"]
    two = [sl.Constraint(f_beta.bind(beta=beta), True, 0.5) for beta in (2, 0.5)]
    assert len(MetricLoss("recall", subject_to=two).violations(*EVEN)) == 2
    close = ["precision >= 0.9000001", "precision >= 0.9000002"]
    assert len(MetricLoss("recall", subject_to=close).violations(*EVEN)) == 2
    assert [*MetricLoss("f1", subject_to="min(precision, recall) >= 0.5").violations(*EVEN).values()] == [0.0]
    alike = [sl.Constraint(lambda *c, i=i: c[0] / (c[0] + c[i]), True, 0.9) for i in (1, 2)]  # precision and recall
    assert MetricLoss("f1", subject_to=alike).violations(torch.tensor([1.0, 1.0]), torch.tensor([1, 0])) == {
        "<lambda> >= 0.9": pytest.approx(0.4)
    }, "of two functions of one name, the worst counts"
    none = MetricLoss("f1", task="multilabel", average="samples")
    assert none.violations(torch.zeros(2, 3), torch.zeros(2, 3)) == {}


def test_a_constraint_on_counts_has_no_bound_of_its_own():
    assert MetricLoss("recall", subject_to="tp - fp >= 10").violations(*EVEN) == {"tp - fp >= 10": 10.0}


@pytest.fixture
def one_thread():
    """A net this small is slower on two threads than on one, far slower where others use them too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(loss_fn, x, target, outputs=1, steps=300):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs), torch.nn.Flatten(0 if outputs == 1 else 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(net(x), target).backward()
        optimizer.step()
    return net(x).detach()


def clouds(centres, distance, n=400, seed=0):
    """Points around one centre per class, at these multiples of their spread."""
    target = torch.randint(0, len(centres), (n,), generator=generator(seed))
    return torch.randn(n, 2, generator=generator(seed + 1)) + distance * torch.tensor(centres)[target], target


@pytest.mark.parametrize(
    ("constraint", "seed"),
    [("precision >= 0.9", 0), ("precision >= 0.9", 1), ("fpr <= 0.05", 0), ("precision >= 0.9 and fpr <= 0.05", 0)],
)
@pytest.mark.usefixtures("one_thread")
def test_training_meets_its_constraints(constraint, seed):
    x, target = clouds([[0.0, 0.0], [1.0, 1.0]], 3.0, seed=seed)
    free = train(MetricLoss("recall"), x, target)
    loss_fn = MetricLoss("recall", subject_to=constraint)
    held = train(loss_fn, x, target)
    assert max(loss_fn.violations(free, target).values()) > 0.05, "without the constraint it is violated"
    assert max(loss_fn.violations(held, target).values()) <= 0
    assert loss_fn.score(held, target) > 0.95


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("constraint", ["precision >= 0.9", "precision >= 0.95", "fpr <= 0.05"])
@pytest.mark.usefixtures("one_thread")
def test_training_meets_a_constraint_that_costs_recall(constraint, seed):
    x, target = clouds([[0.0, 0.0], [1.0, 1.0]], 1.5, seed=seed)
    loss_fn = MetricLoss("recall", subject_to=constraint)
    held = train(loss_fn, x, target)
    assert max(loss_fn.violations(held, target).values()) <= 0
    assert loss_fn.score(held, target) > 0.5


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("metric", "constraint", "least"), [("f1", "fpr <= 0.01", 0.7), ("recall", "fp <= 3", 0.5)])
@pytest.mark.usefixtures("one_thread")
def test_a_network_that_is_sure_of_the_wrong_thing_is_pulled_back(metric, constraint, least, seed):
    """Logits of 20 and more: the loss's own step has no slope there."""
    random = generator(0)
    x = torch.randn(400, 6, generator=random)
    target = ((x @ torch.randn(6, 1, generator=random) + torch.randn(400, 1, generator=random))[:, 0] > 1).long()
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1), torch.nn.Flatten(0))
    loss_fn, optimizer = MetricLoss(metric, subject_to=constraint), torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(1000):
        optimizer.zero_grad()
        loss_fn(net(x), target).backward()
        optimizer.step()
    assert max(loss_fn.violations(net(x).detach(), target).values()) <= 0
    assert loss_fn.score(net(x).detach(), target) > least


@pytest.mark.usefixtures("one_thread")
def test_training_meets_a_constraint_on_classes():
    x, target = clouds([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 3.0)
    # to decide for the first class costs nothing, whatever the truth: only the constraint forbids to do it always
    costs = [[0, 1, 1], [0, 0, 1], [0, 1, 0]]
    free = train(MetricLoss("cost", costs=costs, task="multiclass"), x, target, outputs=3)
    loss_fn = MetricLoss("cost", costs=costs, task="multiclass", subject_to="recall >= 0.85 and npv >= 0.9")
    held = train(loss_fn, x, target, outputs=3)
    assert max(loss_fn.violations(free, target).values()) > 0.2, "without the constraint it is violated"
    assert max(loss_fn.violations(held, target).values()) <= 0
    assert loss_fn.score(held, target) < 0.1


# ---------------------------------------------------------------------------------------------------------------------
# The rest of the surface
# ---------------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "plain": {},
    "options": {"metric": "f_beta", "beta": 2.0},
    "step": {"step": sl.Sigmoid(k=5.0)},
    "threshold": {"threshold": 0.3},
    "thresholds": {"threshold": [0.3, 0.6]},
    "ignored": {"ignore_index": 1},
    "image": {"per_image": True},
    "overlap": {"overlap": "min"},
    "blend": {"blend": 0.3, "cross_entropy": "balanced"},
    "formula": {"metric": "5*fn + fp", "maximize": False},
    "classes": {"task": "multiclass", "weight": [1, 2, 3], "threshold": [0.1, 0.2, 0.3]},
    "labels": {"task": "multilabel", "average": "samples"},
    "probabilities": {"inputs": "probabilities"},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_functional_twin(case):
    settings = {"metric": "f1", **SETTINGS[case]}
    scores, target = BATCHES[settings.get("task", "binary")]
    scores = scores.sigmoid() if "inputs" in settings else scores
    weight = WEIGHT[: len(scores)]
    metric = settings.pop("metric")
    expected = MetricLoss(metric, **settings)(scores, target, weight)
    assert sl.metric_loss(scores, target, metric, sample_weight=weight, **settings) == expected


@pytest.mark.parametrize("case", [*SETTINGS, "schedule", "constraint"])
def test_repr_can_be_typed_back(case):
    more = {"schedule": {"schedule": Schedule(until=0.5)}, "constraint": {"subject_to": "precision >= 0.9"}}
    settings = {"metric": "f1", **(SETTINGS | more)[case]}
    loss_fn = MetricLoss(**settings)
    again = eval(repr(loss_fn), vars(sl))
    assert repr(again) == repr(loss_fn)
    scores, target = BATCHES[settings.get("task", "binary")]
    scores = scores.sigmoid() if "inputs" in settings else scores
    assert again(scores, target) == loss_fn(scores, target)


def test_repr_is_short():
    assert repr(MetricLoss("f1", step=sl.Sigmoid(k=5.0))) == "MetricLoss('f1', step=Sigmoid(k=5.0))"
    multiclass = MetricLoss("mcc", task="multiclass", step="identity")
    assert repr(multiclass) == "MetricLoss('mcc', step=Identity(), task='multiclass')"


def test_a_ranking_s_name_is_taken_before_anything_is_imported():
    code = "import stepless as sl\ndef auc(tp, fp, fn, tn): return tp\nsl.metric(best=1.0)(auc)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: metric 'auc' is registered already" in run.stderr


def test_import_needs_torch_and_numpy_alone():
    code = "import sys, stepless; print(*{'sklearn', 'pandas', 'scipy', 'matplotlib', 'jax'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_a_small_integer_type_does_not_wrap_what_is_ignored(dtype):
    logits = torch.randn(40, 120, generator=generator(7))
    target = torch.arange(40) % 120
    for ignored in (None, 3, 255, -1, 256 + 7):
        settings = {"task": "multiclass", "ignore_index": ignored}
        wide = sl.score(logits, target, "accuracy", **settings), MetricLoss("f1", **settings)(logits, target)
        small = target.to(dtype)
        assert (sl.score(logits, small, "accuracy", **settings), MetricLoss("f1", **settings)(logits, small)) == wide


@pytest.mark.parametrize("metric", ["weighted_kappa", "cost", "f1"])
@pytest.mark.parametrize("wrong", [3, -1])
def test_what_is_no_class_is_not_counted_in_another_image(metric, wrong):
    target = torch.randint(3, (4, 5), generator=generator(8))
    target[1, 2] = wrong
    with pytest.raises(ValueError, match=rf"class indices in \[0, 3\); got {wrong}\."):
        MetricLoss(metric, task="multiclass", per_image=True)(torch.randn(4, 3, 5, generator=generator(9)), target)


def test_a_weight_a_sample_weighs_its_pixels_one_by_one():
    logits, target = torch.randn(4, 3, 2, generator=generator(10)), torch.randint(2, (4, 3, 2), generator=generator(11))
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    loss_fn = MetricLoss("f1", task="multilabel", average="samples")
    each = torch.stack([loss_fn(logits[[i]], target[[i]]) for i in range(4)])
    assert torch.allclose(loss_fn(logits, target, weight), (each * weight).sum() / weight.sum())


def test_numbers_of_numpy_are_numbers():
    loss_fn = MetricLoss("f1", schedule=Schedule())
    loss_fn.advance(np.float32(0.5))
    assert loss_fn.progress == 0.5
    assert MetricLoss("f1", blend=np.float32(0.25)).blending.share == 0.25
    assert sl.Memory(np.int64(4)).decay == sl.Memory(np.float32(4)).decay == 0.75


def test_one_score_without_a_dimension_may_have_a_weight():
    loss_fn, score, target = MetricLoss("f1"), torch.tensor(1.0), torch.tensor(1)
    weighted = loss_fn(score, target, torch.tensor(2.0))
    torch.testing.assert_close(weighted, loss_fn(score, target))
    torch.testing.assert_close(weighted, loss_fn.settle(loss_fn.measure(score, target, torch.tensor(2.0))))


def test_weights_a_sample_and_a_class_together_per_image():
    torch.manual_seed(0)
    logits, target = torch.randn(3, 3, 2, 2), torch.randint(3, (3, 2, 2))
    settings = {"task": "multiclass", "per_image": True, "weight": [1.0, 2.0, 3.0]}
    five_times = torch.cat([logits[:1]] * 4 + [logits]), torch.cat([target[:1]] * 4 + [target])
    weight = torch.tensor([5.0, 1.0, 1.0])
    expected = sl.score(*five_times, "f1", **settings)
    torch.testing.assert_close(sl.score(logits, target, "f1", sample_weight=weight, **settings), expected)
    loss_fn = MetricLoss("f1", **settings)
    torch.testing.assert_close(loss_fn(logits, target, weight), loss_fn(*five_times))
    target[0, 0, 0] = 3  # no class; and the last one weighs nothing
    with pytest.raises(ValueError, match="3"):
        MetricLoss("f1", task="multiclass", weight=[1.0, 1.0, 0.0], validate=True)(logits, target)


def test_a_set_of_thresholds_is_averaged_over_where_some_images_have_no_score():
    torch.manual_seed(3)
    p, target = torch.rand(6, 4), torch.randint(2, (6, 4))
    settings = {"inputs": "probabilities", "per_image": True, "zero_division": math.nan}
    each = [sl.score(p, target, "precision", threshold=tau, **settings) for tau in (0.3, 0.9)]
    both = sl.score(p, target, "precision", threshold=[0.3, 0.9], **settings)
    torch.testing.assert_close(both, torch.stack(each).mean())


def test_batches_in_inference_mode_leave_what_training_can_go_on_from():
    logits, target = torch.randn(4), torch.tensor([1, 0, 1, 0])
    settings = {"memory": sl.Memory(), "subject_to": "precision >= 0.9", "schedule": sl.Schedule()}
    loss_fn = MetricLoss("recall", **settings)
    with torch.inference_mode():
        loss_fn(logits, target)
        made_within = MetricLoss("recall", **settings)
        made_within(logits, target)
    for each in (loss_fn, made_within):
        each.advance(0.5)
        each(logits.clone().requires_grad_(), target).backward()


def test_a_batch_of_nan_does_not_move_the_multipliers():
    loss_fn = MetricLoss("recall", subject_to="precision >= 0.9")
    loss_fn(torch.full((4,), math.nan), torch.tensor([1, 0, 1, 0]))
    assert loss_fn.multipliers.tolist() == [1.0]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_a_loss_made_where_half_precision_is_the_default_counts_in_single(half):
    """As within a model that is loaded in half precision."""
    settings = {"subject_to": "precision >= 0.51", "schedule": sl.Schedule(), "memory": sl.Memory()}
    torch.set_default_dtype(half)
    try:
        loss_fn = MetricLoss("recall", **settings)
    finally:
        torch.set_default_dtype(torch.float32)
    like = MetricLoss("recall", **settings)
    for each in (loss_fn, like):
        each.advance(0.1234)
        for _ in range(50):  # each adds 0.01 to a multiplier, which bfloat16 rounds to nothing beyond 2
            each(*EVEN)
    torch.testing.assert_close(loss_fn.state_dict(), like.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{}, {"memory": sl.Memory()}, {"per_image": True}, {"blend": 0.5}], ids=str)
def test_a_batch_in_which_nothing_counts_does_not_move_the_multipliers(settings):
    loss_fn = MetricLoss("recall", subject_to="precision >= 0.9", ignore_index=-1, **settings)
    logits, target = EVEN
    loss_fn(logits[:0], target[:0])
    loss_fn(logits, torch.full_like(target, -1))
    loss_fn(logits, target, torch.zeros(4))
    assert loss_fn.multipliers.tolist() == [1.0]
    loss_fn(*EVEN)
    assert loss_fn.multipliers > 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_an_ignored_index_beyond_the_targets_type_ignores_nothing(dtype):
    scores, target = torch.tensor([2.0, 1.0, -1.0, -2.0]), torch.tensor([1, 0, 1, 0], dtype=dtype)
    assert sl.score(scores, target, "f1", ignore_index=2**32).item() == 0.5


def test_a_step_out_of_range_says_its_bounds():
    with pytest.raises(ValueError, match=r"Sigmoid's k must lie between 1e-30 and 1e\+30; got 1e-40"):
        sl.Sigmoid(k=1e-40)


@pytest.mark.parametrize("balanced", [False, True])
def test_a_class_or_label_of_next_to_no_weight_has_no_part_in_the_mean_cross_entropy(balanced):
    nothing = 1e-36  # what a memory leaves of a class that has long been absent
    if balanced:
        sums = torch.tensor([[[2.0, 4.0, 3 * nothing]], [[1.0, 1.0, nothing]]])
    else:
        sums = torch.tensor([[[2.0, 4.0], [3 * nothing, 0.0]], [[1.0, 1.0], [nothing, 0.0]]])
    assert mean_cross_entropy(sums, balanced=balanced).item() == pytest.approx(3.0)


def test_a_memory_forgets_an_absent_class_in_all_of_the_loss_at_once():
    loss_fn = MetricLoss("balanced_accuracy", task="multiclass", memory=sl.Memory(2))
    alone = MetricLoss("balanced_accuracy", task="multiclass")
    loss_fn(torch.zeros(3, 3), torch.arange(3))
    logits, target = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1])
    losses = [loss_fn(logits, target).item() for _ in range(170)]
    kept, forgotten = losses[50], alone(logits, target).item()
    assert all(
        loss == pytest.approx(kept, rel=1e-4) or loss == pytest.approx(forgotten, rel=1e-4) for loss in losses[50:]
    )


@pytest.fixture
def mixture():
    def mix(tp, fp, fn, tn, *, share=0.0, zero_division=0.0):
        return share * sl.ratio(tp, tp + fp) + (1 - share) * sl.ratio(tp, tp + fn, zero_division)

    return sl.Metric("mix", mix, worst=0.0, even=True)


def test_a_metric_is_even_with_the_options_it_was_tried_with(mixture):
    assert mixture.bind(share=0.0).even
    assert mixture.bind(zero_division=float("nan")).even
    assert not mixture.bind(share=0.5).even
    assert not mixture.bind(share=0.5).bind(zero_division=1.0).even


def test_the_default_cross_entropy_follows_the_options_of_the_metric(mixture):
    torch.manual_seed(0)
    logits, target = torch.randn(40, 3), torch.tensor([0] * 30 + [1] * 8 + [2] * 2)
    alone = sl.metric_loss(logits, target, mixture, share=0.9, task="multiclass", blend=0)
    plain = torch.nn.functional.cross_entropy(logits, target)
    loss = sl.metric_loss(logits, target, mixture, share=0.9, task="multiclass")
    torch.testing.assert_close(loss, (alone + plain) / 2)


@pytest.mark.parametrize("blend", [True, False])
def test_a_blend_is_a_number_and_no_switch(blend):
    with pytest.raises(ValueError, match=rf"blend is the share of cross-entropy .* got {blend}"):
        MetricLoss("f1", blend=blend)
