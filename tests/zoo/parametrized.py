"""Parametrized weights: weight norm, spectral norm and orthogonal, also as hooks of the old kind."""

import torch
from common import classification, training_job, vectors
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

WRAPPERS = {
    "weight": parametrizations.weight_norm,
    "spectral": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "old_weight": weight_norm,
    "old_spectral": spectral_norm,
}


class Block(nn.Module):
    def __init__(self, width, wrap):
        super().__init__()
        self.up, self.down = wrap(nn.Linear(width, 2 * width)), wrap(nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Classifier(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.stem = nn.Linear(12, 16)
        self.blocks = nn.ModuleList(Block(16, WRAPPERS[kind]) for _ in range(2))
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def job(kind: str = "weight"):
    return training_job(lambda: Classifier(kind), vectors, classification)
