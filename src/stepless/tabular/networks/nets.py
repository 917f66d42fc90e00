"""The members of an ensemble as one module: several small networks that share every batched operation.

On small tables, a training step spends more time in calls than in arithmetic. `Members` stacks n networks of one shape
along a leading dimension, so a layer is one batched product whatever n is. Members do not influence each other: a batch
of members computes what a loop over them would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

Kind = Literal["mlp", "linear"]

#: The default hidden layers of an "mlp".
HIDDEN = (64, 64)


@dataclass(frozen=True)
class Architecture:
    """The shape of a network: all that is fixed before its weights.

    Attributes:
        kind: ``"mlp"`` (rectified layers) or ``"linear"``.
        inputs: The number of features.
        outputs: The number of logits: 1 for a binary task, else one per class or label.
        hidden: The widths of the hidden layers. None for (64, 64), or for no layers if the kind is linear.
        dropout: The share of hidden units that are dropped in each training step.

    Example:
        >>> shape = Architecture("mlp", inputs=30, outputs=1, hidden=(16,))
        >>> shape.shapes(members=5)["weights.0"]
        (5, 30, 16)
        >>> Architecture.from_json(shape.to_json()) == shape
        True
    """

    kind: Kind
    inputs: int
    outputs: int
    hidden: tuple[int, ...] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f'a network is "mlp" or "linear"; got {self.kind!r}.')
        for name in ("inputs", "outputs"):
            if not _is_size(getattr(self, name)):
                raise ValueError(f"{name} must be a whole number above 0; got {getattr(self, name)!r}.")
        hidden = self.hidden
        if hidden is None:
            hidden = HIDDEN if self.kind == "mlp" else ()
        if not isinstance(hidden, tuple | list) or not all(map(_is_size, hidden)):
            raise ValueError(f"hidden must hold the widths of the layers, as in (64, 64); got {hidden!r}.")
        if self.kind == "linear" and hidden:
            raise ValueError(f'a "linear" network has no hidden layers; got {tuple(hidden)}. Use "mlp" for these.')
        if self.kind == "mlp" and not hidden:
            raise ValueError('an "mlp" has at least one hidden layer; got none. Use "linear" for that.')
        object.__setattr__(self, "hidden", tuple(hidden))
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a share of units, in [0, 1); got {self.dropout!r}.")
        if self.dropout and not hidden:
            raise ValueError(f'dropout={self.dropout} has no effect on a "linear" network, which has no hidden units.')

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """The number of inputs and outputs of each layer."""
        sizes = (self.inputs, *(self.hidden or ()), self.outputs)
        return tuple(pairwise(sizes))

    def shapes(self, members: int) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor of `Members`, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (fan_in, fan_out) in enumerate(self.layers):
            shapes[f"weights.{i}"], shapes[f"biases.{i}"] = (members, fan_in, fan_out), (members, 1, fan_out)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """The architecture as JSON values."""
        return {**asdict(self), "hidden": list(self.hidden or ())}

    @classmethod
    def from_json(cls, entry: Any) -> Architecture:
        """Read what `to_json` returned; raise a ValueError for anything else."""
        names = [field.name for field in fields(cls)]
        if not isinstance(entry, dict) or set(entry) != set(names):
            found = sorted(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
            raise ValueError(f"an architecture has the entries {', '.join(names)}; got {found}.")
        if not isinstance(entry["kind"], str) or not isinstance(entry["hidden"], list):
            raise ValueError("an architecture's kind is a text and its hidden layers are a list.")
        return cls(**{**entry, "hidden": tuple(entry["hidden"])})


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Tape(NamedTuple):
    """What `Members.run` keeps for `Members.pull`: the input and the dropout mask of each layer."""

    values: list[Tensor]
    masks: list[Tensor]


class Members(nn.Module):
    """n networks of one architecture, as one module.

    The initial weights and the dropout of a member depend only on its own seed. Weights start uniform in
    ±√(6 / (inputs + outputs of the layer)) (Glorot & Bengio 2010), biases at 0.

    Args:
        architecture: The shape of every member.
        n: The number of members.
        seeds: One per member.

    Shape:
        - input: ``(rows, inputs)``, the same for all members, or ``(n, rows, inputs)``.
        - output: logits ``(n, rows, outputs)``.

    Example:
        >>> nets = Members(Architecture("mlp", inputs=4, outputs=1, hidden=(8,)), n=3, seeds=(0, 1, 2))
        >>> nets(torch.zeros(10, 4)).shape
        torch.Size([3, 10, 1])
    """

    def __init__(self, architecture: Architecture, n: int, seeds: Sequence[int]) -> None:
        super().__init__()
        check_seeds(n, seeds)
        self.architecture, self.n = architecture, n
        self._buffers_by_use: dict[tuple[Any, ...], Tensor] = {}
        self._seeds, self._generators = tuple(seeds), [torch.Generator().manual_seed(seed) for seed in seeds]
        weights, biases = [], []
        for fan_in, fan_out in architecture.layers:
            bound = math.sqrt(6 / (fan_in + fan_out))
            weight = torch.empty(n, fan_in, fan_out, dtype=torch.float32)  # whatever torch's default is
            for own, generator in zip(weight, self._generators, strict=True):
                own.uniform_(-bound, bound, generator=generator)
            weights.append(nn.Parameter(weight))
            biases.append(nn.Parameter(weight.new_zeros(n, 1, fan_out)))
        self.weights, self.biases = nn.ParameterList(weights), nn.ParameterList(biases)

    @classmethod
    def from_tensors(cls, architecture: Architecture, tensors: Mapping[str, Tensor]) -> Members:
        """Build members with these weights, named and shaped as in `Architecture.shapes`."""
        first = tensors.get("weights.0")
        n = len(first) if first is not None and first.dim() == 3 else 1
        expected = architecture.shapes(max(n, 1))
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != expected:
            raise ValueError(f"a network of {architecture} has tensors of the shapes {expected}; got {found}.")
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float32:
                raise ValueError(f"weights are float32; got {tensor.dtype} for {name}.")
        members = cls(architecture, n, range(n))
        members.load_state_dict(dict(tensors))
        return members

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, on the CPU, as `from_tensors` takes them."""
        return {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}

    def reseed(self, epoch: int) -> None:
        """Reset the random numbers for an epoch; they depend only on a member's seed and the epoch."""
        for generator, seed in zip(self._generators, self._seeds, strict=True):
            generator.manual_seed(mixed(epoch, seed))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of every member."""
        if x.dim() == 2:
            x = x.expand(self.n, -1, -1)
        (*weights, last), (*biases, shift) = self._weights_and_biases()
        for weight, bias in zip(weights, biases, strict=True):
            x = torch.baddbmm(bias, x, weight).relu_()
            mask = self._dropout_mask(x)
            x = x if mask is None else x * mask
        if last.shape[2] == 1:  # faster than a matrix product with a single column
            return (x * last.mT).sum(2, keepdim=True) + shift
        return torch.baddbmm(shift, x, last)

    @torch.no_grad()
    def run(self, x: Tensor) -> tuple[Tensor, Tape]:
        """Compute the logits of `forward` without a graph; `pull` finds the gradients. ``x`` is ``(n, rows, inputs)``.

        For small layers, torch's graph takes as long as the products themselves, and allocating each layer's output as
        long again. So the tape lies in buffers that the next run overwrites.
        """
        (*weights, last), (*biases, shift) = self._weights_and_biases()
        values, masks = [x], []
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            value = self._buffer(f"value {layer}", x, x.shape[1], weight.shape[2])
            values.append(torch.baddbmm(bias, values[-1], weight, out=value).relu_())
            mask = self._dropout_mask(value)
            if mask is not None:
                masks.append(mask)
                value.mul_(mask)
        if last.shape[2] == 1:
            product = self._buffer("product", x, *values[-1].shape[1:])
            logits = torch.mul(values[-1], last.mT, out=product).sum(2, keepdim=True).add_(shift)
        else:
            logits = torch.baddbmm(shift, values[-1], last)
        return logits, Tape(values, masks)

    @torch.no_grad()
    def pull(self, tape: Tape, slope: Tensor) -> list[Tensor]:
        """Compute the gradients of `parameters`, in their order, from the gradient of the logits.

        They lie in buffers that the next pull overwrites.
        """
        weights, _ = self._weights_and_biases()
        weight_slopes, bias_slopes = [], []
        for layer in reversed(range(len(weights))):
            value, weight = tape.values[layer], weights[layer]
            column, rows, width = weight.shape[2] == 1, slope.shape[1], weight.shape[1]
            bias_slopes.append(slope.sum(1, keepdim=True))
            if column:
                product = self._buffer("product", slope, rows, width)
                weight_slopes.append(torch.mul(value, slope, out=product).sum(1).unsqueeze(2))
            else:
                buffer = self._buffer(f"weight {layer}", slope, width, weight.shape[2])
                weight_slopes.append(torch.bmm(value.mT, slope, out=buffer))
            if layer:
                buffer = self._buffer(f"slope {layer}", slope, rows, width)
                slope = torch.mul(slope, weight.mT, out=buffer) if column else torch.bmm(slope, weight.mT, out=buffer)
                if tape.masks:
                    slope.mul_(tape.masks[layer - 1])
                # a dropped unit has the value 0, and so no gradient here
                torch.ops.aten.threshold_backward.grad_input(slope, value, 0, grad_input=slope)
        return [*reversed(weight_slopes), *reversed(bias_slopes)]

    def release(self) -> None:
        """Free the buffers of `run` and `pull`."""
        self._buffers_by_use.clear()

    def _buffer(self, use: str, like: Tensor, *shape: int) -> Tensor:
        key = (use, *shape)
        buffer = self._buffers_by_use.get(key)
        if buffer is None or buffer.device != like.device or buffer.dtype != like.dtype:
            buffer = self._buffers_by_use[key] = like.new_empty(self.n, *shape)
        return buffer

    def _weights_and_biases(self) -> tuple[list[Tensor], list[Tensor]]:
        # iterating over a ParameterList takes longer than a small product
        weights, biases = (list(part._parameters.values()) for part in (self.weights, self.biases))
        return weights, biases  # type: ignore[return-value]

    def _dropout_mask(self, x: Tensor) -> Tensor | None:
        """0 for dropped units and the scale of the others, drawn from each member's own generator."""
        share = self.architecture.dropout
        if not (share and self.training):
            return None
        keep = torch.empty(x.shape, dtype=torch.float32)
        for own, generator in zip(keep, self._generators, strict=True):
            own.bernoulli_(1 - share, generator=generator)
        return keep.div_(1 - share).to(x)


def mixed(*numbers: int) -> int:
    """Derive a seed from several numbers, unrelated to the seed of any others."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def check_seeds(n: int, seeds: Sequence[int]) -> None:
    """Raise unless there is one seed per member."""
    if not _is_size(n):
        raise ValueError(f"there must be at least one member; got n={n!r}.")
    if len(seeds) != n or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"every one of the {n} members has a seed, a whole number from 0 up; got {list(seeds)}.")
