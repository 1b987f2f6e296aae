"""Fourier neural operator: spectral convolutions with complex parameters."""

import torch
import torch.nn.functional as F
from common import training_job
from torch import nn

import onecurve as oc


class SpectralConvolution(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.cfloat) / channels)
        self.pointwise = nn.Conv1d(channels, channels, 1)
        self.modes = modes

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        mixed = torch.zeros_like(spectrum)
        mixed[..., : self.modes] = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        return F.gelu(torch.fft.irfft(mixed, n=x.shape[-1]) + self.pointwise(x))


class FourierOperator(nn.Module):
    def __init__(self, channels=8, modes=5, depth=2):
        super().__init__()
        self.lift, self.project = nn.Conv1d(1, channels, 1), nn.Conv1d(channels, 1, 1)
        self.layers = nn.ModuleList(SpectralConvolution(channels, modes) for _ in range(depth))

    def forward(self, x):
        x = self.lift(x)
        for layer in self.layers:
            x = layer(x)
        return self.project(x)


def sample(_index):
    return torch.randn(1, 16), torch.randn(1, 16)


def job():
    return training_job(FourierOperator, sample, oc.loss.mse)
