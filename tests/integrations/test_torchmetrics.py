"""`EpochScore` says of an epoch what `sl.score` says of all its rows, over batches and over real processes."""

import copy
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless.integrations.torchmetrics import EpochScore
from tests import ranks

OPTIONS = {"partial_auroc": {"max_fpr": 0.3}, "recall_at_precision": {"precision": 0.6}, "precision_at_k": {"k": 7}}
TASKS = ("binary", "multiclass", "multilabel")
ROWS = 60


def draw(task, seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    if task == "binary":
        return torch.randn(rows, generator=generator), torch.randint(2, (rows,), generator=generator)
    shape = (rows,) if task == "multiclass" else (rows, 3)
    return torch.randn(rows, 3, generator=generator), torch.randint(
        3 if task == "multiclass" else 2, shape, generator=generator
    )


def make(metric, task, **more):
    classes = {"classes": 3} if task != "binary" and metric not in sl.RANKINGS else {}
    return EpochScore(metric, task=task, **classes, **OPTIONS.get(metric, {}), **more)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", [*sl.METRICS, *sl.RANKINGS])
def test_an_epoch_is_its_rows(metric, task):
    x, y = draw(task)
    ours = make(metric, task)
    for rows in torch.arange(ROWS).split(17):
        of_batch = ours(x[rows], y[rows])  # forward: the score of this batch, and the epoch goes on
        expected = sl.score(x[rows], y[rows], metric, task=task, **OPTIONS.get(metric, {}))
        torch.testing.assert_close(of_batch, expected, equal_nan=True)
    expected = sl.score(x, y, metric, task=task, **OPTIONS.get(metric, {}))
    torch.testing.assert_close(ours.compute(), expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(
    ("task", "more"),
    [
        ("multiclass", {"average": "none"}),
        ("multiclass", {"average": "weighted", "ignore_index": 2}),
        ("multiclass", {"weight": [1.0, 2.0, 3.0]}),
        ("multilabel", {"average": "samples"}),
        ("multilabel", {"average": "micro", "threshold": [0.3, 0.5, 0.6]}),
        ("binary", {"threshold": [0.3, 0.6]}),
        ("binary", {"inputs": "probabilities", "threshold": 0.4}),
        ("binary", {"zero_division": 1.0}),
    ],
)
def test_settings_are_those_of_score(task, more):
    x, y = draw(task)
    x = x.sigmoid() if "inputs" in more else x
    weight = torch.rand(ROWS)
    ours = make("f1", task, **more)
    for rows in torch.arange(ROWS).split(17):
        ours.update(x[rows], y[rows], weight[rows])
    torch.testing.assert_close(ours.compute(), sl.score(x, y, "f1", task=task, sample_weight=weight, **more))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 30), max_size=5))
def test_however_it_is_cut(seed, cuts):
    x, y = draw("binary", seed, rows=30)
    ours = EpochScore("5*fn + fp", maximize=False)
    edges = [0, *sorted(cuts), 30]
    for first, last in itertools.pairwise(edges):
        ours.update(x[first:last], y[first:last])
    assert ours.compute() == sl.score(x, y, "5*fn + fp", maximize=False)


def test_of_a_loss():
    x, y = draw("multiclass")
    loss_fn = sl.MetricLoss("f1", task="multiclass", average="weighted", blend=0.5)
    ours = EpochScore(loss_fn, classes=3)
    ours.update(x, y)
    assert ours.compute() == loss_fn.score(x, y)
    ranking = EpochScore(sl.MetricLoss("auroc", margin=2.0))
    ranking.update(*draw("binary"))
    assert ranking.compute() == sl.score(*draw("binary"), "auroc")
    with pytest.raises(TypeError, match="give them to the loss, and leave out average"):
        EpochScore(loss_fn, classes=3, average="micro")


def test_images_of_other_sizes_and_per_image():
    masks = [(torch.randn(4, s, s), torch.randint(2, (4, s, s))) for s in (5, 8)]
    whole, apart = EpochScore("iou"), EpochScore("iou", per_image=True)
    for x, y in masks:
        whole.update(x, y)
        apart.update(x, y)
    flat = [torch.cat([part.flatten() for part in parts]) for parts in zip(*masks, strict=True)]
    torch.testing.assert_close(whole.compute(), sl.score(*flat, "iou"))
    each = torch.cat([torch.stack([sl.score(a, b, "iou") for a, b in zip(x, y, strict=True)]) for x, y in masks])
    torch.testing.assert_close(apart.compute(), each.mean())


