"""`to_onnx`: a whole model as one ONNX graph, from the columns of a table to labels.

The graph contains preprocessing, every member, the mean, the calibration and the threshold or offsets, in the order and
the precision in which `Model` computes them: float64, except for nets of a user's factory and XGBoost's trees.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepless.extras import needs
from stepless.tabular.models.calibration import (
    BEND,
    CAP,
    LARGEST_SCORE,
    STRAIGHT,
    Calibration,
    Curve,
    Curves,
    Temperature,
)
from stepless.tabular.models.columns import LIMIT, NEAR, AsIs, Category, Number
from stepless.tabular.models.export_inputs import OUTPUTS, all_numbers, input_names, missing_text
from stepless.tabular.models.members import FactoryMember, Member, NetMember
from stepless.tabular.models.model import Model
from stepless.tabular.models.preprocessing import Features
from stepless.tabular.trees.members import BoosterMember
from stepless.tabular.trees.nodes import make_forest
from stepless.tabular.whole_files import write_whole

with needs("exporting to ONNX needs onnx", "onnx", "onnx"):
    import onnx
    from onnx import TensorProto, compose, helper, inliner, numpy_helper

Array = NDArray[Any]

#: The versions of the operators; onnxruntime has them from 1.14 on, and those of trees from 1.21 on.
OPSETS = {"": 18, "ai.onnx.ml": 3}
TREE_OPSETS = {**OPSETS, "ai.onnx.ml": 5}
_IR_VERSION = 8


def to_onnx(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model as an ONNX file, which needs only an ONNX runtime to predict the same labels.

    Inputs: a model of numeric columns takes ``X``, ``(N, columns)`` of double, with NaN for missing values. Any other
    takes one input per column, named after it, ``(N, 1)`` of double or of string. The empty text is a missing value,
    unless it is a category: ``missing_text`` in the file's metadata names the text for each column.
    `stepless.tabular.models.export_inputs.feed` makes the inputs from a table. Outputs: ``label``, ``probabilities``
    and ``decision``, as `Model` computes them.

    Args:
        model: The model to write.
        path: The file. It is replaced as a whole: a failure leaves it as it was.

    Example:
        >>> to_onnx(model, "model.onnx")  # doctest: +SKIP
        >>> onnxruntime.InferenceSession("model.onnx").run(["label"], feed(model.features, table))  # doctest: +SKIP
    """
    write_whole(path, make_graph(model).SerializeToString())


def make_graph(model: Model) -> onnx.ModelProto:
    """Build and check the ONNX graph of a model."""
    features = model.features
    names = input_names(features)
    graph = _Graph({*names, *OUTPUTS})
    matrix = _features(graph, features, names)
    score = _mean_score(graph, matrix, model)
    probability = _probability(graph, score, model.calibration, model.outputs)
    outputs = _decide(graph, probability, model)
    opsets = TREE_OPSETS if any(node.op_type == "TreeEnsemble" for node in graph.nodes) else OPSETS
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "stepless", _inputs(features, names), outputs, graph.initializers),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=_IR_VERSION,
        producer_name="stepless",
        producer_version=model.versions.get("stepless", ""),
    )
    helper.set_model_props(proto, _about(model, names))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _about(model: Model, names: tuple[str, ...]) -> dict[str, str]:
    missing = {
        name: missing_text(column)
        for name, column in zip(names, model.features.columns, strict=False)
        if isinstance(column, Category)
    }
    # JSON has no infinity; as in the folder of a model, it is "inf" or "-inf"
    cuts = [str(cut) if np.isinf(cut) else cut for cut in np.atleast_1d(model.threshold).tolist()]
    threshold = cuts[0] if model.task == "binary" else cuts
    facts = {"classes": model.classes.tolist(), "threshold": threshold, "missing_text": missing}
    return {"task": model.task, "metric": model.metric} | {k: json.dumps(v, default=str) for k, v in facts.items()}


