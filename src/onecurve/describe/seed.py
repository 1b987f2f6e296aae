"""Deterministic seeds derived from integers, identical on every machine, rank and Python version."""

_MASK_64 = (1 << 64) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15


def mix(*numbers: int) -> int:
    """Hash integers of any size into 64 bits (splitmix64, one round per 64 bits of input)."""
    state = _GOLDEN_RATIO
    for number in numbers:
        while True:
            state = _finalize(((state ^ (number & _MASK_64)) + _GOLDEN_RATIO) & _MASK_64)
            number >>= 64
            if number in (0, -1):
                break
    return state


def _finalize(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK_64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK_64
    return value ^ (value >> 31)
