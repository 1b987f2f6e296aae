import pytest

from onecurve.describe import catalogue
from onecurve.describe.catalogue import hosts_of
from onecurve.describe.errors import OnecurveError


def test_an_exact_name_is_that_device() -> None:
    hosts = hosts_of("A100-40GB-SXM", 3)
    assert (hosts.device.name, hosts.device.memory) == ("A100-40GB-SXM", 40_000_000_000)
    assert (hosts.count, hosts.devices_per_host, hosts.kind) == (3, 8, "cuda")


def test_the_first_words_select_the_device_with_the_most_memory() -> None:
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


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("l4", "L4"),
        ("L40S", "L40S"),
        ("a10g", "A10G"),
        ("rtx6000", "RTX 6000 Ada"),
        ("RTX-6000-Ada", "RTX 6000 Ada"),
        ("rtx4090", "RTX 4090"),
        ("a100-40gb", "A100-40GB-SXM"),
        ("gh200", "GH200-144GB"),
        ("GH200-96GB", "GH200-96GB"),
        ("h200", "H200-141GB-SXM"),
        ("mi300x", "MI300X"),
        ("MI325X", "MI325X"),
        ("gaudi3", "Gaudi 3"),
    ],
)
def test_names_as_people_type_them(typed: str, name: str) -> None:
    assert hosts_of(typed, 1).device.name == name


def test_every_device_is_described_consistently() -> None:
    """Dense rates: a narrower number is never slower; links within a host are faster than the network."""
    for name, entry in catalogue._catalogue().items():
        hosts = hosts_of(name, 1)
        rates = hosts.device.flops
        ordered = [rates[precision] for precision in ("fp32", "fp16", "bf16", "fp8", "fp4") if precision in rates]
        assert ordered == sorted(ordered), name
        assert hosts.intra_host.bandwidth > hosts.inter_host.bandwidth, name
        assert 0.3 < entry["matmul_efficiency"] <= 1, name
        assert 10e9 < hosts.device.memory < 400e9, name


def test_gaudi_is_an_hpu() -> None:
    assert hosts_of("gaudi3", 1).kind == "hpu"
    assert hosts_of("mi300x", 1).kind == "cuda"  # torch names AMD's devices so


def test_an_unknown_name_is_answered_with_all_that_are_known() -> None:
    with pytest.raises(OnecurveError, match=r"'B9000' is not in the catalogue \(.*known: A100-40GB-SXM, .*Gaudi 3\)"):
        hosts_of("B9000", 1)


@pytest.mark.parametrize(("typed", "suggested"), [("l40", "L40S"), ("a10", "A10G"), ("mi300", "MI300X")])
def test_another_product_is_not_taken_for_it(typed: str, suggested: str) -> None:
    """An L40 has half the rate of an L40S, and an A10 is no A100."""
    with pytest.raises(OnecurveError, match=f"device '{typed}' is not in the catalogue .*'{suggested}'"):
        hosts_of(typed, 1)