class _Graph:
    """The nodes of a graph in order, and the constants they use; every value has a name of its own."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._taken = set(taken)

    def name(self, stem: str) -> str:
        place = len(self._taken)
        while (name := f"{stem}_{place}") in self._taken:
            place += 1
        self._taken.add(name)
        return name

    def constant(self, value: Any) -> str:
        """A number (float64 if it is Python's) or an array, as a value of the graph."""
        name, array = self.name("constant"), np.asarray(value)
        if array.dtype.kind in "UT":
            array = array.astype(object)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: Any, result: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add an operation on values, given by name, and constants; attributes that are arrays become tensors."""
        attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        result = result or self.name(op)
        self.nodes.append(helper.make_node(op, names, [result], self.name("node"), domain=domain, **attributes))
        return result

    def chain(self, value: str, *steps: tuple[str, Any]) -> str:
        """Add one operation after another, each with a constant as its second input."""
        for op, constant in steps:
            value = self.add(op, value, constant)
        return value


# ---------------------------------------------------------------------------------------------------------------------
# Preprocessing
# ---------------------------------------------------------------------------------------------------------------------


def _inputs(features: Features, names: tuple[str, ...]) -> list[onnx.ValueInfoProto]:
    if all_numbers(features):
        return [helper.make_tensor_value_info(names[0], TensorProto.DOUBLE, ["rows", len(features.columns)])]
    kinds = [TensorProto.STRING if isinstance(c, Category) else TensorProto.DOUBLE for c in features.columns]
    return [helper.make_tensor_value_info(n, kind, ["rows", 1]) for n, kind in zip(names, kinds, strict=True)]


def _features(graph: _Graph, features: Features, names: tuple[str, ...]) -> str:
    """The float32 matrix ``(N, width)``: first numbers, then flags, then categories, reordered in the end."""
    blocks: list[str] = []
    places: list[int] = []
    starts = np.cumsum([0, *(column.width for column in features.columns)])
    for kind, write in ((Number, _numbers), (AsIs, _as_they_are)):
        chosen = [i for i, column in enumerate(features.columns) if isinstance(column, kind)]
        if chosen:
            values = graph.add("Gather", names[0], np.array(chosen), axis=1) if all_numbers(features) else None
            values = values or _joined(graph, [names[i] for i in chosen])
            blocks += write(graph, values, [features.columns[i] for i in chosen])
            places += [int(starts[i]) for i in chosen]
            places += [int(starts[i]) + 1 for i in chosen if getattr(features.columns[i], "flag", False)]
    for i, column in enumerate(features.columns):
        if isinstance(column, Category) and column.width:
            blocks.append(_category(graph, names[i], column))
            places += range(starts[i], starts[i + 1])
    return graph.add("Gather", _joined(graph, blocks), np.argsort(places), axis=1)


def _joined(graph: _Graph, values: list[str]) -> str:
    return graph.add("Concat", *values, axis=1) if len(values) > 1 else values[0]


def _numbers(graph: _Graph, values: str, columns: list[Any]) -> list[str]:
    mean, scale, fill = (np.array([[getattr(c, name) for c in columns]]) for name in ("mean", "scale", "fill"))
    missing = graph.add("IsNaN", values)
    filled = graph.add("Where", missing, fill, values)
    standard = graph.chain(filled, ("Sub", mean), ("Div", scale), ("Max", -LIMIT), ("Min", LIMIT))
    if any(c.inner for c in columns):
        second = [(*c.inner, NEAR) if c.inner else (0.0, 1.0, 0.0) for c in columns]  # a limit of 0 adds nothing
        mean, scale, near = np.array(second).T[:, None]
        part = graph.chain(filled, ("Sub", mean), ("Div", scale), ("Max", -near), ("Min", near))
        standard = graph.add("Add", standard, part)
    blocks = [graph.add("Cast", standard, to=TensorProto.FLOAT)]
    flagged = np.flatnonzero([c.flag for c in columns])
    if len(flagged):
        flags = graph.add("Gather", missing, flagged, axis=1)
        blocks.append(graph.add("Cast", flags, to=TensorProto.FLOAT))
    return blocks


def _as_they_are(graph: _Graph, values: str, columns: list[Any]) -> list[str]:
    return [graph.add("Cast", values, to=TensorProto.FLOAT)]


def _category(graph: _Graph, value: str, column: Category) -> str:
    """A 0/1 column for each level, for others and for missing: the text's index, compared with that of each."""
    unseen = len(column.levels) if column.other else -1
    missing = len(column.levels) + column.other if column.missing else unseen
    keys, codes = [*column.levels, missing_text(column)], [*range(len(column.levels)), missing]
    code = graph.add(
        "LabelEncoder", value, domain="ai.onnx.ml", keys_strings=keys, values_int64s=codes, default_int64=unseen
    )
    return graph.add("Cast", graph.add("Equal", code, np.arange(column.width)[None]), to=TensorProto.FLOAT)


# ---------------------------------------------------------------------------------------------------------------------
# Members
# ---------------------------------------------------------------------------------------------------------------------


def _mean_score(graph: _Graph, matrix: str, model: Model) -> str:
    """The score ``(N, outputs)``, as `stepless.tabular.models.model.mean_score` computes it."""
    values, weights = [], []
    for member, weight in zip(model.members, model.weights, strict=True):
        if weight > 0:
            logits, n = _logits(graph, matrix, member)
            values.append(logits)
            weights += [weight / n] * n
    logits = graph.add("Concat", *values, axis=0)
    weight_of = np.array(weights)[:, None, None]
    if model.task == "multiclass":
        return _log_mean(graph, graph.add("LogSoftmax", logits, axis=-1), weight_of)
    # log σ(x) = min(x, 0) − log(1 + exp(−|x|)), and log σ(−x) likewise
    rest = graph.add("Log", graph.add("Add", graph.add("Exp", graph.add("Neg", graph.add("Abs", logits))), 1.0))
    sides = [graph.add("Sub", graph.add("Min", x, 0.0), rest) for x in (logits, graph.add("Neg", logits))]
    return graph.add("Sub", *(_log_mean(graph, side, weight_of) for side in sides))


def _log_mean(graph: _Graph, logs: str, weights: Array) -> str:
    largest = graph.add("ReduceMax", logs, np.array([0]), keepdims=1)
    shares = graph.add("Mul", graph.add("Exp", graph.add("Sub", logs, largest)), weights)
    mean = graph.add("Log", graph.add("ReduceSum", shares, np.array([0]), keepdims=0))
    return graph.add("Add", graph.add("Squeeze", largest, np.array([0])), mean)


def _logits(graph: _Graph, matrix: str, member: Member) -> tuple[str, int]:
    """The logits of a member, ``(n, N, outputs)`` in float64, and n."""
    if isinstance(member, NetMember):
        return _net(graph, matrix, member), member.n
    if isinstance(member, FactoryMember):
        return _factory_nets(graph, matrix, member), member.n
    if isinstance(member, BoosterMember):
        return _trees(graph, matrix, member), member.n
    raise ValueError(
        f"members that go to ONNX are nets and trees; got one of kind {member.kind!r}. Save the model instead."
    )


def _net(graph: _Graph, matrix: str, member: NetMember) -> str:
    """Nets as batched products; the weights are float32 in the file and cast to float64 in the graph."""
    x = graph.add("Cast", matrix, to=TensorProto.DOUBLE)
    layers = len(member.architecture.layers)
    for i in range(layers):
        weight, bias = (
            graph.add("Cast", member.tensors[f"{name}.{i}"].numpy(), to=TensorProto.DOUBLE)
            for name in ("weights", "biases")
        )
        x = graph.add("Add", graph.add("MatMul", x, weight), bias)
        x = graph.add("Relu", x) if i < layers - 1 else x
    return x


def _trees(graph: _Graph, matrix: str, member: BoosterMember) -> str:
    """All boosters as one operation, which gives the scores of a row side by side."""
    forest = make_forest(member)
    x = matrix if forest.dtype is np.float32 else graph.add("Cast", matrix, to=TensorProto.DOUBLE)
    scores = graph.add("TreeEnsemble", x, domain="ai.onnx.ml", **forest.attributes)
    scores = graph.add("Reshape", scores, np.array([-1, member.n, member.outputs]))
    scores = graph.add("Cast", graph.add("Transpose", scores, perm=[1, 0, 2]), to=TensorProto.DOUBLE)
    return graph.add("Add", scores, forest.starts)


class _Stack(nn.Module):
    """The nets of a factory side by side, logits ``(n, N, outputs)``."""

    def __init__(self, member: FactoryMember) -> None:
        super().__init__()
        self.outputs = member.outputs
        nets = [member.build() for _ in next(iter(member.tensors.values()))]
        for place, net in enumerate(nets):
            # by these names, and not by those of load_state_dict, which knows shared weights by all of their names, and
            # buffers that are not persistent by none
            own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
            for name, tensor in member.tensors.items():
                own[name].detach().copy_(tensor[place])
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        # a copy, since a net may change its rows in place; −1, since len(x) would be a number of Python's, and the
        # graph one for that many rows alone
        return torch.stack([net(x.clone()).reshape(-1, self.outputs) for net in self.nets])


def _factory_nets(graph: _Graph, matrix: str, member: FactoryMember) -> str:
    """A factory's nets as torch exports them, joined to the graph."""
    stack, rows = _Stack(member).eval(), torch.export.Dim("rows")
    try:
        program = torch.onnx.export(
            stack, (torch.zeros(3, member.inputs, dtype=torch.float32),), dynamo=True, opset_version=OPSETS[""],
            verbose=False, dynamic_shapes=({0: rows},),
        )  # fmt: skip
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "onnxscript":
            raise ModuleNotFoundError(
                'exporting a net of a factory to ONNX needs onnxscript: pip install "stepless[onnx]"', name="onnxscript"
            ) from None
        name, reason = type(stack.nets[0]).__name__, str(error).strip().splitlines()[0]
        raise ValueError(f"torch cannot export a net of the factory ({name}) to ONNX: {reason}") from error
    assert program is not None
    if not program.model_proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ValueError(
            f"torch exports a net of the factory ({type(stack.nets[0]).__name__}) for one number of rows alone, because"
            " its forward reads that number in Python. Use x.shape[0] in the place of len(x), or -1 where it reshapes."
        )
    exported = compose.add_prefix(inliner.inline_local_functions(program.model_proto), graph.name("nets") + "/")
    part = exported.graph
    graph.nodes.append(helper.make_node("Identity", [matrix], [part.input[0].name]))
    graph.nodes.extend(part.node)
    graph.initializers.extend(part.initializer)
    return graph.add("Cast", part.output[0].name, to=TensorProto.DOUBLE)


# ---------------------------------------------------------------------------------------------------------------------
# Probabilities and decisions
# ---------------------------------------------------------------------------------------------------------------------


def _probability(graph: _Graph, score: str, calibration: Calibration, outputs: int) -> str:
    """Calibrated probabilities ``(N, outputs)``, as `stepless.tabular.models.calibration` computes them."""
    plain = getattr(calibration, "plain", calibration)
    score = graph.chain(score, ("Max", -LARGEST_SCORE), ("Min", LARGEST_SCORE))
    if isinstance(plain, Temperature):
        return _softmax(graph, score, plain.temperature)
    if isinstance(plain, Curve):
        return _sigmoid(graph, score, (plain,) * outputs)
    if isinstance(plain, Curves):
        return _sigmoid(graph, score, plain.curves)
    raise ValueError(f"this calibration cannot go to ONNX: {type(calibration).__name__}.")


def _sigmoid(graph: _Graph, score: str, curves: tuple[Curve, ...]) -> str:
    above = graph.chain(score, ("Sub", BEND), ("Max", 0.0))
    below = graph.chain(graph.add("Sub", -BEND, score), ("Max", 0.0))
    far = [graph.add("Mul", BEND, graph.add("Div", x, graph.add("Add", x, BEND))) for x in (above, below)]
    s = graph.chain(score, ("Max", -BEND), ("Min", BEND))
    s = graph.add("Sub", graph.add("Add", s, far[0]), far[1])
    z = graph.constant(np.array([[curve.logits[0] for curve in curves]]))
    pieces = (zip(c.points[:-1], np.diff(c.points), c.slopes, strict=True) for c in curves)
    for piece in zip_longest(*pieces, fillvalue=(0.0, 0.0, 0.0)):  # a curve of fewer pieces adds 0
        start, width, slope = np.array(piece).T[:, None]
        z = graph.add("Add", z, graph.chain(s, ("Sub", start), ("Max", 0.0), ("Min", width), ("Mul", slope)))
    return graph.add("Div", 1.0, graph.add("Add", 1.0, graph.add("Exp", graph.add("Neg", z))))


def _softmax(graph: _Graph, score: str, temperature: float) -> str:
    last, room = np.array([-1]), CAP - STRAIGHT
    behind = graph.add("Sub", graph.add("ReduceMax", score, last, keepdims=1), score)
    behind = graph.add("Div", behind, temperature)
    beyond = graph.chain(behind, ("Sub", STRAIGHT), ("Max", 0.0))
    far = graph.add("Mul", room, graph.add("Div", beyond, graph.add("Add", beyond, room)))
    z = graph.add("Sub", graph.add("Neg", graph.add("Min", behind, STRAIGHT)), far)
    total = graph.add("ReduceSum", graph.add("Exp", z), last, keepdims=1)
    return graph.add("Exp", graph.add("Sub", z, graph.add("Log", total)))


def _decide(graph: _Graph, probability: str, model: Model) -> list[onnx.ValueInfoProto]:
    """Add the three outputs to the graph, and return their types."""
    label, probabilities, decision = OUTPUTS
    width, labels = len(model.classes), _label_array(model)
    if model.task == "binary":
        other = graph.add("Sub", 1.0, probability)
        both = (other, probability) if model.positive == 1 else (probability, other)
        graph.add("Concat", *both, axis=1, result=probabilities)
        graph.add("Sub", graph.add("Squeeze", probability, np.array([1])), model.cut, result=decision)
        places = np.array([1 - model.positive, model.positive])  # type: ignore[operator]
        yes = graph.add("Cast", graph.add("GreaterOrEqual", decision, 0.0), to=TensorProto.INT64)
        graph.add("Gather", labels[places], yes, axis=0, result=label)
    elif model.task == "multilabel":
        graph.add("Identity", probability, result=probabilities)
        graph.add("Sub", probability, model.cut, result=decision)
        graph.add("Cast", graph.add("GreaterOrEqual", decision, 0.0), to=TensorProto.INT64, result=label)
    else:
        graph.add("Identity", probability, result=probabilities)
        graph.add("Sub", graph.add("Log", probability), model.cut, result=decision)
        graph.add("Gather", labels, graph.add("ArgMax", decision, axis=1, keepdims=0), axis=0, result=label)
    each = [width] if model.task == "multilabel" else []
    kind = TensorProto.INT64 if model.task == "multilabel" else _tensor_type(labels)
    return [
        helper.make_tensor_value_info(label, kind, ["rows", *each]),
        helper.make_tensor_value_info(probabilities, TensorProto.DOUBLE, ["rows", width]),
        helper.make_tensor_value_info(
            decision, TensorProto.DOUBLE, ["rows", *([] if model.task == "binary" else [width])]
        ),
    ]


def _label_array(model: Model) -> Array:
    """The classes as a type that ONNX has: text, int64, bool or float64."""
    values = model.classes.tolist()
    kinds = {type(value) for value in values}
    types: dict[type, Any] = {str: object, int: np.int64, bool: np.bool_, float: np.float64}
    fits = len(kinds) == 1 and kinds <= set(types)
    if not fits or (kinds == {int} and not all(-(2**63) <= value < 2**63 for value in values)):
        found = sorted(kind.__name__ for kind in kinds)
        raise ValueError(f"labels that go to ONNX are text, int64, bool or float, all of one type; got {found}.")
    return np.array(values, types[kinds.pop()])


def _tensor_type(labels: Array) -> int:
    return TensorProto.STRING if labels.dtype == object else int(helper.np_dtype_to_tensor_dtype(labels.dtype))
