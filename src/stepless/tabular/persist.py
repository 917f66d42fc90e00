"""Saving a `Model` to a folder, and loading it.

`stepless.tabular.models.folders` writes and reads the bytes and finds damaged files. Here they become a model: the type
and the range of every value are checked, and that the parts fit together, before anything is returned. Nothing is run,
imported or unpickled because a file says so.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepless.tabular.trees.members  # noqa: F401 - adds its kinds to MEMBER_KINDS
from stepless.tabular.models.calibration import Calibration
from stepless.tabular.models.folders import HEAD, ModelFileError, from_text, read_folder, to_text, write_folder
from stepless.tabular.models.members import MEMBER_KINDS, Factory, Files, Member, check_keys
from stepless.tabular.models.model import Model
from stepless.tabular.models.preprocessing import Features

_KEYS = (
    "task", "classes", "positive", "metric", "features", "members", "calibration", "threshold", "versions", "settings",
)  # fmt: skip

#: The types of labels by name: what JSON has, and what numpy makes of it.
_LABEL_TYPES: dict[str, tuple[type, np.dtype[Any]]] = {
    "bool": (bool, np.dtype(bool)),
    **{f"{sign}int{bits}": (int, np.dtype(f"{sign}int{bits}")) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (float, np.dtype(f"float{bits}")) for bits in (16, 32, 64)},
    "object": (str, np.dtype(object)),
    "str": (str, np.dtype(str)),
    "string": (str, np.dtypes.StringDType()),
}
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def save_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Save a model as a folder, replacing a model that may be there.

    The old model stays until the new one is complete, even if the process is killed. A model that could not be loaded
    again is refused before anything is written.

    Args:
        model: The model. A factory of networks is not saved, only their weights; pass it again to `load_model`.
        path: The folder. It and its parents are created if they do not exist.
    """
    factories = {id(f): f for member in model.members if (f := getattr(member, "factory", None)) is not None}
    if len(factories) > 1:
        raise ValueError(f"the nets of a saved model must come from one factory; these come from {len(factories)}.")
    document, files = _encode(model)
    try:
        text = to_text(document, files, "members-00000000")
        again = _decode(from_text(text), files, next(iter(factories.values()), None))
    except ValueError as error:
        raise ValueError(f"this model cannot be saved, because it could not be loaded: {error}") from error
    if again.settings != dict(model.settings):
        raise ValueError(
            "settings must be what JSON gives back as it was: dicts with keys of text, lists, and no tuples."
        )
    write_folder(path, document, files)


def load_model(path: str | os.PathLike[str], model: Factory | None = None, *, max_bytes: int = 2**32) -> Model:
    """Load a model that was saved by `save_model`.

    Args:
        path: The folder.
        model: The factory of the networks, if the model has one.
        max_bytes: The largest total size of the members' files.

    Raises:
        ModelFileError: If the folder does not hold a complete model that this version can read.

    Example:
        >>> try:
        ...     load_model("no/such/folder")
        ... except ModelFileError as error:
        ...     print(error)
        a saved model is a folder with a model.json; no/such/folder does not exist.
    """
    document, files = read_folder(path, max_bytes)
    try:
        return _decode(document, files, model)
    except ValueError as error:
        reason = str(error)
        raise ModelFileError(f"{path} holds no model that works: {reason[:1000]}") from error


# ---------------------------------------------------------------------------------------------------------------------
# The document
# ---------------------------------------------------------------------------------------------------------------------


def _encode(model: Model) -> tuple[dict[str, Any], dict[str, bytes]]:
    members: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for place, (member, weight) in enumerate(zip(model.members, model.weights, strict=True)):
        entry, own = member.to_files(str(place))
        members.append({"kind": member.kind, "weight": float(weight), **entry})
        files |= own
    thresholds = [_encode_number(t) for t in np.atleast_1d(model.threshold).tolist()]
    document = {
        "task": model.task,
        "metric": model.metric,
        "classes": _encode_labels(model.classes),
        "positive": model.positive,
        "threshold": thresholds[0] if model.task == "binary" else thresholds,
        "calibration": model.calibration.to_json(),
        "features": model.features.to_json(),
        "members": members,
        "versions": dict(model.versions),
        "settings": dict(model.settings),
    }
    return document, files


