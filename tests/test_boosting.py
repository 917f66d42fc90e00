"""A metric as a boosting objective: gradients of what is documented, hessians of the right size, every library."""

import copy
import pickle
import time
import warnings

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stepless as sl
from stepless import boosting
from stepless.costs import GREATEST_SHARE, LEAST_SHARE, Costs
from stepless.formula import resolve
from stepless.metrics import METRICS

FORMS = ("cost", "metric", "cross_entropy")
LIBRARIES = ("lightgbm", "xgboost", "catboost")
FORMULAS = ("tp / (tp + fp + fn)", lambda tp, fp, fn, tn: (tp + tn) / (tp + fp + 2 * fn + tn))


def rows(n=60, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes) * (rng.random(n - classes) < 0.6)])
    z = rng.normal(size=n if classes == 2 else (n, classes))
    return z, y.astype(np.int64), rng.random(n) + 0.5


def numeric(function, z, step=1e-6):
    slope = np.zeros_like(z)
    for place in np.ndindex(z.shape):
        up, down = z.copy(), z.copy()
        up[place] += step
        down[place] -= step
        slope[place] = (function(up) - function(down)) / (2 * step)
    return slope


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("metric", METRICS)
def test_gradients_are_those_of_the_documented_loss(metric, task, form):
    classes = 2 if task == "binary" else 4
    z, y, w = rows(20, classes)
    costs = Costs(METRICS[metric], task, classes, form=form)
    worth = costs.worth(costs.count(z, y, w))
    gradient, hessian = costs.derivatives(z, y, w, worth)
    np.testing.assert_allclose(gradient, numeric(lambda s: costs.loss(s, y, w, worth), z), atol=1e-6)
    assert gradient.shape == hessian.shape == z.shape
    assert (hessian > 0).all()
    plain, _ = costs.derivatives(z, y, None, worth)
    np.testing.assert_allclose(gradient, plain * (w if task == "binary" else w[:, None]))


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("metric", [*METRICS, *FORMULAS])
def test_the_metric_form_has_the_metrics_own_gradient(metric, task):
    """Up to a positive number: the counts are not held fixed here, but follow the scores."""
    classes = 2 if task == "binary" else 3
    z, y, w = rows(20, classes, seed=1)
    costs = Costs(resolve(metric), task, classes, form="metric")
    gradient, _ = costs.derivatives(z, y, w, costs.worth(costs.count(z, y, w)))
    slope = numeric(lambda s: float(costs.metric.distance(costs._evaluate(costs.count(s, y, w)))), z)
    scale = np.linalg.norm(gradient) / np.linalg.norm(slope)
    np.testing.assert_allclose(gradient, scale * slope, atol=1e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_cost_weights_are_the_metrics_partial_derivatives(metric, task):
    """By differences of the metric itself, at counts that soft decisions gave."""
    classes = 2 if task == "binary" else 3
    z, y, _ = rows(classes=classes, seed=2)
    costs = Costs(METRICS[metric], task, classes)
    counts = costs.count(z, y)
    slope = numeric(lambda c: float(costs.metric.distance(costs._evaluate(c))), counts, 1e-5)
    np.testing.assert_allclose(costs.gains(counts), -slope, atol=1e-7)
    if task == "binary":
        plus, minus = -slope[1, 1] + slope[1, 0], -slope[0, 0] + slope[0, 1]
        share = np.clip(max(plus, 0) / (max(plus, 0) + max(minus, 0)), LEAST_SHARE, GREATEST_SHARE)
        worth = costs.worth(counts)
        assert worth[1, 1] / worth.sum() == pytest.approx(share, abs=1e-6)
        assert worth[0, 1] == worth[1, 0] == 0


def test_f1_weights_are_those_of_its_best_threshold():
    """At an F1 of F, deciding at ½ with these weights is deciding at F/2 without."""
    costs = Costs(METRICS["f1"])
    worth = costs.worth(np.array([[80.0, 10.0], [4.0, 6.0]]))
    assert worth[0, 0] / worth.sum() == pytest.approx((12 / 26) / 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("metric", METRICS)
def test_hessians_are_as_large_as_those_of_cross_entropy(metric, form):
    """At even scores Σ is n/4, by weight; elsewhere the cost form's follows p(1 − p)."""
    _, y, w = rows(500)
    costs = Costs(METRICS[metric], form=form)
    zero = np.zeros(500)
    _, hessian = costs.derivatives(zero, y, w, costs.worth(costs.count(zero, y, w)))
    assert hessian.sum() == pytest.approx(w.sum() / 4, rel=0.05)
    several = Costs(METRICS[metric], "multiclass", 4, form=form)
    z, y, w = rows(500, 4)
    z = 0 * z
    _, hessian = several.derivatives(z, y, w, several.worth(several.count(z, y, w)))
    assert hessian.sum() == pytest.approx(w.sum(), rel=0.15)  # K · ¼ at most; softmax has K · 3/16 · 4/3


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(np.float64, (2, 2), elements=st.one_of(st.just(0.0), st.floats(1e-6, 1e9))),
    st.sampled_from(sorted(METRICS)),
    st.sampled_from(FORMS),
)
def test_worth_is_finite_at_any_counts(counts, metric, form):
    costs = Costs(METRICS[metric], form=form)
    counts = counts + np.diag([0.0, 1e-3])  # some row is there
    worth = costs.worth(counts)
    assert np.isfinite(worth).all()
    if form == "cost":
        assert (worth >= 0).all()
        assert counts.sum(1) @ worth.sum(1) == pytest.approx(counts.sum(), rel=1e-6)


def test_counts_add_up_over_blocks_and_equal_the_loss_of_the_same_step():
    z, y, w = rows(300)
    costs = Costs(METRICS["f1"])
    whole = costs.count(z, y, w)
    np.testing.assert_allclose(
        whole, sum(costs.count(z[i : i + 70], y[i : i + 70], w[i : i + 70]) for i in range(0, 300, 70))
    )
    soft = 1 - sl.MetricLoss("f1")(*(sl.numerics.torch.tensor(a) for a in (z, y, w))).item()
    assert float(costs._evaluate(whole)) == pytest.approx(soft)


@pytest.mark.parametrize("metric", ["f1", "error_rate", "cost", "mcc"])
def test_scores_are_the_metric_of_the_decisions_greater_being_better(metric):
    for classes in (2, 3):
        task = "binary" if classes == 2 else "multiclass"
        z, y, w = rows(classes=classes)
        sign = 1 if METRICS[metric].greater_is_better else -1
        expected = sign * sl.score(z, y, metric, sample_weight=w, task=task).item()
        assert Costs(METRICS[metric], task, classes).score(z, y, w) == pytest.approx(expected)


def test_start_and_link():
    f1 = boosting.objective("f1")
    y, w = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 3.0])
    np.testing.assert_allclose(f1.initial(y), [np.log(1 / 3)])
    np.testing.assert_allclose(f1.initial(y, w), [0.0], atol=1e-12)
    p = f1.link([-800.0, 0.0, 800.0])
    np.testing.assert_allclose(p, [[1, 0], [0.5, 0.5], [0, 1]])
    several = boosting.objective("f1", task="multiclass", classes=3)
    np.testing.assert_allclose(several.link([several.initial([0, 0, 1, 2])])[0], [0.5, 0.25, 0.25])
    assert np.isfinite(several.initial([0, 0, 1])).all()  # a class that is not there


