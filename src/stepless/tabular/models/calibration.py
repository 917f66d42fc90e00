"""Strictly increasing maps from scores to probabilities; `stepless.tabular.models.calibrating` fits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: The largest calibrated logit: 1 − σ(20) is 2e-9, where doubles next to 1 still differ.
CAP = 20.0
#: Scores up to this are used as they are; larger ones are bent, so that an infinite one becomes twice this.
BEND = 20.0
#: Larger scores, and infinite ones, are clipped to this.
LARGEST_SCORE = 1e300
#: The distance behind the best class, in nats, from which `Temperature` bends towards the cap.
STRAIGHT = 10.0
#: The most points of a curve that a file may ask for.
_MOST_POINTS = 1000


class Calibration:
    """A map of scores to probabilities: `Curves` (binary, multilabel), `Temperature` (multiclass) or `Identity`.

    It keeps the order of any two scores (for multiclass, of the classes of a row), and no probability is 0 or 1, not
    even for an infinite score.
    """

    kind: ClassVar[str]

    def probabilities(self, scores: Any) -> Floats:
        """Probabilities in the shape of the scores: logits, or for multiclass ``(N, K)`` log-probabilities."""
        raise NotImplementedError

    def inverse(self, probabilities: Any) -> Floats:
        """The scores with these probabilities; for multiclass log-probabilities up to a constant per row."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The map as a dict of text, numbers and lists, which `from_json` reads."""
        raise NotImplementedError

    @staticmethod
    def from_json(entry: Any) -> Calibration:
        """Read the map that `to_json` wrote; raise a ValueError for anything else.

        Example:
            >>> Calibration.from_json({"kind": "temperature", "temperature": 2.0})
            Temperature(temperature=2.0)
        """
        kinds = {"identity": Identity, "curves": Curves, "temperature": Temperature}
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"a calibration must be a dict whose kind is one of {list(kinds)}; got {str(entry)[:60]}.")
        return kinds[kind]._read(entry)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Identity(Calibration):
    """No calibration: σ of logits, softmax of log-probabilities, both kept off 0 and 1.

    Args:
        task: ``"binary"``, ``"multilabel"`` or ``"multiclass"``.

    Example:
        >>> Identity().probabilities([0.0, 2.0]).round(4)
        array([0.5   , 0.8808])
    """

    task: str = "binary"
    kind: ClassVar[str] = "identity"

    def __post_init__(self) -> None:
        if self.task not in ("binary", "multilabel", "multiclass"):
            raise ValueError(f"task must be binary, multilabel or multiclass; got {self.task!r}.")

    @property
    def plain(self) -> Curve | Temperature:
        """The equal map of one label, or of all classes."""
        return Temperature(1.0) if self.task == "multiclass" else PLAIN

    def probabilities(self, scores: Any) -> Floats:
        return self.plain.probabilities(scores)

    def inverse(self, probabilities: Any) -> Floats:
        return self.plain.inverse(probabilities)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "task": self.task}

    @classmethod
    def _read(cls, entry: dict[str, Any]) -> Identity:
        _keys(entry, ("kind", "task"))
        return cls(entry["task"])


