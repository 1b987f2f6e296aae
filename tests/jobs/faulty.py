"""A job in which one bit of a gradient is flipped on one rank, as faulty hardware does; an audit must find it."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

import onecurve as oc
from onecurve.train import trainer

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fault:
    """Flips a bit in the backward passes of a rank, from one step on, or once."""

    step = 0
    """The step that is computed now, or before it, audited."""
    passes = 0
    """Backward passes at the faulty place since the step of the fault began."""

    def __init__(self, rank: int, step: int, only: int, bit: int, place: str) -> None:
        """`only`: flip in this pass alone, counted from 0; -1 flips in each."""
        self.rank, self.first, self.only, self.bit, self.place = rank, step, only, bit, place

    def at(self, place: str, tensor: Tensor) -> Tensor:
        return _Flip.apply(tensor, self) if place == self.place else tensor

    def flipped(self, gradient: Tensor) -> Tensor:
        rank = dist.get_rank() if dist.is_initialized() else 0
        if rank != self.rank or Fault.step < self.first:
            return gradient
        number, Fault.passes = Fault.passes, Fault.passes + 1
        if self.only not in (-1, number):
            return gradient
        changed = gradient.clone()
        words = changed.view(_INTEGERS[changed.itemsize]).view(-1)
        words[words.numel() // 2] ^= 1 << self.bit
        return changed


class _Flip(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor: Tensor, fault: Fault) -> Tensor:
        context.fault = fault
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, gradient: Tensor):
        return context.fault.flipped(gradient), None


class Block(nn.Module):
    def __init__(self, width: int, fault: Fault | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        if self.fault is not None:
            weight, x = self.fault.at("weight", weight), self.fault.at("activation", x)
        y = nn.functional.linear(self.norm(x), weight, self.linear.bias)
        return x + self.dropout(torch.tanh(y))


class Model(nn.Module):
    def __init__(self, width: int, fault: Fault) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.blocks = nn.ModuleList([Block(width, fault if number == 1 else None) for number in range(3)])
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Points:
    def __init__(self) -> None:
        self.x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.x[index].sum()[None]


def _note_steps() -> None:
    """Let faults know the step: it begins with its audit."""

    def noted(function: Callable[..., object]) -> Callable[..., object]:
        def call(self: trainer.Trainer, step: int, *arguments: object) -> object:
            if Fault.step != step:
                Fault.step, Fault.passes = step, 0
            return function(self, step, *arguments)

        return call

    for name in ("begin_audit", "step"):
        setattr(trainer.Trainer, name, noted(getattr(trainer.Trainer, name)))


def job(
    rank: int = 0,
    step: int = 1_000_000,
    only: int = -1,
    bit: int = 5,
    place: str = "weight",
    audit: int = 10,
    steps: int = 40,
    batch: int = 8,
    width: int = 16,
) -> oc.Job:
    _note_steps()
    fault = Fault(rank, step, only, bit, place)
    return oc.Job(
        model=lambda: Model(width, fault),
        loss=oc.loss.mse,
        data=Points,
        optimizer=oc.AdamW(lr=0.01),
        global_batch=batch,
        steps=steps,
        audit=audit or None,
    )
