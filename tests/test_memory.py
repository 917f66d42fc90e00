"""Memory: running counts for batches too small to have the metric to themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl


def draw(rows=64, seed=0, rate=0.1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, generator=generator, dtype=torch.float64), torch.rand(rows, generator=generator) < rate


def learn(loss_fn, logits, target):
    """The gradient of one training batch."""
    return torch.autograd.grad(loss_fn(logits, target), logits)[0]


def test_the_first_batch_has_nothing_to_remember():
    logits, target = draw()
    torch.testing.assert_close(
        sl.MetricLoss("f1", memory=sl.Memory())(logits, target), sl.MetricLoss("f1")(logits, target)
    )


def test_the_value_is_that_of_past_and_present_together():
    loss_fn, plain = sl.MetricLoss("f1", memory=sl.Memory(4)), sl.MetricLoss("f1")
    first, second = draw(seed=1), draw(seed=2)
    loss_fn(*first)
    past = plain.measure(*first)
    together = plain.measure(*second) + past.with_vector(0.75 * past.vector)
    torch.testing.assert_close(loss_fn(*second), plain.finish(together))


def test_a_batch_without_positives_teaches_what_the_past_makes_of_it():
    past, logits = draw(rate=0.3), draw(seed=3)[0].requires_grad_()
    nothing = torch.zeros(64, dtype=torch.bool)
    sl.MetricLoss("f1")(logits, nothing).backward()
    assert not logits.grad.any(), "alone it has an F1 of 0, whatever the model says"
    loss_fn = sl.MetricLoss("f1", memory=sl.Memory())
    loss_fn(*past)
    logits.grad = None
    loss_fn(logits, nothing).backward()
    assert (logits.grad > 0).all(), "every false alarm costs"


def test_the_gradient_is_scaled_to_all_that_is_counted():
    """Many small batches with memory pull, on average, as one large batch does."""
    logits, target = draw(rows=4096, rate=0.2)
    logits.requires_grad_()
    plain = sl.MetricLoss("f1")
    (whole,) = torch.autograd.grad(plain(logits, target), logits)
    loss_fn = sl.MetricLoss("f1", memory=sl.Memory(64))
    for _ in range(5):  # until the memory is full
        parts = [
            torch.autograd.grad(loss_fn(a, b), a)[0] for a, b in zip(logits.split(64), target.split(64), strict=True)
        ]
    mean = torch.cat(parts) / 64
    assert torch.cosine_similarity(mean, whole, 0) > 0.999
    assert mean.norm() == pytest.approx(whole.norm().item(), rel=0.05)


@pytest.mark.parametrize("batches", [4, 64, 2048])
def test_a_longer_memory_asks_for_no_other_learning_rate(batches):
    """Without the scale, the gradient of a batch among many would be that many times smaller."""
    loss_fn, (logits, target) = sl.MetricLoss("f1", memory=sl.Memory(batches)), draw(rate=0.3)
    logits.requires_grad_()
    alone = learn(sl.MetricLoss("f1"), logits, target)
    for _ in range(20):  # the same batch over and over: past and present agree
        torch.testing.assert_close(learn(loss_fn, logits, target), alone)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 9), min_size=1, max_size=12), st.floats(1, 100))
def test_what_is_remembered_is_the_decayed_sum(seed, rows, batches):
    loss_fn, plain, expected = sl.MetricLoss("mcc", memory=sl.Memory(batches)), sl.MetricLoss("mcc"), 0
    for i, n in enumerate(rows):
        batch = draw(n, seed + i, rate=0.5)
        loss_fn(*batch)
        expected = (1 - 1 / batches) * (expected + plain.measure(*batch).vector)
    torch.testing.assert_close(loss_fn.remembered, expected)


def test_one_batch_remembered_is_no_memory():
    loss_fn = sl.MetricLoss("f1", memory=sl.Memory(1))
    for seed in range(3):
        batch = draw(seed=seed)
        torch.testing.assert_close(loss_fn(*batch), sl.MetricLoss("f1")(*batch))


def test_labels_are_remembered_each_by_itself():
    """As many binary losses, each with a memory of its own."""
    generator = torch.Generator().manual_seed(0)
    rates = torch.tensor([0.5, 0.1, 0.01])
    loss_fn = sl.MetricLoss("f1", task="multilabel", memory=sl.Memory(16))
    each = [sl.MetricLoss("f1", memory=sl.Memory(16)) for _ in rates]
    for _ in range(5):
        logits = torch.randn(32, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        target = torch.rand(32, 3, generator=generator) < rates
        alone = sum(one(logits[:, i], target[:, i]) for i, one in enumerate(each)) / 3
        together = loss_fn(logits, target)
        torch.testing.assert_close(together, alone)
        torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (together, alone)))


def test_a_label_that_is_ignored_does_not_silence_the_others():
    """What a batch stands for is counted over all labels, not by the first one, which may be absent."""
    (logits, target), decay = (t.reshape(-1, 2) for t in draw(256, rate=0.3)), sl.Memory(16).decay
    logits = logits[64:].requires_grad_()
    grads = []
    for given_up in (False, True):
        labels = target.long()
        labels[64:, 0] = -1 if given_up else labels[64:, 0]
        loss_fn = sl.MetricLoss("f1", task="multilabel", ignore_index=-1, memory=sl.Memory(16))
        loss_fn(*(t.reshape(-1, 2)[:64] for t in (draw(256, rate=0.3)[0], labels)))
        grads.append(learn(loss_fn, logits, labels[64:])[:, 1])
    # 64 rows then and 64 now: of two labels then and now, or of two then and one now
    torch.testing.assert_close(grads[1], grads[0] * (1 + 2 * decay) / (1 + decay))


def test_a_batch_of_nan_is_not_remembered():
    """Autocast overflows now and then, and its scaler skips that step; the memory must not carry it on."""
    loss_fn, nan = sl.MetricLoss("f1", memory=sl.Memory()), torch.full((64,), torch.nan, dtype=torch.float64)
    assert loss_fn(nan, draw()[1]).isnan(), "it is said once"
    assert not loss_fn.remembered.any()
    loss_fn(*draw())
    before = loss_fn.remembered.clone()
    loss_fn(nan, draw()[1])
    assert torch.equal(loss_fn.remembered, before)
    assert loss_fn(*draw()).isfinite()


def test_it_stays_where_it_is():
    """A CUDA graph reads and writes fixed addresses; and of a loss that grows with time there is no trace."""
    loss_fn = sl.MetricLoss("f1", memory=sl.Memory())
    loss_fn(*draw())
    address, size = loss_fn.remembered.data_ptr(), loss_fn.remembered.numel()
    for seed in range(5):
        loss_fn(*draw(seed=seed))
    assert (loss_fn.remembered.data_ptr(), loss_fn.remembered.numel()) == (address, size)
    assert not loss_fn.remembered.requires_grad


@pytest.mark.full
def test_it_moves_in_compiled_code():
    loss_fn, eager = (sl.MetricLoss("f1", memory=sl.Memory(8)) for _ in range(2))
    compiled = torch.compile(loss_fn, backend="aot_eager")
    for seed in range(3):
        logits, target = draw(seed=seed)
        logits.requires_grad_()
        torch.testing.assert_close(learn(compiled, logits, target), learn(eager, logits, target))
    torch.testing.assert_close(loss_fn.remembered, eager.remembered)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])  # the latter recomputes, as inductor
def test_compiled_code_changes_buffers_in_place(backend):
    """The CUDA graphs of ``torch.compile(mode="reduce-overhead")`` own what they return, and overwrite it."""
    torch._dynamo.reset()
    loss_fn, eager = (sl.MetricLoss("recall", subject_to="precision >= 0.9", memory=sl.Memory(8)) for _ in range(2))
    compiled = torch.compile(loss_fn, fullgraph=True, backend=backend)
    places = [buffer.data_ptr() for buffer in loss_fn.buffers()]
    for seed in range(3):
        logits, target = draw(seed=seed)
        logits = logits.float().requires_grad_()
        torch.testing.assert_close(learn(compiled, logits, target), learn(eager, logits, target))
    torch.testing.assert_close(loss_fn.state_dict(), eager.state_dict())
    assert loss_fn.multipliers > 1, "otherwise the constraint was never broken"
    assert [buffer.data_ptr() for buffer in loss_fn.buffers()] == places


def test_evaluation_neither_reads_nor_moves_it():
    loss_fn, (logits, target) = sl.MetricLoss("f1", memory=sl.Memory()), draw()
    loss_fn(*draw(seed=4))
    before = loss_fn.remembered.clone()
    torch.testing.assert_close(loss_fn.eval()(logits, target), sl.MetricLoss("f1")(logits, target))
    assert torch.equal(loss_fn.remembered, before)


def test_it_is_checkpointed():
    loss_fn, twin = (sl.MetricLoss("f1", memory=sl.Memory()) for _ in range(2))
    loss_fn(*draw())
    twin.load_state_dict(loss_fn.state_dict())
    logits, target = draw(seed=5)
    assert torch.equal(twin(logits, target), loss_fn(logits, target))


@pytest.mark.parametrize("settings", [{"task": "multiclass"}, {"task": "multilabel"}], ids=["multiclass", "multilabel"])
def test_other_tasks(settings):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 4, generator=generator, requires_grad=True)
    target = (
        torch.randint(4, (32,), generator=generator) if settings["task"] == "multiclass" else torch.randint(2, (32, 4))
    )
    for metric in ("f1", "mcc", "weighted_kappa"):
        loss_fn = sl.MetricLoss(metric, memory=sl.Memory(), **settings)
        for _ in range(3):
            loss_fn(logits, target).backward()
        assert logits.grad.isfinite().all()


def test_bad_settings():
    with pytest.raises(ValueError, match=r"batches must be a finite number of at least 1; got 0\.5"):
        sl.Memory(0.5)
    with pytest.raises(TypeError, match=r"memory must be a stepless\.Memory; got 3"):
        sl.MetricLoss("f1", memory=3)
    loss_fn = sl.MetricLoss("f1", task="multilabel", memory=sl.Memory())
    loss_fn(torch.randn(8, 3), torch.ones(8, 3))
    with pytest.raises(ValueError, match="the number of classes changed"):
        loss_fn(torch.randn(8, 4), torch.ones(8, 4))


def test_counts_do_not_overflow_in_half_precision():
    loss_fn = sl.MetricLoss("f1", memory=sl.Memory(5))
    for _ in range(2):
        loss_fn(torch.zeros(100_000), torch.ones(100_000))
    kept = loss_fn.remembered.clone()
    for move in (loss_fn.half, loss_fn.bfloat16):
        move()
        assert torch.equal(loss_fn.remembered, kept)
    assert loss_fn(torch.zeros(10), torch.ones(10)).isfinite()
    assert loss_fn.double().remembered.dtype == torch.float64


@pytest.mark.parametrize(
    "settings", [{}, {"per_image": True}, {"threshold": (0.3, 0.6)}, {"blend": 0.3}, {"subject_to": "recall >= 0.5"}]
)
def test_of_two_classes_its_size_is_known_from_the_beginning(settings):
    """So a model that holds the loss can be averaged, and loaded by tools that do not ask it."""
    model = torch.nn.ModuleDict(
        {"net": torch.nn.Linear(3, 1), "loss": sl.MetricLoss("f1", memory=sl.Memory(8), **settings)}
    )
    averaged = torch.optim.swa_utils.AveragedModel(model)
    size = model["loss"].remembered.numel()
    x, y = torch.randn(8, 3), torch.tensor([[0.0], [1.0]] * 4)
    model["loss"](model["net"](x), y).backward()
    assert model["loss"].remembered.numel() == size > 0
    averaged.update_parameters(model)
    torch.testing.assert_close(averaged.module["loss"].remembered, model["loss"].remembered)
