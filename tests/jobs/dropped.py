"""The GPT example with dropout between the blocks and inside the layers that the tensor axis splits."""

import sys
from pathlib import Path

from torch import Tensor, nn

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import gpt


class DropoutBlock(gpt.Block):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.mlp.insert(2, nn.Dropout(0.3))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(super().forward(x))


def build() -> nn.Module:
    model = gpt.GPT(16, 1, heads=4, context=32)
    model.blocks = nn.ModuleList(DropoutBlock(16, 4) for _ in range(2))
    return model


def job() -> oc.Job:
    return oc.Job(
        model=build,
        loss=oc.loss.next_token,
        data=lambda: oc.data.jsonl(f"{gpt.corpus(32)}/unseen").map(gpt.tokens),
        collate=gpt.collate,
        optimizer=oc.AdamW(lr=1e-3),
        global_batch=8,
        steps=6,
    )
