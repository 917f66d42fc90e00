"""`sl.score` is scikit-learn's number, for every metric, task and average, however the scores are handed over."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional as tm
from hypothesis import given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless.averaging import evaluate

from .references import REFERENCES

# scikit-learn warns of what is drawn on purpose: absent classes and undefined scores
pytestmark = pytest.mark.filterwarnings("ignore:::sklearn")

NAMES = tuple(sl.METRICS)
AVERAGES = {
    "binary": (None,),
    "multiclass": ("macro", "micro", "weighted", "none"),
    "multilabel": ("macro", "micro", "weighted", "samples", "none"),
}


def legal_averages(name, task):
    return (None,) if task == "multiclass" and sl.METRICS[name].kind != "class" else AVERAGES[task]


COMBINATIONS = [(name, task, average) for name in NAMES for task in AVERAGES for average in legal_averages(name, task)]
every_combination = pytest.mark.parametrize(("name", "task", "average"), COMBINATIONS)
every_metric = pytest.mark.parametrize("name", NAMES)


def zero_division(name):
    """The default, spelled out for scikit-learn, for metrics that have the option."""
    return {"zero_division": 0.0} if "zero_division" in sl.METRICS[name].defaults else {}


def assert_equal(ours, theirs):
    expected = torch.as_tensor(theirs, dtype=torch.float64)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12, equal_nan=True)


# ---------------------------------------------------------------------------------------------------------------------
# Problems
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """Scores, targets and weights, with the settings and the decisions that belong to them."""

    task: str
    scores: torch.Tensor
    target: np.ndarray
    sample_weight: np.ndarray | None
    settings: dict[str, Any]

    @property
    def classes(self):
        return 2 if self.task == "binary" else self.scores.shape[1]

    @property
    def decision(self):
        """Probability ≥ threshold in the scores' precision; multiclass: the first argmax(log p − offset) in float64."""
        given_logits, cut = self.settings["inputs"] == "logits", self.settings["threshold"]
        if self.task == "multiclass":
            log_p = self.scores.double() if given_logits else self.scores.double().log()
            return (log_p.numpy() - np.asarray(0 if cut is None else cut, log_p.numpy().dtype)).argmax(1)
        p = (self.scores.sigmoid() if given_logits else self.scores).numpy()
        return (p >= np.asarray(0.5 if cut is None else cut, p.dtype)).astype(int)

    def score(self, metric, **options):
        options = {"task": self.task, "sample_weight": self.sample_weight, **self.settings, **options}
        return sl.score(self.scores, self.target, metric, **options)

    def reference(self, name, average, **options):
        average = {None: "binary", "none": None}.get(average, average)
        return REFERENCES[name](
            self.target, self.decision, sample_weight=self.sample_weight, labels=list(range(self.classes)),
            average=average, **options,
        )  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """What hypothesis draws: numbers, which it can print and shrink; the arrays follow from the seed."""

    seed: int
    samples: int
    classes: int
    inputs: str
    dtype: torch.dtype
    weighted: bool
    cut: bool
    zero_division: float

    def problem(self, task):
        rng = np.random.default_rng(self.seed)
        n, k = self.samples, self.classes
        # steps of ¼ make ties; a shift of ±9 makes classes that are never, or always, decided
        logits = rng.integers(-8, 9, (n, k)) / 4 + rng.choice([-9, 0, 0, 0, 9], k)
        if task == "multiclass":
            present = rng.permutation(k)[: rng.integers(1, k + 1)]
            target = rng.choice(present, n)
            cut = rng.integers(-8, 9, k) / 4
        else:
            target = (rng.random((n, k)) < rng.choice([0.0, 0.2, 0.5, 1.0], k)).astype(int)
            cut = rng.choice([0.1, 0.25, 0.3, 0.5, 0.9], k)
            if task == "binary":
                logits, target = logits[:, 0], target[:, 0]
            if task == "binary" or rng.random() < 0.5:
                cut = cut[0]
        scores = torch.tensor(logits, dtype=self.dtype)
        if self.inputs == "probabilities":
            scores = scores.softmax(1) if task == "multiclass" else scores.sigmoid()
        sample_weight = None
        if self.weighted:
            # in quarters, so that sums are exact in every order, and what is undefined is so on both sides
            sample_weight = rng.integers(0, 9, n) / 4
            sample_weight[rng.integers(n)] = 1
        threshold = cut if self.cut else None
        return Problem(task, scores, target, sample_weight, {"inputs": self.inputs, "threshold": threshold})

    def options(self, name, classes):
        """Values for those of the metric's options that we know how to draw."""
        rng = np.random.default_rng(self.seed)
        drawn = {
            "zero_division": self.zero_division,
            "beta": rng.choice([0.5, 1.0, 2.0]),
            "alpha": rng.choice([0.25, 1.0]),
            "threshold_probability": rng.choice([0.2, 0.5]),
            "weights": str(rng.choice(["linear", "quadratic"])),
            "costs": rng.integers(0, 9, (classes, classes)) / 4,
        }
        return {option: drawn[option] for option in sl.METRICS[name].defaults if option in drawn}


