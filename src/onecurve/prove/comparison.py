"""Compares a float64 run with the reference: two tensors a and b are equal if max|a − b| ≤ limit · scale.

The limit is 1e-9, or more for a model that amplifies rounding errors: a multiple of the distance by which a one-device
run moves if its weights are perturbed by 1e-15. It is never so large that a wrong gradient could pass. A single
perturbed run may happen to leave a weight in place, so more of them are trained before a difference counts as an error.

The scale of a weight or buffer b is max(max|b|, lr · steps), because a weight whose true gradient is zero moves by
rounding errors alone. For the same reason the scale of a gradient is the largest element of all gradients.

The reference's tensors are stored in a folder, one safetensors file per step, so that each rank reads only the elements
that it holds itself.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from onecurve.device.local_tensor import LocalTensor, local_tensor_of

LIMIT = 1e-9
"""Largest difference, as a fraction of a tensor's scale, that counts as equal for a well-conditioned model."""
_LARGEST_LIMIT = 1e-6
_LIMIT_OVER_SPREAD = 30
_NONE: Mapping[str, Tensor] = {}
_KINDS = ("loss", "gradient", "value")
"""What is compared, causes before effects: a wrong loss causes wrong gradients, which cause wrong weights."""


@dataclass(frozen=True)
class Difference:
    """The difference between one tensor and the reference after one step."""

    step: int
    """Number of the step, from 0."""
    tensor: str
    """`loss`, `gradient NAME` or `value NAME` (a weight or buffer)."""
    size: float
    """The largest absolute difference, as a fraction of the tensor's scale."""
    limit: float = LIMIT

    @property
    def holds(self) -> bool:
        """True if the difference is within the limit; False for NaN."""
        return self.size <= self.limit

    @property
    def rank(self) -> float:
        """Sorts differences, the worst one for its limit first. NaN counts as the largest."""
        return -math.inf if math.isnan(self.size) else -self.size / self.limit


def average_name(name: str) -> str:
    """What the average of a weight is called."""
    return f"average of {name}"


def limit_of(spread: float) -> float:
    """Return the limit for a model whose perturbed run differs by `spread` from the reference."""
    return min(max(LIMIT, _LIMIT_OVER_SPREAD * spread), _LARGEST_LIMIT)


