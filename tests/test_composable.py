"""A loss goes through everything torch does to a function: compile, vmap, grad, fake tensors, pickles, checkpoints."""

import copy
import io
import pickle
import shutil
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import stepless as sl
from stepless.numerics import constant

TASKS = ("binary", "multilabel", "multiclass")
ANY_TASK = (
    {"blend": 0.3},
    {"blend": 0.3, "cross_entropy": "balanced"},
    {"schedule": sl.Schedule(blend=(1.0, 0.0), sharpness=(1.0, 5.0))},
    {"subject_to": "recall >= 0.99 and fpr <= 0.01"},
    {"ignore_index": 1},
)
SETTINGS = {
    "binary": (*ANY_TASK, {"threshold": (0.2, 0.5, 0.7)}, {"step": "logit_sigmoid"}),
    "multilabel": (
        *ANY_TASK,
        {"average": "samples"},
        {"weight": (1.0, 2.0, 0.5)},
        {"threshold": (0.2, 0.5, 0.7)},
        {"zero_division": float("nan")},
    ),
    "multiclass": (*ANY_TASK, {"weight": (1.0, 2.0, 0.5, 0.1)}, {"threshold": (0.0, 0.4, -0.3, 0.1)}),
}


def kulczynski(tp, fp, fn, tn):
    return (tp / (tp + fp) + tp / (tp + fn)) / 2


PLAIN = [(name, task, {}) for name in sl.METRICS for task in TASKS]
FORMULAS = [(formula, task, {}) for formula in (kulczynski, "sqrt(tp / (tp + fp)) + min(tp, tn)") for task in TASKS]
SPECIAL = [*FORMULAS, *(("f1", task, options) for task in TASKS for options in SETTINGS[task])]


def over(losses):
    return pytest.mark.parametrize(
        ("metric", "task", "options"),
        losses,
        ids=lambda v: ",".join(v) if isinstance(v, dict) else getattr(v, "__name__", v),
    )


