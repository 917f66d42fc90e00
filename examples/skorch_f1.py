"""F1 with skorch: a net that is a scikit-learn classifier, trained on the metric that it is judged by.

The loss is the criterion; its settings are `criterion__…` parameters, which a grid search can tune. Two things to know:
skorch cannot tell what the scores of a new loss mean, so `predict_nonlinearity` turns them into probabilities; and a
callback of three lines advances the schedule.

    python examples/skorch_f1.py
"""

import torch
from ddp import draw_rows, make_model
from skorch import NeuralNetBinaryClassifier
from skorch.callbacks import Callback
from torch import Tensor, nn

import stepless as sl

EPOCHS = 20


class Advance(Callback):
    """Advance the loss's schedule, epoch by epoch."""

    def on_epoch_begin(self, net: NeuralNetBinaryClassifier, **_: object) -> None:
        """Tell the loss the share of epochs that are done."""
        net.criterion_.advance((len(net.history) - 1) / net.max_epochs)


def probabilities(scores: Tensor) -> Tensor:
    """Return the probabilities of no and yes, as scikit-learn does."""
    yes = scores.sigmoid()
    return torch.stack([1 - yes, yes], 1)


def make_net(criterion: type[nn.Module], **settings: object) -> NeuralNetBinaryClassifier:
    """Make a net; all arguments but the loss are the same."""
    return NeuralNetBinaryClassifier(
        make_model, criterion=criterion, optimizer=torch.optim.Adam, lr=0.01, batch_size=512, max_epochs=EPOCHS,
        train_split=None, iterator_train__shuffle=True, predict_nonlinearity=probabilities, verbose=0, **settings,
    )  # fmt: skip


def main() -> None:
    """Train on cross-entropy and on F1, and score both at a threshold of ½."""
    torch.set_num_threads(1)
    (x, y), (new_x, new_y) = draw_rows(8192, seed=1), draw_rows(4096, seed=2)
    nets = {
        "cross-entropy": make_net(nn.BCEWithLogitsLoss),
        "F1": make_net(
            sl.MetricLoss, criterion__metric="f1", criterion__schedule=sl.Schedule(blend=(1.0, 0.0), until=0.5),
            callbacks=[Advance()],
        ),
    }  # fmt: skip
    for name, net in nets.items():
        net.fit(x.numpy(), y.numpy())
        score = sl.score(net.predict_proba(new_x.numpy())[:, 1], new_y, "f1", inputs="probabilities")
        print(f"trained on {name}: F1 on new rows {score:.4f}", flush=True)


if __name__ == "__main__":
    main()