draws = st.builds(
    Draw,
    seed=st.integers(0, 2**32 - 1),
    samples=st.integers(1, 24),
    classes=st.integers(2, 5),
    inputs=st.sampled_from(["logits", "probabilities"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    weighted=st.booleans(),
    cut=st.booleans(),
    zero_division=st.sampled_from([0.0, 1.0, np.nan]),
)


def make(task, *, samples=24, classes=4, trailing=(), seed=0):
    """A problem without ties or absent classes, for the laws below."""
    rng = np.random.default_rng(seed)
    shape = (samples, *trailing) if task == "binary" else (samples, classes, *trailing)
    scores = torch.tensor(rng.normal(size=shape))
    target = rng.integers(0, classes, (samples, *trailing)) if task == "multiclass" else rng.integers(0, 2, shape)
    return Problem(task, scores, target, rng.integers(1, 9, samples) / 4, {"inputs": "logits", "threshold": None})


# ---------------------------------------------------------------------------------------------------------------------
# Against the references
# ---------------------------------------------------------------------------------------------------------------------


def test_every_metric_has_a_reference_and_every_reference_a_metric():
    assert set(REFERENCES) == set(NAMES)


@every_combination
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(draw=draws)
def test_score_is_the_reference(name, task, average, draw):
    problem = draw.problem(task)
    options = draw.options(name, problem.classes if task == "multiclass" else 2)
    assert_equal(problem.score(name, average=average, **options), problem.reference(name, average, **options))


@pytest.mark.parametrize("metric", ["fpr", "specificity", "f1"])
def test_a_probability_that_is_nan_is_not_hidden(metric):
    p = torch.tensor([[math.nan, 0.3, 0.2], [0.2, 0.5, 0.3]])
    settings = {"task": "multiclass", "inputs": "probabilities", "step": "identity"}
    assert sl.metric_loss(p, torch.tensor([0, 1]), metric, **settings).isnan()


@pytest.mark.parametrize(
    "offsets", [(-90, 0, 0), (-100, -100, -100), (1000, 1000, 1001), (0, 0.5, -0.2), (-1000, 0, 0)]
)
def test_offsets_of_any_size_for_probabilities(offsets):
    """Only their differences matter, and a class ruled out stays so."""
    logits, target = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    p = torch.cat([logits.softmax(1), torch.tensor([[0.0, 0.0, 1.0]])]).requires_grad_()
    target = torch.cat([target, torch.tensor([2])])
    settings = {"task": "multiclass", "threshold": offsets}
    loss = sl.metric_loss(p, target, "f1", inputs="probabilities", **settings)
    loss.backward()
    torch.testing.assert_close(loss, sl.metric_loss(p.detach().log(), target, "f1", **settings), rtol=1e-5, atol=1e-6)
    assert p.grad.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "settings"),
    [((0, 3), {"task": "multilabel", "average": "samples"}), ((0, 3, 2), {"task": "multilabel", "per_image": True})],
)
def test_nothing_at_all_is_undefined_where_that_is_asked_for(shape, settings):
    empty = torch.zeros(shape)
    assert sl.metric_loss(empty, empty, "f1", zero_division=math.nan, **settings).isnan()


