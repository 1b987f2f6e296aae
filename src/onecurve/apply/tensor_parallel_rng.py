"""Random numbers under tensor parallelism on CPU, through DTensor's RNG tracker, which torch implements for GPUs only.

Tensor-parallel ranks are seeded alike, so a replicated tensor draws the same numbers on all of them. A sharded tensor
draws from a stream of its own on each rank, and the common stream then advances by one number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _random as dtensor_random

from onecurve.describe.errors import OnecurveError
from onecurve.describe.seed import mix


class TensorParallelRNG:
    """A context manager that installs itself as DTensor's RNG tracker on CPU and does nothing on other devices."""

    distribute_region_enabled = True

    def __init__(self, mesh: DeviceMesh) -> None:
        self._tensor_rank = mesh.get_local_rank()
        self._needed = mesh.device_type == "cpu"
        self._previous_tracker: Any = None

    def __enter__(self) -> None:
        if self._needed:
            self._previous_tracker = dtensor_random._rng_tracker
            dtensor_random._rng_tracker = self  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self._needed:
            dtensor_random._rng_tracker = self._previous_tracker

    @contextmanager
    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        """Called by DTensor around each random operation."""
        if generator is not None:
            raise OnecurveError(
                "model: it draws random numbers from a generator of its own, which is not supported along 'tensor'; "
                "use torch's default generator, or another axis"
            )
        if all(placement.is_replicate() for placement in spec.placements):
            yield
            return
        seed = int(torch.randint(2**62, (), dtype=torch.int64))
        common_state = torch.get_rng_state()
        torch.manual_seed(mix(seed, self._tensor_rank))
        try:
            yield
        finally:
            torch.set_rng_state(common_state)
