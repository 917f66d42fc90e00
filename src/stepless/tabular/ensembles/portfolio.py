"""Ensembles of networks, one for each of several losses, cross-fitted and trained together.

Every loss trains one network per fold, on the other folds. All networks of all losses are the members of one batched
model (`stepless.tabular.networks.training`). Each network scores the fold it was not trained on, so every loss has a
held-out score of every row; candidates are chosen, calibrated and thresholded on these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepless.schedules import Schedule
from stepless.tabular.models.members import Factory, FactoryMember, Member, NetMember, sized
from stepless.tabular.models.model import mean_score
from stepless.tabular.networks.batches import Data, padded
from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.networks.metric_objectives import Blend, CostWeighted, OnMetric
from stepless.tabular.networks.nets import Architecture, Members, mixed
from stepless.tabular.networks.objectives import CrossEntropy, Losses, Objective
from stepless.tabular.networks.spread import gather, own_device, share
from stepless.tabular.networks.training import History, Plan, Report, train
from stepless.tasks import Task

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

#: The most feature values that held-out rows are scored with at once.
_CHUNK = 2**22
#: With this many rows it is checked that a factory's networks are the same when they are built anew.
_CHECKED_ROWS = 64
#: With at least this many rows, and this many per distinct row, equal rows are draws and not one row repeated.
_MANY, _OF_A_KIND = 100, 10
#: About how many steps training takes if the number of epochs is not given.
_STEPS = 1200


@dataclass(frozen=True)
class Goal:
    """What the networks are trained for.

    Attributes:
        metric: As for `stepless.MetricLoss`, with its options bound.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        outputs: The number of logits: 1 for a binary task, else one per class or label.
        average: The average over classes or labels.
        subject_to: Constraints.
    """

    metric: Any
    task: Task
    outputs: int = 1
    average: str | None = None
    subject_to: Any = None

    def on_metric(self, *, constrained: bool = True) -> OnMetric:
        """The metric as an objective."""
        settings = {"subject_to": self.subject_to} if constrained and self.subject_to is not None else {}
        return OnMetric(self.metric, self.task, average=self.average, **settings)


def _cost_weighted(goal: Goal) -> Objective | None:
    # costs ignore constraints, and a score that is not a function of the whole batch's counts has none
    metric = goal.on_metric(constrained=False)
    return CostWeighted(metric) if metric.whole else None


#: The losses of a portfolio by name; None if one does not suit the goal.
CANDIDATES: dict[str, Callable[[Goal], Objective | None]] = {
    "cross_entropy": lambda goal: CrossEntropy(goal.task),
    "metric": lambda goal: goal.on_metric(),
    "mixture": lambda goal: Blend(goal.on_metric(), Schedule(blend=(0.5, 0.5))),
    "blend": lambda goal: Blend(goal.on_metric()),
    "cost_weighted": _cost_weighted,
}


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models of one kind, each fitted without one fold.

    Attributes:
        name: One of `stepless.tabular.ensembles.lineup.NAMES`.
        member: The models.
        held: Scores of the held-out rows, fold by fold, each by the model that was fitted without it: logits
            ``(rows,)`` or ``(rows, labels)``, or log-probabilities ``(rows, classes)``.
    """

    name: str
    member: Member
    held: Floats


class Trained(NamedTuple):
    """The result of `fit_ensembles`.

    Attributes:
        ensembles: One per loss.
        history: The training history of all networks.
        tensors: The weights of all networks, for the ``start`` of another call.
    """

    ensembles: list[Ensemble]
    history: History
    tensors: dict[str, Tensor]


def make_folds(target: NDArray[Any], task: Task, n: int, seed: int, *, share: float = 0.2) -> tuple[Rows, ...]:
    """Divide the rows into n folds, or for n = 1 into one fold that has a share of the rows (at least one, not all).

    Classes are spread evenly; a class with fewer rows than folds is missing from some of them. Labels are not spread.

    Args:
        target: 0 and 1, class indices, or 0 and 1 for each label.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        n: The number of folds.
        seed: Seed of the division.
        share: The share of the rows for n = 1.

    Example:
        >>> [fold.tolist() for fold in make_folds(np.array([0, 0, 0, 1, 1, 1]), "binary", 3, seed=0)]
        [[2, 5], [0, 4], [1, 3]]
    """
    parts = n if n > 1 else max(2, min(round(1 / share), len(target)))
    if len(target) < parts:
        remedy = ", or lower n_members" if n > 1 else ""
        raise ValueError(f"{len(target)} rows cannot be held out in {parts} folds; give more rows{remedy}.")
    random = np.random.default_rng(seed)
    groups = (
        [np.arange(len(target))] if task == "multilabel" else [np.flatnonzero(target == k) for k in np.unique(target)]
    )
    # rows are dealt out in turn, class after class, so that fold sizes differ by at most one
    dealt = np.concatenate([random.permutation(group) for group in groups])
    return tuple(np.sort(dealt[k::parts]) for k in range(parts if n > 1 else 1))


