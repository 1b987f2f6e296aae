"""A job whose gradients are noisy and do not vanish: a line through points that scatter."""

import torch
from torch import Tensor, nn

import onecurve as oc


class Points:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(4096, 64, generator=generator)
        self.y = self.x.sum(1, keepdim=True) + 8 * torch.randn(4096, 1, generator=generator)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def job(steps: int = 1200) -> oc.Job:
    return oc.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 1)),
        loss=oc.loss.mse,
        data=Points,
        optimizer=oc.SGD(lr=1e-6),  # hardly moves: the gradient stays as it is
        global_batch=32,
        steps=steps,
    )
