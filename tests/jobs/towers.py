"""Two towers that share an embedding table and end in a dot product.

Under a pipeline, the first tower's output has to skip the stages of the second.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Towers(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.query = nn.ModuleList(Layer(width) for _ in range(depth))
        self.item = nn.ModuleList(Layer(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        q, i = self.words(query), self.words(item)
        for layer in self.query:
            q = layer(q)
        for layer in self.item:
            i = layer(i)
        return self.scale * (self.norm(q.mean(1)) * self.norm(i.mean(1))).sum(1)


class Pairs:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (torch.randint(50, (6,)), torch.randint(50, (9,))), torch.rand(())


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, target, reduction="none")


def job(width: int = 16, depth: int = 3) -> oc.Job:
    return oc.Job(
        model=lambda: Towers(width, depth),
        loss=loss,
        data=Pairs,
        optimizer=oc.AdamW(lr=1e-3),
        clip=0.1,
        global_batch=16,
        steps=10,
    )
