"""The laws of counting and of steps, over the registries: a new metric or step is held to them without being named."""

import dataclasses
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless import steps
from stepless.confusion import class_matrix, decide_class
from stepless.counts import Counts, cells_of, counts_of
from stepless.steps import Promise

TASKS = ("binary", "multilabel", "multiclass")
TAUS = (0.05, 0.3, 0.5, 0.8, 0.95)
SOFT = [make() for name, make in sl.STEPS.items() if name != "hard"]
SHARPENING = [step for step in SOFT if Promise.SHARPENS in step.promises]
EVERY_STEP = [sl.Hard(), *SOFT, *(step.sharpened(7.0) for step in SHARPENING)]

# Settings beside the plain loss of every metric; each must obey the laws of merging too.
ANY_TASK = (
    {"blend": 0.3},
    {"blend": 0.3, "cross_entropy": "balanced"},
    {"subject_to": "recall >= 0.99 and fpr <= 0.01"},
    {"per_image": True},
    {"step": "raised_cosine"},
)
SETTINGS = {
    "binary": (*ANY_TASK, {"threshold": 0.3}, {"threshold": (0.2, 0.5, 0.7)}),
    "multilabel": (
        *ANY_TASK,
        {"average": "micro"},
        {"average": "weighted"},
        {"average": "samples"},
        {"weight": (1.0, 2.0, 0.5)},
        {"threshold": (0.2, 0.5, 0.7)},
        {"threshold": ((0.2, 0.5, 0.7), (0.6, 0.5, 0.4))},
    ),
    "multiclass": (
        *ANY_TASK,
        {"average": "micro"},
        {"average": "weighted"},
        {"weight": (1.0, 2.0, 0.5, 0.1)},
        {"threshold": (0.0, 0.4, -0.3, 0.1)},
    ),
}
LOSSES = [(name, task, {}) for name in sl.METRICS for task in TASKS]
LOSSES += [("f1", task, options) for task in TASKS for options in SETTINGS[task]]


def over(losses):
    return pytest.mark.parametrize(
        ("name", "task", "options"), losses, ids=lambda v: ",".join(v) if isinstance(v, dict) else v
    )


def promising(promise):
    return pytest.mark.parametrize("step", [step for step in EVERY_STEP if promise in step.promises], ids=str)


every_loss = over(LOSSES)
every_step = pytest.mark.parametrize("step", EVERY_STEP, ids=str)
every_metric = pytest.mark.parametrize("name", sl.METRICS)
every_task = pytest.mark.parametrize("task", TASKS)


def draw(task, n=24, seed=0, pixels=()):
    random = torch.Generator().manual_seed(seed)
    shape = {"binary": (n, *pixels), "multilabel": (n, 3, *pixels), "multiclass": (n, 4, *pixels)}[task]
    logits = 2 * torch.randn(shape, generator=random, dtype=torch.float64)
    if task == "multiclass":
        return logits, torch.randint(4, (n, *pixels), generator=random)
    return logits, (torch.rand(shape, generator=random) < 0.4).long()


def draw_for(task, options):
    return draw(task, pixels=(3,) if "per_image" in options else ())


