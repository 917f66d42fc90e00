"""
Threshold explorer
==================

What happens at every threshold, and where each metric would cut. Move the slider: the counts and the
metrics follow it.
"""

import json

import matplotlib.pyplot as plt
import numpy as np

import stepless as sl

rng = np.random.default_rng(0)
target = rng.random(3000) < 0.12
probability = 1 / (1 + np.exp(-(rng.normal(size=3000) + 2.1 * target - 2.3)))


# sphinx_gallery_start_ignore
# A small HTML page: counts and metrics are computed here, at each of some 400 thresholds, and the
# slider only shows them.


class Explorer:
    """A slider over all cuts, as HTML."""

    metrics = ("precision", "recall", "f1", "mcc", "g_mean", "accuracy")

    def __init__(self, scores, target):
        curves = [sl.curves.metric_curve(scores, target, name) for name in self.metrics]
        roc = sl.curves.roc(scores, target)
        keep = np.unique(np.linspace(1, len(roc.thresholds) - 2, 400).astype(int))[
            ::-1
        ]  # enough for a slider
        positives, negatives = int(target.sum()), int((~target).sum())
        self.data = {
            "cut": np.round(roc.thresholds[keep], 4).tolist(),
            "tp": np.rint(roc.tpr[keep] * positives).astype(int).tolist(),
            "fp": np.rint(roc.fpr[keep] * negatives).astype(int).tolist(),
            "positives": positives,
            "negatives": negatives,
            "values": {
                name: np.round(curve.values[keep], 4).tolist()
                for name, curve in zip(self.metrics, curves, strict=True)
            },
        }

    def _repr_html_(self):
        return PAGE.replace("DATA", json.dumps(self.data))


PAGE = """
<div class="explorer">
<style>
.explorer { border: 1px solid var(--ours-rule); border-radius: 10px; padding: 1rem 1.2rem; }
.explorer { background: var(--ours-raised); }
.explorer input { width: 100%; accent-color: var(--ours-positive); }
.explorer .bars { display: grid; grid-template-columns: 6rem 1fr 3.5rem; gap: 0.3rem 0.8rem; }
.explorer .bars { align-items: center; }
.explorer .bar { display: block; height: 0.7rem; border-radius: 3px; background: var(--ours-positive); }
.explorer .track { background: var(--ours-rule); border-radius: 3px; position: relative; }
.explorer .best { position: absolute; top: -2px; bottom: -2px; width: 2px; background: var(--ours-hard); }
.explorer output { font-weight: 600; }
.explorer .cells { display: flex; gap: 1.4rem; flex-wrap: wrap; margin: 0.6rem 0 1rem; }
.explorer p { margin: 0.6rem 0 0; font-size: 0.85rem; color: var(--ours-muted); }
</style>
<label>threshold <output></output><input type="range" min="0" aria-label="threshold"></label>
<div class="cells"></div>
<div class="bars"></div>
<p>The mark is the best value over all thresholds.</p>
<script>(() => {
const data = DATA, root = document.currentScript.parentElement, at = (what) => root.querySelector(what);
const bar = (name, now, best) => `<span>${name}</span><span class="track">` +
  `<span class="bar" style="width:${100 * Math.max(now, 0)}%"></span>` +
  `<span class="best" style="left:${100 * best}%"></span></span><b>${now.toFixed(3)}</b>`;
const show = () => {
  const i = +at("input").value, tp = data.tp[i], fp = data.fp[i];
  const cells = { tp, fp, fn: data.positives - tp, tn: data.negatives - fp };
  at("output").textContent = data.cut[i].toFixed(3);
  at(".cells").innerHTML = Object.entries(cells)
    .map(([name, count]) => `<span>${name} <b>${count}</b></span>`).join("");
  at(".bars").innerHTML = Object.entries(data.values)
    .map(([name, values]) => bar(name, values[i], Math.max(...values))).join("");
};
at("input").max = data.cut.length - 1;
at("input").value = data.values.f1.indexOf(Math.max(...data.values.f1));
at("input").addEventListener("input", show);
show();
})()</script>
</div>
"""
# sphinx_gallery_end_ignore

Explorer(probability, target)  # HTML; its code is in the file below

# %%
# The same as a plot: each metric at every threshold, with its best threshold marked.

fig, ax = plt.subplots()
for name in ("f1", "mcc", "g_mean", "accuracy"):
    curve = sl.curves.metric_curve(probability, target, name)
    (line,) = ax.plot(curve.thresholds, curve.values, label=name)
    best = sl.tune_threshold(probability, target, name)
    ax.plot(best.threshold, best.score, "o", color=line.get_color())
ax.set(xlabel="threshold", ylabel="metric", xlim=(0, 1), ylim=(0, 1.02))
fig.legend(loc="outside lower center", ncols=4)

# %%
# How certain is a tuned threshold? The orange band is a 95 % interval from resampled rows, and few
# positives make it wide. On grey ground the constraint does not hold.

tuned = sl.tune_threshold(probability, target, "recall", subject_to="precision >= 0.7")
low, high = tuned.interval(100).threshold
ax = sl.plots.plot_tuning(tuned)
plt.setp(ax.patches, alpha=0.2)  # grey on a dark page too
ax.axvspan(low, high, color="#e0742f", alpha=0.15, linewidth=0)
ax.set_title("recall subject to precision ≥ 0.7")
print(
    f"cut at {tuned.threshold:.3f}; in 95 % of resamples between {low:.3f} and {high:.3f}"
)
print(tuned.counts)
