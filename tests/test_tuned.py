"""`TunedThreshold` keeps scikit-learn's conventions, tunes exactly, and says honestly what to expect."""

import math
import pickle
import subprocess
import sys
import textwrap
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_breast_cancer, load_iris, make_classification, make_multilabel_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    RepeatedStratifiedKFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import stepless as sl

LOGISTIC = LogisticRegression(max_iter=1000)
ODD_CLASSES = ["no", "yes"]


@pytest.fixture(scope="module")
def binary():
    """150 rows, a sixth of them positive, that overlap."""
    return make_classification(150, 6, n_informative=3, weights=[0.83], class_sep=0.7, flip_y=0.05, random_state=1)


@pytest.fixture(scope="module")
def cancer():
    """Breast cancer with few malignant cases."""
    X, y = load_breast_cancer(return_X_y=True)
    y = 1 - y
    few = np.flatnonzero(y == 1)[:40]
    rows = np.sort(np.concatenate([np.flatnonzero(y == 0), few]))
    return StandardScaler().fit_transform(X[rows])[:, :8], y[rows]


@pytest.fixture(scope="module")
def labels():
    return make_multilabel_classification(120, 8, n_classes=3, random_state=0)


# ---------------------------------------------------------------------------------------------------------------------
# scikit-learn's own checks
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["f1", "balanced_accuracy"])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(metric):
    # The one check that demands the decision to be the sign of decision_function and the argmax of predict_proba,
    # which is what this estimator exists to change. scikit-learn excuses its own TunedThresholdClassifierCV from it.
    expected = {"check_classifiers_train": "the threshold is not a probability of ½"}
    results = check_estimator(sl.TunedThreshold(LOGISTIC, metric), expected_failed_checks=expected)
    failed = {r["check_name"] for r in results if r["status"] == "xfail"}
    assert failed == set(expected)
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}


def test_it_trains_on_lists_and_refuses_what_does_not_fit(binary):
    """The rest of the check that is excused above."""
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC).fit(X.tolist(), y.tolist())
    assert model.predict(X).shape == y.shape
    assert model.predict_proba(X).shape == (len(y), 2)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, 1:])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])


# ---------------------------------------------------------------------------------------------------------------------
# The tuning
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["f1", "mcc", "balanced_accuracy", "cost", "(5*fn + fp) / n"])
def test_it_tunes_on_out_of_fold_scores(binary, metric):
    X, y = binary
    options = {"maximize": False} if "/" in metric else None
    model = sl.TunedThreshold(LOGISTIC, metric, metric_options=options).fit(X, y)
    scores = cross_val_predict(LOGISTIC, X, y, cv=5, method="predict_proba")[:, 1]
    alone = sl.tune_threshold(scores, y, metric, inputs="probabilities", **(options or {}))
    assert (model.best_threshold_, model.best_score_) == (alone.threshold, alone.score)
    assert model.tuning_ == alone
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X)[:, 1] >= model.best_threshold_)


@pytest.mark.parametrize("metric", ["f1", "balanced_accuracy"])
@pytest.mark.parametrize("estimator", [LOGISTIC, GaussianNB()], ids=["logistic", "bayes"])
def test_every_cut_is_at_least_as_good_as_a_grid(cancer, metric, estimator):
    X, y = cancer
    cv = StratifiedKFold(5, shuffle=True, random_state=0)
    ours = sl.TunedThreshold(estimator, metric, cv=cv).fit(X, y)
    theirs = TunedThresholdClassifierCV(estimator, scoring=metric, cv=cv).fit(X, y)
    scores = cross_val_predict(estimator, X, y, cv=cv, method="predict_proba")[:, 1]
    at_theirs = sl.score((scores >= theirs.best_threshold_).astype(float), y, metric, inputs="probabilities").item()
    assert ours.best_score_ >= at_theirs
    for name in ("estimator_", "best_threshold_", "best_score_", "classes_", "n_features_in_"):
        assert hasattr(theirs, name)
        assert hasattr(ours, name)


def test_decision_function(binary):
    X, y = binary
    model = sl.TunedThreshold(LinearSVC(), "f1").fit(X, y)
    scores = cross_val_predict(LinearSVC(), X, y, cv=5, method="decision_function")
    assert model.best_threshold_ == sl.tune_threshold(scores, y, "f1").threshold
    np.testing.assert_array_equal(model.predict(X), model.decision_function(X) >= model.best_threshold_)
    assert not hasattr(model, "predict_proba")
    asked = sl.TunedThreshold(LOGISTIC, response_method="decision_function").fit(X, y)
    np.testing.assert_array_equal(asked.predict(X), asked.decision_function(X) >= asked.best_threshold_)


