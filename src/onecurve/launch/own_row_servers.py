"""Row servers of a process that nobody has launched: they end with it."""

import asyncio
import atexit
import logging
import threading
from functools import cache

from onecurve.describe.row_servers import RowServerAddress
from onecurve.launch.row_servers import LocalRowServers

_log = logging.getLogger(__name__)


class OwnRowServers:
    """Servers that are started by a thread of this process."""

    def __init__(self) -> None:
        self.servers = LocalRowServers(_log.warning)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="onecurve row servers", daemon=True).start()
        atexit.register(self._close)

    def start(self, count: int) -> RowServerAddress:
        """Have at least so many servers; return where they are found."""

        async def start() -> RowServerAddress:
            return self.servers.start(count)

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def _close(self) -> None:
        async def close() -> None:
            self.servers.close()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()


@cache
def own_row_servers() -> OwnRowServers:
    """The servers of this process."""
    return OwnRowServers()
