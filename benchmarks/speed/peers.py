"""The peers' losses as their papers write them: plain torch, one line for each line of the formula."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_f1(decision: Tensor, target: Tensor) -> Tensor:
    tp = (target * decision).sum(0)
    fp = ((1 - target) * decision).sum(0)
    fn = (target * (1 - decision)).sum(0)
    return 2 * tp / (2 * tp + fp + fn + 1e-16)


def anyloss(logits: Tensor, target: Tensor) -> Tensor:
    """AnyLoss (Han, Moniz and Chawla, KDD 2024): the amplified probability, L = 73."""
    decision = 1 / (1 + torch.exp(-73 * (torch.sigmoid(logits) - 0.5)))
    return 1 - soft_f1(decision, target)


def score_oriented(logits: Tensor, target: Tensor) -> Tensor:
    """Score-oriented losses (Marchetti et al., 2022): a raised-cosine threshold on [½ − δ, ½ + δ], δ = 0.1."""
    p, delta = torch.sigmoid(logits), 0.1
    u = (p - 0.5) / delta
    inside = 0.5 * (1 + u + torch.sin(torch.pi * u) / torch.pi)
    decision = torch.where(p < 0.5 - delta, 0.0, torch.where(p > 0.5 + delta, 1.0, inside))
    return 1 - soft_f1(decision, target)


def soft_sets(logits: Tensor, target: Tensor) -> Tensor:
    """*Bridging the Gap* (Tsoi et al., NeurIPS 2022): the linear Heaviside, δ = 0.2, averaged over nine thresholds."""
    p, delta, scores = torch.sigmoid(logits), 0.2, []
    for tau in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        half = min(tau, 1 - tau) / 2
        below = delta / (tau - half)
        within = (1 - 2 * delta) / (2 * half)
        above = delta / (1 - tau - half)
        decision = torch.where(
            p < tau - half,
            p * below,
            torch.where(
                p > tau + half, p * above + (1 - delta - above * (tau + half)), p * within + (0.5 - within * tau)
            ),
        )
        scores.append(soft_f1(decision, target))
    return 1 - torch.stack(scores).mean()


def sigmoid_f1(logits: Tensor, target: Tensor) -> Tensor:
    """sigmoidF1 (Bénédict et al., 2021): macro F1 over labels of σ(S·(z − E)), here S = 1 and E = 0."""
    decision = 1 / (1 + torch.exp(-logits))
    return 1 - soft_f1(decision, target).mean()


def soft_dice(logits: Tensor, target: Tensor) -> Tensor:
    """Soft Dice, with the usual smoothing of 1."""
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
