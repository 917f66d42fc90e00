"""Trees in ONNX: the same paths and the same scores as in the libraries that grew them."""

import json
import sys

import catboost
import lightgbm
import numpy as np
import onnx
import pytest
from sklearn.metrics import roc_auc_score

from stepless.costs import Costs
from stepless.metrics import METRICS
from stepless.tabular.booster import MetricBooster
from stepless.tabular.estimator import MetricClassifier
from stepless.tabular.export import to_onnx
from stepless.tabular.loading import load
from stepless.tabular.models.calibration import Identity
from stepless.tabular.models.export_inputs import feed
from stepless.tabular.models.preprocessing import fit_features
from stepless.tabular.tables.frames import read_table
from stepless.tabular.trees.files import trimmed_lightgbm
from stepless.tabular.trees.members import BoosterMember, catboost_bytes
from stepless.tabular.trees.nodes import make_forest
from stepless.tabular.trees.steppers import Rows, Settings, make_stepper
from tests.tabular.fitted import frame, make_model, net
from tests.tabular.onnx_runs import check, session_of, unlike

LIBRARIES = ("lightgbm", "xgboost", "catboost")
TASKS = ("binary", "multiclass")
#: XGBoost adds in float32, and so does onnxruntime, not always in the same order.
TOLERANCE = {"lightgbm": 1e-12, "xgboost": 1e-6, "catboost": 1e-12}


def target_of(matrix, classes, seed=0):
    """Classes that follow the features, with some noise."""
    random = np.random.default_rng(seed)
    signal = np.sin(2 * matrix[:, 0]) + matrix[:, 1] * matrix[:, -1] + random.normal(size=len(matrix)) / 2
    return np.searchsorted(np.quantile(signal, np.arange(1, classes) / classes), signal)


