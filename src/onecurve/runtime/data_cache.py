"""The cache for the remote files of a job's data."""

import os
from collections.abc import Mapping

from onecurve.cache.cache_counts import CacheUse
from onecurve.cache.host_cache import HostCache
from onecurve.data.loader import Reader
from onecurve.data.needed_files import NeededFiles
from onecurve.data.source import Source
from onecurve.data.training_data import TrainingData
from onecurve.describe.units import bytes_text
from onecurve.device.collectives import all_gather_text
from onecurve.device.network import address_of, own_address
from onecurve.device.world import World
from onecurve.job.job import Job


def open_cache(job: Job, data: TrainingData, evaluation: Mapping[str, Reader], world: World) -> HostCache | None:
    """Let the job's data be read through its cache, if it has one. The first rank of a host starts a process."""
    sources = [each.dataset for each in (data.reader, *evaluation.values()) if isinstance(each.dataset, Source)]
    training = data.reader.dataset.remote_files() if isinstance(data.reader.dataset, Source) else []
    evaluated = [table for source in sources for table in source.remote_files() if source is not data.reader.dataset]
    if job.cache is None or not (training or evaluated):
        return None
    cache = HostCache(job.cache.path, job.cache.bytes, job.cache.peers)
    for source in sources:
        source.use_cache(cache.files)
    if world.local_rank == 0:
        needs = NeededFiles(data.order, training, evaluated, _samples_between_evaluations(job, data))
        cache.start(needs, needs.window_bytes, _address() if job.cache.peers else "")
    return cache


def _samples_between_evaluations(job: Job, data: TrainingData) -> int:
    if job.evaluate is None:
        return 0
    return data.order.size if job.evaluate.every == "epoch" else job.evaluate.every * job.global_batch


def _address() -> str:
    """At which other hosts reach this one: that of the network device for collectives, if one is named."""
    device = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    return address_of(device) if device else own_address()


def meet_hosts(cache: HostCache | None, world: World) -> None:
    """Let the hosts of a generation know each other's caches. All ranks must call it."""
    if cache is not None and cache.has_peers:
        cache.meet(all_gather_text(cache.card), world.rank)


def use_text(use: CacheUse) -> str:
    """What a cache has done, for a person."""
    opened = use.hits + use.waits
    share = f"{use.hits / opened:.0%} of {opened:,} files were there when they were needed; " if opened else ""
    peers = f", {bytes_text(use.peer_bytes)} from other hosts" if use.peer_bytes else ""
    return f"{share}{bytes_text(use.store_bytes)} came from the store{peers}"
