"""LAMB and LARS: optimizers that look at the norms of whole parameters, also where a rank holds a part of each.

They work on local tensors and ask for one thing: `whole`, which turns this rank's sums of squares, one column per
parameter, into those of the whole parameters. On one device that is what it was given.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WholeSquares = Callable[[list[Tensor], Tensor], Tensor]


class LayerWise(torch.optim.Optimizer):
    """What the two share: norms of all parameters in one reduction."""

    whole: WholeSquares

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.whole = lambda _, squares: squares

    def norms(self, parameters: list[Tensor], others: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The norms of the whole parameters, and of the wholes of what belongs to them, as vectors."""
        both = [torch.stack(torch._foreach_norm(tensors)).double().square() for tensors in (parameters, others)]
        weights, rest = self.whole(parameters, torch.stack(both)).sqrt()
        return weights, rest

    def trained(self) -> list[tuple[dict[str, Any], Tensor]]:
        return [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]


class LAMB(LayerWise):
    """Adam whose update of each parameter is scaled to the parameter's norm (You et al. 2020, arXiv:1904.00962)."""

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
        trained = self.trained()
        if not trained:
            return
        updates = [self._update(group, parameter) for group, parameter in trained]
        ratios = trust(*self.norms([p for _, p in trained], updates))
        for (group, parameter), update, ratio in zip(trained, updates, ratios.tolist(), strict=True):
            parameter.sub_(update, alpha=group["lr"] * (ratio if group["adapt"] else 1.0))

    def _update(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        mean = state["exp_avg"] / (1 - beta1 ** state["step"])
        square = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
        update: Tensor = mean.div_(square.sqrt_().add_(group["eps"])).add_(parameter, alpha=group["weight_decay"])
        return update


class LARS(LayerWise):
    """SGD with momentum whose rate for each parameter is scaled by its norm over its gradient's (You et al. 2017,
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
        trained = self.trained()
        if not trained:
            return
        gradients = [p.grad for _, p in trained if p.grad is not None]
        weights, slopes = (vector.tolist() for vector in self.norms([p for _, p in trained], gradients))
        for (group, parameter), gradient, w, g in zip(trained, gradients, weights, slopes, strict=True):
            decay, rate = group["weight_decay"], group["lr"]
            if group["adapt"] and w > 0 and g > 0:
                rate *= group["trust"] * w / (g + decay * w)
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            velocity = state["momentum_buffer"].mul_(group["momentum"])
            velocity.add_(gradient, alpha=rate).add_(parameter, alpha=rate * decay)
            parameter.sub_(velocity)


def trust(weights: Tensor, updates: Tensor) -> Tensor:
    """|w| / |u|, or 1 where either is zero."""
    return torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)
