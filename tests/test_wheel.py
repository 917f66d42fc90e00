"""The wheels in empty environments: torch and numpy are enough, and what needs more names the extra that brings it."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import stepless as sl
from stepless.tabular.outcome import Outcome

from .tabular.outcomes import make

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ("--constraint", str(ROOT / "constraints.txt"))
TABULAR = ROOT / "src" / "stepless" / "tabular"
#: The most a wheel may weigh, in bytes.
LIGHT = 300_000
#: What is not called as it is imported.
DISTRIBUTIONS = {"imblearn": "imbalanced-learn", "mlflow": "mlflow-skinny", "sklearn": "scikit-learn"}
#: These extras stand for no front end.
TOGETHER = {"all", "bench", "docs", "full", "lint", "test"}
FIX = re.compile(r'pip install "stepless\[(\w+)\]"$')

#: Runs the code of its first argument, as if the modules of the others were not installed, and says what is missing.
PROBE = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
try:
    exec(sys.argv[1])
except ImportError as error:
    print(json.dumps({"said": str(error), "name": error.name}))
"""
ROWS = """
import numpy as np, stepless as sl
X = np.random.default_rng(0).normal(size=(60, 2))
y = X[:, 0] > 0.8
few = {"folds": 2, "repeats": 1, "contestants": ["cross_entropy_tuned"]}
"""
#: What a user does, and the extra that it needs: in an environment without any extra.
BARE = [
    ("import stepless as sl; sl.MetricClassifier", "sklearn"),
    ("from stepless import MetricBooster", "sklearn"),
    ("from stepless import TunedThreshold", "sklearn"),
    ("import stepless as sl; sl.compare", "sklearn"),
    ("import stepless as sl; sl.load", "sklearn"),
    ("import stepless as sl; sl.Outcome", "sklearn"),
    ("import stepless as sl; sl.shared_fits", "sklearn"),
    ("import stepless as sl; sl.plots", "plots"),
    ("import stepless.plots", "plots"),
    ("import stepless.integrations.jax", "jax"),
    ("import stepless.integrations.keras", "keras"),
    ("import stepless.integrations.lightning", "lightning"),
    ("import stepless.integrations.mlflow", "mlflow"),
    ("import stepless.integrations.torchmetrics", "torchmetrics"),
    ("import stepless.integrations.transformers", "transformers"),
]
#: The same with the extra ``sklearn``.
WITH_SKLEARN = [
    ("sl.MetricClassifier(epochs=1, n_members=2).fit(X, y).to_onnx('model.onnx')", "onnx"),
    ("sl.MetricClassifier(candidates=('cross_entropy', 'trees'), epochs=1).fit(X, y)", "lightgbm"),
    ("sl.MetricBooster().fit(X, y)", "lightgbm"),
    ("sl.MetricBooster(library='xgboost').fit(X, y)", "xgboost"),
    ("sl.MetricBooster(library='catboost').fit(X, y)", "catboost"),
    ("sl.compare(X, y, extra=['boosting_metric'], **few)", "lightgbm"),
    ("sl.compare(X, y, extra=['smote'], **few)", "smote"),
    ("sl.compare(X, y, backend='ray', **few)", "ray"),
    ("sl.compare(X, y, backend='dask', **few)", "dask"),
    ("import stepless.integrations.mlflow", "mlflow"),
    ("import stepless.tabular.cli", "cli"),
    ("import stepless.tabular.tables.parquet", "cli"),
]
#: The same where a part of an extra is missing.
HALF = [
    ("sl.MetricClassifier", "narwhals", "sklearn"),
    ("sl.MetricClassifier", "sklearn", "sklearn"),
    ("sl.MetricClassifier", "safetensors", "sklearn"),
    ("sl.MetricClassifier(epochs=1, verbose=True).fit(X, y)", "rich", "sklearn"),
    ("sl.compare", "sklearn", "sklearn"),
    ("sl.compare(X, y, progress=True, **few)", "rich", "sklearn"),
]


