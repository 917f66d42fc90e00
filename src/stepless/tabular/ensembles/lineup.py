"""The candidates of a portfolio: networks of several losses, a linear model, and boosted trees.

Networks, a linear model and trees err on different rows, so their mean is better than each of them;
`stepless.tabular.ensembles.stacking` finds the weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepless.costs import Costs, Form
from stepless.rules import Rule
from stepless.scoring import make_path
from stepless.tabular.ensembles.growing import grow
from stepless.tabular.ensembles.logistic import fit_logistic
from stepless.tabular.ensembles.portfolio import CANDIDATES, Ensemble, Goal, Rows, fit_ensembles
from stepless.tabular.networks.nets import Architecture
from stepless.tabular.networks.training import Plan
from stepless.tabular.sharing import once
from stepless.tabular.trees.steppers import NothingToSplitError, Settings, library_module

#: A linear model, fitted to cross-entropy.
LINEAR = "linear"
#: Parameters of trees that see a part of the rows and columns, so that they differ from those that see all.
_SAMPLED = {
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.7, "max_depth": 6, "lambda_l2": 3.0,
}  # fmt: skip
#: Boosted trees: the form of their costs, and LightGBM's parameters.
TREES: dict[str, tuple[Form, dict[str, Any]]] = {
    "trees": ("cross_entropy", {}),
    "sampled_trees": ("cross_entropy", _SAMPLED),
    "cost_trees": ("cost", {}),
}
#: All candidates.
NAMES = (*CANDIDATES, LINEAR, *TREES)

_PLAIN = "cross_entropy"
_LOSSES = (_PLAIN, "mixture")
#: With fewer distinct rows, trees do not take part by default.
_FEWEST = 50
_ROUNDS, _RATE, _PATIENCE = 150, 0.1, 50


def check_names(names: Any) -> None:
    """Raise unless these are candidates, among them a loss of the networks; None leaves the choice to `lineup`."""
    if names is None:
        return
    listed = isinstance(names, Collection) and not isinstance(names, str) and all(isinstance(n, str) for n in names)
    if not listed or not names or len(set(names)) < len(names) or not set(names) <= set(NAMES):
        raise ValueError(f"candidates must be some of {', '.join(map(repr, NAMES))}; got {names!r}.")
    if not set(names) & set(CANDIDATES):
        raise ValueError(
            f"candidates must name a loss of the networks, one of {', '.join(map(repr, CANDIDATES))}; got {names!r}."
            ' For trees alone use MetricBooster, for a linear model alone model="linear".'
        )


def lineup(names: Sequence[str] | None, rule: Rule, rows: int, *, networks_alone: bool) -> tuple[str, ...]:
    """Return the candidates that take part.

    Args:
        names: The candidates asked for; None for those that suit the table, with trees if LightGBM is installed.
        rule: The task and its metric.
        rows: The number of distinct training rows.
        networks_alone: Whether only networks can take part: training continues from networks, or they come from a
            user's factory.
    """
    one_label = rule.task != "multilabel"
    if names is None:
        trees = tuple(TREES) if one_label and rows >= _FEWEST and find_spec("lightgbm") is not None else ()
        # with several classes, all trees are sampled anyway, and more of them would take long
        names = (*_LOSSES, LINEAR, *(name for name in trees if rule.task == "binary" or name != "sampled_trees"))
    elif not one_label and set(names) & set(TREES):
        raise ValueError(f"trees take one label per row; leave {', '.join(map(repr, TREES))} out of the candidates.")
    if rule.subject_to is not None:  # costs ignore constraints; the threshold meets them
        names = [name for name in names if name != "cost_trees"]
    return tuple(name for name in names if name in CANDIDATES or not networks_alone)


def fit_others(
    names: Sequence[str],
    matrix: NDArray[np.float32],
    target: NDArray[Any],
    weight: NDArray[Any] | None,
    goal: Goal,
    rule: Rule,
    plan: Plan,
    folds: Sequence[Rows],
    seed: int,
    device: str | torch.device,
    columns: int,
) -> list[Ensemble]:
    """Fit the candidates other than networks of the portfolio's own shape, each model without one fold.

    ``columns`` is the number of columns of the table; the matrix may have more.
    """
    found = []
    if LINEAR in names and goal.task == "binary":
        data = (matrix, target, weight, *folds)
        found.append(once(lambda: fit_logistic(LINEAR, matrix, target, weight, folds), (LINEAR, goal.task), data))
    elif LINEAR in names:
        net = Architecture("linear", matrix.shape[1], goal.outputs)
        one = once(
            lambda: fit_ensembles(matrix, target, weight, goal, (_PLAIN,), net, plan, folds, seed, device=device),
            (LINEAR, goal.task, repr(net), repr(plan), str(seed), str(device)),
            (matrix, target, weight, *folds),
        ).ensembles[0]
        found.append(Ensemble(LINEAR, one.member, one.held))
    path = make_path((rule.resolved,), task=rule.task, average=rule.average)
    for name in names:
        if name in TREES:
            library_module("lightgbm")
            form, params = TREES[name]
            costs = Costs(rule.resolved, path.task, len(rule.classes), path.average, form)
            settings = Settings("lightgbm", _ROUNDS, _RATE, params, seed % 2**31, torch.get_num_threads(), columns)
            watch: Any = "loss" if rule.subject_to is not None else "cut"
            try:
                growth = grow(matrix, target, weight, costs, settings, [*folds], _PATIENCE, watch)
            except NothingToSplitError:  # the other candidates do without trees
                continue
            found.append(Ensemble(name, growth.ensemble.member, growth.ensemble.held))
    return found
