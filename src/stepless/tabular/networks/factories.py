"""Networks from a user's factory as members: stacked and run as one by torch's vmap, or in a loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.lazy import LazyModuleMixin

from stepless.tabular.networks.nets import Tape, check_seeds, mixed

Factory = Callable[[], nn.Module]  #: builds a new network on every call

#: Held while a factory's modules are built or called: a call puts the members' weights into one module, and seeds
#: torch's random numbers, which belong to all threads.
_ONE_AT_A_TIME = threading.RLock()


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
        # in a list, so that torch does not register it as a part, with weights of its own
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
