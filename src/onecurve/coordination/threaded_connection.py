"""A connection that is served by a thread once its client is known, because much is sent over it."""

import logging
import threading
from collections.abc import Callable

from onecurve.coordination.authenticated_server import AcceptedConnection, AuthenticatedServer
from onecurve.coordination.channel import Channel
from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.sealed_socket import SealedSocket

_log = logging.getLogger(__name__)


class ThreadedConnection(AcceptedConnection):
    """A connection until its client is known. A thread then takes its socket over."""

    def __init__(self, server: AuthenticatedServer, answer: Callable[[SealedSocket], None], name: str) -> None:
        """`answer`: receives one request and answers it. `name`: of the thread."""
        super().__init__(server)
        self._answer, self._name = answer, name

    def _open(self, channel: Channel) -> None:
        assert self._transport is not None
        taken = self._transport.get_extra_info("socket").dup()
        self._transport.pause_reading()  # what follows belongs to the thread
        taken.setblocking(True)
        client = SealedSocket(taken, channel)
        threading.Thread(target=self._serve, args=(client,), name=self._name, daemon=True).start()
        self.abort()

    def _serve(self, client: SealedSocket) -> None:
        try:
            while True:
                self._answer(client)
        except (OSError, CoordinationError, ValueError) as error:
            _log.info("a connection of %s has ended: %s", self._name, error)
        finally:
            client.close()
