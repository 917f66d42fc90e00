"""The report in a real browser: no errors, and what it shows when it is used is what Python computes."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import stepless as sl
from stepless.tabular.outcome import Column

from .outcomes import HOSTILE, make

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.full, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Open a report; whatever the page complains of, or asks a network for, fails the test."""
    complaints, contexts = [], []

    def open_page(outcome, width=1200, scheme="light"):
        path = tmp_path / f"{len(contexts)}.html"
        outcome.to_html(path)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.goto(path.as_uri())
        page.wait_for_selector("canvas")
        page.wait_for_timeout(100)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def scores(page):
    """Every metric of the explorer, as text."""
    return page.evaluate(
        """Object.fromEntries([...document.querySelectorAll('[data-metric]')]
        .map(cell => [cell.dataset.metric, cell.textContent]))"""
    )


def compare(page, expected):
    """What the page shows against numbers: four digits, and a dash for what is none."""
    shown = scores(page)
    assert set(shown) == set(expected)
    for name, value in expected.items():
        text = f"{value:.4f}" if np.isfinite(value) else "–"
        assert float(shown[name].replace("−", "-")) == pytest.approx(float(text), abs=1.01e-4), name


def python_scores(outcome, entry, threshold, prices=(1.0, 1.0)):
    options = {"task": outcome.task, "inputs": "probabilities", "sample_weight": outcome.weight, "threshold": threshold}
    priced = outcome.task != "multiclass"
    extra = {
        "cost": {"costs": [[0, prices[0]], [prices[1], 0]]},
        "net_benefit": {"threshold_probability": prices[0] / sum(prices)},
    }
    return {
        name: sl.score(
            entry.probabilities, outcome.target, name, **options, **(extra.get(name, {}) if priced else {})
        ).item()
        for name in sl.METRICS
    }


def cells(page):
    texts = page.locator("#confusion td b").all_text_contents()
    return [float(text.replace(",", "")) for text in texts]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_slider_changes_the_numbers_to_those_python_computes(visit, weighted):
    outcome = make(rows=500, contestants=4, weighted=weighted, subject_to="recall >= 0.7")
    page = visit(outcome)
    cuts = page.evaluate("DATA.explorer.units[0].cuts")
    slider = page.get_by_label("Threshold", exact=True)
    compare(page, python_scores(outcome, outcome.entries[0], outcome.entries[0].threshold))
    for contestant in (0, 2):
        page.get_by_label("Contestant", exact=True).select_option(str(contestant))
        entry = outcome.entries[contestant]
        for place in (len(cuts) // 7, len(cuts) // 2, len(cuts) - 20):
            slider.fill(str(place))
            compare(page, python_scores(outcome, entry, cuts[place]))
            weight = np.ones(500) if outcome.weight is None else outcome.weight
            yes, true = entry.probabilities >= cuts[place], outcome.target == 1
            expected = [weight[a & b].sum() for a, b in ((~true, ~yes), (~true, yes), (true, ~yes), (true, yes))]
            np.testing.assert_allclose(cells(page), expected, atol=0.051)
            holds = sl.score(
                entry.probabilities, outcome.target, "recall", inputs="probabilities", threshold=cuts[place],
                sample_weight=outcome.weight,
            )  # fmt: skip
            assert ("does not hold" in page.locator("#rules").text_content()) == (holds.item() < 0.7)


def test_typed_costs_move_the_threshold_and_price_the_errors(visit):
    outcome = make(rows=500)
    page = visit(outcome)
    page.get_by_label("A false alarm costs").fill("1")
    page.get_by_label("a miss costs").fill("4")
    cut = float(page.get_by_label("Threshold, typed").input_value())
    assert cut == pytest.approx(0.2, abs=0.01)
    compare(page, python_scores(outcome, outcome.entries[0], cut, (1.0, 4.0)))
    page.get_by_role("button", name="Least cost on these rows").click()
    assert float(scores(page)["cost"]) <= python_scores(outcome, outcome.entries[0], cut, (1.0, 4.0))["cost"] + 1e-4
    page.get_by_label("a miss costs").fill("-3")
    assert page.get_by_label("a miss costs").get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="½").click()
    compare(page, python_scores(outcome, outcome.entries[0], 0.5, (1.0, 4.0)))


def test_offsets_of_classes(visit):
    outcome = make("multiclass", rows=400)
    page = visit(outcome)
    compare(page, python_scores(outcome, outcome.entries[0], outcome.entries[0].threshold))
    page.get_by_role("button", name="No offsets").click()
    page.get_by_label("Offset of class 2", exact=True).fill("-0.8")
    page.get_by_label("Offset of class 3, typed").fill("0.35")
    page.keyboard.press("Tab")
    compare(page, python_scores(outcome, outcome.entries[0], (0.0, -0.8, 0.35)))
    assert sum(cells(page)) == 400


