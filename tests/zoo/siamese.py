"""Siamese network: one encoder called twice per forward, with a margin loss on the distance of each pair."""

import torch
import torch.nn.functional as F
from common import ResidualBlock, training_job
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), ResidualBlock(16), ResidualBlock(16), nn.Linear(16, 8))

    def forward(self, left, right):
        return self.encoder(left), self.encoder(right)


def sample(index):
    left, alike = torch.randn(12), index % 2
    right = left + 0.1 * torch.randn(12) if alike else torch.randn(12)
    return (left, right), alike


def margin_loss(output, alike):
    distance = F.pairwise_distance(*output)
    return torch.where(alike > 0, distance.pow(2), F.relu(2.0 - distance).pow(2))


def job():
    return training_job(Siamese, sample, margin_loss)
