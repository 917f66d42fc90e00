"""F1 as the loss of a Keras model, on any backend: one positive in twenty.

`stepless.integrations.keras.MetricLoss` is passed to ``compile`` like any loss. Batches are large, because the
loss is that of a batch, and a batch without positives teaches nothing. The rival to beat is cross-entropy with the
threshold that is best for F1 on the training rows.

Run it with ``KERAS_BACKEND=torch python examples/keras_f1.py`` (or jax); it needs ``pip install "stepless[keras]"``.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import stepless as sl
from stepless.integrations.keras import MetricLoss

ROWS, COLUMNS, EPOCHS, BATCH = 4000, 10, 25, 500


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows, about one in twenty positive, with noise around a curved boundary."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS))
    signal = X[:, 0] * X[:, 1] + 0.5 * X[:, 2] + 0.5 * rng.normal(size=ROWS)
    return X.astype(np.float32), (signal > 1.9).astype(np.float32)


def train(loss: keras.losses.Loss, X: np.ndarray, y: np.ndarray) -> keras.Model:
    """Train a small network, from the same weights for every loss."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss=loss)
    model.fit(X, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return model


def main() -> None:
    """Train on both losses and print the F1 of new rows."""
    X, y = table(seed=0)
    X_new, y_new = table(seed=1)
    losses = {
        "cross-entropy": keras.losses.BinaryCrossentropy(from_logits=True),
        "MetricLoss, f1": MetricLoss("f1", from_logits=True),
    }
    print(f"{int(y.sum())} of {ROWS} rows are positive; F1 on new rows, decided at 1/2 and at the tuned threshold")
    for name, loss in losses.items():
        model = train(loss, X, y)
        tuned = sl.tune_threshold(model.predict(X, verbose=0)[:, 0], y, "f1")
        logits = model.predict(X_new, verbose=0)[:, 0]
        half, best = (sl.score(logits, y_new, "f1", threshold=t).item() for t in (None, tuned))
        print(f"{name:<16} {half:.3f}  {best:.3f}")


if __name__ == "__main__":
    main()
