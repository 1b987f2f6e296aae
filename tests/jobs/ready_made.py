"""A model as users bring it: pretrained weights read in the constructor, converted, compiled, with a key-value cache.

The cache is an object with views of tensors, which blocks change. One parameter of each block is complex.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor, nn

import onecurve as oc


class Cache:
    def __init__(self) -> None:
        self.entries: dict[int, Tensor] = {}


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(6, 6)
        self.phase = nn.Parameter(torch.polar(torch.ones(6), torch.rand(6)))
        self.norm = nn.Sequential(nn.LayerNorm(6))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        x = x + self.norm(self.linear(x))
        if self.number in cache.entries:  # a recomputation must see the cache as it was
            x = 2 * x
        cache.entries[self.number] = x[1:]
        return x * (self.phase * self.phase).real


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(number) for number in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        cache = Cache()
        for layer in self.layers:
            x = layer(x, cache)
        return self.head(x)


def build() -> nn.Module:
    """Load weights as a script does that fetched them: the file is gone when the constructor ends."""
    model = Model()
    weight = np.linspace(-1, 1, 36, dtype="float32").reshape(6, 6)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.safetensors")
        save_file({"layers.0.linear.weight": weight, "layers.1.linear.weight": -weight}, file)
        model.load_state_dict(load_file(file), strict=False)
    return torch.compile(model.float(), backend="aot_eager")


class Points:
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(6), torch.randn(3)


def job() -> oc.Job:
    return oc.Job(
        model=build,
        loss=oc.loss.mse,
        data=Points,
        optimizer=oc.AdamW(lr=0.01),
        clip=1.0,
        global_batch=8,
        steps=4,
        save=None,
    )
