"""LAMB and LARS: optimizers that scale each parameter's update by norms of the full parameter.

On a sharded plan a rank has only a part of each parameter. The optimizers therefore work on local tensors and call
`reduce_squares`, which sums the ranks' partial sums of squares. On one device it returns its argument. The norms stay
on the device, so that the host does not wait for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SquaresReducer = Callable[[list[Tensor], Tensor], Tensor]
"""A function (local parameters, their sums of squares as columns) → the sums of squares of the full parameters."""


class LayerWise(torch.optim.Optimizer):
    """Base class of LAMB and LARS: computes the norms of all parameters with one reduction."""

    reduce_squares: SquaresReducer

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.reduce_squares = lambda _, squares: squares

    def norms(self, parameters: list[Tensor], others: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return two vectors of L2 norms: of the full parameters, and of the full tensors of `others`.

        `others` has one tensor per parameter, sharded in the same way: its gradient or its update.
        """
        local_squares = [
            torch.stack(torch._foreach_norm(tensors)).double().square() for tensors in (parameters, others)
        ]
        parameter_norms, other_norms = self.reduce_squares(parameters, torch.stack(local_squares)).sqrt()
        return parameter_norms, other_norms

    def parameters_with_gradient(self) -> list[tuple[dict[str, Any], Tensor]]:
        """Pairs (parameter group, parameter) of the parameters that have a gradient."""
        return [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]


class LAMB(LayerWise):
    """Adam with each parameter's update scaled to the norm of the parameter (You et al. 2020, arXiv:1904.00962)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapt: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        pairs = self.parameters_with_gradient()
        if not pairs:
            return
        updates = [self._update(group, parameter) for group, parameter in pairs]
        ratios = trust(*self.norms([p for _, p in pairs], updates))
        for (group, parameter), update, ratio in zip(pairs, updates, ratios, strict=True):
            parameter.sub_(update.mul_(ratio) if group["adapt"] else update, alpha=group["lr"])

    def _update(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        direction = adam_direction(self.state[parameter], parameter, group["betas"], group["eps"])
        return direction.add_(parameter, alpha=group["weight_decay"])


def adam_direction(state: dict[str, Any], parameter: Tensor, betas: tuple[float, float], eps: float) -> Tensor:
    """Adam's update of a parameter without learning rate and weight decay; advances its state."""
    gradient = parameter.grad
    assert gradient is not None
    if "exp_avg" not in state:
        state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
    state["step"] += 1
    beta1, beta2 = betas
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    mean: Tensor = state["exp_avg"] / (1 - beta1 ** state["step"])
    square = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
    return mean.div_(square.sqrt_().add_(eps))


class LARS(LayerWise):
    """SGD with momentum and a learning rate per parameter, scaled by |parameter| / |gradient| (You et al. 2017,
    arXiv:1708.03888)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        pairs = self.parameters_with_gradient()
        if not pairs:
            return
        gradients = [p.grad for _, p in pairs if p.grad is not None]
        norms = self.norms([p for _, p in pairs], gradients)
        for (group, parameter), gradient, w, g in zip(pairs, gradients, *norms, strict=True):
            decay = group["weight_decay"]
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            change = gradient.add(parameter, alpha=decay)
            if group["adapt"]:
                change.mul_(torch.where((w > 0) & (g > 0), group["trust"] * w / (g + decay * w), 1.0))
            velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(change, alpha=group["lr"])
            parameter.sub_(velocity)


def trust(weight_norms: Tensor, update_norms: Tensor) -> Tensor:
    """The trust ratio |weight| / |update|, or 1 where either norm is zero."""
    return torch.where((weight_norms > 0) & (update_norms > 0), weight_norms / update_norms, 1.0)
