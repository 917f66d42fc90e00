"""Train on the metric you report: any metric of the confusion matrix as a PyTorch loss."""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

from stepless.extras import needs

if TYPE_CHECKING:
    from stepless import boosting as boosting
    from stepless import curves as curves
    from stepless import integrations as integrations
    from stepless import numerics
    from stepless import plots as plots
    from stepless import presets as presets
    from stepless.accumulation import accumulate as accumulate
    from stepless.constraints import Constraint as Constraint
    from stepless.cuts.tuning import Tuning as Tuning
    from stepless.loss import MetricLoss as MetricLoss
    from stepless.loss import metric_loss as metric_loss
    from stepless.memory import Memory as Memory
    from stepless.metrics import METRICS as METRICS
    from stepless.metrics import metric as metric
    from stepless.ranking import RANKINGS as RANKINGS
    from stepless.ranking import Ranking as Ranking
    from stepless.registry import Metric as Metric
    from stepless.safe_counts import for_formulas
    from stepless.schedules import Schedule as Schedule
    from stepless.scoring import score as score
    from stepless.state import State as State
    from stepless.steps import STEPS as STEPS
    from stepless.steps import Hard as Hard
    from stepless.steps import Identity as Identity
    from stepless.steps import Linear as Linear
    from stepless.steps import LogitSigmoid as LogitSigmoid
    from stepless.steps import RaisedCosine as RaisedCosine
    from stepless.steps import Sigmoid as Sigmoid
    from stepless.steps import Step as Step
    from stepless.tabular.booster import MetricBooster as MetricBooster
    from stepless.tabular.comparison import compare as compare
    from stepless.tabular.estimator import MetricClassifier as MetricClassifier
    from stepless.tabular.loading import load as load
    from stepless.tabular.models.folders import ModelFileError as ModelFileError
    from stepless.tabular.outcome import Outcome as Outcome
    from stepless.tabular.sharing import shared_fits as shared_fits
    from stepless.thresholds import tune_threshold as tune_threshold
    from stepless.tuned import TunedThreshold as TunedThreshold

    ratio = for_formulas(numerics.ratio)
    root = for_formulas(numerics.root)
    minimum = for_formulas(numerics.minimum)
    maximum = for_formulas(numerics.maximum)

__version__ = "0.1.0"
#: `stepless.tabular`, the second distribution, may lie in another folder: that of a user, or of an environment on top.
__path__ = extend_path(__path__, __name__)
#: The module of each name. It is imported on first use, because torch takes seconds to import and the command line must
#: respond at once. A name that is a module stands for itself.
_NAMES = {
    "METRICS": "metrics", "RANKINGS": "ranking", "STEPS": "steps", "Constraint": "constraints", "Hard": "steps",
    "Identity": "steps", "Linear": "steps", "LogitSigmoid": "steps", "Memory": "memory", "Metric": "registry",
    "MetricLoss": "loss", "RaisedCosine": "steps", "Ranking": "ranking", "Schedule": "schedules", "Sigmoid": "steps",
    "State": "state", "Step": "steps", "Tuning": "cuts.tuning", "accumulate": "accumulation", "curves": "curves",
    "metric": "metrics", "metric_loss": "loss", "presets": "presets", "score": "scoring",
    "tune_threshold": "thresholds",
}  # fmt: skip
#: The same for names that need an extra, with a package that it installs. `tabular` is a distribution of its own, which
#: the extras bring.
_EXTRAS = {
    "MetricBooster": ("tabular.booster", "sklearn"),
    "MetricClassifier": ("tabular.estimator", "sklearn"),
    "ModelFileError": ("tabular.models.folders", "safetensors"),
    "Outcome": ("tabular.outcome", "sklearn"),
    "TunedThreshold": ("tuned", "sklearn"),
    "boosting": ("boosting", "torch"),
    "compare": ("tabular.comparison", "sklearn"),
    "integrations": ("integrations", "torch"),
    "load": ("tabular.loading", "sklearn"),
    "plots": ("plots", "matplotlib"),
    "shared_fits": ("tabular.sharing", "sklearn"),
}
#: Functions that are safe at zero, for users' formulas.
_SAFE = ("maximum", "minimum", "ratio", "root")
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


def __getattr__(name: str) -> Any:
    if name in _SAFE:
        made = import_module("stepless.safe_counts").for_formulas(getattr(import_module("stepless.numerics"), name))
    elif name in _NAMES or name in _EXTRAS:
        if name in ("METRICS", "metric"):  # a metric may not take a ranking's name, whatever was imported before
            import_module("stepless.ranking")
        with needs(f"{name} needs stepless-tabular", "sklearn", "stepless.tabular"):
            module = import_module(f"stepless.{_NAMES[name] if name in _NAMES else _EXTRAS[name][0]}")
        made = getattr(module, name, module)
    else:
        raise AttributeError(f"module 'stepless' has no attribute {name!r}")
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    offered = {name for name, (module, package) in _EXTRAS.items() if _is_here(module) and find_spec(package)}
    return sorted({*globals(), *__all__, *offered})


def _is_here(module: str) -> bool:
    return find_spec(f"stepless.{module.partition('.')[0]}") is not None
