"""Formulas as text and as functions: the values of our own metrics, safe at 0/0, and safe to read from strangers."""

import itertools
import math
import pickle
import re
import time
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import stepless as sl
from stepless import MetricLoss, formula
from stepless.formula import resolve
from stepless.formula_text import parse
from stepless.metrics import METRICS
from stepless.safe_counts import power

# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------

#: Every metric of a yes/no decision, written as a user would write it.
TEXTS = {
    "precision": "tp / (tp + fp)",
    "recall": "tp / (tp + fn)",
    "specificity": "tn / (tn + fp)",
    "npv": "tn / (tn + fn)",
    "fpr": "fp / (fp + tn)",
    "fnr": "fn / (fn + tp)",
    "fdr": "fp / (tp + fp)",
    "false_omission_rate": "fn / (fn + tn)",
    "f1": "2*tp / (2*tp + fp + fn)",
    "f_beta": "2 * precision * recall / (precision + recall)",
    "jaccard": "tp / (n - tn)",
    "tversky": "tp / (tp + 0.5*fp + 5e-1*fn)",
    "markedness": "precision + npv - 1",
    "fowlkes_mallows": "sqrt(precision * recall)",
    "gilbert": "(tp - (tp + fp)*prevalence) / (tp + fp + fn - (tp + fp)*prevalence)",
    "p4": "4*tp*tn / (4*tp*tn + (tp + tn)*(fp + fn))",
    "net_benefit": "tp/n - fp/n",
    "accuracy": "(tp + tn) / n",
    "error_rate": "(fp + fn) / n",
    "balanced_accuracy": "(recall + specificity) / 2",
    "informedness": "recall - fpr",
    "g_mean": "(recall * specificity) ** 0.5",
    "mcc": "(tp*tn - fp*fn) / (sqrt((tp + fp)*(tn + fn)) * sqrt((tp + fn)*(tn + fp)))",
    "cohen_kappa": "2*(tp*tn - fp*fn) / ((tp + fp)*(fp + tn) + (tp + fn)*(fn + tn))",
    "heidke": "2*(tp*tn - fp*fn) / ((tp + fp)*(fp + tn) + (tp + fn)*(fn + tn))",
    "weighted_kappa": "2*(tp*tn - fp*fn) / ((tp + fp)*(fp + tn) + (tp + fn)*(fn + tn))",
    "cost": "abs(-fp - fn) / n",
}
counts = st.tuples(*[st.integers(0, 12)] * 4)


def test_every_metric_has_a_text():
    assert set(TEXTS) == set(METRICS)


def batch(tp, fp, fn, tn):
    """Scores and targets with these counts."""
    cells = torch.tensor([tp, fp, fn, tn])
    return torch.tensor([1.0, 1, -1, -1]).repeat_interleave(cells), torch.tensor([1, 0, 1, 0]).repeat_interleave(cells)


