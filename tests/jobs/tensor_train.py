"""A small language model whose embedding and feed-forward layers are tensor trains."""

import torch
from torch import Tensor, nn

import onecurve as oc


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.mlp = nn.Sequential(oc.nn.TTLinear(12, 24, rank=4), nn.GELU(), oc.nn.TTLinear(24, 12, rank=4, cores=3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = oc.nn.TTEmbedding(30, 12, rank=4)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(12, 30)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


class Sequences:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = (torch.arange(9) * (1 + index % 5) + index) % 30
        return tokens[:-1], tokens[1:]


def job(steps: int = 8) -> oc.Job:
    return oc.Job(
        model=Model,
        loss=oc.loss.next_token,
        data=Sequences,
        optimizer=oc.AdamW(lr=1e-2),
        global_batch=8,
        steps=steps,
        save=oc.Save(every=4),
    )
