"""Real clusters of two workers, one of which dies: the same table as on this machine, and the data sent once."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

import stepless as sl
from tests.tabular.quick import data, same_tables

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]
FEW = {"contestants": ["cross_entropy", "boosting_tuned"], "folds": 3, "repeats": 2}


@pytest.fixture(scope="module")
def expected():
    return sl.compare(*data(rows=90), "f1", **FEW)


class Killer:
    """Kills a worker that is at work, once the first cells are there."""

    def __init__(self, workers):
        self.workers, self.killed, self.steps = workers, None, []

    def __call__(self, step):
        self.steps.append(step)
        if self.killed is None and len(self.steps) >= 2:
            self.killed = self.workers()[0]
            os.kill(self.killed, signal.SIGKILL)


def test_a_ray_cluster_loses_a_worker(expected):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        address = ray.get_runtime_context().gcs_address

        def workers():
            children = psutil.Process().children(recursive=True)
            titles = {p.pid: " ".join(p.cmdline()) for p in children if p.is_running()}
            return [pid for pid, title in titles.items() if "ray::run_task" in title]

        killer = Killer(workers)
        outcome = sl.compare(*data(rows=90), "f1", backend="ray", address=address, progress=killer, **FEW)
        assert not psutil.pid_exists(killer.killed) or psutil.Process(killer.killed).status() == "zombie"
        assert ray.is_initialized()  # it was not ours to end
    finally:
        ray.shutdown()
    assert same_tables(expected, outcome)


@pytest.fixture
def dask_cluster(tmp_path):
    """A scheduler and two workers, each a process of its own."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    module = [sys.executable, "-m", "distributed.cli"]
    scheduler = subprocess.Popen(
        [*module[:2], "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)],
        **quiet,
    )
    workers = [
        subprocess.Popen(
            [*module[:2], "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny",
             "--no-dashboard", "--local-directory", str(tmp_path)],
            **quiet,
        )
        for _ in range(2)
    ]  # fmt: skip
    from distributed import Client

    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    client = Client(scheduler_file=str(file), set_as_default=False)
    client.wait_for_workers(2, timeout=60)
    yield client.scheduler.address, workers
    client.close()
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


def test_a_dask_cluster_loses_a_worker(expected, dask_cluster):
    address, workers = dask_cluster
    killer = Killer(lambda: [workers[0].pid])
    outcome = sl.compare(*data(rows=90), "f1", backend="dask", address=address, progress=killer, **FEW)
    assert workers[0].wait(10) == -signal.SIGKILL
    assert workers[1].poll() is None
    assert same_tables(expected, outcome)


def test_dask_takes_the_client_of_this_process(expected, dask_cluster):
    from distributed import Client

    with Client(dask_cluster[0]):
        assert same_tables(expected, sl.compare(*data(rows=90), "f1", backend="dask", **FEW))


def received():
    """How many bytes have come over the loopback; what else the machine is told does not count."""
    return psutil.net_io_counters(pernic=True)["lo"].bytes_recv


def test_data_are_sent_to_dask_once(dask_cluster):
    address, _ = dask_cluster
    X, y = data(rows=60)
    wide = np.concatenate([X, np.zeros((60, 20_000))], 1)  # 10 MB, of which 12 tasks would make 120
    before = received()
    with pytest.raises(ValueError, match="no contestant could be fitted"):
        # nothing is fitted to the end: what it costs to get there is what is measured
        sl.compare(
            wide, y, subject_to="recall >= 0.999 and fpr <= 0.0001", contestants=[], folds=6, repeats=2, backend="dask",
            address=address,
        )  # fmt: skip
    assert received() - before < 60e6


def test_a_cluster_that_is_not_there_is_a_sentence():
    pytest.importorskip("distributed")
    X, y = data(rows=60)
    with pytest.raises(
        ValueError, match=r'backend="dask" needs the address of a scheduler, or a Client in this process'
    ):
        sl.compare(X, y, contestants=[], backend="dask")
    code = """
        import stepless as sl, numpy as np
        X = np.random.default_rng(0).normal(size=(60, 3))
        try:
            sl.compare(X, X[:, 0] > 0, contestants=[], backend="ray", address="127.0.0.1:1")
        except ValueError as error:
            print(error)
    """
    made = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert made.stdout.startswith("no Ray cluster answers at '127.0.0.1:1'")
