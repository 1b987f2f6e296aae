"""How far this rank is in its collectives, and whether it waits in one; one thread reads it while another is stuck.

On accelerators the host queues collectives ahead of the device, so the numbers say how far the host is. That has not
been tried on an accelerator.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from onecurve.device.process_groups import BACKGROUND, SENDING

_TORCH = Path(torch.__file__).parent
_WAITING_FILES = tuple(
    str(_TORCH / "distributed" / name)
    for name in (
        "distributed_c10d.py",
        "_functional_collectives.py",
        "fsdp/_fully_shard/_fsdp_collectives.py",
        "fsdp/_fully_shard/_fsdp_param_group.py",
        "pipelining/schedules.py",
    )
)
"""Where torch waits for other ranks. DistributedDataParallel waits in C++, inside backward, and is not seen here."""
_OPERATOR_CALL = str(_TORCH / "_ops.py")


@dataclass(frozen=True)
class Progress:
    """How far a rank is."""

    collectives: int
    """Collectives that it has started, and sends and receives; it grows whenever the rank gets on."""
    common: int
    """Collectives that all ranks start equally often; 0 if there are none, as under a pipeline."""
    waits: bool
    """True if the rank is inside a function of torch that waits for other ranks."""


def progress_of(thread: int) -> Progress:
    """Return how far this process is. `thread`: the one that trains."""
    collectives = common = 0
    sends = False
    for group in [*distributed_c10d._world.pg_map]:
        if group.group_desc == BACKGROUND:  # another thread uses it
            continue
        number = _number(group)
        collectives += number
        if group.group_desc.endswith(SENDING):
            sends = True
        else:
            common += number
    return Progress(collectives, 0 if sends else common, is_waiting(sys._current_frames().get(thread)))


def is_waiting(frame: FrameType | None) -> bool:
    """True if a frame is of a function in which torch waits for other ranks."""
    if frame is not None and frame.f_code.co_filename == _OPERATOR_CALL:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename in _WAITING_FILES


def _number(group: dist.ProcessGroup) -> int:
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except RuntimeError:  # a backend that has none, or a group that is being destroyed
        return 0
