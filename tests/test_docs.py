"""The site: it builds without a warning, its blocks run, its links lead somewhere, and it names everything there is."""

import doctest
import http.server
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
import zlib
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch

import stepless as sl
from stepless.tabular.ensembles.predicting import Predicting

from .test_public_names import public_names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
#: Where pages may link to; nothing of a page is loaded from elsewhere.
HOSTS = {
    "github.com",
    "www.sphinx-doc.org",
    "pradyunsg.me",
    "sphinx-gallery.github.io",
    "keepachangelog.com",
    "semver.org",
}

sys.path.insert(0, str(DOCS / "_ext"))


@pytest.fixture
def clean_slate(monkeypatch, tmp_path):
    """A folder to write in; the registry of metrics, warnings and torch's random state as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    # A registry has no way to remove a name, on purpose; only a test wants one, so it swaps the private dictionaries.
    monkeypatch.setattr(sl.METRICS, "_things", dict(sl.METRICS._things))
    monkeypatch.setattr(sl.METRICS, "_aliases", dict(sl.METRICS._aliases))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(), warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)


@pytest.mark.full
@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_python_blocks_of_guides_run(path, clean_slate):
    text = path.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{path.name} has no Python block"
    assert len(blocks) == text.count("```python"), f"{path.name} has a Python block this test cannot read"
    namespace = {"__name__": f"{path.stem}_blocks"}
    for block in blocks:
        above = "\n" * text.count("\n", 0, block.start(1))  # so that a traceback names the guide's own line
        exec(compile(above + block[1], str(path), "exec"), namespace)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*/*.md")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_of_pages_lead_somewhere(path):
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_guides_type_no_result():
    """A number with three decimals or more is a result; it must come from a run or from the contest's page."""
    for path in [*GUIDES, DOCS / "index.md", DOCS / "migration.md"]:
        prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.findall(r"(?<![\w.])\d?\.\d{3,}", prose), f"{path.name} has a result that is typed by hand"


@pytest.mark.parametrize("metric", [m for m in sl.METRICS.values() if m.kind != "matrix"], ids=lambda m: m.name)
def test_printed_formulas_are_those_that_are_computed(metric):
    from metric_facts import value
    from printed_formulas import GREEK, printed

    tp, fp, fn, tn = 7.0, 2.0, 3.0, 11.0
    cells = {"tp": [tp, tn], "fp": [fp, fn], "fn": [fn, fp], "tn": [tn, tp]}
    counts = cells if metric.kind == "joint" else {name: pair[0] for name, pair in cells.items()}
    options = {GREEK[name]: default for name, default in metric.defaults.items() if name in GREEK} | {"K": 2.0}
    term = printed(metric)
    assert term.value({**counts, **options}) == pytest.approx(value(metric, tp, fp, fn, tn), rel=1e-12)
    assert term.mathml().count("<mrow>") == term.mathml().count("</mrow>")


