"""Clicks on items: two embedding tables, one of them used by two modules, one with padding; ids with a Zipf law."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Clicks(nn.Module):
    """Predicts a click from the user, the item, and the items that the user has seen last."""

    def __init__(self, width: int, optimizer: str, admit_after: int, evict_after: int | None) -> None:
        super().__init__()
        rows = {"sgd": oc.params.SGD(0.5), "adagrad": oc.params.RowwiseAdagrad(0.05), "adam": oc.params.Adam(0.01)}
        self.user = oc.params.Embedding("user", width)
        limits = {"admit_after": admit_after, "evict_after": evict_after}
        self.item = oc.params.Embedding("item", width, rows[optimizer], **limits)
        self.history = oc.params.EmbeddingBag("item", width, "mean", rows[optimizer], padding_idx=-1, **limits)
        self.head = nn.Sequential(nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: Tensor, item: Tensor, history: Tensor) -> Tensor:
        features = [self.user(user), self.item(item), self.history(history)]
        return self.head(torch.cat(features, dim=1)).squeeze(1)


class Impressions:
    """Drawn impressions: few users and items are frequent, most are rare."""

    def __init__(self, samples: int, users: int, items: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.user = _frequent_first(users, (samples,), draw)
        self.item = _frequent_first(items, (samples,), draw)
        self.history = _frequent_first(items, (samples, 8), draw)
        lengths = torch.randint(1, 9, (samples, 1), generator=draw)
        self.history[torch.arange(8) >= lengths] = -1
        taste = torch.randn(users + 1, 4, generator=draw), torch.randn(items + 1, 4, generator=draw)
        affinity = (taste[0][self.user % (users + 1)] * taste[1][self.item % (items + 1)]).sum(1)
        self.click = (affinity + torch.randn(samples, generator=draw) > 1).float()

    def __len__(self) -> int:
        return len(self.click)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        return (self.user[index], self.item[index], self.history[index]), self.click[index]


def _frequent_first(ids: int, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Ids of which the n-th is drawn about 1/n as often as the first."""
    return (ids ** torch.rand(shape, generator=draw, dtype=torch.float64)).long()


def click_loss(output: Tensor, click: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, click, reduction="none")


def job(
    optimizer: str = "adagrad",
    batch: int = 16,
    steps: int = 20,
    width: int = 8,
    clip: float = 0.01,
    users: int = 1_000,
    params: str = "none",
    staleness: int = 0,
    warmup: int = 0,
    admit_after: int = 1,
    evict_after: int | None = None,
) -> oc.Job:
    return oc.Job(
        model=lambda: Clicks(width, optimizer, admit_after, evict_after),
        data=lambda: Impressions(5_000, users, items=300),
        loss=click_loss,
        optimizer=oc.AdamW(lr=1e-3),
        schedule=oc.constant(warmup=3),
        global_batch=batch,
        steps=steps,
        clip=clip,
        params=oc.Params(params, staleness=staleness, warmup=warmup),
    )
