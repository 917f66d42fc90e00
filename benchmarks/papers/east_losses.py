"""The losses that are set beside EAST, for all trials at once: scores ``(trials, rows, classes)`` to a loss each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import stepless as sl

#: The targets: EAST's abstract names F1, F_0.25, accuracy and MCC; F_2 and the macro average are ours.
TARGETS = {
    "f1": ("f1", {}),
    "f025": ("f_beta", {"beta": 0.25}),
    "f2": ("f_beta", {"beta": 2.0}),
    "accuracy": ("accuracy", {}),
    "mcc": ("mcc", {}),
}
#: What is scored besides.
SCORED = {**TARGETS, "precision": ("precision", {}), "recall": ("recall", {})}


def each(scores: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of every row."""
    return F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)


class Plain:
    """Cross-entropy, and its kin that weigh rows: ``focal`` by (1 − p)², ``weighted`` so that classes weigh alike."""

    def __init__(self, kind: str, shares: Tensor) -> None:
        self._kind, self._weights = kind, 1 / (len(shares) * shares)

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        rows = each(scores, target)
        if self._kind == "focal":
            rows = (1 - torch.exp(-rows)).square() * rows
        elif self._kind == "weighted":
            rows = rows * self._weights[target]
        return rows.mean(1)

    def advance(self, progress: float) -> None:
        """Nothing changes."""


class OfPackage:
    """A loss of the package."""

    def __init__(self, loss: sl.MetricLoss) -> None:
        self._loss, self._vmapped = loss, torch.func.vmap(loss)

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        return self._vmapped(scores, target)

    def advance(self, progress: float) -> None:
        self._loss.advance(progress)


class Decided:
    """A metric of decisions made by hand, which the identity step then takes as they are.

    ``multisol`` (2025): the share of random thresholds on the simplex at which a class is above all others. The others
    are EAST without one of its parts: ``no_threshold`` decides at ½ instead of between the two largest probabilities;
    ``no_matrix`` counts each class against the rest, whose decisions need not sum to 1.
    """

    def __init__(self, kind: str, target: str, settings: dict[str, float], device: str) -> None:
        metric, options = TARGETS[target]
        self._kind, self._settings = kind, settings
        self._left = torch.ones((), device=device)  # of cross-entropy, in those that anneal
        shape = {"task": "multilabel"} if kind == "no_matrix" else {"task": "multiclass"}
        loss = sl.MetricLoss(metric, step=sl.Identity(), inputs="probabilities", **shape, **options)
        self._vmapped = torch.func.vmap(loss.to(device))

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        p = scores.softmax(-1)
        if self._kind == "multisol":
            return self._vmapped(self._shares_of_thresholds(p), target)
        if self._kind == "no_threshold":
            distance = self._vmapped(_rows_of_one(sl.Linear(delta=0.1)(p, 0.5)), target)
        else:
            tau = p.detach().topk(2, -1).values.mean(-1, keepdim=True)
            decided = sl.Linear(delta=0.1)(p, tau)
            distance = self._vmapped(decided, F.one_hot(target, p.shape[-1]).to(p.dtype))
        return (1 - self._left) * distance + self._left * each(scores, target).mean(1)

    def _shares_of_thresholds(self, p: Tensor) -> Tensor:
        """ψ of each class, made to sum to 1; in logarithms, because a product over many classes underflows."""
        classes, drawn = p.shape[-1], []
        off = 1 - torch.eye(classes, dtype=p.dtype, device=p.device)
        apart = p.unsqueeze(-1) - p.unsqueeze(-2)
        for _ in range(int(self._settings["sol_samples"])):
            tau = -torch.rand(classes, dtype=p.dtype, device=p.device).clamp(min=1e-7).log()
            tau = tau / tau.sum()
            above = F.logsigmoid(self._settings["sol_lambda"] * (apart - (tau[:, None] - tau[None])))
            drawn.append((above * off).sum(-1))
        return torch.stack(drawn).logsumexp(0).softmax(-1)

    def advance(self, progress: float) -> None:
        self._left.fill_(1 - progress)


def _rows_of_one(decided: Tensor) -> Tensor:
    return decided / decided.sum(-1, keepdim=True).clamp(min=1e-12)


def make(name: str, shares: Tensor, settings: dict[str, float], device: str) -> Plain | OfPackage | Decided:
    """A loss by its name, ``ce`` or ``east/mcc``; ``shares`` are those of the classes."""
    kind, _, target = name.partition("/")
    if not target:
        return Plain(kind, shares.to(device))
    metric, options = TARGETS[target]
    if kind in {"multisol", "no_threshold", "no_matrix"}:
        return Decided(kind, target, settings, device)
    if kind == "east":
        loss = sl.presets.east(metric, **options)
    elif kind == "sharpened":
        anneal = sl.Schedule(blend=(1.0, 0.0), sharpness=(1.0, 10.0))
        loss = sl.MetricLoss(metric, task="multiclass", step=sl.Linear(delta=0.1), schedule=anneal, **options)
    elif kind == "identity":
        loss = sl.MetricLoss(metric, task="multiclass", step=sl.Identity(), **options)
    else:
        loss = sl.MetricLoss(metric, task="multiclass", blend=0.0, **options)
    return OfPackage(loss.to(device))
