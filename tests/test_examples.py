"""The examples of several processes run as their users run them, and end where one process ends."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LAST = re.compile(r"F1 on new rows (\S+), norm of the weights (\S+)")
FIRST = re.compile(r"rank (\d): loss (\S+), of the whole batch (\S+), of its rows (\S+)")


def run(name, processes):
    """What an example prints."""
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    done = subprocess.run(
        [sys.executable, *launch, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def end(printed):
    ((score, norm),) = LAST.findall(printed)
    return float(score), float(norm)


@pytest.fixture(scope="module")
def alone():
    return end(run("ddp.py", 1))


def test_ddp(alone):
    printed = run("ddp.py", 2)
    assert end(printed) == pytest.approx(alone, abs=2e-3)
    assert alone[0] > 0.5, "it has learned something"
    first = FIRST.findall(printed)
    assert sorted(rank for rank, *_ in first) == ["0", "1"]
    for _, loss, whole, own in first:
        assert loss == whole
        assert own != whole


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("name", "library"), [("ddp_lightning.py", "lightning"), ("ddp_accelerate.py", "accelerate"), ("fsdp.py", "torch")]
)
def test_the_same_training(name, library, processes, alone):
    pytest.importorskip(library)
    assert end(run(name, processes)) == pytest.approx(alone, abs=2e-3)