@dataclass(frozen=True)
class Curve:
    """A strictly increasing map of a score to a logit, linear between points.

    Scores beyond ±`BEND` are bent first, by 20 + 20·e/(e + 20) with e = score − 20, so that an infinite score becomes
    40, and the points can span all scores.

    Args:
        points: Where the pieces meet, strictly increasing from −40 (a score of −∞) to 40.
        logits: The calibrated logits there, strictly increasing and inside ±`CAP`.

    Example:
        >>> curve = Curve((-40.0, -1.0, 1.0, 40.0), (-5.0, -0.5, 0.5, 5.0))
        >>> curve.probabilities([-np.inf, 0.0, 1.0, np.inf]).round(3)
        array([0.007, 0.5  , 0.622, 0.993])
    """

    points: tuple[float, ...]
    logits: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.points) != len(self.logits) or not 2 <= len(self.points) <= _MOST_POINTS:
            raise ValueError(
                f"a curve needs a logit for each of 2 to {_MOST_POINTS} points; got {len(self.points)} points and"
                f" {len(self.logits)} logits."
            )
        if (self.points[0], self.points[-1]) != (-2 * BEND, 2 * BEND):
            raise ValueError(f"a curve's points must go from {-2 * BEND} to {2 * BEND}; got {self.points[:1]} …")
        steps = (*np.diff(self.points), *np.diff(self.logits))
        # smaller steps would round to 0, or their ratio overflow; NaN fails the comparison too
        if not all(step >= 1e-9 for step in steps) or not all(abs(z) <= CAP for z in self.logits):
            raise ValueError(f"a curve's points and logits must be strictly increasing, and its logits inside ±{CAP}.")

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope of each piece."""
        return tuple((np.diff(self.logits) / np.diff(self.points)).tolist())

    def logit(self, scores: Any) -> Floats:
        """The calibrated logits.

        Each is a sum, in a fixed order, of terms that do not fall as the score rises. Rounding is monotone, so the sum
        is monotone to the last bit.
        """
        s = bent(scores)
        z = np.full(s.shape, self.logits[0])
        for start, stop, slope in zip(self.points[:-1], self.points[1:], self.slopes, strict=True):
            z = z + slope * np.minimum(np.maximum(s - start, 0.0), stop - start)
        return z

    def probabilities(self, scores: Any) -> Floats:
        """σ of the calibrated logits."""
        return 1.0 / (1.0 + np.exp(-self.logit(scores)))

    def inverse(self, probabilities: Any) -> Floats:
        """The scores with these probabilities; infinite for a probability that no score reaches."""
        p = np.asarray(probabilities, np.float64)
        with np.errstate(divide="ignore"):
            u = np.interp(np.log(p) - np.log1p(-p), self.logits, self.points)
            beyond = np.maximum(np.abs(u) - BEND, 0.0)
            return np.clip(u, -BEND, BEND) + np.sign(u) * (BEND * beyond / (BEND - beyond))


def bent(scores: Any) -> Floats:
    """Bend scores beyond ±`BEND` towards twice that; a sum of rising terms again, so monotone to the last bit."""
    s = np.clip(np.asarray(scores, np.float64), -LARGEST_SCORE, LARGEST_SCORE)
    above, below = np.maximum(s - BEND, 0.0), np.maximum(-BEND - s, 0.0)
    return np.clip(s, -BEND, BEND) + BEND * (above / (above + BEND)) - BEND * (below / (below + BEND))


#: σ itself up to the cap.
PLAIN = Curve((-2 * BEND, -STRAIGHT, STRAIGHT, 2 * BEND), (-CAP, -STRAIGHT, STRAIGHT, CAP))


@dataclass(frozen=True)
class Curves(Calibration):
    """One `Curve` for a binary task, scores ``(N,)``, or one for each label, scores ``(N, L)``.

    Args:
        task: ``"binary"`` or ``"multilabel"``.
        curves: The maps.

    Example:
        >>> Curves("binary", (PLAIN,)).inverse([0.5, 0.9]).round(4)
        array([0.    , 2.1972])
    """

    task: str
    curves: tuple[Curve, ...]
    kind: ClassVar[str] = "curves"

    def __post_init__(self) -> None:
        if self.task not in ("binary", "multilabel") or not self.curves:
            raise ValueError(f"curves, one or more, are for a binary or multilabel task; got {self.task!r}.")
        if self.task == "binary" and len(self.curves) != 1:
            raise ValueError(f"a binary task has one curve; got {len(self.curves)}.")

    def probabilities(self, scores: Any) -> Floats:
        return self._each(scores, "probabilities")

    def inverse(self, probabilities: Any) -> Floats:
        return self._each(probabilities, "inverse")

    def to_json(self) -> dict[str, Any]:
        curves = [{"points": list(c.points), "logits": list(c.logits)} for c in self.curves]
        return {"kind": self.kind, "task": self.task, "curves": curves}

    @classmethod
    def _read(cls, entry: dict[str, Any]) -> Curves:
        _keys(entry, ("kind", "task", "curves"))
        if not isinstance(entry["curves"], list):
            raise ValueError("a calibration's curves must be a list.")
        curves = []
        for c in entry["curves"]:
            _keys(c, ("points", "logits"))
            curves.append(Curve(_numbers(c["points"], "points"), _numbers(c["logits"], "logits")))
        return cls(entry["task"], tuple(curves))

    def _each(self, values: Any, method: str) -> Floats:
        array = np.asarray(values, np.float64)
        if self.task == "binary":
            mapped: Floats = getattr(self.curves[0], method)(array)
            return mapped
        if array.ndim != 2 or array.shape[1] != len(self.curves):
            raise ValueError(f"we need one column for each of {len(self.curves)} labels; got shape {array.shape}.")
        return np.stack([getattr(c, method)(array[:, i]) for i, c in enumerate(self.curves)], 1)


@dataclass(frozen=True)
class Temperature(Calibration):
    """Softmax of log-probabilities divided by a temperature, which keeps the order of a row's classes.

    A class more than ten nats below its row's best is at most 20 nats below, so that no probability is 0 or 1.

    Args:
        temperature: Above 1 for an over-confident model.

    Example:
        >>> Temperature(2.0).probabilities(np.log([[0.9, 0.1]]))
        array([[0.75, 0.25]])
    """

    temperature: float
    kind: ClassVar[str] = "temperature"

    def __post_init__(self) -> None:
        if not 1e-3 <= self.temperature <= 1e3:
            raise ValueError(f"temperature must be a number from 0.001 to 1000; got {self.temperature!r}.")

    def log_probabilities(self, scores: Any) -> Floats:
        """The logarithms of the probabilities, accurate where a probability next to 1 would round."""
        s = np.clip(np.asarray(scores, np.float64), -LARGEST_SCORE, LARGEST_SCORE)
        behind = (s.max(-1, keepdims=True) - s) / self.temperature
        beyond = np.maximum(behind - STRAIGHT, 0.0)
        room = CAP - STRAIGHT
        z = -np.minimum(behind, STRAIGHT) - room * (beyond / (beyond + room))
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    def probabilities(self, scores: Any) -> Floats:
        return np.exp(self.log_probabilities(scores))

    def inverse(self, probabilities: Any) -> Floats:
        with np.errstate(divide="ignore"):
            z = np.log(np.asarray(probabilities, np.float64))
            behind = z.max(-1, keepdims=True) - z
            beyond, room = np.maximum(behind - STRAIGHT, 0.0), CAP - STRAIGHT
            far = room * beyond / np.maximum(room - beyond, 0.0)
        return -self.temperature * np.where(beyond > 0, STRAIGHT + far, behind)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "temperature": self.temperature}

    @classmethod
    def _read(cls, entry: dict[str, Any]) -> Temperature:
        _keys(entry, ("kind", "temperature"))
        return cls(*_numbers([entry["temperature"]], "temperature"))


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def _keys(entry: Any, names: tuple[str, ...]) -> None:
    if not isinstance(entry, dict) or set(entry) != set(names):
        raise ValueError(f"a calibration's entry must have the keys {list(names)}; got {str(entry)[:60]}.")


def _numbers(values: Any, name: str) -> tuple[float, ...]:
    """Check a list of finite numbers; bools and text are refused."""
    good = isinstance(values, list) and all(type(v) in (int, float) and abs(v) <= LARGEST_SCORE for v in values)
    if not good:
        raise ValueError(f"a calibration's {name} must be finite numbers; got {str(values)[:60]}.")
    return tuple(float(v) for v in values)
