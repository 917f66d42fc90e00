"""
Steps and their gradients
=========================

A decision is a step of the probability: 0 below the threshold, 1 above it. Each stand-in smooths
that step in its own way. What a network learns from is the slope, so where the slope is 0, a row
teaches it nothing.
"""

import matplotlib.pyplot as plt
import torch

import stepless as sl

probability = torch.linspace(0, 1, 801, dtype=torch.float64)
steps = {
    "linear (the default)": sl.Linear(),
    "sigmoid, k = 10": sl.Sigmoid(k=10),
    "sigmoid, k = 73 (AnyLoss)": sl.Sigmoid(k=73),
    "raised cosine, δ = 0.1": sl.RaisedCosine(delta=0.1),
    "identity (soft Dice)": sl.Identity(),
    "sigmoid of logits, ½": sl.LogitSigmoid(temperature=0.5),
}


def curve(step, threshold):
    p = probability.clone().requires_grad_()
    decision = step(p, threshold)
    (slope,) = torch.autograd.grad(decision.sum(), p)
    return decision.detach(), slope


# %%
# The decision, at thresholds of ½ and 0.2
# ----------------------------------------
#
# All steps move with the threshold except the identity, which ignores it.

fig, axes = plt.subplots(1, 2, sharey=True)
for ax, threshold in zip(axes, (0.5, 0.2), strict=True):
    hard = sl.Hard()(probability, threshold)
    ax.plot(
        probability,
        hard,
        color="0.55",
        linestyle="--",
        linewidth=1.2,
        label="the step itself",
    )
    for name, step in steps.items():
        ax.plot(probability, curve(step, threshold)[0], label=name)
    ax.set(title=f"threshold {threshold}", xlabel="probability")
axes[0].set_ylabel("decision")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

# %%
# The slope, on a logarithmic scale
# ---------------------------------
#
# Where the slope is below 10⁻⁴ or so, a row hardly counts. The steep steps see only the rows near
# the threshold: a positive with a probability of 0.1 will stay there.

fig, ax = plt.subplots()
for name, step in steps.items():
    ax.semilogy(probability, curve(step, 0.5)[1].clamp(min=1e-7), label=name)
ax.axhspan(1e-7, 1e-4, color="0.5", alpha=0.12, linewidth=0)
ax.text(0.5, 3e-6, "nothing is learned here", ha="center")
ax.set(
    xlabel="probability",
    ylabel="slope of the decision",
    ylim=(1e-7, 60),
    title="threshold ½",
)
fig.legend(loc="outside lower center", ncols=3)

# %%
# In numbers: if probabilities are spread evenly, the share of rows with a slope below 10⁻⁴.

for name, step in steps.items():
    print(f"{name:28} {(curve(step, 0.5)[1] < 1e-4).double().mean():5.0%}")