def test_a_threshold_a_label(visit):
    outcome = make("multilabel", rows=400)
    page = visit(outcome)
    compare(page, python_scores(outcome, outcome.entries[0], outcome.entries[0].threshold))
    page.get_by_role("button", name="½").click()
    page.get_by_label("Threshold of topic 2", exact=True).fill("30")
    cut = page.evaluate("DATA.explorer.units[1].cuts[30]")
    compare(page, python_scores(outcome, outcome.entries[0], (0.5, cut, 0.5)))
    assert sum(cells(page)) == 400
    assert "topic 2" in page.locator("#confusion").text_content()


def test_the_keyboard_is_enough(visit):
    page = visit(make(rows=300))
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
        )
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
    assert reached[:3] == ["Skip to the comparison", "Contestant", "Threshold"]
    slider = page.get_by_label("Threshold", exact=True)
    slider.focus()
    before, place = scores(page), int(slider.input_value())
    page.keyboard.press("ArrowRight")
    assert int(slider.input_value()) == place + 1
    for _ in range(3):
        page.keyboard.press("PageUp")
    assert scores(page) != before
    assert float(slider.get_attribute("aria-valuetext")) > 0
    page.keyboard.press("Home")
    assert cells(page)[0] == 0  # everybody
    button = page.locator("#legend button").first
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"


def test_nothing_is_unlabelled(visit):
    for task in ("binary", "multiclass", "multilabel"):
        page = visit(make(task, rows=300))
        unnamed = page.evaluate(
            """[...document.querySelectorAll('input, select, button, [role=img]')].filter(e =>
            !e.getAttribute('aria-label') && !(e.labels && e.labels.length) && !e.textContent.trim())
            .map(e => e.outerHTML)"""
        )
        assert unnamed == []
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
        assert levels[0] == 1
        assert max(levels) <= 2


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_a_phone_needs_no_sideways_scrolling(visit, task):
    names = {"classes": tuple(f"a rather long class name {i}" for i in range(12))} if task == "multiclass" else {}
    outcome = replace(make(task, rows=600, classes=12 if task == "multiclass" else 3), **names)
    page = visit(outcome, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.set_viewport_size({"width": 1200, "height": 900})
    page.wait_for_timeout(200)
    page.set_viewport_size({"width": 375, "height": 900})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_dark_is_dark_and_paper_is_white(visit):
    page = visit(make(rows=300), scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    luminance = "(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))"
    assert page.evaluate(f"{luminance}({ground})") < 120
    assert page.evaluate("paint.ground") == page.evaluate(
        "getComputedStyle(document.documentElement).getPropertyValue('--ground').trim()"
    )
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(f"{luminance}({ground})") == 765
    page.emulate_media(media="screen", color_scheme="light")
    page.wait_for_timeout(100)
    assert page.evaluate("paint.ground") == "#ffffff"


def test_it_prints(visit, tmp_path):
    page = visit(make(rows=300, contestants=3))
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_hostile_names_show_as_text(visit, task):
    outcome = make(task, rows=300)
    entries = tuple(replace(e, name=f"{HOSTILE}{i}") for i, e in enumerate(outcome.entries))
    outcome = replace(
        outcome, name=HOSTILE, entries=entries, columns=(Column(HOSTILE, "number", 0, 1),), positive=HOSTILE,
        classes=("a", HOSTILE) if task == "binary" else (HOSTILE, "</script>", "b"),
        labels=(HOSTILE, "</script>", "b") if task == "multilabel" else None, verdict=HOSTILE, warnings=(HOSTILE,),
    )  # fmt: skip
    page = visit(outcome)
    assert page.locator("h1").text_content() == HOSTILE
    assert HOSTILE in page.locator("#confusion").text_content()
    assert HOSTILE in page.locator("#data").text_content()
    assert page.locator("#legend button").first.text_content() == f"{HOSTILE}0"
    assert page.evaluate("document.scripts.length") == 5


def test_what_cannot_be_drawn_leaves_the_rest(visit):
    outcome = make(rows=300)
    constant = replace(outcome.entries[0], probabilities=np.full(300, 0.2), raw=None)
    page = visit(replace(outcome, entries=(constant,), winner=constant.key))
    page.get_by_label("Threshold", exact=True).fill("0")
    assert scores(page)["npv"] == "0.0000"
    entries = tuple(replace(e, thresholds=(), threshold=None) for e in outcome.entries)
    page = visit(replace(outcome, entries=entries, metric="auroc"))
    assert "false alarms" in page.locator("#summary").text_content()