def test_a_metric_like_the_others():
    x, y = draw("binary")
    collection = torchmetrics.MetricCollection({"f1": EpochScore("f1"), "loss": EpochScore("error_rate")})
    collection.update(preds=x, target=y)
    collection.update(preds=x[:9], target=y[:9])
    both = torch.cat([x, x[:9]]), torch.cat([y, y[:9]])
    computed = collection.compute()
    assert computed["f1"] == sl.score(*both, "f1")
    assert computed["loss"] == sl.score(*both, "error_rate")
    assert EpochScore("f1").higher_is_better
    assert not EpochScore("error_rate").higher_is_better
    f1 = EpochScore("f_beta", beta=2)
    assert repr(f1) == "EpochScore('f_beta', beta=2)"
    f1.update(x, y)
    for twin in (copy.deepcopy(f1), pickle.loads(pickle.dumps(f1)), f1.clone()):
        assert twin.compute() == f1.compute()
    f1.reset()
    f1.update(x[:9], y[:9])
    assert f1.compute() == sl.score(x[:9], y[:9], "f_beta", beta=2)
    theirs = torchmetrics.classification.BinaryFBetaScore(beta=2.0)
    assert f1.compute().item() == pytest.approx(theirs(x[:9].sigmoid(), y[:9]).item(), abs=1e-6)


def test_scores_are_drawn_as_those_of_torchmetrics():
    pytest.importorskip("matplotlib")
    x, y = draw("binary")
    score = EpochScore("f1")
    score.update(x, y)
    assert len(score.plot()[1].lines) == 1
    assert len(score.plot([torch.tensor(0.1), torch.tensor(0.4)])[1].lines[0].get_xdata()) == 2


def test_a_collection_keeps_settings_apart():
    """Torchmetrics merges metrics whose states agree after the first batch; here all of them do."""
    x, y = draw("binary", rows=400)
    first = torch.tensor([5.0, -5.0]), torch.tensor([1, 0])
    collection = torchmetrics.MetricCollection(
        {
            "low": EpochScore("f1", threshold=0.2),
            "high": EpochScore("f1", threshold=0.8),
            "precision": EpochScore("precision", threshold=0.8),
            "images": EpochScore("f1", per_image=True),
            "own": EpochScore(lambda tp, fp, fn, tn: tp / (tp + fp), per_image=True),
            "another": EpochScore(lambda tp, fp, fn, tn: tp / (tp + fn), per_image=True),
        }
    )
    collection.update(*first)
    collection.update(x, y)
    x, y = torch.cat([first[0], x]), torch.cat([first[1], y])
    expected = {
        "low": sl.score(x, y, "f1", threshold=0.2),
        "high": sl.score(x, y, "f1", threshold=0.8),
        "precision": sl.score(x, y, "precision", threshold=0.8),
        "images": sl.score(x, y, "f1", per_image=True),
        "own": sl.score(x, y, "tp / (tp + fp)", per_image=True),
        "another": sl.score(x, y, "tp / (tp + fn)", per_image=True),
    }
    assert collection.compute() == expected
    assert ["high", "precision"] in collection.compute_groups.values(), "what counts alike is counted once"
    assert len(collection.compute_groups) == 5


def test_a_collection_of_matrices_and_cells():
    x, y = torch.randn(40, 4), torch.randint(4, (40,))
    names = ("f1", "weighted_kappa", "mcc")
    collection = torchmetrics.MetricCollection({name: EpochScore(name, task="multiclass", classes=4) for name in names})
    collection.update(x[:0], y[:0])  # of no rows, a 4 × 4 matrix is what the cells of 4 classes are
    collection.update(x, y)
    for name in names:
        torch.testing.assert_close(collection.compute()[name], sl.score(x, y, name, task="multiclass"))


def test_a_ranking_keeps_no_graph():
    x, y = draw("binary")
    x.requires_grad_()
    ours = EpochScore("auroc")
    ours.update(x * 2, y)
    assert not any(rows.requires_grad for rows in ours.preds)
    assert ours.clone().compute() == sl.score(x.detach() * 2, y, "auroc")


def as_images(rows, side):
    images = rows.reshape(-1, side, side, *rows.shape[1:])
    return images.movedim(3, 1) if images.dim() > 3 else images


