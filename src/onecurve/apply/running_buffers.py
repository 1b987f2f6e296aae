"""Buffers that forward changes: their average over data-parallel ranks, and their values before a step.

Buffers are looked up by name at every use, because forward may register another tensor under the name.
"""

import zlib
from collections.abc import Collection, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from onecurve.device.collectives import Group, all_reduce_sum


class RunningBuffers:
    """The buffers of a module that a step changes: those named `changed`, and the running statistics of norms."""

    def __init__(self, module: nn.Module, changed: Collection[str]) -> None:
        self._module = module
        self.names = [
            name for name, _ in module.named_buffers() if name in changed or isinstance(_owner(module, name), _NormBase)
        ]
        self._saved: dict[str, Tensor] = {}

    def save(self) -> None:
        """Copy the current values."""
        self._saved = {name: buffer_of(self._module, name).clone() for name in self.names}

    @torch.no_grad()
    def restore(self, where: Tensor | bool) -> None:
        """Write the saved values back if `where` is true. A tensor is evaluated on the device, without waiting."""
        for name, before in self._saved.items():
            buffer = buffer_of(self._module, name)
            if isinstance(where, Tensor):
                buffer.copy_(torch.where(where, before, buffer))
            elif where:
                buffer.copy_(before)


class UntracedBuffers:
    """Watches the buffers of which the trace said that forward leaves them unchanged."""

    def __init__(self, module: nn.Module, traced: Collection[str]) -> None:
        """`traced`: buffers that are known to change."""
        self._module = module
        self._before = {
            name: (buffer, buffer._version)
            for name, buffer in module.named_buffers()
            if name not in traced and not isinstance(_owner(module, name), _BatchNorm)
        }

    def differing(self, group: Group, device: torch.device) -> list[str]:
        """Return those that have changed on a rank since, and are not equal on all ranks of the group."""
        if group is None or not self._before:
            return []
        checksums = [self._checksum(name) for name in self._before]
        # The checksum fits into float64, and its negative turns a minimum into a maximum.
        extremes = torch.tensor([checksums, [-value for value in checksums]], dtype=torch.float64, device=device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
        return [name for name, high, low in zip(self._before, *extremes.tolist(), strict=True) if high != -low]

    def _checksum(self, name: str) -> int:
        """A number that depends on every bit of a changed buffer; 0 for an unchanged one."""
        before, version = self._before[name]
        buffer = _owner(self._module, name)._buffers[name.rpartition(".")[2]]
        if buffer is None or (buffer is before and buffer._version == version):
            return 0
        values = _local(buffer).detach().cpu().contiguous().flatten().view(torch.uint8)
        return 1 + zlib.crc32(values.numpy().tobytes())


def buffer_of(module: nn.Module, name: str) -> Tensor:
    """Return this rank's part of the tensor that is registered under a name now."""
    return _local(module.get_buffer(name))


@torch.no_grad()
def average(buffers: Iterable[Tensor], group: Group) -> None:
    """Set floating-point buffers to their averages over the group."""
    averaged: Sequence[Tensor] = list(buffers)
    if group is None or not averaged:
        return
    flat = torch.cat([buffer.double().flatten() for buffer in averaged])
    all_reduce_sum(group, flat).div_(group.size())
    parts = torch.split(flat, [buffer.numel() for buffer in averaged])
    for buffer, values in zip(averaged, parts, strict=True):
        buffer.copy_(values.view_as(buffer))


def _owner(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