@pytest.mark.parametrize("name", TEXTS)
@given(cells=counts)
@example(cells=(0, 0, 3, 0))
@example(cells=(0, 2, 0, 0))
@settings(max_examples=20, deadline=None)
def test_text_equals_the_registered_metric(name, cells):
    tp, fp, fn, tn = cells
    # a class without samples has a meaning of its own in the formulas of all classes at once
    assume(METRICS[name].kind == "class" or (tp + fn and fp + tn))
    scores, target = batch(*cells)
    expected = sl.score(scores, target, name)
    torch.testing.assert_close(sl.score(scores, target, TEXTS[name]), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", TEXTS)
def test_text_trains_as_the_registered_metric(name):
    target = torch.tensor([1, 0, 1, 1, 0, 0, 0])
    grads = []
    for metric, maximize in ((name, None), (TEXTS[name], METRICS[name].greater_is_better)):
        scores = torch.linspace(-2, 1.5, 7, dtype=torch.float64).requires_grad_()
        MetricLoss(metric, maximize=maximize)(scores, target).backward()
        grads.append(scores.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", formula.names())
@given(cells=counts)
@settings(max_examples=5, deadline=None)
def test_every_name_means_what_it_says(name, cells):
    c = torch.tensor(cells, dtype=torch.float64)
    tp, fp, fn, tn = c
    expected = {
        "tp": tp, "fp": fp, "fn": fn, "tn": tn, "n": c.sum(), "prevalence": sl.ratio(tp + fn, c.sum()),
    }  # fmt: skip
    value = parse(f"{name} * 1")(*c)
    assert value == (expected[name] if name in expected else METRICS[name](*c))


def test_names_hold_all_rates_and_their_aliases():
    rates = {name for name, metric in METRICS.items() if metric.kind == "class"}
    aliases = {alias for alias, name in METRICS.aliases.items() if name in rates}
    assert set(formula.names()) == {"tp", "fp", "fn", "tn", "n", "prevalence"} | rates | aliases


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tp", None), ("2 + 3*4 - tp*0", 14), ("-tp**2", -9), ("(-tp)**2", 9), ("tp - fp - fn", 0),
        ("tp / fp / fn", 1.5), ("2 ** 3 * tp", 24), ("tp ** -1", 1 / 3), ("tn ** 0.5", 2), ("sqrt(4) * tp", 6),
        ("tp * sqrt(tn)", 6), ("min(tp, 2) + max(1, 2)", 4), ("abs(fp - tn)", 3), ("+tp", 3), ("1e1 * tp", 30),
        ("  tp +\tfp ", 4), ("tp / 0", 0), ("1 / 0 + tp", 3),
    ],
)  # fmt: skip
def test_arithmetic(text, value):
    cells = torch.tensor([3.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    assert parse(text)(*cells) == (cells[0] if value is None else value)


@pytest.mark.parametrize(
    ("text", "maximize", "best"),
    [
        ("5*fn + fp", False, 0.0), ("2*tp / (2*tp + fp + fn)", None, 1.0), ("tp/(tp + fn) - fp/(fp + tn)", True, 1.0),
        ("1 - f1", False, 0.0), ("100 * recall", True, 100.0), ("fp / tp", False, 0.0), ("(fn + 1) / fp", False, 0.0),
    ],
)  # fmt: skip
def test_best_is_the_value_of_a_perfect_decision(text, maximize, best):
    metric = resolve(text, maximize=maximize)
    assert metric.best == best
    assert metric.greater_is_better is (maximize is not False)


@pytest.mark.parametrize(
    ("text", "greater"),
    [
        ("5*fn + fp", False),
        ("1 - f1", False),
        ("fp / tp", False),
        ("(fp - fn)**2", False),
        ("f1 + recall", True),
        ("tp - 3*fp", True),
    ],
)
def test_the_direction_is_that_in_which_right_decisions_are_better(text, greater):
    assert resolve(text).greater_is_better is greater
    assert resolve(text, maximize=not greater).greater_is_better is not greater  # whoever says so is believed


def test_a_name_may_have_spaces_around_it():
    assert resolve(" f1\n") == resolve("f1")


def test_a_formula_is_made_without_warnings():
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resolve("5*fn + fp")
            resolve(lambda tp, fp, fn, tn: tp / (tp + fp))
            with pytest.raises(ValueError, match="character"):
                resolve("1if tp else 2")
    finally:
        torch.set_warn_always(False)


# ---------------------------------------------------------------------------------------------------------------------
# Safety at zero
# ---------------------------------------------------------------------------------------------------------------------


def of_a_module(tp, fp, fn, tn):
    return tp / (tp + fp + fn)


# Each formula twice: as given, and as its value where every denominator and root is positive.
SAFE = {
    "text": ("tp / (tp + fp)", lambda tp, fp, fn, tn: tp / (tp + fp)),
    "text, roots": ("sqrt(tp*tn) / (tp + fn)**0.5", lambda tp, fp, fn, tn: (tp * tn / (tp + fn)) ** 0.5),
    "text, powers": ("tp**-0.5 + fp**(1.5)", lambda tp, fp, fn, tn: tp**-0.5 + fp**1.5),
    "text, nested": ("1 / (1/precision + 1/recall)", lambda tp, fp, fn, tn: tp / (2 * tp + fp + fn)),
    "text, min": ("min(precision, recall)", lambda tp, fp, fn, tn: torch.minimum(tp / (tp + fp), tp / (tp + fn))),
    "plain": (lambda tp, fp, fn, tn: tp / (tp + fp), lambda tp, fp, fn, tn: tp / (tp + fp)),
    "function": (of_a_module, of_a_module),
    "sqrt": (lambda tp, fp, fn, tn: torch.sqrt(tp * tn), lambda tp, fp, fn, tn: (tp * tn).sqrt()),
    "** 0.5": (lambda tp, fp, fn, tn: (tp * tn) ** 0.5, lambda tp, fp, fn, tn: (tp * tn).sqrt()),
    "** -0.5": (lambda tp, fp, fn, tn: tp**-0.5, lambda tp, fp, fn, tn: tp.rsqrt()),
    "torch.pow": (lambda tp, fp, fn, tn: torch.pow(tp, 0.5), lambda tp, fp, fn, tn: tp.sqrt()),
    "torch.div": (lambda tp, fp, fn, tn: torch.div(tp, tp + fp), lambda tp, fp, fn, tn: tp / (tp + fp)),
    "1 / x": (lambda tp, fp, fn, tn: 1 / (tp + fp), lambda tp, fp, fn, tn: 1 / (tp + fp)),
    "tensor / x": (lambda tp, fp, fn, tn: torch.tensor(1.0) / tp, lambda tp, fp, fn, tn: 1 / tp),
    "x / number": (lambda tp, fp, fn, tn: (2 - tp) / 4, lambda tp, fp, fn, tn: 0.5 - tp / 4),
    "minimum": (
        lambda tp, fp, fn, tn: torch.minimum(tp / (tp + fp), tp / (tp + fn)),
        lambda tp, fp, fn, tn: tp / (tp + torch.maximum(fp, fn)),
    ),
    "nested": (
        lambda tp, fp, fn, tn: 2 / (1 / (tp / (tp + fp)) + 1 / (tp / (tp + fn))),
        lambda tp, fp, fn, tn: 2 * tp / (2 * tp + fp + fn),
    ),
    "root of a ratio": (
        lambda tp, fp, fn, tn: torch.sqrt(tp / (tp + fn) * tn / (tn + fp)),
        lambda tp, fp, fn, tn: (tp * tn / (tp + fn) / (tn + fp)).sqrt(),
    ),
    "our ratio": (lambda tp, fp, fn, tn: sl.ratio(tp, tp + fp), lambda tp, fp, fn, tn: tp / (tp + fp)),
    "our ratio of nothing": (
        lambda tp, fp, fn, tn: sl.ratio(tp, tp + fp, zero_division=1.0),
        lambda tp, fp, fn, tn: tp / (tp + fp),
    ),
    "our cube root": (lambda tp, fp, fn, tn: sl.root(tp, degree=3), lambda tp, fp, fn, tn: tp ** (1 / 3)),
    "our root": (lambda tp, fp, fn, tn: sl.root(tp * tn), lambda tp, fp, fn, tn: (tp * tn).sqrt()),
    "our minimum": (lambda tp, fp, fn, tn: sl.minimum(tp, 2.0) + tn, lambda tp, fp, fn, tn: tp.clamp(max=2) + tn),
    "our maximum": (lambda tp, fp, fn, tn: sl.maximum(tp, fp), lambda tp, fp, fn, tn: torch.maximum(tp, fp)),
}


@pytest.mark.parametrize("case", SAFE)
def test_values_and_gradients_are_finite_at_zero(case):
    metric = resolve(SAFE[case][0])
    cells = torch.tensor(list(itertools.product([0.0, 3.0], repeat=4)), dtype=torch.float64).requires_grad_()
    value = metric(*cells.unbind(-1))
    (grad,) = torch.autograd.grad(value.sum(), cells)
    assert value.isfinite().all()
    assert grad.isfinite().all()
    assert value.shape == (16,)


@pytest.mark.parametrize("case", SAFE)
def test_values_and_gradients_are_the_formula_s_elsewhere(case):
    given_formula, plain = SAFE[case]
    cells = torch.tensor([[3.0, 1, 2, 4], [0.5, 2, 1, 7], [9, 8, 0.25, 6]], dtype=torch.float64).requires_grad_()
    value, expected = resolve(given_formula)(*cells.unbind(-1)), plain(*cells.unbind(-1))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), cells)[0] for v in (value, expected)))


