"""A wrong loss: it passes a mean to Weighted as the sum, so that a half batch has the same sum as the full batch."""

import torch
from torch import nn

import onecurve as oc


def job() -> oc.Job:
    points = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    return oc.Job(
        model=lambda: nn.Linear(3, 1),
        loss=lambda output, target: oc.Weighted((output - target).square().mean(), len(target)),
        data=lambda: [(x, x.sum()[None]) for x in points],
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=4,
    )
