"""A plain vision transformer; its class token and position embedding are parameters of the model itself."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


class Images:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(1, 16, 16), index % 5


def job(width: int = 16, depth: int = 4) -> oc.Job:
    return oc.Job(
        model=lambda: VisionTransformer(width, depth),
        loss=oc.loss.cross_entropy,
        data=Images,
        optimizer=oc.AdamW(lr=1e-3, groups={"*norm*|*.bias": {"weight_decay": 0.0}}),
        clip=0.5,
        global_batch=16,
        steps=10,
    )