def test_the_other_class_may_be_the_positive_one(binary):
    X, y = binary
    for estimator in (LOGISTIC, LinearSVC()):
        straight = sl.TunedThreshold(estimator, "f1", pos_label=0).fit(X, y)
        turned = sl.TunedThreshold(estimator, "f1").fit(X, 1 - y)
        assert straight.best_score_ == turned.best_score_
        np.testing.assert_allclose(straight.best_threshold_, turned.best_threshold_, atol=1e-4)
        assert straight.score(X, y) == pytest.approx(f1_score(y, straight.predict(X), pos_label=0))


def test_constraints(binary):
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC, "recall", subject_to="precision >= 0.7", nested=None).fit(X, y)
    counts = model.tuning_.counts
    assert counts.tp / (counts.tp + counts.fp) >= 0.7
    with pytest.raises(ValueError, match=r"no threshold meets .* the best attainable precision is"):
        sl.TunedThreshold(GaussianNB(), "recall", subject_to="precision >= 0.999 and recall >= 0.999").fit(X, y)


def test_multiclass(binary):
    X, y = load_iris(return_X_y=True)
    rows = np.concatenate([np.arange(60), np.arange(100, 125)])
    X, y = X[rows, :2], y[rows]
    for estimator, method in ((GaussianNB(), "predict_proba"), (LinearSVC(), "decision_function")):
        model = sl.TunedThreshold(estimator, "f1").fit(X, y)
        out = cross_val_predict(estimator, X, y, cv=5, method=method)
        assert model.best_score_ >= f1_score(y, out.argmax(1), average="macro")
        scores = getattr(model, method)(X)
        scores = np.log(scores) if method == "predict_proba" else scores
        np.testing.assert_array_equal(model.predict(X), np.argmax(scores - model.best_threshold_, 1))
        assert model.best_threshold_.shape == (3,)
        assert model.pos_label_ is None
        assert model.score(X, y) == pytest.approx(f1_score(y, model.predict(X), average="macro"))
        assert math.isfinite(model.nested_score_)


@pytest.mark.parametrize("average", [None, "micro", "weighted", "samples"])
def test_multilabel_matrix(labels, average):
    X, Y = labels
    model = sl.TunedThreshold(OneVsRestClassifier(LOGISTIC), "f1", average=average).fit(X, Y)
    scores = cross_val_predict(OneVsRestClassifier(LOGISTIC), X, Y, cv=5, method="predict_proba")
    alone = sl.tune_threshold(scores, Y, "f1", task="multilabel", average=average, inputs="probabilities")
    np.testing.assert_array_equal(model.best_threshold_, alone.threshold)
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) >= model.best_threshold_)
    expected = f1_score(Y, model.predict(X), average=average or "macro", zero_division=0)
    assert model.score(X, Y) == pytest.approx(expected)
    assert model.nested_scores_.shape == (5,)


@pytest.mark.parametrize(
    "estimator", [RandomForestClassifier(10, random_state=0), KNeighborsClassifier(), MultiOutputClassifier(LOGISTIC)]
)
def test_multilabel_list(labels, estimator):
    X, Y = labels
    Y = pd.DataFrame(np.column_stack([Y, np.zeros(len(Y), int)]))  # the last label never occurs: it has one column only
    if isinstance(estimator, MultiOutputClassifier):
        Y = Y.iloc[:, :3]
    model = sl.TunedThreshold(estimator, "f1", nested=None).fit(X, Y)
    decided = model.predict(X)
    assert decided.shape == Y.shape
    for j, p in enumerate(model.predict_proba(X)[:3]):
        np.testing.assert_array_equal(decided[:, j], p[:, 1] >= model.best_threshold_[j])
    assert not decided[:, 3:].any()


def test_a_class_that_a_fold_has_not_seen(binary):
    X, y = binary
    y = y.copy()
    y[:1] = 7  # a class of one row, which the model of its own fold has never seen
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, that the class is small
        model = sl.TunedThreshold(LOGISTIC, "accuracy").fit(X, y)
        margins = sl.TunedThreshold(LinearSVC(), "accuracy").fit(X, y)
    assert list(model.classes_) == [0, 1, 7]
    assert model.best_score_ > 0.8
    assert margins.best_score_ > 0.8