@pytest.mark.full  # they import Sphinx
@pytest.mark.parametrize("name", ["metric_facts", "module_picture", "own_names", "printed_formulas"])
def test_examples_in_the_extensions_are_right(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("metric", list(sl.METRICS.values()), ids=lambda m: m.name)
def test_values_at_nothing_are_those_of_score(metric):
    """What the reference says of batches that lack something, scored row by row."""
    from metric_facts import LACKING, at_nothing, number

    said = at_nothing(metric)
    for lack, tables in LACKING.items():
        if not (known := re.search(rf"(\S+) with [^.]*{lack}\b", said)):
            continue
        for tp, fp, fn, tn in tables:
            decided = np.repeat([1.0, 1.0, -1.0, -1.0], [tp, fp, fn, tn])
            true = np.repeat([1, 0, 1, 0], [tp, fp, fn, tn])
            assert number(float(sl.score(decided, true, metric))) == known[1]


def test_ranges_of_rankings_do_not_depend_on_the_rows_they_are_read_from():
    from metric_facts import ranking_range

    for name, options in {"precision_at_k": {"k": 2}, "average_precision": {}, "auroc": {}}.items():
        assert ranking_range(name, **options) == ("0", "1")


# ---------------------------------------------------------------------------------------------------------------------
# The built site
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built from a copy so that nothing is written into the checkout; a warning is an error."""
    pytest.importorskip("sphinx_gallery", reason='needs pip install "stepless[docs]"')
    root = tmp_path_factory.mktemp("checkout")
    left = shutil.ignore_patterns("gallery", "__pycache__")
    shutil.copytree(DOCS, root / "docs", ignore=left)
    read = (
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
        "examples",
        "pyproject.toml",
        "src",
    )
    for name in read:
        (root / name).symlink_to(ROOT / name)
    out = root / "site"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(root / "docs"), str(out)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return out


class Page(HTMLParser):
    """The links, sources and anchors of a page, and what it says."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        held = dict(attributes)
        self.anchors |= {held[name] for name in ("id", "name") if held.get(name)}
        if tag == "a" and held.get("href"):
            self.links.append(held["href"])
        if tag in ("img", "script", "iframe", "source") and held.get("src"):
            self.loaded.append(held["src"])
        if tag == "link" and held.get("rel") in ("stylesheet", "icon") and held.get("href"):
            self.loaded.append(held["href"])


@pytest.fixture(scope="session")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


@pytest.mark.full
def test_links_of_the_site_lead_somewhere(site, pages):
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                assert target.scheme in ("http", "https", "mailto", "data"), f"{path.name} links to {link}"
                continue
            found = (path.parent / unquote(target.path)).resolve() if target.path else path
            assert found.exists(), f"{path.name} links to {link}"
            if target.fragment and found.suffix == ".html" and target.fragment != "top":
                anchors = pages[found].anchors if found in pages else Page(found).anchors
                assert unquote(target.fragment) in anchors, f"{path.name} links to {link}, which has no such place"


@pytest.mark.full
def test_the_site_needs_no_other_host(pages):
    for path, page in pages.items():
        outside = [link for link in page.loaded if urlsplit(link).netloc]
        assert not outside, f"{path.name} loads {outside}"
        hosts = {urlsplit(link).netloc for link in page.links} - {""}
        assert hosts <= HOSTS, f"{path.name} links to {hosts - HOSTS}; add the host to HOSTS if that is meant"


@pytest.mark.full
def test_the_reference_has_every_public_name(site):
    raw = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split(" ")[0] for line in zlib.decompress(raw).decode().splitlines()}
    missing = {name for name in public_names() if name not in listed}
    assert not missing, f"docs/reference has no entry for {', '.join(sorted(missing))}"


@pytest.mark.full
def test_the_reference_has_the_attributes_of_fitted_estimators(site):
    """With the underscore at their end, without which they do not exist."""
    page = (site / "reference" / "estimators.html").read_text(encoding="utf-8")
    shown = set(re.findall(r"<strong>(\w+)</strong>", page))
    for estimator in (Predicting, sl.MetricBooster, sl.MetricClassifier, sl.TunedThreshold):
        said = estimator.__doc__.partition("Attributes:\n")[2]
        named = {name for line in re.findall(r"^        ([\w, ]+_):", said, re.MULTILINE) for name in line.split(", ")}
        assert named, f"{estimator.__name__} documents no attribute"
        assert named <= shown, f"the page lacks {named - shown} of {estimator.__name__}"


@pytest.mark.full
def test_the_list_of_metrics_is_the_registries(site):
    page = Page(site / "reference" / "metrics.html")
    for name in (*sl.METRICS, *sl.RANKINGS):
        assert f"metric-{name.replace('_', '-')}" in page.anchors


@pytest.fixture(scope="module")
def served(site):
    """Where a browser finds the site: its search wants a server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def phone():
    """A page as wide as a phone, which may read what was copied."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=flags)
        context = browser.new_context(
            viewport={"width": 390, "height": 844}, color_scheme="dark", permissions=["clipboard-read"]
        )
        yield context.new_page()
        browser.close()


@pytest.mark.full
def test_pages_fit_a_phone(site, pages, served, phone):
    for path in pages:
        phone.goto(f"{served}/{path.relative_to(site)}")
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390, f"{path.name} is wider than a phone"
    phone.goto(f"{served}/index.html")
    for panel in phone.locator(".path-picture figure").all():
        box = panel.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390  # the one picture is seen whole


@pytest.mark.full
@pytest.mark.parametrize(("words", "page"), [("f1", "All metrics"), ("threshold", "Calibration"), ("DDP", "Scale")])
def test_search_finds(served, phone, words, page):
    phone.goto(f"{served}/search.html?q={words}")
    phone.wait_for_selector("#search-results li")
    phone.wait_for_function("document.querySelector('.search-summary').textContent.includes('finished')")
    assert page in phone.locator("#search-results li > a").all_inner_texts()


@pytest.mark.full
def test_what_is_copied_is_what_was_typed(served, phone):
    phone.goto(f"{served}/reference/losses.html")
    phone.locator("button.copybtn").first.click(force=True)
    phone.wait_for_selector("button.copybtn.success")
    copied = phone.evaluate("navigator.clipboard.readText()")
    assert "loss_fn(logits, target).backward()" in copied
    assert ">>>" not in copied
    assert not re.search(r"^[\d.]+$", copied, re.MULTILINE)  # what the example prints
