"""Calibration maps: their order, their ends, what they recover, and what they refuse to read."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepless.tabular.models.calibrating import fit_calibration
from stepless.tabular.models.calibration import CAP, PLAIN, Calibration, Curve, Curves, Identity, Temperature, bent

ANY_SCORE = st.one_of(
    st.floats(allow_nan=False), st.floats(-60, 60), st.sampled_from([-math.inf, -40.0, 40.0, math.inf])
)


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z)))


def draw(n=4000, sharpness=5.0, seed=0):
    """Logits that are too large by a factor, and targets drawn from the true ones."""
    random = np.random.default_rng(seed)
    z = random.normal(-1, 2, n)
    return sharpness * z, random.random(n) < sigmoid(z), z


@st.composite
def problems(draw):
    """Scores and targets of any kind: few rows, one class, ties, infinite scores, the wrong way round."""
    n = draw(st.integers(1, 40))
    scores = draw(st.lists(ANY_SCORE, min_size=n, max_size=n))
    target = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    weight = draw(st.none() | st.lists(st.floats(0, 1e6), min_size=n, max_size=n).filter(lambda w: sum(w) > 0))
    return np.array(scores), np.array(target), weight


class TestOrder:
    @given(problems(), st.lists(ANY_SCORE, min_size=2, max_size=30))
    @settings(max_examples=100, deadline=None)
    def test_a_fitted_map_never_turns_two_scores_round(self, problem, scores):
        p = fit_calibration(*problem).probabilities(np.sort(scores))
        assert (np.diff(p) >= 0).all()
        assert (p > 0).all()
        assert (p < 1).all()

    @given(problems(), ANY_SCORE.filter(math.isfinite))
    @settings(max_examples=100, deadline=None)
    def test_neighbouring_floats_are_not_turned_round(self, problem, score):
        near = [np.nextafter(score, -math.inf), score, np.nextafter(score, math.inf)]
        p = fit_calibration(*problem).probabilities(near)
        assert (np.diff(p) >= 0).all()

    @given(problems(), st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2, unique=True))
    @settings(max_examples=100, deadline=None)
    def test_distinct_scores_have_distinct_probabilities_as_far_as_doubles_can_tell(self, problem, scores):
        low, high = sorted(scores)
        curve = fit_calibration(*problem).curves[0]
        z = curve.logit([low, high])
        rise = min(curve.slopes) * np.diff(bent([low, high]))[0]
        if rise > 100 * np.spacing(CAP):
            assert z[0] < z[1]
        p = sigmoid(z)
        if rise * (p * (1 - p)).min() > 4 * np.spacing(p.max()):
            assert np.diff(curve.probabilities([low, high])) > 0

    def test_the_far_ends_are_told_apart(self):
        s, y, _ = draw()
        ladder = [-math.inf, -1e4, -745, -100, -60, -45, -40, -37, -20, 0, 20, 37, 40, 45, 60, 100, 745, 1e4, math.inf]
        for calibration in (fit_calibration(s, y), fit_calibration(s / 25, y), Identity()):
            p = calibration.probabilities(ladder)
            assert (np.diff(p) > 0).all()
            assert 0 < p[0] < p[-1] < 1

    def test_saturated_scores_can_be_fitted(self):
        s, y, _ = draw(sharpness=60)
        s = np.where(s > 37, np.inf, np.where(s < -700, -np.inf, s))
        assert np.isinf(s).any()
        p = fit_calibration(s, y).probabilities(s)
        sure = s == np.inf
        assert abs(p[sure].mean() - y[sure].mean()) < 0.03

    @given(st.lists(st.lists(ANY_SCORE, min_size=4, max_size=4), min_size=1, max_size=10), st.floats(0.02, 50))
    @settings(max_examples=100, deadline=None)
    def test_a_temperature_keeps_the_order_of_classes(self, scores, temperature):
        scores = np.array(scores)
        p = Temperature(temperature).probabilities(scores)
        order = np.argsort(scores, 1, kind="stable")
        assert (np.diff(np.take_along_axis(p, order, 1)) >= 0).all()
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
        assert ((p > 0) & (p < 1)).all()

    def test_a_class_without_a_chance_stays_last(self):
        p = Temperature(1.5).probabilities([[0.0, -np.inf, -300.0, -1e4]])[0]
        assert p[0] > p[2] > p[3] > p[1] > 0


class TestInverse:
    @given(problems(), st.floats(-50, 50))
    @settings(max_examples=100, deadline=None)
    def test_inverse_of_a_curve(self, problem, score):
        calibration = fit_calibration(*problem)
        p = calibration.probabilities([score])
        z, again = (calibration.curves[0].logit(s)[0] for s in ([score], calibration.inverse(p)))
        # as exactly as p, a double next to 1 or not, says it
        assert again == pytest.approx(z, abs=1e-9 + 4 * np.spacing(p[0]) / (p[0] * (1 - p[0])))

    def test_what_no_score_reaches(self):
        assert Identity().inverse([0.0, 1e-12, 0.5, 1.0]).tolist() == [-math.inf, -math.inf, 0.0, math.inf]

    def test_inverse_of_a_temperature(self):
        calibration, scores = Temperature(2.5), np.array([[0.0, -1.0, -3.0], [-60.0, 0.0, -1.0]])
        np.testing.assert_allclose(
            calibration.inverse(calibration.probabilities(scores)), scores, rtol=1e-9, atol=1e-12
        )


class TestFit:
    @pytest.mark.parametrize("sharpness", [0.3, 1.0, 8.0])
    def test_the_true_probabilities_come_back(self, sharpness):
        s, y, z = draw(20_000, sharpness)
        p = fit_calibration(s, y).probabilities(s)
        assert np.abs(p - sigmoid(z)).mean() < 0.01

    def test_a_bent_truth_that_no_line_fits(self):
        random = np.random.default_rng(3)
        s = random.choice([-30.0, -6.0, 6.0, 30.0], 20_000) + random.normal(0, 1, 20_000)
        truth = np.select([s < -18, s < 0, s < 18], [0.02, 0.1, 0.6], 0.7)
        y = random.random(len(s)) < truth
        assert np.abs(fit_calibration(s, y).probabilities(s) - truth).mean() < 0.01

    def test_few_rows_give_a_line(self):
        s, y, z = draw(60, sharpness=1.0)
        keep = ~y | (np.cumsum(y) <= 15)
        curve = fit_calibration(s[keep], y[keep]).curves[0]
        assert len(curve.points) == 4  # straight from the lowest score to the highest
        assert np.abs(curve.probabilities(s[keep]) - sigmoid(z[keep])).mean() < 0.15

    def test_one_class_only(self):
        s = np.linspace(-3, 3, 50)
        none, every = (fit_calibration(s, np.full(50, yes)).probabilities(s) for yes in (False, True))
        assert none.max() < 0.2
        assert every.min() > 0.8

    def test_a_perfect_split_stays_modest(self):
        s = np.concatenate([np.linspace(-9, -5, 50), np.linspace(5, 9, 50)])
        p = fit_calibration(s, s > 0).probabilities(s)
        assert 0.9 < p[50:].mean() < 0.9999
        assert 1e-4 < p[:50].mean() < 0.1

    def test_equal_scores(self):
        p = fit_calibration(np.full(100, 7.0), np.arange(100) < 20).probabilities([7.0, -7.0, 21.0])
        assert p[0] == pytest.approx(0.2, abs=0.02)
        assert p[1] < p[0] < p[2]

    def test_scores_the_wrong_way_round_become_almost_flat_but_rise(self):
        s, y, _ = draw(5000)
        p = fit_calibration(-s, y).probabilities([-20.0, 20.0])
        assert 0 < p[1] - p[0] < 0.01
        assert p[0] == pytest.approx(y.mean(), abs=0.02)

    def test_weights(self):
        s, y, _ = draw(8000)
        w = np.random.default_rng(1).integers(0, 3, len(s))
        fitted = fit_calibration(s, y, w)
        assert fitted == fit_calibration(s[w > 0], y[w > 0], w[w > 0])
        np.testing.assert_allclose(fit_calibration(s, y, 7 * w).probabilities(s), fitted.probabilities(s), rtol=1e-6)
        repeated = fit_calibration(np.repeat(s, w), np.repeat(y, w))
        np.testing.assert_allclose(fitted.probabilities(s), repeated.probabilities(s), atol=0.02)

    def test_the_order_of_rows_does_not_matter(self):
        s, y, _ = draw(9000)
        s = s.round(1)
        order = np.random.default_rng(0).permutation(len(s))
        a, b = fit_calibration(s, y).probabilities(s), fit_calibration(s[order], y[order]).probabilities(s)
        np.testing.assert_allclose(a, b, atol=2e-3)

    def test_every_label_has_its_own_curve(self):
        (s, y, _), (s2, y2, _) = draw(seed=1), draw(seed=2, sharpness=0.5)
        both = fit_calibration(np.stack([s, s2], 1), np.stack([y, y2], 1), task="multilabel")
        assert both.curves == (fit_calibration(s, y).curves[0], fit_calibration(s2, y2).curves[0])
        p = both.probabilities(np.stack([s, s2], 1))
        np.testing.assert_array_equal(p[:, 1], fit_calibration(s2, y2).probabilities(s2))
        with pytest.raises(ValueError, match="one column for each of 2 labels; got shape"):
            both.probabilities(s)

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 6.0])
    def test_the_temperature_comes_back(self, temperature):
        random = np.random.default_rng(0)
        z = random.normal(0, 2, (5000, 4))
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        y = (random.random((len(p), 1)) > p.cumsum(1)).sum(1)
        fitted = fit_calibration(temperature * np.log(p), y, None, "multiclass")
        assert fitted.temperature == pytest.approx(temperature, rel=0.06)
        np.testing.assert_array_equal(fitted.probabilities(z).argmax(1), z.argmax(1))

    def test_a_perfect_multiclass_model_has_a_finite_temperature(self):
        y = np.arange(30) % 3
        with np.errstate(divide="ignore"):
            fitted = fit_calibration(np.log(np.eye(3)[y]), y, task="multiclass")
        assert fitted.temperature == pytest.approx(1, rel=0.01)  # nothing could be learned


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (([0.0, np.nan], [0, 1]), "scores must be numbers to be calibrated; got NaN. Did training diverge"),
            (
                ([0.0, 1.0], [0, 1, 1]),
                r"binary scores and targets do not go together: their shapes are \(2,\) and \(3,\)",
            ),
            (([[0.0, 1.0]], [0], None, "multilabel"), r"multilabel scores .* are \(1, 2\) and \(1,\)"),
            (([], []), r"their shapes are \(0,\)"),
            (([0.0], [0], [0.0]), "weight must be 1 finite numbers of 0 or more, not all 0"),
            (([0.0], [0], [np.nan]), "weight must be 1 finite numbers"),
            (([0.0], [0], None, "regression"), "task must be binary, multilabel or multiclass; got 'regression'"),
        ],
    )
    def test_bad_input(self, arguments, sentence):
        with pytest.raises(ValueError, match=sentence):
            fit_calibration(*arguments)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (((-40.0,), (0.0,)), "a logit for each of 2 to 1000 points; got 1 points and 1 logits"),
            (((-40.0, 40.0), (0.0,)), "got 2 points and 1 logits"),
            (((-30.0, 40.0), (0.0, 1.0)), r"must go from -40\.0 to 40\.0"),
            (((-40.0, 0.0, 0.0, 40.0), (-1.0, 0.0, 1.0, 2.0)), "must be strictly increasing"),
            (((-40.0, 40.0), (1.0, 1.0)), "must be strictly increasing"),
            (((-40.0, 40.0), (0.0, 25.0)), "inside ±20"),
            (((-40.0, math.nan, 40.0), (0.0, 1.0, 2.0)), "strictly increasing"),
            (((-40.0, 40.0), (math.nan, 1.0)), "strictly increasing"),
        ],
    )
    def test_bad_curves(self, arguments, sentence):
        with pytest.raises(ValueError, match=sentence):
            Curve(*arguments)

    def test_bad_maps(self):
        with pytest.raises(ValueError, match=r"from 0\.001 to 1000; got 0"):
            Temperature(0)
        with pytest.raises(ValueError, match="a binary task has one curve; got 2"):
            Curves("binary", (PLAIN, PLAIN))
        with pytest.raises(ValueError, match="are for a binary or multilabel task; got 'multiclass'"):
            Curves("multiclass", (PLAIN,))
        with pytest.raises(ValueError, match="task must be"):
            Identity("ranking")


def examples():
    s, y, _ = draw(500)
    labels = fit_calibration(np.stack([s, -s], 1), np.stack([y, y], 1), task="multilabel")
    return [fit_calibration(s, y), labels, Temperature(1 / 3), Identity(), Identity("multiclass")]


class TestJson:
    @pytest.mark.parametrize("calibration", examples(), ids=lambda c: c.kind)
    def test_there_and_back(self, calibration):
        assert Calibration.from_json(json.loads(json.dumps(calibration.to_json(), allow_nan=False))) == calibration

    @pytest.mark.parametrize(
        ("entry", "sentence"),
        [
            (None, "whose kind is one of"),
            ({"kind": "pickle"}, "whose kind is one of"),
            ({"kind": ["curves"]}, "whose kind is one of"),
            ({"kind": "identity"}, "must have the keys"),
            ({"kind": "identity", "task": 3}, "task must be"),
            ({"kind": "temperature", "temperature": "1"}, "temperature must be finite numbers; got"),
            ({"kind": "temperature", "temperature": True}, "must be finite numbers"),
            ({"kind": "temperature", "temperature": 10**400}, "must be finite numbers"),
            ({"kind": "temperature", "temperature": 1.0, "more": 1}, "must have the keys"),
            ({"kind": "curves", "task": "binary", "curves": {}}, "curves must be a list"),
            ({"kind": "curves", "task": "binary", "curves": []}, "curves, one or more"),
            ({"kind": "curves", "task": "binary", "curves": [3]}, "must have the keys"),
        ],
    )
    def test_what_is_no_calibration(self, entry, sentence):
        with pytest.raises(ValueError, match=sentence):
            Calibration.from_json(entry)

    @given(st.data())
    @settings(max_examples=100, deadline=None)
    def test_an_altered_entry_is_refused_or_works(self, data):
        entry = data.draw(
            st.sampled_from([c.to_json() for c in (Identity(), Temperature(2.0), Curves("binary", (PLAIN,)))])
        )
        entry = json.loads(json.dumps(entry))
        junk = st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        )
        place = entry
        if "curves" in entry and data.draw(st.booleans()):
            place = entry["curves"][0]
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(junk)
        try:
            calibration = Calibration.from_json(entry)
        except ValueError:
            return
        p = calibration.probabilities([[-math.inf, 0.0, 1e300, math.inf]])
        assert ((p > 0) & (p < 1)).all()
