"""Gradients are right, finite where counts are empty, and never hide a NaN: for every metric, task and step."""

import math
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

import stepless as sl
from stepless.confusion import class_matrix
from stepless.counts import cells_of, counts_of

TASKS = ("binary", "multilabel", "multiclass")
SOFT = [make() for name, make in sl.STEPS.items() if name != "hard"]
every_metric = pytest.mark.parametrize("name", sl.METRICS)
every_task = pytest.mark.parametrize("task", TASKS)
every_step = pytest.mark.parametrize("step", SOFT, ids=str)


def draw(task, n=12, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)
    shape = {"binary": (n,), "multilabel": (n, 3), "multiclass": (n, 4)}[task]
    logits = 2 * torch.randn(shape, generator=random, dtype=dtype)
    if task == "multiclass":
        return logits, torch.randint(4, (n,), generator=random)
    return logits, (torch.rand(shape, generator=random) < 0.4).long()


def gradient(loss_fn, logits, target, **more):
    logits = logits.clone().requires_grad_()
    loss = loss_fn(logits, target, **more)
    loss.backward()
    return loss.detach(), logits.grad


# ---------------------------------------------------------------------------------------------------------------------
# Right
# ---------------------------------------------------------------------------------------------------------------------


@every_step
@pytest.mark.parametrize("tau", [0.3, 0.5, 0.6])
def test_gradient_of_a_step(step, tau):
    # clear of the break points, which lie at multiples of 0.05
    p = torch.tensor([0.03, 0.12, 0.27, 0.33, 0.48, 0.57, 0.62, 0.71, 0.97], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda p: step(p, tau), p)
    assert gradcheck(lambda p: step(p, torch.full_like(p, tau)), p)
    assert gradcheck(lambda z: step.from_logits(z, tau), torch.logit(p.detach()).requires_grad_())


@every_metric
@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_gradient_of_the_loss(name, task):
    logits, target = draw(task)
    assert ((logits.sigmoid() - 0.5).abs() - 0.25).abs().min() > 1e-4, "a score lies on a break point of the step"
    # a first and a second pass through one graph may round differently
    loss = partial(sl.metric_loss, target=target, metric=name, task=task)
    assert gradcheck(loss, logits.requires_grad_(), nondet_tol=1e-12, fast_mode=True)


@every_metric
def test_gradient_of_the_multiclass_loss(name):
    """The threshold of a sample is frozen: gradcheck a reference that holds it, and compare with that."""
    logits, target = draw("multiclass", n=7)
    loss_fn = sl.MetricLoss(name, task="multiclass", step=sl.Sigmoid())
    batch = loss_fn.path.read(logits, target, None)
    tau = torch.softmax(logits, 1).topk(2).values.mean(1, keepdim=True)

    def reference(z):
        decision = torch.sigmoid(10 * (torch.softmax(z, 1) - tau))
        matrix = class_matrix(batch, decision / decision.sum(1, keepdim=True), "batch")[0]
        metric = loss_fn.metric
        score = metric(matrix) if metric.kind == "matrix" else metric(*counts_of(cells_of(matrix))).mean()
        return metric.distance(score)

    z = logits.clone().requires_grad_()
    assert gradcheck(reference, z, fast_mode=True)
    expected = reference(z)
    expected.backward()
    loss, found = gradient(loss_fn, logits, target)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, z.grad)


@every_metric
def test_gradient_of_the_multiclass_loss_without_a_threshold(name):
    logits, target = draw("multiclass", n=7)
    loss = partial(sl.metric_loss, target=target, metric=name, task="multiclass", step="identity")
    assert gradcheck(loss, logits.requires_grad_(), fast_mode=True)


