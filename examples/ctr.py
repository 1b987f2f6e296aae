"""Click-through-rate prediction with embedding tables on generated data: `onecurve run examples/ctr.py`.

Every topic and every advertisement has a hidden direction in the plane. In each visit, a user reads one to eight topics
and sees one advertisement. The probability of a click is sigmoid(4 · cos − 1), where cos is the cosine of the angle
between the advertisement's direction and the sum of the topics' directions. The best possible AUC on the evaluation
visits is 0.94; a random guess has 0.5.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class ClickModel(nn.Module):
    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.topics = oc.params.EmbeddingBag("topic", width, mode="mean", optimizer=oc.params.Adam(lr))
        self.ads = oc.params.Embedding("ad", width, optimizer=oc.params.Adam(lr))
        self.tower = nn.Sequential(nn.Linear(3 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, topics: Tensor, offsets: Tensor, ad: Tensor) -> Tensor:
        read, shown = self.topics(topics, offsets), self.ads(ad)
        return self.tower(torch.cat([read, shown, read * shown], 1)).squeeze(1)


class Visits:
    """Generated visits: the topics read, the advertisement shown, and 1.0 if it was clicked."""

    def __init__(self, begin: int, end: int, topics: int, ads: int) -> None:
        self.seeds = range(begin, end)
        self.topics, self.ads = topics, ads

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> tuple[list[int], int, float]:
        rng = random.Random(self.seeds[index])  # a visit is the same in every epoch
        read = [rng.randrange(self.topics) for _ in range(rng.randint(1, 8))]
        ad = rng.randrange(self.ads)
        x, y = (sum(f(2.4 * topic) for topic in read) for f in (math.cos, math.sin))
        cos = (x * math.cos(1.7 * ad) + y * math.sin(1.7 * ad)) / (math.hypot(x, y) + 1e-9)
        return read, ad, float(rng.random() < 1 / (1 + math.exp(1 - 4 * cos)))


def collate(visits: list[tuple[list[int], int, float]]) -> tuple[dict[str, Tensor], Tensor]:
    """Concatenate the topics of all visits; `offsets` has the index of each visit's first topic."""
    lengths = torch.tensor([0] + [len(read) for read, _, _ in visits[:-1]])
    inputs = {
        "topics": torch.tensor([topic for read, _, _ in visits for topic in read]),
        "offsets": lengths.cumsum(0),
        "ad": torch.tensor([ad for _, ad, _ in visits]),
    }
    return inputs, torch.tensor([clicked for _, _, clicked in visits])


def loss(logits: Tensor, clicked: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, clicked, reduction="none")


def job(
    lr: float = 0.03,
    width: int = 8,
    batch: int = 256,
    steps: int = 300,
    topics: int = 100,
    ads: int = 20,
    params: str = "none",
    staleness: int = 0,
    warmup: int = 0,
    warmup_data: float = 1.0,
    mode: str = "sync",
    workers: int = 1,
) -> oc.Job:
    return oc.Job(
        model=lambda: ClickModel(width, lr),
        loss=loss,
        data=lambda: Visits(0, 100_000, topics, ads),
        collate=collate,
        optimizer=oc.AdamW(lr=lr, weight_decay=0.0),
        schedule=oc.linear(warmup=10),
        clip=5.0,
        global_batch=batch,
        params=oc.Params(
            params, staleness=staleness, warmup=warmup, warmup_data=warmup_data, mode=mode, workers=workers
        ),
        steps=steps,
        metrics={"auc": oc.metric.auc()},
        evaluate=oc.Evaluate(lambda: Visits(100_000, 105_000, topics, ads), every=100, watch="auc", better="higher"),
    )
