"""A job whose weights say how often each sample has counted, in whatever order: the loss is linear in them."""

import time

import torch
from torch import Tensor, nn

import onecurve as oc

LR = 1.0


class Counter(nn.Module):
    """One weight and one row for each sample."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(samples))
        self.row = oc.params.Embedding("row", 1, optimizer=oc.params.SGD(lr=LR))

    def forward(self, sample: Tensor) -> Tensor:
        return self.weight[sample] + self.row(sample).squeeze(1)


class Samples:
    """Their own numbers."""

    def __init__(self, samples: int, seconds: float) -> None:
        self._samples, self._seconds = samples, seconds

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[int, float]:
        time.sleep(self._seconds)
        return index, 0.0


def loss(output: Tensor, _: Tensor) -> Tensor:
    return output


def job(
    steps: int = 400, batch: int = 8, ms: float = 2.0, params: str = "local://2", workers: int = 3, every: int = 100
) -> oc.Job:
    """Each sample is used once. `ms`: what it takes to read one."""
    return oc.Job(
        model=lambda: Counter(steps * batch),
        loss=loss,
        data=lambda: Samples(steps * batch, ms / 1000),
        optimizer=oc.SGD(lr=LR),
        schedule=oc.constant(),
        global_batch=batch,
        steps=steps,
        params=oc.Params(params, mode="async", workers=workers),
        save=oc.Save(every=every),
    )
