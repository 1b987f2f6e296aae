"""A job with averages of its weights. `fault`: the second rank does not average."""

import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.train.averages import Averages


class Points:
    def __init__(self) -> None:
        self.x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.x[index].sum()[None]


class ForgetfulAverages(Averages):
    def update(self, skipped: Tensor | bool) -> None:
        super().update(skipped or (torch.distributed.is_initialized() and torch.distributed.get_rank() == 1))


def job(fault: bool = False, ema: float = 0.9, steps: int = 20) -> oc.Job:
    if fault:
        import onecurve.train.trainer as trainer

        trainer.Averages = ForgetfulAverages  # type: ignore[misc]
    return oc.Job(
        model=lambda: nn.Sequential(
            nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)
        ),
        loss=oc.loss.mse,
        data=Points,
        optimizer=oc.AdamW(lr=0.05),
        global_batch=8,
        steps=steps,
        ema=ema,
        evaluate=oc.Evaluate(Points, every=5),
    )