def test_a_classifier_without_methods_before_its_fit(binary):
    X, y = binary
    stack = StackingClassifier([("bayes", GaussianNB())], cv=2)
    assert not hasattr(stack, "predict_proba")
    model = sl.TunedThreshold(stack, nested=None).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X)[:, 1] >= model.best_threshold_)


def test_class_weights_by_label(binary):
    """cross_val_predict encodes labels, so a dictionary of class weights breaks there."""
    X, y = binary
    names = np.array(ODD_CLASSES)[y]
    model = sl.TunedThreshold(LogisticRegression(class_weight={"no": 1, "yes": 5})).fit(X, names)
    assert set(model.predict(X)) == set(ODD_CLASSES)


# ---------------------------------------------------------------------------------------------------------------------
# Labels
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "positive"),
    [([0, 1], 1), ([-1, 1], 1), ([False, True], True), ([1, 0], 1), ([1, 2], 2), (["a", "b"], "b"), (["b", "a"], "a")],
)
def test_the_positive_class(binary, classes, positive):
    X, y = binary
    named = np.array(classes)[y]  # y is 1 more rarely
    model = sl.TunedThreshold(LOGISTIC, nested=None).fit(X, named)
    if classes == [1, 0]:
        assert (named == 1).mean() > 0.5
    assert model.pos_label_ == positive
    assert type(model.pos_label_) is type(positive)
    assert set(model.predict(X)) <= set(classes)
    assert model.predict(X).dtype == named.dtype
    assert f"pos_label_={positive!r}" in repr(model)


def test_labels_that_scikit_learn_numbers_on_their_way_are_told(binary):
    """A vote fits its classifiers on 0 and 1, whatever the labels are."""
    X, y = binary
    vote = VotingClassifier([("tuned", sl.TunedThreshold(LOGISTIC, pos_label="yes"))])
    with pytest.raises(ValueError, match=r"the classes \[0, 1\]; got 'yes'\. .*VotingClassifier.* pass the number"):
        vote.fit(X, np.where(y == 1, "yes", "no"))
    vote.set_params(tuned__pos_label=1).fit(X, np.where(y == 1, "yes", "no"))
    assert vote.estimators_[0].pos_label_ == 1


def test_of_equally_frequent_classes_the_last_is_positive():
    X = np.linspace(0, 1, 40)[:, None]
    y = np.repeat(["a", "b"], 20)
    assert sl.TunedThreshold(LOGISTIC).fit(X, y).pos_label_ == "b"


def test_pandas(binary):
    X, y = binary
    frame = pd.DataFrame(X, columns=list("abcdef"), index=np.arange(len(y))[::-1])
    named = pd.Series(np.array(ODD_CLASSES)[y], index=frame.index)
    pipe = make_pipeline(StandardScaler().set_output(transform="pandas"), LOGISTIC)
    model = sl.TunedThreshold(pipe).fit(frame, named, sample_weight=None)
    plain = sl.TunedThreshold(make_pipeline(StandardScaler(), LOGISTIC)).fit(X, y)
    assert model.best_threshold_ == pytest.approx(plain.best_threshold_)
    assert list(model.feature_names_in_) == list("abcdef")
    np.testing.assert_array_equal(model.predict(frame) == "yes", plain.predict(X) == 1)
    categories = named.astype("category")
    np.testing.assert_array_equal(sl.TunedThreshold(pipe).fit(frame, categories).predict(frame), model.predict(frame))


# ---------------------------------------------------------------------------------------------------------------------
# Choosing is not estimating
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", ["cross-fit", "full"])
@pytest.mark.parametrize("metric", ["balanced_accuracy", "mcc"])
def test_noise_scores_no_better_than_chance(nested, metric):
    chance = {"balanced_accuracy": 0.5, "mcc": 0.0}[metric]
    best, estimates = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(60, 3)), rng.permutation(np.repeat([0, 1], [40, 20]))
        model = sl.TunedThreshold(GaussianNB(), metric, nested=nested, random_state=seed).fit(X, y)
        best.append(model.best_score_)
        estimates.append(model.nested_score_)
    assert np.mean(best) > chance + 0.05
    assert np.mean(estimates) < np.mean(best) - 0.05
    assert np.mean(estimates) < chance + 0.04


