"""Networks shared among ranks: real processes, and what comes out is what one process makes."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification

import stepless as sl
from stepless.tabular.networks.spread import leader, over_ranks
from tests import ranks


def fitted(**settings):
    # 203 rows: folds differ in size, and so do the training rows of the networks
    X, y = make_classification(203, weights=[0.8], random_state=0)
    given = {"candidates": ("cross_entropy", "mixture"), "epochs": 6, "n_members": 3, "random_state": 0, **settings}
    model = sl.MetricClassifier(**given).fit(X, y)
    return model.predict_proba(X), model.history_.train, model.best_threshold_


def on_a_rank(rank, settings):
    torch.set_num_threads(1)
    with over_ranks():
        assert leader() == (rank == 0)
        return fitted(**settings)


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True, "patience": 1, "epochs": 12}])
def test_ranks_make_what_one_process_makes(settings):
    alone = fitted(**settings)
    for probabilities, history, threshold in ranks.run(on_a_rank, 2, settings):
        np.testing.assert_allclose(probabilities, alone[0], atol=1e-6)
        np.testing.assert_allclose(threshold, alone[2], atol=1e-6)
        assert history.shape == alone[1].shape
        known = ~np.isnan(history)
        np.testing.assert_allclose(history[known], alone[1][known], atol=1e-5)


def one_network_too_few(rank):
    with over_ranks(), pytest.raises(ValueError, match="2 ranks cannot share 1 networks: start 1 ranks or fewer"):
        fitted(candidates=("cross_entropy",), n_members=1)


def test_more_ranks_than_networks():
    ranks.run(one_network_too_few, 2)


def test_without_torchrun_it_is_said_how(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="a distributed fit is started by torchrun"), over_ranks():
        pass
