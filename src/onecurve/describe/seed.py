"""Seeds derived from numbers, the same on every machine, rank and version of Python."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(*numbers: int) -> int:
    """Hash integers of any size into 64 bits (splitmix64, one turn per 64 bits)."""
    state = _GOLDEN
    for number in numbers:
        while True:
            state = _finalize(((state ^ (number & _MASK)) + _GOLDEN) & _MASK)
            number >>= 64
            if number in (0, -1):
                break
    return state


def _finalize(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