@pytest.mark.parametrize("target", [torch.zeros(5), torch.ones(5), torch.zeros(0)], ids=["none", "all", "empty"])
@pytest.mark.parametrize("case", SAFE)
def test_a_batch_of_one_class_gives_a_finite_gradient(case, target):
    scores = torch.linspace(-1, 1, len(target)).requires_grad_()
    loss = MetricLoss(SAFE[case][0])(scores, target)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("text", ["tp / (tp + fp)", "sqrt(tp)", "1/tp", "0 / 0 + tp"])
def test_nothing_counted_scores_zero(text):
    assert parse(text)(*torch.zeros(4)) == 0


def test_a_function_equals_the_registered_metric_in_every_task():
    scores, plain = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), SAFE["function"][0]
    for task, target in {"multiclass": scores.argsort(1)[:, 0], "multilabel": scores.flip(0) > 0}.items():
        for average in ("macro", "micro", "weighted"):
            a, b = (MetricLoss(metric, task=task, average=average)(scores, target) for metric in ("jaccard", plain))
            torch.testing.assert_close(a, b)


# ---------------------------------------------------------------------------------------------------------------------
# Hostile text
# ---------------------------------------------------------------------------------------------------------------------

# What is refused, and what the error points at.
HOSTILE = {
    "__import__('os').system('true')": "__import__",
    "tp + __import__('os')": "__import__",
    "tp + tp.__class__": ".__class__",
    "tp.grad": ".grad",
    "(lambda: tp)()": "lambda",
    "tp + (lambda x: x)": "lambda",
    "[tp for fp in tn]": "[tp",
    "tp + {tp}": "{tp}",
    "tp[0]": "[0]",
    "tp, fp": "tp, fp",
    "'tp' * 3": "'tp'",
    "tp * f'{fp}'": "f'",
    "tp if 1 else 2": "if",
    "tp + (fp if tp else 1)": "if",
    "1 + (tp < fp)": "<",
    "tp == fp": "==",
    "tp and fp": "tp and",
    "not tp": "not tp",
    "~tp": "~tp",
    "tp // fp": "//",
    "fn + tp % fp": "%",
    "fn + tp @ fp": "@",
    "tp << 9": "<<",
    "(tp := fp)": ":=",
    "tp; fp": "; fp",
    "tp = fp": "=",
    "9**9**9": "9**9",
    "tp + 10**400": "400",
    "tp ** fp": "fp",
    "tp ** 17": "17",
    "tp * 1e999": "1e999",
    "tp * " + "9" * 900: "9" * 900,
    "tp * 1j": "1j",
    "tp * True": "True",
    "tp * None": "None",
    "tp + ...": "...",
    "foo + tp": "foo",
    "tp + mcc": "mcc",
    "sqrt + tp": "sqrt",
    "exp(tp)": "exp",
    "sqrt(tp, fp)": "sqrt(",
    "tp + min(tp)": "min(",
    "max(*tp, fp)": "*tp",
    "sqrt(x=tp)": "sqrt",
    "tp(fp)": "tp(",
    "   tp ? fp": "? fp",
    "tp # the hits\n+ fp": "# the hits",
    "(tp +\nfoo)": "foo",
    "tp²": "²",
    "tp ÷ fp": "÷",
    "τp + fp": "τ",
    "tp\u00a0+ fp": "\u00a0",
    "tp + \x00": "\x00",
    "\x00": "\x00",
    "-" * 500 + "tp": "-",
    "(" * 400 + "tp" + ")" * 400: "(",
    "tp" + " + tp" * 150: "tp",
}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:30]))
def test_hostile_text_is_refused_at_the_character(text):
    with pytest.raises(ValueError, match=r"at character \d+:\n") as caught:
        resolve(text)
    sentence, line, caret = str(caught.value).split("\n")
    at = int(re.search(r"at character (\d+):$", sentence)[1])
    assert caret == " " * (at + 1) + "^", "the caret stands under the character"
    # the line may be shown without the spaces around it, and with a blank for what cannot be printed
    shown = line[2:]
    start = len(text) - len(text.lstrip()) if len(shown) < len(text) else 0
    assert text[start + at - 1 :].startswith(HOSTILE[text])


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "\t\n ", "tp fp", "tp +", "(tp", "tp)", "tp\nfp", "tp\nimport os", "tp + 'a", "#", "tp \\", "\\",
     "()", "sqrt()", "tp + 0777", "tp..fp", "import os", "exec('1')", "a" * 1_000_000, "tp+" * 400_000 + "tp",
     "(" * 500 + "tp" + ")" * 500, "((((" * 249, "[" * 999, "9" * 1_000_000, "f1 score", "τ", "\ud800", "\u2028"],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_unreadable_text_is_refused_quickly_and_briefly(text):
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"formula|metric|sqrt") as caught:
        resolve(text)
    assert time.perf_counter() - start < 1
    assert len(str(caught.value)) < 4000