def run(*command, folder, code=0):
    """What a command prints on standard output; it sees nothing of this environment."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        check=False,
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout if code == 0 else done.stderr


def make_environment(folder, wanted, *, wheels=None, below=None):
    """An environment with a distribution and what that needs, on top of another one; the path of its Python.

    Args:
        wheels: A folder of wheels that come before those of the index.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    if below is not None:
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        (Path(run(python, "-c", where, folder=folder).strip()) / "below.pth").write_text(
            run(below, "-c", where, folder=folder)
        )
    # torch has thousands of files that nothing here imports
    options = ("--quiet", "--no-compile", *CONSTRAINTS, *(() if wheels is None else ("--find-links", wheels)))
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wanted, folder=folder)
    return python


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("environments")
    yield made
    shutil.rmtree(made)  # torch takes a gigabyte


@pytest.fixture(scope="module")
def published(folder):
    """What a release uploads: both distributions as sources, and the wheels that are built from these."""
    made = folder / "published"
    for project in (ROOT, TABULAR):
        run(sys.executable, "-m", "build", "--outdir", made, project, folder=folder)
    return made


@pytest.fixture(scope="module")
def wheels(published):
    core, tabular = sorted(published.glob("*.whl"))
    return {"stepless": core, "stepless-tabular": tabular}


@pytest.fixture(scope="module")
def bare(folder, wheels):
    return make_environment(folder / "bare", wheels["stepless"])


@pytest.fixture(scope="module")
def with_sklearn(folder, published, bare):
    wanted = f"stepless[sklearn]=={sl.__version__}"
    return make_environment(folder / "with_sklearn", wanted, wheels=published, below=bare)


def metadata_of(wheel):
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode())


@pytest.fixture(scope="module")
def metadata(wheels):
    return metadata_of(wheels["stepless"])


def brings(metadata, extra):
    """The distributions that an extra names, itself or by another one."""
    found = set()
    for requirement in map(Requirement, metadata.get_all("Requires-Dist")):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "stepless":
            found |= {name for other in requirement.extras for name in brings(metadata, other)}
        else:
            found.add(requirement.name)
    return found


def check_fix(printed, extra, metadata):
    """The last line is the error; it names the extra, and the extra brings what is missing."""
    error = json.loads(printed.splitlines()[-1])
    assert FIX.search(error["said"]), error
    assert FIX.search(error["said"])[1] == extra, error
    assert "\n" not in error["said"]
    missing = error["name"].replace(".", "-")
    assert DISTRIBUTIONS.get(missing, missing) in brings(metadata, extra), error


