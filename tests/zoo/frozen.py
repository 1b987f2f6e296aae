"""Frozen parameters: a frozen backbone with a trained head, or only the first blocks frozen."""

from common import ResidualBlock, classification, training_job, vectors
from torch import nn


class Classifier(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 8)
        self.blocks = nn.ModuleList(ResidualBlock(16) for _ in range(4))
        self.stem.requires_grad_(False)
        self.blocks[:frozen].requires_grad_(False)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def job(frozen: int = 4):
    return training_job(lambda: Classifier(frozen), vectors, classification)