def only_value_errors(text):
    assume(text.strip() not in METRICS)  # a name of all classes at once is no formula
    try:
        metric = resolve(text)
    except ValueError:
        return
    value = metric(*torch.ones(4, 2, dtype=torch.float64))
    assert value.shape == (2,)
    assert value.is_floating_point()


ALPHABET = "tpfn0123456789.eE+-*/(), sqrtabminx\n\t#'\"[]{}:;=<>@!%&|^~\\_$?\x00\x0cλ"
TOKENS = re.findall(r"\S+", "tp fp fn tn n precision f1 mcc 0 1 8 0.5 1e300 sqrt( abs( min( max( ( ) ( ) , + - * / **")


@given(st.text(alphabet=ALPHABET, max_size=30))
@settings(max_examples=300, deadline=5000)
def test_random_text_raises_nothing_but_value_errors(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        only_value_errors(text)


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
@example("(0-8)**0.5*tp")
@example("(1e300)**16*tp")
@example("sqrt(4)*tp")
@settings(max_examples=500, deadline=5000)
def test_random_formulas_raise_nothing_but_value_errors(text):
    only_value_errors(text)


# A formula that is right, built from its own grammar: it must be accepted, and it must be a function of the counts.
atoms = st.sampled_from(["tp", "fp", "fn", "tn", "n", "prevalence", "recall", "npv", "2", "0.5"])
grammar = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda a: f"sqrt(abs({a}))"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        inner.map(lambda a: f"({a}) ** -1"),
        st.tuples(inner, inner).map(lambda t: f"(({t[0]}) ** 2 + {t[1]})"),  # a power costs a leaf: nothing overflows
    ),
    max_leaves=8,
)


