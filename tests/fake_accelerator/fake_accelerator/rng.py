"""Random numbers of the devices: drawn from a seed and the number of draws before, as CUDA's are."""

import struct
from collections import Counter
from collections.abc import Callable

import torch

_DRAWS_PER_OPERATOR = 4  # DTensor wants offsets that are multiples of it


class RandomStates:
    """Seed and offset of each device."""

    def __init__(self) -> None:
        self._seeds: Counter[int] = Counter()
        self._offsets: Counter[int] = Counter()

    def seed(self, device: int, seed: int) -> None:
        self._seeds[device], self._offsets[device] = int(seed), 0

    def state(self, device: int) -> torch.Tensor:
        state = struct.pack("<QQ", self._seeds[device] % 2**64, self._offsets[device] % 2**64)
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, device: int, state: torch.Tensor) -> None:
        self._seeds[device], self._offsets[device] = struct.unpack("<QQ", bytes(state.tolist()))

    def seeded(self, device: int, run: Callable[[], object]) -> Callable[[], None]:
        """Return `run` with the host's generator seeded as the device's is now."""
        seed = (self._seeds[device] * 1_000_003 + self._offsets[device]) % 2**63
        self._offsets[device] += _DRAWS_PER_OPERATOR

        def seeded_run() -> None:
            before = torch.get_rng_state()
            torch.default_generator.manual_seed(seed)
            try:
                run()
            finally:
                torch.set_rng_state(before)

        return seeded_run
