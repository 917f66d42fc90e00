"""Comparisons of every task, made of synthetic scores: nothing is fitted, so they take no time."""

import numpy as np

import stepless as sl
from stepless.tabular.outcome import Column, Difference, Entry, Outcome

NAMES = {
    "metric": "trained on f1",
    "cross_entropy_tuned": "cross-entropy + tuned threshold",
    "boosting_tuned": "boosting + tuned threshold",
    "boosting_metric": "boosting on the metric",
    "class_weighted": "class-weighted cross-entropy",
    "cost_weighted": "cost-weighted",
    "cross_entropy": "cross-entropy at ½",
}
HOSTILE = "<script>alert(1)</script>"


def make(
    task="binary", rows=600, classes=3, seed=0, contestants=5, metric="f1", weighted=False, name="credit", **changes
):
    """An `Outcome` whose contestants differ in how well their scores tell the classes apart."""
    rng = np.random.default_rng(seed)
    target, signal = _truth(task, rows, classes, rng)
    weight = rng.uniform(0.5, 2.0, rows) if weighted else None
    keys = list(NAMES)[:contestants]
    entries = [_entry(key, i, task, target, signal, metric, weight, rng) for i, key in enumerate(keys)]
    entries.sort(key=lambda entry: -entry.mean)
    labels = tuple(f"topic {i + 1}" for i in range(classes)) if task == "multilabel" else None
    made = {
        "metric": metric,
        "metric_options": {},
        "maximize": True,
        "average": None,
        "subject_to": None,
        "task": task,
        "classes": ("good", "bad") if task == "binary" else tuple(f"class {i + 1}" for i in range(classes)),
        "positive": "bad" if task == "binary" else None,
        "labels": labels,
        "columns": (
            Column("age", "number", 0, 61),
            Column("income", "number", 12, 590),
            Column("city", "category", 3, 7),
        ),
        "n_rows": rows,
        "folds": 5,
        "repeats": 2,
        "seed": seed,
        "jobs": 2,
        "entries": tuple(entries),
        "baseline": "cross_entropy_tuned",
        "rope": 0.01,
        "target": target,
        "weight": weight,
        "winner": entries[0].key,
        "verdict": f"Yes: {entries[0].name} is better than cross-entropy + tuned threshold by 0.021.",
        "warnings": ("14 rows occur twice; copies were kept in the same fold.",),
        "seconds": 31.4,
        "versions": {"python": "3.11.2", "stepless": sl.__version__, "torch": "2.13", "numpy": np.__version__},
        "name": name,
    }
    return Outcome(**{**made, **changes})


def _truth(task, rows, classes, rng):
    if task == "binary":
        target = (rng.random(rows) < 0.18).astype(np.int64)
        return target, 2.0 * target - 1.0
    if task == "multiclass":
        target = rng.choice(classes, rows, p=np.arange(classes, 0, -1) / np.arange(1, classes + 1).sum())
        return target.astype(np.int64), 2.0 * np.eye(classes)[target]
    target = (rng.random((rows, classes)) < np.linspace(0.5, 0.12, classes)).astype(np.int64)
    return target, 2.0 * target - 1.0


def _entry(key, place, task, target, signal, metric, weight, rng):
    noise = 1.0 + 0.08 * place
    share = np.bincount(target) / len(target) if task == "multiclass" else target.mean(0)
    prior = np.log(share) if task == "multiclass" else np.log(share / (1 - share))
    # what Bayes' rule makes of a signal of ±1 in noise: calibrated, and sure of too much if it is doubled
    logits = 2 * (signal + rng.normal(0, noise, signal.shape)) / noise**2 + prior
    raw = _probabilities(2.0 * logits + 0.5, task)
    probabilities = _probabilities(logits, task)
    options = {"task": task, "inputs": "probabilities", "sample_weight": weight}
    tuned = key != "cross_entropy"
    some = slice(2000)  # a search over all offsets of many rows takes seconds
    tuning = {**options, "sample_weight": None if weight is None else weight[some]}
    found = sl.tune_threshold(probabilities[some], target[some], metric, **tuning).threshold
    flat = 0.5 if task == "binary" else (0.0 if task == "multiclass" else 0.5,) * signal.shape[-1]
    threshold = found if tuned else flat
    score = sl.score(probabilities, target, metric, threshold=threshold, **options).item()
    scores = tuple((score + rng.normal(0, 0.02, 10)).tolist())
    mean = float(np.mean(scores))
    gap = Difference(mean - 0.6, (mean - 0.63, mean - 0.57), 0.7, 0.2, 0.1) if key != "cross_entropy_tuned" else None
    return Entry(
        key=key,
        name=NAMES[key],
        scores=scores,
        mean=mean,
        interval=(mean - 0.025, mean + 0.025),
        fit_seconds=0.8 + place,
        thresholds=(threshold,) * 10,
        threshold=threshold,
        difference=gap,
        probabilities=probabilities,
        raw=raw if key in ("metric", "cross_entropy_tuned", "class_weighted", "cost_weighted") else None,
    )


def _probabilities(logits, task):
    if task == "multiclass":
        exp = np.exp(logits - logits.max(1, keepdims=True))
        return exp / exp.sum(1, keepdims=True)
    return 1 / (1 + np.exp(-logits))
