"""What a worker and the run that it works for say to each other: MessagePack, with the length before it.

Not JSON, which has no NaN: a step whose loss is not finite must be told.
"""

import asyncio
import struct
from collections.abc import Mapping

import msgspec

from onecurve.describe.errors import OnecurveError
from onecurve.job.row_point import StepVerdict

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
_MAX_BYTES = 1 << 24


class TicketMessage(msgspec.Struct, tag=True, frozen=True):
    """Any of them."""


class Join(TicketMessage, frozen=True):
    """A worker wants to take part."""

    job: Mapping[str, str]
    """The fingerprint of its job."""
    is_own: bool
    """True if the run has started it."""


class Joined(TicketMessage, frozen=True):
    """It takes part."""

    worker: int
    facts: str
    """`JobFacts` of the run, as JSON."""
    crew: int
    steps: int
    step: int
    """The run has begun after this step,"""
    position: int
    """with the sample at this position of the data."""
    unsent: str
    """Digest of the tensors that are not on the servers, which the worker must have too."""


class Ask(TicketMessage, frozen=True):
    """A worker asks for a ticket."""


class Ticket(TicketMessage, frozen=True):
    """A step that the worker is to compute."""

    step: int
    known: int
    """The rows must have all row steps up to this one."""
    verdicts: Mapping[int, StepVerdict]


class AskNumber(TicketMessage, frozen=True):
    """A worker has computed its ticket, and asks for the number of a row step."""


class Number(TicketMessage, frozen=True):
    """The number of the row step in which it pushes."""

    row_step: int
    verdicts: Mapping[int, StepVerdict]


class Done(TicketMessage, frozen=True):
    """All servers have the gradients of the ticket, or it was not finite. The answer is the next ticket."""

    pushed: tuple[int, StepVerdict] | None
    """The row step, and what is to become of it."""
    lr: float
    nominal: float
    sums: tuple[float, ...]
    """As in `StepReport`."""
    memory: int
    leaves: bool = False
    """True if the worker wants no other ticket; the answer is `End`."""


class Alive(TicketMessage, frozen=True):
    """A worker lives, though it has nothing to say. It is not answered."""


class End(TicketMessage, frozen=True):
    """There is nothing more to do."""


class Failed(TicketMessage, frozen=True):
    """Why the other side cannot go on."""

    text: str
    lost_rows: bool = False
    """True if the run can be started again from its checkpoint."""


AnyMessage = Join | Joined | Ask | Ticket | AskNumber | Number | Done | Alive | End | Failed


def encoded(message: TicketMessage) -> bytes:
    text = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(text)) + text


def announced(length: bytes) -> int:
    """The length of a message, which is announced before it."""
    (found,) = _LENGTH.unpack(length)
    if found > _MAX_BYTES:
        raise OnecurveError(f"a message of {found:,} bytes was announced")
    return int(found)


def decoded(text: bytes) -> TicketMessage:
    try:
        message: TicketMessage = msgspec.msgpack.decode(text, type=AnyMessage)
        return message
    except msgspec.DecodeError as error:
        raise OnecurveError(f"a message cannot be read ({error})") from None


async def receive(reader: asyncio.StreamReader) -> TicketMessage:
    return decoded(await reader.readexactly(announced(await reader.readexactly(LENGTH_BYTES))))
