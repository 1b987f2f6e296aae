"""U-Net in plain torch: skip connections from the encoder to the decoder, and a label for every pixel."""

import torch
import torch.nn.functional as F
from common import training_job
from torch import nn


def double_convolution(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, widths=(8, 16, 32), classes=3):
        super().__init__()
        self.down = nn.ModuleList(
            double_convolution(inputs, outputs) for inputs, outputs in zip((3, *widths), widths, strict=False)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))  # (32, 16), (16, 8)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(inputs, outputs, 2, 2) for inputs, outputs in pairs)
        self.up = nn.ModuleList(double_convolution(2 * outputs, outputs) for _, outputs in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for index, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if index else x)
            skips.append(x)
        skips.pop()
        for grow, layer in zip(self.grow, self.up, strict=True):
            x = layer(torch.cat([skips.pop(), grow(x)], 1))
        return self.head(x)


def sample(_index):
    return torch.randn(3, 16, 16), torch.randint(3, (16, 16))


def pixel_loss(output, target):
    return F.cross_entropy(output, target, reduction="none").mean((1, 2))


def job():
    return training_job(UNet, sample, pixel_loss)
