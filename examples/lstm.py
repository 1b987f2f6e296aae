"""Forecasts a time series with an LSTM: `onecurve run examples/lstm.py`.

A series is a sum of two waves of unknown period and phase, with noise of deviation 0.1. The model sees 48 values and
predicts the next 12. The best possible loss, the mean squared error, is that of the noise: 0.01. The mean has 1.0.
"""

import torch
from torch import Tensor, nn

import onecurve as oc

PAST, FUTURE, NOISE = 48, 12, 0.1


class Forecast(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, FUTURE)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x[:, :, None])
        return self.head(outputs[:, -1])


class Waves:
    """Series number `n` is always the same."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(self.first + index)
        periods = torch.tensor([8.0, 20.0]) + torch.tensor([4.0, 8.0]) * torch.rand(2, generator=draw)
        phases = 2 * torch.pi * torch.rand(2, generator=draw)
        time = torch.arange(PAST + FUTURE)[:, None]
        values = torch.sin(2 * torch.pi * time / periods + phases).sum(1)
        values = values + NOISE * torch.randn(PAST + FUTURE, generator=draw)
        return values[:PAST], values[PAST:]


def job(lr: float = 5e-3, width: int = 48, batch: int = 64, steps: int = 600) -> oc.Job:
    return oc.Job(
        model=lambda: Forecast(width),
        loss=oc.loss.mse,
        data=lambda: Waves(0, 20_000),
        optimizer=oc.AdamW(lr=lr),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        evaluate=oc.Evaluate(lambda: Waves(100_000, 500), every=200),
    )
