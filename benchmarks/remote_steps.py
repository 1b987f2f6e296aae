"""Time steps on local files and on the same files in a store, in turns: `remote_steps.py FOLDER URL INDEX CACHE`.

A step waits for its batch and then sleeps, as a host does whose accelerator computes. Prints ratios of step times.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import onecurve as oc
from onecurve.cache.host_cache import HostCache
from onecurve.data.loader import Batch, Reader, TrainingBatches
from onecurve.data.needed_files import NeededFiles
from onecurve.data.source import Source
from onecurve.data.training_data import TrainingData
from onecurve.describe.plan import Plan

_BATCH, _STEPS = 32, 260
_COMPUTE_SECONDS = 0.06
_CACHE_BYTES = 48 << 20
_WARM_STEPS = 40
"""Steps that are not counted: those of the first windows, whose files nobody could fetch before."""


def sample(line: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([float(line["id"])]), torch.tensor([float(len(line["text"]))])


def training_data(source: Source) -> TrainingData:
    return TrainingData(Reader(source, 0), source.order(0), _STEPS)


def timed(batches: Iterator[Batch]) -> tuple[float, list[float]]:
    """One step: its seconds, and its samples."""
    begin = time.perf_counter()
    batch = next(batches)
    time.sleep(_COMPUTE_SECONDS)
    return time.perf_counter() - begin, batch.rounds[0].inputs[0].flatten().tolist()


def main() -> None:
    folder, url, index, path = sys.argv[1:5]
    plan = Plan.parse(f"mb{_BATCH}")
    local = training_data(oc.data.jsonl(folder, window=4).map(sample))
    source = oc.data.jsonl(url, index=index, window=4).map(sample)
    remote = training_data(source)
    cache = HostCache(path, _CACHE_BYTES, peers=False)
    source.use_cache(cache.files)
    needs = NeededFiles(remote.order, source.remote_files(), [], 0)
    cache.start(needs, needs.window_bytes, "127.0.0.1")
    loaders: list[TrainingBatches] = [data.batches(plan, 0, workers=1) for data in (local, remote)]
    loaders[1].on_position = cache.reach
    streams = [iter(loader) for loader in loaders]
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(_STEPS):
        results = [timed(stream) for stream in streams]
        assert results[0][1] == results[1][1], "other samples"
        if step >= _WARM_STEPS:
            for kept, (taken, _) in zip(seconds, results, strict=True):
                kept.append(taken)
    median = statistics.median(seconds[1]) / statistics.median(seconds[0])
    mean = statistics.mean(seconds[1]) / statistics.mean(seconds[0])
    size = sum(file.stat().st_size for file in Path(folder).glob("*.jsonl"))
    used = cache.use
    print(json.dumps({"median": median, "mean": mean, "waits": used.waits, "hits": used.hits,
                      "read": used.store_bytes / size}))  # fmt: skip


if __name__ == "__main__":
    main()
