"""The job of params_faults.py: clicks with two embedding tables, in float64 so that runs can be compared bit by bit."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Clicks(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.user = oc.params.Embedding("user", width, optimizer=oc.params.Adam(lr=0.01))
        self.item = oc.params.EmbeddingBag("item", width, mode="sum", optimizer=oc.params.RowwiseAdagrad(lr=0.05))
        self.head = nn.Linear(2 * width, 1)

    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        return self.head(torch.cat([self.user(user), self.item(items)], dim=1)).squeeze(1)


class Impressions:
    """Drawn ids, few of them frequent."""

    def __init__(self, samples: int, ids: int) -> None:
        draw = torch.Generator().manual_seed(1)
        chances = torch.rand((samples, 5), generator=draw, dtype=torch.float64)
        self.ids = (ids**chances).long()
        self.click = (torch.rand(samples, generator=draw) > 0.5).float()

    def __len__(self) -> int:
        return len(self.click)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (self.ids[index, 0], self.ids[index, 1:]), self.click[index]


def loss(output: Tensor, click: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, click, reduction="none")


def job(
    params: str,
    staleness: int = 0,
    steps: int = 400,
    every: int = 50,
    width: int = 16,
    ids: int = 20_000,
    tls: str = "",
) -> oc.Job:
    return oc.Job(
        model=lambda: Clicks(width),
        data=lambda: Impressions(20_000, ids),
        loss=loss,
        optimizer=oc.AdamW(lr=1e-3),
        clip=0.05,
        global_batch=64,
        steps=steps,
        params=oc.Params(params, staleness=staleness, tls=tls or None),
        save=oc.Save(every=every),
    )
