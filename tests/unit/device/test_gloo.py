"""gloo groups that connect at first use, with threads as ranks."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from onecurve.device.gloo import gloo_lazy_init

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from start_up import CountingStore


@pytest.mark.parametrize("ranks", [4, 12])
def test_a_lazy_group_reads_two_addresses_whatever_its_size(ranks: int) -> None:
    shared = dist.HashStore()
    stores = [CountingStore(shared) for _ in range(ranks)]

    def run(rank: int) -> float:
        group = dist.ProcessGroupGloo(stores[rank], rank, ranks)
        assert stores[rank].operations == {"set": 1}
        values, gathered = torch.ones(1), torch.empty(ranks)
        group.allreduce([values]).wait()
        group._allgather_base(gathered, values).wait()
        group._reduce_scatter_base(values, gathered).wait()
        return float(values)

    with gloo_lazy_init(True), ThreadPoolExecutor(ranks) as threads:
        assert list(threads.map(run, range(ranks))) == [ranks * ranks] * ranks
    assert all(store.operations == {"set": 1, "wait": 2, "get": 2} for store in stores)


def test_an_eager_group_reads_every_address() -> None:
    shared = dist.HashStore()
    stores = [CountingStore(shared) for _ in range(4)]
    with gloo_lazy_init(False), ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda rank: dist.ProcessGroupGloo(stores[rank], rank, 4), range(4)))
    assert all(store.operations == {"set": 1, "wait": 4, "get": 4} for store in stores)


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_environment_is_as_before(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv("TORCH_GLOO_LAZY_INIT", raising=False)
    else:
        monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", before)
    with gloo_lazy_init(True):
        assert os.environ["TORCH_GLOO_LAZY_INIT"] == "1"
    assert os.environ.get("TORCH_GLOO_LAZY_INIT") == before
