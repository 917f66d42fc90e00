"""The members of an ensemble: how they score rows, and how each kind is written to files and read back.

A `Model` mixes members of any kind that score rows by logits. `MEMBER_KINDS` is the only list of kinds, and says how
each is read. Members deal in names and bytes and never touch a disk, so that files are checked in one place
(`stepless.tabular.persist`). Nothing that is read can run code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepless.extras import needs
from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.networks.nets import Architecture, Members

with needs("the members of a model need safetensors", "sklearn", "safetensors"):
    import safetensors
    import safetensors.torch

Files = Mapping[str, bytes]
Factory = Callable[..., nn.Module]

#: More nets than anyone trains: a file that claims more would cost time and memory before it is found wrong.
_MOST_NETS = 4096

#: The tensor types a net may have, by their safetensors names. Buffers may be integers: BatchNorm counts batches.
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


class Member(Protocol):
    """One or more models of one kind, which score rows together.

    Attributes:
        kind: Its name in `MEMBER_KINDS`.
        inputs: The number of features it takes.
        outputs: The number of logits per row: 1 for a binary task, or one for each class or label.
    """

    @property
    def kind(self) -> str: ...

    @property
    def inputs(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    def scores(self, matrix: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        """Logits ``(n, N, outputs)`` of its n models for the rows of ``matrix``, ``(N, inputs)``."""
        ...

    def to_files(self, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The member as an entry for the JSON, and files whose names are ``name`` and a suffix, as in ``name.txt``."""
        ...


class _Stacked:
    """The common part of members that are nets: tensors whose first dimension is over nets."""

    tensors: Mapping[str, Tensor]

    @property
    def n(self) -> int:
        """The number of nets."""
        return len(next(iter(self.tensors.values())))

    def __getstate__(self) -> dict[str, Any]:
        # the nets are rebuilt from the tensors when they are needed
        return {name: value for name, value in self.__dict__.items() if name != "_nets"}


