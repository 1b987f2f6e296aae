"""Buffers that forward changes: a running mean of activations, subtracted as in DINO."""

import torch
from common import classification, training_job, vectors
from torch import nn


class CenteredBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("center", torch.zeros(width))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.center.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x + self.down(torch.relu(self.up(x - self.center)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 8)
        self.blocks = nn.ModuleList(CenteredBlock(16) for _ in range(2))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def job(buffers: str | None = None):
    return training_job(Classifier, vectors, classification, buffers=buffers)
