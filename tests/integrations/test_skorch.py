"""skorch takes the loss as a criterion: its settings are searched over, its mode follows the net's."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

import stepless as sl

ROWS = 200


def draw(classes=2):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    return x, (x[:, 0] > 0.8).astype(np.float32) if classes == 2 else x[:, :classes].argmax(1)


class Net(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Linear(4, outputs)

    def forward(self, x):
        return self.model(x).squeeze(-1)


def yes_and_no(scores):
    return torch.stack([1 - scores.sigmoid(), scores.sigmoid()], 1)


def make(**settings):
    given = {
        "criterion": sl.MetricLoss,
        "criterion__metric": "f1",
        "predict_nonlinearity": yes_and_no,
        "train_split": None,
    }
    given |= settings
    return NeuralNetBinaryClassifier(
        Net, optimizer=torch.optim.SGD, lr=0.5, batch_size=50, max_epochs=5, verbose=0, **given
    )


def test_as_by_hand():
    x, y = draw()
    net = make().fit(x, y)
    model, loss_fn = Net(), sl.MetricLoss("f1")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows in torch.arange(ROWS).split(50) * 5:
        optimizer.zero_grad()
        loss_fn(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        optimizer.step()
    torch.testing.assert_close(net.module_.model.weight, model.model.weight)
    ours = sl.score(net.predict_proba(x)[:, 1], y, "f1", inputs="probabilities")
    assert ours.item() == pytest.approx(loss_fn.score(model(torch.from_numpy(x)).detach(), y).item())


def test_settings_are_searched_over():
    x, y = draw()
    grid = {"criterion__metric": ["f1", "mcc"], "criterion__blend": [0.0, 0.5]}
    search = GridSearchCV(make(), grid, scoring="f1", cv=2).fit(x, y.astype(int))
    assert search.best_score_ > 0.5
    assert search.best_estimator_.criterion_.metric.name in ("f1", "mcc")


def test_validation_leaves_no_trace():
    from skorch.dataset import ValidSplit

    x, y = draw()
    memory = sl.Memory(4)
    split = make(criterion__memory=memory, train_split=ValidSplit(2, stratified=False)).fit(x, y)
    first_half = make(criterion__memory=memory).fit(*(part[len(part) // 2 :] for part in (x, y)))
    assert len(split.history) == 5
    torch.testing.assert_close(split.criterion_.remembered.sum(), first_half.criterion_.remembered.sum())


def test_classes():
    x, y = draw(classes=3)
    net = NeuralNetClassifier(
        Net, module__outputs=3, criterion=sl.MetricLoss, criterion__metric="mcc", criterion__task="multiclass",
        predict_nonlinearity=lambda scores: scores.softmax(-1), optimizer=torch.optim.Adam, lr=0.05, max_epochs=10,
        train_split=None, verbose=0,
    ).fit(x, y)  # fmt: skip
    assert sl.score(net.predict_proba(x), y, "mcc", task="multiclass", inputs="probabilities") > 0.7
