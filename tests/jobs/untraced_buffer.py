"""A job whose model changes a buffer with NumPy, which a trace on fake tensors cannot follow."""

import torch
from torch import Tensor, nn

import onecurve as oc


class Center(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(torch.from_numpy(x.detach().numpy().mean(0)))
        return super().forward(x - self.mean)


def job() -> oc.Job:
    data = [(torch.full((3,), float(n)), torch.ones(1)) for n in range(16)]
    return oc.Job(
        model=Center, data=lambda: data, loss=oc.loss.mse, optimizer=oc.SGD(lr=0.1), global_batch=8, steps=2, save=None
    )
