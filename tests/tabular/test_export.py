"""ONNX: what onnxruntime says about an exported model, against the model itself."""

import builtins
import importlib
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from torch import nn

from stepless.tabular import export
from stepless.tabular.export import to_onnx
from stepless.tabular.models.calibration import Identity
from stepless.tabular.models.columns import Category
from stepless.tabular.models.export_inputs import feed, input_names, missing_text
from stepless.tabular.models.members import FactoryMember
from stepless.tabular.models.preprocessing import Features, fit_features
from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.tables.frames import read_table
from tests.tabular.fitted import TASKS, frame, make_model, net
from tests.tabular.onnx_runs import check, session_of, unlike


def balanced(task, X, **changes):
    """A model whose threshold or offsets split the rows, so that labels are a test."""
    model = make_model(task, X, **changes)
    p = model.probabilities(read_table(X))
    if task == "multiclass":
        threshold = tuple(np.median(np.log(p), 0).tolist())
    elif task == "multilabel":
        threshold = tuple(np.median(p, 0).tolist())
    else:
        threshold = float(np.median(p[:, model.positive]))
    return make_model(task, X, **{**changes, "threshold": threshold})


class TestLabels:
    @pytest.mark.parametrize("task", TASKS)
    def test_mixed_columns(self, task, tmp_path):
        label = check(balanced(task, frame()), unlike(), tmp_path)
        assert len(set(map(str, label))) > 1

    @pytest.mark.parametrize("task", TASKS)
    def test_numbers_alone(self, task, tmp_path):
        random = np.random.default_rng(0)
        X = random.normal(size=(400, 6)).astype(np.float32)
        X[random.random(X.shape) < 0.05] = np.nan
        X[:, 3] = 7.0  # constant
        model = balanced(task, X)
        more = random.normal(size=(10_000, 6))
        more[random.random(more.shape) < 0.05] = np.nan
        label = check(model, more, tmp_path)
        assert len(set(map(str, label))) > 1
        assert input_names(model.features) == ("X",)

    @pytest.mark.parametrize(
        "classes",
        [["bad", "good"], [-1, 1], [False, True], [0.5, 2.5], np.array([3, 2**40])],
        ids=["text", "int", "bool", "float", "large"],
    )
    @pytest.mark.parametrize("positive", [0, 1])
    def test_labels_of_every_type(self, classes, positive, tmp_path):
        model = balanced("binary", frame(), classes=classes, positive=positive)
        label = check(model, frame(500, seed=1), tmp_path)
        assert set(label.tolist()) == set(np.asarray(classes).tolist())

    @pytest.mark.parametrize("threshold", [-np.inf, np.inf])
    def test_a_threshold_that_always_says_the_same(self, threshold, tmp_path):
        label = check(make_model(threshold=threshold), frame(50), tmp_path)
        assert set(label) == {"good" if threshold < 0 else "bad"}
        facts = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
        assert json.loads(facts["threshold"]) == str(threshold)  # a bare Infinity is no JSON

    @pytest.mark.parametrize("task", TASKS)
    def test_no_calibration(self, task, tmp_path):
        check(balanced(task, frame(), calibration=Identity(task)), frame(2000, seed=2), tmp_path)

    @pytest.mark.parametrize("task", TASKS)
    def test_sure_nets(self, task, tmp_path):
        """Logits of hundreds, where a probability is 0 or 1 to a double: scores stay finite, as ours do."""
        model = make_model(task)
        for member in model.members:
            for tensor in member.tensors.values():
                tensor.mul_(30)
        check(model, frame(2000, seed=3), tmp_path)

    def test_a_member_without_weight_is_left_out(self, tmp_path):
        model = make_model(weights=(1.0, 0.0))
        check(model, frame(100), tmp_path)
        assert sum(node.op_type == "MatMul" for node in onnx.load(tmp_path / "model.onnx").graph.node) == 2

    def test_one_row_and_one_column(self, tmp_path):
        check(make_model(X=frame()[["city"]]), frame(1)[["city"]], tmp_path)
        check(make_model(X=frame()[["age"]].to_numpy()), frame(1)[["age"]].to_numpy(), tmp_path)

    def test_preprocessing_switched_off(self, tmp_path):
        X = np.random.default_rng(0).normal(size=(300, 3))
        features = fit_features(read_table(X), enabled=False)
        check(make_model(X=X, features=features, threshold=0.5), 2 * X, tmp_path)

    def test_nets_of_a_factory(self, tmp_path):
        X = np.random.default_rng(0).normal(size=(300, 4))

        def factory():
            return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1))

        nets = FactoryMembers(factory, 3, seeds=(0, 1, 2))
        member = FactoryMember(factory, nets.tensors(), 4, 1)
        model = make_model(X=X, members=(member, net(4, 1)), weights=(0.6, 0.4))
        median = float(np.median(model.probabilities(read_table(X))[:, 1]))
        model = make_model(X=X, members=(member, net(4, 1)), weights=(0.6, 0.4), threshold=median + 1e-6)
        check(model, X, tmp_path, tolerance=1e-6)

    def test_nets_of_a_factory_take_any_number_of_rows(self, tmp_path):
        X = np.random.default_rng(0).normal(size=(300, 4))

        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.out = nn.Linear(1, 8), nn.Linear(8, 1)
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

            def forward(self, x):
                h = self.embed(x[..., None])
                return self.out(self.attention(h, h, h, need_weights=False)[0].mean(1))

        class Counted(nn.Linear):
            def forward(self, x):
                return super().forward(x) * len(x)

        for factory in (Attention, lambda: Counted(4, 1)):
            member = FactoryMember(factory, FactoryMembers(factory, 2, seeds=(0, 1)).tensors(), 4, 1)
            model = make_model(X=X, members=(member,), weights=(1.0,), threshold=0.5)
            if factory is Attention:
                check(model, X, tmp_path, tolerance=1e-6)
            else:  # the graph would multiply by the number of rows that it was made with
                with pytest.raises(ValueError, match=r"\(Counted\) for one number of rows alone.* x\.shape\[0\]"):
                    to_onnx(model, tmp_path / "model.onnx")

    def test_nets_of_a_factory_that_share_weights(self, tmp_path):
        X = np.random.default_rng(0).normal(size=(300, 4))

        class Sharing(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
                self.second.weight = self.first.weight
                self.register_buffer("scale", torch.rand(4), persistent=False)

            def forward(self, x):
                x.mul_(self.scale)  # in place
                return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))

        member = FactoryMember(Sharing, FactoryMembers(Sharing, 2, seeds=(0, 1)).tensors(), 4, 1)
        check(make_model(X=X, members=(member,), weights=(1.0,), threshold=0.5), X, tmp_path, tolerance=1e-6)


