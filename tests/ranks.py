"""Real processes for distributed tests: run a function on every rank of a gloo group, each in its own interpreter.

Interpreters are kept for the next run, because importing torch takes longer than most tests. Every run has a new
process group. If a rank fails, all interpreters are ended, and the next run starts new ones.
"""

import contextlib
import datetime
import multiprocessing as mp
import os
import socket
import time
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

_KEPT = []  # (process, connection), one a rank


def run(worker, ranks, *args, timeout=120):
    """Run ``worker(rank, *args)`` on every rank and return the results in order of rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    while len(_KEPT) < ranks:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        _KEPT.append((process, ours))
    connections = [connection for _, connection in _KEPT[:ranks]]
    for rank, connection in enumerate(connections):
        connection.send((rank, ranks, port, timeout, worker, args))
    results = {}
    while len(results) < ranks:
        for connection in wait([c for i, c in enumerate(connections) if i not in results]):
            try:
                failed, result = connection.recv()
            except EOFError:
                failed, result = True, RuntimeError("a rank has died; its output is above")
            if failed:
                _end()
                raise result
            results[connections.index(connection)] = result
    return [results[rank] for rank in range(ranks)]


def _end():
    for process, connection in _KEPT:
        process.terminate()
        process.join()
        connection.close()
    _KEPT.clear()


def _serve(connection):
    torch.set_num_threads(1)
    while True:
        try:
            rank, ranks, port, timeout, worker, args = connection.recv()
        except EOFError:  # the tests are over
            return
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=timeout))
        try:
            answer = False, worker(rank, *args)
            time.sleep(0.5)  # a rank that leaves at once closes connections that others still use
        except Exception as error:
            answer = True, error
        finally:
            dist.destroy_process_group()
        connection.send(answer)


@contextlib.contextmanager
def as_torchrun(rank, world, **more):
    """Set the environment as torchrun does, plus ``more``, and restore it, because the processes are used again."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, **more}
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name)