def test_an_image_of_classes_that_weigh_nothing():
    scores, target = torch.randn(2, 3, 4).double(), torch.tensor([[0] * 4, [1, 2, 1, 2]])
    probabilities = torch.nn.functional.one_hot(target, 3).movedim(-1, 1).double()
    settings = {"task": "multiclass", "weight": [0, 1, 1], "per_image": True}
    assert sl.score(scores, target, "accuracy", **settings) == sl.score(scores, probabilities, "accuracy", **settings)


@pytest.mark.parametrize("kind", [torch.uint16, torch.uint32, torch.uint64])
def test_targets_of_any_unsigned_kind(kind):
    logits, target = torch.randn(9, 3), torch.arange(9) % 3
    assert sl.metric_loss(logits, target.to(kind), "f1", task="multiclass") == sl.metric_loss(
        logits, target, "f1", task="multiclass"
    )
    yes = (target > 1).to(kind)
    assert sl.metric_loss(logits[:, 0], yes, "f1", ignore_index=7) == sl.metric_loss(logits[:, 0], yes.long(), "f1")


@every_metric
@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("constant", ["target", "decision"])
def test_an_empty_cell_is_empty_though_sums_of_weights_round(name, task, constant):
    """A difference of two such sums is 1e-17 where it should be 0, and what was 0/0 could then be any number."""
    average = legal_averages(name, task)[-1]
    for seed in range(8):
        problem = make(task, samples=30, seed=seed)
        problem.sample_weight = np.random.default_rng(seed).random(30)
        if constant == "target":
            problem.target = np.ones_like(problem.target)
        else:
            problem.scores = problem.scores + torch.tensor([0.0, 99.0, 0.0, 0.0] if task == "multiclass" else 99.0)
        # nothing correlates with a constant; these two references are differences of rounded sums themselves
        expected = 0.0 if name in ("mcc", "heidke") else problem.reference(name, average, **zero_division(name))
        assert_equal(problem.score(name, average=average), expected)


TORCHMETRICS = [
    *[(name, f, task, average) for name, f in [
        ("f1", tm.f1_score), ("precision", tm.precision), ("recall", tm.recall), ("specificity", tm.specificity),
        ("jaccard", tm.jaccard_index),
    ] for task in AVERAGES for average in AVERAGES[task] if average != "samples"],
    *[(name, f, task, None) for name, f in [
        ("mcc", tm.matthews_corrcoef), ("cohen_kappa", tm.cohen_kappa), ("accuracy", tm.accuracy),
    ] for task in ("binary", "multiclass")],
    ("mcc", tm.matthews_corrcoef, "multilabel", "micro"),
    ("accuracy", tm.accuracy, "multilabel", "macro"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "task", "average"), TORCHMETRICS)
@pytest.mark.parametrize("seed", range(3))
def test_torchmetrics_agrees(name, function, task, average, seed):
    """On problems without ties and absent classes, where torchmetrics follows scikit-learn."""
    problem = make(task, samples=100, seed=seed)
    p = problem.scores.softmax(1) if task == "multiclass" else problem.scores.sigmoid()
    size = {"num_labels" if task == "multilabel" else "num_classes": problem.classes}
    # its accuracy is a macro mean of recalls unless told otherwise; its coefficients know no average
    averaging = {"average": average or "micro"} if name not in ("mcc", "cohen_kappa") else {}
    theirs = function(p, torch.as_tensor(problem.target), task=task, **size, **averaging)
    ours = sl.score(problem.scores, problem.target, name, task=task, average=average)
    torch.testing.assert_close(ours, theirs.double(), rtol=0, atol=1e-6)  # it divides in float32


