"""Residual networks for images of one channel: ResNet-50, and a small one for a processor."""

from __future__ import annotations

from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions of 3 × 3 (basic), or 1 × 1, 3 × 3 and 1 × 1 (bottleneck), around which the input is added."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            steps = [
                _conv(inputs, width, 1),
                nn.ReLU(),
                _conv(width, width, 3, stride),
                nn.ReLU(),
                _conv(width, outputs, 1),
            ]
        else:
            steps = [_conv(inputs, width, 3, stride), nn.ReLU(), _conv(width, outputs, 3)]
        self.steps = nn.Sequential(*steps)
        self.around = _conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return (self.steps(x) + self.around(x)).relu()


def residual(depths: tuple[int, ...], widths: tuple[int, ...], *, bottleneck: bool) -> nn.Sequential:
    """Logits ``(N,)`` of images ``(N, 1, H, W)``."""
    layers: list[nn.Module] = [_conv(1, widths[0], 3), nn.ReLU()]
    inputs = widths[0]
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for place in range(depth):
            layers.append(Block(inputs, width, 2 if stage and not place else 1, bottleneck=bottleneck))
            inputs = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1), nn.Flatten(0))


def resnet50() -> nn.Sequential:
    """ResNet-50 with a first layer for small images: 3 × 3, no pooling."""
    return residual((3, 4, 6, 3), (64, 128, 256, 512), bottleneck=True)


def small() -> nn.Sequential:
    """Three stages of one basic block: under 50,000 parameters."""
    return residual((1, 1, 1), (8, 16, 32), bottleneck=False)