@dataclass(frozen=True, eq=False)
class NetMember(_Stacked):
    """Nets of one architecture, evaluated together.

    The weights are float32, as trained, but the nets are evaluated in float64. So a row's score does not depend on the
    rows it is scored with, nor on the machine, except in its last digits.

    Args:
        architecture: The shape of the nets.
        tensors: The parameters of `Members`, by name; the first dimension is over nets.

    Example:
        >>> member = NetMember.of(Members(Architecture("linear", inputs=4, outputs=1), n=3, seeds=(0, 1, 2)))
        >>> member.scores(np.zeros((10, 4), np.float32)).shape
        (3, 10, 1)
    """

    architecture: Architecture
    tensors: Mapping[str, Tensor]
    kind = "net"

    @classmethod
    def of(cls, members: Members) -> NetMember:
        """A member with copies of the parameters of trained nets."""
        return cls(members.architecture, {name: tensor.clone() for name, tensor in members.tensors().items()})

    @classmethod
    def from_files(cls, entry: dict[str, Any], files: Files, factory: Factory | None) -> NetMember:
        """Read what `to_files` gave; raise a ValueError for anything else."""
        check_keys(entry, ("architecture", "file"), "a net's entry")
        member = cls(Architecture.from_json(entry["architecture"]), read_stacked(files, entry["file"]))
        _ = member._nets  # raises where the tensors do not fit the architecture
        return member

    @property
    def inputs(self) -> int:
        return self.architecture.inputs

    @property
    def outputs(self) -> int:
        return self.architecture.outputs

    @cached_property
    def _nets(self) -> Members:
        nets = Members.from_tensors(self.architecture, self.tensors)
        return nets.double().eval().requires_grad_(False)

    def scores(self, matrix: NDArray[np.float32]) -> NDArray[np.float64]:
        with torch.no_grad():
            return self._nets(torch.from_numpy(matrix).double()).numpy()

    def to_files(self, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        file = f"{name}.safetensors"
        return {"architecture": self.architecture.to_json(), "file": file}, {file: _write_tensors(self.tensors)}


@dataclass(frozen=True, eq=False)
class FactoryMember(_Stacked):
    """Nets that a user's factory makes, evaluated together in their own precision.

    A factory is code, so it is not saved, and has to be passed again to load such a member.

    Args:
        factory: Makes a module of the nets' shape; called without arguments, or with the numbers of inputs and outputs.
        tensors: The parameters and buffers of `FactoryMembers`, by name; the first dimension is over nets.
        inputs: The number of features the nets take.
        outputs: The number of logits they give.

    Example:
        >>> nets = FactoryMembers(lambda: nn.Linear(4, 1), 3, seeds=(0, 1, 2))
        >>> FactoryMember(lambda: nn.Linear(4, 1), nets.tensors(), 4, 1).n
        3
    """

    factory: Factory
    tensors: Mapping[str, Tensor]
    inputs: int
    outputs: int
    kind = "factory"

    @classmethod
    def from_files(cls, entry: dict[str, Any], files: Files, factory: Factory | None) -> FactoryMember:
        """Read what `to_files` gave, with the factory; raise a ValueError for anything else."""
        check_keys(entry, ("inputs", "outputs", "file"), "a net's entry")
        if factory is None:
            raise ValueError(
                "the model's nets come from a factory, which is code and so is not saved. Pass it along:"
                " load(path, model=factory)."
            )
        if not callable(factory):
            raise TypeError(f"model must be the factory that made the nets; got {type(factory).__name__}.")
        sizes = [entry[name] for name in ("inputs", "outputs")]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(f"inputs and outputs must be whole numbers above 0; got {str(sizes)[:100]}.")
        tensors = read_stacked(files, entry["file"], infinite=True)  # as in the mask of an attention
        # one net first, to find tensors that do not fit before thousands of nets are built
        FactoryMembers.from_tensors(sized(factory, *sizes), {name: tensor[:1] for name, tensor in tensors.items()})
        member = cls(factory, tensors, *sizes)
        _ = member._nets
        return member

    @property
    def build(self) -> Callable[[], nn.Module]:
        """The factory as one that is called without arguments."""
        return sized(self.factory, self.inputs, self.outputs)

    @cached_property
    def _nets(self) -> FactoryMembers:
        return FactoryMembers.from_tensors(self.build, self.tensors).eval().requires_grad_(False)

    def scores(self, matrix: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        with torch.no_grad():
            return self._nets(torch.from_numpy(matrix)).numpy()

    def to_files(self, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        file = f"{name}.safetensors"
        return {"inputs": self.inputs, "outputs": self.outputs, "file": file}, {file: _write_tensors(self.tensors)}


def sized(factory: Factory, inputs: int, outputs: int) -> Callable[[], nn.Module]:
    """Bind the numbers of inputs and outputs to a factory that takes them.

    >>> sized(nn.Linear, 3, 1)()
    Linear(in_features=3, out_features=1, bias=True)
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature takes no arguments
        return factory
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [p.name for p in parameters if p.default is p.empty and p.kind in positional]
    if len(wanted) not in (0, 2):
        raise TypeError(
            "model must be a factory called without arguments, or with the numbers of inputs and outputs; it takes"
            f" {len(wanted)}: {', '.join(wanted)}."
        )
    return partial(factory, inputs, outputs) if wanted else factory


def _write_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def read_stacked(files: Files, file: Any, *, infinite: bool = False) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whose first dimension is over nets and has the same size in all of them."""
    tensors = read_tensors(files, file, infinite=infinite)
    found = {len(tensor) if tensor.dim() else 0 for tensor in tensors.values()}
    if len(found) > 1 or not 1 <= max(found) <= _MOST_NETS:
        raise ValueError(f"{file} must hold 1 to {_MOST_NETS} nets, as many in each tensor; got {sorted(found)[:10]}.")
    return tensors


def read_tensors(files: Files, file: Any, *, infinite: bool = False) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name; raise a ValueError if there are none.

    Raise one, too, if a tensor is not finite; with ``infinite`` only if one holds NaN.
    """
    if not isinstance(file, str) or file not in files:
        raise ValueError(f"a member's file must be one of its own, {', '.join(files)}; got {str(file)[:100]!r}.")
    try:
        parts = safetensors.deserialize(files[file])  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is not a safetensors file: {error}.") from None
    tensors = {}
    for name, part in parts:
        shape, dtype = part["shape"], _DTYPES.get(part["dtype"])
        if dtype is None:
            raise ValueError(
                f"tensors must be of the types {', '.join(_DTYPES)}; got {part['dtype']} for {name[:100]!r}."
            )
        if 0 in shape:  # such a shape takes no bytes, however large its other sizes
            raise ValueError(f"tensors must not be empty; got shape {tuple(shape)} for {name[:100]!r}.")
        tensor = torch.frombuffer(part["data"], dtype=dtype).reshape(shape)
        if not (~tensor.isnan() if infinite else tensor.isfinite()).all():
            raise ValueError(f"weights must be finite; those of {name[:100]!r} are not. Did training diverge?")
        tensors[name] = tensor
    if not tensors:
        raise ValueError(f"{file} holds no tensors.")
    return tensors


def check_keys(entry: Any, names: tuple[str, ...], what: str) -> None:
    """Raise a ValueError unless ``entry`` is a dict with exactly these keys."""
    if not isinstance(entry, dict) or set(entry) != set(names):
        found = sorted(map(str, entry))[:20] if isinstance(entry, dict) else type(entry).__name__
        raise ValueError(f"{what} must have the keys {', '.join(names)}; got {found}.")


#: The reader of each kind: ``(entry, files, factory) -> Member``.
MEMBER_KINDS: dict[str, Callable[[dict[str, Any], Files, Factory | None], Member]] = {
    "net": NetMember.from_files,
    "factory": FactoryMember.from_files,
}
