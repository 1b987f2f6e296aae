"""Clicks with a small table, one with millions of rows, and one of 2 TB: what `onecurve plan` makes of them."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Clicks(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weekday = oc.params.Embedding("weekday", width)
        self.item = oc.params.Embedding("item", width)
        self.visit = oc.params.Embedding("visit", width)
        self.head = nn.Sequential(nn.Linear(3 * width, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, weekday: Tensor, item: Tensor, visit: Tensor) -> Tensor:
        return self.head(torch.cat([self.weekday(weekday), self.item(item), self.visit(visit)], 1)).squeeze(1)


class Visits:
    """Every visit has an id of its own."""

    def __len__(self) -> int:
        return 10**10

    def __getitem__(self, index: int) -> tuple[tuple[int, int, int], float]:
        draw = random.Random(index)
        return (draw.randrange(7), int(1e7 ** draw.random()), index), float(draw.random() < 0.1)


def loss(output: Tensor, click: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, click.float(), reduction="none")


def job(params: str = "etcd://10.0.0.1:2379/clicks", steps: int = 1_000_000, batch: int = 8_192) -> oc.Job:
    return oc.Job(
        model=lambda: Clicks(64),
        data=Visits,
        loss=loss,
        optimizer=oc.AdamW(lr=1e-3),
        global_batch=batch,
        steps=steps,
        params=params,
    )