def test_cross_fitting_by_hand(binary):
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC, "f1").fit(X, y)
    scores = cross_val_predict(LOGISTIC, X, y, cv=5, method="predict_proba")[:, 1]
    decided, by_fold = np.zeros(len(y), dtype=int), []
    for train, test in StratifiedKFold(5).split(X, y):
        decided[test] = scores[test] >= sl.tune_threshold(scores[train], y[train], "f1").threshold
        by_fold.append(f1_score(y[test], decided[test]))
    np.testing.assert_allclose(model.nested_scores_, by_fold)
    assert model.nested_score_ == pytest.approx(f1_score(y, decided))


def test_full_nesting_by_hand(binary):
    X, y = binary
    names = np.array(ODD_CLASSES)[y]
    model = sl.TunedThreshold(LOGISTIC, "f1", nested="full").fit(X, names)
    decided = cross_val_predict(sl.TunedThreshold(LOGISTIC, "f1"), X, names, cv=5)
    assert model.nested_score_ == pytest.approx(f1_score(names, decided, pos_label="yes"))
    by_fold = [f1_score(names[test], decided[test], pos_label="yes") for _, test in StratifiedKFold(5).split(X, y)]
    np.testing.assert_allclose(model.nested_scores_, by_fold)


def test_a_fold_that_cannot_be_tuned_makes_the_estimate_nan(binary):
    X, y = binary
    scores = cross_val_predict(LOGISTIC, X, y, cv=5, method="predict_proba")[:, 1]
    curve = sl.curves.precision_recall(scores, y)
    # met by all rows together, and not by every four folds of the five
    bounds = ["recall >= 0.5", f"precision >= {curve.precision[curve.recall >= 0.5].max():.6f}"]
    with pytest.warns(UserWarning, match=r"nested_score_ is NaN: without fold \d, no threshold meets"):
        model = sl.TunedThreshold(LOGISTIC, "recall", subject_to=bounds).fit(X, y)
    assert math.isnan(model.nested_score_)
    assert np.isnan(model.nested_scores_).any()
    assert not np.isnan(model.nested_scores_).all()


def test_no_nesting(binary):
    model = sl.TunedThreshold(LOGISTIC, nested=None).fit(*binary)
    assert math.isnan(model.nested_score_)
    assert len(model.nested_scores_) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Splits
# ---------------------------------------------------------------------------------------------------------------------


def test_prefit(binary):
    X, y = binary
    fitted = clone(LOGISTIC).fit(X[:75], y[:75])
    before = fitted.coef_.copy()
    model = sl.TunedThreshold(fitted, "f1", cv="prefit").fit(X[75:], y[75:])
    assert model.estimator_ is fitted
    np.testing.assert_array_equal(fitted.coef_, before)
    scores = fitted.predict_proba(X[75:])[:, 1]
    assert model.best_threshold_ == sl.tune_threshold(scores, y[75:], "f1").threshold
    assert len(model.nested_scores_) == 5  # the given rows, divided
    assert model.nested_score_ <= model.best_score_
    with pytest.raises(NotFittedError, match="fitted already"):
        sl.TunedThreshold(LogisticRegression(), cv="prefit").fit(X, y)


def test_prefit_of_three_classes_on_two(binary):
    X, y = load_iris(return_X_y=True)
    fitted = GaussianNB().fit(X, y)
    model = sl.TunedThreshold(fitted, "accuracy", cv="prefit").fit(X[50:], y[50:])
    assert model.best_threshold_.shape == (3,)
    assert set(model.predict(X)) <= {0, 1, 2}


def test_one_split(binary):
    X, y = binary
    kept = sl.TunedThreshold(LOGISTIC, cv=0.4, refit=False, random_state=0).fit(X, y)
    refitted = sl.TunedThreshold(LOGISTIC, cv=0.4, random_state=0).fit(X, y)
    assert kept.best_threshold_ == refitted.best_threshold_
    assert not np.allclose(kept.estimator_.coef_, refitted.estimator_.coef_)
    assert len(kept.nested_scores_) == 5
    assert len(sl.TunedThreshold(LOGISTIC, cv=0.4, random_state=0, nested="full").fit(X, y).nested_scores_) == 1
    with pytest.raises(ValueError, match="refit=False keeps the model of a single split; cv makes 5"):
        sl.TunedThreshold(LOGISTIC, refit=False).fit(X, y)


