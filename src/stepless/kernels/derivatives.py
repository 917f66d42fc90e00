"""Derivatives of formulas as traced code, used only if they agree with torch on some cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from stepless.kernels.tracing import differentiated, differentiated_classes, over_labels

#: Cells on which a traced formula is checked; the last two have empty rows or columns.
_PROBES = ((3.0, 1.0, 2.0, 4.0), (50.5, 0.25, 7.0, 1.0), (0.0, 0.0, 2.0, 5.0), (2.0, 3.0, 0.0, 0.0))
#: Cells of three classes on which a joint formula is checked; in the last, one is absent and another never decided.
_CLASS_PROBES = (
    ((3.0, 1.0, 2.0, 4.0), (1.0, 3.0, 2.0, 4.0), (1.5, 0.5, 0.5, 7.5)),
    ((4.0, 6.0, 0.0, 0.0), (0.0, 0.0, 6.0, 4.0), (0.0, 0.0, 0.0, 10.0)),
)


@torch.inference_mode(False)
@torch.enable_grad()
def differentiators(of: Callable[[Any], Any]) -> tuple[Any, Any, Any] | None:
    """Trace value and partial derivatives of a scalar function of cells ``(4,)``, for numbers, arrays and few labels.

    None unless they agree with torch. A user's formula may use what symbols do not support; it takes the plain path.
    """
    try:
        of_numbers, of_arrays = differentiated(of), differentiated(of, arrays=True)
        together = np.stack([np.broadcast_to(x, len(_PROBES)) for x in of_arrays(*np.array(_PROBES).T)], -1)
        for probe, at_once in zip(_PROBES, together, strict=True):
            cells = torch.tensor(probe, dtype=torch.float64, device="cpu", requires_grad=True)
            value = of(cells)
            expected = [value.item(), *torch.autograd.grad(value, cells)[0].tolist()]
            for traced in (of_numbers(*probe), at_once):
                if not np.allclose(traced, expected, rtol=1e-9, atol=1e-12, equal_nan=True):
                    return None
    except Exception:
        return None
    return of_numbers, of_arrays, over_labels(of)


@torch.inference_mode(False)
@torch.enable_grad()
def traces_classes(of: Callable[[Any], Any]) -> bool:
    """Whether a function of the cells of all classes can be traced and then agrees with torch."""
    try:
        traced = differentiated_classes(of, classes=3)
        for probe in _CLASS_PROBES:
            cells = torch.tensor(probe, dtype=torch.float64, device="cpu").T.contiguous().requires_grad_()
            value = of(cells)
            found = traced(*cells.detach().numpy())
            expected = [value.item(), *torch.autograd.grad(value, cells)[0].numpy()]
            if not all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(found, expected, strict=True)):
                return False
    except Exception:
        return False
    return True
