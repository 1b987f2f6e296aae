"""What one rank knows and passes to all: derived by the first before the process group exists, or known from before."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError, full_text
from onecurve.describe.job_facts import JobFacts
from onecurve.device.collectives import broadcast_first_text
from onecurve.device.device import Device
from onecurve.device.world import World

T = TypeVar("T")


def derive_on_first_rank(kind: type[T], derive: Callable[[], T], world: World, device: Device) -> T:
    """Call `derive` on the first rank, join the world, and return the result on all ranks.

    Layouts, for example, cannot be derived once the process group exists. An error of the user's input is raised on all
    ranks, so that none of them waits for the first one.
    """
    value: T | None = None
    error: OnecurveError | None = None
    if world.rank == 0:
        try:
            value = derive()
        except OnecurveError as raised:
            error = raised
    world.join(device)
    if world.size > 1:
        failure = broadcast_first_text(dist.group.WORLD, full_text(error) if error is not None else "")
        if failure and error is None:
            raise OnecurveError(failure)
    if error is not None:
        raise error
    if world.size == 1:
        assert value is not None
        return value
    text = broadcast_first_text(dist.group.WORLD, to_json(value) if world.rank == 0 else "")
    return from_json(kind, text.encode(), "what the first rank derived")


def share_facts(own: JobFacts | None, world: World) -> JobFacts:
    """Return on all ranks what the first of them knows that knows it. At least one rank must."""
    if world.size == 1:
        assert own is not None
        return own
    text = broadcast_first_text(dist.group.WORLD, to_json(own) if own is not None else "")
    return from_json(JobFacts, text.encode(), "what another rank knows")