@given(grammar, counts)
@settings(max_examples=200, deadline=5000)
def test_random_right_formulas_have_finite_gradients(text, cells):
    cells = torch.tensor(cells, dtype=torch.float64).requires_grad_()
    value = parse(text)(*cells) + 0 * cells[0]
    (grad,) = torch.autograd.grad(value, cells)
    assert value.isfinite()
    assert grad.isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# Keeping, training, registering
# ---------------------------------------------------------------------------------------------------------------------


def test_text_formulas_are_pickled_by_their_text():
    metric = resolve("5*fn + fp", maximize=False)
    again = pickle.loads(pickle.dumps(metric))
    assert again == metric
    assert hash(again.function) == hash(metric.function)
    assert again(1.0, 2.0, 3.0, 4.0) == 17
    loss_fn = pickle.loads(pickle.dumps(MetricLoss("5*fn + fp", maximize=False, subject_to="tp/(tp + fp) >= 0.5")))
    scores, target = batch(1, 2, 3, 4)
    assert loss_fn.score(scores, target) == 17


def test_functions_of_a_module_can_be_pickled():
    loss_fn = pickle.loads(pickle.dumps(MetricLoss(METRICS["f1"])))
    assert loss_fn.score(*batch(1, 1, 1, 1)) == 0.5


