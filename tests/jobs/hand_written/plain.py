"""Ordinary jobs: what the other cases are measured against."""

import torch
import torch.nn.functional as F
from common import Cases, Language, Sequences, adamw, deterministic, token_mean, token_sum
from torch import Tensor, nn

import onecurve as oc

CASES = Cases()


def job(case: str) -> oc.Job:
    return CASES[case].job()


CASES("sgd", source="pytorch/examples mnist/main.py: F.nll_loss of a classifier")
CASES(
    "adamw",
    source="huggingface/pytorch-image-models train.py: AdamW",
    optimizer=oc.AdamW(lr=0.01),
    torch_optimizer=adamw,
)
CASES(
    "language",
    source="karpathy/nanoGPT model.py: F.cross_entropy(..., ignore_index=-1) of all tokens",
    model=Language,
    data=Sequences,
    loss=token_sum,
    mean_loss=token_mean,
)


class AttentionBlock(nn.Module):
    """A transformer block: causal attention with two heads, and a feed-forward network."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, length, width = x_BTD.shape
        heads = [
            part.view(batch, length, 2, width // 2).transpose(1, 2)
            for part in self.qkv(self.norm1(x_BTD)).split(width, -1)
        ]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x_BTD = x_BTD + self.projection(attended)
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))


class Transformer(nn.Module):
    """A GPT with tied embeddings; `shared` uses one matrix in two blocks, and a scale in all."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.positions = nn.Parameter(torch.zeros(6, 8))
        self.blocks = nn.ModuleList(AttentionBlock() for _ in range(4))
        self.norm, self.scale = nn.LayerNorm(8), 1.0
        self.head.weight = self.embed.weight
        if shared:
            self.blocks[2].up = self.blocks[0].up
            self.scale = nn.Parameter(torch.zeros(()))
        deterministic(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        for block in self.blocks:
            x = block(x) * (1 + self.scale / 8)
        return self.head(self.norm(x))


TEXT = {
    "data": Sequences,
    "loss": token_sum,
    "mean_loss": token_mean,
    "options": {"clip": 0.125, "schedule": lambda step, _: 1 / (1 + step)},
}
ADAMW = {"optimizer": oc.AdamW(lr=0.01), "torch_optimizer": adamw}
CASES("gpt", source="karpathy/nanoGPT model.py: GPT", model=Transformer, **TEXT, **ADAMW)
CASES(
    "gpt_with_shared_parts",
    source="google-research/albert: one matrix in several layers",
    model=lambda: Transformer(shared=True),
    refused={"pipeline": "blocks.0|blocks.2|share"},
    **TEXT,
    **ADAMW,
)