def merge_rows(
    matrix: NDArray[np.float32], target: NDArray[np.int64], weight: NDArray[Any] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64], Floats | None]:
    """Merge equal rows and add their weights; return None for the weights if all are 1.

    >>> merge_rows(np.float32([[2], [1], [2]]), np.array([0, 1, 0]), None)
    (array([[1.],
           [2.]], dtype=float32), array([1, 0]), array([1., 2.]))
    """
    labels = target.reshape(len(target), -1)
    rows, first, place = np.unique(
        np.column_stack([matrix.astype(np.float64), labels]), axis=0, return_index=True, return_inverse=True
    )
    total = np.bincount(place.ravel(), weight, minlength=len(rows)).astype(np.float64)
    return matrix[first], target[first], None if (total == 1).all() else total


def are_draws(matrix: NDArray[np.float32]) -> bool:
    """Whether there are ten or more rows per distinct row, so that equal rows are draws and not copies of one row.

    >>> are_draws(np.float32([[0], [1]] * 50)), are_draws(np.arange(100, dtype=np.float32)[:, None])
    (True, False)
    """
    return len(matrix) >= _MANY and _OF_A_KIND * len(np.unique(matrix, axis=0)) <= len(matrix)


def fit_ensembles(
    matrix: NDArray[np.float32],
    target: NDArray[Any],
    weight: NDArray[Any] | None,
    goal: Goal,
    names: Sequence[str],
    net: Architecture | Factory,
    plan: Plan,
    folds: Sequence[Rows],
    seed: int,
    *,
    stop_share: float = 0.0,
    start: dict[str, Tensor] | None = None,
    device: str | torch.device = "cpu",
    checkpoint: Path | None = None,
    report: Report | None = None,
) -> Trained:
    """Train the networks of all losses together.

    Args:
        matrix: Features.
        target: 0 and 1, class indices, or 0 and 1 for each label.
        weight: Row weights, or None.
        goal: What the networks are trained for.
        names: The losses, keys of `CANDIDATES`; those that do not suit the goal are left out.
        net: The shape of the networks, or a factory of them, called without arguments or with the numbers of inputs
            and outputs.
        plan: How to train.
        folds: The rows that are held out from each network of a loss.
        seed: Seed of weights and batches. Networks of the same fold start alike, whatever their loss.
        stop_share: The share of a network's training rows that early stopping holds out, in addition to its fold.
        start: Weights to start from, as returned by an earlier call.
        device: Where to train.
        checkpoint: A file that keeps the state of the training.
        report: Called after each epoch.
    """
    objectives = {name: made for name in names if (made := CANDIDATES[name](goal)) is not None}
    if not objectives:
        raise ValueError(f"{', '.join(names)} cannot be trained for {goal.metric.name} in this average; add a loss.")
    count = len(objectives)
    total = count * len(folds)
    own_places = share(total)  # the networks that this rank trains
    seeds = [mixed(seed, place % len(folds)) for place in own_places]
    sizes = matrix.shape[1], goal.outputs
    members = _make_members(net, *sizes, seeds)
    if start is not None:
        build: Any = net if isinstance(net, Architecture) else sized(net, *sizes)
        begun = {key: tensor[list(own_places)] for key, tensor in start.items()}
        members.load_state_dict(type(members).from_tensors(build, begun).state_dict())
    rows, stops = _divide(target, goal.task, folds, stop_share, seed)
    data = Data(
        torch.from_numpy(matrix),
        torch.from_numpy(target).float() if goal.task != "multiclass" else torch.from_numpy(target),
        tuple(rows[place % len(folds)] for place in own_places),
        tuple(stops[place % len(folds)] for place in own_places),
        None if weight is None else torch.from_numpy(weight).float(),
        max(map(len, rows)),
    )
    counted = [sum(place // len(folds) == group for place in own_places) for group in range(count)]
    losses = Losses([(made, size) for made, size in zip(objectives.values(), counted, strict=True) if size])
    where = own_device(device)
    _check_rebuilt(members, net, sizes, data.matrix)
    history = train(members, data, losses, plan, seeds, device=where, checkpoint=checkpoint, report=report)
    members = members.to("cpu")
    _check_rebuilt(members, net, sizes, data.matrix)  # again, since a last layer may start at 0
    own_tensors = members.tensors()
    tests = [torch.from_numpy(folds[place % len(folds)]) for place in own_places]
    logits, history, tensors = _gather_all(_held_logits(members, data.matrix, tests), history, own_tensors, total)
    ensembles = []
    for place, name in enumerate(objectives):
        own = slice(place * len(folds), (place + 1) * len(folds))
        held = np.concatenate(logits[own])
        part = {key: tensor[own].clone() for key, tensor in tensors.items()}
        member: Member = NetMember(net, part) if isinstance(net, Architecture) else FactoryMember(net, part, *sizes)
        scores = mean_score(held[None], np.ones(1), goal.task)
        ensembles.append(Ensemble(name, member, scores[:, 0] if goal.task == "binary" else scores))
    return Trained(ensembles, history, tensors)


def _gather_all(
    logits: list[Floats], history: History, tensors: dict[str, Tensor], total: int
) -> tuple[list[Floats], History, dict[str, Tensor]]:
    """Collect the results of all ranks, in the order of the networks."""
    if len(logits) == total:
        return logits, history, tensors
    kept = [{key: tensor[i] for key, tensor in tensors.items()} for i in range(len(logits))]
    ends = list(zip(logits, kept, history.train.T, history.held.T, history.best, strict=True))
    all_logits, all_kept, trained, held, best = zip(*gather(ends, total), strict=True)
    epochs = max(map(len, trained))  # a rank whose networks have all stopped early has seen fewer
    padded_out = [
        np.stack([np.pad(c, (0, epochs - len(c)), constant_values=np.nan) for c in s], 1) for s in (trained, held)
    ]
    stacked = {key: torch.stack([each[key] for each in all_kept]) for key in tensors}
    return list(all_logits), History(padded_out[0], padded_out[1], np.array(best)), stacked


def _make_members(
    net: Architecture | Factory, inputs: int, outputs: int, seeds: Sequence[int]
) -> Members | FactoryMembers:
    """Build one network per seed."""
    if isinstance(net, Architecture):
        return Members(net, len(seeds), seeds)
    members = FactoryMembers(sized(net, inputs, outputs), len(seeds), seeds).eval()
    try:
        with torch.no_grad():
            found = members(torch.zeros(2, inputs, dtype=torch.float32)).shape[2]
    except RuntimeError as error:
        raise ValueError(
            f"the factory's module must take rows of {inputs} features, which is their number after preprocessing; it"
            f" fails with: {str(error).splitlines()[0]}"
        ) from error
    if found != outputs:
        raise ValueError(f"the factory's module must give {outputs} logits a row for this task; it gave {found}.")
    return members


def _check_rebuilt(
    members: Members | FactoryMembers, net: Architecture | Factory, sizes: tuple[int, int], matrix: Tensor
) -> None:
    """Raise unless a factory builds networks that only their weights tell apart, as predicting needs them."""
    if isinstance(members, FactoryMembers) and not isinstance(net, Architecture):
        members.check_rebuilt(sized(net, *sizes), matrix[:_CHECKED_ROWS])


def _divide(
    target: NDArray[Any], task: Task, folds: Sequence[Rows], share: float, seed: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The rows that each network of a loss is trained on, and those that stop it early."""
    rows, stops = [], []
    for place, fold in enumerate(folds):
        others = np.setdiff1d(np.arange(len(target)), fold)
        stop = np.empty(0, np.int64)
        if share:
            stop = others[make_folds(target[others], task, 1, mixed(seed, place, 1), share=share)[0]]
            others = np.setdiff1d(others, stop)
        rows.append(torch.from_numpy(others))
        stops.append(torch.from_numpy(stop))
    return tuple(rows), tuple(stops)


@torch.no_grad()
def _held_logits(members: Members | FactoryMembers, matrix: Tensor, tests: Sequence[Tensor]) -> list[Floats]:
    """Every network's logits of its held-out rows, in the precision in which the fitted model predicts."""
    wide = isinstance(members, Members)
    members = (members.double() if wide else members).eval()
    index, _ = padded(tests)
    width = max(1, _CHUNK // (len(tests) * matrix.shape[1]))
    parts = []
    for piece in torch.split(index, width, 1):
        x = matrix.index_select(0, piece.reshape(-1)).view(*piece.shape, -1)
        parts.append(members(x.double() if wide else x))
    logits = torch.cat(parts, 1).double().numpy()
    return [own[: len(test)] for own, test in zip(logits, tests, strict=True)]


def automatic_plan(
    rows: int, *, epochs: int | None, batch_size: int | None, learning_rate: float, weight_decay: float | None,
    patience: int | None = None,
) -> Plan:  # fmt: skip
    """Scale a plan to the data: larger tables get larger batches and fewer epochs.

    Args:
        rows: The number of training rows of a network.
        epochs: As in `Plan`; None for about 1,200 steps.
        batch_size: As in `Plan`; None for about a sixteenth of the rows.
        learning_rate: As in `Plan`.
        weight_decay: As in `Plan`; None for a value that falls with the number of rows.
        patience: As in `Plan`.

    Example:
        >>> plan = automatic_plan(400, epochs=None, batch_size=None, learning_rate=1e-3, weight_decay=None)
        >>> plan.batch_size, plan.epochs
        (128, 200)
    """
    if batch_size is None:
        batch_size = int(min(1024, max(128, 2 ** round(math.log2(max(1, rows) / 16)))))
    if epochs is None:
        steps = max(1, round(rows / batch_size))
        epochs = int(min(200, max(20, round(_STEPS / steps))))
    if weight_decay is None:
        weight_decay = min(1.0, max(0.01, 1000 / max(1, rows)))
    return Plan(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, decay="cosine", weight_decay=weight_decay,
        patience=patience,
    )  # fmt: skip
