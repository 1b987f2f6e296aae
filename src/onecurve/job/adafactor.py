"""Adafactor: Adam's second moment, kept as sums over rows and over columns of each matrix."""

import math
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.optimizer_state import FULL_STATE
from onecurve.job.full_parameter import FullParameterOptimizer, ParameterPart

ROWS, COLUMNS = f"{FULL_STATE}row_var", f"{FULL_STATE}col_var"


class Adafactor(FullParameterOptimizer):
    """torch.optim.Adafactor for parameters of which a rank may hold a part (Shazeer and Stern 2018, arXiv:1804.04235).

    The sums over rows and columns are kept on every rank: they are small, and every rank needs most of them.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        pairs = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not pairs:
            return
        parts = [self.parts(parameter) for _, parameter in pairs]
        rows_columns = self._reduced(
            [sums for (_, parameter), part in zip(pairs, parts, strict=True) for sums in _sums(parameter, part)]
        )
        updates = []
        for (group, parameter), part in zip(pairs, parts, strict=True):
            squares = [rows_columns.pop(0) for _ in range(3 if len(part.shape) > 1 else 1)]
            updates.append(self._update(group, parameter, part, squares))
        norms = self._reduced(
            [_counted(update.square().sum(), part) for (update, _), part in zip(updates, parts, strict=True)]
        )
        for (group, parameter), part, (update, rate), norm in zip(pairs, parts, updates, norms, strict=True):
            denominator = (norm.sqrt() / (math.prod(part.shape) ** 0.5 * group["d"])).clamp(min=1.0)
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(update * (rate / denominator).to(update.dtype))

    def _update(
        self, group: dict[str, Any], parameter: Tensor, part: ParameterPart, squares: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The update before it is clipped, and its rate. `squares`: sums over the full parameter: of its own squares,
        and of the gradient's along rows and columns."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        eps1 = group["eps"][0] if group["eps"][0] is not None else torch.finfo(parameter.dtype).eps
        is_new = not state.get("step", 0)
        state["step"] = state.get("step", 0) + 1
        weight = state["step"] ** group["beta2_decay"]
        if len(part.shape) > 1:
            *_, height, width = part.shape
            means = {ROWS: squares[1] / width, COLUMNS: squares[2] / height}
        else:
            means = {"variance": gradient.square()}
        for key, mean in means.items():
            if is_new:
                state[key] = torch.zeros_like(mean, dtype=parameter.dtype)
            state[key].lerp_(mean.to(parameter.dtype), weight)
        variance = _variance(state, gradient, part, eps1) if len(part.shape) > 1 else state["variance"].clone()
        rate = min(group["lr"], 1 / state["step"] ** 0.5)
        scale = (squares[0].sqrt() / math.prod(part.shape) ** 0.5).clamp(min=group["eps"][1])
        return variance.clamp_(min=eps1**2).rsqrt_().mul_(gradient), rate * scale

    def _reduced(self, sums: list[Tensor]) -> list[Tensor]:
        """Sums over all ranks, with one reduction."""
        flat = self.reduce(torch.cat([each.reshape(-1).double() for each in sums]))
        parts = torch.split(flat, [each.numel() for each in sums])
        return [part.view(each.shape) for part, each in zip(parts, sums, strict=True)]


def _counted(value: Tensor, part: ParameterPart) -> Tensor:
    return value if part.counts else torch.zeros_like(value)


def _sums(parameter: Tensor, part: ParameterPart) -> list[Tensor]:
    """What this rank adds to the sum of the parameter's squares, and to those of the gradient's rows and columns."""
    own = [_counted(parameter.square().sum(), part)]
    if len(part.shape) < 2:
        return own
    assert parameter.grad is not None
    squares = parameter.grad.double().square()
    rows = squares.new_zeros(part.shape[:-1])
    columns = squares.new_zeros(*part.shape[:-2], part.shape[-1])
    for full, local in part.boxes if part.counts else ():
        rows[full[:-1]] += squares[local].sum(-1)
        columns[(*full[:-2], full[-1])] += squares[local].sum(-2)
    return [*own, rows, columns]


def _variance(state: dict[str, Any], gradient: Tensor, part: ParameterPart, eps: float) -> Tensor:
    """The second moment of this rank's elements: the product of their row and their column."""
    rows, columns = state[ROWS], state[COLUMNS]
    rows = rows / rows.mean(-1, keepdim=True).clamp(min=eps)
    variance = torch.empty_like(gradient)
    for full, local in part.boxes:
        variance[local] = rows[full[:-1]].unsqueeze(-1) * columns[(*full[:-2], full[-1])].unsqueeze(-2)
    return variance
