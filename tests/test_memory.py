"""Memory: running counts for batches too small to have the metric to themselves."""

import pytest
import torch

import stepless as sl


def draw(rows=64, seed=0, rate=0.1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, generator=generator, dtype=torch.float64), torch.rand(rows, generator=generator) < rate


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
