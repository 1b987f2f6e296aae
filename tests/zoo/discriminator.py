"""Discriminator of a GAN as a classifier of real and generated images: strided convolutions and batch norm."""

import torch
import torch.nn.functional as F
from common import training_job
from torch import nn


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def sample(index):
    real = index % 2
    return torch.randn(3, 32, 32) * (1.0 if real else 0.5), float(real)


def real_or_generated(output, target):
    return F.binary_cross_entropy_with_logits(output, target.to(output), reduction="none")


def job():
    return training_job(build, sample, real_or_generated)