def test_counts_are_exact_past_the_precision_of_float32():
    n = 2**24 + 2
    scores, target = torch.ones(n), torch.ones(n, dtype=torch.int8)
    scores[0] = -1
    assert sl.score(scores, target, "recall").item() == (n - 1) / n


@pytest.mark.parametrize("metric", ["accuracy", "cost"])
def test_large_weights_are_exact(metric):
    weight = torch.tensor([2.0**24, 1.0, 1.0])
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    score = sl.score(logits, torch.tensor([0, 1, 1]), metric, task="multiclass", sample_weight=weight).item()
    assert score == {"accuracy": (2**24 + 1) / (2**24 + 2), "cost": 1 / (2**24 + 2)}[metric]


@every_metric
@pytest.mark.parametrize("cells", [(999_000, 400, 500, 100), (100, 400, 500, 999_000)], ids=["positives", "negatives"])
def test_no_formula_cancels_where_one_class_is_rare(name, cells):
    single, double = (
        evaluate(sl.METRICS[name], torch.tensor(cells, dtype=dtype).reshape(1, 1, 1, 4), "binary", "macro").double()
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single, double, rtol=1e-5, atol=0)


# ---------------------------------------------------------------------------------------------------------------------
# One score, many ways to ask for it
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alias", "name"), sl.METRICS.aliases.items())
def test_an_alias_scores_like_its_metric(alias, name):
    problem = make("binary")
    assert_equal(problem.score(alias), problem.score(name))


@every_combination
def test_logits_and_probabilities_agree(name, task, average):
    problem = make(task)
    score = problem.score(name, average=average)
    problem.scores = problem.scores.softmax(1) if task == "multiclass" else problem.scores.sigmoid()
    problem.settings["inputs"] = "probabilities"
    assert_equal(problem.score(name, average=average), score)


@pytest.mark.parametrize(("name", "task", "average"), [c for c in COMBINATIONS if c[2] != "none"])
def test_the_score_of_a_loss_is_the_score(name, task, average):
    problem = make(task)
    problem.settings["threshold"] = [0.5, -0.5, 0.0, 1.0] if task == "multiclass" else 0.3
    loss_fn = sl.MetricLoss(name, task=task, average=average, **problem.settings)
    ours = loss_fn.score(problem.scores, problem.target, problem.sample_weight)
    assert_equal(ours, problem.score(name, average=average))


@every_metric
def test_two_classes_are_a_binary_task(name):
    problem = make("multiclass", classes=2)
    average = "none" if sl.METRICS[name].kind == "class" else None
    score = problem.score(name, average=average)
    margin = problem.scores[:, 1] - problem.scores[:, 0]
    binary = sl.score(margin, problem.target, name, sample_weight=problem.sample_weight)
    assert_equal(score if average is None else score[1], binary)


@every_combination
def test_pixels_are_samples(name, task, average):
    problem = make(task, samples=3, trailing=(4, 5))
    flat = Problem(
        task,
        problem.scores.flatten() if task == "binary" else problem.scores.movedim(1, -1).flatten(0, -2),
        np.moveaxis(problem.target, 1, -1).reshape(-1, 4) if task == "multilabel" else problem.target.ravel(),
        problem.sample_weight.repeat(20),
        problem.settings,
    )
    expected = flat.score(name, average=average)
    if average != "samples":
        assert_equal(problem.score(name, average=average), expected)
    problem.sample_weight = flat.sample_weight.reshape(3, 4, 5)
    assert_equal(problem.score(name, average=average), expected)


