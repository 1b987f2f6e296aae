"""A plain nn.Sequential of linear layers."""

from common import classification, training_job, vectors
from torch import nn


def build():
    return nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
    )


def job():
    return training_job(build, vectors, classification)
