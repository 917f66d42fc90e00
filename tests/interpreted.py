"""Compare the CUDA kernels with the plain path in Triton's interpreter, on a machine without a GPU.

`tests.kernels.test_triton` runs this module in its own process, because the interpreter is chosen when Triton is
imported. It prints every disagreement and the number of cases.
"""

import itertools
import os
import types

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

import stepless as sl
from stepless.kernels import triton_classes, triton_decisions
from stepless.kernels.decisions import plain_loss
from stepless.kernels.dispatch import Dispatcher
from stepless.steps import STEPS
from stepless.tasks import Batch
from tests.twins import draw, plain

TOLERANCE = 1e-5
STEPS_OF_CLASSES = ("linear", "sigmoid", "identity", "raised_cosine")


@triton.jit
def _reciprocal(x):
    one: tl.constexpr = 1.0
    return one / x


def close(name, fused, leaf, reference, exact):
    """Whether value and gradient are those of the plain path in float64, on a copy; NaN agrees with nothing."""
    a, b = torch.autograd.grad(fused, leaf)[0], torch.autograd.grad(reference, exact)[0]
    value = (fused - reference).abs().item()
    slope = ((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item()
    if value <= TOLERANCE and slope <= TOLERANCE:
        return True
    print("unlike the plain path:", name, fused.item(), reference.item(), value, slope)
    return False


def decisions():
    shapes = ((1,), (41,), (1271,), (41, 3), (64, 8), (7, 4, 5), (9, 1))
    for metric, step, shape in itertools.product(("f1", "mcc", "g_mean"), STEPS, shapes):
        if step == "hard":
            continue
        for logits in (True, False):
            loss_fn = sl.MetricLoss(
                metric, step=step, task="binary" if len(shape) == 1 else "multilabel", threshold=0.3,
                inputs="logits" if logits else "probabilities",
            )  # fmt: skip
            scores, target = draw(shape)
            leaf = (scores if logits else scores.sigmoid()).requires_grad_()
            exact = leaf.detach().double().requires_grad_()
            objective = ways(loss_fn).decisions
            fused = triton_decisions.fused_loss(Batch(leaf, target.float(), None, None, logits, leaf.dtype), objective)
            reference = plain_loss(Batch(exact, target.double(), None, None, logits, exact.dtype), objective)
            yield close((metric, step, shape, logits), fused, leaf, reference, exact)


def rare_negatives():
    """One negative among thousands, or negatives of tiny weight: a difference of sums would lose their digits."""
    target = torch.ones(3001)
    target[7] = 0
    weights = torch.where(target == 0, 1e-8, 1.0)
    for metric, weight in itertools.product(("specificity", "g_mean", "mcc", "npv"), (None, weights)):
        loss_fn = sl.MetricLoss(metric, threshold=0.3)
        leaf = (draw((3001,))[0] + 1).requires_grad_()
        exact = leaf.detach().double().requires_grad_()
        objective = ways(loss_fn).decisions
        fused = triton_decisions.fused_loss(Batch(leaf, target, weight, None, True, leaf.dtype), objective)
        wide = None if weight is None else weight.double()
        reference = plain_loss(Batch(exact, target.double(), wide, None, True, exact.dtype), objective)
        yield close((metric, "rare", weight is not None), fused, leaf, reference, exact)
    true = target.long()
    for metric in ("f1", "mcc", "specificity"):
        loss_fn = sl.MetricLoss(metric, task="multiclass")
        noise = draw((3001, 3))[0]
        leaf = (noise + torch.tensor([0.0, 1.0, 0.0])).requires_grad_()
        fused = ways(loss_fn).fused_on_cuda(leaf, true)
        exact = leaf.detach().double().requires_grad_()
        yield close((metric, "rare class"), fused, leaf, plain(loss_fn, exact, true), exact)


def classes():
    shapes = ((1, 2), (41, 3), (70, 10), (20, 1000))
    blends = ({"blend": 0.0}, {"blend": 0.3}, {"blend": 0.3, "cross_entropy": "balanced"})
    for metric, step, shape, blend in itertools.product(("f1", "mcc"), STEPS_OF_CLASSES, shapes, blends):
        loss_fn = sl.MetricLoss(metric, task="multiclass", step=step, **blend)
        scores, _ = draw(shape)
        target = torch.arange(shape[0]) % shape[1]
        if len(target) > 5:
            target[3] = -100
        leaf = scores.requires_grad_()
        fused = ways(loss_fn).fused_on_cuda(leaf, target)
        exact = leaf.detach().double().requires_grad_()
        yield close((metric, step, shape, blend), fused, leaf, plain(loss_fn, exact, target), exact)
    target[0] = 77_777
    yield bool(ways(loss_fn).fused_on_cuda(leaf, target).isnan())


def ruled_out():
    """A score of −inf, also for the true class: its cross-entropy has its largest value, and no gradient."""
    for shape in ((41, 3), (20, 1000)):
        loss_fn = sl.MetricLoss("f1", task="multiclass", blend=0.4)
        scores, target = draw(shape)[0], torch.arange(shape[0]) % shape[1]
        scores[:, 2] = -torch.inf
        leaf, exact = scores.clone().requires_grad_(), scores.double().requires_grad_()
        fused = ways(loss_fn).fused_on_cuda(leaf, target)
        yield close(("ruled out", shape), fused, leaf, plain(loss_fn, exact, target), exact)


def ways(loss_fn) -> Dispatcher:
    return loss_fn._ways


def _with_index(patch):
    """Add an ``__index__`` to the patch: since numpy 2.4 an array with one number is not an index."""

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def main():
    interpreter._patch_lang_tensor = _with_index(interpreter._patch_lang_tensor)
    # what the interpreter lacks: the GPU's reciprocal instruction, and the properties of a GPU
    triton_decisions.reciprocal = triton_classes.reciprocal = _reciprocal
    torch.cuda.get_device_properties = lambda _: types.SimpleNamespace(multi_processor_count=2)
    results = [*decisions(), *rare_negatives(), *classes(), *ruled_out()]
    print(f"{sum(results)} of {len(results)} agree")


if __name__ == "__main__":
    main()