def test_text_formulas_are_equal_by_their_text():
    assert parse("tp + fp") == parse("tp + fp") != parse("fp + tp")
    assert parse("tp + fp") != "tp + fp"


@pytest.mark.parametrize(
    ("metric", "maximize"),
    [
        ("5*fn + fp", False),
        ("tp / (tp + 2*fp + fn)", True),
        (lambda tp, fp, fn, tn: torch.sqrt(tp / (tp + fn) * (tn / (tn + fp))), None),
        (lambda tp, fp, fn, tn: (fn + 2 * fp) / (tp + fp + fn + tn), False),
    ],
)
def test_a_formula_trains(metric, maximize):
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(200, generator=generator) < 0.3
    x = torch.randn(200, 2, generator=generator) + 2.0 * target[:, None]
    w = torch.zeros(3, requires_grad=True)
    loss_fn, optimizer = MetricLoss(metric, maximize=maximize), torch.optim.Adam([w], lr=0.1)

    def scores():
        return x @ w[:2] + w[2]

    first = loss_fn.score(scores() - 0.1, target)
    for _ in range(60):
        optimizer.zero_grad()
        loss_fn(scores(), target).backward()
        optimizer.step()
    last = loss_fn.score(scores(), target)
    direction = -1 if maximize is False else 1
    assert direction * (last - first) > 0
    assert sl.score(scores(), target, "balanced_accuracy") > 0.85


@pytest.fixture
def metrics(monkeypatch):
    """The registry, back as it was after the test."""
    monkeypatch.setattr(METRICS, "_things", dict(METRICS._things))
    monkeypatch.setattr(METRICS, "_aliases", dict(METRICS._aliases))
    return METRICS


SCALES = {"own": 1.0}


def closure():
    scale = 1.0

    def change(value):
        nonlocal scale
        scale = value

    return lambda tp, fp, fn, tn: tp / (tp + scale * fp + fn), change


def module_variable():
    return lambda tp, fp, fn, tn: tp / (tp + SCALES["own"] * fp + fn), lambda value: SCALES.update(own=value)


def helper():
    inner, change = closure()
    return lambda tp, fp, fn, tn: 1 * inner(tp, fp, fn, tn), change


def own_variable():
    class Formula:
        scale = 1.0

        def __call__(self, tp, fp, fn, tn):
            return tp / (tp + self.scale * fp + fn)

    made = Formula()
    return made, lambda value: setattr(made, "scale", value)


class Settings:
    own = 1.0


elsewhere = types.ModuleType("elsewhere")
elsewhere.own, elsewhere.Settings = 1.0, Settings


def attribute_of_a_class():
    return lambda tp, fp, fn, tn: tp / (tp + Settings.own * fp + fn), lambda value: setattr(Settings, "own", value)


def attribute_of_a_module():
    return lambda tp, fp, fn, tn: tp / (tp + elsewhere.own * fp + fn), lambda value: setattr(elsewhere, "own", value)


def attribute_of_a_class_of_a_module():
    def formula(tp, fp, fn, tn):
        return tp / (tp + elsewhere.Settings.own * fp + fn)

    return formula, lambda value: setattr(Settings, "own", value)


def attribute_of_a_function():
    def formula(tp, fp, fn, tn):
        return tp / (tp + formula.own * fp + fn)

    formula.own = 1.0
    return formula, lambda value: setattr(formula, "own", value)


def method_of_a_class():
    class Formulas:
        own = 1.0

        @staticmethod
        def formula(tp, fp, fn, tn):
            return tp / (tp + Formulas.own * fp + fn)

    return lambda *counts: 1 * Formulas.formula(*counts), lambda value: setattr(Formulas, "own", value)


def default():
    scales = {"own": 1.0}

    def formula(tp, fp, fn, tn, scales=scales):
        return tp / (tp + scales["own"] * fp + fn)

    return formula, lambda value: scales.update(own=value)


