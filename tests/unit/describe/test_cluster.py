from pathlib import Path

import pytest

from onecurve.describe.cluster import Cluster, CoreSplit, DeviceSpec, HostGroup, Link
from onecurve.describe.convert import read_toml, write_toml
from onecurve.describe.errors import OnecurveError

CPU = DeviceSpec("cpu", "cpu", 8 << 30, 1e10, {"fp32": 1e11}, 1.0, 0.4, {"fp32": {"64": 5e10, "512": 1e11}}, 5e-6)
HOSTS = HostGroup(
    CPU,
    2,
    4,
    4,
    Link(1e-4, 1e9, 0.5),
    Link(1e-3, 1e8),
    None,
    (CoreSplit(1, 0.9, 0.7, 1.1), CoreSplit(4, 3.2, 2.0, 1.5)),
)


def test_a_file_has_it_all(tmp_path: Path) -> None:
    write_toml(Cluster((HOSTS,)), tmp_path / "cluster.toml")
    assert read_toml(Cluster, tmp_path / "cluster.toml") == Cluster((HOSTS,))


def test_cores_are_dealt_out_to_ranks() -> None:
    one, four = HOSTS.as_ranks(1), HOSTS.as_ranks(4)
    assert (one.devices_per_host, one.cores_per_host, one.device.memory) == (1, 4, 8 << 30)
    assert one.device.speed("fp32") == pytest.approx(3.2e11)
    assert (four.devices_per_host, four.cores_per_host, four.device.memory) == (4, 1, 2 << 30)
    assert four.device.memory_bandwidth == pytest.approx(0.7e10)
    assert four.device.op_seconds == pytest.approx(5.5e-6)


def test_small_products_reach_less() -> None:
    assert CPU.speed("fp32", 2 * 64**3) == pytest.approx(5e10)
    assert CPU.speed("fp32", 2 * 288**3) == pytest.approx(7.5e10)
    assert CPU.speed("fp32") == pytest.approx(1e11)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups = []", "one kind"),
        ("[[groups]]\ncount = 0\n[groups.device]\nname = 'd'", "at least 1"),
        ("[[groups]]\n[groups.device]\nname = 'd'\nmemory_bandwidth = -1.0", "above 0"),
        ("[[groups]]\n[groups.device]\nname = 'd'\nmatmul_rates = {fp32 = {x = 1.0}}", "numbers of rows"),
        ("[[groups]]\n[groups.device]\nnam = 'd'", "nam"),
    ],
)
def test_a_wrong_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(OnecurveError, match=said):
        read_toml(Cluster, tmp_path / "cluster.toml")


def device(**changes: object) -> DeviceSpec:
    return DeviceSpec(**{"name": "d", "flops": {"fp32": 1e12}, **changes})


def test_memory_and_operation_time_may_be_unknown() -> None:
    assert device(memory=0, op_seconds=0.0).memory == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"memory": -1},
        {"op_seconds": -1e-9},
        {"memory_bandwidth": 0.0},
        {"memory_bandwidth": float("inf")},
        {"matmul_efficiency": 0.0},
        {"attention_efficiency": -0.5},
        {"flops": {"fp32": 1e12, "bf16": 0.0}},
        {"matmul_rates": {"fp32": {"64": 0.0}}},
    ],
)
def test_impossible_rates_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(OnecurveError, match="device d"):
        device(**changes)


def test_rates_in_an_unknown_precision_are_those_of_fp32() -> None:
    assert device(flops={"fp32": 1e12, "bf16": 4e12}).peak("bf16") == 4e12
    assert device().peak("bf16") == 1e12
    assert device().speed("bf16") == pytest.approx(0.8e12)
    with pytest.raises(OnecurveError, match="bf16"):
        device(flops={}).peak("bf16")


@pytest.mark.parametrize(
    ("count", "devices", "cores", "possible"),
    [(1, 1, 0, True), (0, 1, 0, False), (1, 0, 0, False), (1, 1, -1, False)],
)
def test_a_group_needs_hosts_and_devices(count: int, devices: int, cores: int, possible: bool) -> None:
    if possible:
        assert HostGroup(CPU, count, devices, cores).total == 1
    else:
        with pytest.raises(OnecurveError, match="at least 1"):
            HostGroup(CPU, count, devices, cores)


