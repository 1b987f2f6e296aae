"""The GPT example with tensor trains instead of the matrices of its feed-forward layers, for `tensor_train.py`."""

import sys
from dataclasses import replace
from pathlib import Path

from torch import nn

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import gpt


def with_tensor_trains(model: nn.Module, rank: int) -> nn.Module:
    """Give each feed-forward layer a tensor train of its own; rank 0 changes nothing."""
    for block in model.blocks if rank else ():
        for index in (0, 2):
            old = block.mlp[index]
            block.mlp[index] = oc.nn.TTLinear(old.in_features, old.out_features, rank)
    return model


def job(
    rank: int = 16, width: int = 128, depth: int = 2, context: int = 64, batch: int = 32, steps: int = 300
) -> oc.Job:
    dense = gpt.job(width=width, depth=depth, context=context, batch=batch, steps=steps)
    return replace(dense, model=lambda: with_tensor_trains(dense.model(), rank))
