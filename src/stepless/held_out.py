"""Held-out rows of `TunedThreshold`: scored fold by fold, pooled, and decided by what was tuned on the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepless.extras import needs
from stepless.rules import Held, Rule

with needs("stepless's estimators need scikit-learn", "sklearn", "sklearn"):
    from sklearn.base import clone
    from sklearn.model_selection import KFold, StratifiedKFold
    from sklearn.utils import _safe_indexing
    from sklearn.utils.validation import _check_method_params


def check_rows(y: Any, folds: int) -> None:
    """Raise if a fold's model would see one class only, or if there are fewer rows than folds."""
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) == 2 and counts.min() < 2:
        raise ValueError(
            "tuning needs two rows of each class, to learn from one and be cut on the other; class"
            f' {classes[counts.argmin()]!s} has one. Give more rows, or tune a fitted estimator on others: cv="prefit".'
        )
    if counts.max() < folds:
        raise ValueError(f"cv={folds} needs a class of {folds} rows; the largest has {counts.max()}. Lower cv.")


def score_fold(
    estimator: Any, rule: Rule, X: Any, y: Any, train: Any, test: Any, params: dict[str, Any], *, keep: bool
) -> tuple[Any, Any]:
    """Score the rows ``test`` by a model fitted on the rows ``train``, and return the model too with ``keep``."""
    if train is not None:
        params = _check_method_params(X, params, indices=train)
        estimator = clone(estimator).fit(_safe_indexing(X, train), y[train], **params)
    scores = rule.read(estimator, _safe_indexing(X, test))
    rule.check_scores(scores, estimator)
    return scores, estimator if keep else None


def pool(rule: Rule, scores: list[Any], tests: list[Any], y: Any, weight: Any) -> Held:
    """Join the folds' scores, without rows of weight 0, which must not add cuts."""
    rows = np.concatenate([np.arange(len(y))[test] for test in tests])
    folds = np.repeat(np.arange(len(tests)), [len(part) for part in scores])
    held = Held(np.concatenate(scores), rule.encode(y[rows]), None if weight is None else weight[rows], rows, folds)
    return held if held.weight is None else held.part(held.weight != 0)


def divide(rule: Rule, held: Held) -> Held:
    """Divide rows that were held out together into up to five folds."""
    rows = len(held.rows) if rule.task == "multilabel" else np.unique(held.target, return_counts=True)[1].min()
    folds = np.zeros(len(held.rows), dtype=np.int64)
    if rows > 1:
        cv = (KFold if rule.task == "multilabel" else StratifiedKFold)(min(5, int(rows)))
        for fold, (_, test) in enumerate(cv.split(folds, held.target)):
            folds[test] = fold
    return held._replace(folds=folds)


def cross_fit(rule: Rule, held: Held, fold: int) -> Any:
    """Decide one fold by a rule tuned on the others; return the error if that fails."""
    here = held.folds == fold
    others = held.part(~np.isin(held.rows, held.rows[here]))  # a repeated split holds a row in several folds
    try:
        return rule.decide(held.scores[here], rule.tune(others).threshold)
    except ValueError as error:
        return error


def refit_fold(model: Any, rule: Rule, X: Any, y: Any, train: Any, test: Any, params: dict[str, Any]) -> Any:
    """Decide the rows ``test`` by the whole procedure on the rows ``train``; return the error if that fails."""
    if len(test) == 0:  # all of the fold's rows have weight 0
        return None
    try:
        model.fit(_safe_indexing(X, train), y[train], **_check_method_params(X, params, indices=train))
    except ValueError as error:
        return error
    return rule.encode(model.predict(_safe_indexing(X, test)))
