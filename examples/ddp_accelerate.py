"""The training of ddp.py with Accelerate, which wraps the model in DistributedDataParallel by itself.

The loss needs no setting for that:

    python examples/ddp_accelerate.py
    torchrun --nproc-per-node 2 examples/ddp_accelerate.py
"""

import torch
from accelerate import Accelerator
from ddp import BATCH, EPOCHS, LEARNING_RATE, ROWS, draw_rows, make_model, report
from torch.utils.data import DataLoader, TensorDataset

import stepless as sl


def main() -> None:
    """Train and report."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model, loss_fn = make_model(), sl.MetricLoss("f1")
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    loader = DataLoader(TensorDataset(*draw_rows(ROWS, seed=1)), BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(loss_fn(model(x), y))
            optimizer.step()

    if accelerator.is_main_process:
        report(accelerator.unwrap_model(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
