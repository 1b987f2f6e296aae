"""onecurve serve: hold rows of embedding tables on this machine."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import RowServerAddress, ServerOrder
from onecurve.device.network import address_towards
from onecurve.job.params import is_etcd_address
from onecurve.servers.row_process import RowProcess
from onecurve.servers.service import etcd_member


def serve(
    address: str,
    *,
    listen: str | None = None,
    tls: str | None = None,
    memory: int | None = None,
    spill: str | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Hold rows of embedding tables for the job that uses this address, until a signal ends the process.

    At SIGTERM other servers take the rows over, and then the process ends; at a second SIGTERM it ends at once.

    Args:
        address: `"etcd://HOST:PORT,…/NAME"` (`etcds` for TLS to etcd), as in `onecurve.Params`.
        listen: Address of this host at which ranks and other servers reach it. Default: None, the one from which etcd
            is reached.
        tls: Folder with `ca.pem`, `cert.pem` and `key.pem`; needed unless `listen` is a loopback address. Default:
            None.
        memory: Bytes of rows that are kept in memory; the others are in files in `spill`. Default: None, all rows.
        spill: Folder for them, on a fast disk. Default: None.
        on_ready: A function that is called with the server's own `HOST:PORT` once it serves. Default: none is called.
    """
    if not is_etcd_address(address):
        raise OnecurveError(f"serve: {address!r}; give an address etcd://HOST:PORT,…/NAME")
    if (memory is None) != (spill is None):
        raise OnecurveError(
            "serve: give --memory and --spill together: how many rows stay in memory, and where the rest is"
        )
    if spill is not None and not Path(spill).is_dir():
        raise OnecurveError(f"serve: --spill {spill}: there is no such folder")
    listen = listen or address_towards(*etcd_member(address))
    try:
        listen = socket.gethostbyname(listen)
    except OSError as error:
        raise OnecurveError(f"serve: --listen {listen}: no address is known by this name ({error.strerror})") from None
    if tls is None and not ip_address(listen).is_loopback:
        raise OnecurveError(
            f"serve: {listen} can be reached from other machines: give --tls FOLDER with ca.pem, cert.pem and key.pem"
        )
    name = f"{listen}-{secrets.token_hex(4)}"
    order = ServerOrder(
        name,
        machine=listen,
        listen=listen,
        address=RowServerAddress.of_etcd(address, tls or ""),
        spill=spill or "",
        memory=memory or 0,
    )

    async def run() -> None:
        await RowProcess(order).run(on_ready)

    asyncio.run(run())
