"""Values of the device that the host reads later, without waiting for what the device was given since."""

import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor on the host. On accelerators it is queued when this object is made, and complete only when the
    device has come to it; on the CPU the tensor is read when its values are asked for."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.Event | None = None
        self._values = source
        if source.device.type != "cpu":
            # Only a copy to pinned memory does not wait for the device.
            self._values = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._values.copy_(source, non_blocking=True)
            self._event = torch.Event(source.device)
            self._event.record()

    def tolist(self) -> list[float]:
        """Return the values; waits until the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.tolist()
