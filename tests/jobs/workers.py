"""A small model without tables, for workers that compute different steps at the same time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Points:
    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.tensor([float(index % 7), float(index % 11)]) / 10
        return x, x.sum()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output.squeeze(1), target, reduction="none")


def job(
    steps: int = 20,
    params: str = "none",
    mode: str = "sync",
    workers: int = 1,
    norm: str = "layer",
    every: int = 10,
    fails_at: int = -1,
    nan_at: int = -1,
) -> oc.Job:
    def model() -> nn.Module:
        between = nn.BatchNorm1d(16) if norm == "batch" else nn.LayerNorm(16)
        return nn.Sequential(nn.Linear(2, 16), between, nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))

    class Failing(Points):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            if index == fails_at:
                raise ValueError(f"sample {index} is broken")
            x, y = super().__getitem__(index)
            return x, y * torch.nan if index == nan_at else y

    return oc.Job(
        model=model,
        loss=loss,
        data=Failing,
        optimizer=oc.AdamW(lr=0.01, groups={"*.bias": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=5),
        clip=0.5,
        global_batch=16,
        steps=steps,
        save=oc.Save(every=every),
        evaluate=oc.Evaluate(Points, every=10),
        params=oc.Params(params, mode=mode, workers=workers),
    )
