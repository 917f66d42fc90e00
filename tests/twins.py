"""Compare the fused ways, on the CPU and on CUDA, with the plain path: values and gradients."""

import torch

from stepless.kernels.dispatch import FUSED_CPU
from stepless.steps import STEPS

SMOOTH = [name for name in STEPS if name != "hard"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2 * 2**-10, torch.bfloat16: 2 * 2**-7}


def draw(shape, dtype=torch.float32, seed=0, rate=0.4):
    generator = torch.Generator().manual_seed(seed)
    scores = (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
    return scores, (torch.rand(shape, generator=generator) < rate).long()


def plain(loss_fn, scores, target, sample_weight=None):
    """Compute the loss by the plain path, even if a fused one applies."""
    return loss_fn.settle(loss_fn._state("plain", scores, target, sample_weight))


def agree(loss_fn, scores, target, sample_weight=None, tolerance=None, way=FUSED_CPU, reference=None):
    """Assert that value and gradient of the fused way equal the plain one's, in the scores' dtype or ``reference``."""
    assert loss_fn.path_for(scores, target, sample_weight) == way
    results = []
    for run, dtype in ((loss_fn, scores.dtype), (lambda *batch: plain(loss_fn, *batch), reference or scores.dtype)):
        leaf = scores.detach().to(dtype, copy=True, memory_format=torch.preserve_format).requires_grad_()
        loss = run(leaf, target, sample_weight)
        gradient = torch.autograd.grad(loss, leaf)[0]
        results.append((loss.detach().float(), gradient.float()) if reference else (loss.detach(), gradient))
    (value, gradient), (value_by_plain, gradient_by_plain) = results
    assert value.dtype == value_by_plain.dtype
    assert gradient.dtype == gradient_by_plain.dtype
    tolerance = tolerance or TOLERANCE[scores.dtype]
    torch.testing.assert_close(value, value_by_plain, rtol=tolerance, atol=tolerance, equal_nan=True)
    scale = max(gradient_by_plain.abs().max().item(), 1 / scores.numel())  # below this all is rounding
    torch.testing.assert_close(gradient, gradient_by_plain, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def one_like_any_other(loss_fn, scores, target):
    """Check a node's first and second derivatives, a retained graph, and a batch of gradients."""
    scores = scores.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss_fn(z, target), scores)
    assert torch.autograd.gradgradcheck(lambda z: loss_fn(z, target), scores)
    loss = loss_fn(scores, target)
    first, second = (torch.autograd.grad(loss, scores, retain_graph=True)[0].clone() for _ in range(2))
    torch.testing.assert_close(first, second)
    factors = torch.tensor([1.0, 2.0], dtype=torch.float64)
    (many,) = torch.autograd.grad(loss, scores, factors, is_grads_batched=True)
    torch.testing.assert_close(many, torch.stack([first, 2 * first]))
