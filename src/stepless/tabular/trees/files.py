"""Checks of the files of boosted trees, before their libraries read them.

LightGBM, XGBoost and CatBoost read their own files with C++ that trusts them: a wrong number can end the process. So
the shape of every tree is checked first: an entry for each node, each child after its one parent, and no feature that
does not exist. CatBoost's format is binary and checks itself; here only its length is checked.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from typing import Any

#: The most leaves of a tree.
_MOST_LEAVES = 1 << 17
_END = "\nend of trees\n"
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_RANGE = re.compile(r"none|\[[-+0-9.einf]{1,40}:[-+0-9.einf]{1,40}\]")
_MONOTONE = re.compile(r"^monotone_constraints=.*\n", re.MULTILINE)
_NAME = re.compile(r"Column_[0-9]{1,7}")

#: The entries of a LightGBM tree with a number for each split, and for each leaf; True for whole numbers.
_OF_SPLITS = {
    "split_feature": True, "split_gain": False, "threshold": False, "decision_type": True, "left_child": True,
    "right_child": True, "internal_value": False, "internal_weight": False, "internal_count": True,
}  # fmt: skip
_OF_LEAVES = {"leaf_value": False, "leaf_weight": False, "leaf_count": True}
_OF_XGBOOST = (
    "left_children", "right_children", "parents", "split_indices", "split_conditions", "default_left", "base_weights",
    "loss_changes", "sum_hessian", "split_type",
)  # fmt: skip
#: XGBoost's parent of the root.
_NO_PARENT = 2**31 - 1


def trimmed_lightgbm(text: str) -> str:
    """A LightGBM model without the parameters it was trained with, which stand at its end and in its head."""
    return _MONOTONE.sub("", text[: text.index(_END) + len(_END)], 1)


def check_lightgbm(data: bytes, inputs: int, outputs: int) -> str:
    """The text of a LightGBM model; raise a ValueError unless it has this many inputs and outputs."""
    text = data.decode("ascii")
    if not text.endswith(_END):
        raise ValueError("a model of LightGBM ends in 'end of trees'")
    head, *blocks = text[: -len(_END) + 1].split("Tree=")
    fields = _fields(head.removeprefix("tree\n"))
    wanted = {
        "version": "v4", "num_class": str(outputs), "num_tree_per_iteration": str(outputs), "label_index": "0",
        "max_feature_idx": str(inputs - 1),
    }  # fmt: skip
    if {k: fields.get(k) for k in wanted} != wanted or not head.startswith("tree\n"):
        raise ValueError(f"the head of the model must say {wanted}")
    if set(fields) != {*wanted, "feature_names", "feature_infos", "tree_sizes"}:
        raise ValueError(f"the head of the model has other entries than LightGBM writes: {sorted(fields)[:20]}")
    for name, form in (("feature_names", _NAME), ("feature_infos", _RANGE)):
        words = fields[name].split(" ")
        if len(words) != inputs or not all(map(form.fullmatch, words)):
            raise ValueError(f"{name} must have an entry for each of the {inputs} features")
    # each block is followed by an empty line, the head too
    sizes = [len("Tree=") + len(block) for block in blocks]
    if not blocks or fields["tree_sizes"] != " ".join(map(str, sizes)) or len(blocks) % outputs:
        raise ValueError("tree_sizes must be those of the trees, as many for each class")
    for place, block in enumerate(blocks):
        _check_lightgbm_tree(block, place, inputs)
    return text


def _check_lightgbm_tree(block: str, place: int, inputs: int) -> None:
    number, _, rest = block.partition("\n")
    fields = _fields(rest)
    known = {"num_leaves", "num_cat", "is_linear", "shrinkage", *_OF_SPLITS, *_OF_LEAVES}
    if number != str(place) or set(fields) != known:
        raise ValueError(f"tree {place} must have the entries that LightGBM writes; got {sorted(fields)[:20]}")
    if fields["num_cat"] != "0" or fields["is_linear"] != "0":
        raise ValueError("trees of categories and trees of lines are not supported: leave them out of params")
    (leaves,) = _numbers(fields["num_leaves"], True, 1, "num_leaves")
    if not 1 <= leaves <= _MOST_LEAVES:
        raise ValueError(f"a tree must have 1 to {_MOST_LEAVES} leaves; got {leaves}")
    _numbers(fields["shrinkage"], False, 1, "shrinkage")
    if leaves == 1:  # LightGBM writes only some entries of a tree without splits
        _numbers(fields["leaf_value"], False, 1, "leaf_value")
        for name, whole in {**_OF_SPLITS, **_OF_LEAVES}.items():
            _numbers(fields[name], whole, len(fields[name].split()), name)
        if any(fields[name] for name in _OF_SPLITS):
            raise ValueError("a tree of one leaf has no splits")
        return
    values = {name: _numbers(fields[name], whole, leaves - 1, name) for name, whole in _OF_SPLITS.items()}
    for name, whole in _OF_LEAVES.items():
        _numbers(fields[name], whole, leaves, name)
    if not all(0 <= f < inputs for f in values["split_feature"]):
        raise ValueError(f"a tree splits by a feature that is not one of the {inputs}")
    if not all(0 <= kind < 16 and kind % 2 == 0 for kind in values["decision_type"]):
        raise ValueError("a tree splits in a way that is not by size")
    pairs = list(zip(values["left_child"], values["right_child"], strict=True))
    # leaf n is written as −n − 1
    _check_children([[c if c >= 0 else leaves - 2 - c for c in pair] for pair in pairs], leaves - 1, 2 * leaves - 1)
    if any(c < -leaves for pair in pairs for c in pair) or any(c > leaves - 2 for pair in pairs for c in pair):
        raise ValueError("a tree has a child that is not there")


def _check_children(pairs: Sequence[Sequence[int]], splits: int, nodes: int) -> None:
    """Check that every node but the first is the child of exactly one split, which comes before it."""
    children = [child for pair in pairs for child in pair]
    if sorted(children) != list(range(1, nodes)):
        raise ValueError("every node of a tree but its root must be the child of one other")
    if any(child <= place for place, pair in enumerate(pairs) for child in pair if child < splits):
        raise ValueError("a node of a tree must come after its parent")


def _fields(text: str) -> dict[str, str]:
    lines = [line.partition("=") for line in text.strip("\n").split("\n")]
    fields = {name: value for name, equals, value in lines if equals}
    if len(fields) < len(lines):
        raise ValueError("every line of a model must be a name and a value, each name once")
    return fields


def _numbers(text: str, whole: bool, count: int, name: str) -> list[Any]:
    words = text.split(" ") if text else []
    if len(words) != count:
        raise ValueError(f"{name} must have {count} numbers; got {len(words)}")
    if whole:
        if not all(map(_INTEGER.fullmatch, words)):
            raise ValueError(f"{name} must hold whole numbers")
        return [int(word) for word in words]
    numbers = [float(word) for word in words]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} must hold finite numbers")
    return numbers


def check_xgboost(data: bytes, inputs: int, outputs: int) -> None:
    """Raise a ValueError unless this is an XGBoost model of this many inputs and outputs."""
    try:
        document = json.loads(data)
        learner, version = document["learner"], document["version"]
        if len(version) != 3 or not all(type(v) is int and 0 <= v < 10_000 for v in version):
            raise ValueError("the version must be three whole numbers")
        _check_xgboost_head(learner, inputs, outputs)
        model = learner["gradient_booster"]["model"]
        trees = model["trees"]
        if model["tree_info"] != [place % outputs for place in range(len(trees))] or not trees:
            raise ValueError("there must be trees, for each class in turn")
        if model["iteration_indptr"] != list(range(0, len(trees) + 1, outputs)) or any(model["cats"].values()):
            raise ValueError("there must be as many trees in each round, and none of categories")
        if model["gbtree_model_param"] != {"num_parallel_tree": "1", "num_trees": str(len(trees))}:
            raise ValueError("there must be as many trees as the model says")
        for tree in trees:
            _check_xgboost_tree(tree, inputs)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"an entry is missing or of the wrong type: {error!r}") from None


def _check_xgboost_head(learner: dict[str, Any], inputs: int, outputs: int) -> None:
    sizes = dict(learner["learner_model_param"])
    start = sizes.pop("base_score").strip("[]").split(",")
    if not set(start) <= {"0E0", "0"} or len(start) not in (1, outputs) or sizes.pop("boost_from_average", "0") != "0":
        raise ValueError("the trees' scores must start at 0")
    classes = "0" if outputs == 1 else str(outputs)
    if sizes != {"num_class": classes, "num_feature": str(inputs), "num_target": "1"}:
        raise ValueError(f"the trees must be of {inputs} features and {outputs} scores; they say {sizes}")
    binary = {"name": "binary:logitraw", "reg_loss_param": {"scale_pos_weight": "1"}}
    several = {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": classes}}
    if learner["objective"] != (binary if outputs == 1 else several):
        raise ValueError(f"the objective must be the one that scores are grown by; got {learner['objective']}")
    if learner["gradient_booster"]["name"] != "gbtree":
        raise ValueError("trees of XGBoost must be of the booster gbtree")
    if learner["attributes"] or learner["feature_names"] or learner["feature_types"]:
        raise ValueError("the trees' features must have neither names nor types")


def _check_xgboost_tree(tree: dict[str, Any], inputs: int) -> None:
    nodes = len(tree["left_children"])
    param = {"num_deleted": "0", "num_feature": str(inputs), "num_nodes": str(nodes), "size_leaf_vector": "1"}
    if (
        tree["tree_param"] != param
        or {len(tree[name]) for name in _OF_XGBOOST} != {nodes}
        or type(tree["id"]) is not int
    ):
        raise ValueError(f"a tree must be of {inputs} features and have an entry of each kind for each node")
    names = ("categories", "categories_nodes", "categories_segments", "categories_sizes", "split_type")
    if any(any(tree[name]) for name in names):
        raise ValueError("trees of categories are not supported: leave them out of params")
    if not all(type(v) in (int, bool) and v in (0, 1) for v in tree["default_left"]):
        raise ValueError("default_left must be 0 or 1")
    pairs = list(zip(tree["left_children"], tree["right_children"], strict=True))
    if not all(type(c) is int for pair in pairs for c in pair) or any(
        (a == -1) != (b == -1) or min(a, b) < -1 for a, b in pairs
    ):
        raise ValueError("a node of a tree has two children or none")
    _check_children([[c for c in pair if c >= 0] for pair in pairs], nodes, nodes)
    parents = {child: node for node, pair in enumerate(pairs) for child in pair if child >= 0}
    if tree["parents"] != [_NO_PARENT, *(parents[child] for child in range(1, nodes))]:
        raise ValueError("the parents of a tree's nodes must be those whose children they are")
    if not all(type(f) is int and 0 <= f < inputs for f in tree["split_indices"]):
        raise ValueError(f"a tree splits by a feature that is not one of the {inputs}")
    for name in ("split_conditions", "base_weights", "loss_changes", "sum_hessian"):
        if not all(type(v) in (int, float) and math.isfinite(v) for v in tree[name]):
            raise ValueError(f"{name} of a tree must be finite numbers")


def check_catboost(data: bytes) -> None:
    """Raise a ValueError unless this begins as a CatBoost model does, and has the length that it states."""
    if data[:4] != b"CBM1" or len(data) < 8 or struct.unpack("<I", data[4:8])[0] != len(data) - 8:
        raise ValueError("a model of CatBoost begins with 'CBM1' and its length")