def test_repeated_folds(binary):
    """A row has a score in each repeat, and its own label never chooses the threshold it is decided by."""
    X, y = binary
    cv = RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    model = sl.TunedThreshold(LOGISTIC, cv=cv).fit(X, y)
    assert model.tuning_.counts.total == 2 * len(y)
    assert len(model.nested_scores_) == 6


def test_seed(binary):
    X, y = binary
    models = [sl.TunedThreshold(LOGISTIC, random_state=seed).fit(X, y) for seed in (0, 0, 1)]
    assert models[0].best_threshold_ == models[1].best_threshold_ != models[2].best_threshold_
    with joblib.parallel_backend("threading"):
        parallel = sl.TunedThreshold(LOGISTIC, random_state=0, n_jobs=2, nested="full").fit(X, y)
    assert parallel.best_threshold_ == models[0].best_threshold_
    default = sl.TunedThreshold(LOGISTIC, cv=None, random_state=0).fit(X, y)
    assert default.best_threshold_ == models[0].best_threshold_


# ---------------------------------------------------------------------------------------------------------------------
# With other tools of scikit-learn
# ---------------------------------------------------------------------------------------------------------------------


def test_pipeline_search_and_cross_validation(binary):
    X, y = binary
    names = np.array(ODD_CLASSES)[y]
    pipe = make_pipeline(StandardScaler(), sl.TunedThreshold(LOGISTIC, nested=None, cv=3))
    grid = {"tunedthreshold__estimator__C": [0.01, 1.0], "tunedthreshold__metric": ["f1", "mcc"]}
    search = GridSearchCV(pipe, grid, cv=2, scoring=make_scorer(f1_score, pos_label="yes")).fit(X, names)
    assert set(search.predict(X)) == set(ODD_CLASSES)
    values = cross_val_score(sl.TunedThreshold(LOGISTIC, nested=None), X, names, cv=3)
    expected = [
        f1_score(names[test], clone(search.best_estimator_).set_params(**{"tunedthreshold__metric": "f1"})[-1]
                 .set_params(estimator=LOGISTIC, cv=5).fit(X[train], names[train]).predict(X[test]), pos_label="yes")
        for train, test in StratifiedKFold(3).split(X, y)
    ]  # fmt: skip
    np.testing.assert_allclose(values, expected)


def test_a_greater_score_is_better(binary):
    """A search picks the greatest score, so a cost must change its sign."""
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC, "cost", metric_options={"costs": [[0, 1], [5, 0]]}).fit(X, y)
    decided = model.predict(X)
    cost = ((decided == 1) & (y == 0)).sum() + 5 * ((decided == 0) & (y == 1)).sum()
    assert model.score(X, y) == pytest.approx(-cost / len(y))
    assert model.best_score_ > 0


def test_pickle_copy_and_clone(binary):
    X, y = binary
    for metric in ("f1", "tp / (tp + fp + fn)"):
        model = sl.TunedThreshold(LOGISTIC, metric).fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.tuning_ == model.tuning_
        assert again.tuning_.interval(10) == model.tuning_.interval(10)
        assert again.score(X, y) == model.score(X, y)
    assert not hasattr(clone(model), "best_threshold_")
    shown = "TunedThreshold(estimator=LogisticRegression(max_iter=1000), metric='tp / (tp + fp + fn)')"
    assert " ".join(repr(clone(model)).split()) == shown
    assert "TunedThreshold" in model._repr_html_()


def test_the_tuning_can_be_used_elsewhere(binary):
    """The `Tuning` scores other probabilities and can be drawn."""
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC).fit(X, y)
    value = sl.score(model.predict_proba(X)[:, 1], y, "f1", inputs="probabilities", threshold=model.tuning_)
    assert value.item() == pytest.approx(model.score(X, y))


# ---------------------------------------------------------------------------------------------------------------------
# Weights and routing
# ---------------------------------------------------------------------------------------------------------------------


def test_weights_reach_the_estimator_and_the_tuning(binary):
    X, y = binary
    weight = np.where(y == 1, 4.0, 1.0)
    model = sl.TunedThreshold(LOGISTIC, "f1").fit(X, y, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=False):
        scores = cross_val_predict(LOGISTIC, X, y, cv=5, method="predict_proba", params={"sample_weight": weight})[:, 1]
    alone = sl.tune_threshold(scores, y, "f1", sample_weight=weight)
    assert model.best_threshold_ == alone.threshold
    np.testing.assert_allclose(model.estimator_.coef_, clone(LOGISTIC).fit(X, y, weight).coef_)
    assert model.score(X, y, weight) == pytest.approx(f1_score(y, model.predict(X), sample_weight=weight))


