"""Which ids of an embedding table have a row, and for how long."""

from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class RowLimits:
    """Which ids have a row. Without limits, each that a step has used."""

    admit_after: int = 1
    """An id has a row from its update of this number on; in those before it has its first value."""
    evict_after: int | None = None
    """A row that has not been updated for more than so many updates has its first value again."""

    def __post_init__(self) -> None:
        _check("admit_after", self.admit_after)
        if self.evict_after is not None:
            _check("evict_after", self.evict_after)

    @property
    def counts(self) -> bool:
        """True if updates of each id are counted."""
        return self.admit_after > 1

    @property
    def columns(self) -> int:
        """Numbers that are stored with each row, after the state of its optimizer."""
        return self.counts + (self.evict_after is not None)

    def __str__(self) -> str:
        admit = f", admit_after={self.admit_after}" if self.counts else ""
        return admit + (f", evict_after={self.evict_after}" if self.evict_after is not None else "")


def _check(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 24:
        raise OnecurveError(f"table: {name} must be an integer of at least 1, and below 2^24; got {value!r}")
