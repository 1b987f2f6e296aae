from dataclasses import replace

import pytest

from onecurve.describe.cluster import DeviceSpec, HostGroup, Link
from onecurve.describe.mesh import Mesh
from onecurve.estimate.collective import DATA, AxisPlacement, place_axis, single_host_placement

LINK = Link(latency=1e-6, bandwidth=1e9)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", 3 * (1e-6 + 1e-3)),  # four ranks, 4 MB: three messages of 1 MB at 1 GB/s
        ("reduce_scatter", 3 * (1e-6 + 1e-3)),
        ("all_reduce", 6 * (1e-6 + 1e-3)),
    ],
)
def test_a_hand_worked_ring(kind, expected: float) -> None:
    assert single_host_placement(4, LINK).seconds(kind, 4_000_000) == pytest.approx(expected)


def test_one_rank_sends_nothing() -> None:
    assert single_host_placement(1, LINK).seconds("all_reduce", 1000) == 0


FAR = Link(latency=1e-3, bandwidth=1e8, overlap_penalty=0.7)
TWO_HOSTS = AxisPlacement(ranks=4, ranks_per_host=2, intra_host=Link(1e-6, 1e9, 0.3), inter_host=FAR)


def test_two_ranks_of_a_host_share_the_transfer_to_the_other_host() -> None:
    # Half of 8 MB crosses at 2 · 100 MB/s, which takes longer than half of it at 1 GB/s inside; one message each.
    assert TWO_HOSTS.seconds("all_gather", 8_000_000) == pytest.approx(0.02 + 1e-6 + 1e-3)
    assert TWO_HOSTS.seconds("all_to_all", 8_000_000) == pytest.approx(0.04 + 1e-6 + 1e-3)


def test_a_slow_link_inside_the_hosts_determines_the_time() -> None:
    slow = AxisPlacement(ranks=4, ranks_per_host=2, intra_host=Link(0, 1e7), inter_host=FAR)
    assert slow.seconds("all_gather", 8_000_000) == pytest.approx(0.4 + 1e-3)


def test_hosts_that_are_not_full_count() -> None:
    assert AxisPlacement(5, 2, LINK, FAR).hosts == 3
    assert AxisPlacement(4, 2, LINK, FAR).hosts == 2


def test_the_overlap_penalty_is_that_of_the_link_in_use() -> None:
    assert TWO_HOSTS.overlap_penalty == 0.7
    assert AxisPlacement(2, 2, Link(1e-6, 1e9, 0.3), FAR).overlap_penalty == 0.3


def test_measured_factors_of_latency_and_volume() -> None:
    near = Link(latency=1e-6, bandwidth=1e9, all_gather_factors=(2.0, 3.0), reduce_scatter_factors=(5.0, 7.0))
    placement = single_host_placement(2, near)
    assert placement.seconds("all_gather", 2_000_000) == pytest.approx(3 * 1e-3 + 2 * 1e-6)
    assert placement.seconds("reduce_scatter", 2_000_000) == pytest.approx(7 * 1e-3 + 5 * 1e-6)
    assert placement.seconds("all_reduce", 2_000_000) == pytest.approx(2 * (1e-3 + 1e-6))
    across = AxisPlacement(2, 1, LINK, replace(near, latency=0.0))
    assert across.seconds("all_gather", 2_000_000) == pytest.approx(3 * 1e-3)


def test_nothing_to_send_takes_no_time() -> None:
    assert TWO_HOSTS.seconds("all_reduce", 0) == 0


HOSTS = HostGroup(DeviceSpec("d", "cuda"), 4, 8, 0, intra_host=Link(1e-6, 100e9), inter_host=Link(10e-6, 10e9))


@pytest.mark.parametrize(
    ("mesh", "axis", "ranks", "ranks_per_host"),
    [
        (Mesh(tensor=8), "tensor", 8, 8),
        (Mesh(tensor=16), "tensor", 16, 8),
        (Mesh(shard=4, tensor=4), "shard", 4, 2),
        (Mesh(shard=4, tensor=16), "shard", 4, 1),
        (Mesh(replicate=2, shard=4), "replicate", 2, 2),
        (Mesh(replicate=2, shard=8), "replicate", 2, 1),
        (Mesh(replicate=2, shard=4, tensor=2), DATA, 8, 4),
        (Mesh(pipeline=4, replicate=2), DATA, 2, 2),
        (Mesh(pipeline=4, replicate=2), "pipeline", 4, 4),
    ],
)
def test_placement_of_an_axis(mesh: Mesh, axis: str, ranks: int, ranks_per_host: int) -> None:
    placement = place_axis(mesh, axis, HOSTS, 0.5, 0.25)
    assert (placement.ranks, placement.ranks_per_host) == (ranks, ranks_per_host)
    assert (placement.intra_host.bandwidth, placement.inter_host.bandwidth) == (50e9, 2.5e9)
