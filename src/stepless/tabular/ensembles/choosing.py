"""Combine ensembles, calibrate them and choose the threshold, all on held-out rows.

Scores of held-out rows give the weights of the ensembles (`stepless.tabular.ensembles.stacking`), or choose one by its
metric. A threshold tuned on these rows is judged by cross-fitting: each fold is decided by what was tuned on the
others. So options are compared on rows that they have not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stepless.constraints import Constraint, parse_constraints
from stepless.rules import Held, Rule
from stepless.scoring import make_path
from stepless.tabular.ensembles.portfolio import Ensemble, Floats
from stepless.tabular.ensembles.stacking import stack_weights
from stepless.tabular.models.calibrating import fit_calibration
from stepless.tabular.models.calibration import Calibration, Identity
from stepless.tabular.models.model import mean_score
from stepless.thresholds import tune_threshold

#: The named ways to choose the threshold; the docstring of `stepless.MetricClassifier` explains them.
Cut = Literal["expected", "auto", "tuned", "half"]
#: What decides: the weighted mean of all ensembles, or the one with the best metric on held-out rows.
Combine = Literal["stack", "best"]

#: Scores that differ by less are equal: the order of additions must not decide.
_SAME = 1e-9
#: Classes with a smaller probability are ignored in the expectation over a row's class.
_UNLIKELY = 0.02
#: The most probabilities that are used to find expected class offsets.
_MOST_PROBABILITIES = 2_000_000
#: The least share of rows that an expected threshold decides no for.
_LEFT_OUT = 0.05
#: The most held-out rows that a pool keeps.
_MOST_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class Pool:
    """Held-out scores, for calibration and thresholds.

    Attributes:
        scores: The scores of every ensemble, ``(ensembles, rows)``, with a last dimension over classes or labels if
            there are several.
        target: The target of the rows.
        weight: Row weights, or None.
        folds: The fold of each row.
    """

    scores: NDArray[np.float64]
    target: NDArray[np.int64]
    weight: NDArray[np.float64] | None
    folds: NDArray[np.int64]

    def after(self, old: Pool | None) -> Pool:
        """This pool appended to an older one, without the oldest rows if there are too many."""
        if old is None:
            return self
        weights = None
        if old.weight is not None or self.weight is not None:
            weights = [np.ones(len(p.target)) if p.weight is None else p.weight for p in (old, self)]
        return Pool(
            np.concatenate([old.scores, self.scores], 1)[:, -_MOST_ROWS:],
            np.concatenate([old.target, self.target])[-_MOST_ROWS:],
            None if weights is None else np.concatenate(weights)[-_MOST_ROWS:],
            np.concatenate([old.folds, self.folds])[-_MOST_ROWS:],
        )


@dataclass(frozen=True)
class Option:
    """One way to decide, and its score.

    Attributes:
        name: The ensemble, ``"average"`` for the plain mean, or ``"stack"`` for the weighted mean.
        weights: The weights of the ensembles.
        tuned: Whether the threshold is tuned; otherwise it is ½, or the class of largest probability decides.
        score: The metric of the decisions on held-out rows.
        violation: How far these are from meeting the constraints: 0 if they are met, infinite if they can be met on all
            rows but not without one of the folds.
    """

    name: str
    weights: tuple[float, ...]
    tuned: bool
    score: float
    violation: float = 0.0


@dataclass(frozen=True)
class Choice:
    """The best option and all that were compared.

    Attributes:
        option: The best option.
        options: All options, in the order they were tried.
        calibration: From the scores of the best option to probabilities.
        threshold: A probability, one per label, or class offsets.
    """

    option: Option
    options: tuple[Option, ...]
    calibration: Calibration
    threshold: float | tuple[float, ...]


def check_cut(cut: Any, rule: Rule) -> tuple[Constraint, ...]:
    """Return the constraints; raise a ValueError if the threshold is not valid, or cannot meet any constraints."""
    named = isinstance(cut, str)
    if (named and cut not in get_args(Cut)) or cut is None or isinstance(cut, bool):
        raise ValueError(
            f"threshold must be one of {', '.join(map(repr, get_args(Cut)))}, or the threshold itself: a probability,"
            f" one a label, offsets of the classes, or a Tuning; got {cut!r}."
        )
    constraints = parse_constraints(rule.subject_to)
    if constraints and (not named or cut == "half"):
        shown = f'"{cut}"' if named else repr(cut)
        raise ValueError(f"constraints are met by moving the threshold; threshold={shown} leaves it where it is.")
    if not named:
        given_cut(cut, rule)  # raises before anything is fitted
    return constraints


def given_cut(cut: Any, rule: Rule) -> float | tuple[float, ...]:
    """Return a threshold given by the user, as numbers or a `stepless.Tuning`: one, one per label, or class offsets."""
    path = make_path((rule.resolved,), task=rule.task, average=rule.average, inputs="probabilities", threshold=cut)
    found: Any = path.offsets if rule.task == "multiclass" else path.cuts
    count = len(rule.classes)
    if isinstance(found, float):
        return found if rule.task == "binary" else (found,) * count
    if rule.task != "binary" and np.shape(found) == (count,):
        return tuple(found)
    wanted = "a probability" if rule.task == "binary" else f"one number for each of the {count} classes or labels"
    raise ValueError(f"threshold must be {wanted}; got {cut!r}.")


def choose(
    ensembles: Sequence[Ensemble],
    rule: Rule,
    target: NDArray[Any],
    weight: NDArray[Any] | None,
    folds: NDArray[np.int64],
    *,
    cut: Any = "auto",
    combine: Combine = "best",
    calibrate: bool = True,
) -> Choice:
    """Choose the weighted mean of the ensembles, or the best of them and their plain mean, with its threshold.

    Args:
        ensembles: The candidates.
        rule: How scores are tuned and decisions scored; its method is ``"predict_proba"``.
        target: The target of the held-out rows, in the order of the ensembles' scores.
        weight: The weights of these rows, or None.
        folds: The fold of each row.
        cut: Which thresholds are considered, or the threshold itself. Constraints need a tuned one; if all held-out
            rows are of one class, nothing is tuned. ``"expected"`` means ``"auto"`` if `foreseeable` is false.
        combine: Whether all ensembles decide together, or the best one.
        calibrate: Whether to calibrate probabilities; otherwise they are the ensemble's own.
    """
    constraints = check_cut(cut, rule)
    count = len(ensembles)
    ways = [(e.name, tuple(float(i == place) for i in range(count))) for place, e in enumerate(ensembles)]
    if count > 1 and combine == "stack":
        ways = [("stack", stack_weights([e.held for e in ensembles], target, weight, rule.task))]
    elif count > 1:
        ways.append(("average", (1 / count,) * count))
    if not isinstance(cut, str):  # asked first: an array is not compared with a name
        return _best_given(ensembles, ways, rule, target, weight, given_cut(cut, rule), calibrate=calibrate)
    if cut == "expected" and foreseeable(rule, calibrate=calibrate) and not constraints and _can_tune(rule, target):
        return _best_expected(ensembles, ways, rule, target, weight, folds, calibrate=calibrate)
    tuned = [True] if constraints or cut == "tuned" else [False] if cut == "half" else [False, True]
    if not constraints and not _can_tune(rule, target):
        tuned = [False]
    options, failure = [], None
    for name, weights in ways:
        held = Held(_probabilities(ensembles, weights, rule), target, weight, np.arange(len(target)), folds)
        for moves in tuned:
            try:
                decided, broken = _decided(rule, held, constraints) if moves else (_at_half(rule, held), 0.0)
            except ValueError as error:
                if not constraints:
                    raise
                failure = failure or error
                continue
            options.append(Option(name, weights, moves, rule.score(decided, target, weight), broken))
    if not options and failure is not None:
        raise failure
    best = _best(options, rule)
    scores = _scores(ensembles, best.weights, rule)
    plain = Identity(rule.task)
    calibration = fit_calibration(scores, target, weight, rule.task) if calibrate else plain
    held = Held(calibration.probabilities(scores), target, weight, np.arange(len(target)), folds)
    threshold = rule.tune(held).threshold if best.tuned else _half_of(calibration, rule)
    return Choice(best, tuple(options), calibration, threshold)


def _best_expected(
    ensembles: Sequence[Ensemble], ways: Sequence[tuple[str, tuple[float, ...]]], rule: Rule, target: NDArray[Any],
    weight: NDArray[Any] | None, folds: NDArray[np.int64], *, calibrate: bool,
) -> Choice:  # fmt: skip
    """The best combination, each at the threshold that is best in expectation."""
    found = {}
    for name, weights in ways:
        choice = expected(_scores(ensembles, weights, rule), rule, target, weight, folds, calibrate=calibrate)
        option = replace(choice.option, name=name, weights=weights)
        found[option] = replace(choice, option=option)
    return replace(found[_best([*found], rule)], options=tuple(found))


def _best_given(
    ensembles: Sequence[Ensemble], ways: Sequence[tuple[str, tuple[float, ...]]], rule: Rule, target: NDArray[Any],
    weight: NDArray[Any] | None, cut: float | tuple[float, ...], *, calibrate: bool,
) -> Choice:  # fmt: skip
    """The best combination at a given threshold."""
    found: dict[Option, Calibration] = {}
    for name, weights in ways:
        scores = _scores(ensembles, weights, rule)
        calibration = fit_calibration(scores, target, weight, rule.task) if calibrate else Identity(rule.task)
        score = rule.score(rule.decide(calibration.probabilities(scores), cut), target, weight)
        found[Option(name, weights, False, score)] = calibration
    best = _best([*found], rule)
    return Choice(best, tuple(found), found[best], cut)


def foreseeable(rule: Rule, *, calibrate: bool) -> bool:
    """Whether an expected threshold can be found: always for two classes; several need calibrated probabilities."""
    return rule.task == "binary" or (calibrate and rule.average != "samples")


def expected(
    held: Floats, rule: Rule, target: NDArray[Any], weight: NDArray[Any] | None, folds: NDArray[np.int64], *,
    calibrate: bool,
) -> Choice:  # fmt: skip
    """Calibrate held-out scores, and find the threshold where the metric is best if the probabilities are true.

    The best threshold on true labels depends on each of them, and a rare class has few. A calibration is a smooth fit
    to all rows, and so is the metric's expectation under it. Constraints are on true labels and are ignored here. With
    two classes, at least 5 % of the rows are decided no, and some yes (`leave_some`).

    Args:
        held: Logits of held-out rows (binary, multilabel), or log-probabilities (multiclass).
        rule: The task and its metric.
        target: The target of these rows.
        weight: The weights of these rows, or None.
        folds: The fold of each row.
        calibrate: Whether to return calibrated probabilities; the decisions are the same either way. With several
            classes or labels, they always are calibrated.
    """
    calibration: Calibration = fit_calibration(held, target, weight, rule.task)
    p = calibration.probabilities(held)
    threshold: float | tuple[float, ...]
    if rule.task == "binary":
        threshold, calibration = _expected_cut(p, rule, weight, folds, calibration, calibrate=calibrate)
    else:
        threshold = _expected_cuts(p, rule, weight)
    score = rule.score(rule.decide(calibration.probabilities(held), threshold), target, weight)
    option = Option("average", (1.0,), True, score)
    return Choice(option, (option,), calibration, threshold)


def _expected_cuts(p: Floats, rule: Rule, weight: NDArray[Any] | None) -> tuple[float, ...]:
    """The label thresholds or class offsets that are best in expectation."""
    rows = np.arange(len(p))
    held = Held(p, p, weight, rows, rows)
    if rule.task == "multiclass":  # each row appears once per likely class, weighted by its probability
        rows, classes = np.nonzero(p > np.minimum(_UNLIKELY, p.max(1, keepdims=True) / 2))
        kept = rows % math.ceil(len(rows) * p.shape[1] / _MOST_PROBABILITIES) == 0  # every nth row if there are many
        rows, classes = rows[kept], classes[kept]
        share = p[rows, classes] if weight is None else p[rows, classes] * weight[rows]
        held = Held(p[rows], classes, share, rows, rows)
    found = rule.tune(held).threshold
    assert isinstance(found, tuple)
    return found


def _expected_cut(
    p: Floats, rule: Rule, weight: NDArray[Any] | None, folds: NDArray[np.int64], calibration: Calibration, *,
    calibrate: bool,
) -> tuple[float, Calibration]:  # fmt: skip
    """The threshold of two classes that is best in expectation, and the calibration it belongs to."""
    cut = tune_threshold(p, p, rule.resolved, None, weight, inputs="probabilities").threshold
    assert isinstance(cut, float)
    each = [p[folds == fold] for fold in np.unique(folds)]
    # folds of one row cannot show whether a model tells rows apart
    if len(each) == len(p) or any(np.ptp(part) > _SAME for part in each):
        cut = leave_some(cut, p, weight)
    elif (p >= cut).any():  # scores are constant in each fold and differ between folds by chance: all rows or none
        cut = -math.inf
    if not calibrate:
        plain = Identity("binary")
        cut = cut if math.isinf(cut) else float(plain.probabilities(calibration.inverse([cut]))[0])
        calibration = plain
    return cut, calibration


def leave_some(cut: float, p: Floats, weight: NDArray[Any] | None) -> float:
    """Move the threshold if it decides the same for every row, or yes for nearly all.

    If rows can hardly be told apart, F1 is best when all are decided yes. But a decision that is the same for all rows
    is useless, and it costs next to nothing to decide no for the least likely ones.
    """
    values, place = np.unique(p, return_inverse=True)
    if len(values) == 1:
        return cut
    below = np.bincount(place, weight).cumsum() / (len(p) if weight is None else float(np.sum(weight)))
    if (p >= cut).any():
        first = int(np.searchsorted(below, _LEFT_OUT))  # all values up to this one make up the share
        first = min(first, len(values) - 2)
        return max(cut, float(values[first] + values[first + 1]) / 2)
    return float(values[-1] + values[-2]) / 2


def _best(options: Sequence[Option], rule: Rule) -> Option:
    """The option with the least violation, then the best score; the first among equals."""
    sign = 1 if rule.resolved.greater_is_better else -1

    def merit(option: Option) -> tuple[float, float]:
        score = -math.inf if math.isnan(option.score) else sign * option.score
        return -option.violation, score

    best = options[0]
    for option in options[1:]:
        (less, gain), (least, most) = merit(option), merit(best)
        if less > least + _SAME or (less >= least - _SAME and gain > most + _SAME):
            best = option
    return best


def _scores(ensembles: Sequence[Ensemble], weights: tuple[float, ...], rule: Rule) -> Floats:
    """Scores of held-out rows, from the weighted mean of the ensembles' probabilities."""
    stacked = np.stack([e.held for e in ensembles])
    if rule.task == "binary":
        return mean_score(stacked[..., None], np.array(weights), "binary")[:, 0]
    return mean_score(stacked, np.array(weights), rule.task)


