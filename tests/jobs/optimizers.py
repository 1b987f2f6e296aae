"""A job with an optimizer that needs more of a parameter than a rank holds. `fault`: Muon works on shards."""

import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.train.full_matrices import FullMatrices


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return x, x.sum()[None]


class Model(nn.Sequential):
    """Matrices higher than wide and wider than high, one with a single row, and a convolution."""

    def __init__(self) -> None:
        block = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
        convolution = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 3, padding=1), nn.Flatten())
        super().__init__(nn.Linear(6, 8), nn.Tanh(), block, convolution, nn.Linear(12, 8), nn.Linear(8, 1))


def job(kind: str = "muon", fault: bool = False, steps: int = 20) -> oc.Job:
    if fault:
        FullMatrices.compute = lambda _, __, values, compute: [compute(value) for value in values]  # type: ignore[method-assign]
    optimizers = {
        "muon": oc.Muon(lr=0.02, adam="5.*", adam_lr=0.01),
        "adafactor": oc.Adafactor(lr=0.05, weight_decay=0.1),
    }
    return oc.Job(
        model=Model,
        loss=oc.loss.mse,
        data=Points,
        optimizer=optimizers[kind],
        clip=1.0,
        global_batch=8,
        steps=steps,
        save=oc.Save(every=10),
    )