@pytest.mark.parametrize(("name", "task", "average"), [c for c in COMBINATIONS if c[2] not in ("samples", "none")])
def test_per_image_is_the_mean_over_images(name, task, average):
    problem = make(task, samples=5, trailing=(3, 4))
    images = [
        sl.score(problem.scores[i : i + 1], problem.target[i : i + 1], name, task=task, average=average)
        for i in range(5)
    ]
    weighted = problem.score(name, average=average, per_image=True)
    assert_equal(weighted, np.average(images, weights=problem.sample_weight))
    problem.sample_weight = None
    assert_equal(problem.score(name, average=average, per_image=True), np.mean(images))


@pytest.mark.parametrize("task", AVERAGES)
def test_an_image_that_is_ignored_does_not_enter_the_mean(task):
    problem = make(task, samples=5, trailing=(3, 4))
    problem.sample_weight, problem.target[2] = None, -1
    score = problem.score("f1", per_image=True, ignore_index=-1)
    problem.scores, problem.target = problem.scores[[0, 1, 3, 4]], problem.target[[0, 1, 3, 4]]
    assert_equal(score, problem.score("f1", per_image=True))


@pytest.mark.parametrize(("name", "task", "average"), [c for c in COMBINATIONS if c[1] != "multilabel"])
@pytest.mark.parametrize("ignore_index", [None, -1, 1])
def test_ignored_samples_are_filtered_out(name, task, average, ignore_index):
    if task == "binary" and ignore_index is None:
        ignore_index = 255
    problem = make(task)
    problem.target[::3] = -100 if ignore_index is None else ignore_index
    kept = problem.target != problem.target[0]
    problem.scores[~kept] = torch.nan  # nothing of an ignored sample may be read
    score = problem.score(name, average=average, ignore_index=ignore_index)
    left = Problem(task, problem.scores[kept], problem.target[kept], problem.sample_weight[kept], problem.settings)
    assert_equal(score, left.score(name, average=average))


@every_metric
def test_ignored_labels_are_filtered_out(name):
    problem = make("multilabel")
    rng = np.random.default_rng(1)
    problem.target[rng.random(problem.target.shape) < 0.3] = -1
    problem.target[5] = -1
    kept = problem.target != -1

    def binary(where, weight):
        return sl.score(problem.scores[where], problem.target[where], name, sample_weight=weight).item()

    weight = np.broadcast_to(problem.sample_weight[:, None], kept.shape)
    labels = [binary(column, weight[column]) for column in (kept & (np.arange(4) == k) for k in range(4))]
    rows = kept.any(1).nonzero()[0]
    expected = {
        "none": labels,
        "macro": np.mean(labels),
        "weighted": np.average(labels, weights=(weight * (problem.target == 1)).sum(0)),
        "micro": binary(kept, weight[kept]),
        "samples": np.average([binary((i, kept[i]), None) for i in rows], weights=problem.sample_weight[rows]),
    }
    for average, value in expected.items():
        assert_equal(problem.score(name, average=average, ignore_index=-1), value)