def _probabilities(ensembles: Sequence[Ensemble], weights: tuple[float, ...], rule: Rule) -> Floats:
    return Identity(rule.task).probabilities(_scores(ensembles, weights, rule))


def _decided(rule: Rule, held: Held, constraints: Sequence[Constraint]) -> tuple[Any, float]:
    """Cross-fitted decisions, and how far they are from meeting the constraints.

    If the constraints can be met on all rows but not without one of the folds, the threshold is tuned on all rows, and
    the violation is infinite, so that any other option is preferred.
    """
    try:
        decided = _cross_fitted(rule, held)
    except ValueError:
        if not constraints:
            raise
        return rule.decide(held.scores, rule.tune(held).threshold), math.inf
    return decided, _violation(constraints, rule, decided, held.target, held.weight)


def _cross_fitted(rule: Rule, held: Held) -> Any:
    """Decisions on each fold by what is tuned on the others, or at ½ if those have one class only.

    A single fold is divided into two halves.
    """
    folds = held.folds if len(np.unique(held.folds)) > 1 else np.arange(len(held.target)) % 2
    decided = np.zeros(held.target.shape, bool if rule.task != "multiclass" else np.int64)
    for fold in np.unique(folds):
        here = folds == fold
        part, others = held.part(here), held.part(~here)
        tunable = _can_tune(rule, others.target)
        decided[here] = rule.decide(part.scores, rule.tune(others).threshold) if tunable else _at_half(rule, part)
    return decided


def _can_tune(rule: Rule, target: Any) -> bool:
    """Whether there are two classes: with one, all thresholds are alike."""
    return rule.task == "multilabel" or len(np.unique(target)) > 1


def _violation(constraints: Sequence[Constraint], rule: Rule, decided: Any, target: Any, weight: Any) -> float:
    total = 0.0
    for constraint in constraints:
        value = replace(rule, metric=constraint.metric, options={}, subject_to=None).score(decided, target, weight)
        total += max(0.0, float(constraint.violation(value)))
    return total


def _at_half(rule: Rule, held: Held) -> Any:
    """Decisions at ½, or for the class of largest probability."""
    return rule.decide(held.scores, np.zeros(len(rule.classes)) if rule.task == "multiclass" else 0.5)


def _half_of(calibration: Calibration, rule: Rule) -> float | tuple[float, ...]:
    """The threshold of calibrated probabilities that is ½ for the ensemble's own."""
    if rule.task == "multiclass":
        return (0.0,) * len(rule.classes)
    if rule.task == "binary":
        return float(calibration.probabilities(np.zeros(1))[0])
    labels = len(rule.classes)
    return tuple(calibration.probabilities(np.zeros((1, labels)))[0].tolist())
