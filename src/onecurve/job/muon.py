"""Muon: momentum whose update of each matrix is made orthogonal; AdamW for everything else."""

from typing import Any

import torch
from torch import Tensor

from onecurve.job.full_parameter import FullParameterOptimizer
from onecurve.job.layerwise import adam_direction

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration, those of torch.optim.Muon."""
_EPS = 1e-7


class Muon(FullParameterOptimizer):
    """torch.optim.Muon for matrices, and AdamW for parameters with another number of dimensions, or whose group has
    `orthogonal=False`."""

    def __init__(
        self,
        params: Any,
        lr: float = 2e-2,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        nesterov: bool = True,
        steps: int = 5,
        adam_lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        orthogonal: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov, "steps": steps}
        super().__init__(
            _divided(params, orthogonal, adam_lr),
            {**defaults, "adam_lr": adam_lr, "betas": betas, "eps": eps, "orthogonal": orthogonal},
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["orthogonal"]:
                self._step_matrices(group, parameters)
            else:
                for parameter in parameters:
                    direction = adam_direction(self.state[parameter], parameter, group["betas"], group["eps"])
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(direction, alpha=group["lr"])

    def _step_matrices(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        updates = []
        for parameter in parameters:
            gradient, state = parameter.grad, self.state[parameter]
            assert gradient is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
            updates.append(gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum)
        orthogonal = self.on_full(parameters, updates, lambda update: orthogonalized(update, group["steps"]))
        for parameter, update in zip(parameters, orthogonal, strict=True):
            rows, columns = self.parts(parameter).shape
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(update.to(parameter.dtype), alpha=group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalized(matrix: Tensor, steps: int) -> Tensor:
    """The matrix with all singular values near 1, by Newton-Schulz iterations: in bfloat16, as torch.optim.Muon does
    it, or in float64 for a matrix in float64. The result has the matrix's dtype."""
    a, b, c = _COEFFICIENTS
    x = matrix if matrix.dtype == torch.float64 else matrix.bfloat16()
    x = x.T if matrix.size(0) > matrix.size(1) else x
    x = x / x.norm().clamp(min=_EPS)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if matrix.size(0) > matrix.size(1) else x).to(matrix.dtype)


def _divided(params: Any, orthogonal: bool, adam_lr: float) -> list[dict[str, Any]]:
    """Groups of matrices, and groups of everything else with the learning rate of AdamW."""
    groups = []
    for group in params:
        settings = {key: value for key, value in group.items() if key != "params"}
        is_orthogonal = settings.get("orthogonal", orthogonal)
        matrices = [p for p in group["params"] if is_orthogonal and p.dim() == 2]
        others = [p for p in group["params"] if not (is_orthogonal and p.dim() == 2)]
        if matrices:
            groups.append({**settings, "params": matrices})
        if others:
            rate = settings.get("adam_lr", adam_lr)
            groups.append({**settings, "params": others, "orthogonal": False, "lr": rate})
    return groups