def weights():
    return torch.rand(24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def make_loss(name, task, options, **more):
    return sl.MetricLoss(name, task=task, **options, **more).eval()  # a training forward would move the multipliers


def tally(task, step, *metrics, weight=None, seed=0, **options):
    """The counts of a batch, by the path that every loss and score takes."""
    path = make_loss("f1", task, options).path
    batch = path.read(*draw(task, seed=seed), weight)
    return path.tally(batch, step, tuple(sl.METRICS[m] for m in metrics or ("f1",)))


# ---------------------------------------------------------------------------------------------------------------------
# Nothing escapes
# ---------------------------------------------------------------------------------------------------------------------


def test_every_step_is_registered():
    written = {cls for cls in vars(steps).values() if isinstance(cls, type) and issubclass(cls, sl.Step)} - {sl.Step}
    assert set(sl.STEPS.values()) == written


@pytest.mark.parametrize("step", sl.STEPS.values())
def test_every_step_declares_its_promises(step):
    assert "promises" in vars(step), "a step that inherits no promises is held to no law"
    assert step.promises <= set(Promise)
    assert (Promise.SHARPENS in step.promises) == ("sharpened" in vars(step))


def test_every_promise_is_kept_by_some_step():
    assert set().union(*(step.promises for step in SOFT)) == set(Promise)


# ---------------------------------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------------------------------


@every_step
@pytest.mark.parametrize("tau", TAUS)
def test_monotone_within_0_and_1(step, tau):
    p = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for decision in (step(p, tau), step(p, torch.full_like(p, tau)), step.from_logits(torch.logit(p), tau)):
        assert (decision.diff() >= -1e-12).all()
        assert decision.min() >= -1e-12
        assert decision.max() <= 1 + 1e-12


@every_step
@pytest.mark.parametrize("tau", TAUS)
def test_logits_and_probabilities_decide_alike(step, tau):
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(step.from_logits(z, tau), step(z.sigmoid(), tau))


@promising(Promise.HALF)
@pytest.mark.parametrize("tau", TAUS)
def test_half_at_the_threshold(step, tau):
    at = torch.tensor(tau, dtype=torch.float64)
    for threshold in (tau, at):
        assert step(at, threshold).item() == pytest.approx(0.5, abs=1e-9)


@promising(Promise.ENDS)
def test_0_and_1_at_the_ends(step):
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for tau in TAUS:
        if isinstance(step, sl.RaisedCosine) and step.delta > min(tau, 1 - tau):
            continue  # a band wider than the margin is cut off before it reaches 0 or 1
        for threshold in (tau, torch.full_like(ends, tau)):
            torch.testing.assert_close(step(ends, threshold), ends, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_default_step_is_0_and_1_at_the_ends_to_the_bit(dtype):
    ends = torch.tensor([0.0, 1.0], dtype=dtype)  # or 0/0 becomes a ratio of roundings
    for tau in torch.linspace(0.01, 0.99, 99).tolist():
        for threshold in (tau, torch.full_like(ends, tau)):
            assert sl.Linear()(ends, threshold).tolist() == [0.0, 1.0]
            assert sl.Linear(delta=0.2, width=0.5)(ends, threshold).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("step", SHARPENING, ids=str)
@over([*(("f1", task, {}) for task in TASKS), ("f1", "multiclass", SETTINGS["multiclass"][-1])])
def test_sharpened_counts_become_the_hard_ones(step, name, task, options):
    hard = tally(task, sl.Hard(), name, **options)
    gaps = [
        (tally(task, step.sharpened(k), name, **options) - hard).abs().max().item() for k in (1.0, 10.0, 100.0, 1e5)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.1
    assert gaps[-1] < 1e-3


@pytest.mark.parametrize("step", SHARPENING, ids=str)
@every_metric
@every_task
def test_sharpened_scores_become_the_hard_ones(step, name, task):
    logits, target = draw(task)
    loss_fn = sl.MetricLoss(name, task=task, step=step.sharpened(1e6))
    expected = loss_fn.metric.distance(loss_fn.score(logits, target))
    torch.testing.assert_close(loss_fn(logits, target), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("step", SHARPENING, ids=str)
def test_sharpened_by_a_tensor_is_sharpened_by_its_number(step):
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(step.sharpened(torch.tensor(3.0, dtype=p.dtype))(p, 0.3), step.sharpened(3.0)(p, 0.3))


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("delta", [0.0, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("width", [1.0, 0.5, 0.1])
def test_linear_is_the_papers(tau, delta, width):
    """Break points and slopes m1, m2, m3 of *Bridging the Gap*, and the Lipschitz constant of its Theorem 4.1."""
    step, half = sl.Linear(delta=delta, width=width), width * min(tau, 1 - tau) / 2
    x = torch.tensor([0.0, tau - half, tau, tau + half, 1.0], dtype=torch.float64)
    y = torch.tensor([0.0, delta, 0.5, 1 - delta, 1.0], dtype=torch.float64)
    torch.testing.assert_close(step(x, tau), y)

    slopes = [delta / (tau - half), (0.5 - delta) / half, (0.5 - delta) / half, delta / (1 - tau - half)]
    middles = ((x[1:] + x[:-1]) / 2).requires_grad_()
    (found,) = torch.autograd.grad(step(middles, tau).sum(), middles)
    torch.testing.assert_close(found, torch.tensor(slopes, dtype=torch.float64))

    grid = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    steepest = (step(grid, tau).diff() / grid.diff()).max().item()
    assert steepest == pytest.approx(max(slopes), rel=1e-6)


@every_step
def test_steps_are_frozen_hashable_and_picklable(step):
    copy = pickle.loads(pickle.dumps(step))
    assert copy == step
    assert hash(copy) == hash(step)
    assert repr(copy) == repr(step)
    for field in [*dataclasses.fields(step), "new"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(step, getattr(field, "name", field), 0.3)


# ---------------------------------------------------------------------------------------------------------------------
# Counts
# ---------------------------------------------------------------------------------------------------------------------


@every_step
@pytest.mark.parametrize("threshold", [0.5, 0.3, (0.1, 0.5, 0.8)], ids=str)
@pytest.mark.parametrize("weight", [None, weights()], ids=["plain", "weighted"])
@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_cells_add_up_to_support_and_size(step, threshold, weight, task):
    _, target = draw(task)
    each = torch.ones(24, dtype=torch.float64) if weight is None else weight
    counts = counts_of(tally(task, step, weight=weight, threshold=threshold))
    support = (each @ target.double()).expand_as(counts.tp[:, 0])
    torch.testing.assert_close(counts.support[:, 0], support.reshape(counts.tp[:, 0].shape))
    torch.testing.assert_close(counts.total, each.sum().expand_as(counts.total))
    assert all((cell >= -1e-9).all() for cell in counts)


@every_step
@pytest.mark.parametrize("offsets", [None, (0.0, 0.4, -0.3, 0.1)], ids=["dynamic", "offsets"])
@pytest.mark.parametrize("weight", [None, weights()], ids=["plain", "weighted"])
def test_class_counts_add_up_to_support_and_size(step, offsets, weight):
    _, target = draw("multiclass")
    each = torch.ones(24, dtype=torch.float64) if weight is None else weight
    support = torch.bincount(target, each, minlength=4)
    matrix = tally("multiclass", step, "cost", weight=weight, threshold=offsets)[0, 0]
    cells = tally("multiclass", step, "f1", weight=weight, threshold=offsets)[0, 0]
    torch.testing.assert_close(matrix.sum(1), support)
    torch.testing.assert_close(counts_of(cells).support, support)
    torch.testing.assert_close(counts_of(cells).total, each.sum().expand(4))
    torch.testing.assert_close(cells, cells_of(matrix))  # the short way and the long way count alike


@pytest.mark.parametrize("step", SOFT, ids=str)
def test_two_classes_are_a_binary_task(step):
    logits, target = draw("binary")
    pair = torch.stack([torch.zeros_like(logits), logits], 1)
    binary, both = (sl.MetricLoss("f1", task=task, step=step) for task in ("binary", "multiclass"))
    of_binary = binary.measure(logits, target)["soft"][0, 0, 0]
    of_both = both.measure(pair, target)["soft"][0, 0, 1]
    torch.testing.assert_close(of_both, of_binary)


@pytest.mark.parametrize("step", [sl.Linear(), sl.Sigmoid(), sl.Identity()], ids=str)
@pytest.mark.parametrize("name", [name for name, metric in sl.METRICS.items() if metric.kind != "class"])
def test_two_classes_have_the_binary_loss(name, step):
    logits, target = draw("binary")
    pair = torch.stack([torch.zeros_like(logits), logits], 1)
    expected = sl.metric_loss(logits, target, name, step=step)
    torch.testing.assert_close(sl.metric_loss(pair, target, name, task="multiclass", step=step), expected)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", sl.METRICS)
def test_scores_stay_within_the_range(name, task):
    least, greatest = sl.METRICS[name].range
    torch.manual_seed(0)
    for _ in range(40):
        shape = (12,) if task == "binary" else (12, 3)
        target = torch.randint(3, (12,)) if task == "multiclass" else torch.randint(2, shape)
        found = sl.score(torch.randn(shape), target, name, task=task).item()
        assert least - 1e-9 <= found <= greatest + 1e-9


@every_metric
@settings(max_examples=40, deadline=None)
@given(
    matrix=st.integers(2, 4).flatmap(lambda k: st.lists(st.integers(0, 30), min_size=k * k, max_size=k * k)),
    factor=st.sampled_from([0.25, 3.0, 1000.0]),
)
def test_scores_do_not_depend_on_the_size_of_the_counts(name, matrix, factor):
    metric = sl.METRICS[name]
    classes = int(len(matrix) ** 0.5)
    table = torch.tensor(matrix, dtype=torch.float64).view(classes, classes)

    def score(table):
        return metric(table) if metric.kind == "matrix" else metric(*counts_of(cells_of(table)))

    torch.testing.assert_close(score(factor * table), score(table))


# ---------------------------------------------------------------------------------------------------------------------
# Losses
# ---------------------------------------------------------------------------------------------------------------------


@every_loss
def test_the_order_of_samples_does_not_matter(name, task, options):
    logits, target = draw_for(task, options)
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(2))
    loss_fn = make_loss(name, task, options)
    torch.testing.assert_close(loss_fn(logits[order], target[order]), loss_fn(logits, target))


@every_loss
@pytest.mark.parametrize("junk", [1e4, float("nan")])
def test_masked_is_filtered(name, task, options, junk):
    logits, target = draw_for(task, options)
    masked = torch.arange(24) % 3 == 1
    holed = logits.masked_fill(masked.view(-1, *[1] * (logits.dim() - 1)), junk).requires_grad_()
    marked = target.masked_fill(masked.view(-1, *[1] * (target.dim() - 1)), -1)
    loss_fn = make_loss(name, task, options, ignore_index=-1)
    loss = loss_fn(holed, marked, weights())
    loss.backward()

    kept = logits[~masked].requires_grad_()
    expected = loss_fn(kept, target[~masked], weights()[~masked])
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(holed.grad[~masked], kept.grad)
    assert (holed.grad[masked] == 0).all()


def test_a_label_may_be_masked_by_itself():
    logits, target = draw("multilabel")
    masked = torch.rand(target.shape, generator=torch.Generator().manual_seed(3)) < 0.3
    loss = sl.metric_loss(logits, target.masked_fill(masked, -1), "f1", task="multilabel", ignore_index=-1)
    labels = [sl.metric_loss(logits[~m, i], target[~m, i], "f1") for i, m in enumerate(masked.T)]
    torch.testing.assert_close(loss, torch.stack(labels).mean())


@every_task
def test_a_sample_without_pixels_is_an_image_of_one_pixel(task):
    logits, target = draw(task)
    loss_fn = sl.MetricLoss("f1", task=task, per_image=True)
    torch.testing.assert_close(loss_fn(logits, target), loss_fn(logits.unsqueeze(-1), target.unsqueeze(-1)))


@every_metric
@every_task
def test_nothing_counted_is_not_a_perfect_score(name, task):
    metric = sl.METRICS[name]
    logits, target = draw(task)
    score = sl.score(logits, torch.full_like(target, -1), name, task=task, ignore_index=-1)
    assert score.item() == metric.best if not metric.greater_is_better else score.item() < metric.best


@over([("recall", "multilabel", {"average": "samples"}), ("recall", "binary", {"per_image": True})])
def test_undefined_units_are_dropped_by_zero_division_nan(name, task, options):
    """Recall of a row or image without positives is undefined; as in scikit-learn, the mean is that of the others."""
    logits, target = draw_for(task, options)
    target[::4] = 0
    defined = target.sum(1) > 0
    loss_fn = make_loss(name, task, options, zero_division=float("nan"))
    torch.testing.assert_close(loss_fn(logits, target), loss_fn(logits[defined], target[defined]))


@every_loss
def test_weight_two_is_a_sample_twice(name, task, options):
    logits, target = draw_for(task, options)
    times = torch.arange(24) % 3  # 0, 1 and 2 times
    loss_fn = make_loss(name, task, options)
    torch.testing.assert_close(
        loss_fn(logits, target, times.double()),
        loss_fn(logits.repeat_interleave(times, 0), target.repeat_interleave(times, 0)),
    )


@every_loss
def test_states_add(name, task, options):
    """The loss of the sum of states is the loss of the whole batch, and so is its gradient."""
    logits, target = draw_for(task, options)
    loss_fn = make_loss(name, task, options)
    whole, parted = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = loss_fn(whole, target, weights())
    loss.backward()

    parts = [loss_fn.measure(parted[part], target[part], weights()[part]) for part in (slice(0, 7), slice(7, 24))]
    merged = loss_fn.finish(parts[0] + parts[1])
    merged.backward()
    torch.testing.assert_close(merged, loss)
    torch.testing.assert_close(parted.grad, whole.grad)


# an image or a row of labels is scored by itself: its score is no sum over rows
@over([loss for loss in LOSSES if make_loss(*loss).path.unit == "batch"])
def test_a_soft_target_is_weighted_rows(name, task, options):
    """A target of 0.3 counts as a positive that weighs 0.3 and a negative that weighs 0.7."""
    loss_fn = make_loss(name, task, options)
    logits, _ = draw(task)
    if task == "multiclass":
        share = torch.softmax(draw(task, seed=4)[0], 1)
        soft, rows = share, [torch.full((24,), k) for k in range(4)]
    else:
        yes = weights()
        share = torch.stack([1 - yes, yes], 1)
        soft = yes.view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
        rows = [torch.zeros_like(logits), torch.ones_like(logits)]
    expected = loss_fn(logits.repeat(len(rows), *[1] * (logits.dim() - 1)), torch.cat(rows), share.T.reshape(-1))
    torch.testing.assert_close(loss_fn(logits, soft), expected)


@every_metric
@every_task
def test_min_overlap_is_best_at_the_target(name, task):
    metric = sl.METRICS[name]
    if task == "multiclass" and metric.kind == "matrix":
        with pytest.raises(ValueError, match="not defined"):
            sl.MetricLoss(name, task=task, overlap="min")
        return
    loss_fn = sl.MetricLoss(name, task=task, overlap="min", step="identity", inputs="probabilities")
    squash = torch.sigmoid if task != "multiclass" else lambda z: torch.softmax(z, 1)
    logits = draw(task)[0]
    target = squash(logits)
    at_target = loss_fn(target, target)
    # one cell of error either way: a metric that reads both errors is best nowhere else
    right, missed, alarmed = (
        sl.score(scores, torch.tensor([1.0, 1, 0, 0]), name)
        for scores in ([1.0, 1, -1, -1], [1.0, -1, -1, -1], [1.0, 1, 1, -1])
    )
    reads_both = metric.distance(missed) > metric.distance(right) < metric.distance(alarmed)
    for seed in range(8):
        elsewhere = loss_fn(squash(logits + 0.3 * draw(task, seed=seed + 10)[0]), target)
        assert elsewhere > at_target if reads_both else elsewhere >= at_target - 1e-12


def test_expected_overlap_is_not_best_at_a_soft_target():
    """Why "min" exists: Σ y·h rewards a bolder decision than the target."""
    target = torch.full((8,), 0.7)
    bolder = torch.full((8,), 0.9)
    for overlap, best in (("expected", bolder), ("min", target)):
        loss_fn = sl.MetricLoss("f1", overlap=overlap, step="identity", inputs="probabilities")
        assert min((target, bolder), key=lambda h: loss_fn(h, target).item()) is best


def test_multiclass_threshold_is_the_midpoint_of_the_two_largest():
    logits, target = draw("multiclass")
    path = make_loss("f1", "multiclass", {}).path
    batch = path.read(logits, target, None)
    p = torch.softmax(logits, 1)
    top = p.sort(1, descending=True).values
    tau = (top[:, :1] + top[:, 1:2]) / 2
    decision = torch.sigmoid(10 * (p - tau))
    decision = decision / decision.sum(1, keepdim=True)
    torch.testing.assert_close(decide_class(batch, sl.Sigmoid(k=10), None), decision)
    counts = Counts(*cells_of(class_matrix(batch, decision, "batch")[0]).unbind(-1))
    torch.testing.assert_close(
        sl.metric_loss(logits, target, "f1", task="multiclass", step=sl.Sigmoid(k=10)),
        (1 - sl.METRICS["f1"](*counts)).mean(),
    )
