"""The job of stale_auc.py: clicks of users on items whose frequencies follow a Zipf law."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc

_HIDDEN = 4


class Clicks(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.user = oc.params.Embedding("user", width, oc.params.RowwiseAdagrad(lr=0.05))
        self.item = oc.params.Embedding("item", width, oc.params.RowwiseAdagrad(lr=0.05))
        self.head = nn.Sequential(nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        read, shown = self.user(user), self.item(item)
        return self.head(torch.cat([read, shown, read * shown], 1)).squeeze(1)


class Visits:
    """Drawn visits. The n-th user and item come about 1/n as often as the first; tastes are hidden vectors."""

    def __init__(self, begin: int, end: int, users: int, items: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        tastes = [torch.randn(count + 1, _HIDDEN, generator=draw) for count in (users, items)]
        bias = torch.randn(items + 1, generator=draw)
        chances = torch.rand((end, 3), generator=draw, dtype=torch.float64)[begin:]
        self.user, self.item = (users ** chances[:, 0]).long(), (items ** chances[:, 1]).long()
        affinity = (tastes[0][self.user] * tastes[1][self.item]).sum(1) + bias[self.item]
        self.click = (chances[:, 2] < torch.sigmoid(affinity)).float()

    def __len__(self) -> int:
        return len(self.click)

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, indices: list[int]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        chosen = torch.tensor(indices)
        return (self.user[chosen], self.item[chosen]), self.click[chosen]


def loss(output: Tensor, click: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, click, reduction="none")


def job(
    staleness: int = 0,
    warmup: int = 0,
    seed: int = 0,
    steps: int = 2_000,
    batch: int = 1_024,
    users: int = 1_000_000,
    items: int = 50_000,
) -> oc.Job:
    samples = steps * batch
    visits = Visits(0, samples + 100_000, users, items, seed)

    class Part:
        """Some of the visits."""

        def __init__(self, begin: int, end: int) -> None:
            self._numbers = range(begin, end)

        def __len__(self) -> int:
            return len(self._numbers)

        def __getitem__(self, index: int) -> int:
            return self._numbers[index]

    return oc.Job(
        model=lambda: Clicks(16),
        data=lambda: Part(0, samples),
        collate=visits.collate,
        loss=loss,
        optimizer=oc.AdamW(lr=1e-3, weight_decay=0.0),
        schedule=oc.linear(warmup=100),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        metrics={"auc": oc.metric.auc()},
        evaluate=oc.Evaluate(lambda: Part(samples, samples + 100_000), every=steps, watch="auc", better="higher"),
        params=oc.Params(staleness=staleness, warmup=warmup),
        save=oc.Save(every=steps, memory=None),
        seed=seed,
    )