def default_of_a_keyword():
    scales = {"own": 1.0}

    def formula(tp, fp, fn, tn, *, scales=scales):
        return tp / (tp + scales["own"] * fp + fn)

    return formula, lambda value: scales.update(own=value)


ATTRIBUTES = (
    attribute_of_a_class, attribute_of_a_module, attribute_of_a_class_of_a_module, attribute_of_a_function,
    method_of_a_class,
)  # fmt: skip


@pytest.mark.parametrize(
    "make", [closure, module_variable, helper, own_variable, *ATTRIBUTES, default, default_of_a_keyword]
)
@pytest.mark.parametrize("rows", [40, 9000])
def test_a_formula_reads_its_variables_in_every_batch(make, rows):
    function, change = make()
    random = torch.Generator().manual_seed(0)
    logits, target = torch.randn(rows, generator=random), (torch.rand(rows, generator=random) < 0.3).float()
    loss_fn = MetricLoss(function)
    assert "reads variables" in loss_fn.path_for(logits, target)
    torch.testing.assert_close(loss_fn(logits, target), MetricLoss("tp / (tp + fp + fn)")(logits, target))
    change(5.0)
    torch.testing.assert_close(loss_fn(logits, target), MetricLoss("tp / (tp + 5*fp + fn)")(logits, target))
    change(1.0)


def test_a_registered_formula_reads_its_variables_in_every_batch(metrics):
    function, change = closure()

    @sl.metric(best=1.0)
    def annealed(tp, fp, fn, tn):
        return function(tp, fp, fn, tn)

    logits, target = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1.0, 1.0, 0.0])
    before = MetricLoss("annealed")(logits, target)
    change(5.0)
    assert MetricLoss("annealed")(logits, target) > before


def test_a_formula_without_variables_is_fused():
    def jaccard(tp, fp, fn, tn):
        return sl.ratio(tp, tp + fp + fn)

    def scaled(tp, fp, fn, tn, scale=2.0, shares=(1, 1.0)):
        return shares[0] * scale * math.pi * sl.ratio(tp, tp + fp + fn) / np.pi

    for made in (
        jaccard, scaled, lambda tp, fp, fn, tn: 2 * jaccard(tp, fp, fn, tn), lambda tp, fp, fn, tn: tp / (tp + fp)
    ):  # fmt: skip
        assert MetricLoss(made).path_for(torch.zeros(2), torch.ones(2)) == "fused-cpu"


def test_a_function_may_call_metrics_of_the_registry():
    def mean(tp, fp, fn, tn):
        return 0.5 * sl.METRICS["f1"](tp, fp, fn, tn) + 0.5 * sl.METRICS["f_beta"].bind(beta=2)(tp, fp, fn, tn)

    scores, target = batch(3, 2, 1, 5)
    expected = 0.5 * sl.score(scores, target, "f1") + 0.5 * sl.score(scores, target, "f_beta", beta=2)
    assert sl.score(scores, target, mean) == pytest.approx(expected.item())
    assert MetricLoss(mean)(torch.zeros(4, requires_grad=True), torch.zeros(4)).isfinite()


def test_a_new_metric_is_registered(metrics):
    @sl.metric(best=0.0, greater_is_better=False, aliases=("overcall",), source="here")
    def alarm_share(tp, fp, fn, tn, *, price=1.0):
        """Share of the samples that raise a false alarm."""
        return sl.ratio(price * fp, tp + fp + fn + tn)

    assert alarm_share(1.0, 2.0, 3.0, 2.0) == 0.25, "the function is left as it is"
    assert metrics["overcall"] is metrics["alarm_share"]
    assert metrics["alarm_share"].summary == "Share of the samples that raise a false alarm."
    scores, target = batch(1, 2, 3, 2)
    assert sl.score(scores, target, "overcall", price=2.0) == 0.5
    assert MetricLoss("alarm_share", step="logit_sigmoid")(scores * 1e4, target) == pytest.approx(0.25)
    assert parse("1 - alarm_share")(*torch.tensor([1.0, 2, 3, 2])) == 0.75


