"""The update of parameters that are stored as rows: what `torch.optim` computes for SGD, Adam and AdamW.

Its own classes are not used here, because the first step of one makes a process import torch's compiler, which takes
two seconds and 100 MB; a test compares the results.
"""

from torch import Tensor

from onecurve.job.row_optimizer import TorchOptimizer


def updated(optimizer: TorchOptimizer, values: Tensor, width: int, gradients: Tensor, lr: float) -> Tensor:
    """Return rows with their states after an update."""
    settings, values = optimizer.settings, values.clone()
    rows, *states = (part for part in values.split(width, dim=1))  # type: ignore[no-untyped-call]
    decay = settings.get("weight_decay", 0.0)
    if optimizer.kind == "AdamW":
        rows *= 1 - lr * decay
    elif decay:
        gradients = gradients + decay * rows
    if optimizer.kind == "SGD":
        _take_sgd_step(rows, states, gradients, lr, settings.get("momentum", 0.0), settings.get("nesterov", False))
    else:
        _take_adam_step(rows, states, gradients, lr, settings["betas"], settings["eps"])
    return values


def _take_sgd_step(
    rows: Tensor, states: list[Tensor], gradients: Tensor, lr: float, momentum: float, nesterov: bool
) -> None:
    if momentum:
        (buffer,) = states
        buffer.mul_(momentum).add_(gradients)
        gradients = gradients + momentum * buffer if nesterov else buffer
    rows.add_(gradients, alpha=-lr)


def _take_adam_step(
    rows: Tensor, states: list[Tensor], gradients: Tensor, lr: float, betas: tuple[float, float], eps: float
) -> None:
    first, second, updates = states
    updates += 1
    corrections = [1 - beta ** updates.double() for beta in betas]
    first.lerp_(gradients, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradients, gradients, value=1 - betas[1])
    denominator = (second.sqrt() / corrections[1].sqrt().to(rows)).add_(eps)
    rows.sub_(first / denominator * (lr / corrections[0]).to(rows))
