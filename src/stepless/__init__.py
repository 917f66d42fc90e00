"""Train on the metric you report: any metric of the confusion matrix as a PyTorch loss."""

from stepless import numerics, presets
from stepless.constraints import Constraint
from stepless.formula import for_formulas
from stepless.loss import MetricLoss, metric_loss
from stepless.metrics import METRICS, metric
from stepless.registry import Metric
from stepless.schedules import Schedule
from stepless.scoring import score
from stepless.state import State
from stepless.steps import STEPS, Hard, Identity, Linear, LogitSigmoid, RaisedCosine, Sigmoid, Step

ratio = for_formulas(numerics.ratio)
root = for_formulas(numerics.root)
minimum = for_formulas(numerics.minimum)
maximum = for_formulas(numerics.maximum)

__version__ = "0.1.0"
__all__ = [
    "METRICS",
    "STEPS",
    "Constraint",
    "Hard",
    "Identity",
    "Linear",
    "LogitSigmoid",
    "Metric",
    "MetricLoss",
    "RaisedCosine",
    "Schedule",
    "Sigmoid",
    "State",
    "Step",
    "maximum",
    "metric",
    "metric_loss",
    "minimum",
    "presets",
    "ratio",
    "root",
    "score",
]
