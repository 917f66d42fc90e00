"""
What each step does to a decision boundary
==========================================

One network is trained on cross-entropy. Copies of it then go on training on the same rows, each with
another loss, and the boundary moves. One row in ten is positive and the classes overlap, so there
is a trade-off to make, and F1 makes a different one from cross-entropy cut at ½.
"""

from copy import deepcopy

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LinearSegmentedColormap
from torch import nn

import stepless as sl


def draw(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    y = (torch.rand(rows, generator=generator) < 0.1).float()
    angle = 3.4 * torch.rand(rows, generator=generator) - 0.2
    arc = torch.stack([1.3 * angle.cos(), 1.1 * angle.sin() - 0.2], 1)
    noise = torch.randn(rows, 2, generator=generator)
    return torch.where(y.bool()[:, None], arc + 0.25 * noise, 1.1 * noise), y


X, y = draw(800, seed=0)
X_new, y_new = draw(20_000, seed=1)
side = torch.linspace(-3, 3, 160)
grid = torch.cartesian_prod(side, side)


def go_on(net, loss_fn, steps=150):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(net(X), y).backward()
        optimizer.step()
    return net


torch.manual_seed(0)
first = go_on(
    nn.Sequential(
        nn.Linear(2, 24),
        nn.Tanh(),
        nn.Linear(24, 24),
        nn.Tanh(),
        nn.Linear(24, 1),
        nn.Flatten(0),
    ),
    nn.BCEWithLogitsLoss(),
)


@torch.no_grad()
def logits(net):
    return net(grid), net(X), net(X_new)


losses = {
    "cross-entropy": nn.BCEWithLogitsLoss(),
    "linear step": sl.MetricLoss("f1"),
    "sigmoid, k = 10": sl.MetricLoss("f1", step=sl.Sigmoid(k=10)),
    "sigmoid, k = 73": sl.MetricLoss("f1", step=sl.Sigmoid(k=73)),
    "raised cosine": sl.MetricLoss("f1", step=sl.RaisedCosine(delta=0.1)),
    "identity": sl.MetricLoss("f1", step="identity"),
}
trained = {
    name: logits(go_on(deepcopy(first), loss_fn)) for name, loss_fn in losses.items()
}

# %%
# The line is the boundary at ½, and the shade is the probability. The dashed line, for cross-entropy,
# is the boundary at the threshold that is best for F1 on the training rows: this is the rival, which
# needs no new loss. A step that is flat away from ½ can stop learning: see the raised cosine.

SHADE = LinearSegmentedColormap.from_list("shade", ["#3f83d100", "#3f83d1c0"])
fig, axes = plt.subplots(3, 2, sharex=True, sharey=True, figsize=(6.7, 8.6))
for ax, (name, (on_grid, seen, new)) in zip(axes.flat, trained.items(), strict=True):
    logit = on_grid.reshape(160, 160).T
    ax.pcolormesh(side, side, logit.sigmoid(), cmap=SHADE, vmin=0, vmax=1, rasterized=True)
    ax.contour(side, side, logit, levels=[0], colors="#e0742f", linewidths=1.8)
    title = f"{name}: {sl.score(new, y_new, 'f1'):.3f}"
    if name == "cross-entropy":
        tuned = sl.tune_threshold(seen, y, "f1", inputs="logits")
        ax.contour(
            side,
            side,
            logit,
            levels=[tuned.threshold],
            colors="#e0742f",
            linewidths=1.6,
            linestyles="--",
        )
        title += f" (tuned {sl.score(new, y_new, 'f1', threshold=tuned):.3f})"
    ax.plot(*X[y == 0].T, ".", color="0.45", markersize=2, alpha=0.6)
    ax.plot(*X[y == 1].T, ".", color="#d4576f", markersize=4)
    ax.set_title(title, fontsize=10)
    ax.set(xlim=(-3, 3), ylim=(-3, 3))
    ax.grid(False)
fig.suptitle("F1 of 20,000 new rows", fontsize=11.5)

# %%
# One set and one seed: a picture, not a result. :doc:`The contest </contest>` has many.