def table(n=600, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    score = X[:, 0] + 0.5 * X[:, 1] ** 2 + rng.normal(0, 0.7, n)
    return X, np.digitize(score, [1.6] if classes == 2 else [0.0, 1.6])


def train(library, classes, rounds=40, metric="f1", weight=None, **options):
    """Raw scores of the rows, grown from the prior by the library's own training function."""
    X, y = table(classes=classes)
    task = {"task": "multiclass", "classes": classes} if classes > 2 else {}
    known = {"target": y, "sample_weight": weight} if library == "catboost" else {}
    aim = boosting.objective(metric, library, **task, **known, **options)
    start = np.tile(aim.initial(y, weight), (len(y), 1))
    start = start[:, 0] if classes == 2 else start
    if library == "lightgbm":
        data = lightgbm.Dataset(X, y, weight=weight, init_score=start)
        params = {"objective": aim, "verbose": -1, "num_threads": 1, "num_class": 1 if classes == 2 else classes}
        return aim, y, start + lightgbm.train(params, data, rounds).predict(X)
    if library == "xgboost":
        data = xgboost.DMatrix(X, y, weight=weight, base_margin=start)
        params = {"nthread": 1, "disable_default_eval_metric": 1, "base_score": 0.0}
        params |= {"num_class": classes, "objective": "multi:softprob"} if classes > 2 else {}
        return aim, y, xgboost.train(params, data, rounds, obj=aim).predict(data, output_margin=True)
    params = {"loss_function": aim, "eval_metric": boosting.evaluation(metric, library, **task), "iterations": rounds}
    params |= {"classes_count": classes} if classes > 2 else {}
    quiet = {
        "verbose": False,
        "allow_writing_files": False,
        "thread_count": 1,
        "boosting_type": "Plain",
        "learning_rate": 0.1,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba is not there
        model = catboost.CatBoost({**params, **quiet}).fit(catboost.Pool(X, y, weight=weight, baseline=start))
    return aim, y, start + model.predict(X, prediction_type="RawFormulaVal")


@pytest.mark.parametrize("form", ["cost", "metric"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_trains_with_it(library, classes, form):
    aim, y, scores = train(library, classes, form=form)
    p = aim.link(scores)
    assert ((p >= 0) & (p <= 1)).all()
    np.testing.assert_allclose(p.sum(1), 1)
    task = "binary" if classes == 2 else "multiclass"
    # from a rare class on, where its gradient is flat, the metric itself takes more rounds
    assert sl.score(scores, y, "f1", task=task) > (0.7 if form == "cost" else 0.5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_and_recall_move_the_decisions(library):
    """A metric of recall decides yes more often than a metric of precision."""
    _, y, wide = train(library, 2, 20, "recall")
    _, _, narrow = train(library, 2, 20, "precision")
    assert (wide >= 0).mean() > y.mean() > (narrow >= 0).mean()
    _, _, weighted = train(library, 2, 20, "accuracy", weight=np.where(y == 1, 20.0, 1.0))
    _, _, plain = train(library, 2, 20, "accuracy")
    assert (weighted >= 0).sum() > (plain >= 0).sum()


def test_a_formula_to_be_minimised_equals_the_cost_it_says():
    """5 fn + fp asks for five times the weight, whatever the counts."""
    costs = boosting.objective("5*fn + fp", maximize=False).costs
    worth = costs.worth(np.array([[80.0, 10.0], [4.0, 6.0]]))
    assert worth[1, 1] / worth[0, 0] == pytest.approx(5)
    _, y, scores = train("lightgbm", 2, metric="5*fn + fp", maximize=False)
    assert boosting.evaluation("5*fn + fp", maximize=False).maximize is False
    assert ((scores >= 0) & (y == 0)).sum() > ((scores < 0) & (y == 1)).sum()


@pytest.mark.parametrize("classes", [2, 3])
def test_the_scikit_learn_classes_take_it_too(classes):
    X, y = table(classes=classes)
    task = {"task": "multiclass", "classes": classes} if classes > 2 else {}
    aim = boosting.objective("f1", **task)
    lgb = lightgbm.LGBMClassifier(objective=aim, n_estimators=30, verbose=-1, n_jobs=1).fit(X, y)
    raw = lgb.predict(X, raw_score=True)
    assert sl.score(raw, y, "f1", task=task.get("task", "binary")) > 0.7
    if classes == 2:
        xgb = xgboost.XGBClassifier(
            objective=boosting.objective("f1", "xgboost"), n_estimators=30, n_jobs=1, base_score=0.5
        )
        assert sl.score(xgb.fit(X, y).predict(X, output_margin=True), y, "f1") > 0.7


@pytest.mark.parametrize("classes", [2, 3])
def test_the_scikit_learn_classes_pass_their_weights(classes):
    """As the libraries' own training does, which gives the data and finds the weights in it."""
    X, y = table(classes=classes)
    weight = np.random.default_rng(1).integers(1, 5, len(y)).astype(float)
    several = {} if classes == 2 else {"task": "multiclass", "classes": classes}
    aim, number = boosting.objective("f1", **several), {} if classes == 2 else {"num_class": classes}
    lgb = lightgbm.LGBMClassifier(objective=aim, n_estimators=10, verbose=-1, n_jobs=1).fit(X, y, sample_weight=weight)
    own = lightgbm.train(
        {"objective": aim, "verbose": -1, "num_threads": 1, **number}, lightgbm.Dataset(X, y, weight=weight), 10
    )
    np.testing.assert_allclose(lgb.predict(X, raw_score=True), own.predict(X, raw_score=True))
    aim = boosting.objective("f1", "xgboost", **several)
    start, data = np.zeros((len(y), max(1, classes * (classes > 2)))), xgboost.DMatrix(X, y, weight=weight)
    data.set_base_margin(start)
    xgb = xgboost.XGBClassifier(objective=aim, n_estimators=10, n_jobs=1)
    xgb.fit(X, y, sample_weight=weight, base_margin=start)
    own = xgboost.train({"nthread": 1, **number}, data, 10, obj=aim)
    margin = own.predict(data, output_margin=True)
    np.testing.assert_allclose(xgb.get_booster().predict(data, output_margin=True), margin)
    data.set_weight(np.ones(len(y)))
    plain = xgboost.train({"nthread": 1, **number}, data, 10, obj=aim).predict(data, output_margin=True)
    assert np.abs(plain - margin).max() > 0.1


def test_catboost_refreshes_the_counts_after_each_pass():
    """Blocks in any order, of any size, and the worth is that of all rows of the last pass."""
    z, y, w = rows(200)
    aim = boosting.objective("f1", "catboost", target=y, sample_weight=w)
    first = aim.worth
    order = np.random.default_rng(0).permutation(200)
    blocks = np.split(order, [30, 31, 120])
    for block in blocks[:-1]:
        ders = aim.calc_ders_range(z[block], y[block].astype(float), w[block])
        gradient, hessian = aim.costs.derivatives(z[block], y[block], w[block], first)
        np.testing.assert_allclose(ders, -np.stack([gradient, hessian], 1))
        assert aim.worth is first
    aim.calc_ders_range(z[blocks[-1]], y[blocks[-1]].astype(float), w[blocks[-1]])
    np.testing.assert_allclose(aim.worth, aim.costs.worth(aim.costs.count(z, y, w)))


def test_evaluation_is_the_metric_in_each_librarys_form():
    X, y = table()
    z = X[:, 0]
    expected = sl.score(z, y, "f1").item()
    data = lightgbm.Dataset(X, y).construct()
    assert boosting.evaluation("f1")(z, data) == ("f1", pytest.approx(expected), True)
    assert boosting.evaluation("f1", "xgboost")(z, xgboost.DMatrix(X, y)) == ("f1", pytest.approx(expected))
    cat = boosting.evaluation("error_rate", "catboost")
    assert cat.get_final_error(*cat.evaluate([z], y, None)) == pytest.approx(sl.score(z, y, "error_rate").item())
    assert cat.is_max_optimal() is False


def test_early_stopping_on_the_metric():
    X, y = table()
    aim = boosting.objective("f1")
    start = aim.initial(y[:400])[0]
    data = lightgbm.Dataset(X[:400], y[:400], init_score=np.full(400, start))
    held = lightgbm.Dataset(X[400:], y[400:], init_score=np.full(200, start), reference=data)
    params = {"objective": aim, "metric": "None", "verbose": -1, "num_threads": 1}
    stop = lightgbm.early_stopping(10, verbose=False)
    booster = lightgbm.train(params, data, 300, [held], feval=boosting.evaluation("f1"), callbacks=[stop])
    assert 0 < booster.best_iteration < 300
    scores = start + booster.predict(X[400:], raw_score=True, num_iteration=booster.best_iteration)
    assert booster.best_score["valid_0"]["f1"] == pytest.approx(sl.score(scores, y[400:], "f1").item())


def test_objectives_can_be_copied_and_pickled():
    z, y, _ = rows()
    for aim in (boosting.objective("f1"), boosting.objective("tp / (tp + fp + fn)")):
        first = aim(y, z)
        for other in (copy.deepcopy(aim), pickle.loads(pickle.dumps(aim))):
            np.testing.assert_array_equal(other(y, z)[0], first[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: boosting.objective("f1", "sklearn"), "library must be one of 'lightgbm', 'xgboost', 'catboost'; got"),
        (lambda: boosting.objective("f11"), "did you mean 'f1'"),
        (lambda: boosting.objective("f1", form="soft"), "form must be one of"),
        (
            lambda: boosting.objective("f1", task="multiclass"),
            "needs to know how many classes there are: pass classes=",
        ),
        (lambda: boosting.objective("f1", classes=2), 'classes= is for task="multiclass"; a binary task has two'),
        (lambda: boosting.objective("auroc"), "'auroc' is one of the order of scores"),
        (lambda: boosting.objective("f1", task="multilabel"), "binary.*multiclass.*one model per label"),
        (lambda: boosting.objective("f1", "catboost"), "CatBoost shows an objective blocks of rows.*pass target="),
        (lambda: boosting.objective("f1", target=[0, 1]), "hands over all rows by itself; leave target"),
        (lambda: boosting.objective("f1")([0, 2], [0.0, 1.0]), "class indices 0 … 1, one a row; got"),
        (lambda: boosting.objective("f1")([0, 0.5], [0.0, 1.0]), "class indices 0 … 1, one a row; got"),
        (lambda: boosting.objective("f1")([0, 1], [0.0, 1.0, 2.0]), r"scores must have the shape \(2,\); got \(3,\)"),
        (lambda: boosting.objective("f1", task="multiclass", classes=3, average="none"), "boosting follows one score"),
        (lambda: boosting.evaluation("f1", "keras"), "library must be one of"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.full
def test_the_objective_costs_little():
    """A hundred thousand rows take no longer than a few passes of numpy over them."""
    z, y, _ = rows(100_000)
    aim = boosting.objective("f1")
    aim(y, z)
    begun = time.perf_counter()
    for _ in range(10):
        aim(y, z)
    assert (time.perf_counter() - begun) / 10 < 0.1


def curved(n=600, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    score = X[:, 0] + 0.5 * X[:, 1] ** 2 + rng.normal(0, 0.7, n)
    return X, np.digitize(score, [1.6] if classes == 2 else [0.0, 1.6])


@pytest.mark.parametrize("formula", ["tp / (tp + fp + fn)", "tp/(tp+fp+fn)"])
def test_a_formula_with_spaces_is_a_metric_of_xgboost(formula):
    """XGBoost writes the name into a line that it splits at spaces."""
    X, y = curved()
    data, log = xgboost.DMatrix(X, y, base_margin=np.zeros(len(y))), {}
    check, aim = boosting.evaluation(formula, "xgboost"), boosting.objective(formula, "xgboost")
    params = {"nthread": 1, "disable_default_eval_metric": 1}
    trees = xgboost.train(
        params, data, 3, obj=aim, custom_metric=check, evals=[(data, "own")], evals_result=log, verbose_eval=False
    )
    expected = sl.score(trees.predict(data, output_margin=True), y, formula).item()
    assert log["own"]["tp/(tp+fp+fn)"][-1] == pytest.approx(expected, abs=1e-6)
    assert "test-tp/(tp+fp+fn)-mean" in xgboost.cv(params, data, 3, obj=aim, custom_metric=check)


@pytest.mark.parametrize("classes", [2, 3])
def test_evaluations_work_in_the_scikit_learn_classes(classes):
    """They call a metric with target and scores; the value is that of the raw scores, by weight."""
    X, y = curved(classes=classes)
    weight = np.random.default_rng(1).integers(1, 5, len(y)).astype(float)
    several = {} if classes == 2 else {"task": "multiclass", "classes": classes}
    task = several.get("task", "binary")
    for each in (None, weight):
        lgb = lightgbm.LGBMClassifier(
            objective=boosting.objective("f1", **several), n_estimators=5, verbose=-1, n_jobs=1
        )
        weights, check = None if each is None else [each], boosting.evaluation("f1", **several)
        lgb.fit(X, y, eval_X=X, eval_y=y, eval_sample_weight=weights, eval_metric=check)
        expected = sl.score(lgb.predict(X, raw_score=True), y, "f1", sample_weight=each, task=task).item()
        assert lgb.evals_result_["valid_0"]["f1"][-1] == pytest.approx(expected)
        xgb = xgboost.XGBClassifier(
            objective=boosting.objective("f1", "xgboost", **several), n_estimators=5, n_jobs=1,
            eval_metric=boosting.evaluation("f1", "xgboost", **several),
        )  # fmt: skip
        xgb.fit(X, y, eval_set=[(X, y)], sample_weight_eval_set=weights, verbose=False)
        expected = sl.score(xgb.predict(X, output_margin=True), y, "f1", sample_weight=each, task=task).item()
        assert xgb.evals_result()["validation_0"]["f1"][-1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("objective", ["binary", "cross_entropy"])
def test_probabilities_of_lightgbms_own_objective_are_not_taken_for_scores(objective):
    """All are above 0, so every row would be decided positive, in every round."""
    X, y = curved()
    params, check = {"verbose": -1, "num_threads": 1}, boosting.evaluation("f1")
    for name in ("objective", "application"):
        data = lightgbm.Dataset(X, y)
        with pytest.raises(ValueError, match=f"objective='{objective}', shows probabilities.*form=\"cross_entropy\""):
            lightgbm.train({name: objective, **params}, data, 3, [data], feval=check)
    own = lightgbm.Dataset(X, y)
    same = {"objective": boosting.objective("f1", form="cross_entropy"), **params}
    trees = lightgbm.train(same, own, 3, [own], feval=check)
    assert trees.best_score["training"]["f1"] == pytest.approx(sl.score(trees.predict(X), y, "f1").item())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: boosting.objective("f1").initial(["no", "yes"]),
            r"class indices 0 … 1, one a row; got \['no', 'yes'\]",
        ),
        (lambda: boosting.objective("f1").initial([None, 1]), r"class indices 0 … 1, one a row; got \[None, 1\]"),
        (lambda: boosting.objective("f1").initial([0, 1, np.nan]), r"one a row; got \[0.0, 1.0, nan\]"),
        (lambda: boosting.objective("f1").initial([[0], [1]]), r"one a row; got an array of the shape \(2, 1\)"),
        (lambda: boosting.objective("f1", "catboost", target=["no", "yes"]), "class indices 0 … 1, one a row; got"),
        (lambda: boosting.objective("f1").initial([]), "the target is empty"),
        (lambda: boosting.objective("f1").initial([0, 1], [1.0]), r"one entry per row, shape \(2,\); got \(1,\)"),
        (lambda: boosting.objective("f1").initial([0, 1], [0.0, 0.0]), "at least one entry above 0"),
        (lambda: boosting.objective("f1", "catboost", target=[0, 1], sample_weight=[1, -1]), "and not negative"),
        (lambda: boosting.objective("f1", "catboost", target=[0, 1], sample_weight=[1, np.nan]), "must be finite"),
        (lambda: boosting.objective("f1", task="multi", classes=3), "task must be one of .*; got 'multi'"),
        (lambda: boosting.objective("f1", task="multiclass", classes=2.5), "classes must be a whole number; got 2.5"),
        (lambda: boosting.objective("f1", task="multiclass", classes="3"), "classes must be a whole number; got '3'"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_errors_say_what_was_got(call, message):
    with pytest.raises(ValueError, match=message):
        call()
