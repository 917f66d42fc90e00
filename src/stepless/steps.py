"""From probability to decision: the hard step and its smooth stand-ins.

A step maps a probability ``p`` and a threshold ``tau`` to a decision in [0, 1]. Each is a frozen dataclass of a few
lines and declares what it promises (`Promise`); `tests/test_laws.py` holds every registered step to its promises.

``__call__`` and ``from_logits`` define a step, by arithmetic through `stepless.numerics` on arrays of any library.
``linearise`` and its variants compute decision and slope together, for the fused kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepless.numerics import Array, cast, clip, detached, logit, minimum, namespace, sigmoid
from stepless.registry import Registry

Threshold = Array  #: a number, or an array that broadcasts against the probabilities

#: The narrowest step whose slope float32 can hold.
_LEAST = 1e-30
#: `Linear.linearise` subtracts the gentle slopes from the steep one. It is inexact if little of that is left, or if the
#: steep piece is narrow for its distance from 0.
_LITTLE, _NARROW = 0.1, 0.01

#: slope · p · (1 − p) in one pass.
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


class Factors(NamedTuple):
    """The constant factors by which the buffers of decision and slope are to be multiplied.

    There is no constant to add, because tiny decisions would be lost in it.
    """

    decision: float
    slope: float


class Promise(Enum):
    """What a step may promise besides being monotone, which every step is."""

    HALF = "the decision is ½ at the threshold"
    ENDS = "the decision is 0 at p = 0 and 1 at p = 1"
    SHARPENS = "the decision tends to the hard one as sharpened() grows, off ties"


def _in_range(name: str, value: Any, bounds: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, Tensor):  # from a schedule, which cannot leave the range
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {value!r}.")
    if not holds(float(value)):
        raise ValueError(f"{name} must lie {bounds}; got {float(value):g}.")


def _positive(name: str, value: Any) -> None:
    _in_range(name, value, "above 0 and be finite", lambda v: 0 < v < math.inf)
    # bounds as text: torch.compile(dynamic=True) makes a global number a symbol, which an f-string cannot format
    _in_range(name, value, "between 1e-30 and 1e+30", lambda v: _LEAST <= v <= 1 / _LEAST)


@dataclass(frozen=True)
class Step:
    """Base class of all steps. A subclass defines ``__call__``, and ``sharpened`` if the step can become sharper."""

    promises: ClassVar[frozenset[Promise]]

    def __call__(self, p: Array, tau: Threshold) -> Array:
        """Return the decision for probability ``p`` at threshold ``tau``."""
        raise NotImplementedError

    def from_logits(self, z: Array, tau: Threshold) -> Array:
        """Return the decision for ``p = sigmoid(z)``. A step on logits overrides this to be exact near p = 0 and 1."""
        return self(sigmoid(z), tau)

    def linearise(self, p: Tensor, tau: float, decision: Tensor, slope: Tensor) -> Factors:
        """Write the decision and its derivative with respect to ``p`` into buffers, for the fused counting pass.

        Constant factors are returned instead of applied, because it is cheaper to apply them to the sums.
        """
        raise NotImplementedError

    def linearise_logits(self, z: Tensor, tau: float, decision: Tensor, slope: Tensor, spare: Tensor) -> Factors:
        """Write the decision for ``p = sigmoid(z)`` and its derivative with respect to ``z`` into buffers."""
        torch.sigmoid(z, out=spare)
        factors = self.linearise(spare, tau, decision, slope)
        _sigmoid_backward(slope, spare, grad_input=slope)
        return factors

    def linearise_few(self, x: Tensor, tau: float, *, logits: bool) -> tuple[Any, Any, Factors]:
        """Return decision, slope and factors for a few logits or probabilities, as numpy arrays."""
        decision, slope, spare = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        if logits:
            factors = self.linearise_logits(x, tau, decision, slope, spare)
        else:
            factors = self.linearise(x, tau, decision, slope)
        return decision.numpy(), slope.numpy(), factors

    def linearise_rows(self, p: Tensor, tau: Tensor, decision: Tensor, slope: Tensor | None, spare: Tensor) -> Factors:
        """Do what `linearise` does, with one threshold per column of ``p``, for decisions to be normalised.

        A factor of a whole column may therefore be left out too. ``slope`` is None if it is not needed.
        """
        at: Any = tau  # broadcasts like a number
        return self.linearise(p, at, decision, spare if slope is None else slope)

    def linearise_few_rows(self, p: Any, tau: Any) -> tuple[Any, Any, Factors]:
        """Do what `linearise_rows` does for a few probabilities, and return numpy arrays and the factors."""
        decision, slope = np.empty_like(p), np.empty_like(p)
        buffers = torch.from_numpy(decision), torch.from_numpy(slope), torch.from_numpy(np.empty_like(p))
        return decision, slope, self.linearise_rows(torch.from_numpy(p), torch.from_numpy(tau), *buffers)

    def has_twin(self, tau: float) -> bool:
        """Return whether ``linearise`` and its variants are as exact as the step at this threshold."""
        return True

    def has_row_twin(self, *, logits: bool) -> bool:
        """Return whether ``linearise_rows`` is as exact as the step at multiclass thresholds, which are at most ½.

        False unless a step overrides it, because ``linearise`` need not accept a row of thresholds.
        """
        return False

    def sharpened(self, factor: Any) -> Step:
        """Return the step ``factor`` times as sharp. A schedule passes a tensor."""
        raise TypeError(f"{type(self).__name__} has no sharpness; schedule a step that has one, such as Linear().")


@dataclass(frozen=True)
class Hard(Step):
    """The exact step: 1 if p ≥ τ, else 0. It has no gradient and is for evaluation only.

    >>> Hard()(torch.tensor([0.2, 0.5, 0.9]), 0.5)
    tensor([0., 1., 1.])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset()

    def __call__(self, p: Array, tau: Threshold) -> Array:
        return cast(p >= tau, p.dtype)


