import pytest

from onecurve.describe import catalogue
from onecurve.describe.catalogue import hosts_of
from onecurve.describe.errors import OnecurveError


def test_an_exact_name_is_that_device() -> None:
    hosts = hosts_of("A100-40GB-SXM", 3)
    assert (hosts.device.name, hosts.device.memory) == ("A100-40GB-SXM", 40_000_000_000)
    assert (hosts.count, hosts.devices_per_host, hosts.kind) == (3, 8, "cuda")


def test_a_prefix_is_the_device_with_the_most_memory() -> None:
    assert hosts_of("a100", 1).device.name == "A100-80GB-SXM"
    assert hosts_of("rtx4090", 1).device.name == "RTX 4090"


def test_the_number_of_devices_per_host_can_be_set() -> None:
    assert hosts_of("H100", 1, 3).devices_per_host == 3


def test_links_inside_a_host_are_faster_than_the_network() -> None:
    hosts = hosts_of("H100", 1)
    assert (hosts.intra_host.bandwidth, hosts.inter_host.bandwidth) == (450e9, 50e9)
    assert hosts.intra_host.latency < hosts.inter_host.latency


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(OnecurveError, match="did you mean 'H100-80GB-SXM'"):
        hosts_of("H10O-80GB-SXM", 1)


def test_a_full_name_wins_over_longer_names_that_begin_with_it(monkeypatch) -> None:
    entry = dict(catalogue._catalogue()["L4"])
    monkeypatch.setattr(catalogue, "_catalogue", lambda: {"L40S": {**entry, "memory": 48e9}, "L4": entry})
    assert hosts_of("l4", 1).device.name == "L4"
    assert hosts_of("l40", 1).device.name == "L40S"