def test_what_is_in_the_wheels(wheels):
    held = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as file:
            held[name] = {entry for entry in file.namelist() if ".dist-info/" not in entry}
            info = {entry.partition(".dist-info/")[2]: entry for entry in file.namelist() if ".dist-info/" in entry}
            licences = [file.read(path).decode() for entry, path in info.items() if entry.endswith("LICENSE")]
            assert licences == [(ROOT / "LICENSE").read_text(encoding="utf-8")]
            if name == "stepless":
                assert "stepless = " in file.read(info["entry_points.txt"]).decode()
            else:
                assert "licenses/page/uplot-licence.txt" in info
    source = ROOT / "src"
    ours = {path for path in (source / "stepless").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    ours -= {TABULAR / name for name in ("LICENSE", "pyproject.toml")}  # of the project
    there = {path.relative_to(source).as_posix() for path in ours}
    assert held["stepless-tabular"] == {name for name in there if name.startswith("stepless/tabular/")}
    assert held["stepless"] == there - held["stepless-tabular"]
    page = {
        f"stepless/tabular/page/{name}"
        for name in ("charts.js", "explorer.js", "style.css", "template.html", "uplot.js", "uplot-licence.txt")
    }
    assert held["stepless-tabular"] >= page
    assert held["stepless"] >= {"stepless/py.typed", "stepless/integrations/jax.py"}


def test_wheels_are_light(wheels):
    assert {name: wheel.stat().st_size for name, wheel in wheels.items() if wheel.stat().st_size > LIGHT} == {}


def test_two_distributions_require_each_other_in_one_version(wheels, metadata):
    other = metadata_of(wheels["stepless-tabular"])
    assert metadata["Version"] == other["Version"] == sl.__version__
    assert other.get_all("Requires-Dist") == [f"stepless[sklearn]=={sl.__version__}"]
    wanted = [entry for entry in map(Requirement, metadata.get_all("Requires-Dist")) if entry.name in wheels]
    assert {str(entry.specifier) for entry in wanted} == {f"=={sl.__version__}"}
    assert all(entry.url is None for entry in wanted), "an index knows no folders"


def test_a_checkout_brings_its_own_tables(folder, bare, tmp_path):
    """Without an index that knows the second distribution, and from a folder whose name has to be written as a URL."""
    checkout = tmp_path / "a checkout"
    left = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "docs", "tests")
    shutil.copytree(ROOT, checkout, ignore=left)
    made = make_environment(folder / "checkout", f"{checkout}[cli]", below=bare)
    shutil.rmtree(checkout)
    said = run(made.parent / "stepless", "metrics", "f1", folder=tmp_path)
    assert said.startswith("name: f1\n")
    where = "import stepless.tabular as found; print(found.__file__)"
    assert Path(run(made, "-I", "-c", where, folder=tmp_path).strip()).is_relative_to(folder / "checkout")


def test_every_extra_is_asked_for(metadata):
    asked = {extra for _, extra in BARE + WITH_SKLEARN}
    assert asked == set(metadata.get_all("Provides-Extra")) - TOGETHER


def test_torch_and_numpy_are_enough(bare, metadata, tmp_path):
    code = """
import importlib.metadata, json, torch
import stepless as sl
for name in sl.__all__:
    getattr(sl, name)
torch.manual_seed(0)
x = torch.randn(200, 3)
y = (x[:, 0] > 1).long()
model, loss_fn = torch.nn.Linear(3, 1), sl.MetricLoss("f1")
optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
losses = []
for _ in range(5):
    loss = loss_fn(model(x).squeeze(1), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
scores = model(x).squeeze(1).detach()
tuned = sl.tune_threshold(scores, y, "f1")
print(json.dumps({
    "losses": losses, "score": sl.score(scores, y, "f1").item(), "tuned": tuned.score, "names": dir(sl),
    "version": importlib.metadata.version("stepless"),
    "installed": sorted({held.name for held in importlib.metadata.distributions()}),
}))
"""
    said = json.loads(run(bare, "-I", "-c", code, folder=tmp_path))
    assert said["losses"] == sorted(said["losses"], reverse=True)
    assert 0 < said["score"] <= said["tuned"] <= 1
    assert said["version"] == sl.__version__
    assert set(sl.__all__) <= set(said["names"])
    assert not {"MetricClassifier", "compare", "plots"} & set(said["names"]), "what cannot be had is not offered"
    extras = {name for extra in metadata.get_all("Provides-Extra") for name in brings(metadata, extra)}
    assert not extras & set(said["installed"]), "the environment has no extra"


def test_nothing_else_is_loaded_where_it_is_installed(with_sklearn, tmp_path):
    code = """
import sys
import stepless as sl
assert "torch" not in sys.modules, "the command line speaks at once"
for name in sl.__all__:
    getattr(sl, name)
import torch
sl.MetricLoss("f1")(torch.zeros(4, requires_grad=True), torch.tensor([0, 1, 1, 0])).backward()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    loaded = set(run(with_sklearn, "-I", "-c", code, folder=tmp_path).split())
    assert {"torch", "numpy"} <= loaded
    assert not {"joblib", "narwhals", "rich", "safetensors", "scipy", "sklearn", "threadpoolctl"} & loaded


def test_a_threshold_needs_no_tables(with_sklearn, tmp_path):
    code = """
