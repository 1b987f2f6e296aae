"""What equal means: per tensor, max|a−b| ≤ 1e-9 · scale, in float64.

The scale of a weight or buffer b is max(max|b|, lr · steps), since a weight whose true gradient is zero moves by
rounding alone; that of a gradient is the largest element of the whole gradient, for the same reason.

The reference's tensors lie in a folder, one safetensors file per step, so that each rank reads only the rows it holds.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from onecurve.device.local_tensor import LocalTensor

LIMIT = 1e-9


@dataclass(frozen=True)
class Difference:
    """How far one tensor was from the reference after one step, as a fraction of its scale."""

    step: int
    tensor: str
    size: float

    @property
    def holds(self) -> bool:
        return self.size <= LIMIT  # not a number never does


def keep_step(module: nn.Module, step: int, loss: float, folder: Path) -> None:
    """Write what the reference holds after a step."""
    weights = {f"value {name}": tensor.detach() for name, tensor in _named(module)}
    gradients = {
        f"gradient {name}": parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    largest = {name: _largest(tensor) for name, tensor in (weights | gradients).items()}
    tensors = {name: _storable(tensor) for name, tensor in (weights | gradients).items()}
    metadata = {"loss": json.dumps(loss), "largest": json.dumps(largest)}
    save_file(tensors, _file(folder, step), metadata)


def compare_step(
    state: Sequence[LocalTensor], trained: Sequence[LocalTensor], step: int, loss: float, lr: float, folder: Path
) -> list[Difference]:
    """Hold what this rank has after a step against the reference."""
    with safe_open(_file(folder, step), "pt") as reference:
        metadata = reference.metadata()
        largest = json.loads(metadata["largest"])
        expected = json.loads(metadata["loss"])
        steepest = max((value for name, value in largest.items() if name.startswith("gradient ")), default=0.0)
        found = [Difference(step, "loss", abs(loss - expected) / max(abs(expected), 1e-300))]
        for local_tensor in trained:
            name = f"gradient {local_tensor.name}"
            has = local_tensor.local.grad is not None
            if has != (name in largest):
                found.append(Difference(step, name, math.inf))
            elif has:
                found.append(
                    Difference(
                        step, name, _distance(local_tensor, local_tensor.local.grad, reference, name) / (steepest or 1)
                    )
                )
        for local_tensor in state:
            name = f"value {local_tensor.name}"
            scale = max(largest[name], lr * (step + 1)) or 1.0
            found.append(
                Difference(step, name, _distance(local_tensor, local_tensor.local.detach(), reference, name) / scale)
            )
    return found


def first_and_worst(found: Iterable[Difference]) -> Difference:
    """The difference to tell of: where any does not hold, of the first step; there the loss before a gradient before a
    value, as one causes the other; of several the largest. Where all hold, the largest."""
    worst = sorted(found, key=lambda each: -math.inf if math.isnan(each.size) else -each.size)
    return min((each for each in worst if not each.holds), key=_causal_place, default=worst[0])


def _causal_place(difference: Difference) -> tuple[int, int]:
    return difference.step, ("loss", "gradient", "value").index(difference.tensor.split()[0])


def _distance(local_tensor: LocalTensor, local: Tensor | None, reference: Any, name: str) -> float:
    assert local is not None
    if local.numel() == 0:
        return 0.0
    local = local.cpu()
    if not local_tensor.shape:
        return float((_wide(local) - _wide(reference.get_tensor(name))).abs().max())
    whole = reference.get_slice(name)
    distances = [(_wide(local[box.local]) - _wide(whole[box.whole])).abs().max() for box in local_tensor.boxes]
    return float(max(distances, default=0.0))


def _named(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _largest(tensor: Tensor) -> float:
    return float(_wide(tensor.detach()).abs().max()) if tensor.numel() else 0.0


def _storable(tensor: Tensor) -> Tensor:
    """safetensors knows complex numbers of single precision alone, and no memory that is shared."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).cpu().contiguous().clone()


def _wide(tensor: Tensor) -> Tensor:
    """In float64, whatever it is; a complex number as two."""
    return torch.view_as_real(tensor).double() if tensor.is_complex() else tensor.double()


def _file(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"step-{step}.safetensors"
