"""Hosts that joined a run become one cluster."""

from pathlib import Path

import pytest

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.host import HostRegistration
from onecurve.planner.joined_hosts import joined_cluster, known_link, remember_link, similar_first

LINK = Link(latency=1e-4, bandwidth=1e8)


def host(name: str, speed: float = 1e11, memory: int = 16_000_000_000, cores: int = 8) -> HostRegistration:
    device = DeviceSpec(name="cpu", flops={"fp32": speed}, memory=memory)
    group = HostGroup(device, cores_per_host=cores)
    return HostRegistration(name=name, address=name, cluster=Cluster((group,)), versions={}, job={})


def test_similar_hosts_become_neighbours_and_one_group() -> None:
    hosts = {name: host(name, speed) for name, speed in (("a", 1e11), ("b", 4e11), ("c", 1.02e11), ("d", 4e11))}
    ordered = similar_first(hosts)
    assert list(ordered) == ["a", "c", "b", "d"]
    cluster = joined_cluster(list(ordered.values()), LINK)
    assert [group.count for group in cluster.groups] == [2, 2]
    assert all(group.inter_host == LINK for group in cluster.groups)


def test_hosts_with_other_cores_are_not_similar() -> None:
    cluster = joined_cluster([host("a"), host("b", cores=4)], LINK)
    assert [group.count for group in cluster.groups] == [1, 1]


@pytest.mark.parametrize("memories", [(16, 8, 32), (8, 16, 32), (32, 16, 8)])
def test_a_group_has_the_memory_of_its_smallest_host(memories: tuple[int, ...]) -> None:
    cluster = joined_cluster([host(f"h{index}", memory=memory) for index, memory in enumerate(memories)], LINK)
    assert [group.device.memory for group in cluster.groups] == [8]


def test_a_link_is_remembered_for_the_same_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hosts = [host("a"), host("b")]
    assert known_link(hosts) is None
    remember_link(hosts, LINK)
    assert known_link(hosts[::-1]) == LINK
    assert known_link([*hosts, host("c")]) is None
