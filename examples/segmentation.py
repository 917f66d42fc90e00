"""Segmentation: train a U-Net on IoU in half precision, on generated masks whose borders do not count.

Pixels are trailing dimensions, and are counted over the whole batch: `MetricLoss("iou")` for one mask,
`MetricLoss("iou", task="multiclass")` for classes of pixels. Pixels of `ignore_index` are left out. The convolutions
run in bfloat16 or float16; the counts do not, because bfloat16 cannot count past 256.

    python examples/segmentation.py
"""

import torch
from torch import Tensor, nn

import stepless as sl

SIZE, BATCH, STEPS, UNCLEAR = 48, 8, 32, 255


def draw_images(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw noisy images of a disc (class 1) and a bar (class 2), each with a border of one pixel marked unclear."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    centre = torch.randint(10, SIZE - 10, (4, images, 1, 1), generator=generator)
    disc = (x - centre[0]).square() + (y - centre[1]).square()
    bar = torch.maximum((x - centre[2]).abs() * 3, (y - centre[3]).abs())
    target = torch.zeros(images, SIZE, SIZE, dtype=torch.long)
    for distance, near, far, name in ((disc, 36, 49, 1), (bar, 9, 11, 2)):
        target[distance <= far] = UNCLEAR
        target[distance <= near] = name
    signal = (target == 1) * 1.0 - (target == 2) * 1.0
    return (signal + 0.5 * torch.randn(target.shape, generator=generator)).unsqueeze(1), target


class UNet(nn.Module):
    """Two levels down and up again, with skip connections."""

    def __init__(self, classes: int, width: int = 12) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(1, width), _block(width, 2 * width), _block(2 * width, 4 * width)])
        self.up = nn.ModuleList([_block(6 * width, 2 * width), _block(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores ``(N, classes, H, W)``."""
        seen = []
        for block in self.down:
            x = block(x if not seen else nn.functional.max_pool2d(x, 2))
            seen.append(x)
        for block, skip in zip(self.up, reversed(seen[:-1]), strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip], 1))
        return self.head(x)


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
    )  # fmt: skip


def train(task: str, dtype: torch.dtype) -> tuple[float, float]:
    """Train, and return the IoU on new images before and after."""
    torch.manual_seed(0)
    model = UNet(classes=1 if task == "binary" else 3)
    loss_fn = sl.MetricLoss("iou", task=task, ignore_index=UNCLEAR, blend=0.3, cross_entropy="balanced")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)  # float16 gradients vanish without it
    images, target = draw_images(BATCH * STEPS, seed=1)
    new_images, new_target = draw_images(32, seed=2)

    def read(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype):
            scores = model(x)
        if task == "multiclass":
            return scores, y
        return scores.squeeze(1), torch.where(y == UNCLEAR, y, (y > 0).long())  # either shape, or neither

    def score() -> float:
        with torch.no_grad():
            return float(loss_fn.score(*read(new_images, new_target)))

    before = score()
    for x, y in zip(images.split(BATCH), target.split(BATCH), strict=True):
        optimizer.zero_grad()
        scaler.scale(loss_fn(*read(x, y))).backward()
        scaler.step(optimizer)
        scaler.update()
    return before, score()


def main() -> None:
    """Train on both tasks, in bfloat16 and float16."""
    torch.set_num_threads(1)  # for images this small, threads cost more than they save
    for task in ("binary", "multiclass"):
        for dtype in (torch.bfloat16, torch.float16):
            before, after = train(task, dtype)
            print(f"{task} in {dtype}: IoU on new images {before:.3f} before, {after:.3f} after", flush=True)


if __name__ == "__main__":
    main()
