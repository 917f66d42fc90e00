"""
Loss surfaces
=============

A model with one weight and one bias, so that a loss can be drawn as a landscape. The metric itself
is a set of plateaus, with no slope to follow. A smooth step turns them into slopes; a steep one
leaves most of them flat.
"""

import matplotlib.pyplot as plt
import torch

import stepless as sl

torch.manual_seed(4)
rows = 300
target = (torch.rand(rows) < 0.15).double()
feature = torch.randn(rows, dtype=torch.float64) + 1.6 * target

weights, biases = (
    torch.linspace(-1, 5, 80, dtype=torch.float64),
    torch.linspace(-8, 3, 80, dtype=torch.float64),
)
W, B = torch.meshgrid(weights, biases, indexing="ij")
logits = W.reshape(-1, 1) * feature + B.reshape(-1, 1)  # every model of the grid at once


def surface(loss):
    return torch.func.vmap(lambda z: loss(z, target))(logits).reshape(W.shape)


def soft(**settings):
    return surface(lambda z, y: sl.metric_loss(z, y, "f1", **settings))


# the hard score takes no vmap, but each model can be a label
each = target[:, None].expand(-1, len(logits))
hard = sl.score(logits.T, each, "f1", task="multilabel", average="none").reshape(W.shape)

surfaces = {
    "1 − F1, hard": 1 - hard,
    "linear step": soft(),
    "sigmoid, k = 73": soft(step=sl.Sigmoid(k=73)),
    "identity (soft F1)": soft(step="identity"),
    "linear step, blend 0.3": soft(blend=0.3),
    "cross-entropy": surface(torch.nn.functional.binary_cross_entropy_with_logits),
}

# %%
# Dark is low. The cross marks the lowest point of each surface, and the ring the lowest point of the
# hard metric. The hard metric depends only on the sign of the logit, so it is constant along every
# ray from the origin. What matters, then, is whether the cross lies in the ring's direction, and
# whether there is a slope that leads to it from everywhere else.

best = surfaces["1 − F1, hard"].argmin()
fig, axes = plt.subplots(2, 3, sharex=True, sharey=True, figsize=(6.7, 4.8))
for ax, (name, values) in zip(axes.flat, surfaces.items(), strict=True):
    shown = values.clamp(max=values.quantile(0.9))
    ax.contourf(weights, biases, shown.T, levels=18, cmap="viridis")
    low = values.argmin()
    ax.plot(
        W.flatten()[low],
        B.flatten()[low],
        "x",
        color="white",
        markersize=9,
        markeredgewidth=2,
    )
    ax.plot(
        W.flatten()[best],
        B.flatten()[best],
        "o",
        color="white",
        markersize=11,
        fillstyle="none",
    )
    ax.set_title(name)
    ax.grid(False)
fig.supxlabel("weight", fontsize=10.5)
fig.supylabel("bias", fontsize=10.5)

# %%
# The hard F1 of the model at the lowest point of each surface:

for name, values in surfaces.items():
    chosen = logits[values.argmin()]
    print(f"{name:24} F1 {sl.score(chosen, target, 'f1'):.3f}")
