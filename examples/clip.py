"""Two towers, trained as CLIP is: a picture of digits must find the number that it shows, among those of the whole
batch: `onecurve run examples/clip.py`."""

import math
import random

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import onecurve as oc

DIGITS = 4


class ImageTower(nn.Module):
    """Each digit by itself, and then all of them together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.digit = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.together = nn.Sequential(nn.LayerNorm(DIGITS * width), nn.Linear(DIGITS * width, width))

    def forward(self, image_BHW: Tensor) -> Tensor:
        digits = image_BHW.view(-1, 8, DIGITS, 8).transpose(1, 2).flatten(2)
        joined: Tensor = self.together(self.digit(digits).flatten(1))
        return joined


class TextTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(10, width)
        self.positions = nn.Parameter(torch.randn(DIGITS, width))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, text_BT: Tensor) -> Tensor:
        embedded: Tensor = self.mlp((self.characters(text_BT) * self.positions).sum(1))
        return embedded


class CLIP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.image, self.text = ImageTower(width), TextTower(width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image_BHW: Tensor, text_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.image(image_BHW), self.text(text_BT), self.log_scale


class Numbers:
    """Pictures of four digits in a row, and the number that they show. Every fifth digit is for evaluation."""

    def __init__(self, train: bool, size: int) -> None:
        digits = load_digits()
        kept = [i for i in range(len(digits.target)) if (i % 5 > 0) == train]
        self.images = torch.tensor(digits.images[kept], dtype=torch.float32) / 8 - 1
        self.labels = torch.tensor(digits.target[kept])
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        chosen = random.Random(index).choices(range(len(self.labels)), k=DIGITS)
        return (torch.cat([self.images[i] for i in chosen], dim=1), self.labels[chosen]), 0


def job(lr: float = 2e-3, width: int = 64, batch: int = 128, steps: int = 200) -> oc.Job:
    return oc.Job(
        model=lambda: CLIP(width),
        loss=oc.loss.clip(),
        data=lambda: Numbers(train=True, size=20_000),
        optimizer=oc.AdamW(lr=lr, groups={"log_scale": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=batch,
        steps=steps,
        evaluate=oc.Evaluate(lambda: Numbers(train=False, size=1000), every=100),
    )
