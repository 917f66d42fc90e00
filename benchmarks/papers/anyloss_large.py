"""AnyLoss, Tables 10 and 11: a deep network on images, and a large table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from anyloss_runs import FOLDS, constant, mean, mlp, problem, scores, slp
from anyloss_wins import shown
from frame import REPRODUCED, Context, Folds, Json, Table, Verdict, judged, packed, rows
from judging import WORDS, count, tuned
from perceptrons import METRICS
from resnet import resnet50, small
from torch import Tensor, nn
from wording import LEVELS, level, tally

import stepless as sl


class Images(Table):
    """Table 10, which wants a GPU."""

    name, paper = "anyloss_10", "AnyLoss"
    title = "Table 10: MNIST, one digit against the rest, in ResNet-50"
    #: What its cells begin with, what the page calls it, and how it is made.
    net, words = "resnet50", "ResNet-50"
    make = staticmethod(resnet50)

    def cells(self, context: Context) -> list[str]:
        return self._cells(context) if context.device.startswith("cuda") else []

    def _cells(self, context: Context) -> list[str]:
        protocol = self.protocol
        digits = protocol["digits"][:1] if context.quick else protocol["digits"]
        losses = ["bce", "f1"] if context.quick else [*protocol["losses"], "rival"]
        return [f"{self.net}/{digit}/{loss}" for digit in digits for loss in losses]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        arrays = packed("anyloss_mnist")
        for cell in cells:
            _, digit, loss = cell.split("/")
            plan = {**self.protocol, **({"train": 600, "test": 600, "epochs": 2} if context.quick else {})}
            pieces = [arrays["x_train"][: plan["train"]], arrays["x_test"][: plan["test"]]]
            targets = [arrays[f"y_{part}"][: plan[part]] == int(digit) for part in ("train", "test")]
            data = [torch.from_numpy(a).to(context.device) for a in (*pieces, *targets)]
            x, x_test, y, y_test = data
            held = 0 if loss != "rival" else plan["held"]
            trained = "bce" if loss == "rival" else loss
            logits = self._fit(trained, x[held:], y[held:], plan["epochs"], x_test, x[:held])
            truth = y_test.cpu().numpy().astype(np.int64)
            if loss != "rival":
                yield cell, {"counts": [count(logits[0] > 0, truth)]}
                continue
            known = y[:held].cpu().numpy().astype(np.int64)
            decided = {name: tuned(logits[1], known, logits[0], name)[0] for name in METRICS}
            yield cell, {"counts": {name: [count(d, truth)] for name, d in decided.items()}}

    def _fit(self, loss: str, x: Tensor, y: Tensor, epochs: int, *judged_on: Tensor) -> list[np.ndarray]:
        """Logits of the images given last, after training; batches hold their share of the digit."""
        protocol = self.protocol
        torch.manual_seed(protocol["seed"])
        model = self.make().to(x.device, memory_format=torch.channels_last)
        optimiser = torch.optim.Adam(model.parameters(), lr=protocol["rate"])
        made = _loss(loss)
        steps = max(1, len(x) // protocol["batch"])
        generator = torch.Generator(x.device).manual_seed(protocol["seed"])
        mixed = torch.bfloat16 if x.is_cuda else None
        model.train()
        for _ in range(epochs):
            order = torch.rand(len(x), generator=generator, device=x.device).argsort()
            order = order[y[order].to(torch.int8).argsort(stable=True)]
            for step in range(steps):
                batch = order[step::steps]  # every so many of the sorted: each batch has its share
                with torch.autocast(x.device.type, mixed, enabled=mixed is not None):
                    z = model(_image(x[batch]))
                optimiser.zero_grad(set_to_none=True)
                made(z.float(), y[batch].float()).backward()
                optimiser.step()
        model.eval()
        with torch.no_grad(), torch.autocast(x.device.type, mixed, enabled=mixed is not None):
            return [
                torch.cat([model(_image(part)).float().cpu() for part in images.split(1000)]).numpy()
                if len(images)
                else np.empty(0)
                for images in judged_on
            ]

    def _mean(self, folds: Folds, loss: str, metric: str) -> float | None:
        found = [mean(folds, f"{self.net}/{digit}/{loss}", metric) for digit in self.protocol["digits"]]
        return None if None in found else float(np.mean(found))

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for metric in self.protocol["metrics"]:
            ours, bce = (self._mean(folds, loss, metric) for loss in (metric, "bce"))
            if ours is None or bce is None:
                continue
            said = self.printed[metric]
            found.append(
                judged(f"{self.words}: {WORDS[metric]} of AnyLoss is above BCE's", f"{said[2]:.3f} > {said[1]:.3f}",
                       f"{ours:.4f} and {bce:.4f}", holds=ours > bce,
                       reason=self._reason(folds, metric))
            )  # fmt: skip
        return found

    def _alike(self, folds: Folds, loss: str) -> int:
        """For how many digits the network calls every image the same."""
        cells = [f"{self.net}/{digit}/{loss}" for digit in self.protocol["digits"]]
        return sum(int(constant(folds, cell, "")[0]) for cell in cells if cell in folds)

    def _reason(self, folds: Folds, metric: str) -> str:
        stuck, other, digits = self._alike(folds, metric), self._alike(folds, "bce"), len(self.protocol["digits"])
        missing = "digit, epochs, rates and batches are not printed, and other rates and scales L were not tried"
        if stuck:
            return (
                f"The network calls every image the same for {stuck} of {digits} digits with AnyLoss, for {other} with"
                f" BCE at the same rate: training on 1 − metric from the start got stuck; {missing}."
            )
        return f"Reason not found: {missing}."

    def summary(self, folds: Folds) -> str:
        metrics = self.protocol["metrics"]
        stuck = sum(self._alike(folds, metric) for metric in metrics)
        found = [self._mean(folds, loss, "f1") for loss in ("bce", "f1", "rival")]
        if None in found:
            return ""
        return (
            f"{self.words}, F-1: BCE {found[0]:.4f}, AnyLoss {found[1]:.4f}, BCE + tuned threshold {found[2]:.4f}."
            f" AnyLoss calls every image the same in {stuck} of"
            f" {len(metrics) * len(self.protocol['digits'])} trainings."
        )

    def show(self, folds: Folds) -> list[str]:
        body = []
        for metric in self.protocol["metrics"]:
            losses = {"MSE": "mse", "BCE": "bce", "AnyLoss": metric, "BCE + tuned threshold": "rival"}
            found = [self._mean(folds, loss, metric) for loss in losses.values()]
            if None not in found[:3]:
                said = zip(self.printed[metric], found[:3], strict=True)
                body.append([WORDS[metric], *(f"{s} / {v:.4f}" for s, v in said), shown(found[3], 4)])
        words = (
            f"Means over digits {', '.join(map(str, self.protocol['digits']))}, each against the rest; printed / found."
            " The paper says neither which digit it took nor how it trained. `MetricClassifier` has no convolutions and"
            " takes no part."
        )
        lost = []
        for metric in self.protocol["metrics"]:
            ours, rival = (self._mean(folds, loss, metric) for loss in (metric, "rival"))
            if ours is not None and rival is not None and ours < rival:
                lost.append(f"{WORDS[metric]} ({ours:.4f} against {rival:.4f})")
        parts = [words, rows(["metric", "MSE", "BCE", "AnyLoss", "BCE + tuned threshold"], body)]
        return [*parts, f"AnyLoss is **below** BCE + tuned threshold on {', '.join(lost)}."] if lost else parts


class SmallImages(Images):
    """The same for a processor: a small network, part of the images."""

    name = "anyloss_10_small"
    title = "Table 10 on a processor: MNIST, one digit against the rest, in a small residual network"
    net, words = "small", "A small network"
    make = staticmethod(small)

    def cells(self, context: Context) -> list[str]:
        return self._cells(context)


def _loss(name: str) -> nn.Module:
    if name == "bce":
        return nn.BCEWithLogitsLoss()
    if name == "mse":
        return _Squares()
    metric, options = METRICS[name]
    return sl.presets.anyloss(metric, **options)


class _Squares(nn.Module):
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return (z.sigmoid() - y).square().mean()


def _image(x: Tensor) -> Tensor:
    return (x[:, None].float() / 255 - 0.1307) / 0.3081


class Large(Table):
    """Table 11."""

    name, paper = "anyloss_11", "AnyLoss"
    title = "Table 11: a large table"

    def cells(self, context: Context) -> list[str]:
        if context.quick:
            return ["slp/bce", "slp/f1"]
        return [f"{net}/{loss}" for net in ("slp", "mlp") for loss in (*self.protocol[f"rates_{net}"], "rival")]

    def compute(self, cells: list[str], context: Context) -> Iterator[tuple[str, Json]]:
        given, protocol = problem("anyloss_donors", "donors"), self.protocol
        if context.quick:
            protocol = {**protocol, "steps": 5}
        for net, train in (("slp", slp), ("mlp", mlp)):
            wanted = [cell.partition("/")[2] for cell in cells if cell.startswith(net)]
            if wanted:
                for kind, value in train(given, wanted, protocol[f"rates_{net}"], protocol, context):
                    yield f"{net}/{kind}", value

    def verdicts(self, folds: Folds) -> list[Verdict]:
        found = []
        for net in ("slp", "mlp"):
            base = "delta" if net == "slp" else "mse"
            for metric in self.protocol["metrics"]:
                three = [mean(folds, f"{net}/{kind}", metric) for kind in (base, "bce", metric)]
                if None in three:
                    continue
                said = self.printed[net][metric]
                found.append(
                    judged(f"{WORDS[metric]}, {net.upper()}: AnyLoss is above MSE and BCE on a large set",
                           "/".join(f"{v:.3f}" for v in said), "/".join(f"{v:.3f}" for v in three),
                           holds=three[2] > max(three[:2]), reason=self._reason(folds, net, base, metric))
                )  # fmt: skip
        return found

    def _reason(self, folds: Folds, net: str, base: str, metric: str) -> str:
        """Folds in which nothing is decided, or else that the set is another."""
        stuck = {word: int(constant(folds, f"{net}/{kind}", metric).sum())
                 for word, kind in (("MSE", base), ("BCE", "bce"), ("AnyLoss", metric))}  # fmt: skip
        other = "donors stands in for Huge Titanic, whose rates are not printed"
        if stuck["AnyLoss"]:
            said = ", ".join(f"{number} with {word}" for word, number in stuck.items())
            return f"Folds of {FOLDS} that decide all rows alike: {said}; {other}."
        return f"Reason not found: no fold of AnyLoss decides all rows alike; {other}."

    def _against(self, folds: Folds) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {kind: [] for kind in LEVELS}
        for net in ("slp", "mlp"):
            for metric in self.protocol["metrics"]:
                ours, rival = (scores(folds, f"{net}/{kind}", metric) for kind in (metric, "rival"))
                if ours is not None and rival is not None:
                    words = f"{net.upper()} {WORDS[metric]} ({ours.mean():.3f}, {rival.mean():.3f})"
                    found[level(ours, rival)].append(words)
        return found

    def summary(self, folds: Folds) -> str:
        held = [v.verdict == REPRODUCED for v in self.verdicts(folds)]
        if not held:
            return ""
        against = [kind for kind, cases in self._against(folds).items() for _ in cases]
        words = f"On donors AnyLoss is above MSE and BCE at ½ in {sum(held)} of {len(held)} rows"
        return f"{words}; against BCE + tuned threshold it is {tally(against)}." if against else f"{words}."

    def show(self, folds: Folds) -> list[str]:
        body = []
        for net in ("slp", "mlp"):
            base = "delta" if net == "slp" else "mse"
            for metric in self.protocol["metrics"]:
                kinds = (base, "bce", metric, "rival")
                found = [mean(folds, f"{net}/{kind}", metric) for kind in kinds]
                if None in found[:3]:
                    continue
                row = [net.upper(), WORDS[metric]]
                for kind, value in zip(kinds, found, strict=True):
                    alike = 0 if value is None else int(constant(folds, f"{net}/{kind}", metric).sum())
                    row.append(shown(value) + (f" ({alike})" if alike else ""))
                body.append(row)
        words = (
            "Huge Titanic could not be had; donors (ADBench, 619,326 rows, 10 features, 5.9 % positive) stands in:"
            f" directions can be compared, numbers cannot. In brackets: in how many of the {FOLDS} folds all rows are"
            " decided alike."
        )
        lines = [f"- {kind}: {', '.join(cases)}" for kind, cases in self._against(folds).items() if cases]
        table = rows(["network", "metric", "MSE", "BCE", "AnyLoss", "BCE + tuned threshold"], body)
        return [
            words,
            table,
            *(["AnyLoss against the honest rival, BCE + tuned threshold:", "\n".join(lines)] if lines else []),
        ]


TABLES = [Images(), SmallImages(), Large()]
