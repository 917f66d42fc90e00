"""The state of a training run in one file: written completely or not at all, and read only by the same run.

The file is safetensors: numbers and text, no code. It carries the fingerprint of the run that wrote it and a hash of
its own content, so another run's file or a damaged one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stepless.extras import needs
from stepless.tabular.fingerprints import fingerprint
from stepless.tabular.whole_files import write_whole

with needs("checkpoints need safetensors", "sklearn", "safetensors"):
    import safetensors
    import safetensors.torch

_FORMAT = "stepless checkpoint 1"


class CheckpointError(ValueError):
    """The checkpoint cannot be resumed: it is damaged, not a checkpoint, or of another run."""


def write_checkpoint(path: Path, run: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace the file at ``path`` by one rename, so that a kill at any moment leaves the old file or the new one."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    head = {"format": _FORMAT, "run": run, "sha256": _digest(plain, facts), "facts": json.dumps(facts)}
    write_whole(path, safetensors.torch.save(plain, metadata=head))


def read_checkpoint(path: Path, run: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return the tensors and facts of the run's own checkpoint, or None if there is no file."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            head = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        facts = json.loads(head.get("facts", "{}"))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is no checkpoint, or a damaged one ({error}). {_WAY_OUT}") from None
    if head.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of stepless. {_WAY_OUT}")
    if head.get("sha256") != _digest(tensors, facts):
        raise CheckpointError(f"{path} is damaged: what it holds is not what was written. {_WAY_OUT}")
    if head.get("run") != run:
        raise CheckpointError(
            f"{path} belongs to another training run: data, settings or random_state differ. {_WAY_OUT}"
        )
    return tensors, facts


_WAY_OUT = "Delete it to start afresh, or give another path."


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    names = sorted(tensors)
    return fingerprint([json.dumps(facts, sort_keys=True), *names], [tensors[name] for name in names])
