"""The newest view of the row servers, as a rank knows it."""

import asyncio
import threading
from types import TracebackType
from typing import Self

from onecurve.coordination.client import RemoteCoordination
from onecurve.describe.errors import OnecurveError
from onecurve.params.view import View
from onecurve.servers.view_follower import VIEW_KEY, decoded_view


class RankViews:
    """Follows the view in a thread."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._address = host, port, key
        self._view: View | None = None
        self._error: Exception | None = None
        self._known = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._follow())
        self._thread = threading.Thread(target=self._run, name="onecurve row views", daemon=True)
        self._thread.start()

    def current(self) -> View:
        """The newest view. Waits for the first one."""
        self._known.wait()
        if self._error is not None:
            raise OnecurveError(f"the row servers' view cannot be followed: {self._error}")
        assert self._view is not None
        return self._view

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except OnecurveError as error:
            self._error = error
            self._known.set()
        finally:
            self._loop.close()

    async def _follow(self) -> None:
        coordination = await RemoteCoordination.connect(*self._address)
        try:
            async for changes in await coordination.watch(VIEW_KEY):
                for change in changes:
                    if change.value is not None:
                        self._view = decoded_view(change.value)
                        self._known.set()
        finally:
            await coordination.close()
