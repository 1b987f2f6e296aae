"""How a host is divided among the trials of a study: each gets as few devices as its model fits on."""

import os
from collections.abc import Callable
from dataclasses import replace

from onecurve.data.training_data import TrainingData
from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError
from onecurve.device.device import visible_devices
from onecurve.device.selection import environment_of
from onecurve.job.job import Job
from onecurve.planner.planner import Planner
from onecurve.study.trial_process import Slot


def slots(job: Job, data: TrainingData, host: Cluster, trials: int, say: Callable[[str], None]) -> list[Slot]:
    """Divide this host for at most so many trials at a time."""
    devices = host.devices
    planner = Planner(job, data, host, ["fp32"], say)
    size = 1
    while size <= devices:
        part = _part(host, size)
        if Planner(job, data, part, ["fp32"], say, costs=planner.costs).best() is not None:
            break
        size *= 2
    if size > devices:
        raise OnecurveError("tune: the model fits on this host under no plan; see onecurve plan")
    count = max(1, min(devices // size, trials))
    return _divided(devices // count, count)


def _part(host: Cluster, devices: int) -> Cluster:
    """A part of a host, with its part of the memory."""
    (group,) = host.groups
    if group.kind != "cpu":
        return replace(host, groups=(replace(group, devices_per_host=devices),))
    splits = tuple(split for split in group.core_splits if split.threads <= devices)
    memory = group.device.memory * devices // group.cores_per_host
    part = replace(
        group,
        device=replace(group.device, memory=memory),
        devices_per_host=devices,
        cores_per_host=devices,
        core_splits=splits,
    )
    return replace(host, groups=(part,))


def _divided(devices: int, count: int) -> list[Slot]:
    seen = visible_devices()
    cores = sorted(os.sched_getaffinity(0))
    own = len(cores) // count or 1
    parts = [tuple(cores[n * own : (n + 1) * own]) or tuple(cores) for n in range(count)]
    if seen.device_kind == "cpu":
        return [Slot(part) for part in parts]
    return [
        Slot(part, environment_of(seen.device_kind, range(n * devices, (n + 1) * devices)))
        for n, part in enumerate(parts)
    ]
