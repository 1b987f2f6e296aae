"""Corrections for a machine that other programs use too: predictions for the speed that it had at one moment.

Slowness is the time of a fixed piece of work (the speed test of regret_rank.py) over its time on an idle machine.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import JobCosts, Timing
from onecurve.estimate.estimator import Estimator


def idle_seconds(speed_tests: Sequence[Sequence[float]], cluster: Cluster, ranks_per_host: int) -> list[float]:
    """Return the shortest speed test for each rank; the ranks of a group of identical hosts share one value."""
    shortest = [min(seconds) for seconds in zip(*speed_tests, strict=True)]
    by_rank: list[float] = []
    for group in cluster.groups:
        ranks = group.count * ranks_per_host
        by_rank += [min(shortest[len(by_rank) : len(by_rank) + ranks])] * ranks
    return by_rank


def slowed_estimator(
    slowness: float, timings: Sequence[tuple[Sequence[Timing], float]], cluster: Cluster, costs: JobCosts
) -> Estimator:
    """Return an estimator for the machine at the given slowness.

    The plan is chosen by the timings made before; the prediction error is that for the speed that the machine had
    during the plan's steps.
    """
    slowed = [_slowed_timings(model_timings, slowness / then) for model_timings, then in timings]
    return Estimator(_slowed_cluster(cluster, slowness), replace(costs, timings=_median_timings(slowed)))


def _slowed_cluster(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster when everything on its cores takes `factor` times as long; network bandwidth is unchanged."""
    groups = []
    for group in cluster.groups:
        device = replace(
            group.device,
            memory_bandwidth=group.device.memory_bandwidth / factor,
            flops={name: rate / factor for name, rate in group.device.flops.items()},
            matmul_rates={
                name: {size: rate / factor for size, rate in rates.items()}
                for name, rates in group.device.matmul_rates.items()
            },
            op_seconds=group.device.op_seconds * factor,
        )
        intra_host = replace(
            group.intra_host, latency=group.intra_host.latency * factor, bandwidth=group.intra_host.bandwidth / factor
        )
        inter_host = replace(group.inter_host, latency=group.inter_host.latency * factor)
        groups.append(replace(group, device=device, intra_host=intra_host, inter_host=inter_host))
    return replace(cluster, groups=tuple(groups))


def _slowed_timings(timings: Sequence[Timing], factor: float) -> list[Timing]:
    return [replace(timing, forward=timing.forward * factor, backward=timing.backward * factor) for timing in timings]


def _median_timings(measurements: Sequence[Sequence[Timing]]) -> tuple[Timing, ...]:
    """Return the median of several measurements of the same timings."""
    return tuple(
        replace(
            same[0],
            forward=statistics.median(timing.forward for timing in same),
            backward=statistics.median(timing.backward for timing in same),
        )
        for same in zip(*measurements, strict=True)
    )
