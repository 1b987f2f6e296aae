import pytest

from onecurve.describe.cluster import Cluster
from onecurve.describe.cluster_shorthand import cluster_text, parse_cluster
from onecurve.describe.errors import OnecurveError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2x8xH100", "2 hosts × 8 H100-80GB-SXM"),
        ("8xRTX 4090", "1 host × 8 RTX 4090"),
        ("8xH100", "1 host × 8 H100-80GB-SXM"),
        ("H100", "1 host × 1 H100-80GB-SXM"),
        ("16384×H100", "2,048 hosts × 8 H100-80GB-SXM"),
        ("4xA100+4xV100", "1 host × 4 A100-80GB-SXM + 1 host × 4 V100-32GB-SXM2"),
    ],
)
def test_short_names(text: str, said: str) -> None:
    assert cluster_text(parse_cluster(text)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12xH100", "do not fill hosts of 8"),
        ("0xH100", "no devices"),
        ("2xX100", "not in the catalogue"),
        ("", "cannot be read"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    with pytest.raises(OnecurveError, match=said):
        parse_cluster(text)


def test_hosts_and_devices_are_counted() -> None:
    two = parse_cluster("2x4xA100").groups[0]
    assert (two.count, two.devices_per_host) == (2, 4)
    full = parse_cluster("24xA100").groups[0]
    assert (full.count, full.devices_per_host) == (3, 8)


def test_no_count_may_be_zero() -> None:
    for text in ("0x8xH100", "2x0xH100"):
        with pytest.raises(OnecurveError, match="no devices"):
            parse_cluster(text)


def test_cpu_hosts_are_described_by_their_cores() -> None:
    assert cluster_text(Cluster.of("cpu", 4, 1 << 30, 4)) == "1 host × 4 cores"
