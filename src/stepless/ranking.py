"""Metrics of a ranking as losses: AUROC, average precision and their relatives.

A ranking has no decisions and no counts that merge, so it does not use the path of `stepless.scoring`. Its exact score
is read off the sorted samples, and equals scikit-learn's if scikit-learn has it. Its loss is a smooth surrogate from
`stepless.ordering`. Both cost one sort, O(n log n), and O(n) memory.

Binary and multilabel scores are ranked as they are, multiclass scores one class against the rest. The loss compares
log-odds, log p − log(1 − p). For binary scores these are the logits themselves. For K classes they are monotone in p
and unbounded, as a margin requires. Two classes treated as multiclass are a binary task and its mirror image, averaged.
The score ranks probabilities, as scikit-learn does with ``multi_class="ovr"``. If the inputs are probabilities, the
score ranks them as they are, and the loss converts them to log-odds, as far as their dtype tells them from 0 and 1.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from stepless import ordering
from stepless.formula_text import names
from stepless.metrics import METRICS
from stepless.numerics import as_tuple, constant, is_whole, ratio
from stepless.ordering import Ranked, rank
from stepless.registry import SETTINGS, Registry, snake_case
from stepless.tasks import Batch, Inputs, Task, as_tensor, check_classes, check_task, check_values, read

Scale = Literal["log-odds", "probabilities"]

#: Scores are clamped to ±this; beyond it, float64 loses the margin in the prefix sums.
_FARTHEST = 1e6

#: The valid values of each option, in words and as a predicate.
_OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "margin": ("be a number above 0", lambda v: 0 < v < math.inf),
    "damping": ("be a number that is not negative", lambda v: 0 <= v < math.inf),
    "anchor": ("be a share in [0, 1)", lambda v: 0 <= v < 1),
    "max_fpr": ("lie in (0, 1]", lambda v: 0 < v <= 1),
    "precision": ("lie in (0, 1]", lambda v: 0 < v <= 1),
    "k": ("be an integer of at least 1", lambda v: isinstance(v, int) and v >= 1),
    "power": ("be an integer of at least 1", lambda v: isinstance(v, int) and v >= 1),
    "delta": ("lie in [0, 0.5]", lambda v: 0 <= v <= 0.5),
}


@dataclass(frozen=True)
class Ranking:
    """A metric of the ranking: its exact score, and the smooth surrogate used for training.

    Attributes:
        name: The metric's name.
        exact: ``f(ranked, **options)``, the score of each row of a `stepless.ordering.Ranked`.
        surrogate: ``f(ranked, **options)``, the loss of each row.
        scale: What the surrogate compares: ``"log-odds"`` or ``"probabilities"``.
        source: Where it was published.
        options: The keyword arguments fixed by :meth:`bind`, as pairs.
    """

    name: str
    exact: Callable[..., Tensor] = field(repr=False)
    surrogate: Callable[..., Tensor] = field(repr=False)
    scale: Scale = field(default="log-odds", repr=False)
    source: str = field(default="", repr=False)
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the exact score's docstring."""
        return (inspect.getdoc(self.exact) or "").partition("\n")[0]

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of score and loss with their default values; `inspect.Parameter.empty` if one is required."""
        return {**_defaults(self.exact), **_defaults(self.surrogate)}

    def bind(self, *, training: bool = True, **options: Any) -> Ranking:
        """Return the ranking with options fixed, as in ``RANKINGS["partial_auroc"].bind(max_fpr=0.1)``.

        With ``training=False``, an option of the surrogate alone is an error, because it does not change the score.
        """
        known = self.defaults if training else _defaults(self.exact)
        given = {**dict(self.options), **{name: as_tuple(value) for name, value in options.items()}}
        for name in options:
            if name not in known:
                raise TypeError(self._no_option(name, known))
            if name in _OPTIONS and not (given[name] is None and known[name] is None):
                _check_option(name, given[name])
        for name, default in known.items():
            if default is inspect.Parameter.empty and name not in given:
                raise TypeError(f"metric {self.name!r} needs the option {name!r}, as in {_example(self.name, name)}.")
        return replace(self, options=tuple(sorted(given.items())))

    def score(self, ranked: Ranked) -> Tensor:
        """Compute the exact score of each row; NaN where it is undefined."""
        return self.exact(ranked, **self._options_of(self.exact))

    def loss(self, ranked: Ranked) -> Tensor:
        """Compute the surrogate loss of each row."""
        return self.surrogate(ranked, **self._options_of(self.surrogate))

    def _options_of(self, function: Callable[..., Tensor]) -> dict[str, Any]:
        # defaults are passed, too: torch.compile makes a variable of a default that differs from the last function's
        known = _defaults(function)
        return {**known, **{name: value for name, value in self.options if name in known}}

    def _no_option(self, name: str, known: dict[str, Any]) -> str:
        if name in self.defaults:
            return f"option {name!r} of {self.name!r} is for its loss and has no effect on the score; leave it out."
        near = difflib.get_close_matches(name, [*known, *SETTINGS], n=2)
        hint = f"did you mean {' or '.join(map(repr, near))}?"
        if name in SETTINGS:
            hint = "it is a setting of losses of decisions, which a ranking does not make; leave it out."
        elif not near:
            hint = f"it has {', '.join(map(repr, known))}." if known else "it has none."
        return f"metric {self.name!r} has no option {name!r}; {hint}"


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _check_option(name: str, value: Any) -> None:
    wanted, holds = _OPTIONS[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not holds(value):
        raise ValueError(f"{name} must {wanted}; got {value!r}.")


def _example(metric: str, option: str) -> str:
    value = {"max_fpr": 0.1, "precision": 0.9, "k": 100}.get(option, "…")
    return f'MetricLoss("{metric}", {option}={value})'


RANKINGS: Registry[Ranking] = Registry("ranking")
for _exact, _surrogate, _source, _aliases in (
    (ordering.auroc, ordering.anchored_pairs, "Hanley and McNeil 1982", ("auc", "roc_auc")),
    (ordering.average_precision, ordering.log_precisions, "Buckley and Voorhees 2000", ("ap", "auprc", "pr_auc")),
    (ordering.partial_auroc, ordering.highest_pairs, "McClish 1989", ("pauc", "partial_auc")),
    (ordering.recall_at_precision, ordering.cut_at_precision, "Eban et al. 2017", ()),
    (ordering.precision_at_k, ordering.cut_at_k, "Joachims 2005", ()),
):
    RANKINGS.add(_exact.__name__, Ranking(_exact.__name__, _exact, _surrogate, source=_source), _aliases)


def is_ranking(metric: Any) -> bool:
    """Whether what the user gave as a metric is a ranking.

    >>> is_ranking("roc_auc"), is_ranking("f1")
    (True, False)
    """
    return isinstance(metric, Ranking) or (isinstance(metric, str) and metric in RANKINGS)


METRICS.reserve((*RANKINGS, *RANKINGS.aliases))


def find_ranking(metric: Any) -> Ranking | None:
    """Find the ranking that the user means, or None if it is a metric of counts; any other name is an error.

    >>> find_ranking("roc_auc")
    Ranking(name='auroc', options=())
    >>> find_ranking("f1") is None
    True
    """
    if isinstance(metric, Ranking):
        return metric
    name = metric.strip() if isinstance(metric, str) else ""
    a_name = name.isidentifier() or snake_case(name) in RANKINGS
    if name in METRICS or not a_name or name in names():
        return None
    if name in RANKINGS:
        return RANKINGS[name]
    both: Registry[None] = Registry("metric")
    for registry in (METRICS, RANKINGS):
        for known in (*registry, *registry.aliases):
            both.add(known, None)
    raise ValueError(both.unknown(name[:60]))


# ---------------------------------------------------------------------------------------------------------------------
# From tensors to losses and scores
# ---------------------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The samples of a ranking, not sorted; each field is ``(classes, n)``.

    Attributes:
        scores: What is compared.
        positive: The weight of each sample as a positive.
        negative: Its weight as a negative.
    """

    scores: Tensor
    positive: Tensor
    negative: Tensor

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate the samples of all parts."""
        return cls(*(torch.cat(each, dim=-1) for each in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Ranker:
    """A ranking and everything else that is known before the first batch."""

    ranking: Ranking
    task: Task = "binary"
    average: Literal["macro", "none"] = "macro"
    inputs: Inputs = "logits"
    ignore_index: int | None = None
    weight: tuple[float, ...] | None = None

    def read(self, input: Tensor, target: Tensor, sample_weight: Tensor | None, *, exact: bool = False) -> Batch:
        """Check shapes and dtypes, and bring the batch into the package's own form."""
        class_weight = self.weight if self.task == "multiclass" else None
        return read(
            input, target, sample_weight, task=self.task, inputs=self.inputs,
            ignore_index=self.ignore_index, class_weight=class_weight, exact=exact,
        )  # fmt: skip

    def rows(self, batch: Batch) -> Rows:
        """Return what the loss needs of each sample; rows of several batches can be joined."""
        scores = (_log_odds if self.ranking.scale == "log-odds" else _probabilities)(batch, self.task)
        try:
            return Rows(_rows(scores, self.task), *self._weights(batch))
        except (IndexError, RuntimeError):
            if not torch.compiler.is_compiling():  # an error that names the class that is out of range
                check_classes(batch)
            raise

    def loss(self, rows: Rows) -> Tensor:
        """Compute the mean loss of the classes that have both positives and negatives; 0 if none has."""
        if rows.scores.numel() == 0:
            return rows.scores.sum() * 0.0
        ranked = rank(rows.scores.clamp(-_FARTHEST, _FARTHEST), rows.positive, rows.negative)
        losses = self.ranking.loss(ranked)
        positives, negatives = ranked.totals()
        loss = self._mean(losses, positives * negatives != 0, 0.0)
        # NaN is sorted to the end, where prefix sums may miss it; the loss must be NaN nevertheless
        return (loss + 0.0 * ranked.depth[..., -1].detach().sum()).to(rows.scores.dtype)

    def score(self, input: Any, target: Any, sample_weight: Any = None) -> Tensor:
        """Compute the exact score in float64, after a check of the values; NaN if no class has one."""
        input, target = as_tensor(input), as_tensor(target, "target")
        sample_weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight")
        with torch.no_grad():
            batch = self.read(input, target, sample_weight, exact=True)
            self.check(input, target, sample_weight)
            if batch.scores.numel() == 0:
                shape = batch.scores.shape[1:2] if self.average == "none" else ()
                return torch.full(shape, math.nan, dtype=batch.dtype)
            scores = _probabilities(batch, self.task) if self.task == "multiclass" else batch.scores
            scored = self.ranking.score(rank(_rows(scores, self.task), *self._weights(batch)))
            return scored if self.average == "none" else self._mean(scored, ~scored.isnan(), math.nan)

    def check(self, input: Tensor, target: Tensor, sample_weight: Tensor | None) -> None:
        """Raise for invalid values, such as NaN or targets out of range."""
        check_values(input, target, sample_weight, task=self.task, inputs=self.inputs, ignore_index=self.ignore_index)

    def settings(self) -> str:
        """Describe what differs from the defaults."""
        ranking, plain = self.ranking, RANKINGS.get(self.ranking.name)
        shown = [repr(ranking.name)]
        if plain is None or ranking.surrogate is not plain.surrogate:
            shown.append(f"surrogate={getattr(ranking.surrogate, '__name__', ranking.surrogate)}")
        shown += [f"{name}={value!r}" for name, value in ranking.options]
        defaults = Ranker(ranking)
        names = ("task", "inputs", "ignore_index", "weight")
        shown += [f"{k}={getattr(self, k)!r}" for k in names if getattr(self, k) != getattr(defaults, k)]
        return ", ".join(shown)

    def _weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The weight of each sample as a positive and as a negative of each class, ``(classes, n)``."""
        target, weight = batch.target, batch.entry_weight()
        whole: Tensor | float = 1.0
        if self.task == "multiclass":
            if batch.indices():
                target = torch.zeros_like(batch.scores, dtype=batch.dtype).scatter(1, target.unsqueeze(1), 1.0)
            else:
                whole = target.sum(1, keepdim=True)
            weight = None if weight is None else weight.unsqueeze(1)
        parts = (target, whole - target)
        if weight is not None:
            parts = (target * weight, (whole - target) * weight)
        return _rows(parts[0], self.task), _rows(parts[1], self.task)

    def _mean(self, values: Tensor, defined: Tensor, otherwise: float) -> Tensor:
        share = defined.to(values.dtype)
        if self.task == "multilabel" and self.weight is not None:
            if len(self.weight) != len(values):
                raise ValueError(
                    f"weight must have one entry for each of the {len(values)} labels; got {len(self.weight)}."
                )
            share = share * constant(self.weight, values)
        return ratio((torch.where(defined, values, 0.0) * share).sum(), share.sum(), otherwise)


def _rows(values: Tensor, task: Task) -> Tensor:
    """Return one row per class, ``(classes, n)``: pixels are samples."""
    rows = values.reshape(1, -1) if task == "binary" else values.movedim(1, 0).reshape(values.shape[1], -1)
    return rows.contiguous()  # searchsorted is slow on strided rows


def _probabilities(batch: Batch, task: Task) -> Tensor:
    if not batch.logits:
        return batch.scores
    return batch.scores.softmax(1) if task == "multiclass" else batch.scores.sigmoid()


def _log_odds(batch: Batch, task: Task) -> Tensor:
    """Return log p − log(1 − p), finite in value and gradient also where p rounds to 0 or 1."""
    scores = batch.scores
    if not batch.logits:
        limits = torch.finfo(scores.dtype)
        return scores.clamp(min=limits.tiny).log() - (1 - scores).clamp(min=limits.eps / 2).log()
    if task != "multiclass":
        return scores
    # 1 − p is exact enough, except for the likeliest class, where it is computed as the sum of the others
    top = scores.argmax(1, keepdim=True)
    others = scores.scatter(1, top, -torch.inf)
    # if −inf rules out all other classes, logsumexp would have a NaN gradient
    others = others.masked_fill((others == -torch.inf).all(1, keepdim=True), torch.finfo(scores.dtype).min)
    others = others.logsumexp(1, keepdim=True)
    log_p = scores.log_softmax(1)
    below = log_p.scatter(1, top, -1.0)  # replaced below; any value whose gradient is finite will do
    odds = below - torch.log1p(-below.exp())
    return odds.scatter(1, top, scores.gather(1, top) - others)


# ---------------------------------------------------------------------------------------------------------------------
# Settings
# ---------------------------------------------------------------------------------------------------------------------

#: Settings that only metrics of counts have, and their neutral values.
_WITHOUT_EFFECT: dict[str, Any] = {
    "step": None, "threshold": None, "overlap": "expected", "subject_to": None, "per_image": False, "blend": 0.0,
    "cross_entropy": None, "schedule": None, "memory": None, "sync": None, "gradients": "mean",
}  # fmt: skip


def make_ranker(
    metric: str | Ranking,
    options: dict[str, Any],
    *,
    training: bool = True,
    task: str = "binary",
    average: str | None = None,
    inputs: str = "logits",
    ignore_index: int | None = None,
    weight: Any = None,
    maximize: bool | None = None,
    **settings: Any,
) -> Ranker:
    """Check the settings of a loss (or with ``training=False`` of a score); one that would do nothing is an error."""
    ranking = find_ranking(metric)
    if ranking is None:
        raise ValueError(RANKINGS.unknown(str(metric)))
    bound = ranking.bind(training=training, **options)
    check_task(task, inputs)
    if maximize is False:
        raise ValueError(f"metric {ranking.name!r} is always maximised; maximize= is for formulas of your own.")
    for name, value in settings.items():
        nothing = _WITHOUT_EFFECT[name]
        if name == "blend" and value is None:
            continue
        if (value is not None) if nothing is None else value != nothing:
            raise ValueError(_no_effect(ranking, name, value))
    if average is not None and task == "binary":
        raise ValueError(
            f"average={average!r} has no effect on a binary task, which has one class to score; leave it out."
        )
    if average not in (None, "macro") and (training or average != "none"):
        each = "" if training else ", or with average='none' one score per class"
        raise ValueError(f"{ranking.name!r} of several classes is their macro mean{each}; got average={average!r}.")
    if ignore_index is not None and not is_whole(ignore_index):
        raise TypeError(f"ignore_index must be an integer; got {ignore_index!r}.")
    return Ranker(bound, task, average or "macro", inputs, ignore_index, _class_weight(weight, task))  # type: ignore[arg-type]


def _no_effect(ranking: Ranking, name: str, value: Any) -> str:
    metric, setting = repr(ranking.name), f"{name}={value!r}"
    if name == "sync":
        return (
            f"{setting} asks for the loss of all ranks' batches together, but {metric} compares samples with one"
            " another and has no sums that merge; pass sync=False for the loss of each rank's own batch."
        )
    if name in ("blend", "cross_entropy"):
        instead = "add cross-entropy to the loss yourself, or leave it out"
        if "anchor" in ranking.defaults:
            instead = "pass anchor=, its own share of cross-entropy, or leave it out"
        return f"{setting} has no effect on {metric}; {instead}."
    if name in ("memory", "gradients"):
        return f"{setting} has no effect on {metric}, which has no sums of batches that merge; leave it out."
    return f"{setting} has no effect on {metric}, which ranks all samples and decides nothing about any; leave it out."


def _class_weight(weight: Any, task: str) -> tuple[float, ...] | None:
    if weight is None:
        return None
    if task == "binary":
        raise ValueError("weight is for the classes of multiclass and multilabel tasks; for binary use sample_weight.")
    values = as_tuple(weight)
    if not isinstance(values, tuple) or not all(isinstance(w, (int, float)) and 0 <= w < math.inf for w in values):
        raise ValueError(f"weight must be a flat sequence of finite numbers that are not negative; got {weight!r}.")
    return tuple(map(float, values))


def score_ranking(
    ranking: Ranking, input: Any, target: Any, *, sample_weight: Any = None, options: dict[str, Any], **settings: Any
) -> Tensor:
    """The exact score of a ranking: what `stepless.score` gives for a name of `RANKINGS`.

    >>> score_ranking(RANKINGS["auroc"], [2.0, -1.0, 0.5, -3.0], [1, 1, 0, 0], options={}).item()
    0.75
    """
    return make_ranker(ranking, options, training=False, **settings).score(input, target, sample_weight)
