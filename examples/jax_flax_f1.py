"""F1 as the loss of a flax network, trained by optax: one positive in twenty.

The same network is trained twice from the same weights: on cross-entropy, and on
`stepless.integrations.jax.metric_loss`. The rival to beat is cross-entropy with the threshold that is best for F1 on
the training rows. Everything is compiled: the loss is a function of arrays like any other in JAX.

Run it with ``python examples/jax_flax_f1.py``; it needs ``pip install "stepless[jax]" flax optax``.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import stepless as sl
from stepless.integrations.jax import metric_loss

ROWS, COLUMNS, STEPS, LEARNING_RATE = 4000, 10, 300, 0.01


class Net(nn.Module):
    """A small network with one logit."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute the logits of rows."""
        return nn.Dense(1)(nn.relu(nn.Dense(16)(x)))[:, 0]


def table(seed: int) -> tuple[jax.Array, jax.Array]:
    """Draw rows, about one in twenty positive, with noise around a curved boundary."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS))
    signal = X[:, 0] * X[:, 1] + 0.5 * X[:, 2] + 0.5 * rng.normal(size=ROWS)
    return jnp.asarray(X, jnp.float32), jnp.asarray(signal > 1.9, jnp.float32)


def train(loss_fn: Callable[[jax.Array, jax.Array], jax.Array], X: jax.Array, y: jax.Array) -> Callable[..., jax.Array]:
    """Run the usual loop, compiled, with a given loss."""
    net = Net()
    params = net.init(jax.random.key(0), X[:1])
    optimiser = optax.adam(LEARNING_RATE)

    @jax.jit
    def step(params: optax.Params, state: optax.OptState) -> tuple[optax.Params, optax.OptState]:
        gradient = jax.grad(lambda p: loss_fn(net.apply(p, X), y))(params)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, updates), state

    state = optimiser.init(params)
    for _ in range(STEPS):
        params, state = step(params, state)
    return lambda rows: net.apply(params, rows)


def main() -> None:
    """Train on both losses and print the F1 of new rows."""
    X, y = table(seed=0)
    X_new, y_new = table(seed=1)
    losses = {
        "cross-entropy": lambda z, t: optax.sigmoid_binary_cross_entropy(z, t).mean(),
        "metric_loss, f1": lambda z, t: metric_loss(z, t, "f1"),
    }
    print(f"{int(y.sum())} of {ROWS} rows are positive; F1 on new rows, decided at 1/2 and at the tuned threshold")
    for name, loss_fn in losses.items():
        net = train(loss_fn, X, y)
        tuned = sl.tune_threshold(np.asarray(net(X)), np.asarray(y), "f1")
        logits, truth = np.asarray(net(X_new)), np.asarray(y_new)
        half, best = (sl.score(logits, truth, "f1", threshold=t).item() for t in (None, tuned))
        print(f"{name:<16} {half:.3f}  {best:.3f}")


if __name__ == "__main__":
    main()