def store_step(module: nn.Module, step: int, loss: float, folder: Path, averages: Mapping[str, Tensor] = _NONE) -> None:
    """Store the reference's loss, weights, buffers and gradients after a step, and the averages of weights."""
    state = [*_parameters_and_buffers(module), *averages.items()]
    values = {f"value {name}": tensor.detach() for name, tensor in state}
    gradients = {
        f"gradient {name}": parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    largest = {name: _max_abs(tensor) for name, tensor in (values | gradients).items()}
    tensors = {name: _storable(tensor) for name, tensor in (values | gradients).items()}
    metadata = {"loss": json.dumps(loss), "largest": json.dumps(largest)}
    save_file(tensors, _file(folder, step), metadata)


@dataclass(frozen=True)
class Limits:
    """The largest differences that count as equal after a step."""

    overall: float = LIMIT
    """For the loss and for gradients, and for every weight and buffer."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Larger limits of single weights. A gradient that is zero but for rounding moves a weight by the learning rate
    under Adam, in a direction that rounding decides; its gradient is still compared."""

    def of(self, tensor: str) -> float:
        return max(self.overall, self.values.get(tensor, 0.0))


def limits_of(spreads: Mapping[str, float]) -> Limits:
    """Return the limits for a model of which a perturbed run differs from the reference by so much, by tensor."""
    causes = [spread for name, spread in spreads.items() if not name.startswith("value ")]
    values = {name: _LIMIT_OVER_SPREAD * spread for name, spread in spreads.items() if name.startswith("value ")}
    overall = limit_of(max(causes, default=0.0))
    return Limits(overall, {name: limit for name, limit in values.items() if limit > overall})


def rounding_may_explain(tensor: str, size: float) -> bool:
    """Return whether a difference could be within the limit if further perturbed runs moved this tensor further."""
    return size <= _LARGEST_LIMIT or (tensor.startswith("value ") and math.isfinite(size))


def compare_module(
    module: nn.Module, step: int, loss: float, lr: float, folder: Path, averages: Mapping[str, Tensor] = _NONE
) -> dict[str, float]:
    """Return the differences between another one-device run and the stored step, by tensor."""
    tensors = [*_parameters_and_buffers(module), *averages.items()]
    state = [local_tensor_of(name, tensor, True) for name, tensor in tensors]
    trainable = [tensor for tensor in state if tensor.local.requires_grad]
    return {each.tensor: each.size for each in compare_step(state, trainable, step, loss, lr, folder)}


def compare_step(
    state: Sequence[LocalTensor],
    trainable: Sequence[LocalTensor],
    step: int,
    loss: float,
    lr: float,
    folder: Path,
) -> list[Difference]:
    """Compare this rank's loss, gradients (of `trainable`), weights and buffers (`state`) with the stored step."""
    with safe_open(_file(folder, step), "pt") as reference:
        metadata = reference.metadata()
        largest = json.loads(metadata["largest"])
        expected = json.loads(metadata["loss"])
        gradient_scale = max((size for name, size in largest.items() if name.startswith("gradient ")), default=0.0) or 1
        differences = [Difference(step, "loss", abs(loss - expected) / max(abs(expected), 1e-300))]
        for tensor in trainable:
            name, gradient = f"gradient {tensor.name}", tensor.local.grad
            if (gradient is not None) != (name in largest):
                differences.append(Difference(step, name, math.inf))
            elif gradient is not None:
                distance = _distance(tensor, gradient, reference, name)
                differences.append(Difference(step, name, distance / gradient_scale))
        for tensor in state:
            name = f"value {tensor.name}"
            scale = max(largest[name], lr * (step + 1)) or 1.0
            distance = _distance(tensor, tensor.local.detach(), reference, name)
            differences.append(Difference(step, name, distance / scale))
    return differences


def judge(differences: Iterable[Difference], limits: Sequence[Limits]) -> list[Difference]:
    """Return the differences with the limits of their steps."""
    return [replace(each, limit=limits[each.step].of(each.tensor)) for each in differences]


def first_or_worst(differences: Iterable[Difference]) -> Difference:
    """Return the difference to report.

    If any exceeds the limit: of the first step with such a difference, the one closest to the cause (loss, then
    gradients, then values), and of several the largest for its limit. Otherwise the largest of all for its limit.
    """
    ordered = sorted(differences, key=lambda difference: difference.rank)
    return min((each for each in ordered if not each.holds), key=_step_and_kind, default=ordered[0])


def _step_and_kind(difference: Difference) -> tuple[int, int]:
    return difference.step, _KINDS.index(difference.tensor.split()[0])


def _distance(tensor: LocalTensor, local: Tensor, reference: Any, name: str) -> float:
    """Largest absolute difference between this rank's elements and the reference's."""
    if local.numel() == 0:
        return 0.0
    local = local.cpu()
    if not tensor.shape:
        return float((_as_float64(local) - _as_float64(reference.get_tensor(name))).abs().max())
    full = reference.get_slice(name)
    distances = [(_as_float64(local[box.local]) - _as_float64(full[box.full])).abs().max() for box in tensor.boxes]
    return float(torch.stack(distances).max()) if distances else 0.0  # unlike Python's max, torch's passes NaN on


def _parameters_and_buffers(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _max_abs(tensor: Tensor) -> float:
    return float(_as_float64(tensor.detach()).abs().max()) if tensor.numel() else 0.0


def _storable(tensor: Tensor) -> Tensor:
    """Copy a tensor for safetensors, which cannot store complex128 or tensors that share memory."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).cpu().contiguous().clone()


def _as_float64(tensor: Tensor) -> Tensor:
    """Convert any dtype to float64; a complex number becomes two real ones."""
    return torch.view_as_real(tensor).double() if tensor.is_complex() else tensor.double()


def _file(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"step-{step}.safetensors"