@dataclass(frozen=True)
class Identity(Step):
    """Use the probability as the decision, as soft Dice, soft F1 and uniform score-oriented losses do.

    The threshold has no effect.

    >>> Identity()(torch.tensor([0.2, 0.5, 0.9]), 0.3)
    tensor([0.2000, 0.5000, 0.9000])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset()

    def __call__(self, p: Array, tau: Threshold) -> Array:
        return p

    def has_row_twin(self, *, logits: bool) -> bool:
        return True

    def linearise(self, p: Tensor, tau: float, decision: Tensor, slope: Tensor) -> Factors:
        decision.copy_(p)
        slope.fill_(1.0)
        return Factors(1.0, 1.0)

    def linearise_logits(self, z: Tensor, tau: float, decision: Tensor, slope: Tensor, spare: Tensor) -> Factors:
        torch.sigmoid(z, out=decision)
        torch.addcmul(decision, decision, decision, value=-1, out=slope)
        return Factors(1.0, 1.0)


@dataclass(frozen=True)
class Sigmoid(Step):
    """A sigmoid of the probability, σ(k(p − τ)), as in *Bridging the Gap* (k = 10) and AnyLoss (k = 73).

    >>> Sigmoid(k=10)(torch.tensor([0.2, 0.5, 0.9]), 0.5)
    tensor([0.0474, 0.5000, 0.9820])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset({Promise.HALF, Promise.SHARPENS})
    k: float = 10.0

    def __post_init__(self) -> None:
        _positive("Sigmoid's k", self.k)

    def __call__(self, p: Array, tau: Threshold) -> Array:
        return sigmoid((p - tau) * self.k)

    def has_row_twin(self, *, logits: bool) -> bool:
        return True

    def linearise(self, p: Tensor, tau: float, decision: Tensor, slope: Tensor) -> Factors:
        torch.sub(p, tau, out=decision).mul_(self.k).sigmoid_()
        torch.addcmul(decision, decision, decision, value=-1, out=slope)
        return Factors(1.0, self.k)

    def sharpened(self, factor: Any) -> Sigmoid:
        return replace(self, k=self.k * factor)


