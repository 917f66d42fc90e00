"""Lightning: the schedule, the exact metric of an epoch, and exact accumulation; needs the extra ``lightning``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepless import accumulation
from stepless.extras import needs
from stepless.loss import MetricLoss, RankingLoss

with needs("stepless.integrations.lightning needs lightning", "lightning", "lightning"):
    from lightning import Callback, LightningModule, Trainer

    from stepless.integrations.torchmetrics import EpochScore  # torchmetrics is a dependency of lightning


#: Key of a score: the loss's name, and the index of the loader if several are read one after the other.
_Place = tuple[str, int | None]


class MetricCallback(Callback):
    """Advance the schedule of every `MetricLoss` in a module, and log the exact metric of each whole epoch.

    Whatever a loss is called with is scored, in training, validation and testing: the module only has to call
    ``self.loss_fn(scores, y)`` in its steps. Counts are merged over batches and ranks, so ``train_f1``, ``val_f1`` and
    ``test_f1`` are the metrics of all rows. With several losses, names contain the loss's attribute, as in
    ``val_head_f1``. With several validation or test loaders, read one after the other, names end in
    ``/dataloader_idx_1`` and so on.

    In training, a row is scored by the weights of the step that sees it. A NaN score makes the epoch's metric NaN in
    training, and is an error in validation and testing. An epoch that is resumed from a checkpoint is scored from there
    on. Lightning's own sampler repeats a few rows to give ranks equal shares; these count twice.

    Args:
        prog_bar: Whether the progress bar shows the scores.

    Example:
        >>> trainer = Trainer(callbacks=[MetricCallback()], max_epochs=1, logger=False, accelerator="cpu")
    """

    def __init__(self, *, prog_bar: bool = True) -> None:
        self.prog_bar = prog_bar
        self._scores: dict[str, dict[_Place, EpochScore]] = {}
        self._losses: dict[MetricLoss, str] = {}
        self._hooks: list[Any] = []
        self._stage = ""
        self._loader: int | None = None

    def count(self, loss_fn: MetricLoss, input: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch to the epoch's score of a loss."""
        if loss_fn not in self._losses:
            raise ValueError(
                "the callback counts for the losses of the module; make this one an attribute of it, as in"
                " self.loss_fn = MetricLoss(…)."
            )
        scores, place = self._scores[self._stage], (self._losses[loss_fn], self._loader)
        # checking values waits for the device, so in training only the first batch of an epoch is checked; and not if
        # it holds a NaN, because a module may skip a NaN loss and train on
        check = self._stage != "train" or (place not in scores and not bool(input.isnan().any()))
        if place not in scores:
            counted = not isinstance(loss_fn, RankingLoss) and loss_fn.path.task != "binary"
            scores[place] = EpochScore(loss_fn, classes=input.shape[1] if counted else None).to(input.device)
        scores[place].update(input.detach(), target, sample_weight, check=check)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.accumulate_grad_batches > 1 and pl_module.automatic_optimization:
            warnings.warn(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} averages the micro-batches' own losses, and"
                " the metric of a whole batch is no such average; stepless.integrations.lightning.accumulate is exact.",
                stacklevel=2,
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if "train" not in self._scores:  # Lightning calls no epoch start when it resumes in mid-epoch
            self._start("train", pl_module)
        self._stage, self._loader = "train", None  # a validation may have been in between
        for loss_fn in self._losses:
            if loss_fn.schedule is not None:
                loss_fn.advance(_progress(trainer, batch_idx))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("train", pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log("train", pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("val", pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log("val", pl_module)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int | None = None,
    ) -> None:
        self._loader = dataloader_idx

    on_test_batch_start = on_validation_batch_start

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("test", pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log("test", pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._leave()
        self._scores = {}  # an interrupted epoch must not count in the next

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "")

    def _start(self, stage: str, module: LightningModule) -> None:
        """Begin to score what the losses of the module are called with."""
        self._leave()
        self._stage, self._loader, self._scores[stage] = stage, None, {}
        found = {loss_fn: name for name, loss_fn in module.named_modules() if isinstance(loss_fn, MetricLoss)}
        if not found:
            raise ValueError(
                f"MetricCallback found no stepless.MetricLoss in {type(module).__name__}; make it an attribute, as in"
                ' self.loss_fn = sl.MetricLoss("f1") in __init__.'
            )
        several = len(found) > 1
        self._losses = {
            # torch.compile(loss_fn) wraps the loss under a name of its own
            loss_fn: f"{name.removesuffix('._orig_mod')}_{loss_fn.metric.name}" if several else loss_fn.metric.name
            for loss_fn, name in found.items()
        }

        def record(loss_fn: MetricLoss, args: tuple[Any, ...], kwargs: dict[str, Any], _: Tensor) -> None:
            self.count(loss_fn, *args, **kwargs)

        # in a compiled module it would be traced, with a graph break wherever a value is read
        record = torch.compiler.disable(record)  # type: ignore[no-untyped-call]
        self._hooks = [loss_fn.register_forward_hook(record, with_kwargs=True) for loss_fn in found]

    def _leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _log(self, stage: str, module: LightningModule) -> None:
        scores = self._scores.pop(stage, {})  # nothing if the epoch was resumed after its last batch
        classes = _of_all_ranks({place: score.classes for place, score in scores.items()})
        for loss_fn, name in self._losses.items():  # the same order on every rank, whatever each has called
            for place in sorted(place for place in classes if place[0] == name):
                if place not in scores:  # a rank without rows still takes part in the reduction
                    scores[place] = EpochScore(loss_fn, classes=classes[place]).to(module.device)
                title = f"{stage}_{name}" + ("" if place[1] is None else f"/dataloader_idx_{place[1]}")
                # compute() has merged the ranks' counts; sync_dist averages equal values, and silences a warning
                module.log(
                    title, scores[place].compute(), prog_bar=self.prog_bar, sync_dist=True, add_dataloader_idx=False
                )


def _of_all_ranks(classes: dict[_Place, int | None]) -> dict[_Place, int | None]:
    """Merge what the ranks have scored, each with its number of classes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return classes
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, classes)
    return {place: count for one in gathered for place, count in one.items()}


def accumulate(module: LightningModule, loss_fn: MetricLoss, micro_batches: Sequence[Any]) -> Tensor:
    """Back-propagate all micro-batches as one batch, as `stepless.accumulate` does, in place of ``manual_backward``.

    Use it in a ``training_step`` with manual optimisation. The module's ``forward`` must return the scores. It works on
    one device and with the DDP strategy, where all ranks share one batch and synchronise gradients once. Precision
    plugins apply.

    Args:
        module: The module, with ``automatic_optimization = False``.
        loss_fn: The loss.
        micro_batches: A list of ``(input, target)`` or ``(input, target, sample_weight)``.

    Returns:
        The loss of the whole batch, detached.

    Example:
        >>> class Classifier(LightningModule):
        ...     def training_step(self, batch, _):
        ...         optimizer = self.optimizers()
        ...         optimizer.zero_grad()
        ...         halves = zip(*(part.chunk(2) for part in batch))
        ...         accumulate(self, self.loss_fn, list(halves))
        ...         optimizer.step()
    """
    if module.automatic_optimization:
        raise RuntimeError(
            "accumulate runs the backward itself; set self.automatic_optimization = False in the module's __init__, and"
            " call zero_grad and step of self.optimizers() around it."
        )
    trainer, seen = module.trainer, []

    def keep(_: Any, __: Any, scores: Tensor) -> None:
        if not torch.is_grad_enabled():  # the first of two passes
            seen.append(scores)

    hook = module.register_forward_hook(keep)
    try:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        loss = accumulation.accumulate(loss_fn, trainer.model or module, micro_batches, scaler)
    finally:
        hook.remove()
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, MetricCallback):
            for scores, (_, *rest) in zip(seen, micro_batches, strict=True):
                callback.count(loss_fn, scores, *rest)
    return loss


def _progress(trainer: Trainer, batch: int) -> float:
    """Return the share of training that is done, by whichever of the Trainer's limits comes first."""
    batches, shares = trainer.num_training_batches, []
    if trainer.max_epochs not in (None, -1) and math.isfinite(batches):
        shares.append((trainer.current_epoch * batches + batch) / max(trainer.max_epochs * batches, 1))
    if trainer.max_steps != -1:
        shares.append(trainer.global_step / max(trainer.max_steps, 1))
    if not shares:
        raise RuntimeError(
            "a schedule needs to know when training ends; give the Trainer max_steps=, or max_epochs= and a dataloader"
            " of known length."
        )
    return min(max(shares), 1.0)
