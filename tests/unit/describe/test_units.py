"""Every unit, and the first quantity that is shown in the next one."""

import pytest

from onecurve.describe.units import (
    bytes_text,
    count_text,
    hours_text,
    money_text,
    parse_bytes,
    rate_text,
    seconds_text,
    with_error,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (-2048, "-2.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (63.4 * 2**30, "63.4 GiB"),
        (5 * 2**40, "5.0 TiB"),
        (3000 * 2**50, "3000.0 PiB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (4.1e-6, "4.1 µs"),
        (99e-6, "99.0 µs"),
        (1e-4, "0.1 ms"),
        (0.0412, "41.2 ms"),
        (1, "1.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (11220, "3 h 07 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (0.5, "30 min 00 s"),
        (1, "1.0 hours"),
        (47.9, "47.9 hours"),
        (48, "2.0 days"),
        (297.6, "12.4 days"),
        (36000, "1,500.0 days"),
    ],
)
def test_hours(hours: float, text: str) -> None:
    assert hours_text(hours) == text


@pytest.mark.parametrize(
    ("money", "text"), [(0.5, "$0.50"), (9.99, "$9.99"), (10, "$10"), (10.4, "$10"), (1240.4, "$1,240")]
)
def test_money(money: float, text: str) -> None:
    assert money_text(money) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(437_760, "437,760"), (999_999, "999,999"), (10**6, "1 M"), (8.03e9, "8.03 B"), (1e9, "1 B"), (1e12, "1 T")],
)
def test_counts(count: float, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(999, "999 "), (1e6, "1 M"), (1e9, "1 G"), (81.3e9, "81.3 G"), (1e12, "1 T"), (1e15, "1 P"), (2.5e15, "2.5 P")],
)
def test_rates(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_an_error_is_an_interval_only_if_the_interval_is_above_zero() -> None:
    assert with_error("41.2 ms", 0.12) == "41.2 ms ± 12%"
    assert with_error("$1,240", 0.99) == "$1,240 ± 99%"
    assert with_error("41.2 ms", 0.999) == "41.2 ms (a rough guess: up to 2.0 times as much)"
    assert with_error("$1,240", 2.59) == "$1,240 (a rough guess: up to 3.6 times as much)"


@pytest.mark.parametrize(
    ("text", "count"), [("64G", 64 << 30), ("512 MiB", 512 << 20), ("1.5t", 3 << 39), ("100", 100), ("8kb", 8192)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "G", "0", "-1G", "64X", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write for example 64G"):
        parse_bytes(text)
