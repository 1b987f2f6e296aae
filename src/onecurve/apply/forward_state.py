"""What the forward of a part may change, at one moment: a step that is computed twice must begin with the same."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onecurve.apply.running_buffers import RunningBuffers
from onecurve.describe.errors import OnecurveError
from onecurve.device.bit_hash import bit_hash
from onecurve.device.local_tensor import LocalTensor
from onecurve.model.python_state import PythonState


class ForwardState:
    """Restores what a forward changes: buffers that are known to change, and Python attributes of modules and loss.

    Parameters and other buffers are not copied, because that would need memory. A forward that changes one of them is
    refused.
    """

    def __init__(
        self, module: nn.Module, loss: Any, parameters: Sequence[LocalTensor], running_buffers: RunningBuffers
    ) -> None:
        self._module, self._parameters, self._running = module, parameters, running_buffers
        self._python = PythonState([module, loss])
        self._hashes = self._parameter_hashes()
        self._buffers = {
            name: (buffer, buffer._version)
            for name, buffer in module.named_buffers()
            if name not in running_buffers.names
        }

    def restore(self) -> None:
        """Set the buffers and attributes to what they were before `run_rounds`."""
        self._python.restore()
        self._running.restore(True)
        changed = (self._hashes != self._parameter_hashes()).nonzero().flatten().tolist()
        names = [self._parameters[index].name for index in changed]
        buffers = dict(self._module.named_buffers())
        names += [
            name
            for name, (buffer, version) in self._buffers.items()
            if buffers.get(name) is not buffer or buffer._version != version
        ]
        if names:
            raise OnecurveError(
                f"audit: forward changes {names[0]!r} in place, so that a step cannot be computed a second time; train "
                "this model without audit"
            )

    def _parameter_hashes(self) -> Tensor:
        return torch.stack([bit_hash(parameter.local) for parameter in self._parameters])