@pytest.mark.parametrize("weights", ["none", "one a sample", "one a pixel"])
@pytest.mark.parametrize("task", TASKS)
def test_a_ranking_of_images_of_other_sizes(task, weights):
    ours, pixels = make("average_precision", task), []
    for images, side in ((3, 5), (2, 8), (0, 4)):
        x, y = draw(task, side, images * side * side)
        of_samples = torch.rand(images) if weights == "one a sample" else torch.ones(images)
        weight = of_samples[:, None, None] * (torch.rand if weights == "one a pixel" else torch.ones)(1, side, side)
        given = {"none": None, "one a sample": of_samples, "one a pixel": weight}[weights]
        ours.update(as_images(x, side), as_images(y, side), given)
        pixels.append((x, y, weight.flatten()))
    x, y, weight = (torch.cat(parts) for parts in zip(*pixels, strict=True))
    expected = sl.score(x, y, "average_precision", task=task, sample_weight=weight)
    torch.testing.assert_close(ours.compute(), expected)


@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_half_a_module_is_not_half_the_counts(metric):
    """bfloat16 counts to 256."""
    x, y = draw("binary", rows=3000)
    model = torch.nn.ModuleDict({"score": make(metric, "binary")})
    for dtype in (torch.bfloat16, torch.float16):
        score = model.to(dtype)["score"]
        score.reset()
        score.update(x, y)
        model.to(dtype)
        assert score.compute() == sl.score(x, y, metric)
        assert score.compute().dtype == torch.float64


def test_a_bad_batch_changes_nothing():
    ours = make("f1", "multiclass")
    x, y = draw("multiclass")
    ours.update(x, y)
    before = ours.counts.clone()
    with pytest.raises(ValueError, match=r"targets must be class indices in \[0, 3\); got 7"):
        ours.update(x, torch.full_like(y, 7))
    with pytest.raises(ValueError, match=r"classes=3, but these scores have 4 classes"):
        ours.update(torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    ranking = make("auroc", "binary")
    with pytest.raises(ValueError, match="scores must not be NaN"):
        ranking.update(torch.tensor([float("nan")]), torch.tensor([1]))
    assert not ranking.preds
    assert torch.equal(ours.counts, before)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", [*sl.METRICS, *sl.RANKINGS])
def test_unchecked_a_nan_stays_visible(metric, task):
    x, y = draw(task)
    ours = make(metric, task)
    ours.update(x, y, check=False)
    torch.testing.assert_close(
        ours.compute(), sl.score(x, y, metric, task=task, **OPTIONS.get(metric, {})), equal_nan=True
    )
    x[3] = torch.nan
    ours.update(x, y, check=False)
    assert ours.compute().isnan()


def test_errors():
    with pytest.raises(ValueError, match=r"a multilabel task needs classes=, how many .*; got None"):
        EpochScore("f1", task="multilabel")
    assert EpochScore("f1", task="multiclass", classes=np.int64(3)).counts.shape[-1] == 4
    with pytest.raises(ValueError, match=r"classes=2 has no effect on a binary task"):
        EpochScore("f1", classes=2)
    with pytest.raises(ValueError, match=r"classes= has no effect on 'auroc'"):
        EpochScore("auroc", task="multiclass", classes=3)
    with pytest.raises(TypeError, match="no option 'betta'"):
        EpochScore("f_beta", betta=2)
    with pytest.raises(ValueError, match="did you mean"):
        EpochScore("f11")
    with (
        pytest.raises(RuntimeError, match="'auroc' of no rows is not defined"),
        pytest.warns(UserWarning, match="before the ``update``"),
    ):
        EpochScore("auroc").compute()


def shard(rank, metric, task, shares, dtype=torch.float32):
    x, y = draw(task)
    ours = make(metric, task).to(dtype)
    for rows in torch.arange(*shares[rank]).split(13) if shares[rank] else ():
        ours.update(x[rows], y[rows])
    return ours.compute(), ours.compute()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", ["f1", "mcc", "weighted_kappa", "auroc"])
def test_ranks_merge(metric, task):
    x, y = draw(task)
    expected = sl.score(x, y, metric, task=task)
    for computed, again in ranks.run(shard, 2, metric, task, [(0, 41), (41, ROWS)]):
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(computed, again)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_a_rank_without_rows(metric, task):
    expected = sl.score(*draw(task), metric, task=task)
    for nothing in ((ROWS, ROWS), None):  # a batch of no rows, and no batch
        for computed, _ in ranks.run(shard, 2, metric, task, [(0, ROWS), nothing]):
            torch.testing.assert_close(computed, expected)
    for computed, _ in ranks.run(shard, 2, metric, task, [(0, ROWS), None], torch.bfloat16):  # as in a model of it
        torch.testing.assert_close(computed, expected)


def test_missing():
    code = "import sys; sys.modules['torchmetrics'] = None; import stepless.integrations.torchmetrics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'EpochScore needs torchmetrics: pip install "stepless[torchmetrics]"' in done.stderr
