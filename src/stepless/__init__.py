"""Train on the metric you report: any metric of the confusion matrix as a PyTorch loss."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stepless import curves, numerics, presets
from stepless.accumulation import accumulate
from stepless.constraints import Constraint
from stepless.formula import for_formulas
from stepless.loss import MetricLoss, metric_loss
from stepless.memory import Memory
from stepless.metrics import METRICS, metric
from stepless.ranking import RANKINGS, Ranking
from stepless.registry import Metric
from stepless.schedules import Schedule
from stepless.scoring import score
from stepless.state import State
from stepless.steps import STEPS, Hard, Identity, Linear, LogitSigmoid, RaisedCosine, Sigmoid, Step
from stepless.thresholds import tune_threshold
from stepless.tuning import Tuning

if TYPE_CHECKING:
    from stepless import boosting as boosting
    from stepless import plots as plots
    from stepless.booster import MetricBooster as MetricBooster
    from stepless.estimator import MetricClassifier as MetricClassifier
    from stepless.folders import ModelFileError as ModelFileError
    from stepless.loading import load as load
    from stepless.tuned import TunedThreshold as TunedThreshold

ratio = for_formulas(numerics.ratio)
root = for_formulas(numerics.root)
minimum = for_formulas(numerics.minimum)
maximum = for_formulas(numerics.maximum)

__version__ = "0.1.0"
__all__ = [
    "METRICS",
    "RANKINGS",
    "STEPS",
    "Constraint",
    "Hard",
    "Identity",
    "Linear",
    "LogitSigmoid",
    "Memory",
    "Metric",
    "MetricLoss",
    "RaisedCosine",
    "Ranking",
    "Schedule",
    "Sigmoid",
    "State",
    "Step",
    "Tuning",
    "accumulate",
    "curves",
    "maximum",
    "metric",
    "metric_loss",
    "minimum",
    "presets",
    "ratio",
    "root",
    "score",
    "tune_threshold",
]

#: What needs an extra is imported when it is asked for: its name, its module, and the package that must be there.
_EXTRAS = {
    "MetricBooster": ("stepless.booster", "sklearn"),
    "MetricClassifier": ("stepless.estimator", "sklearn"),
    "ModelFileError": ("stepless.folders", "safetensors"),
    "TunedThreshold": ("stepless.tuned", "sklearn"),
    "boosting": ("stepless.boosting", "torch"),
    "load": ("stepless.loading", "sklearn"),
    "plots": ("stepless.plots", "matplotlib"),
}


def __getattr__(name: str) -> Any:
    if name not in _EXTRAS:
        raise AttributeError(f"module 'stepless' has no attribute {name!r}")
    module = import_module(_EXTRAS[name][0])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name, (_, package) in _EXTRAS.items() if find_spec(package))})