def test_a_registered_function_stands_for_its_metric(metrics):
    @sl.metric(best=0.0, greater_is_better=False, kind="joint")
    def misses(tp, fp, fn, tn, *, price=1.0):
        return price * sl.ratio(fn.sum(-1), (tp + fn).sum(-1))

    assert resolve(misses, price=2.0) == metrics["misses"].bind(price=2.0)
    assert resolve(METRICS["f1"].function) == METRICS["f1"]


def test_a_rounding_division_is_not_taken_for_a_plain_one():
    with pytest.raises(ValueError, match="has no gradient with respect to the counts"):
        resolve(lambda tp, fp, fn, tn: torch.div(tp, tp + fp, rounding_mode="floor"))
    square = resolve(lambda tp, fp, fn, tn: torch.pow(tp, exponent=2) / (tp + fp))
    assert square(*torch.tensor([3.0, 6.0, 0.0, 0.0])) == 1.0


@pytest.mark.parametrize(("name", "aliases"), [("f1", ()), ("dice", ()), ("fresh", ("recall",)), ("fresh", ("iou",))])
def test_a_taken_name_is_refused(metrics, name, aliases):
    def function(tp, fp, fn, tn):
        return tp

    function.__name__ = name
    before = dict(metrics), dict(metrics.aliases)
    with pytest.raises(ValueError, match=f"metric '{(*aliases, name)[0]}' is registered already; choose another name"):
        sl.metric(best=1.0, aliases=aliases)(function)
    assert (dict(metrics), dict(metrics.aliases)) == before


@pytest.mark.parametrize("name", ["tp", "fn"])
def test_a_count_alone_is_a_formula(name):
    assert resolve(name).greater_is_better == (name == "tp")
    assert MetricLoss(name).path_for(torch.zeros(3), torch.ones(3)) == "fused-cpu"


def test_a_count_to_the_power_of_nothing():
    assert sl.score(torch.tensor([0.2, 0.8]), torch.tensor([0, 1]), lambda tp, fp, fn, tn: tp**0 + tp) == 2.0
    assert power(3, 0) == power(3.0, 0) == power(torch.tensor(3.0), 0) == 1.0


@pytest.mark.parametrize(("text", "at"), [("5*fn + ", 7), ("tp/", 4), ("tp tp", 4)])
def test_a_formula_that_breaks_off_is_pointed_at_where_it_does(text, at):
    with pytest.raises(ValueError, match=rf"cannot be read, at character {at}:\n  .*\n {{{at + 1}}}\^$"):
        parse(text)


def test_an_empty_formula():
    with pytest.raises(ValueError, match=r"the formula is empty; write one, such as 2\*tp / \(2\*tp \+ fp \+ fn\)\."):
        parse("  ")


@pytest.mark.parametrize(
    "formula",
    [
        lambda tp, fp, fn, tn: torch.minimum(tp / (tp + fn), tn / (tn + fp)),
        lambda tp, fp, fn, tn: torch.amin(torch.stack([tp / (tp + fn), tn / (tn + fp)]), 0),
        lambda tp, fp, fn, tn: torch.clamp(tp / (tp + fn), max=0.9) - 0.1 * torch.log(1 + fp),
    ],
)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_torchs_functions_also_take_the_counts_of_tuning(formula, task):
    random = np.random.default_rng(0)
    scores = random.random(40) if task == "binary" else random.dirichlet([1, 1, 1], 40)
    target = random.integers(0, 2 if task == "binary" else 3, 40)
    tuned = sl.tune_threshold(scores, target, formula, task=task, inputs="probabilities")
    assert tuned.score >= sl.score(scores, target, formula, task=task, inputs="probabilities").item() - 1e-12


@pytest.mark.parametrize("name", ["accuracy", "mcc", "g_mean", "weighted_kappa"])
def test_a_metric_of_all_classes_is_no_part_of_a_formula(name):
    with pytest.raises(ValueError, match=f"{name} reads the counts of all classes, and a formula has those of one"):
        sl.MetricLoss(f"0.5 * {name} + f1")
