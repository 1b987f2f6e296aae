"""Random numbers under tensor parallelism, in place of DTensor's own RNG tracker.

Tensor-parallel ranks are seeded alike, so a replicated tensor draws the same numbers on all of them. A sharded tensor
draws from a stream of its own on each rank, which the host's generator seeds; the device's common stream stays where it
was. torch's tracker does not exist for the CPU, waits for the device at every random operation, and begins with a
broadcast over all ranks, which never ends in a pipeline.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _random as dtensor_random

from onecurve.describe.errors import OnecurveError
from onecurve.describe.seed import mix
from onecurve.device.rng import own_random_stream


class TensorParallelRNG:
    """A context manager that installs itself as DTensor's RNG tracker."""

    distribute_region_enabled = True

    def __init__(self, mesh: DeviceMesh) -> None:
        self._tensor_rank = mesh.get_local_rank()
        self._device_kind = mesh.device_type
        self._previous_tracker: Any = None

    def __enter__(self) -> None:
        self._previous_tracker = dtensor_random._rng_tracker
        dtensor_random._rng_tracker = self  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
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
        with own_random_stream(self._device_kind, mix(seed, self._tensor_rank)):
            yield