@every_metric
@every_step
@pytest.mark.parametrize("options", [{}, {"threshold": 0.3, "ignore_index": -1}, {"inputs": "probabilities"}], ids=list)
def test_forward_is_finish_of_measure(name, step, options):
    """Whatever shortcut forward takes, the loss is a function of the state."""
    logits, target = draw("binary", n=40)
    scores = logits.sigmoid() if "inputs" in options else logits
    target[::5] = -1 if "ignore_index" in options else 1
    weight = torch.linspace(0, 2, 40, dtype=torch.float64)
    loss_fn = sl.MetricLoss(name, step=step, **options)
    for more in ({}, {"sample_weight": weight}):
        loss, found = gradient(loss_fn, scores, target, **more)
        expected = gradient(
            lambda *args, **more: loss_fn.finish(loss_fn.measure(*args, **more)), scores, target, **more
        )
        torch.testing.assert_close(loss, expected[0])
        torch.testing.assert_close(found, expected[1])


def test_forward_is_finish_of_measure_for_many_samples():
    logits, target = draw("binary", n=2**20 + 5, dtype=torch.float32)
    loss_fn = sl.MetricLoss("f1")
    loss, found = gradient(loss_fn, logits, target)
    expected = gradient(lambda *args: loss_fn.finish(loss_fn.measure(*args)), logits, target)
    torch.testing.assert_close(loss, expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found, expected[1], rtol=1e-3, atol=1e-12)


@every_task
def test_a_step_of_ones_own_needs_no_more_than_a_call(task):
    @dataclass(frozen=True)
    class Smoothstep(sl.Step):
        def __call__(self, p, tau):
            return p * p * (3 - 2 * p)

    logits, target = draw(task)
    loss, found = gradient(sl.MetricLoss("f1", task=task, step=Smoothstep()), logits, target)
    assert loss.isfinite()
    assert found.abs().max() > 0


# ---------------------------------------------------------------------------------------------------------------------
# Finite
# ---------------------------------------------------------------------------------------------------------------------


def saturate(task, chosen):
    """Logits of ±1e4 that decide for ``chosen``, so that decisions and counts are exactly 0 or 1."""
    chosen = torch.nn.functional.one_hot(chosen, 4) if task == "multiclass" else chosen
    return (chosen.double() * 2 - 1) * 1e4


def mixed(task, logits, target):
    """Every second sample is beyond doubt, right or wrong by turns."""
    sure = saturate(task, target)
    sure[::4] *= -1
    every_second = (torch.arange(len(logits)) % 2 == 0).view(-1, *[1] * (logits.dim() - 1))
    return torch.where(every_second, sure, logits), target


# Batches on which a naive formula divides by zero or takes the root of zero.
CASES = {
    "no positives": lambda task, z, y: (z, torch.zeros_like(y)),
    "positives only": lambda task, z, y: (z, torch.ones_like(y)),
    "one sample": lambda task, z, y: (z[:1], y[:1]),
    "perfect": lambda task, z, y: (saturate(task, y), y),
    "all wrong": lambda task, z, y: (saturate(task, (y + 1) % (4 if task == "multiclass" else 2)), y),
    "nothing decided": lambda task, z, y: (saturate(task, torch.zeros_like(y)), y),
    "all decided": lambda task, z, y: (saturate(task, torch.ones_like(y)), y),
    "nothing to find, nothing decided": lambda task, z, y: (saturate(task, torch.zeros_like(y)), torch.zeros_like(y)),
    "mixed with ±1e4": mixed,
}


def edge(case, task):
    return CASES[case](task, *draw(task))


def assert_sound(loss_fn, logits, target):
    """Loss and gradient are finite, and the gradient is not all zero where other scores have another loss."""
    loss, found = gradient(loss_fn, logits, target)
    assert loss.isfinite()
    assert found.isfinite().all()
    random = torch.Generator().manual_seed(1)
    nearby = [logits + torch.randn(logits.shape, generator=random, dtype=logits.dtype) for _ in range(4)]
    if max(abs(loss_fn(z, target) - loss) for z in nearby) > 1e-9:
        assert found.abs().max() > 0, "something can be learned, but the gradient is zero"


