"""Long transfers say how far they are, and short ones nothing."""

from onecurve.report import transfer
from onecurve.report.transfer import Transfer


def test_the_time_before_the_first_bytes_does_not_count(monkeypatch) -> None:
    now, said = 100.0, list[str]()
    monkeypatch.setattr(transfer.time, "monotonic", lambda: now)
    progress = Transfer(said.append)
    now = 130.0
    progress(192, 192)
    assert said == []


def test_a_transfer_speaks_after_two_seconds_and_then_every_ten(monkeypatch) -> None:
    now, said = 100.0, list[str]()
    monkeypatch.setattr(transfer.time, "monotonic", lambda: now)
    progress = Transfer(said.append)
    for second in range(25):
        now = 100.0 + second
        progress(second * 2**20, 25 * 2**20)
    assert said == ["2.0 MiB of 25.0 MiB", "12.0 MiB of 25.0 MiB", "22.0 MiB of 25.0 MiB"]
