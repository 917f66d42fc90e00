"""Keras 3: any metric of the confusion matrix as a loss, on any backend.

The formulas, steps, counts and averages are those of `stepless.MetricLoss`, called with the backend's tensors.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Self

from stepless.integrations.arrays import ArrayLoss
from stepless.metrics import METRICS
from stepless.numerics import as_tuple
from stepless.steps import STEPS, Step

try:
    import keras
    from keras import ops
    from keras.src import backend  # for get_keras_mask, which has no public name
    from keras.src.losses import loss as losses  # for scale_loss_for_distribution, which has none either

    from stepless.integrations.keras_arrays import KerasArray
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing in ("tensorflow", "jax"):  # TensorFlow is the default backend of Keras
        raise ModuleNotFoundError(
            f"Keras is set to the backend {missing!r}, which is not installed; set the environment variable"
            " KERAS_BACKEND=torch before Keras is imported.",
            name=missing,
        ) from None
    if missing != "keras":
        raise
    raise ModuleNotFoundError(
        'stepless.integrations.keras needs Keras 3: pip install "stepless[keras]"', name="keras"
    ) from None


@keras.saving.register_keras_serializable(package="stepless")
class MetricLoss(keras.losses.Loss):
    """Train a Keras model on a metric of the confusion matrix: pass it as ``loss`` to ``compile``.

    The loss is that of the whole batch, not a mean over samples. Sample weights and masks weight the counts. If
    ``tf.distribute`` divides a batch, the loss is the mean of the parts' losses, which is not the same; JAX's
    ``DataParallel`` has the loss of the whole batch. A saved model contains the loss, so import this module before
    ``load_model``, or pass ``compile=False``.

    Args:
        metric: A name from `stepless.METRICS`, a formula as text, or a function of ``(tp, fp, fn, tn)``.
        from_logits: Whether the model outputs logits, or probabilities (its last activation is a sigmoid or a softmax).
        axis: The axis of the classes in multiclass and multilabel scores: the last, as in Keras.
        name: Name of the loss, for the logs.
        settings: As for `stepless.MetricLoss`: ``task``, ``average``, ``step``, ``threshold``, ``ignore_index``,
            ``weight``, ``per_image``, ``overlap``, ``blend``, ``cross_entropy``, ``maximize``, and options of the
            metric.

    Shape:
        - y_pred: ``(N, …)`` or ``(N, …, 1)`` for binary; ``(N, …, K)`` for multiclass and multilabel.
        - y_true: same as ``y_pred``; for multiclass, class indices ``(N, …)`` or ``(N, …, 1)``, or probabilities.

    Example:
        >>> loss_fn = MetricLoss("f1", from_logits=True, step="identity")
        >>> round(float(loss_fn([1, 1, 0, 0], [2.0, -1.0, 0.5, -3.0])), 4)
        0.398
    """

    def __init__(
        self, metric: Any, *, from_logits: bool, axis: int = -1, name: str = "metric_loss", **settings: Any
    ) -> None:
        super().__init__(name=name)
        if not isinstance(from_logits, bool):
            raise TypeError(f"from_logits must be True or False; got {from_logits!r}.")
        if "inputs" in settings:
            raise TypeError(
                "inputs is from_logits in Keras: pass from_logits=True for logits, False for probabilities."
            )
        if settings.pop("reduction", "sum_over_batch_size") != "sum_over_batch_size":
            raise TypeError("reduction has no effect on a loss that is of a whole batch; leave it out.")
        self.metric, self.from_logits, self.axis, self.settings = metric, from_logits, axis, settings
        self._loss = ArrayLoss(metric, inputs="logits" if from_logits else "probabilities", **settings)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Compute the loss of a batch."""
        with keras.name_scope(self.name):
            mask = _mask_of(y_pred)
            y_pred, y_true = ops.convert_to_tensor(y_pred), ops.convert_to_tensor(y_true)
            y_true, y_pred = self._matched(y_true, y_pred)
            entries = len(y_pred.shape) - (self._loss.of.path.task != "binary")
            # half precision would turn small weights into 0 and large ones into infinity
            wide = keras.backend.result_type(y_pred.dtype, "float32")
            weight = None if sample_weight is None else _without_unit_axis(ops.cast(sample_weight, wide), entries)
            if mask is not None:
                weight = _masked(weight, _without_unit_axis(ops.cast(mask, wide), entries))
            weight = None if weight is None else KerasArray(weight)
            return _replica_share(self._loss(KerasArray(y_pred), KerasArray(y_true), weight, axis=self.axis).value)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Compute the loss of a batch without weights."""
        return self(y_true, y_pred)

    def _matched(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Bring targets and scores into the shapes of `ArrayLoss`, without the last axis of 1 that Keras may add."""
        task, extra = self._loss.of.path.task, len(y_true.shape) - len(y_pred.shape)
        if task != "multiclass":
            # a single output unit: Keras's masks, and weights of steps and pixels, lack this axis
            both = task == "binary" and extra == 0 and len(y_pred.shape) > 1 and y_true.shape[-1] == y_pred.shape[-1]
            if (both or extra == 1) and y_true.shape[-1] == 1:
                y_true = ops.squeeze(y_true, -1)
            if (both or extra == -1) and y_pred.shape[-1] == 1:
                y_pred = ops.squeeze(y_pred, -1)
            return y_true, y_pred
        if extra == 0 and y_true.shape[-1] == 1:
            y_true, extra = ops.squeeze(y_true, -1), -1
        # Keras passes class indices as floats, and one-hot rows as integers
        return ops.cast(y_true, "int32" if extra == -1 else y_pred.dtype), y_pred

    def get_config(self) -> dict[str, Any]:
        """Return the settings, in a form that JSON can hold."""
        metric = self._loss.of.metric
        registered = metric.name in METRICS and metric.function is METRICS[metric.name].function
        if not registered and not isinstance(self.metric, str):
            raise ValueError(
                f"the metric {metric.name!r} is a function; that is code, and a config cannot hold it. Give the metric"
                " as a name, or as a formula in text."
            )
        if hasattr(self.settings.get("threshold"), "threshold"):
            raise ValueError("a config cannot hold a Tuning: pass its threshold as a number, or as a list of numbers.")
        plain = {name: _listed(as_tuple(value)) for name, value in {**self.settings, **dict(metric.options)}.items()}
        step = plain.get("step")
        if isinstance(step, Step):
            kinds = {kind: name for name, kind in STEPS.items()}
            if type(step) not in kinds:
                raise ValueError(f"the step {step!r} is code, and a config cannot hold it: use one of stepless.STEPS.")
            plain["step"] = {"name": kinds[type(step)], **asdict(step)}
        return {"name": self.name, "metric": metric.name, "from_logits": self.from_logits, "axis": self.axis, **plain}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create the loss from a config."""
        step = config.get("step")
        if isinstance(step, dict):
            step = dict(step)
            config = {**config, "step": STEPS[step.pop("name")](**step)}
        return cls(**config)


def _mask_of(y_pred: Any) -> Any:
    """Return the mask that a layer such as Embedding attached to its output, or None."""
    if hasattr(backend, "get_keras_mask"):
        return backend.get_keras_mask(y_pred)
    return getattr(y_pred, "_keras_mask", None)  # Keras 3.5 keeps it there


def _replica_share(loss: Any) -> Any:
    """Divide the loss by the number of TensorFlow's replicas, over which it is summed, as Keras's own losses do."""
    scale = getattr(losses, "scale_loss_for_distribution", None)  # Keras 3.5 lacks it
    return loss if scale is None else scale(loss)


def _without_unit_axis(weight: Any, axes: int) -> Any:
    """Drop a last axis of size 1 that weights have beyond the axes of what they weight."""
    return ops.squeeze(weight, -1) if len(weight.shape) == axes + 1 and weight.shape[-1] == 1 else weight


def _masked(weight: Any, mask: Any) -> Any:
    """Combine a mask of steps with weights of samples or steps."""
    if weight is None:
        return mask
    return mask * ops.expand_dims(weight, [*range(len(weight.shape), len(mask.shape))])


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value