def trees(library, matrix, task="binary", n=2, rounds=25, **params):
    """As many boosters on these rows, which differ in their rows and starts."""
    classes = 2 if task == "binary" else 3
    rounds = min(rounds, 6) if (library, task) == ("catboost", "multiclass") else rounds  # which takes its time
    costs = Costs(METRICS["f1"], task, classes, None if task == "binary" else "macro", "cross_entropy")
    boosters, starts = [], []
    for seed in range(n):
        own = np.random.default_rng(seed).choice(len(matrix), len(matrix) * 4 // 5, replace=False)
        rows = Rows(matrix[own], target_of(matrix, classes)[own], None, matrix[:0])
        stepper = make_stepper(costs, rows, Settings(library, rounds, 0.2, params, seed, 1))
        for _ in range(rounds):
            stepper.step(np.eye(classes))
        boosters.append(stepper.finish(rounds))
        starts.append(tuple((stepper.initial + 0.1 * seed).tolist()))
    return BoosterMember(library, tuple(boosters), matrix.shape[1], tuple(starts))


def tree_model(task, X, *members, **changes):
    """A model of these members whose threshold or offsets split the rows, and are no row's own score."""
    weights = tuple((np.arange(len(members)) + 1) / np.arange(1, len(members) + 1).sum())
    changes = {"members": members, "weights": weights, **changes}
    model = make_model(task, X, **changes)
    p = model.probabilities(read_table(X))
    if task == "multiclass":
        threshold = tuple((np.median(np.log(p), 0) + np.array([0.0137, -0.0071, 0])).tolist())
    else:
        values = np.unique(p[:, model.positive].round(9))
        threshold = float(values[len(values) // 2 :][:2].mean())
    return make_model(task, X, **{**changes, "threshold": threshold})


def matrix_of(X):
    table = read_table(X)
    return fit_features(table).matrix(table)


def on_thresholds(member, rows=10_000):
    """Rows of what splits compare with, and of the float32 numbers next to that."""
    attributes = make_forest(member).attributes
    feature, threshold = np.array(attributes["nodes_featureids"]), attributes["nodes_splits"].astype(np.float64)
    random = np.random.default_rng(7)
    columns = []
    for place in range(member.inputs):
        own = threshold[feature == place].astype(np.float32)
        own = own if len(own) else np.zeros(1, np.float32)
        near = np.concatenate([own, np.nextafter(own, np.float32(np.inf)), np.nextafter(own, np.float32(-np.inf))])
        columns.append(random.choice(near, rows))
    return np.stack(columns, 1)


class TestLabels:
    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_mixed_columns(self, library, task, tmp_path):
        X = frame(600)
        model = tree_model(task, X, trees(library, matrix_of(X), task))
        label = check(model, unlike(), tmp_path, TOLERANCE[library])
        assert len(np.unique(label)) == (2 if task == "binary" else 3)

    @pytest.mark.parametrize("task", TASKS)
    def test_nets_and_trees(self, task, tmp_path):
        X = frame(600)
        matrix = matrix_of(X)
        nets = net(matrix.shape[1], 1 if task == "binary" else 3)
        model = tree_model(task, X, trees("lightgbm", matrix, task), nets, trees("catboost", matrix, task, n=1))
        check(model, unlike(), tmp_path)

    @pytest.mark.parametrize("positive", [0, 1])
    def test_numbers_alone(self, positive, tmp_path):
        X = np.random.default_rng(1).normal(size=(600, 4))
        X[::7, 2] = np.nan
        member = trees("lightgbm", matrix_of(X))
        model = tree_model("binary", X, member, classes=[-1, 1], positive=positive, calibration=Identity("binary"))
        assert set(check(model, np.roll(X, 1, 0), tmp_path)) == {-1, 1}

    @pytest.mark.parametrize("rows", [1, 2, 100])
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_few_rows_and_many_trees(self, library, rows, tmp_path):
        """There onnxruntime shares trees, not rows, between its threads."""
        X = frame(300)
        model = tree_model("binary", X, trees(library, matrix_of(X), n=3, rounds=60))
        check(model, frame(rows, seed=8), tmp_path, TOLERANCE[library], threads=2)

    @pytest.mark.parametrize("classes", [2, 3])
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_a_fitted_booster(self, library, classes, tmp_path):
        X, new = frame(400), unlike()
        y = np.array(["no", "yes", "perhaps"])[target_of(matrix_of(X), classes)]
        model = MetricBooster("f1", library, n_members=2, n_estimators=10, random_state=0).fit(X, y)
        model.to_onnx(tmp_path / "model.onnx")
        session = session_of(model.model_, tmp_path)
        label, probabilities = session.run(["label", "probabilities"], feed(model.model_.features, read_table(new)))
        np.testing.assert_array_equal(label, model.predict(new))
        np.testing.assert_allclose(probabilities, model.predict_proba(new), rtol=0, atol=1e-5)

    @pytest.mark.parametrize(("far", "count"), [(2147483647.0, 100), (-999999999.0, 100), (1e20, 1)])
    @pytest.mark.parametrize("kind", ["trees", "nets"])
    def test_a_far_value_hides_no_others(self, kind, far, count, tmp_path):
        """It once left the column with 2 to 4 values, and a ROC area of 0.56 where LightGBM alone has 0.96."""
        random = np.random.default_rng(0)
        x = random.normal(size=2000)
        y = (x + 0.3 * random.normal(size=2000) > 0.8).astype(int)
        x[:count] = far
        X = np.c_[x, random.normal(size=2000)]
        estimator = (
            MetricBooster(n_members=2, n_estimators=60, random_state=0)
            if kind == "trees"
            else MetricClassifier(n_members=2, random_state=0)
        )
        model = estimator.fit(X[::2], y[::2])
        assert roc_auc_score(y[1::2], model.predict_proba(X[1::2])[:, 1]) > 0.95
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        check(again.model_, X, tmp_path)


class TestPaths:
    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_rows_on_the_thresholds(self, library, task, tmp_path):
        X = np.random.default_rng(2).normal(size=(800, 4)).astype(np.float32)
        features = fit_features(read_table(X), enabled=False)
        member = trees(library, X, task)
        model = tree_model(task, X, member, features=features)
        check(model, on_thresholds(member), tmp_path, TOLERANCE[library])

    def test_few_distinct_values(self, tmp_path):
        """Thresholds next to zero, where LightGBM has bounds of its own."""
        X = np.random.default_rng(3).integers(-2, 3, (800, 4)).astype(np.float32) * np.float32(1e-30)
        features = fit_features(read_table(X), enabled=False)
        member = trees("lightgbm", X)
        check(tree_model("binary", X, member, features=features), on_thresholds(member, 2000), tmp_path)

    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("policy", ["Depthwise", "Lossguide"])
    def test_catboost_trees_that_branch(self, policy, task, tmp_path):
        X = np.random.default_rng(4).normal(size=(600, 4)).astype(np.float32)
        outputs = 1 if task == "binary" else 3
        booster = catboost.CatBoost(
            {
                "iterations": 20, "grow_policy": policy, "loss_function": "MultiClass" if outputs > 1 else "Logloss",
                "logging_level": "Silent", "allow_writing_files": False, "thread_count": 1,
            }
        )  # fmt: skip
        booster.fit(X, target_of(X, max(2, outputs)))
        scale, bias = 0.7, 0.3 if outputs == 1 else [0.3, -0.2, 0.1]
        booster.set_scale_and_bias(scale, bias)
        member = BoosterMember("catboost", (catboost_bytes(booster),), 4, ((0.1,) * outputs,))
        features = fit_features(read_table(X), enabled=False)
        check(tree_model(task, X, member, features=features), on_thresholds(member), tmp_path)

    @pytest.mark.parametrize(
        ("library", "params", "some"),
        [
            ("lightgbm", {"min_gain_to_split": 1e9}, False),
            ("xgboost", {"gamma": 1e9}, False),
            ("xgboost", {"gamma": 8.0}, True),
            ("catboost", {"min_data_in_leaf": 10_000, "grow_policy": "Depthwise"}, False),
        ],
    )
    def test_trees_of_one_leaf(self, library, params, some, tmp_path):
        """Some, or all there are."""
        X = frame(300)
        member = trees(library, matrix_of(X), **params)
        attributes = make_forest(member).attributes
        ends = [np.array(attributes[f"nodes_{side}nodeids"]) for side in ("true", "false")]
        leaves = np.multiply(attributes["nodes_trueleafs"], attributes["nodes_falseleafs"]) == 1
        alone = np.subtract(*(attributes["leaf_weights"][np.where(leaves, end, 0)] for end in ends))[leaves] == 0
        assert alone.any()
        assert (alone.all() and leaves.all()) != some
        model = make_model(X=X, members=(member,), weights=(1.0,), threshold=0.123)
        check(model, frame(1000, seed=2), tmp_path, TOLERANCE[library])

    @pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
    @pytest.mark.parametrize("task", ["binary", "multiclass"])
    def test_the_children_of_a_split_have_two_numbers(self, library, task):
        """A split and a leaf of one number are the same to onnxruntime before 1.24, which decides otherwise then."""
        grown = {"grow_policy": "Lossguide"} if library == "catboost" else {}
        for rounds in (1, 7, 25):
            attributes = make_forest(trees(library, matrix_of(frame(300)), task, rounds=rounds, **grown)).attributes
            assert not np.equal(attributes["nodes_truenodeids"], attributes["nodes_falsenodeids"]).any()


class TestFile:
    def test_operators_of_trees_only_where_there_are_trees(self, tmp_path):
        X = frame()
        member = trees("lightgbm", matrix_of(X), rounds=2)
        versions = []
        for weights in ((0.5, 0.5), (1.0, 0.0)):
            model = make_model(X=X, members=(net(member.inputs, 1), member), weights=weights)
            to_onnx(model, tmp_path / "model.onnx")
            proto = onnx.load(tmp_path / "model.onnx")
            versions.append({entry.domain: entry.version for entry in proto.opset_import}["ai.onnx.ml"])
            assert sum(node.op_type == "TreeEnsemble" for node in proto.graph.node) == (weights[1] > 0)
        assert versions == [5, 3]

    @pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
    def test_the_library_is_not_needed(self, library, tmp_path, monkeypatch):
        X = frame()
        model = make_model(X=X, members=(trees(library, matrix_of(X), rounds=2),), weights=(1.0,))
        monkeypatch.setitem(sys.modules, library, None)
        to_onnx(model, tmp_path / "model.onnx")


class TestErrors:
    def test_zero_as_missing(self, tmp_path):
        X = np.random.default_rng(5).integers(-2, 3, (400, 3)).astype(np.float32)
        params = {"zero_as_missing": True, "verbosity": -1, "objective": "binary"}
        booster = lightgbm.train(params, lightgbm.Dataset(X, target_of(X, 2)), 3)
        # what our own boosters do not have: an objective
        text = trimmed_lightgbm(booster.model_to_string()).replace("objective=binary sigmoid:1\n", "")
        member = BoosterMember("lightgbm", (text.encode(),), 3, ((0.0,),))
        model = make_model(X=X, members=(member,), weights=(1.0,), features=fit_features(read_table(X), enabled=False))
        with pytest.raises(ValueError, match="for which zero is missing have no ONNX: leave zero_as_missing out"):
            to_onnx(model, tmp_path / "model.onnx")
        assert not list(tmp_path.iterdir())

    def test_trees_that_are_none(self, tmp_path):
        X = frame()
        member = trees("xgboost", matrix_of(X), n=1, rounds=1)
        document = json.loads(member.boosters[0])
        document["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][0] = 0
        broken = BoosterMember("xgboost", (json.dumps(document).encode(),), member.inputs, member.initial)
        with pytest.raises(ValueError, match="every node of a tree but its root must be the child of one other"):
            to_onnx(make_model(X=X, members=(broken,), weights=(1.0,)), tmp_path / "model.onnx")
