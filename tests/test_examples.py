"""The examples run as their users run them; those of several processes end where one process ends."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LAST = re.compile(r"F1 on new rows (\S+), norm of the weights (\S+)")
CHANGE = re.compile(r"new \w+ (\S+) before, (\S+) after")
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


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "library", "processes", "least"),
    [
        ("lightning_f1.py", "lightning", 1, 0.6),
        ("lightning_f1.py", "lightning", 2, 0.6),
        ("transformers_mcc.py", "transformers", 1, 0.9),
        ("transformers_mcc.py", "transformers", 2, 0.9),
        ("segmentation.py", "torch", 1, 0.8),
    ],
)
def test_it_learns(name, library, processes, least):
    pytest.importorskip(library)
    printed = CHANGE.findall(run(name, processes))
    assert printed
    for before, after in printed:
        assert float(before) < 0.3
        assert float(after) > least


@pytest.mark.full
def test_skorch():
    pytest.importorskip("skorch")
    scores = re.findall(r"trained on (\S+): F1 on new rows (\S+)", run("skorch_f1.py", 1))
    assert [name for name, _ in scores] == ["cross-entropy", "F1"]
    assert all(float(score) > 0.6 for _, score in scores)


@pytest.mark.full
@pytest.mark.parametrize(("name", "library"), [("jax_flax_f1.py", "flax"), ("keras_f1.py", "keras")])
def test_other_libraries(name, library):
    if find_spec(library) is None:  # not importorskip: Keras's own default backend may not be there
        pytest.skip(f"{library} is not installed")
    (half, _), (ours, _) = re.findall(r"^\S.*?  ?(0\.\d{3})  (0\.\d{3})$", run(name, 1), re.MULTILINE)
    assert float(ours) > float(half), "F1 gains from training on it, where all decide at one half"
    assert float(ours) > 0.6


@pytest.mark.full
def test_mlflow():
    pytest.importorskip("mlflow")
    assert "same labels as the model: True" in run("mlflow_model.py", 1)
