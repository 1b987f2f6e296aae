"""Random numbers along the tensor axis, behind DTensor's own extension point, which knows GPUs alone.

Ranks that hold parts of one model are seeded alike, so what is whole on all of them draws the same everywhere. What is
cut draws from a stream of the rank's own, and the common one goes on as if one number had been drawn.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _random as dtensor_random

from onecurve.describe.seed import mix


class TensorParallelRNG:
    """As a context: DTensor's random operations obey it."""

    distribute_region_enabled = True

    def __init__(self, mesh: DeviceMesh) -> None:
        self._place = mesh.get_local_rank()
        self._needed = mesh.device_type == "cpu"
        self._before: Any = None

    def __enter__(self) -> None:
        if self._needed:
            self._before, dtensor_random._rng_tracker = dtensor_random._rng_tracker, self  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self._needed:
            dtensor_random._rng_tracker = self._before

    @contextmanager
    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        assert generator is None, "a generator of the model's own cannot be followed along the tensor axis"
        if all(placement.is_replicate() for placement in spec.placements):
            yield
            return
        seed = int(torch.randint(2**62, (), dtype=torch.int64))
        common = torch.get_rng_state()
        torch.manual_seed(mix(seed, self._place))
        try:
            yield
        finally:
            torch.set_rng_state(common)
