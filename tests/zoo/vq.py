"""VQ-VAE: a codebook in buffers that forward updates with exponential moving averages."""

import torch
import torch.nn.functional as F
from common import training_job
from torch import nn


class Codebook(nn.Module):
    def __init__(self, codes=16, width=8):
        super().__init__()
        initial = torch.randn(codes, width)
        self.register_buffer("codes", initial.clone())
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", initial.clone())

    def forward(self, latent):
        flat = latent.flatten(0, 1)
        nearest = torch.cdist(flat, self.codes).argmin(1)
        one_hot = F.one_hot(nearest, len(self.codes)).to(flat)
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(one_hot.t() @ flat, alpha=0.1)
                self.codes.copy_(self.sums / (self.counts[:, None] + 1e-5))
        quantized = F.embedding(nearest, self.codes).view_as(latent)
        commitment = F.mse_loss(latent, quantized.detach(), reduction="none").flatten(1).mean(1)
        return latent + (quantized - latent).detach(), commitment


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.codebook, self.decoder = nn.Linear(12, 8), Codebook(), nn.Linear(8, 12)

    def forward(self, x):
        quantized, commitment = self.codebook(self.encoder(x))
        return {"restored": self.decoder(quantized), "commitment": commitment}


def restoration(output, target):
    error = F.mse_loss(output["restored"], target, reduction="none").flatten(1).mean(1)
    return error + 0.25 * output["commitment"]


def sample(_index):
    sequence = torch.randn(5, 12)
    return sequence, sequence


def job(buffers: str | None = None):
    return training_job(Autoencoder, sample, restoration, buffers=buffers)
