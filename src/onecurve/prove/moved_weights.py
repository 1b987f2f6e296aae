"""Moves the weights before a compared step: some faults cannot be seen in the first update from the initial weights.

Behind a zero-initialized head, or behind LoRA's B = 0, gradients are zero; a momentum encoder is still equal to the
encoder that it follows. So the last step that is compared begins with weights that are moved by a small perturbation,
a function of a parameter's name, its values in the reference and the seed. The reference stores it, and each rank adds
the elements that it holds.

Elements grow by up to 2 %, and small ones by up to 2 % of a usual initial weight. None changes its sign, and one that
is zero stays zero, because this may be its purpose: padding, a mask, a variance. Only a parameter whose elements are
all zero is moved in both directions.
"""

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from onecurve.describe.seed import mix
from onecurve.device.local_tensor import LocalTensor

_SIZE = 0.02
_FILE = "moved.safetensors"


def store_moves(module: nn.Module, seed: int, folder: Path, without: str) -> None:
    """Choose how the parameters of the reference are moved, except those of its child `without`."""
    padding = {
        id(child.weight): child.padding_idx
        for child in module.modules()
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.padding_idx is not None
    }
    moves = {}
    for name, parameter in module.named_parameters():
        if name.startswith(f"{without}.") or not (parameter.is_floating_point() or parameter.is_complex()):
            continue
        moves[name] = _move(_real(parameter.detach()).cpu().double(), mix(seed, _number(name)))
        if id(parameter) in padding:
            moves[name][padding[id(parameter)]] = 0
    save_file(moves, _file(folder))


@torch.no_grad()
def apply_moves(tensors: Iterable[LocalTensor], folder: Path) -> None:
    """Move this rank's elements of parameters. Their gathered copies, if there are any, become stale."""
    with safe_open(_file(folder), "pt") as moves:
        moved = set(moves.keys())
        for tensor in tensors:
            if tensor.name not in moved or not tensor.local.numel():
                continue
            local = _real(tensor.local.detach())
            if not tensor.shape:
                local += moves.get_tensor(tensor.name).to(local)
                continue
            full = moves.get_slice(tensor.name)
            for box in tensor.boxes:
                if box.elements:
                    local[box.local] += full[box.full].to(local)


def _move(values: Tensor, seed: int) -> Tensor:
    usual = 1 / math.sqrt(max(1, values[0].numel())) if values.dim() > 1 and len(values) else 1.0
    # NumPy's: while plans are compared, what torch draws is replaced by constants, which would move nothing.
    noise = torch.from_numpy(np.random.default_rng(seed).random(tuple(values.shape))).to(values.dtype)
    if not values.any():
        return _SIZE * usual * (2 * noise - 1)
    return _SIZE * noise * values.abs().clamp(min=usual) * values.sign()


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def _real(tensor: Tensor) -> Tensor:
    """A view of the same memory in which a complex number is two real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _file(folder: Path) -> Path:
    return folder / _FILE
