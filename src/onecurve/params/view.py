"""Who has the rows of each slot: the view, which changes by compare-and-swap."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Place = Literal["primary", "backup"]


@dataclass(frozen=True)
class Piece:
    """Consecutive slots, and who has their rows. Servers are known by their names; one that starts again has another.

    A piece is named by its first slot, and may be split, so that a part of it can move to another server.
    """

    end: int
    """The first slot after it."""
    primary: str
    backup: str = ""
    """Empty if there is none."""
    joining: str = ""
    """A server that is getting a copy."""
    since: int = 0
    """The epoch in which it began to join."""
    joins_as: Place = "backup"
    """What it will be."""

    def other_than(self, place: Place) -> str:
        """The server in the other place; empty if there is none."""
        return self.backup if place == "primary" else self.primary

    @property
    def servers(self) -> tuple[str, ...]:
        """All that have its rows, or are getting them."""
        return tuple(name for name in (self.primary, self.backup, self.joining) if name)


@dataclass(frozen=True)
class View:
    """Who has the rows of each slot, from one change to the next."""

    epoch: int
    pieces: Mapping[int, Piece]
    """By their first slots, in order. Each begins where the one before it ends."""
    servers: Mapping[str, "ServerAddress"] = field(default_factory=dict)
    """All servers, also those that have no rows yet, by name."""
    restarts: int = 0
    """How often all rows have begun anew: servers then forget those that they have."""
    copies: int = 2
    """Of each piece, as far as there are servers."""
    settings: str = ""
    """What servers must know of the job, since the rows have begun anew: JSON that `servers/` reads."""

    def piece_with(self, slot: int) -> Piece | None:
        """The piece that a slot is in; None if there is none."""
        begins = list(self.pieces)
        at = bisect_right(begins, slot) - 1
        return self.pieces[begins[at]] if at >= 0 and slot < self.pieces[begins[at]].end else None


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is."""

    address: str
    """`HOST:PORT`."""
    machine: str
    """Two copies of a piece are on different machines."""
    is_leaving: bool = False
    """True if it will end once others have its rows."""
