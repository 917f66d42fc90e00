"""JAX: any metric of the confusion matrix as a loss, for optax, flax or your own training loop.

The formulas, steps, counts and averages are those of `stepless.MetricLoss`, called with JAX arrays.
"""

from __future__ import annotations

from typing import Any

import torch

from stepless.extras import needs
from stepless.integrations.arrays import array_loss

with needs("stepless.integrations.jax needs JAX", "jax", "jax"):
    import jax
    import jax.numpy as jnp


def metric_loss(
    scores: Any, target: Any, metric: Any, *, sample_weight: Any = None, axis: int = -1, **settings: Any
) -> jax.Array:
    """Compute the distance of a metric from its best value, as a function for ``jit``, ``vmap`` and ``grad``.

    Everything but the arrays must be known when the function is traced: close over it, or make it static in ``jit``. A
    class index out of range makes the loss NaN, because a compiled function cannot raise. Under ``jit``, a batch that
    is sharded over devices has one loss. In ``shard_map`` and ``pmap``, the loss is that of a device's own rows, and
    the mean of these losses is not that of the batch.

    Args:
        scores: ``(N, …)`` for binary; ``(N, …, K)`` for multiclass and multilabel, with the classes last, as in flax.
        target: Same shape as the scores; for multiclass, class indices ``(N, …)`` or probabilities in that shape.
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        sample_weight: ``(N,)``, or one weight per pixel.
        axis: The axis of the classes.
        settings: As for `stepless.MetricLoss`: ``task``, ``average``, ``inputs``, ``step``, ``threshold``,
            ``ignore_index``, ``weight``, ``per_image``, ``overlap``, ``blend``, ``cross_entropy``, ``maximize``, and
            options of the metric.

    Returns:
        A scalar, float32 or wider.

    Example:
        >>> logits, target = jnp.array([2.0, -1.0, 0.5, -3.0]), jnp.array([1, 1, 0, 0])
        >>> round(float(metric_loss(logits, target, "f1", step="identity")), 4)
        0.398
        >>> jax.grad(metric_loss)(logits, target, "f1").shape
        (4,)
    """
    for name, value in settings.items():
        if any(isinstance(part, jax.core.Tracer) for part in jax.tree.leaves(value)):
            raise TypeError(
                f"{name} must be known when the function is traced; got a traced array. Pass numbers or a NumPy array,"
                " or name it static to jit."
            )
    arrays = [_array(name, x) for name, x in (("scores", scores), ("target", target), ("sample_weight", sample_weight))]
    with jax.default_matmul_precision("highest"):  # TPUs multiply in bfloat16 by default, which cannot count past 256
        return array_loss(metric, settings)(*arrays, axis=axis)


def _array(name: str, values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        raise TypeError(f"{name} must be a JAX array; got a torch.Tensor. For PyTorch call stepless.metric_loss.")
    return None if values is None else jnp.asarray(values)
