import pytest

from onecurve.describe.cluster_shorthand import cluster_text, parse_cluster
from onecurve.describe.errors import OnecurveError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2x8xH100", "2 hosts × 8 H100-80GB-SXM"),
        ("8xRTX 4090", "1 host × 8 RTX 4090"),
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
        ("12xH100", "not whole hosts of 8"),
        ("0xH100", "no devices"),
        ("2xX100", "not in the catalogue"),
        ("", "cannot be read"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    with pytest.raises(OnecurveError, match=said):
        parse_cluster(text)
