"""What users of other libraries complain about, in their issues: each shown right, where naive code goes wrong."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

import stepless as sl


def soft_dice(p, y, smooth=0.0):
    """What is usually written by hand."""
    return 1 - (2 * (p * y).sum() + smooth) / (p.sum() + y.sum() + smooth)


def gradient(loss_fn, scores, target):
    scores = scores.clone().requires_grad_()
    loss = loss_fn(scores, target)
    loss.backward()
    return loss.detach(), scores.grad


# 2. "does not require grad": which metric can I train on, and will DDP sync it? (torchmetrics 388, 1677, 2745)


@pytest.mark.parametrize("task", ["binary", "multilabel", "multiclass"])
@pytest.mark.parametrize("name", sl.METRICS)
def test_complaint_2_every_metric_can_be_trained_on(name, task):
    torch.manual_seed(0)
    logits = torch.randn(40, 3) if task != "binary" else torch.randn(40)
    target = torch.randint(3, (40,)) if task == "multiclass" else torch.randint(2, logits.shape)
    loss_fn = sl.MetricLoss(name, task=task)
    loss, slope = gradient(loss_fn, logits, target)
    assert slope.abs().max() > 0
    # and what it learns is that metric: a small step downhill
    assert loss_fn(logits - 0.01 * slope / slope.norm(), target) < loss


def test_complaint_2_a_loss_that_cannot_train_says_so_when_it_is_made():
    with pytest.raises(ValueError, match="no gradient"):
        sl.MetricLoss("f1", step="hard")
    with pytest.raises(ValueError, match="no gradient"):
        sl.MetricLoss(lambda tp, fp, fn, tn: torch.detach(tp))


# 3. logits or probabilities guessed per batch: silently wrong (torchmetrics 1604, 2195, 2329, 3269)


def test_complaint_3_logits_stay_logits_whatever_their_range():
    """Small logits look like probabilities. All of these are positive; guessing makes half of them negative."""
    logits, target = torch.tensor([0.1, 0.3, 0.6, 0.9]), torch.tensor([1, 1, 1, 0])
    assert sl.score(logits, target, "recall").item() == 1.0
    assert sl.score(logits, target, "recall", inputs="probabilities").item() == pytest.approx(1 / 3)

    loss_fn = sl.MetricLoss("f1")
    far = torch.tensor([9.0, -9.0])
    together = loss_fn(torch.cat([logits, far]), torch.cat([target, torch.tensor([1, 0])]))
    apart = loss_fn.finish(loss_fn.measure(logits, target) + loss_fn.measure(far, torch.tensor([1, 0])))
    torch.testing.assert_close(together, apart)


def test_complaint_3_logits_given_as_probabilities_are_noticed():
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\].*inputs='logits'"):
        sl.score(torch.tensor([2.0, -1.0]), torch.tensor([1, 0]), "f1", inputs="probabilities")
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\]"):
        sl.MetricLoss("f1", inputs="probabilities", validate=True)(torch.tensor([2.0, -1.0]), torch.tensor([1, 0]))


# 4. macro F1 with absent classes disagrees with scikit-learn (torchmetrics 300, 1494, 1664)


@pytest.mark.parametrize("zero_division", [0.0, 1.0, np.nan])
def test_complaint_4_macro_f1_with_absent_classes(zero_division):
    """Class 1 is never true nor decided, class 3 never decided, class 4 decided but never true."""
    target, decided = torch.tensor([0, 0, 2, 3, 2, 0]), torch.tensor([0, 2, 2, 0, 4, 0])
    scores = torch.nn.functional.one_hot(decided, 5).double()
    options = {"labels": range(5), "zero_division": zero_division}
    for average in ("macro", "weighted", "micro"):
        found = sl.score(scores, target, "f1", task="multiclass", average=average, zero_division=zero_division)
        assert found.item() == pytest.approx(f1_score(target, decided, average=average, **options))
    assert sl.MetricLoss("f1", task="multiclass").score(scores, target) == pytest.approx(
        f1_score(target, decided, average="macro", labels=range(5), zero_division=0)
    )


# 5. soft F1: training loss falls, validation F1 drifts down (multi-label-soft-f1 12)


def test_complaint_5_the_loss_falls_only_where_f1_rises():
    """Soft F1 prefers confidence to correctness. A schedule that sharpens the step ends on the metric itself."""
    target = torch.tensor([1.0] * 10 + [0.0] * 10)
    unsure = torch.where(target == 1, 0.55, 0.45)  # every decision right
    sure = torch.where(target == 1, 0.99, 0.01)
    sure[:3] = 0.4  # three decisions wrong

    score = sl.MetricLoss("f1", inputs="probabilities").score
    assert score(unsure, target) == 1.0
    assert score(sure, target) < 0.85
    assert soft_dice(sure, target) < soft_dice(unsure, target), "the complaint: the loss fell, and F1 with it"

    loss_fn = sl.MetricLoss("f1", inputs="probabilities", schedule=sl.Schedule(blend=None, sharpness=(1.0, 50.0)))
    loss_fn.advance(1.0)
    assert loss_fn(sure, target) > loss_fn(unsure, target)
    for p in (sure, unsure):
        assert 1 - loss_fn(p, target).item() == pytest.approx(score(p, target).item(), abs=0.01)


# 6. MCC loss: NaN on one-class batches; was being minimised (chemprop 380, 846, 332)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_complaint_6_mcc_on_one_class_batches(label, dtype):
    logits = torch.linspace(-3, 3, 10).to(dtype)
    loss, slope = gradient(sl.MetricLoss("mcc"), logits, torch.full((10,), label))
    assert loss == 1  # 0/0 is no correlation, as in scikit-learn
    assert slope.isfinite().all()


def test_complaint_6_mcc_is_maximised():
    target = torch.tensor([1, 0, 0, 1, 0, 0, 1, 0])
    right = (target * 2.0 - 1) * 20
    loss_fn = sl.MetricLoss("mcc")
    assert loss_fn(right, target).item() == pytest.approx(0, abs=1e-6)
    assert loss_fn(-right, target).item() == pytest.approx(2, abs=1e-6)

    torch.manual_seed(0)
    logits = torch.randn(8, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for step in range(100):
        rows = slice(1, 3) if step % 2 else slice(None)  # every second batch has one class only
        optimizer.zero_grad()
        loss_fn(logits[rows], target[rows]).backward()
        optimizer.step()
    assert loss_fn.score(logits, target) == 1


# 7. soft Dice inf/NaN in fp16 (smp 463); numerator smoothing rewards all-zero predictions (smp 575)


def test_complaint_7_dice_in_half_precision():
    torch.manual_seed(0)
    mask = torch.rand(4, 1, 512, 512) < 0.5
    logits = (torch.randn(4, 1, 512, 512) + 2 * mask).half()
    naive = soft_dice(logits.sigmoid(), mask.half())
    assert not naive.isfinite(), "the complaint: sums past 65,504"
    loss, slope = gradient(sl.MetricLoss("dice", step="identity"), logits, mask)
    assert loss.item() == pytest.approx(soft_dice(logits.double().sigmoid(), mask.double()).item(), abs=1e-5)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0


def test_complaint_7_finding_nothing_is_not_rewarded():
    mask = torch.zeros(1, 1, 16, 16)
    mask[0, 0, 3, 4] = 1
    nothing = torch.full_like(mask, -1e4)
    assert soft_dice(nothing.sigmoid(), mask, smooth=1.0) <= 0.5, "the complaint: half the loss for nothing"
    loss_fn = sl.MetricLoss("dice", step="identity")
    assert loss_fn(nothing, mask) == 1
    assert loss_fn.score(nothing, mask) == 0
    assert loss_fn(torch.where(mask == 1, 1e4, -1e4), mask) == 0


# 8. Dice not minimised at a soft target (MONAI 8094); ignore_index missing or inert (MONAI 8734, smp 1151, kornia 3034)


@pytest.mark.parametrize("name", ["dice", "iou", "tversky"])
def test_complaint_8_dice_is_minimised_at_a_soft_target(name):
    torch.manual_seed(0)
    target = 0.1 + 0.8 * torch.rand(2, 1, 6, 6, dtype=torch.float64)
    assert soft_dice(target, target) > soft_dice(target.round(), target), "the complaint: rounding beats the target"

    loss_fn = sl.MetricLoss(name, step="identity", overlap="min")
    logits = torch.zeros_like(target, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for _ in range(600):
        optimizer.zero_grad()
        loss_fn(logits, target).backward()
        optimizer.step()
        decay.step()
    assert (logits.sigmoid() - target).abs().max() < 0.01
    assert loss_fn(torch.logit(target), target).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("task", ["binary", "multilabel", "multiclass"])
def test_complaint_8_ignored_pixels_are_ignored(task):
    torch.manual_seed(0)
    logits = torch.randn(2, 1 if task == "binary" else 3, 8, 8)
    target = torch.randint(3, (2, 8, 8)) if task == "multiclass" else torch.randint(2, logits.shape)
    void = torch.zeros_like(target, dtype=torch.bool)
    void[..., :3] = True
    marked = target.masked_fill(void, 255)
    pixels = void.unsqueeze(1).expand_as(logits) if task == "multiclass" else void

    loss_fn = sl.MetricLoss("dice", task=task, ignore_index=255)
    loss, slope = gradient(loss_fn, logits, marked)
    assert (slope[pixels] == 0).all()
    assert slope[~pixels].abs().min() > 0
    torch.testing.assert_close(loss_fn(logits.masked_fill(pixels, 50.0), marked), loss, rtol=0, atol=0)
    torch.testing.assert_close(loss, sl.metric_loss(logits[..., 3:], target[..., 3:], "dice", task=task))
    assert abs(loss - sl.metric_loss(logits, target, "dice", task=task)) > 1e-3, "ignore_index did something"


# 9. batch Dice under DDP (nnUNet 82, 1354)


def test_complaint_9_batch_dice_over_ranks():
    """Ranks sum their states, and only then comes the ratio: loss and averaged gradient are those of one process."""
    torch.manual_seed(0)
    logits = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    target = (torch.rand(4, 1, 8, 8) < torch.tensor([0.9, 0.5, 0.05, 0.0]).view(4, 1, 1, 1)).long()
    loss_fn = sl.MetricLoss("dice")
    expected, slope = gradient(loss_fn, logits, target)

    ranks = [slice(0, 2), slice(2, 4)]
    naive = torch.stack([loss_fn(logits[r], target[r]) for r in ranks]).mean()
    assert abs(naive - expected) > 0.05, "the complaint: the mean of the ranks' Dice is another number"

    whole = sum(loss_fn.measure(logits[r], target[r]).vector for r in ranks)
    found = torch.zeros_like(slope)
    for r in ranks:
        scores = logits[r].clone().requires_grad_()
        local = loss_fn.measure(scores, target[r])
        loss = loss_fn.finish(local.with_vector(local.vector + (whole - local.vector).detach()))
        torch.testing.assert_close(loss, expected)
        loss.backward()
        found[r] = scores.grad  # DDP divides by the number of ranks what the loss multiplies by it
    torch.testing.assert_close(found, slope)
