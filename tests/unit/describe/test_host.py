"""How many hosts a run may have."""

import pytest

from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostRange


@pytest.mark.parametrize(
    ("text", "least", "most", "shown"), [("3", 3, 3, "3"), (4, 4, 4, "4"), ("2:5", 2, 5, "2 to 5"), ("2:2", 2, 2, "2")]
)
def test_a_number_or_a_range(text: str | int, least: int, most: int, shown: str) -> None:
    hosts = HostRange.parse(text)
    assert (hosts.least, hosts.most, str(hosts)) == (least, most, shown)


@pytest.mark.parametrize("text", ["0", "0:2", "3:2", "", ":", "2:", ":2", "-1", "1.5", "two", "1:2:3", "²"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(OnecurveError, match="hosts = "):
        HostRange.parse(text)
