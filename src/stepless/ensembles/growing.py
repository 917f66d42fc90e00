"""Ensembles of boosters, each grown without one fold, all in step.

After every round the boosters' scores of the rows they have not seen are pooled, and the metric's worth for the next
round is read off their counts. Counted on the rows that the trees were grown on, it would be read off decisions that
are too good to be true: the better trees know their rows, the less the metric has to say about them. The same scores
say when to stop.
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
from stepless.ensembles.portfolio import Ensemble
from stepless.fingerprints import fingerprint, written
from stepless.sharing import open_block
from stepless.trees.members import BoosterMember
from stepless.trees.steppers import Rows, Settings, Stepper, make_stepper

#: What says when to stop: the metric at the best of all cuts, at ½, or cross-entropy. Several classes have no cut.
Watch = Literal["cut", "half", "loss"]

#: After so many rounds each the held-out rows are looked at.
_EVERY = 5
#: A gain of less is none: the order of additions must not decide when to stop.
_SAME = 1e-12
#: More scores than this, of all looks together, are not kept for other fits.
_MOST_KEPT = 2**24
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
    stops = bool(folds) and patience is not None
    best, scores = (0, -np.inf, np.empty(0)), []
    with _trunk(_Ground(matrix, target, weight, costs, settings, folds)) as trunk:
        for number in _looks(settings.rounds):
            pooled = trunk.scores_after(number)
            scores.append(_watched(costs, pooled, trunk.target, trunk.weight, watch))
            if not best[0] or not stops or scores[-1] > best[1] + _SAME:
                best = number, scores[-1], pooled
            elif number - best[0] >= (patience or 0):
                break
        rounds, _, pooled = best
        boosters = tuple(stepper.finish(rounds) for stepper in trunk.steppers)
        starts = tuple(tuple(stepper.initial.tolist()) for stepper in trunk.steppers)
    member = BoosterMember(settings.library, boosters, matrix.shape[1], starts)
    if settings.params:
        _check_kept(member, settings, [matrix[fold] for fold in folds] or [matrix], pooled)
    return Growth(Ensemble(costs.form, member, _log_scores(costs, pooled)), rounds, np.array(scores))


class _Ground(NamedTuple):
    """What boosters grow on, for what, and how: as in `grow`."""

    matrix: NDArray[np.float32]
    target: NDArray[np.int64]
    weight: Floats | None
    costs: Costs
    settings: Settings
    folds: Sequence[NDArray[np.intp]]


class _Trunk:
    """Boosters that grow in step, one for each fold, and what they say of the rows held out from them.

    Attributes:
        steppers: The boosters.
        target: The classes of the rows held out, fold by fold; where none are held out, of all rows.
        weight: The weights of these.
        reused: The processor seconds of what was asked for and was there.
    """

    def __init__(self, ground: _Ground, *, keeps: bool) -> None:
        matrix, target, weight, costs, settings, folds = ground
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
        """The scores of the rows held out, after so many rounds; of fewer than it has grown, those asked for before."""
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
            self._making = 0.0  # counted with the first rounds
        return self._pooled

    def close(self) -> None:
        """Let go of what growing needs."""
        for stepper in self.steppers:
            stepper.close()


@contextmanager
def _trunk(ground: _Ground) -> Iterator[_Trunk]:
    """New boosters, or inside of `stepless.shared_fits` those that have grown for the same before."""
    block = open_block()
    matrix, target, weight, costs, settings, folds = ground
    large = len(target) * costs.outputs * len(_looks(settings.rounds)) > _MOST_KEPT
    if block is None or large or settings.library == "catboost":  # whose thread ends when its trees are asked for
        with closing(_Trunk(ground, keeps=False)) as own:
            yield own
        return
    metric = () if costs.form == "cross_entropy" else (written(costs.metric), costs.average)
    texts = ("trees", repr(settings), costs.task, str(costs.classes), costs.form, *metric)
    key = fingerprint(texts, (matrix, target, weight, *folds))
    trunk = block.find(key, lambda: _Trunk(ground, keeps=True))
    try:
        yield trunk
    except BaseException:  # boosters that stopped in the middle of a round are of no use to others
        block.drop(key)
        raise
    block.saved, trunk.reused = block.saved + trunk.reused, 0.0


def _looks(rounds: int) -> list[int]:
    """After which rounds the held-out rows are looked at.

    >>> _looks(12)
    [5, 10, 12]
    """
    return [number for number in range(1, rounds + 1) if number % _EVERY == 0 or number == rounds]


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