@dataclass(frozen=True)
class Linear(Step):
    """The piecewise linear step of *Bridging the Gap*: a steep piece around τ between two flatter ones.

    With τ_m = min(τ, 1 − τ) it runs through (0, 0), (τ − width·τ_m/2, δ), (τ, ½), (τ + width·τ_m/2, 1 − δ) and (1, 1).
    The paper has ``width=1``. If δ > 0, the gradient is zero nowhere.

    >>> Linear(delta=0.1)(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), 0.5)
    tensor([0.0000, 0.1000, 0.5000, 0.9000, 1.0000])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset({Promise.HALF, Promise.ENDS, Promise.SHARPENS})
    delta: float = 0.1
    width: float = 1.0

    def __post_init__(self) -> None:
        _in_range("Linear's delta", self.delta, "in [0, 0.5]", lambda v: 0 <= v <= 0.5)
        _in_range("Linear's width", self.width, "in (0, 1]", lambda v: 0 < v <= 1)
        _positive("Linear's width", self.width)

    def __call__(self, p: Array, tau: Threshold) -> Array:
        low, high, below, within, above = self._pieces(tau)
        # The outer pieces start from their ends and the steep one from its middle, so that 0, ½ and 1 are exact at 0,
        # τ and 1. Rounding errors would turn 0/0 into an arbitrary ratio.
        where = namespace(p).where
        upper = where(p <= high, (p - tau) * within + 0.5, 1 - (1 - p) * above)
        return where(p < low, p * below, upper)

    def linearise(self, p: Tensor, tau: float, decision: Tensor, slope: Tensor) -> Factors:
        low, high, below, within, above = self._pieces(tau)
        steep = within - above
        torch.clamp(p, low, high, out=decision)
        torch.eq(decision, p, out=slope).add_(above / steep)
        decision.sub_(low).add_(p, alpha=above / steep)
        if below != above:
            decision.add_(torch.clamp(p, max=low), alpha=(below - above) / steep)
            slope.add_(p < low, alpha=(below - above) / steep)
        return Factors(steep, steep)

    def linearise_few(self, x: Tensor, tau: float, *, logits: bool) -> tuple[Any, Any, Factors]:
        low, high, below, within, above = _pieces_of(self, tau)
        steep = within - above
        p = (x.sigmoid() if logits else x.detach()).numpy()
        decision = p.clip(low, high)
        slope = (decision == p).astype(p.dtype)
        slope += above / steep
        decision -= low
        decision += p * (above / steep)
        if below != above:
            decision += np.minimum(p, low) * ((below - above) / steep)
            slope += (p < low) * p.dtype.type((below - above) / steep)
        if logits:
            inner = p * p
            slope *= np.subtract(p, inner, out=inner)
        return decision, slope, Factors(steep, steep)

    def linearise_rows(self, p: Tensor, tau: Tensor, decision: Tensor, slope: Tensor | None, spare: Tensor) -> Factors:
        low, high, below, within, above = self._pieces(tau)
        steep = within - above
        gentle, more = above / steep, (below - above) / steep
        torch.clamp(p, low, high, out=decision)
        if slope is not None:
            torch.eq(decision, p, out=slope).add_(gentle)
            slope.addcmul_(torch.lt(p, low, out=spare), more)
        decision.sub_(low).addcmul_(p, gentle).addcmul_(torch.minimum(p, low, out=spare), more)
        return Factors(1.0, 1.0)

    def linearise_few_rows(self, p: Any, tau: Any) -> tuple[Any, Any, Factors]:
        low, high, below, within, above = self._pieces(tau)
        steep = within - above
        gentle, more = above / steep, (below - above) / steep
        decision = p.clip(low, high)
        slope = (decision == p).astype(p.dtype)
        slope += gentle
        slope += (p < low) * more
        decision -= low
        decision += p * gentle
        decision += np.minimum(p, low) * more
        return decision, slope, Factors(1.0, 1.0)

    def _pieces(self, tau: Any) -> tuple[Any, Any, Any, Any, Any]:
        """The two break points, and the slopes below, between and above them."""
        margin = minimum(tau, 1 - tau)
        low, high = tau - self.width * margin / 2, tau + self.width * margin / 2
        return low, high, self.delta / low, (1 - 2 * self.delta) / (self.width * margin), self.delta / (1 - high)

    def has_twin(self, tau: float) -> bool:
        low, high, below, within, above = self._pieces(tau)
        return high - low >= _NARROW * tau and abs(within - above) >= _LITTLE * max(below, above)

    def has_row_twin(self, *, logits: bool) -> bool:
        _, _, below, within, above = self._pieces(0.5)  # where the slopes differ least
        return self.width >= _NARROW and within - above >= _LITTLE * max(below, above)

    def sharpened(self, factor: Any) -> Linear:
        return replace(self, delta=self.delta / factor, width=self.width / factor)


@lru_cache(maxsize=64)
def _pieces_of(step: Linear, tau: float) -> tuple[Any, Any, Any, Any, Any]:
    """`Linear._pieces`, cached: on a small batch they would take as long as the counting."""
    return step._pieces(tau)


@dataclass(frozen=True)
class RaisedCosine(Step):
    """The step of score-oriented losses: the CDF of a raised-cosine threshold on [τ − δ, τ + δ].

    The gradient is zero outside this band. If δ ≤ min(τ, 1 − τ), the decision is 0 at p = 0 and 1 at p = 1.

    >>> RaisedCosine(delta=0.2)(torch.tensor([0.4, 0.5, 0.7]), 0.5)
    tensor([0.0908, 0.5000, 1.0000])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset({Promise.HALF, Promise.ENDS, Promise.SHARPENS})
    delta: float = 0.1

    def __post_init__(self) -> None:
        _in_range("RaisedCosine's delta", self.delta, "above 0 and below 1", lambda v: 0 < v < 1)
        _positive("RaisedCosine's delta", self.delta)

    def __call__(self, p: Array, tau: Threshold) -> Array:
        u = clip((p - tau) / self.delta + 1, 0.0, 2.0)  # from the band's lower end, where it is exactly 0
        return 0.5 * (u - namespace(u).sin(math.pi * u) / math.pi)

    def has_row_twin(self, *, logits: bool) -> bool:
        return True

    def linearise(self, p: Tensor, tau: float, decision: Tensor, slope: Tensor) -> Factors:
        u = torch.sub(p, tau, out=decision).mul_(math.pi / self.delta).add_(math.pi).clamp_(0.0, 2 * math.pi)
        torch.cos(u, out=slope).neg_().add_(1.0)  # 0 at the ends of the band, and so beyond them
        u.sub_(torch.sin(u))
        return Factors(0.5 / math.pi, 0.5 / self.delta)

    def sharpened(self, factor: Any) -> RaisedCosine:
        return replace(self, delta=self.delta / factor)