import sys
sys.modules["stepless.tabular"] = None  # as if it were not installed
from sklearn.linear_model import LogisticRegression
print(sl.TunedThreshold(LogisticRegression()).fit(X, y).predict(X).sum() > 0)
"""
    assert run(with_sklearn, "-I", "-c", ROWS + code, folder=tmp_path) == "True\n"


def test_a_report_has_its_page(with_sklearn, tmp_path):
    outcome = make(rows=120, contestants=3)
    outcome.to_json(tmp_path / "outcome.json")
    code = "import stepless as sl; sl.Outcome.from_json('outcome.json').to_html('there.html')"
    run(with_sklearn, "-I", "-c", code, folder=tmp_path)
    Outcome.from_json(tmp_path / "outcome.json").to_html(tmp_path / "here.html")
    assert (tmp_path / "there.html").read_bytes() == (tmp_path / "here.html").read_bytes()


@pytest.mark.parametrize("way", ["the command", "python -m"])
@pytest.mark.parametrize("arguments", [(), ("--version",), ("demo",)])
def test_the_command_without_its_extra(bare, tmp_path, way, arguments):
    command = (bare.parent / "stepless",) if way == "the command" else (bare, "-I", "-m", "stepless")
    said = run(*command, *arguments, folder=tmp_path, code=2)
    assert said == 'Error: the command line needs stepless-tabular: pip install "stepless[cli]"\n'


def test_the_command_with_another_extra(with_sklearn, tmp_path):
    said = run(with_sklearn, "-I", "-m", "stepless", "demo", folder=tmp_path, code=2)
    assert said == 'Error: the command line needs typer and rich: pip install "stepless[cli]"\n'


def test_the_command_with_its_extra(tmp_path):
    said = run(sys.executable, "-m", "stepless", "--version", folder=tmp_path)
    assert said == f"stepless {sl.__version__}\n"


@pytest.mark.parametrize(("code", "extra"), BARE)
def test_without_any_extra(bare, metadata, tmp_path, code, extra):
    check_fix(run(bare, "-I", "-c", PROBE, code, folder=tmp_path), extra, metadata)


@pytest.mark.parametrize(("code", "extra"), WITH_SKLEARN)
def test_with_sklearn_alone(with_sklearn, metadata, tmp_path, code, extra):
    check_fix(run(with_sklearn, "-I", "-c", PROBE, ROWS + code, folder=tmp_path), extra, metadata)


@pytest.mark.parametrize(("code", "missing", "extra"), HALF)
def test_with_a_part_of_an_extra(with_sklearn, metadata, tmp_path, code, missing, extra):
    check_fix(run(with_sklearn, "-I", "-c", PROBE, ROWS + code, missing, folder=tmp_path), extra, metadata)


def test_figures_of_a_comparison(with_sklearn, metadata, tmp_path):
    make(rows=120, contestants=3).to_json(tmp_path / "outcome.json")
    code = "import stepless as sl; sl.Outcome.from_json('outcome.json').plots('figures')"
    check_fix(run(with_sklearn, "-I", "-c", PROBE, code, folder=tmp_path), "plots", metadata)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_a_saved_model_of_trees(with_sklearn, metadata, tmp_path, library):
    pytest.importorskip(library)
    X = np.random.default_rng(0).normal(size=(60, 2))
    sl.MetricBooster(library=library, n_estimators=3, n_members=2).fit(X, X[:, 0] > 0.8).save(tmp_path / "model")
    code = ROWS + "sl.load('model').predict(X)"
    check_fix(run(with_sklearn, "-I", "-c", PROBE, code, folder=tmp_path), library, metadata)


def test_a_factory_without_onnxscript(metadata, tmp_path):
    code = ROWS + "import torch; net = sl.MetricClassifier(model=torch.nn.Linear, epochs=1, n_members=2).fit(X, y)\n"
    printed = run(sys.executable, "-c", PROBE, code + "net.to_onnx('model.onnx')", "onnxscript", folder=tmp_path)
    check_fix(printed, "onnx", metadata)
