"""Formatting of quantities with a unit and a sensible precision."""

import re

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: float) -> str:
    """Format bytes: `63.4 GiB`."""
    for unit in _BYTE_UNITS:
        if abs(count) < 1024 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def parse_bytes(text: str) -> int:
    """Read a number of bytes: `64G`, `512 MiB`, `1.5T`. Units are powers of 1024. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{text!r} is not a size; write for example 64G or 512M")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " "))


def seconds_text(seconds: float) -> str:
    """Format seconds: `4.1 µs`, `41.2 ms`, `8.3 s`, `2 min 05 s`, `3 h 07 min`."""
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def hours_text(hours: float) -> str:
    """Format hours: `41 min 00 s`, `5.2 hours`, `12.4 days`."""
    if hours < 1:
        return seconds_text(hours * 3600)
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"


def money_text(money: float) -> str:
    """Format dollars: `$1,240`."""
    return f"${money:,.2f}" if money < 10 else f"${money:,.0f}"


def with_error(text: str, error: float) -> str:
    """Add the interval that nine of ten measurements lie in: `41.2 ms ± 12%`, with an error of 0.12.

    From ±100% on the interval would reach below zero, so only its upper end is given, as a factor.
    """
    return f"{text} ± {error:.0%}" if error < 0.995 else f"{text} (a rough guess: up to {1 + error:.1f} times as much)"


def count_text(count: float) -> str:
    """Format a count: `8.03 B`, `437,760`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"


def counted(number: int, noun: str) -> str:
    """Format a number of things: `1 rank`, `2 ranks`."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def rate_text(rate: float) -> str:
    """Format a rate as a prefix to a unit per second: `81.3 G`, to be followed by `FLOP/s`."""
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g} "
