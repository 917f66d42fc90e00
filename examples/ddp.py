"""One loss for all ranks: train on F1 with DistributedDataParallel.

F1 is not a mean over samples, so the mean of the ranks' F1 is not the F1 of the batch. `MetricLoss` adds up the counts
of all ranks, with one all-reduce of four numbers, so the loss and its gradient are those of the whole batch. The model
comes out the same for any number of processes:

    python examples/ddp.py
    torchrun --nproc-per-node 2 examples/ddp.py
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import stepless as sl

ROWS, BATCH, EPOCHS, LEARNING_RATE = 8192, 512, 4, 0.01


def draw_rows(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw ten features and a rare class, about one row in twenty, that depends on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 10, generator=generator)
    signal = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * torch.randn(rows, generator=generator)
    return x, (signal > 2.5).float()


def make_model() -> nn.Module:
    """Make a small net, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))


def report(model: nn.Module) -> None:
    """Print the score on new rows, and the norm of the weights to compare runs by."""
    x, y = draw_rows(4096, seed=2)
    with torch.no_grad():
        score = sl.score(model(x), y, "f1").item()  # score never communicates, so one rank may call it alone
    norm = sum(p.detach().square().sum() for p in model.parameters()) ** 0.5
    print(f"F1 on new rows {score:.4f}, norm of the weights {norm:.4f}", flush=True)


def main() -> None:
    """Train, and print the loss of the first batch on each rank."""
    if "RANK" in os.environ:  # set by torchrun
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.set_num_threads(1)

    rows = TensorDataset(*draw_rows(ROWS, seed=1))
    sampler = DistributedSampler(rows, ranks, rank, shuffle=False)  # the rows are in random order already
    loader = DataLoader(rows, BATCH // ranks, sampler=sampler)
    bare = make_model()
    model = DistributedDataParallel(bare) if dist.is_initialized() else bare
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    loss_fn, of_this_rank = sl.MetricLoss("f1"), sl.MetricLoss("f1", sync=False)

    for epoch in range(EPOCHS):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            scores = model(x)
            loss = loss_fn(scores, y)
            if epoch == step == 0:
                all_x, all_y = rows[:BATCH]
                own, whole = of_this_rank(scores, y), of_this_rank(bare(all_x), all_y)
                line = f"rank {rank}: loss {loss:.6f}, of the whole batch {whole:.6f}, of its rows {own:.6f}\n"
                print(line, end="", flush=True)  # in one piece, because ranks share the output
            loss.backward()
            optimizer.step()

    if rank == 0:
        report(bare)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
