"""Boosted trees as ONNX has them: what LightGBM, XGBoost and CatBoost write, as the numbers of one TreeEnsemble.

A row must take the same path in the graph as in its library. Features are float32. LightGBM compares them as doubles
with thresholds that are doubles, and so does the graph; CatBoost's borders are float32, which doubles hold; XGBoost
compares and adds in float32, and so does the graph of its trees.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepless.trees.files import check_lightgbm, check_xgboost
from stepless.trees.members import BoosterMember, catboost_bytes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: How ONNX numbers the ways to split: left is where a feature is at most the threshold, or below it.
_AT_MOST, _BELOW = 0, 1
_SUM, _NO_TRANSFORM = 1, 0
#: The bits of LightGBM's decision types that say what counts as missing, and their value where zero does.
_MISSING, _ZERO_IS_MISSING = 12, 4
#: Up to here, and down to minus this, LightGBM takes a number for zero.
_ZERO = float(np.float32(1e-35))


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree of one output.

    Args:
        feature: For each split, what it looks at. The first split is the root.
        threshold: For each split, what that is compared with.
        left: For each split, where rows go that are at most the threshold, or below it: a split, or leaf n as −n − 1.
        right: For each split, where the others go.
        leaf: The leaves' scores. A tree of one leaf has no splits.
    """

    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    leaf: Floats


@dataclass(frozen=True, eq=False)
class Forest:
    """All the trees of a member, as the attributes of ONNX's TreeEnsemble.

    Args:
        attributes: By name; arrays are tensors. There is a target for each booster and output, in this order.
        dtype: What the graph computes in: its input and its scores.
        starts: What each booster's scores start at, ``(n, 1, outputs)``.
    """

    attributes: dict[str, Any]
    dtype: type[np.floating[Any]]
    starts: Floats


def make_forest(member: BoosterMember) -> Forest:
    """The trees of a member; a ValueError where they have what ONNX has not.

    Args:
        member: Of any of the libraries.
    """
    trees: list[Tree] = []
    targets: list[int] = []
    starts = np.array(member.initial)
    for place in range(member.n):
        grown, bias = _READ[member.kind](member, place)
        starts[place] += bias
        trees += grown  # each library has a tree for each output in turn
        targets += [place * member.outputs + number % member.outputs for number in range(len(grown))]
    below = member.kind == "xgboost"
    dtype = np.float32 if below else np.float64
    attributes = _attributes(trees, targets, dtype, _BELOW if below else _AT_MOST)
    return Forest({**attributes, "n_targets": member.n * member.outputs}, dtype, starts[:, None])


def _attributes(trees: list[Tree], targets: list[int], dtype: Any, mode: int) -> dict[str, Any]:
    """All trees, one after the other: their splits and leaves are numbered through."""
    trees = [_split(tree) for tree in trees]
    splits = np.array([len(tree.feature) for tree in trees])
    leaves = np.array([len(tree.leaf) for tree in trees])
    first_split, first_leaf = np.cumsum(splits) - splits, np.cumsum(leaves) - leaves
    trees = [_told_apart(tree, gap) for tree, gap in zip(trees, first_split - first_leaf, strict=True)]
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


def _split(tree: Tree) -> Tree:
    """With a split at least, which ONNX wants: of a tree of one leaf, both ways lead to one like it."""
    if len(tree.feature):
        return tree
    return Tree(np.zeros(1, np.int64), np.zeros(1), np.array([-1]), np.array([-2]), np.repeat(tree.leaf, 2))


def _told_apart(tree: Tree, gap: int) -> Tree:
    """The tree with its leaves in an order in which no split has a split and a leaf of one number for children.

    onnxruntime takes them for the same before 1.24, and a leaf that is both children of a split for nothing in later
    versions too, and is wrong without a word. Splits and leaves are numbered apart; ``gap`` is by how much the first
    split's number exceeds the first leaf's.
    """
    count, sides = len(tree.leaf), np.stack([tree.left, tree.right])
    mixed = sides[:, (sides < 0).sum(0) == 1]
    # each such split rules out one rotation, and they are fewer than the leaves
    taken = (mixed.max(0) + gap - ~mixed.min(0)) % count
    turn = int(np.setdiff1d(np.arange(count), taken)[0])
    left, right = np.where(sides < 0, ~((~sides + turn) % count), sides)
    return replace(tree, left=left, right=right, leaf=np.roll(tree.leaf, turn))


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
        # so that what LightGBM takes for zero goes where zero goes
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
        # a leaf of ONNX's has one score: the tree comes once for each output
        trees += [Tree(*shape, leaf) for leaf in scores.T]
    return trees, np.array(bias, np.float64)


def _catboost_oblivious(tree: dict[str, Any]) -> tuple[Any, ...]:
    """A tree that asks the same at each level; the last of its splits is the highest bit of a leaf's number."""
    splits = tree["splits"][::-1]
    asked = [split for level, split in enumerate(splits) for _ in range(2**level)]
    inner = len(asked)
    left, right = (2 * np.arange(inner) + side for side in (1, 2))
    left, right = (np.where(child < inner, child, inner - child - 1) for child in (left, right))
    return [s["float_feature_index"] for s in asked], [s["border"] for s in asked], left, right, tree["leaf_values"]


def _catboost_branching(tree: dict[str, Any]) -> tuple[Any, ...]:
    """A tree that asks otherwise in each branch."""
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
