"""Real processes for distributed tests: run a function on every rank of a gloo group, in fresh interpreters."""

import datetime
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(worker, ranks, *args, timeout=120):
    """``worker(rank, *args)`` on every rank; what the workers return, in order of rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    mp.spawn(_start, (ranks, port, timeout, queue, worker, args), nprocs=ranks)
    results = dict(queue.get() for _ in range(ranks))
    return [results[rank] for rank in range(ranks)]


def _start(rank, ranks, port, timeout, queue, worker, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=timeout))
    try:
        queue.put((rank, worker(rank, *args)))
        time.sleep(0.5)  # a rank that leaves at once closes connections that others still use
    finally:
        dist.destroy_process_group()
