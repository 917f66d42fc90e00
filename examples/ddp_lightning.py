"""The training of ddp.py with Lightning, which wraps the model in DistributedDataParallel by itself.

The loss needs no setting for that:

    python examples/ddp_lightning.py
    torchrun --nproc-per-node 2 examples/ddp_lightning.py
"""

import os

import lightning
import torch
from ddp import BATCH, EPOCHS, LEARNING_RATE, ROWS, draw_rows, make_model, report
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import stepless as sl


class Classifier(lightning.LightningModule):
    """A net that trains on F1."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.loss_fn = sl.MetricLoss("f1")

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the loss of all ranks' rows."""
        x, y = batch
        return self.loss_fn(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser of ddp.py."""
        return torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)


def main() -> None:
    """Train and report."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=EPOCHS, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    rows = TensorDataset(*draw_rows(ROWS, seed=1))
    sampler = DistributedSampler(rows, ranks, rank, shuffle=False)  # Lightning's own shuffles under DDP
    classifier = Classifier()
    trainer.fit(classifier, DataLoader(rows, BATCH // ranks, sampler=sampler))
    if trainer.is_global_zero:
        report(classifier.model)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
