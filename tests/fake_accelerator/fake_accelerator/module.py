"""`torch.simulated`: what torch and its users ask of a device in Python."""

from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from fake_accelerator.rng import RandomStates
from fake_accelerator.streams import Simulator


def device_module(
    name: str, devices: int, extension: ModuleType, simulator: Simulator, states: RandomStates
) -> ModuleType:
    """Return the module that is registered as `torch.NAME`."""
    module: Any = ModuleType(f"torch.{name}")

    def index(device: Any = None) -> int:
        if isinstance(device, int):
            return device
        chosen = None if device is None else torch.device(device).index
        return extension.current_device() if chosen is None else chosen

    class DeviceContext:
        def __init__(self, device: Any) -> None:
            self._index = index(device)

        def __enter__(self) -> None:
            self._before = extension.current_device()
            if self._index >= 0:
                extension.set_device(self._index)

        def __exit__(self, *_: object) -> None:
            extension.set_device(self._before)

    def device_properties(device: Any = None) -> SimpleNamespace:
        simulator.use_device(index(device))  # as CUDA does
        return SimpleNamespace(name="fake accelerator", total_memory=simulator.memory)

    module.is_available = lambda: devices > 0
    module.is_initialized = lambda: simulator.is_initialized
    module._lazy_init = lambda: None
    module._is_in_bad_fork = lambda: simulator.is_forked_in_use
    module.device = DeviceContext
    module.device_count = lambda: devices
    module.current_device = extension.current_device
    module.set_device = lambda device: extension.set_device(index(device))
    module.synchronize = lambda device=None: simulator.synchronize(index(device), -1, "synchronize")

    module.Stream = lambda device=None, **_: torch.Stream(device=torch.device(name, index(device)))
    module.Event = lambda **_: torch.Event(name)
    module.stream = lambda stream: stream
    module.current_stream = lambda device=None: torch.accelerator.current_stream(index(device))

    module.is_bf16_supported = lambda *_, **__: True
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.get_device_name = lambda *_: "fake accelerator"
    module.get_device_capability = lambda *_: (9, 0)
    module.get_device_properties = device_properties

    module.manual_seed = lambda seed: states.seed(extension.current_device(), seed)
    module.manual_seed_all = lambda seed: [states.seed(each, seed) for each in range(devices)]
    module.get_rng_state = lambda device=None: states.state(index(device))
    module.set_rng_state = lambda state, device=None: states.set_state(index(device), state)

    module.memory_allocated = lambda device=None: extension.allocated_bytes(index(device))
    module.max_memory_allocated = lambda device=None: extension.peak_bytes(index(device))
    module.reset_peak_memory_stats = lambda device=None: extension.reset_peak(index(device))
    module.empty_cache = lambda: None
    return module