def test_a_row_of_weight_two_is_two_rows_and_of_weight_zero_none(binary):
    X, y = binary
    weight = np.arange(len(y)) % 3
    folds = np.arange(len(y)) % 5
    splits = [(np.flatnonzero(folds != f), np.flatnonzero(folds == f)) for f in range(5)]
    rows = np.repeat(np.arange(len(y)), weight)
    repeated = [(np.flatnonzero(folds[rows] != f), np.flatnonzero(folds[rows] == f)) for f in range(5)]
    once = sl.TunedThreshold(GaussianNB(), cv=splits).fit(X, y, sample_weight=weight)
    twice = sl.TunedThreshold(GaussianNB(), cv=repeated).fit(X[rows], y[rows])
    assert once.best_threshold_ == pytest.approx(twice.best_threshold_)
    assert once.best_score_ == pytest.approx(twice.best_score_)
    assert once.nested_score_ == pytest.approx(twice.nested_score_)


def test_an_estimator_that_takes_no_weights_gives_a_warning(binary):
    X, y = binary
    with pytest.warns(UserWarning, match=r"KNeighborsClassifier.fit takes no sample_weight: it is used for the tuning"):
        sl.TunedThreshold(KNeighborsClassifier()).fit(X, y, sample_weight=np.ones(len(y)))


def test_metadata_routing(binary):
    X, y = binary
    weight, groups = np.where(y == 1, 4.0, 1.0), np.arange(len(y)) // 10
    plain = sl.TunedThreshold(LOGISTIC, cv=list(GroupKFold(3).split(X, y, groups))).fit(X, y, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = LogisticRegression(max_iter=1000).set_fit_request(sample_weight=True)
        for nested in ("cross-fit", "full"):
            model = sl.TunedThreshold(inner, cv=GroupKFold(3), nested=nested)
            model.fit(X, y, sample_weight=weight, groups=groups)
            assert model.best_threshold_ == pytest.approx(plain.best_threshold_)
            assert math.isfinite(model.nested_score_)
        model.set_params(nested=None).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"metric": ["f1", "mcc"]}, cv=GroupKFold(2))
        search.fit(X, y, sample_weight=weight, groups=groups)
        assert math.isfinite(search.best_score_)


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


