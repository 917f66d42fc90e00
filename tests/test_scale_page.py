"""docs/scale.md: its tables are those of the recorded measurements, and what it says is sent is what is sent."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

import stepless as sl

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def latency():
    spec = importlib.util.spec_from_file_location("latency", ROOT / "benchmarks" / "scale" / "latency.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_results(latency):
    page = latency.PAGE.read_text(encoding="utf-8")
    assert page.count(latency.BEGIN) == page.count(latency.END) == 1
    results = json.loads(latency.RESULTS.read_text(encoding="utf-8"))
    assert latency.write(page, results) == page
    assert set(results["models"]) == set(latency.HOPS)
    for shape, model in results["models"].items():
        # least squares in float64 differ in the last bits from one processor to another
        assert model == pytest.approx(latency.fit(results["seconds"], shape), rel=1e-9)


def test_the_fit_finds_a_known_model(latency):
    for shape in latency.HOPS:
        truth = {"alpha": 3e-5, "beta": 2e-10}
        seconds = {
            str(ranks): {name: latency.cost(truth, shape, ranks, 4 * size) for name, size in latency.SENT.items()}
            for ranks in (*latency.FITTED, latency.HELD_OUT)
        }
        found = latency.fit(seconds, shape)
        ratios = {f"predicted_over_measured_{ranks}": 1.0 for ranks in (*latency.FITTED, latency.HELD_OUT)}
        assert found == pytest.approx({**truth, **ratios}, rel=1e-6)


@pytest.mark.parametrize(
    ("metric", "settings", "classes", "numbers"),
    [
        ("f1", {}, 1, 4),
        ("f1", {"task": "multiclass"}, 10, 40 + 20),
        ("mcc", {"task": "multiclass", "blend": 0.0}, 10, 40),
        ("mcc", {"task": "multiclass"}, 2, 8),
        ("f1", {"task": "multilabel"}, 10, 40),
        ("weighted_kappa", {"task": "multiclass", "blend": 0.0}, 10, 100),
        ("f1", {"task": "multilabel", "average": "samples"}, 10, 2),
        ("jaccard", {"per_image": True}, 10, 2),
        ("f1", {"threshold": (0.3, 0.5, 0.7)}, 1, 12),
        ("recall", {"subject_to": "precision >= 0.9"}, 1, 12),
        ("f1", {"blend": 0.5}, 1, 4 + 4),
        ("f1", {"blend": 0.5, "task": "multiclass"}, 10, 40 + 20),
        ("f1", {"blend": 0.5, "task": "multilabel"}, 10, 40 + 40),
        ("f1", {"task": "multilabel", "average": "samples", "threshold": [(0.3,), (0.5,), (0.7,)]}, 10, 6),
        ("jaccard", {"per_image": True, "subject_to": "precision >= 0.9"}, 10, 12),
    ],
)
def test_what_is_sent(metric, settings, classes, numbers):
    rows = 8 if settings.get("task") == "multiclass" else (8, classes)
    state = sl.MetricLoss(metric, **settings).measure(torch.zeros(8, classes), torch.zeros(rows, dtype=torch.long))
    assert (state.vector.numel(), state.vector.dtype) == (numbers, torch.float32)
