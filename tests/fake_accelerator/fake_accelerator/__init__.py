"""A device that torch treats as an accelerator and that computes on the host, as late as possible.

Operators are queued on streams and done only when something waits for their results; new memory is NaN, so what is read
too early is wrong. Every wait of the host, every access to memory that no event orders, every mix of devices and every
fork is reported with its line, see report.py.

torch loads it (entry point `torch.backends`) if its folder is in PYTHONPATH. Environment variables:

- FAKE_ACCELERATOR_DEVICES: number of devices, 8 if not set.
- FAKE_ACCELERATOR_MEMORY: bytes of each device, 8 GiB if not set.
- FAKE_ACCELERATOR_ORDER_BY_ROWS=1: matrix products are summed in an order that depends on their number of rows.
- FAKE_ACCELERATOR_LEAVE_TOGETHER=1: a process group can only be left by all its ranks, as with NCCL.
- FAKE_ACCELERATOR_REPORT: folder for the reports, a file per process.
"""

import os
from datetime import timedelta
from typing import Any

NAME = "simulated"

_loaded: list[Any] = []
"""What must live as long as the process: the simulator first."""


def autoload() -> None:
    """Called by torch when it is imported."""
    import torch
    import torch.distributed as dist

    from fake_accelerator.build import load
    from fake_accelerator.module import device_module
    from fake_accelerator.operators import Operators
    from fake_accelerator.report import Report
    from fake_accelerator.rng import RandomStates
    from fake_accelerator.streams import Simulator

    devices = int(os.environ.get("FAKE_ACCELERATOR_DEVICES", 8))
    if _loaded or not devices:
        return
    extension, states = load(), RandomStates()
    simulator = Simulator(extension, Report())
    _loaded.append(simulator)
    torch.utils.rename_privateuse1_backend(NAME)
    extension.start(simulator, devices)
    torch._register_device_module(NAME, device_module(NAME, devices, extension, simulator, states))
    torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=[torch.quint8])
    _loaded.extend(Operators(NAME, extension, simulator, states).register())

    def process_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
        return extension.process_group(dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend("fake_accelerator", process_group, devices=[NAME])


def simulator() -> Any:
    """The simulator of this process, with its report."""
    return _loaded[0]
