"""Translate the trees of LightGBM, XGBoost and CatBoost to the attributes of ONNX's TreeEnsemble.

A row must take the same path in the graph as in its library. Features are float32. LightGBM compares them with float64
thresholds, and so does the graph; CatBoost's borders are float32, so float64 holds them exactly; XGBoost compares and
adds in float32, and so does the graph of its trees.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.tabular.trees.files import check_lightgbm, check_xgboost
from stepless.tabular.trees.members import BoosterMember, catboost_bytes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: ONNX's codes of split modes: a row goes left if its feature is at most the threshold, or below it.
_AT_MOST, _BELOW = 0, 1
_SUM, _NO_TRANSFORM = 1, 0
#: The bits of LightGBM's decision types for what counts as missing, and their value if zero does.
_MISSING, _ZERO_IS_MISSING = 12, 4
#: LightGBM treats numbers of at most this magnitude as zero.
_ZERO = float(np.float32(1e-35))


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree of one output.

    Args:
        feature: The feature of each split. The first split is the root.
        threshold: The threshold of each split.
        left: The child of each split for rows at most (XGBoost: below) the threshold: a split, or leaf n as −n − 1.
        right: The child for the other rows.
        leaf: The scores of the leaves. A tree of one leaf has no splits.
    """

    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    leaf: Floats


@dataclass(frozen=True, eq=False)
class Forest:
    """All trees of a member, as the attributes of ONNX's TreeEnsemble.

    Args:
        attributes: The attributes by name; arrays become tensors. Targets are numbered by booster, then output.
        dtype: The type of the graph's input and scores.
        starts: The initial scores of each booster, ``(n, 1, outputs)``.
    """

    attributes: dict[str, Any]
    dtype: type[np.floating[Any]]
    starts: Floats


def make_forest(member: BoosterMember) -> Forest:
    """Translate the trees of a member; raise a ValueError if they use what ONNX does not have."""
    trees: list[Tree] = []
    targets: list[int] = []
    starts = np.array(member.initial)
    for place in range(member.n):
        grown, bias = _READ[member.kind](member, place)
        starts[place] += bias
        trees += grown  # every library writes one tree per output in turn
        targets += [place * member.outputs + number % member.outputs for number in range(len(grown))]
    below = member.kind == "xgboost"
    dtype = np.float32 if below else np.float64
    attributes = _attributes(trees, targets, dtype, _BELOW if below else _AT_MOST)
    return Forest({**attributes, "n_targets": member.n * member.outputs}, dtype, starts[:, None])


def _attributes(trees: list[Tree], targets: list[int], dtype: Any, mode: int) -> dict[str, Any]:
    """The attributes of all trees; splits and leaves are numbered across trees."""
    trees = [_with_split(tree) for tree in trees]
    splits = np.array([len(tree.feature) for tree in trees])
    leaves = np.array([len(tree.leaf) for tree in trees])
    first_split, first_leaf = np.cumsum(splits) - splits, np.cumsum(leaves) - leaves
    trees = [_without_clashes(tree, gap) for tree, gap in zip(trees, first_split - first_leaf, strict=True)]
    attributes: dict[str, Any] = {
        "aggregate_function": _SUM,
        "post_transform": _NO_TRANSFORM,
        "tree_roots": first_split.tolist(),
        "nodes_featureids": np.concatenate([tree.feature for tree in trees]).tolist(),
        "nodes_splits": np.concatenate([tree.threshold for tree in trees]).astype(dtype),
        "nodes_modes": np.full(splits.sum(), mode, np.uint8),
        "leaf_targetids": np.repeat(targets, leaves).tolist(),
        "leaf_weights": np.concatenate([tree.leaf for tree in trees]).astype(dtype),
    }
    for name, side in (("true", "left"), ("false", "right")):
        child = np.concatenate([getattr(tree, side) for tree in trees])
        place = np.where(child < 0, ~child + np.repeat(first_leaf, splits), child + np.repeat(first_split, splits))
        attributes |= {f"nodes_{name}nodeids": place.tolist(), f"nodes_{name}leafs": (child < 0).astype(int).tolist()}
    return attributes


def _with_split(tree: Tree) -> Tree:
    """ONNX needs a split in every tree: a tree of one leaf gets one with two equal leaves."""
    if len(tree.feature):
        return tree
    return Tree(np.zeros(1, np.int64), np.zeros(1), np.array([-1]), np.array([-2]), np.repeat(tree.leaf, 2))


