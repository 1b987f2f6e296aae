"""One copy of a piece on a server: its rows, its log, and who waits for what."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from onecurve.params.messages import Pull, Push
from onecurve.params.step_log import ReadyStep, RowCrew, StepLog

Part = TypeVar("Part")


class PieceRows(Protocol[Part]):
    """The rows of one piece."""

    def add(self, step: ReadyStep[Part]) -> None:
        """Add a step to the rows."""

    @property
    def points(self) -> Sequence[int]:
        """The steps that the rows must be able to go back to."""

    def keep(self, points: Sequence[int]) -> None:
        """Be able to go back to these steps, and to no other ones. An earlier call may come late."""

    def can_go_back(self, step: int) -> bool:
        """True if what was changed after this step is kept."""

    def go_back(self, step: int) -> None:
        """Take away all steps after this one."""

    def begin_crew(self, step: int) -> None:
        """Forget what earlier crews have pushed or noted for later steps: another one begins after this step."""

    def get(self, ids: Any) -> Any: ...

    def read(self, slots: tuple[int, int], since: int, limit: int, tables: Sequence[str]) -> Any:
        """All rows of some slots and tables that have changed in this step or later, as many as the limit allows."""

    def squares(self, step: int, parts: Sequence[Part]) -> Any:
        """The squares of the gradients of a step, summed over the ranks."""

    def copy(self) -> Any:
        """All rows, as `MakeRows` takes them."""

    def drop(self) -> None:
        """Forget all rows."""

    def split(self, slot: int) -> "PieceRows[Part]":
        """Give away the rows of this slot and all after it."""

    def divide(self, part: Part, slot: int) -> tuple[Part, Part]:
        """What was pushed for the slots before this one, and for the others."""


class MakeRows(Protocol[Part]):
    """Makes the rows of some slots. `contents`: a copy, or None for slots that nobody has had before."""

    def __call__(self, slots: range, contents: Any) -> PieceRows[Part]: ...


@dataclass
class HeldPiece(Generic[Part]):
    """One copy of a piece, and what its primary knows of the others."""

    end: int
    rows: PieceRows[Part]
    log: StepLog[Part]
    waiting: dict[tuple[int, int, int], Pull] = field(default_factory=dict)
    """Pulls, by step, rank and number, of which the rows are not there yet."""
    unanswered: dict[tuple[int, int], Push] = field(default_factory=dict)
    """Pushes, by step and rank, that some copy has not confirmed yet."""
    confirmed: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """By server: pushes that it has."""
    has_joined: bool = False
    """True if the server that joins has got a copy with all steps so far: from then on it must have every push."""

    def split(self, slot: int) -> "HeldPiece[Part]":
        """Keep the slots before this one. Whoever waits for an answer asks again, because the view has changed."""
        rows = self.rows.split(slot)
        log = self.log.split(lambda part: self.rows.divide(part, slot))
        confirmed = {server: set(known) for server, known in self.confirmed.items()}
        self.waiting.clear()
        self.unanswered.clear()
        other = HeldPiece(end=self.end, rows=rows, log=log, confirmed=confirmed, has_joined=self.has_joined)
        self.end = slot
        return other

    def end_as_primary(self) -> None:
        """Forget what only the primary knows. Whoever waits for an answer asks the new one."""
        self.waiting.clear()
        self.unanswered.clear()
        self.confirmed.clear()
        self.has_joined = False

    def enter(self, crew: RowCrew) -> bool:
        """Follow a later crew; return False if that is not possible, because this copy lacks steps that it needs, or
        what later ones have changed is no longer kept."""
        goes_back = self.log.applied > crew.start
        if not self.log.reaches(crew) or (goes_back and not self.rows.can_go_back(crew.start)):
            return False
        if goes_back:
            self.rows.go_back(crew.start)
        self.log.enter(crew)
        self.rows.begin_crew(crew.start)
        self.waiting.clear()
        self.unanswered.clear()
        self.confirmed = {
            server: {(step, rank) for step, rank in known if step <= crew.start}
            for server, known in self.confirmed.items()
        }
        return True
