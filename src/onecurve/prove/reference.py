"""The reference that parallel plans are compared with: one device, plain PyTorch, the loop a beginner would write."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from onecurve.device.gradient_hooks import GradientHooks

_Result = TypeVar("_Result")
_NO_HOOKS: Mapping[str, GradientHooks] = {}

LossFunction = Callable[[nn.Module, Any], tuple[Tensor, Tensor | float]]
"""Takes the model and a micro-batch; returns the sum of the losses and the count to divide it by."""

JointLoss = Callable[[Sequence[Any], Sequence[Any]], tuple[Tensor, Tensor | float]]
"""Takes the outputs for all micro-batches of a step, and these; returns the sum of the losses and the count."""

StepCallback = Callable[[int, float], None]
"""Called after each step with its number and loss; the module then has the weights and gradients of that step."""


def train_on_one_device(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    lr_factor: Callable[[int], float],
    clip: float | None,
    steps: Iterable[Sequence[Sequence[Any]]],
    loss_function: LossFunction,
    after_step: StepCallback,
    left_out: Callable[[int, nn.Parameter], bool] = lambda *_: False,
    joint: tuple[Callable[[nn.Module, Any], Any], JointLoss] | None = None,
    hooks: Mapping[str, GradientHooks] = _NO_HOOKS,
) -> None:
    """Train on `steps`, each a list of rounds, each a list of micro-batches.

    `lr_factor` maps a step to the factor of the learning rate; `clip` is the maximum norm of the gradient. `left_out`:
    True for a parameter that is clipped by the norm of the others in a step. `joint`: instead of `loss_function`,
    forward and a loss that needs the outputs for all micro-batches of a step. `hooks`: gradient hooks that were taken
    off the module; they run on the gradient of the whole batch, as if it had one backward.

    A round has one micro-batch, unless batch norm uses the statistics of each rank alone: then it has one micro-batch
    per rank. All of them start from the same running statistics, which are averaged at the end of the round.
    """
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    base_rates = [group["lr"] for group in optimizer.param_groups]
    for step, rounds in enumerate(steps):
        for group, lr in zip(optimizer.param_groups, base_rates, strict=True):
            group["lr"] = lr * lr_factor(step)
        optimizer.zero_grad()
        total, count = 0.0, 0.0
        if joint is not None:
            total, count = _run_jointly(module, rounds, *joint)
        else:
            for micro_batches in rounds:
                for loss_sum, loss_count in _run_round(module, micro_batches, _with_backward(module, loss_function)):
                    total, count = total + loss_sum, count + loss_count
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= count
        _run_hooks(module, hooks)
        if clip is not None:
            counted = [each.grad for each in parameters if each.grad is not None and not left_out(step, each)]
            nn.utils.clip_grads_with_norm_(parameters, clip, nn.utils.get_total_norm(counted))
        optimizer.step()
        after_step(step, total / count)


def _run_hooks(module: nn.Module, hooks: Mapping[str, GradientHooks]) -> None:
    for name, parameter in module.named_parameters():
        if name in hooks and parameter.grad is not None:
            for hook in hooks[name].of_gradient.values():
                changed = hook(parameter.grad)
                parameter.grad = parameter.grad if changed is None else changed
            for after in hooks[name].after_accumulation.values():
                after(parameter)


def _with_backward(module: nn.Module, loss_function: LossFunction) -> Callable[[Any], tuple[float, float]]:
    """Forward and backward of a micro-batch; returns its loss sum and count."""

    def run(micro_batch: Any) -> tuple[float, float]:
        loss, count = loss_function(module, micro_batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item(), float(count)

    return run


def _run_jointly(
    module: nn.Module, rounds: Sequence[Sequence[Any]], forward: Callable[[nn.Module, Any], Any], loss: JointLoss
) -> tuple[float, float]:
    """Forward of all micro-batches of a step, and then one backward; return the loss sum and count."""
    outputs = [
        output
        for micro_batches in rounds
        for output in _run_round(module, micro_batches, lambda micro_batch: forward(module, micro_batch))
    ]
    total, count = loss(outputs, [micro_batch for micro_batches in rounds for micro_batch in micro_batches])
    total.backward()  # type: ignore[no-untyped-call]
    return total.item(), float(count)


def _run_round(module: nn.Module, micro_batches: Sequence[Any], run: Callable[[Any], _Result]) -> list[_Result]:
    """Run each micro-batch; return the results."""
    buffers_before = [buffer.clone() for buffer in module.buffers()]
    buffers_after: list[list[Tensor]] = []
    results = []
    for micro_batch in micro_batches:
        for buffer, before in zip(module.buffers(), buffers_before, strict=True):
            buffer.data.copy_(before)  # not counted as a change: a backward later on does not need it
        results.append(run(micro_batch))
        buffers_after.append([buffer.clone() for buffer in module.buffers()])
    for buffer, *values in zip(module.buffers(), *buffers_after, strict=True):
        if buffer.is_floating_point():
            buffer.data.copy_(torch.stack(values).mean(0))
    return results