class Silent(ClassifierMixin, BaseEstimator):
    """A classifier without scores."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


class Unsure(Silent):
    def predict_proba(self, X):
        return np.full((len(X), len(self.classes_)), math.nan)


class UnsureLabels(Silent):
    def predict_proba(self, X):
        return np.full((len(X), 2), math.nan)


@pytest.mark.parametrize(
    ("options", "y", "error", "message"),
    [
        ({}, np.zeros(150), ValueError, "y has one class only"),
        ({"cv": 140}, None, ValueError, "cv=140 needs a class of 140 rows"),
        ({}, np.linspace(0, 1, 150), ValueError, "Unknown label type"),
        ({}, np.full((150, 2), 3) - np.eye(150, 2), ValueError, "0 and 1"),
        ({}, np.arange(300).reshape(150, 2) % 3, ValueError, "multiclass-multioutput"),
        ({"estimator": LinearRegression()}, None, TypeError, "predict_proba or decision_function; Linear"),
        ({"estimator": Silent()}, None, TypeError, "a threshold needs scores"),
        ({"estimator": Unsure()}, None, ValueError, "scores must not be NaN"),
        ({"estimator": LinearSVC(), "response_method": "predict_proba"}, None, TypeError, "LinearSVC has not"),
        ({"response_method": "predict"}, None, ValueError, 'response_method must be "auto"'),
        ({"metric": "f2"}, None, ValueError, "unknown metric 'f2'"),
        ({"metric_options": {"beta": 2}}, None, TypeError, "metric 'f1' has no option 'beta'"),
        ({"average": "macro"}, None, ValueError, "no effect on a binary task"),
        ({"average": "none"}, None, ValueError, "tuned for one score"),
        ({"pos_label": "maybe"}, None, ValueError, r"pos_label must be one of the classes \[0, 1\]; got 'maybe'"),
        ({"pos_label": 1}, np.arange(150) % 3, ValueError, "no effect on a multiclass task"),
        ({"nested": "yes"}, None, ValueError, 'nested must be "cross-fit", "full" or None'),
        ({"nested": "full", "cv": "prefit", "estimator": "fitted"}, None, ValueError, "or a splitter; got prefit"),
        ({"nested": "full", "cv": [(range(100), range(100, 150))]}, None, ValueError, "splitter; got list"),
        ({"cv": "loo"}, None, ValueError, "cv must be a number, a splitter, splits or"),
        ({"subject_to": "precision >= 2"}, None, ValueError, "can never hold"),
    ],
)  # fmt: skip
def test_bad_input(binary, options, y, error, message):
    X, target = binary
    options = {"estimator": LOGISTIC, **options}
    if options["estimator"] == "fitted":
        options["estimator"] = clone(LOGISTIC).fit(X, target)
    with pytest.raises(error, match=message):
        sl.TunedThreshold(**options).fit(X, target if y is None else y)


MANY = {
    "multiclass": (
        LOGISTIC,
        np.arange(150) % 3,
        "no threshold was found that meets precision >= 0.999 and recall >= 0.9",
    ),
    "multilabel": (
        OneVsRestClassifier(LOGISTIC),
        np.c_[np.arange(150) % 2, np.arange(150) % 3 == 0] * 1,
        "label 0: no",
    ),
}


@pytest.mark.parametrize("task", MANY)
def test_bad_input_of_several_classes_and_labels(binary, task):
    X, _ = binary
    estimator, y, infeasible = MANY[task]
    for inner, rows, subject_to, message in (
        (estimator, slice(None), "precision >= 0.999 and recall >= 0.9", infeasible),
        (Unsure() if task == "multiclass" else UnsureLabels(), slice(None), None, "scores must not be NaN"),
        (estimator, slice(-1), None, "inconsistent numbers of samples"),
    ):
        with pytest.raises(ValueError, match=message):
            sl.TunedThreshold(inner, subject_to=subject_to).fit(X, y[rows])


def test_one_class_and_constant_scores_of_several():
    """One class is refused, a label of one class is not; constant scores give all rows to what scores best."""
    X, y = np.zeros((30, 1)), np.repeat([0, 1, 2], [5, 10, 15])
    with pytest.raises(ValueError, match=r"y has one class only \(2\)"):
        sl.TunedThreshold(DummyClassifier()).fit(X, np.full(30, 2))
    assert (sl.TunedThreshold(DummyClassifier(), "accuracy").fit(X, y).predict(X) == 2).all()
    labels = np.c_[np.zeros(30, int), y > 0]
    model = sl.TunedThreshold(DummyClassifier(strategy="prior"), "f1", cv=3).fit(X, labels)
    np.testing.assert_array_equal(model.predict(X), np.tile([0, 1], (30, 1)))


class Raw(ClassifierMixin, BaseEstimator):
    """A classifier that gives raw scores for probabilities, as LightGBM's does with an objective of the user's."""

    def __init__(self, classes=2):
        self.classes = classes

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return X[:, 0] * 5 if self.classes == 2 else np.abs(X[:, : self.classes]).clip(0, 1)


def test_raw_scores_in_the_place_of_probabilities_are_told(binary):
    X, y = binary
    with pytest.raises(ValueError, match=r"predict_proba of Raw must give .* from 0 to 1; it gives .* use MetricBoos"):
        sl.TunedThreshold(Raw()).fit(X, y)
    with pytest.raises(ValueError, match=r"predict_proba of Raw must give probabilities that sum to 1 in each row"):
        sl.TunedThreshold(Raw(3)).fit(X, np.arange(len(y)) % 3)


@pytest.mark.parametrize("cv", [GroupKFold(3), StratifiedGroupKFold(3)])
def test_groups_that_do_not_reach_the_splitter(binary, cv):
    """Without metadata routing, fit's parameters go to the estimator alone."""
    X, y = binary
    groups = np.arange(len(y)) // 3
    with pytest.raises(ValueError, match=r"enable_metadata_routing=True\), or pass .* cv=list\(.*KFold\(\)\.split\("):
        sl.TunedThreshold(LOGISTIC, cv=cv).fit(X, y, groups=groups)
    splits = list(cv.split(X, y, groups))
    assert len(sl.TunedThreshold(LOGISTIC, cv=splits).fit(X, y).nested_scores_) == 3


