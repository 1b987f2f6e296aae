"""The reference: one device, plain PyTorch, the loop a newcomer would write. What the split job is held against."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Measure = Callable[[nn.Module, Any], tuple[Tensor, Tensor | float]]
"""The model and a micro-batch → the loss as a sum and its count."""

Watch = Callable[[int, float], None]
"""Called after each step with its number and loss; the module then holds weights and gradients of that step."""


def train_on_one_device(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    rate: Callable[[int], float],
    clip: float | None,
    steps: Iterable[Sequence[Sequence[Any]]],
    measure: Measure,
    watch: Watch,
) -> None:
    """Train on `steps`, each a list of rounds, each a list of micro-batches.

    A round has one micro-batch, except where batch norm takes each rank's own statistics: then it has one per rank, all
    seeing the same running statistics, which become the average of what they leave.
    """
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    base = [group["lr"] for group in optimizer.param_groups]
    for step, rounds in enumerate(steps):
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr * rate(step)
        optimizer.zero_grad()
        total, count = 0.0, 0.0
        for micro_batches in rounds:
            for loss_sum, loss_count in _round(module, micro_batches, measure):
                total, count = total + loss_sum, count + loss_count
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= count
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        watch(step, total / count)


def _round(module: nn.Module, micro_batches: Sequence[Any], measure: Measure) -> list[tuple[float, float]]:
    before = [buffer.clone() for buffer in module.buffers()]
    left: list[list[Tensor]] = []
    sums = []
    for micro in micro_batches:
        for buffer, start in zip(module.buffers(), before, strict=True):
            buffer.copy_(start)
        loss, count = measure(module, micro)
        loss.backward()  # type: ignore[no-untyped-call]
        sums.append((loss.item(), float(count)))
        left.append([buffer.clone() for buffer in module.buffers()])
    for buffer, *values in zip(module.buffers(), *left, strict=True):
        if buffer.is_floating_point():
            buffer.copy_(torch.stack(values).mean(0))
    return sums
