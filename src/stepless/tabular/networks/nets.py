"""The members of an ensemble as one module: several small networks that share every batched operation.

On small tables, a training step spends more time in calls than in arithmetic. `Members` stacks n networks of one shape
along a leading dimension, so a layer is one batched product whatever n is. Members do not influence each other: a batch
of members computes what a loop over them would.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.lazy import LazyModuleMixin

Kind = Literal["mlp", "linear"]
Factory = Callable[[], nn.Module]  #: builds a new network on every call

#: The default hidden layers of an "mlp".
HIDDEN = (64, 64)

#: Held while a factory's modules are built or called: a call puts the members' weights into one module, and seeds
#: torch's random numbers, which belong to all threads.
_ONE_AT_A_TIME = threading.RLock()


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


class FactoryMembers(nn.Module):
    """n networks from a user's factory, with the interface of `Members`.

    The modules are stacked and run as one by torch's vmap. Modules that vmap cannot run are run in a loop, which gives
    the same but is slower. Random layers such as dropout draw from one generator, seeded by all members' seeds.
    Parameters that do not require a gradient stay as the factory made them.

    Args:
        factory: Builds a new ``nn.Module``; called once per member, with torch's random numbers seeded for it.
        n: The number of members.
        seeds: One per member.

    Shape:
        - input: ``(rows, inputs)`` or ``(n, rows, inputs)``; a module gets ``(rows, inputs)``.
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
        if not any(value.requires_grad for value in values.values()):
            raise ValueError("the factory's module has no parameters to train: give it some that require a gradient.")
        self._names = (*values, *buffers)
        self.values = nn.ParameterList(
            [nn.Parameter(v.detach().contiguous(), v.requires_grad) for v in values.values()]
        )
        for i, buffer in enumerate(buffers.values()):
            self.register_buffer(f"buffer_{i}", buffer)
        # in a list, so that torch does not register the weights of this copy, which are not used
        self._template = [_emptied(modules[0])]
        self._seeds = tuple(seeds)
        self._looped = False  #: whether vmap has failed, so that members run one by one
        self._vmapped: set[tuple[bool, int]] = set()  #: the kinds of passes that vmap has run
        self.reseed(0)

    @classmethod
    def from_tensors(cls, factory: Factory, tensors: Mapping[str, Tensor]) -> FactoryMembers:
        """Build members with these weights, as `tensors` returned them, from the factory that built the originals."""
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
        """A module that computes what each member does, without weights of its own."""
        return self._template[0]

    def tensors(self) -> dict[str, Tensor]:
        """Weights and buffers by the module's own names, stacked over members, on the CPU, as `from_tensors` takes."""
        return {name: value.detach().cpu().contiguous() for name, value in self._stacked().items()}

    @torch.no_grad()
    def check_rebuilt(self, factory: Factory, x: Tensor) -> None:
        """Raise if modules that the factory builds anew, with these weights, score rows otherwise."""
        again = FactoryMembers.from_tensors(factory, self.tensors()).eval()
        again._looped = self._looped
        again._generator.set_state(self._generator.get_state())  # for modules that draw in evaluation, too
        if not torch.allclose(self.eval()(x), again(x), 1e-3, 1e-3, equal_nan=True):
            raise ValueError(
                "the factory's module scores rows otherwise when it is built anew with the same weights: it has"
                " numbers, such as columns drawn at random, that are neither parameters nor buffers, and would be lost."
                " Keep them by register_buffer."
            )

    def reseed(self, epoch: int) -> None:
        """Reset the random numbers for an epoch; they depend only on the seeds and the epoch."""
        self._generator = torch.Generator().manual_seed(mixed(epoch, *self._seeds))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of every member."""
        with _ONE_AT_A_TIME:
            return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        self.template.train(self.training)
        seed = int(torch.randint(2**62, (), generator=self._generator))
        kind = self.training, x.dim()  # vmap may be able to run a module in one mode only, or only on shared rows
        if self._looped or kind in self._vmapped:
            return self._seeded(seed, x, together=not self._looped)
        kept = [buffer.clone() for buffer in self.buffers()]
        try:
            logits = self._seeded(seed, x, together=True)
            if self.training and logits.requires_grad:  # vmap runs torch's attention on CUDA, but not its gradient
                self._gradients(logits, torch.zeros_like(logits), retain_graph=True)
            self._vmapped.add(kind)
        except Exception:  # of vmap, or of the module itself, which raises it again in the loop
            for buffer, value in zip(self.buffers(), kept, strict=True):
                buffer.copy_(value)
            logits = self._seeded(seed, x, together=False)
            self._looped = True
        return logits

    def run(self, x: Tensor) -> tuple[Tensor, Tape]:
        """Compute the logits, detached, and keep their graph for `pull`."""
        with torch.set_grad_enabled(self.training):
            logits = self(x)
        return logits.detach(), Tape([logits], [])

    def release(self) -> None:
        """As for `Members`; nothing is kept here."""

    def pull(self, tape: Tape, slope: Tensor) -> list[Tensor]:
        """Compute the gradients of the parameters that require one, in their order, from that of the logits.

        They are contiguous, as the parameters are: vmap gives those of a linear layer transposed in memory, and torch's
        fused AdamW takes entries by their place there. On the CPU it does not check, and would mix them up.
        """
        try:
            return self._gradients(tape.values[0], slope)
        except RuntimeError as error:
            if "meta" not in str(error):  # the device of the template's weights
                raise
            raise ValueError(
                "the factory's module must not compute anything again in backward, as torch.utils.checkpoint does,"
                " because the weights of its member are no longer in it then. Leave that out."
            ) from error

    def _gradients(self, logits: Tensor, slope: Tensor, *, retain_graph: bool = False) -> list[Tensor]:
        trained = [value for value in self.values if value.requires_grad]
        found = torch.autograd.grad(logits, trained, slope, retain_graph, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g.contiguous() for g, v in zip(found, trained, strict=True)]

    def _stacked(self) -> dict[str, Tensor]:
        return dict(zip(self._names, [*self.values, *self.buffers()], strict=True))

    def _one(self, state: dict[str, Tensor], x: Tensor) -> Tensor:
        """Compute the logits of one member, and keep what its module has assigned to its buffers."""
        after = dict(state)
        # a copy, since a module that changes its rows in place would change those of the next one, too
        logits = _checked(functional_call(self.template, after, (x.clone(),)), x)
        for name in self._names[len(self.values) :]:
            own, value = state[name], after[name]
            if (value.shape, value.dtype) != (own.shape, own.dtype):
                raise ValueError(
                    f"the factory's module must leave its buffer {name} {own.dtype} of shape {tuple(own.shape)}, as it"
                    f" was registered; it made it {value.dtype} of shape {tuple(value.shape)}."
                )
            if value is not own:
                own.copy_(value.detach())
        return logits

    def _seeded(self, seed: int, x: Tensor, *, together: bool) -> Tensor:
        state, shared = self._stacked(), x.dim() == 2
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(seed)
            if together:
                return torch.func.vmap(self._one, in_dims=(0, None if shared else 0), randomness="different")(state, x)
            members = [{name: value[m] for name, value in state.items()} for m in range(self.n)]
            return torch.stack([self._one(own, x if shared else x[m]) for m, own in enumerate(members)])


def _built(factory: Factory, seed: int) -> nn.Module:
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = factory()
    if not isinstance(module, nn.Module):
        raise TypeError(f"the factory must build a torch.nn.Module; got {type(module).__name__}.")
    lazy = [type(part).__name__ for part in module.modules() if isinstance(part, LazyModuleMixin)]
    if lazy:
        raise ValueError(f"the factory's module holds a {lazy[0]}, whose size is not known; give it its sizes.")
    return module


def _emptied(module: nn.Module) -> nn.Module:
    """Take the weights out of a module, so that whatever reads them outside of a member's call fails."""
    empty: dict[Tensor, Tensor] = {}  # shared weights stay shared
    for part in module.modules():
        for own in (part._parameters, part._buffers):
            for name, value in own.items():
                if value is not None and value not in empty:
                    hollow = torch.empty_like(value, device="meta", requires_grad=False)
                    empty[value] = nn.Parameter(hollow, value.requires_grad) if own is part._parameters else hollow
                own[name] = None if value is None else empty[value]  # type: ignore[assignment]
    return module


def _checked(logits: Any, x: Tensor) -> Tensor:
    """A module's output as ``(rows, outputs)``, in the precision of its rows."""
    if not isinstance(logits, Tensor) or logits.dim() not in (1, 2) or len(logits) != len(x):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the factory's module must give logits of shape (rows, outputs); for {len(x)} rows it gave {found}."
        )
    return (logits.unsqueeze(1) if logits.dim() == 1 else logits).to(x.dtype)


def mixed(*numbers: int) -> int:
    """Derive a seed from several numbers, unrelated to the seed of any others."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def check_seeds(n: int, seeds: Sequence[int]) -> None:
    """Raise unless there is one seed per member."""
    if not _is_size(n):
        raise ValueError(f"there must be at least one member; got n={n!r}.")
    if len(seeds) != n or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"every one of the {n} members has a seed, a whole number from 0 up; got {list(seeds)}.")
