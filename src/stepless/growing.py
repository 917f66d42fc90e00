"""Ensembles of boosters, each grown without one fold, all in step.

After every round the boosters' scores of the rows they have not seen are pooled, and the metric's worth for the next
round is read off their counts. Counted on the rows that the trees were grown on, it would be read off decisions that
are too good to be true: the better trees know their rows, the less the metric has to say about them. The same scores
say when to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepless.booster_members import BoosterMember
from stepless.costs import Costs, Floats
from stepless.portfolio import Ensemble
from stepless.steppers import Rows, Settings, Stepper, make_stepper
from stepless.sweep import merit, score_counts, sweep

#: What says when to stop: the metric at the best of all cuts, at ½, or cross-entropy. Several classes have no cut.
Watch = Literal["cut", "half", "loss"]

#: After so many rounds each the held-out rows are looked at.
_EVERY = 5
#: A gain of less is none: the order of additions must not decide when to stop.
_SAME = 1e-12
_CHANGED = "the rounds that are kept score rows otherwise than when they were grown"


@dataclass(frozen=True)
class Growth:
    """What came of growing.

    Attributes:
        ensemble: The boosters, and their scores of held-out rows; where none were held out, of all rows.
        rounds: How many rounds were kept.
        scores: Of the held-out rows after every fifth round: what was watched, greater being better.
    """

    ensemble: Ensemble
    rounds: int
    scores: Floats


def grow(
    matrix: NDArray[np.float32],
    target: NDArray[np.int64],
    weight: Floats | None,
    costs: Costs,
    settings: Settings,
    folds: Sequence[NDArray[np.intp]],
    patience: int | None,
    watch: Watch = "cut",
) -> Growth:
    """Grow a booster for each fold, without its rows, or one on all rows where there are no folds.

    Args:
        matrix: The rows.
        target: Their classes.
        weight: Their weights.
        costs: What to grow for.
        settings: How to grow.
        folds: The rows of each fold.
        patience: Stop after so many rounds without a better score of the held-out rows, and keep the best round. None
            keeps all rounds, as does an ensemble without folds.
        watch: Which score that is.
    """
    everything = np.arange(len(target))
    held = np.concatenate(folds) if folds else everything
    y, w = target[held], None if weight is None else weight[held]
    parts = [np.setdiff1d(everything, fold) for fold in folds] or [everything]
    watched = list(folds) or [everything[:0]]
    steppers: list[Stepper] = []
    try:
        for own, fold in zip(parts, watched, strict=True):
            rows = Rows(matrix[own], target[own], None if weight is None else weight[own], matrix[fold])
            steppers.append(make_stepper(costs, rows, settings))
        pooled = np.concatenate(
            [np.tile(s.initial, (len(f), 1)) for s, f in zip(steppers, folds or [everything], strict=True)]
        )
        pooled = pooled[:, 0] if costs.outputs == 1 else pooled
        stops = bool(folds) and patience is not None
        best, scores = (0, -np.inf, pooled), []
        for number in range(1, settings.rounds + 1):
            worth = costs.worth(costs.count(pooled, y, w))
            seen = [stepper.step(worth) for stepper in steppers]
            pooled = np.concatenate([out for _, out in seen]) if folds else seen[0][0]
            if number % _EVERY and number != settings.rounds:
                continue
            scores.append(_watched(costs, pooled, y, w, watch))
            if not best[0] or not stops or scores[-1] > best[1] + _SAME:
                best = number, scores[-1], pooled
            elif number - best[0] >= (patience or 0):
                break
        rounds, _, pooled = best
        boosters = tuple(stepper.finish(rounds) for stepper in steppers)
    finally:
        for stepper in steppers:
            stepper.close()
    starts = tuple(tuple(stepper.initial.tolist()) for stepper in steppers)
    member = BoosterMember(settings.library, boosters, matrix.shape[1], starts)
    if settings.params:
        _check_kept(member, settings, [matrix[fold] for fold in folds] or [matrix], pooled)
    return Growth(Ensemble(costs.form, member, _log_scores(costs, pooled)), rounds, np.array(scores))


def _check_kept(
    member: BoosterMember, settings: Settings, watched: Sequence[NDArray[np.float32]], pooled: Floats
) -> None:
    """Raise where a user's parameters made trees that cannot be read again, or not as they were when scored."""
    try:
        own = [member.scores(part)[place] for place, part in enumerate(watched)]
        fault = "" if np.allclose(np.concatenate(own), pooled.reshape(-1, member.outputs), 1e-3, 1e-3) else _CHANGED
    except ValueError as error:
        fault = str(error)
    if fault:
        raise ValueError(
            f"params must make trees that can be kept; got {dict(settings.params)}, and {fault.rstrip('.')}. Leave out"
            " what makes another kind of trees than the library's usual ones."
        )


def _watched(costs: Costs, scores: Floats, target: NDArray[np.int64], weight: Floats | None, watch: Watch) -> float:
    if watch == "loss":
        total = len(target) if weight is None else weight.sum()
        return -costs.loss(scores, target, weight, np.eye(costs.classes)) / float(total)
    if watch == "cut" and costs.task == "binary":
        counts = sweep(scores, target.astype(np.float64), weight).counts
        return float(merit(costs.metric, score_counts(costs.metric, counts)).max())
    return float(np.nan_to_num(costs.score(scores, target, weight), nan=-np.inf))


def _log_scores(costs: Costs, scores: Floats) -> Floats:
    """Logits of two classes, or log-probabilities of several."""
    return scores if costs.outputs == 1 else scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
