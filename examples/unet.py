"""Segmentation with a U-Net: which pixels belong to a disc, which to a square? `onecurve run examples/unet.py`

The pictures are drawn on the spot, with noise. The metric is the mean intersection over union of the three classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc

CLASSES = 3


def convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.GroupNorm(4, channels_out), nn.ReLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1), nn.GroupNorm(4, channels_out), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = convolutions(1, width), convolutions(width, 2 * width)
        self.bottom = convolutions(2 * width, 4 * width)
        self.up2, self.up1 = convolutions(6 * width, 2 * width), convolutions(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        middle = self.down2(F.max_pool2d(fine, 2))
        coarse = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up2(torch.cat([middle, F.interpolate(coarse, scale_factor=2)], 1))
        fine = self.up1(torch.cat([fine, F.interpolate(middle, scale_factor=2)], 1))
        return self.head(fine)


class Shapes:
    """Pictures of a disc and a square; picture `n` is always the same."""

    def __init__(self, first: int, size: int, side: int = 32) -> None:
        self.first, self.size, self.side = first, size, side

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(self.first + index)
        y, x = torch.meshgrid(torch.arange(self.side), torch.arange(self.side), indexing="ij")
        labels = torch.zeros(self.side, self.side, dtype=torch.long)
        for label in (1, 2):
            cx, cy, radius = (torch.rand(3, generator=draw) * torch.tensor([24, 24, 4]) + 4).tolist()
            distance = torch.hypot(x - cx, y - cy) if label == 1 else torch.maximum((x - cx).abs(), (y - cy).abs())
            labels[distance < radius] = label
        return (labels / 2 + 0.3 * torch.randn(self.side, self.side, generator=draw))[None], labels


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none").mean(dim=(1, 2))  # one value per picture


def iou(logits: Tensor, labels: Tensor) -> Tensor:
    """Intersection over union, the mean over the classes, for each picture."""
    found, real = F.one_hot(logits.argmax(1), CLASSES), F.one_hot(labels, CLASSES)
    both, either = (found & real).sum((1, 2)), (found | real).sum((1, 2))
    return ((both + 1) / (either + 1)).mean(1)


def job(lr: float = 3e-3, width: int = 8, batch: int = 16, steps: int = 200) -> oc.Job:
    return oc.Job(
        model=lambda: UNet(width),
        loss=loss,
        data=lambda: Shapes(0, 4000),
        optimizer=oc.AdamW(lr=lr),
        schedule=oc.cosine(warmup=20),
        global_batch=batch,
        steps=steps,
        metrics={"iou": iou},
        evaluate=oc.Evaluate(lambda: Shapes(10_000, 200), every=100, watch="iou", better="higher"),
    )
