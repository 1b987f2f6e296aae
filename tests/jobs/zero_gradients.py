"""Jobs whose first update hides a fault: a head that is zero at first, and an encoder that follows another one."""

import copy

import torch
from torch import Tensor, nn

import onecurve as oc


class ZeroHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.behind, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.zeros(()))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.behind(x))) + 0 * self.unused


class ScaledPerBatch(torch.autograd.Function):
    """A gradient that is multiplied by the size of the batch: a wrong normalization, which a split shows."""

    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(_, gradient):
        return gradient * len(gradient)


class FaultyZeroHead(ZeroHead):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(ScaledPerBatch.apply(torch.tanh(self.behind(x))))


class MomentumEncoder(nn.Module):
    """BYOL, MoCo: forward moves `slow` towards `fast`, and both are the same at first."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = nn.Linear(6, 3)
        self.slow = copy.deepcopy(self.fast).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for fast, slow in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
        return self.fast(x) - 0.5 * self.slow(x)


class Shares(ZeroHead):
    """Its loss is NaN for weights that are no shares."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.sqrt(1 - self.shares)


MODELS = {"zero_head": ZeroHead, "faulty": FaultyZeroHead, "momentum": MomentumEncoder, "shares": Shares}


def job(model: str, every: int = 1000) -> oc.Job:
    samples = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return oc.Job(
        model=MODELS[model],
        loss=lambda output, target: nn.functional.cross_entropy(output, target, reduction="none"),
        data=lambda: [(sample, number % 3) for number, sample in enumerate(samples)],
        optimizer=oc.SGD(lr=0.1),
        global_batch=16,
        epochs=2,
        save=oc.Save(every=every, last=10),
    )
