"""The kernels of CUDA on a machine without a GPU: `tests.interpreted` in Triton's interpreter, in a new process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
def test_the_kernels_agree_with_the_plain_path_in_the_interpreter():
    pytest.importorskip("triton", reason="Triton is for Linux")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.interpreted"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    found = re.search(r"(\d+) of (\d+) agree", run.stdout)
    assert found is not None, run.stdout + run.stderr
    assert found[1] == found[2], run.stdout
    assert int(found[2]) > 200
