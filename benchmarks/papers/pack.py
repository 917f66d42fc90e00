"""Pack the tables' data into small files that torch and numpy alone can read: build/papers/<name>.npz.

What there is to pack is in the ``PACKS`` of the modules ``pack_*.py``, by name.

STEPLESS_DATA=… python benchmarks/papers/pack.py [name …]
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from frame import PACKED

sys.path.append(str(Path(__file__).parent.parent))  # benchmarks/data.py

Arrays = dict[str, np.ndarray]


def packs() -> dict[str, Callable[[], Arrays]]:
    """Everything there is to pack."""
    modules = [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("pack_*.py"))]
    return {name: make for module in modules for name, make in module.PACKS.items()}


def write(name: str) -> None:
    """Make one file."""
    PACKED.mkdir(parents=True, exist_ok=True)
    part = PACKED / f"{name}.{os.getpid()}.part.npz"  # workers may pack the same at once
    np.savez_compressed(part, **packs()[name]())
    part.replace(PACKED / f"{name}.npz")
    print(f"{name}: {(PACKED / f'{name}.npz').stat().st_size / 2**20:.1f} MiB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="all, if none is given")
    names, known = parser.parse_args().names, packs()
    if lost := [name for name in names if name not in known]:
        sys.exit(f"nothing to pack is called {', '.join(lost)}; there are {', '.join(known)}.")
    for each in names or known:
        write(each)
