"""`load`: a saved model as the estimator that was saved."""

from __future__ import annotations

import os
from typing import Any

from stepless.tabular.booster import MetricBooster
from stepless.tabular.estimator import MetricClassifier
from stepless.tabular.models.folders import ModelFileError
from stepless.tabular.persist import load_model

#: Estimators by the name in a model's settings.
_ESTIMATORS: dict[str, Any] = {kind.__name__: kind for kind in (MetricClassifier, MetricBooster)}


def load(path: str | os.PathLike[str], model: Any = None) -> Any:
    """Load a saved model folder as a fitted estimator.

    Loading runs no code from the folder. A folder that is not a complete model raises `stepless.ModelFileError`.

    Args:
        path: The folder.
        model: The factory of the networks, if the model was made with one. A factory is code, so it is not saved.

    Example:
        >>> import tempfile
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(100, random_state=0)
        >>> fitted = MetricClassifier(epochs=2, random_state=0).fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fitted.save(folder)
        ...     again = load(folder)
        >>> bool((again.predict(X) == fitted.predict(X)).all())
        True
    """
    loaded = load_model(path, model)
    kind = _ESTIMATORS.get(str(loaded.settings.get("estimator")), MetricClassifier)
    try:
        estimator = kind.from_model(loaded)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{path} holds no estimator that works: {str(error)[:1000]}") from error
    if model is None:
        return estimator
    if not any(member.kind == "factory" for member in loaded.members):
        raise ValueError("the networks of this model come from no factory: model= has no effect; leave it out.")
    return estimator.set_params(model=model)
