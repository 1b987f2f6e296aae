"""Variational autoencoder: forward draws random numbers for the reparametrization."""

import torch
from common import ResidualBlock, training_job
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 16)
        self.blocks = nn.ModuleList(ResidualBlock(16) for _ in range(2))
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Linear(4, 12)

    def forward(self, x):
        hidden = self.encoder(x)
        for block in self.blocks:
            hidden = block(hidden)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(latent), mean, log_variance


def evidence_bound(output, target):
    restored, mean, log_variance = output
    divergence = 0.5 * (mean.pow(2) + log_variance.exp() - log_variance - 1).sum(1)
    return (restored - target).pow(2).mean(1) + divergence


def sample(_index):
    vector = torch.randn(12)
    return vector, vector


def job():
    return training_job(Autoencoder, sample, evidence_bound)
