"""The theorems of *Bridging the Gap*, measured: Lipschitz constants, and soft against hard as n grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from bridging_scores import from_counts
from frame import Context, Folds, Json, Table, Verdict, judged, picture, rows
from theory_east import Annealed
from torch import Tensor

import stepless as sl


def _quick(table: Table, context: Context) -> Json:
    protocol = table.protocol
    return {**protocol, **protocol["quick"]} if context.quick else protocol


def step_of(words: str) -> sl.Step:
    """A step from its words: ``linear 0.2``, ``sigmoid 10``, ``linear 0.1 sharpened 10``."""
    kind, number, *more = words.split()
    step = sl.Linear(delta=float(number)) if kind == "linear" else sl.Sigmoid(k=float(number))
    return step.sharpened(float(more[1])) if more else step


def slopes(delta: float, tau: float) -> tuple[float, float, float]:
    """m1, m2 and m3 of the linear Heaviside, as the paper has them."""
    margin = min(tau, 1 - tau)
    return delta / (tau - margin / 2), (1 - 2 * delta) / margin, delta / (1 - tau - margin / 2)


# ---------------------------------------------------------------------------------------------------------------------
# 4.1
# ---------------------------------------------------------------------------------------------------------------------


def steepest(step: sl.Step, tau: float, grid: int) -> float:
    """The steepest secant of a step between neighbours of a grid on [0, 1]."""
    p = torch.linspace(0, 1, grid, dtype=torch.float64)
    return float((step(p, tau).diff() / p.diff()).max())


def steepest_entry(metric: str, step: sl.Step, tau: float, protocol: Json, random: torch.Generator) -> float:
    """The greatest |f(p) − f(q)| / ‖p − q‖₁ of a count or metric over pairs of vectors of predictions.

    Pairs lie close, far, or apart in one entry alone, which is where a sum is steepest in this norm.
    """
    n, worst = protocol["samples"], 0.0
    y = (torch.arange(n) < n // 5).double()

    def value(p: Tensor) -> Tensor:
        loss = sl.MetricLoss(metric, step=step, threshold=tau, inputs="probabilities")
        return torch.func.vmap(lambda row: loss(row, y))(p)

    for spread in (1.0, 0.1, 1e-3):
        p = torch.rand(protocol["pairs"], n, dtype=torch.float64, generator=random)
        moved = (p + spread * (torch.rand(p.shape, dtype=torch.float64, generator=random) - 0.5)).clamp(0, 1)
        alone = torch.where(torch.arange(n) == torch.randint(n, (len(p), 1), generator=random), moved, p)
        for q in (moved, alone):
            distance = (p - q).abs().sum(1)
            found = (value(p) - value(q)).abs() / distance.clamp(min=1e-12)
            worst = max(worst, float(found[distance > 1e-9].max()))
    return worst


class Lipschitz(Table):
    """Cells: ``step/…`` of one step and threshold, ``entry/…`` of the counts and metrics made of it, ``g_mean``."""

    name, paper, title = "theory_lipschitz", "Theory", "Lipschitz constants (Bridging the Gap, 4.1)"
    #: Metrics as formulas of counts; n cells of which rn are positive, so a count moves by at most M ‖p − q‖₁.
    entries = ("tp", "fp", "fn", "tn")
    metrics = ("accuracy", "balanced_accuracy", "f1", "jaccard")

    def cells(self, context: Context) -> list[str]:
        protocol = self.protocol
        steps = [*(f"linear {d:g}" for d in protocol["deltas"]), *(f"sigmoid {k:g}" for k in protocol["sigmoid_k"])]
        chosen = [(s, t) for s in steps for t in protocol["taus"]]
        fewer = [("linear 0.2", 0.5), ("linear 0.2", 0.1)]
        return [
            *(f"step/{s}/{t:g}" for s, t in chosen),
            *(f"entry/{name}/{s}/{t:g}" for s, t in fewer for name in (*self.entries, *self.metrics)),
            "g_mean",
        ]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = _quick(self, context)
        random = torch.Generator().manual_seed(protocol["seed"])
        for cell in cells:
            kind, *parts = cell.split("/")
            if kind == "step":
                measured = steepest(step_of(parts[0]), float(parts[1]), protocol["grid"])
                yield cell, {"measured": measured, "bound": self.bound(parts[0], float(parts[1]))}
            elif kind == "entry":
                name, words, tau = parts[0], parts[1], float(parts[2])
                formula = f"1 * {name}" if name in self.entries else name  # a single word would be a metric's name
                measured = steepest_entry(formula, step_of(words), tau, protocol, random)
                yield (
                    cell,
                    {"measured": measured, "bound": self.bound(words, tau) * self.share(name, protocol["samples"])},
                )
            else:
                yield cell, {"rate": protocol["near_zero"], "slope": [_g_mean_slope(r) for r in protocol["near_zero"]]}

    def bound(self, words: str, tau: float) -> float:
        """What Theorem 4.1 says of a step."""
        kind, number = words.split()
        return max(slopes(float(number), tau)) if kind == "linear" else float(number) / 4

    def share(self, name: str, samples: int) -> float:
        """How much a metric moves at most for a decision that moves by 1; a count moves by 1 (Theorem 4.2).

        With P positives and N negatives: accuracy 1/n, balanced accuracy 1/(2 min(P, N)), F1 2/P and Jaccard 1/P, each
        at most, from their partial derivatives; no positives, no bound.
        """
        positives = samples // 5
        return {
            "accuracy": 1 / samples,
            "balanced_accuracy": 0.5 / min(positives, samples - positives),
            "f1": 2 / positives,
            "jaccard": 1 / positives,
        }.get(name, 1.0)

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found, rounding = [], self.protocol["rounding"]
        for kind, words in (
            ("step/linear", "H^l is Lipschitz with constant max(m1, m2, m3) (4.1)"),
            ("step/sigmoid", "H^s is Lipschitz (constant k/4)"),
            ("entry", "the entries of the matrix, accuracy, balanced accuracy, F1 and Jaccard are Lipschitz (4.2)"),
        ):
            ratios = [c["measured"] / c["bound"] for name, c in folds.items() if name.startswith(kind)]
            if ratios:
                text = f"steepest measured: {min(ratios):.3f} to {max(ratios):.3f} of the bound"
                holds = max(ratios) <= 1 + rounding
                found.append(judged(words, "at most 1", text, holds=holds, reason="steeper than the bound"))
        if "g_mean" in folds:
            cell = folds["g_mean"]
            text = ", ".join(f"{s:.0f} at a TPR of {r:g}" for r, s in zip(cell["rate"], cell["slope"], strict=True))
            bounded = cell["slope"][-1] < 2 * cell["slope"][0]
            reason = "a square root has no bounded slope where the true-positive rate, or the other, comes to 0"
            found.append(
                judged("the G-mean is Lipschitz in the soft counts", "yes", text, holds=bounded, reason=reason)
            )
        return found

    def show(self, folds: Folds) -> list[str]:
        body = []
        for name, cell in folds.items():
            if name.startswith("entry"):
                _, what, step, tau = name.split("/")
                body.append([what, step, tau, f"{cell['measured']:.4f}", f"{cell['bound']:.4f}"])
        return [
            picture(self.name, "steepest secants of the steps against the bound, by threshold"),
            rows(["of", "step", "τ", "steepest measured", "bound"], body),
        ]

    def draw(self, folds: Folds) -> dict[str, Any]:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only where pictures are drawn

        figure = Figure(figsize=(6, 3.6))
        axes = figure.subplots()
        by_step: dict[str, list[tuple[float, float, float]]] = {}
        for name, cell in folds.items():
            if name.startswith("step"):
                _, step, tau = name.split("/")
                by_step.setdefault(step, []).append((float(tau), cell["measured"], cell["bound"]))
        for place, (step, points) in enumerate(sorted(by_step.items())):
            tau, measured, bound = zip(*sorted(points), strict=True)
            axes.plot(tau, bound, color=f"C{place}", linewidth=1)
            # rings of several sizes: some steps have the same slopes, and would hide each other
            size = 4 + 3 * (place % 3)
            axes.plot(tau, measured, "o", color=f"C{place}", markersize=size, fillstyle="none", label=step)
        axes.set(xlabel="threshold τ", ylabel="slope", yscale="log", title="Steepest secant (rings) and bound (lines)")
        axes.set_yticks([2, 5, 10, 20], ["2", "5", "10", "20"])
        axes.minorticks_off()
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return {self.name: figure}

    def summary(self, folds: Folds) -> str:
        ratios = [c["measured"] / c["bound"] for c in folds.values() if "bound" in c]
        if not ratios or "g_mean" not in folds:
            return ""
        slope = folds["g_mean"]["slope"]
        bounded = "stays bounded" if slope[-1] < 2 * slope[0] else f"does not: its slope reaches {slope[-1]:.0f}"
        within = sum(ratio <= 1 + self.protocol["rounding"] for ratio in ratios)
        return f"{within} of {len(ratios)} measured slopes keep within the bound; the G-mean {bounded}."

    def directions(self, folds: Folds) -> dict[str, bool]:
        return {v.claim: v.verdict == "reproduced" for v in self.verdicts(folds) if "G-mean" not in v.claim}


def _g_mean_slope(rate: float) -> float:
    """The slope of the G-mean against the true-positive rate, there, with half of the negatives right."""
    n = 1000.0
    tp = torch.tensor(rate * n, dtype=torch.float64, requires_grad=True)
    half = torch.tensor(n / 2, dtype=torch.float64)
    return float(torch.autograd.grad(from_counts(sl.METRICS["g_mean"], tp, half, n - tp, half), tp)[0] * n)


# ---------------------------------------------------------------------------------------------------------------------
# 4.2
# ---------------------------------------------------------------------------------------------------------------------


def beta(alpha: float, other: float, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Draws of Beta(α, β)."""
    return random.beta(alpha, other, tuple(shape))