def _decode(document: dict[str, Any], files: Files, factory: Factory | None) -> Model:
    check_keys(document, (*HEAD, *_KEYS), "a model")
    for name in ("task", "metric"):
        if not isinstance(document[name], str):
            raise ValueError(f"{name} must be text; got {document[name]!r}.")
    if not isinstance(document["positive"], int | None) or isinstance(document["positive"], bool):
        raise ValueError(f"positive must be 0, 1 or null; got {document['positive']!r}.")
    versions, settings = document["versions"], document["settings"]
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        raise ValueError(f"versions must be a dict of texts; got {versions!r}.")
    if not isinstance(settings, dict):
        raise ValueError(f"settings must be a dict; got {settings!r}.")
    members, weights = _decode_members(document["members"], files, factory)
    threshold = document["threshold"]
    model = Model(
        task=document["task"],
        classes=_decode_labels(document["classes"]),
        positive=document["positive"],
        metric=document["metric"],
        features=Features.from_json(document["features"]),
        members=members,
        weights=weights,
        calibration=Calibration.from_json(document["calibration"]),
        threshold=tuple(map(_decode_number, threshold)) if isinstance(threshold, list) else _decode_number(threshold),
        versions=versions,
        settings=settings,
    )
    model.rehearse()
    return model


def _decode_members(
    entries: Any, files: Files, factory: Factory | None
) -> tuple[tuple[Member, ...], tuple[float, ...]]:
    if not isinstance(entries, list):
        raise ValueError(f"members must be a list; got {entries!r}.")
    # A member reads its own files only, so a long list of members takes no longer than reading the files.
    own: dict[str, dict[str, bytes]] = {str(place): {} for place in range(len(entries))}
    for name, data in files.items():
        owner = name.partition(".")[0]
        if owner not in own:
            raise ValueError(f"the file {name} belongs to no member.")
        own[owner][name] = data
    members, weights = [], []
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
            raise ValueError(f"member {place} must be a dict that says its kind; got {entry!r}.")
        read = MEMBER_KINDS.get(entry["kind"])
        if read is None:
            raise ValueError(
                f"member {place} must be of one of the kinds {', '.join(MEMBER_KINDS)}; got {entry['kind'][:100]!r}."
                ' If a newer stepless wrote it: pip install --upgrade "stepless[sklearn]"'
            )
        weights.append(_number(entry.get("weight"), "a member's weight"))
        details = {k: v for k, v in entry.items() if k not in ("kind", "weight")}
        members.append(read(details, own[str(place)], factory))
    return tuple(members), tuple(weights)


# ---------------------------------------------------------------------------------------------------------------------
# Labels and numbers
# ---------------------------------------------------------------------------------------------------------------------


def _encode_labels(labels: NDArray[Any]) -> dict[str, Any]:
    kind, values = labels.dtype.kind, labels.tolist()
    if kind in "biuf":
        return {"type": labels.dtype.name, "values": values}
    if kind in "OUT" and all(type(v) is str for v in values):
        return {"type": {"O": "object", "U": "str", "T": "string"}[kind], "values": values}
    found = sorted({type(v).__name__ for v in values})
    raise ValueError(
        f"a saved model has labels that are all texts, all numbers or all bools; got {labels.dtype} with"
        f" {', '.join(found)}. Fit on labels of one type, for example y.astype(str)."
    )


def _decode_labels(entry: Any) -> NDArray[Any]:
    check_keys(entry, ("type", "values"), "classes")
    name, values = entry["type"], entry["values"]
    if not isinstance(name, str) or not isinstance(values, list):
        raise ValueError("classes must have a type, which is text, and a list of values.")
    if name not in _LABEL_TYPES:
        raise ValueError(f"labels must be of one of the types {', '.join(_LABEL_TYPES)}; got {name[:100]!r}.")
    kind, dtype = _LABEL_TYPES[name]
    wrong = [v for v in values if type(v) is not kind]
    if wrong:
        raise ValueError(f"labels of type {dtype} must be {kind.__name__}; got {str(wrong[0])[:100]!r}.")
    if kind is int:
        info = np.iinfo(name)
        if not all(info.min <= v <= info.max for v in values):
            raise ValueError(f"labels of type {name} must lie in [{info.min}, {info.max}].")
    return np.array(values, dtype)


def _encode_number(value: float) -> float | str:
    """A threshold for JSON, which has no infinity."""
    return str(value) if math.isinf(value) else float(value)


def _decode_number(value: Any) -> float:
    return _INFINITE[value] if isinstance(value, str) and value in _INFINITE else _number(value, "a threshold")


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{what} must be a number; got {str(value)[:100]!r}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} must be a number of ordinary size.") from None
