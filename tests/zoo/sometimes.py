"""Parameters that some steps do not use: one head per task, or a branch taken for one rare sample."""

import torch
from common import ResidualBlock, classification, training_job
from torch import nn


class TaskHeads(nn.Module):
    """Each sample goes to the head of its task: in a small micro-batch some heads get no sample."""

    def __init__(self, tasks=4):
        super().__init__()
        self.stem = nn.Linear(12, 16)
        self.blocks = nn.ModuleList(ResidualBlock(16) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(16, 8) for _ in range(tasks))

    def forward(self, x, task):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        output = x.new_zeros(len(x), 8)
        for number in task.unique().tolist():
            here = task == number
            output[here] = self.heads[number](x[here])
        return output


class RareBranch(nn.Module):
    """A micro-batch without a flagged sample skips the layer `rare`."""

    def __init__(self):
        super().__init__()
        self.stem, self.head, self.rare = nn.Linear(12, 16), nn.Linear(16, 8), nn.Linear(16, 16)
        self.blocks = nn.ModuleList(ResidualBlock(16) for _ in range(2))

    def forward(self, x, flag):
        x = self.stem(x)
        if bool((flag > 0).any()):
            x = x + flag[:, None] * self.rare(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def job(kind: str = "tasks", rare: int = 40):
    def task_sample(index):
        return (torch.randn(12), index % 4), index % 8

    def flag_sample(index):
        return (torch.randn(12), float(index == rare)), index % 8

    if kind == "tasks":
        return training_job(TaskHeads, task_sample, classification)
    return training_job(RareBranch, flag_sample, classification, steps=8)