def assumed(protocol: Json, metric: str, n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Hard and soft metric of each repetition, as the paper assumes them to be made."""
    times, c = protocol["repetitions"], protocol["concentration"]
    positives = round(protocol["r"] * n)

    def sums(rates: Sequence[float], size: int) -> tuple[np.ndarray, np.ndarray]:
        hard = np.stack([random.binomial(size, rate, times) for rate in rates], 1).astype(float)
        chunks = [
            np.stack([beta(c * rate, c * (1 - rate), (size,), random).sum() for rate in rates]) for _ in range(times)
        ]
        return hard, np.stack(chunks)

    if metric == "auroc":
        tpr, fpr = sums(protocol["auroc_u"], positives), sums(protocol["auroc_v"], n - positives)
        return tuple(_area(t / positives, f / (n - positives)) for t, f in zip(tpr, fpr, strict=True))
    tp, fp = sums([protocol["u"]], positives), sums([protocol["v"]], n - positives)
    found = []
    for true, false in zip(tp, fp, strict=True):
        t, f = torch.from_numpy(true[:, 0]), torch.from_numpy(false[:, 0])
        found.append(from_counts(sl.METRICS[metric], t, f, positives - t, n - positives - f).numpy())
    return found[0], found[1]


def _area(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
    """Under the curve of thresholds that rise, so rates that fall, from (1, 1) to (0, 0)."""
    ends = [np.ones((len(tpr), 1)), np.zeros((len(tpr), 1))]
    tpr, fpr = (np.concatenate([ends[0], rate, ends[1]], 1) for rate in (tpr, fpr))
    return (-np.diff(fpr, axis=1) * (tpr[:, 1:] + tpr[:, :-1]) / 2).sum(1)


def limit(protocol: Json, metric: str) -> float:
    """What both converge to, by the paper (Eq. 10 and 12, and its likes)."""
    u, v, r = (protocol[key] for key in "uvr")
    if metric == "auroc":
        return float(_area(np.array([protocol["auroc_u"]]), np.array([protocol["auroc_v"]]))[0])
    return 2 * r * u / (r + r * u + v - r * v) if metric == "f1" else r * u + (1 - r) * (1 - v)


def unassumed(protocol: Json, metric: str, words: str, n: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Hard and soft metric of each repetition where the same probabilities are cut, hard and by a step."""
    positives = round(protocol["r"] * n)
    times = protocol["repetitions"]
    p = np.concatenate(
        [
            beta(*protocol["positives"], (times, positives), random),
            beta(*protocol["negatives"], (times, n - positives), random),
        ],
        1,
    )
    y = torch.arange(n) < positives
    loss = sl.MetricLoss(metric, step=step_of(words), threshold=protocol["tau"], inputs="probabilities")
    drawn = torch.from_numpy(p)
    soft = 1 - torch.stack([loss(row, y) for row in drawn])
    hard = torch.stack([loss.score(row, y) for row in drawn])
    return hard, soft


class Convergence(Table):
    """Cells: ``assumed/metric`` and ``unassumed/metric/step``; each holds means over repetitions for every n."""

    name, paper, title = "theory_convergence", "Theory", "Soft metrics converge to hard ones (Bridging the Gap, 4.2)"

    def cells(self, context: Context) -> list[str]:
        steps = self.protocol["steps"]
        return [
            *(f"assumed/{m}" for m in ("f1", "accuracy", "auroc")),
            *(f"unassumed/{m}/{s}" for m in ("f1", "accuracy") for s in steps),
        ]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        protocol = _quick(self, context)
        for cell in cells:
            kind, metric, *more = cell.split("/")
            random = np.random.default_rng(protocol["seed"])
            gaps, biases, distances = [], [], []
            sizes = [n for n in protocol["sizes"] if n <= 10000 or kind == "assumed"]
            for n in sizes:
                fewer = {**protocol, "repetitions": max(10, min(protocol["repetitions"], 2_000_000 // n))}
                if kind == "assumed":
                    hard, soft = assumed(fewer, metric, n, random)
                    distances.append(float(np.abs(soft - limit(protocol, metric)).mean()))
                else:
                    hard, soft = (x.numpy() for x in unassumed(fewer, metric, more[0], n, random))
                gaps.append(float(np.abs(soft - hard).mean()))
                biases.append(float(soft.mean() - hard.mean()))
            yield cell, {"n": sizes, "gap": gaps, "bias": biases, "from_limit": distances}

    def verdicts(self, folds: Folds) -> list[Verdict]:
        protocol, found = self.protocol, []
        low, high = protocol["slope"]
        for metric in ("f1", "accuracy", "auroc"):
            if cell := folds.get(f"assumed/{metric}"):
                slope = float(np.polyfit(np.log(cell["n"]), np.log(cell["gap"]), 1)[0])
                text = f"soft and hard {cell['gap'][-1]:.4f} apart at n = {cell['n'][-1]:,}, slope {slope:.2f}"
                holds = cell["gap"][-1] < protocol["tolerance"] and low <= slope <= high
                words = f"soft {metric} → hard {metric} under the paper's Bernoulli and Beta assumptions"
                reason = f"above {protocol['tolerance']} or not of slope −½"
                found.append(judged(words, "converges", text, holds=holds, reason=reason))
        for step in ("linear 0.2", "sigmoid 10"):
            cells = [folds.get(f"unassumed/{m}/{step}") for m in ("f1", "accuracy")]
            if all(cells):
                worst = max(abs(c["bias"][-1]) for c in cells)
                text = ", ".join(f"{m} {c['bias'][-1]:+.3f}" for m, c in zip(("F1", "accuracy"), cells, strict=True))
                reason = "the gap stays, however large n: the assumption is not a property of the step, but a condition"
                holds = worst <= protocol["gap"]
                words = f"the paper's step, {step}, has E[soft] = E[hard] where both cut the same probabilities"
                at = f"soft − hard at n = {cells[0]['n'][-1]:,}: {text}"
                found.append(judged(words, "assumed", at, holds=holds, reason=reason))
        return found

    def show(self, folds: Folds) -> list[str]:
        body = []
        for name, cell in folds.items():
            _, metric, *step = name.split("/")
            body.append([metric, *(step or ["as assumed"]), *(f"{cell['gap'][place]:.4f}" for place in (0, -1))])
        return [
            picture(self.name, "mean distance between soft and hard metric against the number of samples"),
            rows(["metric", "step", "soft and hard apart at the smallest n", "at the largest n"], body),
        ]

    def summary(self, folds: Folds) -> str:
        assumed_gaps = [cell["gap"][-1] for name, cell in folds.items() if name.startswith("assumed")]
        gentle, sharp = (folds.get(f"unassumed/f1/{step}") for step in ("linear 0.2", "linear 0.1 sharpened 100"))
        if not assumed_gaps or not gentle or not sharp:
            return ""
        return (
            f"Where E[soft] = E[hard], soft meets hard (at most {max(assumed_gaps):.4f} apart at the largest n). The"
            f" paper's own step does not have that property: F1 stays {gentle['gap'][-1]:.3f} apart; sharpened steps"
            f" close it ({sharp['gap'][-1]:.4f})."
        )

    def draw(self, folds: Folds) -> dict[str, Any]:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only where pictures are drawn

        figure = Figure(figsize=(10, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for name, cell in folds.items():
            kind, metric, *step = name.split("/")
            if kind == "assumed":
                left.plot(cell["n"], cell["gap"], "o-", markersize=3, label=metric)
            elif metric == "f1":
                right.plot(cell["n"], cell["gap"], "o-", markersize=3, label=step[0])
        left.set(xscale="log", yscale="log", xlabel="n", ylabel="mean |soft − hard|", title="as the paper assumes")
        right.set(xscale="log", xlabel="n", title="F1 of the same probabilities, cut by a step")
        left.legend(fontsize=8)
        right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return {self.name: figure}

    def directions(self, folds: Folds) -> dict[str, bool]:
        gaps = {metric: folds[f"assumed/{metric}"]["gap"] for metric in ("f1", "accuracy", "auroc")}
        holds = {f"soft {m} nears hard {m} as n grows": gap[-1] < gap[0] / 5 for m, gap in gaps.items()}
        soft, sharp = (abs(folds[f"unassumed/f1/{s}"]["bias"][-1]) for s in ("linear 0.2", "linear 0.1 sharpened 100"))
        return {**holds, "a gentle step leaves a gap that a sharp one closes": sharp < soft / 5}


TABLES: list[Table] = [Lipschitz(), Convergence(), Annealed()]