class TestColumns:
    def test_many_levels(self, tmp_path):
        random = np.random.default_rng(0)
        X = pd.DataFrame({"code": random.integers(0, 200, 3000).astype(str), "x": random.normal(size=3000)})
        check(balanced("binary", X), X, tmp_path)

    def test_names_that_the_graph_cannot_have(self, tmp_path):
        X = frame().rename(columns={"age": "label", "income": "", "city": "column 1"})
        model = make_model(X=X)
        assert input_names(model.features) == ("column 0", "column 1_", "column 1")
        check(model, X, tmp_path)

    def test_names_like_those_inside(self, tmp_path):
        X = frame().rename(columns={"age": "constant_7", "income": "Add_30", "city": "node_9"})
        check(make_model(X=X), X, tmp_path)

    def test_without_names(self, tmp_path):
        X = frame().to_numpy()
        model = make_model(X=X)
        assert input_names(model.features) == ("x0", "x1", "x2")
        check(model, X, tmp_path)

    def test_an_empty_text_that_is_a_level(self, tmp_path):
        X = pd.DataFrame({"a": ["", "x", None, "y"] * 50, "b": np.arange(200.0)})
        model = balanced("binary", X)
        assert missing_text(model.features.columns[0]) == "<missing>"
        check(model, X, tmp_path)
        assert missing_text(Category(("", "<missing>"), other=False, missing=True)) == "<missing<missing>>"
        assert missing_text(Category(("x",), other=False, missing=True)) == ""

    def test_an_empty_text_that_is_no_level_is_not_missing(self, tmp_path):
        X = pd.DataFrame({"a": ["x", None, "y", "x"] * 50, "b": np.arange(200.0)})
        check(make_model(X=X), X.assign(a=["", None, "<missing>", "x"] * 50), tmp_path)

    def test_numbers_as_categories_and_columns_all_missing(self, tmp_path):
        X = pd.DataFrame({"a": pd.Categorical([1, 2, 3, 1] * 50), "b": [None] * 200, "c": np.arange(200.0)})
        check(balanced("binary", X), X, tmp_path)

    def test_bools_and_ids_among_text_in_rows_without_text(self, tmp_path):
        values = [True, False, 2**60 + 1, "unknown"]
        X = pd.DataFrame({"a": pd.Series(values * 50, dtype=object), "b": np.arange(200.0)})
        check(balanced("binary", X), X[X["a"] != "unknown"], tmp_path)

    @pytest.mark.parametrize("far", [2147483647.0, -999999999.0, 1e20])
    @pytest.mark.parametrize("text", [False, True], ids=["numbers", "mixed"])
    def test_a_far_value_among_others(self, far, text, tmp_path):
        random = np.random.default_rng(0)
        X = pd.DataFrame({"a": random.normal(size=2000), "b": random.normal(size=2000)})
        X.loc[:20, "a"] = far
        X.loc[10:40, "a"] = np.nan
        if text:
            X["c"] = random.choice(["u", "v"], 2000)
        model = balanced("binary", X)
        assert [column.inner is not None for column in model.features.columns[:2]] == [True, False]
        check(model, X, tmp_path)

    def test_text_where_numbers_were(self):
        features = fit_features(read_table(frame()))
        with pytest.raises(ValueError, match="column 'age' held numbers when the model was fitted; got text"):
            feed(features, read_table(frame().assign(age="old")))

    def test_text_that_is_all_missing_where_numbers_were(self, tmp_path):
        pl = pytest.importorskip("polars")
        for columns in (["age"], ["age", "city"]):
            X = frame()[columns]
            empty = pl.from_pandas(X).with_columns(pl.lit(None, dtype=pl.String).alias("age"))
            check(make_model(X=X), empty, tmp_path)

    def test_wrong_columns(self):
        features = fit_features(read_table(frame()))
        with pytest.raises(ValueError, match="feature names should match"):
            feed(features, read_table(frame().rename(columns={"age": "years"})))


