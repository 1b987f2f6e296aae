"""onecurve probe: what do these machines really do? This side starts the ranks; probe_worker.py measures."""

from collections.abc import Callable
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json, write_toml
from onecurve.describe.errors import InterruptError
from onecurve.describe.requests import ProbeRequest, RegistrationRequest
from onecurve.device.environment import is_rank_of_launcher
from onecurve.hosts.leader import Leader
from onecurve.launch.local import LocalRanks
from onecurve.verbs.hosts import Hosts, joined_hosts
from onecurve.verbs.program import PROGRAM

_MAX_PROBE_RANKS = 16
"""Ranks that measure a CPU host; more would add little."""


def probe(
    out: str | Path = "cluster.toml",
    *,
    hosts: int | str | None = None,
    join: str | None = None,
    key_file: str | Path | None = None,
    quiet: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Cluster | None:
    """Measure this host, several hosts, or under torchrun all hosts of the world: matrix products, memory, links.

    Args:
        out: Path of the cluster.toml to write. Default: `"cluster.toml"`.
        hosts: Number of hosts, or `"MIN:MAX"`. Start the same command on each of them; they meet in the folder of
            `out`, unless `join` is given. Default: None, 1, or under srun and mpirun theirs.
        join: Where hosts meet that do not see that folder: `"HOST:PORT"`, an address of one of them, or
            `"etcd://HOST:PORT,…"` (`etcds` for TLS). Default: None, in the folder.
        key_file: A file of 32 random bytes, the same on every host, that only its owner can read; needed for
            `"HOST:PORT"`. Default: None.
        quiet: Print nothing. Default: True.
        say: A function that is called with short texts about the hosts. Default: they are dropped.

    Returns:
        The measured cluster; None in processes without rank 0: on other hosts, and on other ranks of torchrun, srun and
        mpirun.

    Example::

        cluster = oc.probe("cluster.toml")
        print(cluster.devices, "devices of kind", cluster.device_kind)
    """
    joined = joined_hosts(hosts, Path(out).with_name(f".meeting-{Path(out).name}"), join, key_file, say)
    if joined is not None:
        cluster = _probe_hosts(joined, quiet)
    else:
        is_rank = is_rank_of_launcher()
        cluster = _probe_as_rank(quiet, Path(out).parent) if is_rank else probe_this_host(quiet=quiet)
    if cluster is not None:
        write_toml(cluster, Path(out))
    return cluster


def _probe_as_rank(quiet: bool, folder: Path) -> Cluster | None:
    from onecurve.device.world import World
    from onecurve.verbs.launched import launched_world
    from onecurve.verbs.probe_worker import probe_as_rank

    with launched_world(folder) as world:
        return probe_as_rank(ProbeRequest(quiet=quiet), world or World())


def probe_this_host(*, quiet: bool = True) -> Cluster:
    """Measure this host with ranks that are started for it."""
    request = to_json(ProbeRequest(quiet=quiet))
    with LocalRanks(PROGRAM, "probe", request) as launcher:
        ranks = _ranks_of(from_json(Cluster, launcher.ask("devices", "{}").encode(), "devices"))
        ended = launcher.run("probe", request, ranks)
    if ended.signal is not None or ended.results is None:
        raise InterruptError("interrupted before the probe was done", ended.signal or "SIGINT")
    return from_json(Cluster, ended.results[0].encode(), "what the ranks measured")


def _probe_hosts(hosts: Hosts, quiet: bool) -> Cluster | None:
    """Measure this host together with others; return the cluster on the host that leads."""
    request = to_json(ProbeRequest(quiet=quiet))

    async def conduct(leader: Leader) -> str:
        members = await leader.wait_for_hosts(hosts.count)
        ranks = min(_ranks_of(host.devices) for host in members.values())
        return await leader.run("probe", [(host, ranks) for host in members])

    with LocalRanks(PROGRAM, "probe", request, hosts.say) as launcher:
        result, has_led = hosts.conduct(
            launcher,
            question=lambda name, address: RegistrationRequest(name=name, address=address),
            conduct=conduct,
            request=lambda _: request,
        )
    return from_json(Cluster, result.encode(), "what the ranks measured") if has_led else None


def _ranks_of(host: Cluster) -> int:
    """How many ranks measure a host."""
    return min(host.cores, _MAX_PROBE_RANKS) if host.device_kind == "cpu" else host.devices
