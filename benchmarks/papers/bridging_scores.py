"""What *Bridging the Gap* reports of a network: scores at each threshold, at a tuned one, and of the ranking."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from bridging_data import Problem
from stacked import Parts, Trained
from torch import Tensor

import stepless as sl

#: By the names of the results. The paper's "AUROC" is that of the decisions at a threshold: the mean of the two rates.
MEASURES = {
    "f1": sl.METRICS["f1"],
    "accuracy": sl.METRICS["accuracy"],
    "auroc": sl.METRICS["balanced_accuracy"],
    "f2": sl.METRICS["f_beta"].bind(beta=2.0),
    "f3": sl.METRICS["f_beta"].bind(beta=3.0),
    "precision": sl.METRICS["precision"],
    "recall": sl.METRICS["recall"],
}
#: What a tuned threshold is tuned for.
TUNED = ("f1", "accuracy", "f2", "f3")


def from_counts(metric: sl.Metric, tp: Tensor, fp: Tensor, fn: Tensor, tn: Tensor) -> Tensor:
    """A metric of the counts of yes/no decisions; those that read all classes at once are given both."""
    if metric.kind == "class":
        return metric(tp, fp, fn, tn)
    return metric(*(torch.stack(both, -1) for both in ((tp, tn), (fp, fn), (fn, fp), (tn, tp))))


def over_thresholds(scores: Tensor, target: Tensor, taus: list[float]) -> dict[str, float]:
    """The mean over thresholds of each measure; positive where score > τ."""
    yes, cuts = target > 0.5, torch.tensor(taus, dtype=torch.float64)[:, None]
    decided = scores.double()[None] > cuts
    counts = [(decided & yes).sum(1), (decided & ~yes).sum(1), (~decided & yes).sum(1), (~decided & ~yes).sum(1)]
    return {name: float(from_counts(metric, *(c.double() for c in counts)).mean()) for name, metric in MEASURES.items()}


def scores_of(trained: Trained, target: Tensor, parts: Parts, taus: list[float], names: list[str]) -> dict[str, Any]:
    """For each loss: lists over trials of every number there is."""
    found: dict[str, Any] = {}
    for place, name in enumerate(names):
        cell: dict[str, list[float]] = {}

        def keep(key: str, value: float, cell: dict[str, list[float]] = cell) -> None:
            cell.setdefault(key, []).append(value)

        for trial in range(trained.test.shape[1]):
            val, test = trained.val[place, trial], trained.test[place, trial]
            y_val, y_test = (target[rows[trial]].flatten() for rows in (parts.val, parts.test))
            for key, value in over_thresholds(test.sigmoid(), y_test, taus).items():
                keep(key, value)
            if name in {"bce", "released_wmw"}:  # the released code cuts their logits, as if they were probabilities
                for key, value in over_thresholds(test, y_test, taus).items():
                    keep(f"{key}_of_logits", value)
            keep("auroc_of_scores", float(sl.score(test, y_test, "auroc")))
            for key in TUNED:
                # neither of the two needs more than torch's own precision: ties are ties in both
                tuned = sl.tune_threshold(val.numpy(), y_val.numpy(), MEASURES[key])
                keep(f"{key}_tuned", _at(test, y_test, tuned.threshold, key))
                keep(f"{key}_half", _at(test, y_test, 0.0, key))
        cell["epochs"] = trained.epochs[place].tolist()
        cell["seconds"] = [trained.seconds / trained.epochs.size]
        found[name] = cell
    return found


def _at(scores: Tensor, target: Tensor, cut: float, measure: str) -> float:
    decided, yes = scores >= cut, target > 0.5
    counts = (decided & yes, decided & ~yes, ~decided & yes, ~decided & ~yes)
    return float(from_counts(MEASURES[measure], *(c.sum().double() for c in counts)))


def classifier(problem: Problem, trials: int, metric: str, options: dict[str, float]) -> dict[str, Any]:
    """`MetricClassifier` as it comes, on training and validation rows together; its own decisions on the test rows."""
    cell: dict[str, list[float]] = {}
    for trial in range(trials):
        known = torch.cat([problem.parts.train[trial], problem.parts.val[trial]])
        test = problem.parts.test[trial]
        model = sl.MetricClassifier(metric=metric, pos_label=1, metric_options=options or None, random_state=trial)
        model.fit(problem.matrix[known].numpy(), problem.target[known].numpy().astype(np.int64))
        decided = torch.from_numpy(model.predict(problem.matrix[test].numpy())).double()
        chances = model.predict_proba(problem.matrix[test].numpy())[:, 1]
        y = problem.target[test]
        for key, value in over_thresholds(decided, y, [0.5]).items():
            cell.setdefault(key, []).append(value)
        cell.setdefault("auroc_of_scores", []).append(
            float(sl.score(chances, y.numpy(), "auroc", inputs="probabilities"))
        )
    return cell


def has_sklearn() -> bool:
    """Whether `MetricClassifier` can run here."""
    return importlib.util.find_spec("sklearn") is not None