@pytest.mark.parametrize(("name", "task", "average"), [c for c in COMBINATIONS if c[1] == "multiclass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_class_weights_are_weights_of_samples(name, task, average, dtype):
    problem = make(task)
    problem.scores = problem.scores.to(dtype)
    weight = np.array([0.1, 0.7, 1.3, 0.0])
    score = problem.score(name, average=average, weight=weight)
    problem.sample_weight = problem.sample_weight * weight[problem.target]
    assert_equal(score, problem.score(name, average=average))


@every_metric
def test_label_weights_weigh_the_macro_mean(name):
    problem = make("multilabel")
    weight = [0.1, 0.7, 1.3, 0.0]
    labels = problem.score(name, average="none")
    assert_equal(problem.score(name, weight=weight), np.average(labels, weights=weight))


@pytest.mark.parametrize("average", ["micro", "weighted", "samples", "none"])
def test_label_weights_without_a_macro_mean_are_an_error(average):
    with pytest.raises(ValueError, match="weight"):
        make("multilabel").score("f1", average=average, weight=[1, 2, 3, 4])


@every_metric
def test_a_set_of_thresholds_is_averaged_over(name):
    problem = make("binary")

    def at(threshold):
        problem.settings["threshold"] = threshold
        return problem.score(name)

    assert_equal(at([0.2, 0.5, 0.6]), (at(0.2) + at(0.5) + at(0.6)) / 3)


@every_metric
@pytest.mark.parametrize("average", AVERAGES["multilabel"])
def test_each_label_may_have_its_threshold_or_a_set(name, average):
    problem = make("multilabel")

    def at(threshold):
        problem.settings["threshold"] = threshold
        return problem.score(name, average=average)

    one, other = (0.2, 0.5, 0.6, 0.7), (0.5, 0.5, 0.3, 0.4)
    at_one = at(one)
    assert_equal(at([one, other]), (at_one + at(other)) / 2)
    problem.scores = problem.scores - torch.tensor(one, dtype=torch.float64).logit()
    assert_equal(at(0.5), at_one)


def test_a_probability_at_the_threshold_is_a_yes():
    p = torch.tensor([[0.3, 0.3]])  # as float32, which is not the 0.3 of the threshold
    for threshold in (0.3, (0.3, 0.3), ((0.3, 0.3), (0.3, 0.3))):
        score = sl.score(p, [[1, 1]], "recall", task="multilabel", inputs="probabilities", threshold=threshold)
        assert score == 1


@pytest.mark.parametrize(
    ("logits", "offsets", "decided"),
    [
        ([1.0, 1.0, 0.0], None, 0),
        ([0.0, 1.0, 1.0], None, 1),
        ([2.0, 1.0, 0.0], [0.0, -2.0, 0.0], 1),
        ([2.0, 1.0, 0.0], [2.0, 1.0, 0.0], 0),
        ([-torch.inf, -3.0, -9.0], [-99.0, 0.0, -7.0], 2),
    ],
)
def test_multiclass_decides_for_the_largest_after_offsets_the_first_if_they_tie(logits, offsets, decided):
    scores = torch.tensor([logits])
    for given_scores, inputs in ((scores, "logits"), (scores.softmax(1), "probabilities")):
        if inputs == "probabilities" and offsets == [2.0, 1.0, 0.0]:
            continue  # log p rounds: no tie is left to break
        assert sl.score(given_scores, [decided], "accuracy", task="multiclass", inputs=inputs, threshold=offsets) == 1


@every_combination
def test_arrays_and_lists_are_accepted(name, task, average):
    problem = make(task)
    score = problem.score(name, average=average)
    for convert in (np.asarray, lambda values: np.asarray(values).tolist()):
        arrays = [convert(values) for values in (problem.scores, problem.target, problem.sample_weight)]
        assert_equal(sl.score(*arrays[:2], name, task=task, average=average, sample_weight=arrays[2]), score)


def test_reversed_arrays_are_accepted():
    """torch refuses negative strides; scikit-learn's users have them."""
    assert sl.score(np.array([2.0, -1.0, 0.5, -3.0])[::-1], np.array([1, 1, 0, 0])[::-1], "f1") == 0.5


@every_metric
def test_a_soft_target_is_a_row_of_each_class(name):
    rng = np.random.default_rng(0)
    options = zero_division(name)

    binary = make("binary")
    y = rng.integers(0, 9, 24) / 8
    rows = Problem("binary", binary.scores.repeat(2), np.repeat([1, 0], 24), np.append(y, 1 - y), binary.settings)
    assert_equal(sl.score(binary.scores, y, name), rows.reference(name, None, **options))

    multiclass = make("multiclass")
    y = rng.multinomial(8, [0.4, 0.3, 0.2, 0.1], 24) / 8
    scores, classes = multiclass.scores.repeat(4, 1), np.arange(4).repeat(24)
    rows = Problem("multiclass", scores, classes, y.T.ravel(), multiclass.settings)
    for average in legal_averages(name, "multiclass"):
        score = sl.score(multiclass.scores, y, name, task="multiclass", average=average)
        assert_equal(score, rows.reference(name, average, **options))