@dataclass(frozen=True)
class LogitSigmoid(Step):
    """A sigmoid of the logit, σ((logit p − logit τ) / temperature), as in sigmoidF1.

    With ``temperature=1`` and τ = ½ it equals `Identity`.

    >>> LogitSigmoid(temperature=0.5)(torch.tensor([0.2, 0.5, 0.9]), 0.5)
    tensor([0.0588, 0.5000, 0.9878])
    """

    promises: ClassVar[frozenset[Promise]] = frozenset({Promise.HALF, Promise.ENDS, Promise.SHARPENS})
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _positive("LogitSigmoid's temperature", self.temperature)

    def __call__(self, p: Array, tau: Threshold) -> Array:
        # 0 and 1 bypass the logit, which is infinite there: infinity times a zero slope is NaN
        xp = namespace(p)
        inside = (p >= xp.finfo(p.dtype).tiny) & (p < 1)
        z = logit(xp.where(inside, p, 0.5))
        return self.from_logits(xp.where(inside, z, (detached(p) - 0.5) * math.inf), tau)

    def from_logits(self, z: Array, tau: Threshold) -> Array:
        return sigmoid((z - logit(tau)) / self.temperature)

    def linearise(self, p: Tensor, tau: float, decision: Tensor, slope: Tensor) -> Factors:
        inside = (p >= torch.finfo(p.dtype).tiny) & (p < 1)
        decision.copy_(self(p, tau))
        torch.addcmul(decision, decision, decision, value=-1, out=slope)
        slope.div_(torch.addcmul(p, p, p, value=-1)).masked_fill_(~inside, 0.0)
        return Factors(1.0, 1 / self.temperature)

    def linearise_logits(self, z: Tensor, tau: float, decision: Tensor, slope: Tensor, spare: Tensor) -> Factors:
        shift = math.log(tau) - math.log1p(-tau)
        torch.sub(z, shift, out=decision).div_(self.temperature).sigmoid_()
        torch.addcmul(decision, decision, decision, value=-1, out=slope)
        return Factors(1.0, 1 / self.temperature)

    def has_row_twin(self, *, logits: bool) -> bool:
        return logits  # the slope with respect to a probability near 0 overflows

    def sharpened(self, factor: Any) -> LogitSigmoid:
        return replace(self, temperature=self.temperature / factor)


STEPS: Registry[type[Step]] = Registry("step")
for _name, _step in {
    "hard": Hard,
    "identity": Identity,
    "sigmoid": Sigmoid,
    "linear": Linear,
    "raised_cosine": RaisedCosine,
    "logit_sigmoid": LogitSigmoid,
}.items():
    STEPS.add(_name, _step)


def trainable_step(step: Step | str) -> Step:
    """Return a step given itself or its name. `Hard` is an error, because it cannot train."""
    if isinstance(step, str):
        if step not in STEPS:
            raise ValueError(STEPS.unknown(step))
        step = STEPS[step]()
    if not isinstance(step, Step):
        raise TypeError(f"step must be a stepless step such as Linear(delta=0.1), or its name; got {step!r}.")
    if isinstance(step, Hard):
        raise ValueError(
            "the Hard step has no gradient, so nothing can be learned through it; use stepless.score to evaluate."
        )
    return step
