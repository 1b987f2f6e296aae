"""How a launched rank reaches the row servers of its job."""

from collections.abc import Mapping

import torch

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import RowServerAddress
from onecurve.device.collectives import all_gather_text
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.job.params import Params
from onecurve.launch.launcher import Launcher
from onecurve.launch.own_row_servers import own_row_servers
from onecurve.params.row_store import StoredTable
from onecurve.runtime.row_tables import RowAccess, served_by
from onecurve.servers.rank_servers import RankServers
from onecurve.servers.settings import RowSettings


def row_access(job: Job, launcher: Launcher | None, world: World, serves_parameters: bool = False) -> RowAccess | None:
    """Return how the row servers of a job are reached; None if it has none.

    `launcher`: who has started this rank; None if it was not onecurve. `serves_parameters`: they hold those too.
    """
    params = job.row_servers
    if params is None:
        return None
    if not params.is_etcd and world.size != world.local_size:
        raise OnecurveError(
            f"Job: params={params.address!r} starts servers on one host, but this run has several; start servers with "
            "`onecurve serve`, and give their address"
        )

    def connect(tables: Mapping[str, StoredTable], dtype: torch.dtype) -> RankServers:
        settings = RowSettings.of(tables.values(), job.seed, dtype)
        return RankServers(row_address(params, launcher, world), settings, params.servers, params.replicas)

    return RowAccess(served_by(connect, job.seed, launcher or (lambda: None)), serves_parameters)


def row_address(params: Params, launcher: Launcher | None, world: World) -> RowServerAddress:
    """Where the row servers of a job are found. All ranks call it."""
    if params.is_etcd:
        return RowServerAddress.of_etcd(params.address, params.tls or "")
    return _address(params.servers, launcher, world)


def _address(servers: int, launcher: Launcher | None, world: World) -> RowServerAddress:
    """Have so many servers on this host; return where they are found. All ranks call it."""
    if launcher is not None:
        return launcher.row_servers(servers)
    text = to_json(own_row_servers().start(servers)) if world.rank == 0 else ""
    return from_json(RowServerAddress, all_gather_text(text)[0].encode(), "row servers")
