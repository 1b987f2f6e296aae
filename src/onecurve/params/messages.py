"""What ranks and row servers say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onecurve.job.row_point import StepVerdict
from onecurve.params.step_log import RowCrew, StepLog


@dataclass(frozen=True, kw_only=True)
class Message:
    """What ranks and servers send each other about a piece."""

    epoch: int
    piece: int
    """Its first slot."""
    sender: str = ""


@dataclass(frozen=True, kw_only=True)
class RankMessage(Message):
    """What a rank asks."""

    step: int
    rank: int
    crew: RowCrew
    received: int = 0
    """The newest step whose rows the rank has received."""
    points: tuple[int, ...] = ()
    """Later crews begin after one of these steps; none does if it is empty."""
    verdicts: Mapping[int, StepVerdict] = field(default_factory=dict)
    """On the latest steps. Pushes have them too: whoever has confirmed a push can add all steps before it."""


@dataclass(frozen=True, kw_only=True)
class Pull(RankMessage):
    """A rank asks for rows."""

    number: int = 0
    """Of the pulls of this step."""
    ids: Any = None
    may_be_newer: bool = False
    """True if the rows may have later steps too."""


@dataclass(frozen=True, kw_only=True)
class Read(Pull):
    """A rank asks for all rows of some slots with their states, to save them."""

    slots: tuple[int, int] = (0, 0)
    """The first one, and the first one after them."""
    since: int = 0
    """Only those that have changed in this step or later."""
    limit: int = 0
    """About how many bytes the answer may have."""
    tables: tuple[str, ...] = ()
    """Those that are asked for."""


@dataclass(frozen=True, kw_only=True)
class Push(RankMessage):
    """A rank sends gradients."""

    part: Any


@dataclass(frozen=True, kw_only=True)
class Answer(Message):
    """What a rank is answered."""

    crew: int
    """Number of the crew that has asked."""
    step: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Rows(Answer):
    """The answer to a pull."""

    number: int = 0
    rows: Any = None


@dataclass(frozen=True, kw_only=True)
class Pushed(Answer):
    """The answer to a push: all copies have it."""

    squares: Any = None
    """Of the gradients, summed over the ranks. None if the step was added before."""


@dataclass(frozen=True, kw_only=True)
class Refused(Message):
    """The sender has another view, is not the one to ask, or belongs to an earlier crew. `epoch`: the server's."""

    lost: int | None = None
    """If a crew begins at a step whose rows the server does not have: that step."""


@dataclass(frozen=True, kw_only=True)
class Relay(Message):
    """The primary sends a push to another copy, with what it knows about the steps before."""

    push: Push
    verdicts: Mapping[int, StepVerdict]
    received: Mapping[int, int]
    points: tuple[int, ...]
    """The steps that the rows must be able to go back to."""


@dataclass(frozen=True, kw_only=True)
class Relayed(Message):
    """The answer to a Relay: the copy has it."""

    crew: int
    step: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Copy(Message):
    """The primary sends its rows and all that is staged to a server that joins."""

    rows: Any
    log: StepLog[Any]


@dataclass(frozen=True, kw_only=True)
class Copied(Message):
    """The answer to a Copy."""

    crew: int
    applied: int
    """The steps that the server has added to its rows."""


Sent = tuple[str, Message]
"""A message and whom it goes to: a server, or the sender of what it answers."""
