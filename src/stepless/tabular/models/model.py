"""`Model`: a fitted classifier as a value, from the columns of a table to labels.

```text
 table ─features─▶ matrix ─members─▶ logits ─mean probability─▶ score ─calibration─▶ probability ─threshold─▶ label
```
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.models.calibration import Calibration
from stepless.tabular.models.members import Member
from stepless.tabular.models.preprocessing import Features
from stepless.tabular.tables.frames import Table
from stepless.tasks import Task

Floats = NDArray[np.float64]


def library_versions() -> dict[str, str]:
    """The versions of the libraries that compute a model, by name."""
    found = {"stepless": sys.modules["stepless"].__version__, **{name: version(name) for name in ("torch", "numpy")}}
    return {"python": platform.python_version(), **found}


#: The most numbers in the feature matrix of one chunk of rows, and the fewest and the most rows of a chunk. The
#: activations of a few small nets for a thousand rows fit into a processor's cache; for ten thousand they do not.
_CHUNK_NUMBERS = 2**20
_CHUNK_ROWS = (64, 1024)


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted classifier: preprocessing, members, calibration, and the rule that decides.

    The score of a row is the logit (multiclass: the logarithm) of the weighted mean of the members' probabilities. A
    member's weight is shared equally by its nets. The calibration maps scores to probabilities. A row is positive, or
    has a label, if its probability is at least the threshold; its class is argmax(log p − offset).

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        classes: The labels of the classes, in sorted order; multilabel: the names or numbers of the labels.
        positive: Binary: the index of the positive class. Otherwise None.
        metric: The metric that the model was made for, as text.
        features: The map of a table to the matrix that members read.
        members: The models that score rows.
        weights: A weight for each member; they sum to 1.
        calibration: The map of scores to probabilities.
        threshold: Binary: the threshold, ±inf if the decision is always the same. Multilabel: one for each label.
            Multiclass: the offset of each class.
        versions: The versions of the libraries that made the model, by name.
        settings: Anything else to be saved with the model; JSON.

    Example:
        >>> from stepless.tabular.models.calibration import Identity
        >>> from stepless.tabular.tables.frames import read_table
        >>> from stepless.tabular.models.members import NetMember
        >>> from stepless.tabular.networks.nets import Architecture, Members
        >>> from stepless.tabular.models.preprocessing import fit_features
        >>> table = read_table([[1.0, "a"], [2.0, "b"], [4.0, None]])
        >>> features = fit_features(table)
        >>> nets = NetMember.of(Members(Architecture("linear", features.width, outputs=1), n=2, seeds=(0, 1)))
        >>> model = Model(
        ...     "binary", np.array(["no", "yes"]), 1, "f1", features, (nets,), (1.0,), Identity("binary"), threshold=0.4
        ... )
        >>> model.probabilities(table).shape
        (3, 2)
        >>> bool(((model.labels(table) == "yes") == (model.probabilities(table)[:, 1] >= 0.4)).all())
        True
    """

    task: Task
    classes: NDArray[Any]
    positive: int | None
    metric: str
    features: Features
    members: tuple[Member, ...]
    weights: tuple[float, ...]
    calibration: Calibration
    threshold: float | tuple[float, ...]
    versions: Mapping[str, str] = field(default_factory=library_versions)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_classes()
        self._check_members()
        self._check_threshold()

    @property
    def outputs(self) -> int:
        """The number of scores per row: 1 for a binary task, or one for each class or label."""
        return 1 if self.task == "binary" else len(self.classes)

    @property
    def cut(self) -> Floats:
        """What `decision` subtracts: the threshold, with −1 or 2 for an infinite one, or the offsets.

        Either decides the same for every probability, but an infinite margin would keep no two rows apart, and metrics
        of the ranking, which read margins, refuse it.
        """
        cut = np.asarray(self.threshold, np.float64)
        return cut if self.task == "multiclass" else np.clip(cut, -1.0, 2.0)

    def scores(self, table: Table) -> Floats:
        """The ensemble's scores: ``(N,)`` for a binary task, otherwise ``(N, classes or labels)``.

        As in every method that takes a table, rows are processed in chunks, so that the memory beside the table and the
        result does not grow with them.
        """
        return np.concatenate(list(self._chunks(table)))

    def probabilities(self, table: Table) -> Floats:
        """Calibrated probabilities of the classes, ``(N, classes)``; multilabel: of each label."""
        return np.concatenate([self.probabilities_of(s) for s in self._chunks(table)])

    def decision(self, table: Table) -> Floats:
        """The margin of each decision: `decide` says yes if it is at least 0.

        Binary ``(N,)`` and multilabel ``(N, labels)``: probability − threshold, whose sign is exact in floating point;
        see `cut`. Multiclass ``(N, classes)``: log p − offset, of which the largest decides.
        """
        return np.concatenate([self.decision_of(self.probabilities_of(s)) for s in self._chunks(table)])

    def decide(self, table: Table) -> NDArray[Any]:
        """Yes or no for each row, or each row and label; multiclass: the index of the class, the first among equals."""
        chunks = self._chunks(table)
        return np.concatenate([self.decide_of(self.decision_of(self.probabilities_of(s))) for s in chunks])

    def labels(self, table: Table) -> NDArray[Any]:
        """The label of each row; multilabel: 0 or 1 for each row and label."""
        return self.labels_of(self.decide(table))

    def probabilities_of(self, scores: Floats) -> Floats:
        """`probabilities`, from `scores`."""
        probability = self.calibration.probabilities(scores)
        if self.task != "binary":
            return probability
        both = (1 - probability, probability)
        return np.stack(both if self.positive == 1 else both[::-1], 1)

    def decision_of(self, probabilities: Floats) -> Floats:
        """`decision`, from `probabilities`."""
        if self.task == "binary":
            return probabilities[:, self.positive] - self.cut
        if self.task == "multilabel":
            return probabilities - self.cut
        with np.errstate(divide="ignore"):  # a class of probability 0 has −inf
            return np.log(probabilities) - self.cut

    def decide_of(self, decision: Floats) -> NDArray[Any]:
        """`decide`, from `decision`."""
        return np.argmax(decision, 1) if self.task == "multiclass" else decision >= 0

    def labels_of(self, decided: NDArray[Any]) -> NDArray[Any]:
        """`labels`, from `decide`."""
        if self.task == "multilabel":
            return decided.astype(np.int64)
        if self.task == "binary":
            decided = (decided == (self.positive == 1)).astype(np.intp)
        return self.classes[decided]

    def _chunks(self, table: Table) -> Iterator[Floats]:
        """The scores of one chunk of rows after another."""
        rows = min(max(_CHUNK_NUMBERS // self.features.width, _CHUNK_ROWS[0]), _CHUNK_ROWS[1])
        for start in range(0, table.rows, rows):
            part = table.part(start, min(start + rows, table.rows))
            yield self._score(self.features.matrix(part))

    def rehearse(self) -> None:
        """Score two rows of zeros; raise a ValueError if members and calibration do not fit together."""
        scores = self._score(np.zeros((2, self.features.width), np.float32))
        found = np.shape(self.calibration.probabilities(scores))
        if found != scores.shape:
            raise ValueError(f"the calibration must give a probability for each score, {scores.shape}; got {found}.")

    def _score(self, matrix: NDArray[np.float32]) -> Floats:
        """The scores of the rows of a matrix."""
        logits, weights = [], []
        for place, (member, weight) in enumerate(zip(self.members, self.weights, strict=True)):
            own = np.asarray(member.scores(matrix), np.float64)
            if own.ndim != 3 or own.shape[1:] != (len(matrix), self.outputs):
                raise ValueError(
                    f"a member must give scores of shape (nets, {len(matrix)}, {self.outputs}); member {place} gave"
                    f" {own.shape}."
                )
            if not np.isfinite(own).all():
                raise ValueError(
                    f"scores must be finite; member {place} gave some that are not. Look for rows with values far"
                    " outside those of the training data, or for weights that diverged."
                )
            logits.append(own)
            weights += [weight / len(own)] * len(own)
        scores = mean_score(np.concatenate(logits), np.array(weights), self.task)
        return scores[:, 0] if self.task == "binary" else scores

    def _check_classes(self) -> None:
        if self.task not in get_args(Task):
            raise ValueError(f"task must be one of {', '.join(map(repr, get_args(Task)))}; got {self.task!r}.")
        classes = self.classes
        if not isinstance(classes, np.ndarray) or classes.ndim != 1:
            raise ValueError(f"classes must be a one-dimensional array of labels; got {type(classes).__name__}.")
        least = 1 if self.task == "multilabel" else 2
        if len(classes) < least or (self.task == "binary" and len(classes) > 2):
            wanted = {"binary": "two classes", "multiclass": "two classes or more", "multilabel": "a label or more"}
            raise ValueError(f"a {self.task} model needs {wanted[self.task]}; got {len(classes)}.")
        if len(set(classes.tolist())) < len(classes):
            raise ValueError(f"classes must be distinct; got {classes.tolist()[:10]}.")
        if self.positive not in ((0, 1) if self.task == "binary" else (None,)):
            raise ValueError(
                "positive must be the place of the positive class, 0 or 1, for a binary model and None for any other;"
                f" got {self.positive!r} for a {self.task} model."
            )

    def _check_members(self) -> None:
        if not self.members or len(self.members) != len(self.weights):
            raise ValueError(
                f"a model needs members and a weight for each; got {len(self.members)} members and"
                f" {len(self.weights)} weights."
            )
        # NaN fails the first comparison
        if not all(w >= 0 for w in self.weights) or not math.isclose(sum(self.weights), 1.0, abs_tol=1e-9):
            raise ValueError(f"the members' weights must be at least 0 and sum to 1; got {self.weights}.")
        for place, member in enumerate(self.members):
            if (member.inputs, member.outputs) != (self.features.width, self.outputs):
                raise ValueError(
                    f"members must take {self.features.width} features and give {self.outputs} scores; member {place}"
                    f" takes {member.inputs} and gives {member.outputs}."
                )

    def _check_threshold(self) -> None:
        given = self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)
        if isinstance(self.threshold, tuple) != (self.task != "binary") or len(given) != self.outputs:
            wanted = {
                "binary": "one number",
                "multiclass": "an offset for each class",
                "multilabel": "one for each label",
            }
            raise ValueError(
                f"the threshold of a {self.task} model must be {wanted[self.task]}; got {self.threshold!r}."
            )
        if any(math.isnan(t) for t in given):
            raise ValueError(f"a threshold must be a number; got {self.threshold!r}.")
        if self.task == "multiclass" and any(math.isinf(t) for t in given):
            raise ValueError(f"class offsets must be finite; got {self.threshold!r}.")


def mean_score(logits: Floats, weights: Floats, task: Task) -> Floats:
    """The score of an ensemble: the logit, or for several classes the logarithm, of its members' mean probability.

    It is computed from logarithms, where a probability never rounds to 0 or 1, so finite logits give a finite score.

    Args:
        logits: ``(n, N, K)``, of each member for each row; K = 1 for a binary task.
        weights: ``(n,)``, with a sum of 1.
        task: Multiclass logits go through a softmax over the last dimension, others through a sigmoid.

    Example:
        >>> mean_score(np.array([[[1.0]], [[-1.0]], [[800.0]]]), np.array([0.5, 0.5, 0.0]), "binary")
        array([[0.]])
    """
    logits, weights = logits[weights > 0], weights[weights > 0]
    if task == "multiclass":
        return _log_mean(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True), weights)
    return _log_mean(-np.logaddexp(0.0, -logits), weights) - _log_mean(-np.logaddexp(0.0, logits), weights)


def _log_mean(logs: Floats, weights: Floats) -> Floats:
    """The logarithm of the weighted mean over the first dimension, from logarithms."""
    largest = logs.max(0)
    return largest + np.log(np.tensordot(weights, np.exp(logs - largest), 1))