every_loss = over([*PLAIN, *SPECIAL])
#: A compilation takes a second. Formulas know nothing of tasks, so one task each will do until `make check-full`.
every_loss_in_turn = over(
    [
        *(pytest.param(*one, marks=() if place // 3 % 3 == place % 3 else pytest.mark.full)
          for place, one in enumerate(PLAIN)),
        *SPECIAL,
    ]
)  # fmt: skip


def draw(task, n=12, lead=()):
    random = torch.Generator().manual_seed(0)
    shape = {"binary": (*lead, n), "multilabel": (*lead, n, 3), "multiclass": (*lead, n, 4)}[task]
    logits = 2 * torch.randn(shape, generator=random, dtype=torch.float64)
    if task == "multiclass":
        return logits, torch.randint(4, (*lead, n), generator=random)
    return logits, (torch.rand(shape, generator=random) < 0.4).long()


def gradient(loss_fn, logits, target):
    logits = logits.clone().requires_grad_()
    loss = loss_fn(logits, target)
    loss.backward()
    return loss.detach(), logits.grad


# ---------------------------------------------------------------------------------------------------------------------
# torch.compile
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@every_loss_in_turn
def test_compiles_as_one_graph(metric, task, options):
    """In training mode, twice, with progress between: state that moves must move in the compiled loss too."""
    logits, target = draw(task)
    eager = sl.MetricLoss(metric, task=task, **options)
    compiled = copy.deepcopy(eager)
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for progress in (0.0, 0.5):
        eager.advance(progress)
        compiled.advance(progress)
        torch.testing.assert_close(gradient(run, logits, target), gradient(eager, logits, target))
    for buffer, expected in zip(compiled.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected)


STATELESS = [(m, t, o) for m, t, o in SPECIAL if not {"schedule", "subject_to"} & set(o)]


def check_functional(metric, task, options):
    """The loss is made anew in every call, and so inside of the graph."""
    logits, target = draw(task)

    def loss(scores, truth):
        return sl.metric_loss(scores, truth, metric, task=task, **options)

    run = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(gradient(run, logits, target), gradient(loss, logits, target))


@pytest.mark.usefixtures("fresh_compiler")
@over([*FORMULAS[::3], ("mcc", "binary", {}), ("f_beta", "multiclass", {"beta": 2}), ("auroc", "binary", {})])
def test_the_functional_loss_compiles_as_one_graph(metric, task, options):
    check_functional(metric, task, options)


@pytest.mark.full
@pytest.mark.usefixtures("fresh_compiler")
@over([*PLAIN, *STATELESS])
def test_the_functional_loss_of_every_metric_compiles_as_one_graph(metric, task, options):
    check_functional(metric, task, options)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("functional", [False, True])
@over([("f1", "multiclass", {}), ("f1", "multilabel", {"average": "samples"}), ("mcc", "multiclass", {}),
       ("f1", "multiclass", {"zero_division": float("nan"), "average": "weighted"})])  # fmt: skip
def test_compiles_with_sizes_that_are_variables(metric, task, options, functional):
    logits, target = draw(task)
    eager = sl.MetricLoss(metric, task=task, **options)
    made = partial(sl.metric_loss, metric=metric, task=task, **options) if functional else copy.deepcopy(eager)
    run = torch.compile(made, fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(gradient(run, logits, target), gradient(eager, logits, target))


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_for_any_batch_size():
    """The size of a batch changes all the time: one graph must do after the second size."""
    loss_fn = sl.MetricLoss("f1")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    run = torch.compile(loss_fn, fullgraph=True, backend=counter)
    for n in (12, 13, 14, 15):
        torch.testing.assert_close(gradient(run, *draw("binary", n)), gradient(loss_fn, *draw("binary", n)))
    assert counter.frame_count <= 2


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler: install g++")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", ["f1", "mcc", "g_mean", "weighted_kappa"])
def test_inductor_gives_the_same_gradient(metric, task):
    logits, target = draw(task)
    loss_fn = sl.MetricLoss(metric, task=task, blend=0.2)
    run = torch.compile(loss_fn, fullgraph=True)
    torch.testing.assert_close(gradient(run, logits, target), gradient(loss_fn, logits, target))


# ---------------------------------------------------------------------------------------------------------------------
# torch.func
# ---------------------------------------------------------------------------------------------------------------------

# what keeps state between batches is no function
FUNCTIONS = [loss for loss in [*PLAIN, *SPECIAL] if not {"schedule", "subject_to"} & set(loss[2])]


@over(FUNCTIONS)
def test_vmap_and_grad_equal_a_loop(metric, task, options):
    logits, target = draw(task, lead=(3,))

    def loss(z, y):
        return sl.metric_loss(z, y, metric, task=task, **options)

    loop = [gradient(loss, z, y) for z, y in zip(logits, target, strict=True)]
    torch.testing.assert_close(torch.vmap(loss)(logits, target), torch.stack([value for value, _ in loop]))
    found = torch.vmap(torch.func.grad(loss))(logits, target)
    torch.testing.assert_close(found, torch.stack([slope for _, slope in loop]))


@pytest.mark.parametrize("task", TASKS)
def test_per_sample_gradients_of_a_model(task):
    """What vmap is for: one gradient of a parameter for each of many batches."""
    logits, target = draw(task, lead=(3,))
    scale = torch.tensor(0.7, dtype=torch.float64)

    def loss(scale, z, y):
        return sl.metric_loss(scale * z, y, "f1", task=task)

    found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(scale, logits, target)
    loop = [torch.func.grad(loss)(scale, z, y) for z, y in zip(logits, target, strict=True)]
    torch.testing.assert_close(found, torch.stack(loop))


@pytest.mark.parametrize("task", TASKS)
def test_batched_backward(task):
    logits, target = draw(task)
    loss_fn = sl.MetricLoss("f1", task=task)
    found = torch.autograd.functional.jacobian(lambda z: loss_fn(z, target), logits, vectorize=True)
    torch.testing.assert_close(found, gradient(loss_fn, logits, target)[1])


@pytest.mark.parametrize("task", TASKS)
def test_second_derivatives(task):
    logits, target = draw(task, n=4)
    loss = sl.MetricLoss("f1", task=task, step=sl.Identity() if task == "multiclass" else sl.Sigmoid(k=3))
    assert torch.autograd.gradgradcheck(lambda z: loss(z, target), logits.requires_grad_(), nondet_tol=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# No waiting for the device
# ---------------------------------------------------------------------------------------------------------------------


@every_loss
def test_forward_and_backward_read_no_value(metric, task, options):
    """Fake tensors have no values: reading one, or branching on one, fails."""
    loss_fn = sl.MetricLoss(metric, task=task, **options)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits, target = draw(task)
        loss_fn(logits.requires_grad_(), target).backward()


@every_loss
def test_a_loss_follows_its_input_to_another_device(metric, task, options):
    """The loss itself is not moved. The meta device stands for an accelerator: it refuses tensors of the CPU, too."""
    logits, target = (x.to("meta") for x in draw(task))
    loss_fn = sl.MetricLoss(metric, task=task, **options)
    for _ in range(2):  # the first batch may move what the second meets
        loss = loss_fn(logits.requires_grad_(), target)
        loss.backward()
        assert loss.device.type == "meta"


def test_reading_a_value_would_have_been_noticed():
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        sl.MetricLoss("f1", validate=True)(*draw("binary"))


@every_loss
def test_backward_of_the_state_never_waits(metric, task, options):
    """Some of torch's own derivatives read a value (that of ``prod`` does), though not with fake tensors."""
    logits, target = draw(task)
    loss_fn = sl.MetricLoss(metric, task=task, **options)
    with torch.autograd.profiler.profile() as profile:
        loss_fn.finish(loss_fn.measure(logits.requires_grad_(), target)).backward()
    called = {event.name for event in profile.function_events}
    assert any(name.endswith("Backward0") for name in called), "nothing was recorded"
    assert not called & {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}


@over([("f1", task, {}) for task in TASKS] + FORMULAS)
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_made_and_called_without_gradients(metric, task, options, without):
    logits, target = draw(task)
    expected = sl.metric_loss(logits, target, metric, task=task, **options)
    with without():
        loss = sl.metric_loss(logits, target, metric, task=task, **options)
    torch.testing.assert_close(loss, expected)


def test_a_kept_constant_can_train():
    """Constants are kept on an accelerator, and training must not meet one that was made in inference mode."""
    like = torch.zeros(2, device="meta")  # not the CPU, and always there
    with torch.inference_mode():
        constant((0.25, 0.75), like)
    assert not constant((0.25, 0.75), like).is_inference()


# ---------------------------------------------------------------------------------------------------------------------
# The same again
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@every_loss
def test_deterministic(metric, task, options):
    logits, target = draw(task, n=500)
    loss_fn = sl.MetricLoss(metric, task=task, **options).eval()
    torch.testing.assert_close(
        gradient(loss_fn, logits, target), gradient(loss_fn, logits, target), rtol=0, atol=0, equal_nan=True
    )


@every_loss
def test_pickle_and_deepcopy(metric, task, options):
    logits, target = draw(task)
    loss_fn = sl.MetricLoss(metric, task=task, **options)
    loss_fn(logits, target)  # moves what moves while training
    loss_fn.advance(0.25)
    loss_fn.eval()
    for twin in (copy.deepcopy(loss_fn), pickle.loads(pickle.dumps(loss_fn))):
        torch.testing.assert_close(twin(logits, target), loss_fn(logits, target), rtol=0, atol=0)
        assert repr(twin) == repr(loss_fn)


@pytest.mark.parametrize("task", TASKS)
def test_a_checkpoint_holds_progress_and_multipliers(task):
    logits, target = draw(task)

    def make():
        schedule = sl.Schedule(blend=(1.0, 0.0), sharpness=(1.0, 5.0))
        return sl.MetricLoss("f1", task=task, schedule=schedule, subject_to="recall >= 0.99")

    trained = make()
    trained.advance(0.5)
    for _ in range(3):
        trained(logits, target)
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    resumed = make()
    assert resumed.eval()(logits, target) != trained.eval()(logits, target)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.state_dict().keys() == {"progress", "multipliers"}
    torch.testing.assert_close(resumed(logits, target), trained(logits, target), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("metric", "settings"),
    [
        ("f1", {}),
        ("recall", {"subject_to": "precision >= 0.9", "memory": sl.Memory(), "schedule": sl.Schedule()}),
        ("auroc", {}),
    ],
)
def test_a_loss_made_on_the_meta_device_is_new_once_it_has_memory(metric, settings):
    """FSDP and Lightning give memory to such a model, and then ask every module with buffers to fill its own."""
    with torch.device("meta"):
        loss_fn = sl.MetricLoss(metric, **settings)
    loss_fn.to_empty(device="cpu")
    for buffer in loss_fn.buffers():
        buffer.fill_(7.0)  # what memory holds that nobody has written to
    loss_fn.reset_parameters()
    found, new = (dict(loss.named_buffers()) for loss in (loss_fn, sl.MetricLoss(metric, **settings)))
    torch.testing.assert_close(found, new, rtol=0, atol=0)
    logits, target = draw("binary")
    torch.testing.assert_close(loss_fn(logits, target), sl.MetricLoss(metric, **settings)(logits, target))


def test_a_plain_loss_adds_nothing_to_a_checkpoint():
    """So that replacing BCEWithLogitsLoss in a model keeps its checkpoints loadable."""
    assert sl.MetricLoss("f1").state_dict() == {}


@pytest.mark.parametrize("step", [sl.Linear(), sl.Sigmoid(), sl.RaisedCosine(), sl.LogitSigmoid()], ids=repr)
def test_a_sharpened_step_is_compiled_for_any_number_of_rows(step):
    loss_fn = sl.MetricLoss("f1", step=step, schedule=sl.Schedule(blend=None, sharpness=(1.0, 3.0)))
    compiled = torch.compile(loss_fn, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, progress in ((8, 0.0), (11, 0.5)):
        loss_fn.advance(progress)
        logits, target = torch.linspace(-2, 2, rows), torch.arange(rows) % 2
        torch.testing.assert_close(compiled(logits, target), loss_fn(logits, target))
