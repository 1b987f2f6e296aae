"""Training and evaluation data are parts of one random split, as tutorials write it: without a generator."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, random_split

import onecurve as oc


class Waves(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.sin(torch.arange(6) * (0.7 + 0.1 * index) + index), index * 7 % 3


def job(steps: int = 8, parts: str = "48,16", evaluation_parts: str = "48,16") -> oc.Job:
    """`parts`: how the training data is split off; `evaluation_parts`: how the evaluation data is."""

    def split(sizes: str, number: int) -> Dataset:
        return random_split(Waves(), [int(size) for size in sizes.split(",")])[number]

    return oc.Job(
        model=lambda: nn.Linear(6, 3),
        data=lambda: split(parts, 0),
        loss=oc.loss.cross_entropy,
        optimizer=oc.AdamW(lr=0.05),
        global_batch=8,
        steps=steps,
        workers=0,
        evaluate=oc.Evaluate(lambda: split(evaluation_parts, 1), every=4),
        schedule=oc.constant(),
        save=oc.Save(every=4),
    )
