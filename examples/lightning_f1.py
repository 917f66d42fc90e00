"""F1 with Lightning: the schedule, the exact F1 of every epoch, and exact accumulation.

The callback finds the loss in the module. It moves the loss from cross-entropy to F1 during training, and logs
`train_f1` and `val_f1`, each the F1 of all rows of the epoch, over all batches and ranks. A batch of 512 goes through
the net in micro-batches, and the gradient is that of the whole batch:

    python examples/lightning_f1.py
    torchrun --nproc-per-node 2 examples/lightning_f1.py
"""

import logging
import os
import warnings

import lightning
import torch
from ddp import BATCH, LEARNING_RATE, ROWS, draw_rows, make_model
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import stepless as sl
from stepless.integrations.lightning import MetricCallback, accumulate

EPOCHS, MICRO_BATCHES = 20, 4


class Classifier(lightning.LightningModule):
    """A net that trains on F1."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.loss_fn = sl.MetricLoss("f1", schedule=sl.Schedule(blend=(1.0, 0.0), until=0.5))
        self.automatic_optimization = False  # accumulate runs the backward

    def forward(self, x: Tensor) -> Tensor:
        """Compute the scores."""
        return self.model(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Take one step for a batch, in micro-batches."""
        optimizer = self.optimizers()
        optimizer.zero_grad()
        micro_batches = list(zip(*(part.chunk(MICRO_BATCHES) for part in batch), strict=True))
        accumulate(self, self.loss_fn, micro_batches)
        optimizer.step()

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Call the loss: the callback scores what it is called with."""
        self.loss_fn(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser of ddp.py."""
        return torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)


def main() -> None:
    """Train, and print what was logged."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*num_workers.*|.*number of training batches.*|.*LeafSpec.*")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=EPOCHS, logger=False,
        callbacks=[MetricCallback()], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    loader, new = (
        DataLoader(TensorDataset(*draw_rows(rows, seed)), BATCH // ranks, shuffle=seed == 1)
        for rows, seed in ((ROWS, 1), (4096, 2))
    )
    module = Classifier()
    (before,) = trainer.validate(module, new, verbose=False)
    trainer.fit(module, loader, new)
    if trainer.is_global_zero:
        after = trainer.callback_metrics["val_f1"]
        print(f"F1 on new rows {before['val_f1']:.4f} before, {after:.4f} after {EPOCHS} epochs", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
