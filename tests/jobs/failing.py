"""A job whose model fails on one rank during training, while the other ranks wait for it in a collective."""

import os
import signal

import torch
from torch import Tensor, nn

import onecurve as oc


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((3,), index / 64), torch.tensor([index / 64])


class Failing(nn.Module):
    """On `rank`, the given training pass raises an error or kills the process."""

    def __init__(self, rank: int, training_pass: int, how: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.rank, self.training_pass, self.how = rank, training_pass, how
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += torch.is_grad_enabled()
        if self.passes >= self.training_pass and os.environ.get("RANK") == str(self.rank):
            if self.how == "raise":
                raise ValueError("the model is broken")
            os.kill(os.getpid(), getattr(signal, self.how))
        return self.layers(x)


def job(rank: int = 1, training_pass: int = 12, how: str = "raise") -> oc.Job:
    return oc.Job(
        model=lambda: Failing(rank, training_pass, how),
        loss=oc.loss.mse,
        data=Points,
        optimizer=oc.AdamW(lr=0.05),
        global_batch=12,
        steps=1000,
    )