class TestFile:
    def test_it_says_what_it_is(self, tmp_path):
        session = session_of(make_model(classes=["no", "yes"]), tmp_path)
        about = session.get_modelmeta().custom_metadata_map
        assert about["task"] == "binary"
        assert about["metric"] == "f1"
        assert json.loads(about["classes"]) == ["no", "yes"]
        assert json.loads(about["threshold"]) == 0.4
        assert json.loads(about["missing_text"]) == {"city": ""}

    def test_it_runs_without_us(self, tmp_path):
        """In a process that has onnxruntime and numpy alone, on rows typed by hand."""
        model = make_model()
        to_onnx(model, tmp_path / "model.onnx")
        code = (
            "import sys, numpy as np, onnxruntime\n"
            "session = onnxruntime.InferenceSession(sys.argv[1])\n"
            "rows = {'age': np.array([[31.0], [np.nan]]), 'income': np.array([[np.nan], [2e4]]),"
            " 'city': np.array([['Ulm'], ['']], object)}\n"
            "print(*session.run(['label'], rows)[0], 'torch' in sys.modules, 'stepless' in sys.modules)\n"
        )
        said = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "model.onnx"], capture_output=True, text=True, check=True
        )
        rows = read_table(pd.DataFrame({"age": [31.0, None], "income": [None, 2e4], "city": ["Ulm", None]}))
        assert said.stdout.split() == [*model.labels(rows), "False", "False"]

    def test_a_failure_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "model.onnx"
        to_onnx(make_model(), path)
        before = path.read_bytes()

        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            to_onnx(make_model("multiclass"), path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_the_same_model_gives_the_same_file(self, tmp_path):
        for name in ("a", "b"):
            to_onnx(make_model(), tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class TestErrors:
    def test_labels_onnx_does_not_have(self, tmp_path):
        model = make_model(classes=np.array([1, "a"], object))
        with pytest.raises(ValueError, match=r"text, int64, bool or float, all of one type; got \['int', 'str'\]"):
            to_onnx(model, tmp_path / "model.onnx")
        model = make_model(classes=np.array([1, 2**63], np.uint64))
        with pytest.raises(ValueError, match="text, int64, bool or float"):
            to_onnx(model, tmp_path / "model.onnx")
        assert not list(tmp_path.iterdir())

    def test_members_of_another_kind(self, tmp_path):
        class Other:
            kind, inputs, outputs = "oracle", make_model().features.width, 1

        with pytest.raises(ValueError, match="members that go to ONNX are nets and trees; got one of kind 'oracle'"):
            to_onnx(make_model(members=(Other(),), weights=(1.0,)), tmp_path / "model.onnx")

    def test_a_net_that_torch_cannot_export(self, tmp_path):
        class Strange(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return x.sum(1, keepdim=True) * self.weight * float(np.tanh(x.sum().item()))

        member = FactoryMember(Strange, FactoryMembers(Strange, 1, (0,)).tensors(), 2, 1)
        model = make_model(X=np.random.default_rng(0).normal(size=(20, 2)), members=(member,), weights=(1.0,))
        with pytest.raises(ValueError, match=r"torch cannot export a net of the factory \(Strange\) to ONNX"):
            to_onnx(model, tmp_path / "model.onnx")

    def test_without_onnx(self, monkeypatch):
        real = builtins.__import__

        def without(name, *arguments, **options):
            if name.split(".")[0] == "onnx":
                raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
            return real(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ModuleNotFoundError, match=r'exporting to ONNX needs onnx: pip install "stepless\[onnx\]"'):
            importlib.reload(export)

    def test_features_without_a_column_to_show(self, tmp_path):
        """A category that was always missing at one level, and one without any, next to a number."""
        features = Features(
            None, (Category((), other=False, missing=True), *fit_features(read_table([[1.0], [2.0]])).columns)
        )
        model = make_model(X=[["a", 1.0], ["b", 2.0]], features=features, members=(net(2, 1),), weights=(1.0,))
        check(model, [[None, 1.0], ["b", 2.0]], tmp_path)
