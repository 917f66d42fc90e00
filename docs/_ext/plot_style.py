"""The look of the gallery's plots: no background, and dark ink, which site.css brightens on a dark page."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl

INK, FAINT = "#6a717c", "#8a929e"
#: The palette of the HTML report, between its light and its dark tones.
COLOURS = ("#3f83d1", "#e0742f", "#3f9f6c", "#a06fc4", "#d4576f", "#2f9db8", "#b3922f", "#858e99")


def reset(gallery_conf: dict[str, Any], fname: str) -> None:
    """Set the style. Called by sphinx-gallery before each example."""
    mpl.rcParams.update({
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "savefig.dpi": 110,
        "figure.figsize": (6.7, 4.0), "figure.constrained_layout.use": True, "figure.dpi": 110,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.titlecolor": INK,
        "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 11, "axes.labelsize": 10.5, "xtick.labelsize": 9.5,
        "ytick.labelsize": 9.5, "legend.fontsize": 9.5, "legend.frameon": False, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.alpha": 0.25, "grid.linewidth": 0.6,
        "lines.linewidth": 1.8, "axes.prop_cycle": mpl.cycler(color=COLOURS), "axes.titlelocation": "left",
    })  # fmt: skip
