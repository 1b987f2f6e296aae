"""A job on JSON lines in an object store, read through a cache."""

import time
from typing import Any

import torch
from torch import Tensor, nn

import onecurve as oc


def sample(line: dict[str, Any]) -> tuple[Tensor, Tensor]:
    return torch.tensor([line["id"] / 1000, 1.0]), torch.tensor([line["id"] / 500])


class Slow(nn.Linear):
    """A linear layer that takes its time."""

    seconds = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return super().forward(inputs)


def job(
    where: str,
    index: str = "",
    cache: str = "",
    size: str = "1G",
    steps: int = 40,
    peers: int = 0,
    seconds: float = 0.0,
) -> oc.Job:
    """`where`: the folder or URL of the data. `index`: empty for the one beside it.
    `cache`: a folder; empty for none. `seconds`: of a forward."""
    Slow.seconds = seconds
    return oc.Job(
        model=lambda: Slow(2, 1),
        loss=oc.loss.mse,
        data=lambda: oc.data.jsonl(where, index=index or None, window=4).map(sample),
        optimizer=oc.SGD(lr=0.1),
        global_batch=32,
        steps=steps,
        cache=oc.Cache(cache, size, peers=bool(peers)) if cache else None,
    )
