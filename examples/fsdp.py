"""The training of ddp.py with FSDP2: weights, gradients and optimiser state are spread over the ranks.

FSDP averages the ranks' gradients as DistributedDataParallel does, so the loss needs no setting for it:

    python examples/fsdp.py
    torchrun --nproc-per-node 2 examples/fsdp.py
"""

import os

import torch
import torch.distributed as dist
from ddp import BATCH, EPOCHS, LEARNING_RATE, ROWS, draw_rows, make_model, report
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import stepless as sl


def main() -> None:
    """Train and report."""
    if "RANK" in os.environ:  # set by torchrun
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)

    rows = TensorDataset(*draw_rows(ROWS, seed=1))
    loader = DataLoader(rows, BATCH // ranks, sampler=DistributedSampler(rows, ranks, rank, shuffle=False))
    model, mesh = make_model(), init_device_mesh("cpu", (ranks,))
    for layer in (layer for layer in model if isinstance(layer, nn.Linear)):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    loss_fn = sl.MetricLoss("f1")

    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        whole = make_model()
        whole.load_state_dict(weights)
        report(whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
