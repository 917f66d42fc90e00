"""Ensembles of boosters, each grown without one fold, all in step.

After every round, the boosters' scores of their held-out rows are pooled, and the counts of these rows give the worth
of decisions in the next round. Counts on the training rows would be too optimistic: the better trees fit their rows,
the less the metric would ask for. The pooled scores also decide when to stop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepless.costs import Costs, Floats
from stepless.cuts.sweep import merit, score_counts, sweep
from stepless.tabular.ensembles.portfolio import Ensemble
from stepless.tabular.fingerprints import fingerprint, written
from stepless.tabular.sharing import open_block
from stepless.tabular.trees.members import BoosterMember
from stepless.tabular.trees.steppers import Rows, Settings, Stepper, make_stepper

#: What decides when to stop: the metric at the best threshold, at ½ (the same for several classes), or cross-entropy.
Watch = Literal["cut", "half", "loss"]

#: Held-out rows are scored every so many rounds.
_EVERY = 5
#: Smaller gains do not count: the order of additions must not decide when to stop.
_SAME = 1e-12
#: The most held-out scores, of all rounds together, that are kept for other fits.
_MOST_KEPT = 2**24
_CHANGED = "the rounds that are kept score rows otherwise than when they were grown"


@dataclass(frozen=True)
class Growth:
    """The result of `grow`.

    Attributes:
        ensemble: The boosters, and their scores of held-out rows, or of all rows if none were held out.
        rounds: The number of rounds kept.
        scores: The watched score of held-out rows after every fifth round; greater is better.
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
    """Grow a booster for each fold, without its rows, or one on all rows if there are no folds.

    Args:
        matrix: The rows.
        target: Their classes.
        weight: Their weights.
        costs: The objective.
        settings: How to grow.
        folds: The rows of each fold.
        patience: Stop after so many rounds without a better score of the held-out rows, and keep the best round. None
            keeps all rounds, as does an ensemble without folds.
        watch: Which score that is.
    """
    stops = bool(folds) and patience is not None
    best, scores = (0, -np.inf, np.empty(0)), []
    with _growing(_Inputs(matrix, target, weight, costs, settings, folds)) as growing:
        for number in _looks(settings.rounds):
            pooled = growing.scores_after(number)
            scores.append(_watched(costs, pooled, growing.target, growing.weight, watch))
            if not best[0] or not stops or scores[-1] > best[1] + _SAME:
                best = number, scores[-1], pooled
            elif number - best[0] >= (patience or 0):
                break
        rounds, _, pooled = best
        boosters = tuple(stepper.finish(rounds) for stepper in growing.steppers)
        starts = tuple(tuple(stepper.initial.tolist()) for stepper in growing.steppers)
    member = BoosterMember(settings.library, boosters, matrix.shape[1], starts)
    if settings.params:
        _check_kept(member, settings, [matrix[fold] for fold in folds] or [matrix], pooled)
    return Growth(Ensemble(costs.form, member, _log_scores(costs, pooled)), rounds, np.array(scores))


class _Inputs(NamedTuple):
    """What the boosters depend on, as in `grow`."""

    matrix: NDArray[np.float32]
    target: NDArray[np.int64]
    weight: Floats | None
    costs: Costs
    settings: Settings
    folds: Sequence[NDArray[np.intp]]


class _Growing:
    """Boosters that grow in step, one per fold, and their pooled scores of held-out rows.

    Attributes:
        steppers: The boosters.
        target: The classes of the held-out rows, fold by fold, or of all rows if none are held out.
        weight: The weights of these rows.
        reused: CPU seconds that were saved by scores kept from an earlier fit.
    """

    def __init__(self, inputs: _Inputs, *, keeps: bool) -> None:
        matrix, target, weight, costs, settings, folds = inputs
        begun = time.process_time()
        everything = np.arange(len(target))
        held = np.concatenate(folds) if folds else everything
        self.target, self.weight = target[held], None if weight is None else weight[held]
        self.steppers: list[Stepper] = []
        self.reused = 0.0
        self._costs, self._folds, self._keeps = costs, bool(folds), keeps
        self._known: dict[int, tuple[Floats, float]] = {}
        self._rounds = 0
        try:
            for fold in folds or [everything[:0]]:
                own = np.setdiff1d(everything, fold)
                rows = Rows(matrix[own], target[own], None if weight is None else weight[own], matrix[fold])
                self.steppers.append(make_stepper(costs, rows, settings))
        except BaseException:
            self.close()
            raise
        sizes = [len(fold) for fold in folds] or [len(target)]
        start = np.concatenate([np.tile(s.initial, (n, 1)) for s, n in zip(self.steppers, sizes, strict=True)])
        self._pooled = start[:, 0] if costs.outputs == 1 else start
        self._making = time.process_time() - begun

    def scores_after(self, rounds: int) -> Floats:
        """The scores of held-out rows after so many rounds: kept ones, or by growing further."""
        if rounds in self._known:
            self.reused += self._known[rounds][1]
            return self._known[rounds][0]
        begun = time.process_time()
        while self._rounds < rounds:
            worth = self._costs.worth_at(self._pooled, self.target, self.weight)
            seen = [stepper.step(worth) for stepper in self.steppers]
            self._pooled = np.concatenate([out for _, out in seen]) if self._folds else seen[0][0]
            self._rounds += 1
        if self._keeps:
            self._known[rounds] = self._pooled, time.process_time() - begun + self._making
            self._making = 0.0  # counted once, with the first rounds
        return self._pooled

    def close(self) -> None:
        """Release the boosters."""
        for stepper in self.steppers:
            stepper.close()


@contextmanager
def _growing(inputs: _Inputs) -> Iterator[_Growing]:
    """New boosters, or inside a `stepless.shared_fits` block those that have grown from the same inputs before."""
    block = open_block()
    matrix, target, weight, costs, settings, folds = inputs
    large = len(target) * costs.outputs * len(_looks(settings.rounds)) > _MOST_KEPT
    if block is None or large or settings.library == "catboost":  # CatBoost cannot grow on after `finish`
        with closing(_Growing(inputs, keeps=False)) as own:
            yield own
        return
    metric = () if costs.form == "cross_entropy" else (written(costs.metric), costs.average)
    texts = ("trees", repr(settings), costs.task, str(costs.classes), costs.form, *metric)
    key = fingerprint(texts, (matrix, target, weight, *folds))
    growing = block.find(key, lambda: _Growing(inputs, keeps=True))
    try:
        yield growing
    except BaseException:  # boosters that stopped in the middle of a round cannot be shared
        block.drop(key)
        raise
    block.saved, growing.reused = block.saved + growing.reused, 0.0


def _looks(rounds: int) -> list[int]:
    """The rounds after which held-out rows are scored.

    >>> _looks(12)
    [5, 10, 12]
    """
    return [number for number in range(1, rounds + 1) if number % _EVERY == 0 or number == rounds]


def _check_kept(
    member: BoosterMember, settings: Settings, watched: Sequence[NDArray[np.float32]], pooled: Floats
) -> None:
    """Raise if a user's parameters led to trees that cannot be read back, or that then score rows differently."""
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
    """Logits of a binary task, or log-probabilities of several classes."""
    return scores if costs.outputs == 1 else scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