@every_metric
@every_task
@pytest.mark.parametrize("case", CASES)
def test_finite_on_empty_cells(name, task, case):
    assert_sound(sl.MetricLoss(name, task=task), *edge(case, task))


@every_step
@every_task
@pytest.mark.parametrize("case", CASES)
def test_finite_for_every_step(step, task, case):
    logits, target = edge(case, task)
    loss, found = gradient(sl.MetricLoss("mcc", task=task, step=step, blend=0.1), logits, target)
    assert loss.isfinite()
    assert found.isfinite().all()


@every_metric
@every_task
@pytest.mark.parametrize("extra", [{}, {"blend": 0.3}, {"subject_to": "precision >= 0.9"}], ids=str)
def test_finite_on_the_way_to_certainty(name, task, extra):
    """Between logits of −40 and −104 a probability is neither 0 nor large enough for its reciprocal in float32."""
    logits, target = draw(task)
    logits = logits.float()
    for margin in (40, 60, 80, 86, 88, 90, 94, 98, 102):
        far = torch.where(torch.arange(4) == 3, logits - margin, logits) if task == "multiclass" else logits - margin
        for truth in (target, torch.zeros_like(target)):
            loss, found = gradient(sl.MetricLoss(name, task=task, **extra), far, truth)
            assert loss.isfinite(), margin
            assert found.isfinite().all(), margin


@every_metric
def test_finite_with_zero_division_nan(name):
    if "zero_division" not in sl.METRICS[name].defaults:
        with pytest.raises(TypeError, match="no option 'zero_division'"):
            sl.MetricLoss(name, zero_division=math.nan)
        return
    for task in ("multilabel", "multiclass"):
        for case in CASES:
            loss_fn = sl.MetricLoss(name, task=task, zero_division=math.nan)
            logits, target = edge(case, task)
            loss, found = gradient(loss_fn, logits, target)
            each = loss_fn.metric(*counts_of(loss_fn.measure(logits, target)["soft"]))
            assert loss.isfinite() or each.isnan().all(), (task, case)  # with no class left there is no mean
            assert found.isfinite().all(), (task, case)


@every_metric
def test_classes_may_be_ruled_out_by_minus_infinity(name):
    logits, target = draw("multiclass")
    ruled_out = (torch.arange(4) == 3).expand_as(logits) & (target != 3).unsqueeze(1)
    logits = logits.masked_fill(ruled_out, -math.inf)
    loss_fn = sl.MetricLoss(name, task="multiclass")
    assert_sound(loss_fn, logits, target)
    _, found = gradient(loss_fn, logits, target)
    assert (found[ruled_out] == 0).all()


@every_step
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_blends_may_rule_out_classes(step, soft):
    logits, target = draw("multiclass")
    truth = torch.nn.functional.one_hot(target, 4).double() if soft else target
    ruled_out = (torch.arange(4) == 3).expand_as(logits) & (target != 3).unsqueeze(1)
    loss_fn = sl.MetricLoss("f1", task="multiclass", step=step, blend=0.5)
    loss, found = gradient(loss_fn, logits.masked_fill(ruled_out, -math.inf), truth)
    assert loss.isfinite()
    assert found.isfinite().all()


