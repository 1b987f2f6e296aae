"""Where a run hands out its steps: a key in etcd, for workers on other machines."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.errors import UnreachableError
from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import RowServerAddress
from onecurve.servers.service import connect_service

_KEY = "rows/tickets"

Result = TypeVar("Result")


def announce_tickets(rows: RowServerAddress, address: str) -> None:
    """Let workers find this `HOST:PORT`."""
    _ask(rows, lambda service: service.put(_KEY, address))


def withdraw_tickets(rows: RowServerAddress) -> None:
    """The run is over."""
    _ask(rows, lambda service: service.delete(_KEY))


def find_tickets(rows: RowServerAddress) -> str:
    """Return the `HOST:PORT` that a run has announced. Raises an OnecurveError if there is none."""
    entry = _ask(rows, lambda service: service.get(_KEY))
    if entry is None:
        raise OnecurveError(f"{rows.service}: no run hands out steps there; start it first, with `onecurve run`")
    return entry.value


def _ask(rows: RowServerAddress, question: Callable[[Coordination], Awaitable[Result]]) -> Result:
    async def ask() -> Result:
        service = await connect_service(rows)
        try:
            return await question(service)
        finally:
            await service.close()

    try:
        return asyncio.run(ask())
    except UnreachableError as error:
        raise OnecurveError(f"{rows.service}: {error}") from None
