"""The papers suite: its theory and its networks, by directions that must hold; no data but what is drawn here."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl

FOLDER = Path(__file__).parent.parent / "benchmarks" / "papers"
MODULES = ("frame", "stacked", "bridging_losses", "bridging_scores", "bridging", "theory", "east", "east_losses")


@pytest.fixture(scope="module")
def papers():
    """The modules of the suite; they lie beside each other, as in a run."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def rare(papers):
    """1,500 rows with one positive in fifteen, split for two trials."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 4, generator=random) * 3 + 1
    y = ((x[:, 0] + x[:, 1] + 3 * torch.randn(1500, generator=random)) > 10).float()
    splits = [np.split(np.random.default_rng(trial).permutation(1500), [900, 1200]) for trial in range(2)]
    return x, y, papers["stacked"].Parts.of(splits)


def trained(papers, rare, losses, epochs=40, patience=None, rate=3e-3):
    x, y, parts = rare
    net = papers["stacked"].Mlp(x, parts, (16,), 1, len(losses), 0)
    made = [papers["bridging_losses"].make(name) for name in losses]
    plan = papers["stacked"].Plan(epochs, 300, rate, patience)
    return papers["stacked"].train(net, y, parts, made, plan, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Theory
# ---------------------------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 0.49), st.floats(0.05, 0.95))
@settings(max_examples=30, deadline=None)
def test_the_linear_step_is_as_steep_as_the_theorem_says(papers, delta, tau):
    bound = max(papers["theory"].slopes(delta, tau))
    # a grid has no secant inside a piece that is narrower than itself
    assert 0.9 * bound <= papers["theory"].steepest(sl.Linear(delta=delta), tau, 20001) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("metric", ["f1", "accuracy", "auroc"])
def test_soft_meets_hard_and_the_limit_as_n_grows(papers, metric):
    theory = papers["theory"]
    protocol = {**theory.Convergence().protocol, "repetitions": 60}
    gaps, far = [], []
    for n in (30, 300, 3000):
        hard, soft = theory.assumed(protocol, metric, n, np.random.default_rng(0))
        gaps.append(np.abs(soft - hard).mean())
        far.append(np.abs(soft - theory.limit(protocol, metric)).mean())
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[0] / 5
    assert far == sorted(far, reverse=True)
    assert far[-1] < 0.02


def test_a_gentle_step_leaves_a_gap_that_a_sharp_one_closes(papers):
    protocol = {**papers["theory"].Convergence().protocol, "repetitions": 10}
    gaps = {}
    for words in ("linear 0.2", "linear 0.1 sharpened 100"):
        found = papers["theory"].unassumed(protocol, "f1", words, 5000, np.random.default_rng(0))
        gaps[words] = abs(float((found[0] - found[1]).mean()))
    assert gaps["linear 0.2"] > 0.05
    assert gaps["linear 0.1 sharpened 100"] < 0.01


def test_the_annealed_matrix_meets_the_hard_one(papers):
    table = papers["theory"].Annealed()
    context = papers["frame"].Context(quick=True)
    for metric, cell in table.compute(["mcc"], context):
        assert cell["by_sharpness"] == sorted(cell["by_sharpness"], reverse=True)
        assert table.directions({metric: cell}) == {"soft mcc meets hard mcc as the step sharpens": True}


def test_the_g_mean_is_not_lipschitz(papers):
    slope = papers["theory"]._g_mean_slope
    assert slope(1e-6) == pytest.approx(10 * slope(1e-4), rel=1e-3)


# ---------------------------------------------------------------------------------------------------------------------
# Bridging the Gap
# ---------------------------------------------------------------------------------------------------------------------


def test_recall_rises_and_precision_falls_with_beta(papers, rare):
    names = ["f1", "f2", "f3"]
    scores = papers["bridging_scores"].scores_of(trained(papers, rare, names), *rare[1:], [0.3, 0.5, 0.7], names)
    recall, precision = ([np.mean(scores[name][key]) for name in names] for key in ("recall", "precision"))
    assert recall == sorted(recall)
    assert recall[-1] > recall[0] + 0.02
    assert precision == sorted(precision, reverse=True)


def test_scores_are_those_of_the_package(papers, rare):
    found = trained(papers, rare, ["bce"], epochs=3)
    _, y, parts = rare
    scores = papers["bridging_scores"].scores_of(found, y, parts, [0.2, 0.4], ["bce"])["bce"]
    for key, metric in (("f1", "f1"), ("accuracy", "accuracy"), ("auroc", "balanced_accuracy"), ("recall", "recall")):
        each = [[sl.score(found.test[0, t], y[parts.test[t]], metric, threshold=tau).item() for tau in (0.2, 0.4)]
                for t in range(2)]  # fmt: skip
        assert scores[key] == pytest.approx(np.mean(each, 1).tolist())


def test_members_do_not_meet(papers, rare):
    together = trained(papers, rare, ["f1", "bce"], epochs=5)
    alone = trained(papers, rare, ["bce"], epochs=5)
    torch.testing.assert_close(together.test[1], alone.test[0], rtol=1e-3, atol=1e-4)


def test_the_best_epoch_is_kept(papers, rare):
    found = trained(papers, rare, ["bce"], epochs=60, patience=60, rate=0.1)
    for trial, best in enumerate(found.epochs[0]):
        assert 0 < best < 60  # at this rate it learns the rows by heart
        until = trained(papers, rare, ["bce"], epochs=int(best), rate=0.1)
        torch.testing.assert_close(found.test[0, trial], until.test[0, trial], rtol=1e-2, atol=1e-2)


def test_stacked_convolutions_are_networks_of_their_own(papers):
    images = torch.randint(0, 255, (12, 3, 16, 16), dtype=torch.uint8)
    rows = torch.arange(12).expand(2, 12)
    net = papers["stacked"].ConvNet(images, 2, (4, 8), 1, 2, 0)
    z = net(rows, training=True)
    assert z.shape == (2, 2, 12)
    torch.testing.assert_close(z[0], z[1])  # members of a trial start alike
    (slope,) = torch.autograd.grad(z[0, 0].sum(), net.parameters[0])
    assert slope[0].abs().sum() > 0
    assert slope[1:].abs().sum() == 0


def test_the_released_counts_do_not_add_up_off_one_half(papers):
    z, y = torch.linspace(-2, 2, 50), torch.ones(50)
    tp, fn, _, _ = papers["bridging_losses"]._counts(z, y)
    assert (tp + fn)[4].item() == pytest.approx(50, rel=1e-4)
    assert abs((tp + fn)[0].item() - 50) > 1
    p = z.sigmoid()
    for tau in (0.1, 0.5):  # as the paper defines them they do, everywhere
        assert (sl.Linear(delta=0.2)(p, tau) + 1 - sl.Linear(delta=0.2)(p, tau)).sum().item() == pytest.approx(50)


def test_the_released_pairs_ignore_the_negatives(papers):
    z = torch.randn(40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = (torch.arange(40) < 10).float()
    (slope,) = torch.autograd.grad(papers["bridging_losses"]._wmw(z, y), z)
    assert slope[:10].abs().sum() > 0
    assert slope[10:].abs().sum() == 0


# ---------------------------------------------------------------------------------------------------------------------
# EAST
# ---------------------------------------------------------------------------------------------------------------------


def test_every_loss_of_east_has_a_finite_gradient(papers):
    random = torch.Generator().manual_seed(0)
    y = torch.randint(4, (2, 60), generator=random)
    for name in papers["east"].Tables().losses():
        z = torch.randn(2, 60, 4, generator=random).requires_grad_()
        loss = papers["east_losses"].make(name, torch.full((4,), 0.25), papers["east"].Tables().protocol, "cpu")
        loss.advance(0.5)
        value = loss(z, y)
        (slope,) = torch.autograd.grad(value.sum(), z)
        assert value.shape == (2,)
        assert slope.isfinite().all(), name
        assert slope.abs().sum() > 0, name


def test_the_parts_of_a_split_share_every_class(papers):
    target = np.repeat(np.arange(3), [100, 50, 10])
    parts = papers["east"].stratified(target, [0.6, 0.2, 0.2], 0)
    assert sorted(np.concatenate(parts)) == list(range(160))
    assert [np.bincount(target[part]).tolist() for part in parts] == [[60, 30, 6], [20, 10, 2], [20, 10, 2]]


def test_tables_cope_with_nothing_and_name_cells_once(papers):
    context = papers["frame"].Context()
    for table in (t for name in ("bridging", "theory", "east") for t in papers[name].TABLES):
        cells = table.cells(context)
        assert len(set(cells)) == len(cells)
        assert set(table.cells(papers["frame"].Context(quick=True))) <= set(cells)
        table.show({})
        assert all(v.verdict == papers["frame"].NOT_RUNNABLE for v in table.verdicts({}))