@every_metric
@every_task
@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_nothing_is_learned_from_an_ignored_batch(name, task, blend):
    logits, target = draw(task)
    loss_fn = sl.MetricLoss(name, task=task, ignore_index=-1, blend=blend)
    loss, found = gradient(loss_fn, logits, torch.full_like(target, -1))
    assert loss.isfinite()
    assert (found == 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# Never hidden
# ---------------------------------------------------------------------------------------------------------------------


@every_metric
@every_task
@pytest.mark.parametrize("where", ["positive", "negative"])
def test_a_nan_score_gives_a_nan_loss(name, task, where):
    logits, target = draw(task)
    logits[(target == (where == "positive")).nonzero()[0].tolist()] = math.nan
    settings = [{}]
    if "zero_division" in sl.METRICS[name].defaults:
        settings.append({"zero_division": math.nan})
    if task == "multilabel":
        settings += [{"average": average} for average in ("micro", "weighted", "samples")]
    for options in settings:
        assert sl.metric_loss(logits, target, name, task=task, **options).isnan(), options


@every_step
@every_task
def test_no_step_hides_a_nan(step, task):
    logits, target = draw(task)
    logits[3] = math.nan
    assert sl.metric_loss(logits, target, "f1", task=task, step=step).isnan()


# ---------------------------------------------------------------------------------------------------------------------
# Precision
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[torch.float16, torch.bfloat16], ids=str)
def images(request):
    """Logits and masks of four images of 512×512, as after some training, and their counts in double precision."""
    random = torch.Generator().manual_seed(0)
    mask = torch.rand(4, 1, 512, 512, generator=random) < 0.3
    logits = (3.0 * (mask * 2 - 1) + torch.randn(mask.shape, generator=random)).to(request.param)
    return logits, mask, sl.MetricLoss("f1").measure(logits.double(), mask)


@every_metric
def test_half_precision_counts_in_single(name, images):
    logits, mask, exact = images
    loss_fn = sl.MetricLoss(name)
    loss, found = gradient(loss_fn, logits, mask)
    assert loss.dtype == torch.float32
    assert found.dtype == logits.dtype
    assert found.isfinite().all()
    assert found.abs().max() > 0
    torch.testing.assert_close(loss.double(), loss_fn.finish(exact), rtol=0, atol=1e-5)


def test_the_state_of_half_precision_is_single(images):
    logits, mask, exact = images
    state = sl.MetricLoss("f1").measure(logits, mask).vector
    assert state.dtype == torch.float32
    torch.testing.assert_close(state.double(), exact.vector, rtol=0, atol=1.0)  # one in a million


@every_metric
@every_task
def test_autocast_counts_in_single(name, task):
    logits, target = draw(task, dtype=torch.float32)
    loss_fn = sl.MetricLoss(name, task=task, blend=0.2)
    truth = torch.softmax(logits.flip(0), 1) if task == "multiclass" else target  # class probabilities go by a matmul
    expected = gradient(loss_fn, logits, truth)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16, "autocast is off"
        assert loss_fn.measure(logits, truth).vector.dtype == torch.float32
        assert loss_fn.measure(logits.bfloat16(), truth).vector.dtype == torch.float32
        z = logits.clone().requires_grad_()
        loss = loss_fn(z, truth)
    loss.backward()  # outside, as torch's documentation asks
    torch.testing.assert_close((loss.detach(), z.grad), expected, rtol=0, atol=0)


@every_task
@pytest.mark.parametrize(
    ("spread", "weighted"), [(1.0, False), (0.0, False), (0.0, True)], ids=["varied", "alike", "alike-weighted"]
)
def test_single_precision_counts_a_million_samples(task, spread, weighted):
    """Scores that are alike are the hard case: their rounding errors add up instead of cancelling."""
    n = 1_000_000
    random = torch.Generator().manual_seed(0)
    target = (torch.rand((n, 2) if task == "multilabel" else (n,), generator=random) < 0.9).long()
    truth = torch.nn.functional.one_hot(target, 3) if task == "multiclass" else target
    logits = truth * 2.0 - 1 + spread * torch.randn(truth.shape, generator=random)
    weight = torch.full((n,), 0.7) if weighted else None
    states = {}
    for name, metric in sl.METRICS.items():
        loss_fn = sl.MetricLoss(name, task=task)
        kind = metric.kind == "matrix"
        if kind not in states:
            single = loss_fn.measure(logits, target, weight)
            states[kind] = single, loss_fn.measure(logits.double(), target, weight)
            shortcut = loss_fn(logits, target, weight)
            torch.testing.assert_close(shortcut, loss_fn.finish(single), rtol=0, atol=1e-5)
        single, double = map(loss_fn.finish, states[kind])
        torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