def _without_clashes(tree: Tree, gap: int) -> Tree:
    """Reorder the leaves so that no split has a split and a leaf with the same number as children.

    onnxruntime before 1.24 silently confuses such children, and later versions still mishandle a leaf that is both
    children of a split. Splits and leaves are numbered separately; ``gap`` is the number of the first split minus that
    of the first leaf.
    """
    count, sides = len(tree.leaf), np.stack([tree.left, tree.right])
    mixed = sides[:, (sides < 0).sum(0) == 1]
    # each such split rules out one rotation of the leaves, and there are fewer splits than leaves
    taken = (mixed.max(0) + gap - ~mixed.min(0)) % count
    rotation = int(np.setdiff1d(np.arange(count), taken)[0])
    left, right = np.where(sides < 0, ~((~sides + rotation) % count), sides)
    return replace(tree, left=left, right=right, leaf=np.roll(tree.leaf, rotation))


# ---------------------------------------------------------------------------------------------------------------------
# The libraries
# ---------------------------------------------------------------------------------------------------------------------


def _read_lightgbm(member: BoosterMember, place: int) -> tuple[list[Tree], Floats]:
    text = check_lightgbm(member.boosters[place], member.inputs, member.outputs)
    trees = []
    for block in text.split("Tree=")[1:]:
        fields = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        feature, decision, left, right = (
            np.array(fields[name].split(), np.int64)
            for name in ("split_feature", "decision_type", "left_child", "right_child")
        )
        threshold, leaf = (np.array(fields[name].split(), np.float64) for name in ("threshold", "leaf_value"))
        if ((decision & _MISSING) == _ZERO_IS_MISSING).any():
            raise ValueError("trees of LightGBM for which zero is missing have no ONNX: leave zero_as_missing out.")
        # so that what LightGBM treats as zero goes where zero goes
        threshold[(threshold >= -_ZERO) & (threshold < 0)] = np.nextafter(-_ZERO, -np.inf)
        threshold[(threshold >= 0) & (threshold < _ZERO)] = _ZERO
        trees.append(Tree(feature, threshold, left, right, leaf))
    return trees, np.zeros(member.outputs)


def _read_xgboost(member: BoosterMember, place: int) -> tuple[list[Tree], Floats]:
    data = member.boosters[place]
    check_xgboost(data, member.inputs, member.outputs)
    trees = []
    for tree in json.loads(data)["learner"]["gradient_booster"]["model"]["trees"]:
        left, right, feature = (
            np.array(tree[name], np.int64) for name in ("left_children", "right_children", "split_indices")
        )
        value = np.array(tree["split_conditions"], np.float64)  # thresholds, and the scores of leaves
        split = left >= 0
        number = np.where(split, np.cumsum(split) - 1, 0 - np.cumsum(~split))
        trees.append(Tree(feature[split], value[split], number[left[split]], number[right[split]], value[~split]))
    return trees, np.zeros(member.outputs)


def _read_catboost(member: BoosterMember, place: int) -> tuple[list[Tree], Floats]:
    document = json.loads(catboost_bytes(member.trees[place], "json"))
    scale, bias = document["scale_and_bias"]
    trees = []
    oblivious = "oblivious_trees" in document
    for entry in document["oblivious_trees" if oblivious else "trees"]:
        feature, border, left, right, values = (_catboost_oblivious if oblivious else _catboost_branching)(entry)
        shape = (
            np.array(feature, np.int64),
            np.array(border, np.float64),
            np.array(left, np.int64),
            np.array(right, np.int64),
        )
        scores = np.array(values, np.float64).reshape(-1, member.outputs) * scale
        # leaves in ONNX have one score, so there is one copy of the tree per output
        trees += [Tree(*shape, leaf) for leaf in scores.T]
    return trees, np.array(bias, np.float64)


def _catboost_oblivious(tree: dict[str, Any]) -> tuple[Any, ...]:
    """Read a tree with one split per level; the last split gives the highest bit of a leaf's number."""
    levels = tree["splits"][::-1]
    splits = [split for level, split in enumerate(levels) for _ in range(2**level)]
    inner = len(splits)
    left, right = (2 * np.arange(inner) + side for side in (1, 2))
    left, right = (np.where(child < inner, child, inner - child - 1) for child in (left, right))
    return [s["float_feature_index"] for s in splits], [s["border"] for s in splits], left, right, tree["leaf_values"]


def _catboost_branching(tree: dict[str, Any]) -> tuple[Any, ...]:
    """Read a tree with different splits in each branch."""
    feature: list[int] = []
    border: list[float] = []
    children: tuple[list[int], list[int]] = ([], [])
    values: list[Any] = []
    waiting: list[tuple[dict[str, Any], int, int]] = [(tree, -1, 0)]
    while waiting:
        node, parent, side = waiting.pop()
        if "split" in node:
            number = len(feature)
            feature.append(node["split"]["float_feature_index"])
            border.append(node["split"]["border"])
            for place, name in enumerate(("left", "right")):
                children[place].append(0)
                waiting.append((node[name], number, place))
        else:
            number = -len(values) - 1
            values.append(node["value"])
        if parent >= 0:
            children[side][parent] = number
    return feature, border, *children, values


_READ = {"lightgbm": _read_lightgbm, "xgboost": _read_xgboost, "catboost": _read_catboost}
