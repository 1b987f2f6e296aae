"""Jobs that are composed of idioms at random: `composed:seed17` is a function of the seed 17.

A model is made of layers that each have an idiom, a loss has one of several forms, and an optimizer function groups the
parameters in one of several ways. All idioms are such that each plan computes the same, or refuses the job.
"""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from common import Block, Case, Cases, adamw, deterministic
from state import Reversed
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import onecurve as oc

Optimize = Callable[[object], torch.optim.Optimizer]


class Composed(Cases):
    """Makes a case when it is asked for by its name; there is no list of all."""

    def __missing__(self, name: str) -> Case:
        self[name] = _composed(name, random.Random(name))
        return self[name]


class Hooked(Block):
    def __init__(self) -> None:
        super().__init__()
        self.up.weight.register_hook(lambda gradient: gradient * 0.5)


class Marked(Block):
    def __init__(self) -> None:
        super().__init__()
        self.down.weight._no_weight_decay = True


class Frozen(Block):
    def __init__(self) -> None:
        super().__init__()
        self.up.requires_grad_(False)


class Scaled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * (super().forward(x) - x)


class Gain(nn.Parameter):
    """A parameter by whose class forward decides."""


class Subclassed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gain = Gain(torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.gain if isinstance(self.gain, Gain) else 0)


class Recomputed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x) + 1
        output[..., 0] *= 0.5
        return output.tanh_()


class Adversarial(Block):
    def forward(self, x: Tensor) -> Tensor:
        return Reversed.apply(super().forward(x), 0.5)


class WeightNormed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.utils.parametrizations.weight_norm(self.up)


class Tied(Block):
    """The second matrix is the transposed first one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.up(x)) @ self.up.weight + self.down.bias


class Buffered(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.full((8,), 0.25), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.shift)


class WithHook(Block):
    def __init__(self) -> None:
        super().__init__()
        self.down.register_forward_hook(lambda _module, _inputs, output: output * 0.5)


LAYERS = [
    Block,
    Hooked,
    Marked,
    Frozen,
    Scaled,
    Subclassed,
    Recomputed,
    InPlace,
    Adversarial,
    WeightNormed,
    Tied,
    Buffered,
    WithHook,
]


class Stack(nn.Module):
    def __init__(self, kinds: list[type[Block]]) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(kind() for kind in kinds)
        deterministic(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _smoothed(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, label_smoothing=0.125)


def _weighted(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, weight=torch.tensor([0.5, 1.0, 2.0]).to(output.dtype))


def _per_sample(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none") + 0.125 * output.square().mean(1)


def _mean_of_samples(output: Tensor, target: Tensor) -> Tensor:
    return _per_sample(output, target).mean()


LOSSES = [
    (F.cross_entropy, F.cross_entropy),
    (_smoothed, _smoothed),
    (_weighted, _weighted),
    (_per_sample, _mean_of_samples),
]


def _by_attribute(named: object) -> torch.optim.Optimizer:
    groups = [
        {"params": [p], "weight_decay": 0.0 if getattr(p, "_no_weight_decay", False) else 0.5}
        for _, p in named
        if p.requires_grad
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def _by_depth(named: object) -> torch.optim.Optimizer:
    trained = [p for _, p in named if p.requires_grad]
    return torch.optim.SGD([{"params": [p], "lr": 0.5 * 0.9375**place} for place, p in enumerate(trained)], lr=0.5)


def _by_dimension(named: object) -> torch.optim.Optimizer:
    trained = [p for _, p in named if p.requires_grad]
    groups = [{"params": [p for p in trained if (p.ndim > 1) is matrix]} for matrix in (True, False)]
    groups[0]["weight_decay"] = 0.5
    return torch.optim.AdamW(groups, lr=0.01)


OPTIMIZERS: list[Optimize] = [_by_attribute, _by_depth, _by_dimension]


def _composed(name: str, draw: random.Random) -> Case:
    kinds = draw.choices(LAYERS, k=draw.choice([2, 3, 4]))
    loss, mean_loss = draw.choice(LOSSES)
    options = draw.choice([{}, {"clip": 0.0625}, {"schedule": lambda step, steps: 1 - step / steps / 2}])
    optimize = draw.choice(OPTIMIZERS)
    fields = {"optimizer": optimize, "torch_optimizer": lambda model: optimize(model.named_parameters())}
    if draw.random() < 0.25:
        fields = {"optimizer": oc.AdamW(lr=0.01), "torch_optimizer": adamw}
    return Case(
        name=name,
        source="composed: " + ", ".join(kind.__name__ for kind in kinds),
        model=lambda: Stack(kinds),
        loss=loss,
        mean_loss=mean_loss,
        options=options,
        built_in_double=True,
        refused={
            "tensor": "cannot|nothing in this model can be split",
            "pipeline": "cannot be split into pipeline stages",
        },
        **fields,
    )


CASES = Composed()


def job(case: str) -> oc.Job:
    return CASES[case].job()