def test_without_measured_splits_speed_grows_with_the_cores() -> None:
    hosts = HostGroup(CPU, 1, 6, 6, inter_host=Link(1e-3, 1e8))
    two = hosts.as_ranks(2)
    assert (two.devices_per_host, two.cores_per_host, two.device.memory) == (2, 3, 4 << 30)
    assert two.device.peak("fp32") == pytest.approx(3e11)
    assert two.device.matmul_rates["fp32"]["64"] == pytest.approx(1.5e11)
    assert two.device.memory_bandwidth == pytest.approx(3e10)
    assert two.device.op_seconds == pytest.approx(5e-6)
    assert two.inter_host.bandwidth == pytest.approx(5e7)
    assert hosts.as_ranks(9).cores_per_host == 1  # more ranks than cores: each still has one


def test_the_largest_measured_split_that_fits_is_used() -> None:
    assert HOSTS.as_ranks(2).device.peak("fp32") == pytest.approx(0.9e11)  # two cores each: one was measured, four too
    assert HOSTS.as_ranks(1).device.peak("fp32") == pytest.approx(3.2e11)


def test_accelerators_do_not_change_with_the_number_of_ranks() -> None:
    hosts = HostGroup(DeviceSpec("g", "cuda", 10), 2, 8)
    assert hosts.as_ranks(4) is hosts


def gpus(memory: int, count: int, devices: int, cores: int = 4) -> HostGroup:
    return HostGroup(DeviceSpec("g", "cuda", memory), count, devices, cores)


def test_totals_of_a_mixed_cluster() -> None:
    cluster = Cluster((gpus(80, 2, 8, 64), gpus(40, 3, 4, 32)))
    assert (cluster.devices, cluster.ranks_per_host, cluster.memory) == (2 * 8 + 3 * 4, 4, 40)
    assert (cluster.cores, cluster.device_kind, cluster.memory_per_rank(28)) == (64, "cuda", 40)
    assert [group.total for group in cluster.as_ranks(28)] == [16, 12]


def test_hosts_of_two_kinds_are_refused() -> None:
    with pytest.raises(OnecurveError, match="one kind"):
        Cluster((gpus(80, 1, 8), HOSTS))


def test_ranks_are_spread_evenly_over_cpu_hosts() -> None:
    cluster = Cluster((HOSTS, HOSTS))  # four hosts of four cores
    assert (cluster.devices, cluster.ranks_per_host) == (16, 4)
    assert [group.devices_per_host for group in cluster.as_ranks(5)] == [2, 2]
    assert [group.devices_per_host for group in cluster.as_ranks(1)] == [1, 1]
    assert cluster.memory_per_rank(4) == 2 << 30


def test_a_host_of_unknown_speed() -> None:
    cluster = Cluster.of("cuda", 4, 1 << 34, 16)
    assert (cluster.devices, cluster.memory, cluster.cores, cluster.ranks_per_host) == (4, 1 << 34, 16, 4)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(3, ((1, 3),)), (8, ((1, 8),)), (16, ((2, 8),)), (17, ((2, 8), (1, 1))), (20, ((2, 8), (1, 4)))],
)
def test_ranks_fill_the_hosts_in_order(ranks: int, expected: tuple[tuple[int, int], ...]) -> None:
    fast, slow = (DeviceSpec(name, "cuda", 1, 1.0, {"fp32": 1.0}) for name in ("fast", "slow"))
    cluster = Cluster((HostGroup(fast, count=2, devices_per_host=8), HostGroup(slow, count=1, devices_per_host=4)))
    assert cluster.placement(ranks) == expected


def test_cpu_ranks_are_placed_evenly() -> None:
    assert Cluster((HOSTS,)).placement(1) == ((1, 1),)
    assert Cluster((HOSTS,)).placement(4) == ((2, 2),)
