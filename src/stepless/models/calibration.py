"""From scores to probabilities: strictly increasing maps, which `stepless.models.calibrating` fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: No calibrated logit goes beyond this: 1 − σ(20) is 2e-9, which doubles next to 1 still tell from its neighbours.
CAP = 20.0
#: Scores up to this are taken as they are; beyond it they are bent, and an infinite one is twice this.
BEND = 20.0
#: The largest score there is: what is beyond it, and infinity, are this one.
LARGEST_SCORE = 1e300
#: How far behind the best class `Temperature` leaves the straight line for the cap.
STRAIGHT = 10.0
#: A file may ask for as many.
_MOST_POINTS = 1000


class Calibration:
    """A map of scores to probabilities: `Curves` (binary, multilabel), `Temperature` (multiclass) or `Identity`.

    The order of any two scores stays (of the classes of a row, for multiclass), and a probability is never 0 or 1, not
    even for an infinite score.
    """

    kind: ClassVar[str]

    def probabilities(self, scores: Any) -> Floats:
        """Probabilities in the shape of the scores: logits, or for multiclass ``(N, K)`` log-probabilities."""
        raise NotImplementedError

    def inverse(self, probabilities: Any) -> Floats:
        """The scores of these probabilities; for multiclass they are log-probabilities but for a constant a row."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """A dict of text, numbers and lists, from which `from_json` makes an equal map."""
        raise NotImplementedError

    @staticmethod
    def from_json(entry: Any) -> Calibration:
        """The map that `to_json` described; anything else is a ValueError.

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
    """No calibration: σ of logits, softmax of log-probabilities, both only kept off 0 and 1.

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
        """The map of one label, or of all classes, that says the same."""
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
        if not isinstance(entry["task"], str):
            raise ValueError(f"task must be binary, multilabel or multiclass; got {entry['task']!r}.")
        return cls(entry["task"])


@dataclass(frozen=True)
class Curve:
    """A strictly increasing map of a score to a logit: straight between points.

    Scores beyond ±`BEND` are bent first, by 20 + 20·e/(e + 20) with e = score − 20, so that an infinite score is the
    finite number 40, and the points can reach from one infinity to the other.

    Args:
        points: Where the pieces meet: from −40, a score of −∞, to 40, strictly increasing.
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
        # steps this small would round away, or their ratio overflow; what is not a number fails too
        if not all(step >= 1e-9 for step in steps) or not all(abs(z) <= CAP for z in self.logits):
            raise ValueError(f"a curve's points and logits must be strictly increasing, and its logits inside ±{CAP}.")

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope of each straight piece."""
        return tuple((np.diff(self.logits) / np.diff(self.points)).tolist())

    def logit(self, scores: Any) -> Floats:
        """The calibrated logits.

        They are a sum of terms none of which falls as the score rises, taken in a fixed order: rounding is monotone,
        and so the sum is too, to the last bit.
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
        """The scores with these probabilities: infinite for what no score reaches."""
        p = np.asarray(probabilities, np.float64)
        with np.errstate(divide="ignore"):
            u = np.interp(np.log(p) - np.log1p(-p), self.logits, self.points)
            beyond = np.maximum(np.abs(u) - BEND, 0.0)
            return np.clip(u, -BEND, BEND) + np.sign(u) * (BEND * beyond / (BEND - beyond))


def bent(scores: Any) -> Floats:
    """Scores as they are up to ±`BEND`, and from there on ever closer to twice that; a sum of rising terms again."""
    s = np.clip(np.asarray(scores, np.float64), -LARGEST_SCORE, LARGEST_SCORE)
    above, below = np.maximum(s - BEND, 0.0), np.maximum(-BEND - s, 0.0)
    return np.clip(s, -BEND, BEND) + BEND * (above / (above + BEND)) - BEND * (below / (below + BEND))


#: σ itself, but for the cap.
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
        if not isinstance(entry["curves"], list) or not isinstance(entry["task"], str):
            raise ValueError("a calibration's task must be text and its curves a list.")
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
    """Softmax of log-probabilities over a temperature: the order of a row's classes stays, their distances shrink.

    A class more than ten nats below its row's best is drawn towards 20 nats below, so that no probability is 0 or 1.

    Args:
        temperature: Above 1 for a model that is too sure.

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
        """The logarithms of the probabilities, kept where a probability next to 1 would round."""
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
    """A list of finite numbers; True and text are none."""
    good = isinstance(values, list) and all(type(v) in (int, float) and abs(v) <= LARGEST_SCORE for v in values)
    if not good:
        raise ValueError(f"a calibration's {name} must be finite numbers; got {str(values)[:60]}.")
    return tuple(float(v) for v in values)
