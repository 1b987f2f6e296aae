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
