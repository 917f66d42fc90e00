"""`TrainerLoss`: train with the Hugging Face ``Trainer`` on a metric; needs the extra ``transformers``."""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepless.extras import needs
from stepless.loss import MetricLoss, RankingLoss

with needs("TrainerLoss needs transformers", "transformers", "transformers"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_pt_utils import nested_concat


class TrainerLoss(TrainerCallback):
    """A `MetricLoss` for the Hugging Face ``Trainer``: ``compute_loss_func``, callback and ``compute_metrics`` in one.

    The callback advances the schedule, and reads how the Trainer scales losses. If the Trainer counts items, it
    multiplies a custom loss by the number of processes. That is right for a sum divided by the items of all processes,
    but wrong for a loss of the global batch. Here the gradient and the logged loss stay those of the global batch.

    Heads: ``task="multiclass"`` takes scores ``(N, K)``, or ``(N, tokens, K)`` with −100 for tokens to leave out;
    ``task="multilabel"`` takes ``(N, labels)``; ``task="binary"`` takes one score per row or token, or the two scores
    of a head with ``num_labels=2``, whose difference is the score of class 1 (``ignore_index=-100`` leaves out tokens
    of −100). The model must return a dict with ``"logits"``, as those of transformers do.

    ``gradient_accumulation_steps`` above 1 is not exact. The Trainer runs each micro-batch separately, and the metric
    of a batch is not the mean over its micro-batches. So this is an error, unless ``per_micro_batch=True`` accepts the
    mean of their losses (a last, shorter step of an epoch then weighs less). A larger batch is exact, and so is
    `stepless.accumulate` in a loop of your own. If training resumes from a checkpoint, the loss's constraints and
    memory start anew, but its schedule does not.

    Args:
        loss_fn: The loss.
        per_micro_batch: Whether to accept the mean of the micro-batches' losses.

    Example:
        >>> import stepless as sl
        >>> loss = TrainerLoss(sl.MetricLoss("mcc", task="multiclass"))
        >>> given = {"compute_loss_func": loss, "compute_metrics": loss.compute_metrics, "callbacks": [loss]}
        >>> scores = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]], requires_grad=True)
        >>> loss({"logits": scores}, torch.tensor([0, 1])).backward()
    """

    def __init__(self, loss_fn: MetricLoss, *, per_micro_batch: bool = False) -> None:
        if not isinstance(loss_fn, MetricLoss):
            raise TypeError(f"loss_fn must be a stepless.MetricLoss; got {loss_fn!r}.")
        self.loss_fn, self.per_micro_batch = loss_fn, per_micro_batch
        self._args: TrainingArguments | None = None
        self._head: tuple[int, ...] | None = None
        self._checked = False
        self._fresh = deepcopy(loss_fn.state_dict())
        self._plan = loss_fn.ranker if isinstance(loss_fn, RankingLoss) else loss_fn.path

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Compute the loss of a model's outputs. Called by ``Trainer(compute_loss_func=…)``."""
        if labels is None:
            raise ValueError('a loss needs targets, and the batch has none; name the column "labels".')
        if self._args is None and num_items_in_batch is not None:
            raise RuntimeError(
                "the Trainer scales the loss, and TrainerLoss must know how; pass it as a callback as well:"
                " Trainer(compute_loss_func=loss, callbacks=[loss])."
            )
        self._head = tuple(_logits(outputs).shape[labels.dim() :])
        training = torch.is_grad_enabled()  # model.eval() does not reach the loss, but evaluation has no gradients
        scores = self._scores(outputs, labels)
        if training and not self._checked:  # only once, because checking values waits for the device
            self._check_labels(labels)
            self._checked = not bool(scores.isnan().any())  # half precision may give NaN, and skip the step
            if self._checked:
                self.loss_fn.score(scores.detach(), labels)  # checks values
        loss = self.loss_fn.train(training)(scores, labels)
        return loss / self._scale(training, num_items_in_batch is not None)

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        """Compute the exact metric of all rows. Called by ``Trainer(compute_metrics=…)``."""
        labels = torch.as_tensor(_joined(prediction.label_ids))
        scores = torch.as_tensor(self._first(_joined(prediction.predictions), labels))
        self._check_labels(labels)
        return {self.loss_fn.metric.name: float(self.loss_fn.score(self._scores((scores,), labels), labels))}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse settings that would not be exact."""
        if args.gradient_accumulation_steps > 1 and not self.per_micro_batch:
            raise ValueError(
                f"gradient_accumulation_steps={args.gradient_accumulation_steps}: the Trainer runs micro-batches apart,"
                " and the metric of a batch is no mean over them. Use a larger per_device_train_batch_size, or accept"
                " the mean of the micro-batches' losses with TrainerLoss(…, per_micro_batch=True)."
            )
        if args.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={args.label_smoothing_factor} smooths the targets of the Trainer's own"
                " cross-entropy, and has no effect on this loss. Leave it at 0; for soft targets give labels that are"
                " probabilities, and for a share of cross-entropy MetricLoss(…, blend=0.5)."
            )
        if state.is_hyper_param_search:  # every trial starts anew; the Trainer resets only the model
            self.loss_fn.load_state_dict(self._fresh)
        self._args, self._checked = args, False
        self.loss_fn.to(args.device)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the schedule."""
        self.loss_fn.advance(min(state.global_step / max(state.max_steps, 1), 1.0))

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the arguments, from which `_scale` knows how losses are scaled in evaluation before any training."""
        self._args = args

    def _scale(self, training: bool, counted: bool) -> float:
        """Return the factor that undoes the Trainer's scaling: its processes times its micro-batches."""
        if self._args is None:
            return 1.0
        processes = self._args.n_gpu if self._args.n_gpu > 1 else self._args.world_size
        scale = processes if counted and self._args.average_tokens_across_devices else 1
        return float(scale * (self._args.gradient_accumulation_steps if training else 1))

    def _check_labels(self, labels: Tensor) -> None:
        """Refuse −100, with which labels are padded for the Trainer, where it would count as a target."""
        if self._plan.task != "multiclass" and self._plan.ignore_index is None and bool((labels == -100).any()):
            raise ValueError(
                "the labels hold −100, which is for entries to leave out; say so to the loss, as in"
                f" MetricLoss({self.loss_fn.metric.name!r}, task={self._plan.task!r}, ignore_index=-100)."
            )

    def _first(self, predictions: Any, labels: Tensor) -> Any:
        """Return the scores among a model's outputs, which the Trainer passes without their names."""
        several = isinstance(predictions, tuple)
        first = (predictions[0] if predictions else None) if several else predictions
        shape = tuple(first.shape) if isinstance(first, np.ndarray | Tensor) else None
        if shape is not None and (self._head is None or shape[labels.dim() :] in (self._head, ())):
            return first
        got = f"a {type(first).__name__}" if shape is None else f"shape {shape}"
        if several and predictions:
            raise ValueError(
                f"compute_metrics needs the logits as the first of the model's {len(predictions)} outputs; got {got}."
                " Name the others in model.config.keys_to_ignore_at_inference, and the Trainer leaves them out."
            )
        raise ValueError(
            f"compute_metrics needs the model's logits; got {'nothing' if several else got}. Where a model returns a"
            ' tuple, the Trainer takes the first of it for the loss; return a dict with "logits" instead.'
        )

    def _scores(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the scores of a head, with classes in dimension 1."""
        scores = _logits(outputs)
        if self._plan.task == "binary":
            if scores.shape == (*labels.shape, 1):
                return scores[..., 0]
            pair = scores.shape == (*labels.shape, 2)
            if pair and self._plan.inputs == "logits":
                return scores[..., 1] - scores[..., 0]
            return scores[..., 1] if pair else scores
        if scores.dim() > 2 and scores.shape == labels.shape:
            raise ValueError(
                f"labels of several tokens must be one class each, shape {tuple(scores.shape[:-1])}; got"
                f" {tuple(labels.shape)}, several labels or probabilities a token. Move their last axis to dimension 1,"
                " logits and labels alike, and call stepless.MetricLoss yourself."
            )
        tokens = self._plan.task == "multiclass" and scores.shape[:-1] == labels.shape
        return scores.movedim(-1, 1) if tokens else scores


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, dict) and "logits" in outputs:
        return outputs["logits"]
    if isinstance(outputs, tuple | list) and len(outputs):
        return outputs[0]
    got = f"the keys {', '.join(outputs)}" if isinstance(outputs, dict) else f"a {type(outputs).__name__}"
    raise ValueError(f'the model must return a dict with "logits"; got {got}.')


def _joined(parts: Any) -> Any:
    """Concatenate the batches that ``eval_do_concat_batches=False`` leaves in a list, padded as the Trainer pads."""
    return reduce(nested_concat, parts) if isinstance(parts, list) else parts