def test_a_failed_fit_changes_nothing(binary):
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC, "recall").fit(X, y)
    before = dict(vars(model))
    model.subject_to = "precision >= 0.9999 and recall >= 0.9999"
    with pytest.raises(ValueError, match="no threshold meets"):
        model.fit(X[:100], y[:100])
    model.subject_to = None
    assert vars(model) == before
    fresh = sl.TunedThreshold(LOGISTIC, subject_to="precision >= 0.9999 and recall >= 0.9999")
    with pytest.raises(ValueError, match="no threshold meets"):
        fresh.fit(X, y)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_labels_of_another_problem(binary):
    X, y = binary
    model = sl.TunedThreshold(LOGISTIC).fit(X, y)
    with pytest.raises(ValueError, match=r"y has labels the estimator does not know: \[2\]; it knows \[0, 1\]"):
        model.score(X, y + 1)


def test_constant_scores(binary):
    X, y = binary
    model = sl.TunedThreshold(DummyClassifier(), "f1", cv=3).fit(X[:, :1], y)
    assert model.predict(X[:, :1]).all()  # all positive has an F1 above 0, none has 0


# ---------------------------------------------------------------------------------------------------------------------
# The extra
# ---------------------------------------------------------------------------------------------------------------------

BLOCK = """
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("sklearn", "matplotlib"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Blocked())
    sys.path_importer_cache.clear()
"""


def run(code):
    code = textwrap.dedent(BLOCK) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TunedThreshold", 'stepless\'s estimators need scikit-learn: pip install "stepless[sklearn]"'),
        ("plots", 'stepless.plots needs matplotlib: pip install "stepless[plots]"'),
    ],
)
def test_without_the_extra(name, message):
    out = run(f"""
        import stepless as sl
        from stepless import *
        print(sl.curves.roc([0.1, 0.9], [0, 1]).area)
        for attempt in ("sl.{name}", "exec('from stepless import {name}')"):
            try:
                eval(attempt)
            except ModuleNotFoundError as error:
                print(error)
    """)
    assert out.splitlines() == ["1.0", message, message]


def test_importing_stepless_imports_neither():
    code = "import sys, stepless; print([m for m in ('sklearn', 'matplotlib', 'scipy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names():
    assert {"TunedThreshold", "plots", "curves"} <= set(dir(sl))
    assert sl.TunedThreshold is sl.TunedThreshold
    with pytest.raises(AttributeError, match="module 'stepless' has no attribute 'TunedTreshold'"):
        sl.TunedTreshold  # noqa: B018


def test_a_ranking_has_no_threshold():
    X, y = make_classification(60, random_state=0)
    with pytest.raises(ValueError, match=r"'auroc' scores a ranking, which no threshold changes\."):
        sl.TunedThreshold(LogisticRegression(), metric="auroc").fit(X, y)


def test_tables_too_small_to_be_split():
    X = np.arange(40.0).reshape(20, 2)
    one = np.array([1] + [0] * 19)
    with pytest.raises(ValueError, match=r"two rows of each class.* class 1 has one.*prefit"):
        sl.TunedThreshold(LogisticRegression(), "f1").fit(X, one)
    with pytest.raises(ValueError, match=r"cv=5 needs a class of 5 rows; the largest has 3"):
        sl.TunedThreshold(LogisticRegression(), "f1").fit(X[:6], np.arange(6) % 2)
    assert sl.TunedThreshold(LogisticRegression(), "f1", cv=2).fit(X[:6], np.arange(6) % 2).predict(X).shape == (20,)


@pytest.mark.parametrize(
    ("settings", "weight", "error", "message"),
    [
        ({}, -1.0, ValueError, "Negative values in data passed to `sample_weight`"),
        ({"cv": []}, None, ValueError, "cv must make at least one split into training and test rows; it makes none"),
        ({"metric_options": ["a"]}, None, TypeError, "metric_options must be a dict of the metric's options"),
    ],
)
def test_what_cannot_be_tuned_says_what_is_needed(binary, settings, weight, error, message):
    X, y = binary
    weight = None if weight is None else np.full(len(y), weight)
    with pytest.raises(error, match=message):
        sl.TunedThreshold(LogisticRegression(), **settings).fit(X, y, weight)
