"""A row server on the network: takes frames of ranks and other servers, and sends what the protocol answers.

TCP loses nothing while a connection lives, so what was not answered is sent again only after a connection was made, or
the view has changed. A process that does not exist any more refuses connections at once; one that is silent is noticed
by its lease.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from onecurve.describe.errors import OnecurveError
from onecurve.params.frame import HEADER_BYTES, FrameError, decode, encode, lengths
from onecurve.params.messages import Copy, Message, Refused, Relay, Sent
from onecurve.params.replication import RowServer
from onecurve.params.table_holder import Gradients
from onecurve.params.view import View

Connect = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Address of another server → a connection over which this one is known by its name."""

_RETRY_SECONDS = 0.05
_REFUSED_SECONDS = 0.01

_log = logging.getLogger(__name__)


class RowService:
    """Runs a `RowServer` in an event loop."""

    def __init__(
        self,
        server: RowServer[Gradients],
        connect: Connect,
        on_dead: Callable[[str], None],
        on_joined: Callable[[int, Mapping[int, str]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`connect`: opens a connection to another server. `on_dead`: told that nobody listens at the address of one.
        `on_joined`: told about pieces of which this server is primary, each with the server that can take part in the
        view that follows this epoch. `on_failure`: told about an error of this server: what it has done is not known,
        so it must end."""
        self._server, self._connect, self._on_dead, self._on_joined = server, connect, on_dead, on_joined
        self._on_failure = on_failure
        self._told: tuple[int, Mapping[int, str]] = (0, {})
        """The epoch, and who had joined, when it was told last."""
        self._askers: dict[str, asyncio.StreamWriter] = {}
        """Connections of ranks and servers that ask, by name: they are answered there."""
        self._links: dict[str, asyncio.StreamWriter] = {}
        """Connections to other servers, by name: they are asked there."""
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._reminding: asyncio.TimerHandle | None = None

    @property
    def view(self) -> View:
        return self._server.view

    def change_view(self, view: View) -> None:
        """Follow a newer view."""
        self._send(self._server.change_view(view))
        for name in [name for name in self._connecting if name not in view.servers]:
            self._connecting.pop(name).cancel()

    async def serve(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a rank or another server until it closes the connection. It has proved the key."""
        self._askers[peer] = writer
        try:
            await self._take_frames(peer, reader)
        except OnecurveError as error:  # it is refused; the others are served
            _log.warning("connection of %s closed: %s", peer, error)
        finally:
            if self._askers.get(peer) is writer:
                del self._askers[peer]
            writer.close()

    async def _take_frames(self, peer: str, reader: asyncio.StreamReader) -> None:
        """Take in what another one sends until the connection ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                messages = await read_frame(reader)
                if any(message.sender != peer for message in messages):
                    raise FrameError(f"{peer} has sent a message of somebody else")
                self._send(self._take(messages))
                if any(isinstance(message, Refused) for message in messages):
                    self._remind_soon()
                self._tell_joined()

    def _take(self, messages: Iterable[Message]) -> list[Sent]:
        try:
            return [sent for message in messages for sent in self._server.take(message)]
        except Exception as error:
            self._on_failure(error)
            raise

    def _send(self, sent: Iterable[Sent]) -> None:
        """Send messages, one frame for each receiver. Whoever is gone asks again when it is back."""
        frames: dict[tuple[str, bool], list[Message]] = {}
        for receiver, message in sent:
            frames.setdefault((receiver, isinstance(message, Relay | Copy)), []).append(message)
        for (receiver, asks), messages in frames.items():
            writer = (self._links if asks else self._askers).get(receiver)
            if writer is not None:
                writer.writelines(encode(messages))
            elif asks and receiver in self.view.servers and receiver not in self._connecting:
                self._connecting[receiver] = asyncio.create_task(self._keep_connected(receiver))

    async def _keep_connected(self, name: str) -> None:
        """Connect to another server, and connect again when the connection is lost."""
        while name in self.view.servers:
            try:
                reader, writer = await self._connect(self.view.servers[name].address)
            except (OSError, OnecurveError, EOFError) as error:
                if isinstance(error, ConnectionRefusedError):
                    self._on_dead(name)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._links[name] = writer
            self._send(self._server.remind())  # what was asked before, or on a connection that is lost
            with suppress(OnecurveError):
                await self._take_frames(name, reader)
            del self._links[name]
            writer.close()
        self._connecting.pop(name, None)

    def _remind_soon(self) -> None:
        """Ask again what another server has refused, because one of both has not seen the newest view yet."""
        if self._reminding is None:
            self._reminding = asyncio.get_running_loop().call_later(_REFUSED_SECONDS, self._remind)

    def _remind(self) -> None:
        self._reminding = None
        self._send(self._server.remind())

    def _tell_joined(self) -> None:
        now = self.view.epoch, self._server.joined()
        if now[1] and now != self._told:
            self._told = now
            self._on_joined(*now)


async def read_frame(reader: asyncio.StreamReader) -> list[Message]:
    body, tensors = lengths(await reader.readexactly(HEADER_BYTES))
    return decode(await reader.readexactly(body), bytearray(await reader.readexactly(tensors)))
