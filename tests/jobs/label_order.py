"""Class numbers come from the order of a set, or of the files in a folder, as people write it."""

import os

import torch
from torch import Tensor, nn

import onecurve as oc

NAMES = [f"class-{number}" for number in range(7)]


class Labelled:
    def __init__(self, folder: str) -> None:
        listed = sorted(os.listdir(folder), reverse="REVERSE" in os.environ) if folder else ()
        names = listed or set(NAMES)
        self.classes = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.sin(torch.arange(6) * (0.7 + 0.1 * index) + index), self.classes[NAMES[index % 7]]


def job(steps: int = 8, folder: str = "") -> oc.Job:
    """`folder`: has a file per class; empty to number the classes by the order of a set.

    A file system lists a folder in any order: with REVERSE in the environment, in the opposite one.
    """
    return oc.Job(
        model=lambda: nn.Linear(6, 7),
        data=lambda: Labelled(folder),
        loss=oc.loss.cross_entropy,
        optimizer=oc.AdamW(lr=0.05),
        global_batch=8,
        steps=steps,
        workers=0,
        schedule=oc.constant(),
        save=oc.Save(every=4),
    )
