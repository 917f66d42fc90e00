"""Several small networks as one: the members of an ensemble go through every layer together.

On small tables a network's step costs more in calls than in arithmetic. `Members` holds n networks of one shape with a
leading dimension over members, so that a layer is one batched product whatever n is. What one member computes does not
depend on the others: a batch of members equals a loop over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.lazy import LazyModuleMixin

Kind = Literal["mlp", "linear"]
Factory = Callable[[], nn.Module]  #: builds a new network on every call

#: The layers of an "mlp" where none are given.
HIDDEN = (64, 64)


@dataclass(frozen=True)
class Architecture:
    """The shape of a network: everything that is settled before its weights.

    Attributes:
        kind: ``"mlp"`` (rectified layers) or ``"linear"``.
        inputs: How many features go in.
        outputs: How many logits come out: 1 for a binary task, else one a class or label.
        hidden: The widths of the hidden layers; None for (64, 64), or none at all where the kind is linear.
        dropout: The share of hidden units that rest in each training step.

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
        """How many values go into each layer, and how many come out."""
        sizes = (self.inputs, *(self.hidden or ()), self.outputs)
        return tuple(pairwise(sizes))

    def shapes(self, members: int) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor of `Members`, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (fan_in, fan_out) in enumerate(self.layers):
            shapes[f"weights.{i}"], shapes[f"biases.{i}"] = (members, fan_in, fan_out), (members, 1, fan_out)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """The architecture as JSON can hold it."""
        return {
            "kind": self.kind,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "hidden": list(self.hidden or ()),
            "dropout": self.dropout,
        }

    @classmethod
    def from_json(cls, entry: Any) -> Architecture:
        """What `to_json` gave; anything else is a ValueError."""
        names = ("kind", "inputs", "outputs", "hidden", "dropout")
        if not isinstance(entry, dict) or set(entry) != set(names):
            found = sorted(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
            raise ValueError(f"an architecture has the entries {', '.join(names)}; got {found}.")
        if not isinstance(entry["kind"], str) or not isinstance(entry["hidden"], list):
            raise ValueError("an architecture's kind is a text and its hidden layers are a list.")
        return cls(**{**entry, "hidden": tuple(entry["hidden"])})


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Tape(NamedTuple):
    """What a run of `Members` leaves for `Members.pull`: what went into each layer, and the dropout of each."""

    values: list[Tensor]
    masks: list[Tensor]


class Members(nn.Module):
    """n networks of one architecture, as one module.

    The first weights of a member, and the units that rest in its dropout, depend on its own seed alone. Weights start
    uniform in ±√(6 / (inputs + outputs of the layer)) (Glorot & Bengio 2010), biases at 0.

    Args:
        architecture: The shape that all members share.
        n: How many members there are.
        seeds: One for each member.

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
        self._spaces: dict[tuple[Any, ...], Tensor] = {}
        self._seeds, self._generators = tuple(seeds), [torch.Generator().manual_seed(seed) for seed in seeds]
        weights, biases = [], []
        for fan_in, fan_out in architecture.layers:
            bound = math.sqrt(6 / (fan_in + fan_out))
            weight = torch.empty(n, fan_in, fan_out)
            for own, generator in zip(weight, self._generators, strict=True):
                own.uniform_(-bound, bound, generator=generator)
            weights.append(nn.Parameter(weight))
            biases.append(nn.Parameter(torch.zeros(n, 1, fan_out)))
        self.weights, self.biases = nn.ParameterList(weights), nn.ParameterList(biases)

    @classmethod
    def from_tensors(cls, architecture: Architecture, tensors: Mapping[str, Tensor]) -> Members:
        """Members with these weights, named and shaped as in `Architecture.shapes`."""
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
        """The weights by name, on the CPU, for `from_tensors`."""
        return {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}

    def reseed(self, epoch: int) -> None:
        """Start the random numbers of an epoch, which depend on a member's seed and the epoch alone."""
        for generator, seed in zip(self._generators, self._seeds, strict=True):
            generator.manual_seed(mixed(epoch, seed))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every member."""
        if x.dim() == 2:
            x = x.expand(self.n, -1, -1)
        (*weights, last), (*biases, shift) = self._sides()
        for weight, bias in zip(weights, biases, strict=True):
            x = torch.baddbmm(bias, x, weight).relu_()
            mask = self._resting(x)
            x = x if mask is None else x * mask
        if last.shape[2] == 1:  # a product with one column is slower as a product of matrices
            return (x * last.mT).sum(2, keepdim=True) + shift
        return torch.baddbmm(shift, x, last)

    @torch.no_grad()
    def run(self, x: Tensor) -> tuple[Tensor, Tape]:
        """The logits of `forward` without a graph, for `pull` to find gradients by; ``x`` is ``(n, rows, inputs)``.

        Torch's graph costs as much as the products of small layers do, and fresh memory for every layer as much again.
        So the tape lies in memory that the next run writes over.
        """
        (*weights, last), (*biases, shift) = self._sides()
        values, masks = [x], []
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            space = self._space(f"value {layer}", x, x.shape[1], weight.shape[2])
            values.append(torch.baddbmm(bias, values[-1], weight, out=space).relu_())
            mask = self._resting(space)
            if mask is not None:
                masks.append(mask)
                space.mul_(mask)
        if last.shape[2] == 1:
            product = self._space("product", x, *values[-1].shape[1:])
            logits = torch.mul(values[-1], last.mT, out=product).sum(2, keepdim=True).add_(shift)
        else:
            logits = torch.baddbmm(shift, values[-1], last)
        return logits, Tape(values, masks)

    @torch.no_grad()
    def pull(self, tape: Tape, slope: Tensor) -> list[Tensor]:
        """The gradient of each of `parameters`, in their order, from the gradient of the logits.

        The gradients lie in memory that the next pull writes over.
        """
        weights, _ = self._sides()
        weight_slopes, bias_slopes = [], []
        for layer in reversed(range(len(weights))):
            value, weight = tape.values[layer], weights[layer]
            column, rows, width = weight.shape[2] == 1, slope.shape[1], weight.shape[1]
            bias_slopes.append(slope.sum(1, keepdim=True))
            if column:
                product = self._space("product", slope, rows, width)
                weight_slopes.append(torch.mul(value, slope, out=product).sum(1).unsqueeze(2))
            else:
                space = self._space(f"weight {layer}", slope, width, weight.shape[2])
                weight_slopes.append(torch.bmm(value.mT, slope, out=space))
            if layer:
                space = self._space(f"slope {layer}", slope, rows, width)
                slope = torch.mul(slope, weight.mT, out=space) if column else torch.bmm(slope, weight.mT, out=space)
                if tape.masks:
                    slope.mul_(tape.masks[layer - 1])
                # a unit that rests has the value 0, and so no gradient here
                torch.ops.aten.threshold_backward.grad_input(slope, value, 0, grad_input=slope)
        return [*reversed(weight_slopes), *reversed(bias_slopes)]

    def release(self) -> None:
        """Give back the memory that `run` and `pull` keep."""
        self._spaces.clear()

    def _space(self, name: str, like: Tensor, *shape: int) -> Tensor:
        key = (name, *shape)
        space = self._spaces.get(key)
        if space is None or space.device != like.device or space.dtype != like.dtype:
            space = self._spaces[key] = like.new_empty(self.n, *shape)
        return space

    def _sides(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and biases, not by the lists' own iterators, which take longer than a small product."""
        weights, biases = (list(side._parameters.values()) for side in (self.weights, self.biases))
        return weights, biases  # type: ignore[return-value]

    def _resting(self, x: Tensor) -> Tensor | None:
        """0 for the units that rest, and what the others are multiplied by, from each member's own generator."""
        share = self.architecture.dropout
        if not (share and self.training):
            return None
        keep = torch.empty(x.shape)
        for own, generator in zip(keep, self._generators, strict=True):
            own.bernoulli_(1 - share, generator=generator)
        return keep.div_(1 - share).to(x)


class FactoryMembers(nn.Module):
    """n networks of a user's own making, with the interface of `Members`.

    The modules are stacked, and torch's vmap runs them as one. A module that vmap cannot run is run in a loop over the
    members: slower, and the same. Random layers such as dropout draw from the members' seeds, all together.

    Args:
        factory: Builds a new ``nn.Module``; called once for each member, with torch's random numbers seeded for it.
        n: How many members there are.
        seeds: One for each member.

    Shape:
        - input: ``(rows, inputs)`` or ``(n, rows, inputs)``; a module sees ``(rows, inputs)``.
        - output: logits ``(n, rows, outputs)``; a module may also return ``(rows,)``, which counts as one output.

    Example:
        >>> nets = FactoryMembers(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), 2, seeds=(0, 1))
        >>> nets(torch.zeros(10, 4)).shape
        torch.Size([2, 10, 1])
    """

    def __init__(self, factory: Factory, n: int, seeds: Sequence[int]) -> None:
        super().__init__()
        check_seeds(n, seeds)
        self.n = n
        modules = [_built(factory, seed) for seed in seeds]
        if len({id(module) for module in modules}) < n:
            raise ValueError("the factory gave the same module twice; it must build a new one on every call.")
        values, buffers = torch.func.stack_module_state(modules)
        if not values:
            raise ValueError("the factory's module has no parameters, so there is nothing to train.")
        self._names = (*values, *buffers)
        self.values = nn.ParameterList([nn.Parameter(value.detach()) for value in values.values()])
        for i, buffer in enumerate(buffers.values()):
            self.register_buffer(f"buffer_{i}", buffer)
        # in a list, so that torch does not count its unused weights; it only says what is computed
        self._template = [modules[0]]
        self._seeds = tuple(seeds)
        self._together: bool | None = None  #: whether vmap can run it; the first pass tells
        self.reseed(0)

    @classmethod
    def from_tensors(cls, factory: Factory, tensors: Mapping[str, Tensor]) -> FactoryMembers:
        """Members with these weights, as `tensors` gave them; the factory must build the modules they came from."""
        n = min((len(tensor) if tensor.dim() else 0 for tensor in tensors.values()), default=0)
        members = cls(factory, max(n, 1), range(max(n, 1)))
        found, own = ({k: (v.dtype, tuple(v.shape)) for k, v in t.items()} for t in (tensors, members.tensors()))
        if found != own:
            wrong = sorted(name for name in {*found, *own} if found.get(name) != own.get(name))
            raise ValueError(
                f"the factory's module does not fit the saved one: {', '.join(wrong)} differ in name, shape or dtype."
                " Give the factory that the model was trained with."
            )
        with torch.no_grad():
            for name, tensor in members._stacked().items():
                tensor.copy_(tensors[name])
        return members

    @property
    def template(self) -> nn.Module:
        """A module that computes what all members do; its weights are not theirs."""
        return self._template[0]

    def tensors(self) -> dict[str, Tensor]:
        """Weights and buffers by the module's own names, stacked over members, on the CPU, for `from_tensors`."""
        return {name: value.detach().cpu().contiguous() for name, value in self._stacked().items()}

    def reseed(self, epoch: int) -> None:
        """Start the random numbers of an epoch, which depend on the seeds and the epoch alone."""
        self._generator = torch.Generator().manual_seed(mixed(epoch, *self._seeds))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every member."""
        self.template.train(self.training)
        seed = int(torch.randint(2**62, (), generator=self._generator))
        if self._together is not None:
            return self._seeded(seed, x, together=self._together)
        kept = [buffer.clone() for buffer in self.buffers()]
        try:
            logits = self._seeded(seed, x, together=True)
            self._together = True
        except Exception:  # vmap's own, or the module's: then it comes again
            for buffer, value in zip(self.buffers(), kept, strict=True):
                buffer.copy_(value)
            logits = self._seeded(seed, x, together=False)
            self._together = False
        return logits

    def run(self, x: Tensor) -> tuple[Tensor, Tape]:
        """The logits without a graph, for `pull` to find gradients by."""
        with torch.set_grad_enabled(self.training):
            logits = self(x)
        return logits.detach(), Tape([logits], [])

    def release(self) -> None:
        """As for `Members`; nothing is kept here."""

    def pull(self, tape: Tape, slope: Tensor) -> list[Tensor]:
        """The gradient of each of `parameters`, in their order, from the gradient of the logits."""
        found = torch.autograd.grad(tape.values[0], list(self.values), slope, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zip(found, self.values, strict=True)]

    def _stacked(self) -> dict[str, Tensor]:
        return dict(zip(self._names, [*self.values, *self.buffers()], strict=True))

    def _seeded(self, seed: int, x: Tensor, *, together: bool) -> Tensor:
        def one(state: dict[str, Tensor], part: Tensor) -> Tensor:
            return _checked(functional_call(self.template, state, (part,)), part)

        state, shared = self._stacked(), x.dim() == 2
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(seed)
            if together:
                return torch.func.vmap(one, in_dims=(0, None if shared else 0), randomness="different")(state, x)
            members = [{name: value[m] for name, value in state.items()} for m in range(self.n)]
            return torch.stack([one(own, x if shared else x[m]) for m, own in enumerate(members)])


def _built(factory: Factory, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = factory()
    if not isinstance(module, nn.Module):
        raise TypeError(f"the factory must build a torch.nn.Module; got {type(module).__name__}.")
    lazy = [type(part).__name__ for part in module.modules() if isinstance(part, LazyModuleMixin)]
    if lazy:
        raise ValueError(f"the factory's module holds a {lazy[0]}, whose size is not known; give it its sizes.")
    return module


def _checked(logits: Any, x: Tensor) -> Tensor:
    """A module's output as ``(rows, outputs)``."""
    if not isinstance(logits, Tensor) or logits.dim() not in (1, 2) or len(logits) != len(x):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the factory's module must give logits of shape (rows, outputs); for {len(x)} rows it gave {found}."
        )
    return logits.unsqueeze(1) if logits.dim() == 1 else logits


def mixed(*numbers: int) -> int:
    """One seed from several numbers, such that other numbers give an unrelated one."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def check_seeds(n: int, seeds: Sequence[int]) -> None:
    """Raise unless there is one seed for each of the ``n`` members."""
    if not _is_size(n):
        raise ValueError(f"there must be at least one member; got n={n!r}.")
    if len(seeds) != n or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"every one of the {n} members has a seed, a whole number from 0 up; got {list(seeds)}.")
