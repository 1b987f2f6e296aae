"""A job that trains in seconds, with arguments that make it slow or make it fail."""

import os
import signal
import time

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

import onecurve as oc


class Points:
    """64 points and their sums.

    `nan`, `raises`, `killed`: index of the point that is NaN, raises an error, or kills the rank from its data loader;
    -1 for none. `slow`: seconds to read a point.
    """

    def __init__(self, nan: int, raises: int, killed: int, slow: float) -> None:
        self.x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        self.raises, self.killed, self.slow = raises, killed, slow
        if nan >= 0:
            self.x[nan] = float("nan")

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.slow)
        if index == self.raises:
            raise ValueError(f"point {index} is broken")
        if index == self.killed and get_worker_info() is not None:
            os.kill(os.getppid(), signal.SIGKILL)  # the parent of a data loader process is its rank
        return self.x[index], self.x[index].sum()[None]


def job(
    nan: int = -1,
    raises: int = -1,
    killed: int = -1,
    slow: float = 0.0,
    epochs: float = 2,
    every: int = 1000,
    to: str = "",
    lr: float = 0.05,
    batch: int = 8,
    warmup: int = 0,
    better: str = "lower",
    patience: int | None = None,
) -> oc.Job:
    return oc.Job(
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        loss=oc.loss.mse,
        data=lambda: Points(nan, raises, killed, slow),
        optimizer=oc.AdamW(lr=lr),
        save=oc.Save(every=every, to=to or None),
        schedule=oc.constant(warmup),
        global_batch=batch,
        epochs=epochs,
        evaluate=oc.Evaluate(lambda: Points(-1, -1, -1, 0.0), every=10, better=better, patience=patience),
    )
