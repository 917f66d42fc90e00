"""The objectives of many members are the losses of each, and know their own gradients."""

import pytest
import torch
from torch import nn

import stepless as sl
from stepless.tabular.networks.metric_objectives import Blend, CostWeighted, OnMetric
from stepless.tabular.networks.objectives import CrossEntropy, Losses, Objective

OUTPUTS = {"binary": 1, "multiclass": 3, "multilabel": 2}
PORTFOLIO = {
    "cross_entropy": CrossEntropy,
    "metric": lambda task: OnMetric("f1", task),
    "blend": lambda task: Blend(OnMetric("f1", task), sl.Schedule(blend=(1.0, 0.0), until=0.8)),
    "cost_weighted": lambda task: CostWeighted(OnMetric("f1", task)),
}


def batch(task, weighted, members=4, rows=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(members, rows, OUTPUTS[task], generator=generator)
    if task == "multiclass":
        target = torch.randint(3, (members, rows), generator=generator)
    else:
        shape = (members, rows) if task == "binary" else (members, rows, 2)
        target = (torch.rand(shape, generator=generator) < 0.3).float()
    return logits, target, torch.rand(members, rows, generator=generator) if weighted else None


SETTINGS = [
    ("binary", {"metric": "f1"}),
    ("binary", {"metric": "mcc", "step": sl.Sigmoid(k=10), "threshold": 0.3}),
    ("binary", {"metric": "g_mean", "threshold": [0.3, 0.5, 0.7]}),
    ("binary", {"metric": "5*fn + fp", "maximize": False}),
    ("binary", {"metric": "f1", "subject_to": "recall >= 0.9"}),
    ("binary", {"metric": "average_precision"}),
    ("multiclass", {"metric": "f1"}),
    ("multiclass", {"metric": "f1", "average": "micro", "weight": [1.0, 2.0, 3.0]}),
    ("multiclass", {"metric": "mcc"}),
    ("multiclass", {"metric": "weighted_kappa"}),
    ("multilabel", {"metric": "f1"}),
    ("multilabel", {"metric": "f1", "weight": [1.0, 3.0]}),
    ("multilabel", {"metric": "f1", "average": "micro"}),
    ("multilabel", {"metric": "f1", "average": "samples"}),
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("task", "chosen"), SETTINGS)
def test_the_metric_of_many_members_is_the_loss_of_each(task, chosen, weighted):
    logits, target, weight = batch(task, weighted)
    objective = OnMetric(task=task, **chosen)
    objective.prepare(len(logits))
    losses, slopes = objective.differentiated(logits, target, weight)
    for m in range(len(logits)):
        z = logits[m].clone().requires_grad_()
        loss = sl.MetricLoss(task=task, blend=0.0, **chosen)(
            z.squeeze(1) if task == "binary" else z, target[m], None if weight is None else weight[m]
        )
        torch.testing.assert_close(losses[m], loss.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(slopes[m], torch.autograd.grad(loss, z)[0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", OUTPUTS)
def test_cross_entropy_is_torchs(task, weighted):
    logits, target, weight = batch(task, weighted)
    losses, _ = CrossEntropy(task).differentiated(logits, target, weight)
    for m, z in enumerate(logits):
        if task == "multiclass":
            each = nn.functional.cross_entropy(z, target[m], reduction="none")
        else:
            each = nn.functional.binary_cross_entropy_with_logits(z, target[m].view_as(z), reduction="none").mean(1)
        expected = each.mean() if weight is None else (each * weight[m]).sum() / weight[m].sum()
        torch.testing.assert_close(losses[m], expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", OUTPUTS)
@pytest.mark.parametrize("name", PORTFOLIO)
def test_every_objective_knows_its_own_gradient(name, task, weighted):
    logits, target, weight = batch(task, weighted)
    found = []
    for differentiated in (lambda o: o.differentiated, lambda o: lambda *args: Objective.differentiated(o, *args)):
        objective = PORTFOLIO[name](task)  # a new one: some remember the batches they have seen
        objective.prepare(len(logits))
        objective.advance(0.3)
        found.append(differentiated(objective)(logits, target, weight))
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", PORTFOLIO)
@pytest.mark.parametrize("task", OUTPUTS)
def test_a_row_of_weight_two_is_a_row_seen_twice(name, task):
    logits, target, _ = batch(task, weighted=False)
    weight = torch.ones(logits.shape[:2])
    weight[:, ::3] = 2.0
    index = torch.cat([torch.arange(logits.shape[1]), torch.arange(0, logits.shape[1], 3)])
    pairs = []
    for args in ((logits, target, weight), (logits[:, index], target[:, index], None)):
        objective = PORTFOLIO[name](task)
        objective.prepare(len(logits))
        objective.advance(0.5)
        pairs.append(objective.differentiated(*args)[0])
    torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PORTFOLIO)
def test_rows_that_weigh_nothing_give_no_gradient(name):
    logits, target, _ = batch("binary", weighted=False)
    objective = PORTFOLIO[name]("binary")
    objective.prepare(len(logits))
    losses, slopes = objective.differentiated(logits, target, torch.zeros(logits.shape[:2]))
    assert bool(losses.isfinite().all())
    assert torch.equal(slopes, torch.zeros_like(slopes))


def test_a_blend_moves_from_cross_entropy_to_the_metric_and_is_judged_at_its_end():
    logits, target, _ = batch("binary", weighted=False)
    objective = PORTFOLIO["blend"]("binary")
    entropy, metric = CrossEntropy("binary")(logits, target), OnMetric("f1", "binary")(logits, target)
    for progress, share in ((0.0, 1.0), (0.4, 0.5), (0.8, 0.0), (1.0, 0.0)):
        objective.advance(progress)
        torch.testing.assert_close(objective(logits, target), share * entropy + (1 - share) * metric)
    objective.advance(0.0)
    torch.testing.assert_close(objective.eval()(logits, target), metric)


def test_the_costs_of_f1_stand_for_the_best_threshold_which_is_half_of_it():
    logits, target, _ = batch("binary", weighted=False, rows=400)
    objective = CostWeighted(OnMetric("f1", "binary"))
    objective.prepare(len(logits))
    objective.differentiated(logits, target, None)
    f1 = torch.stack([sl.score(z.squeeze(1), y, "f1") for z, y in zip(logits, target, strict=True)])
    torch.testing.assert_close(objective._shares().squeeze(1), (1 - f1 / 2).float())


@pytest.mark.parametrize("task", OUTPUTS)
@pytest.mark.parametrize("metric", ["f1", "mcc", "g_mean", "balanced_accuracy", "precision", "recall", "accuracy"])
def test_costs_stay_within_their_bounds_whatever_the_metric_and_the_counts(task, metric):
    logits, target, _ = batch(task, weighted=False)
    for z in (logits, torch.full_like(logits, -9.0), torch.full_like(logits, 9.0)):
        objective = CostWeighted(OnMetric(metric, task))
        objective.prepare(len(z))
        losses, slopes = objective.differentiated(z, target, None)
        share = objective._shares() / (3 if task == "multiclass" else 1)
        assert bool(((share >= 0.0099) & (share <= 0.9901)).all())
        assert bool(losses.isfinite().all())
        assert bool(slopes.isfinite().all())


def test_a_constraint_has_multipliers_of_each_members_own():
    logits = torch.cat([torch.full((1, 20, 1), -5.0), torch.full((1, 20, 1), 5.0)])  # recall 0, and recall 1
    objective = OnMetric("precision", "binary", subject_to="recall >= 0.9")
    Losses([(objective, 2)]).train()
    for _ in range(3):
        objective.differentiated(logits, torch.ones(2, 20), None)
    grown, still = (loss.multipliers.item() for loss in objective.each)
    assert grown > 1.0
    assert still == 1.0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Losses([]), "at least one group"),
        (lambda: Losses([(CrossEntropy("binary"), 0)]), "at least one member"),
        (lambda: Losses([(o := CrossEntropy("binary"), 1), (o, 1)]), "give each group one of its own"),
        (lambda: CrossEntropy("ordinal"), "task must be one of"),
        (lambda: Blend(OnMetric("f1", "binary"), sl.Schedule(sharpness=(1, 2))), "moves blend and nothing else"),
        (lambda: CostWeighted(OnMetric("auroc", "binary")), "keeps state or ranks rows"),
    ],
)
def test_losses_that_make_no_sense_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
