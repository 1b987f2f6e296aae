"""Two ranks under torchrun, of which the last is late for every collective: each prints what is seen meanwhile."""

import json
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard

from onecurve.device.waiting import progress_of

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Linear(4, 4)
fully_shard(model, reshard_after_forward=True)
inputs = torch.ones(2, 4)
ways = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1)),
    "functional": lambda: functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD) + 1,
    "fully_shard": lambda: model(inputs),
}
for wait in ways.values():  # connections are made late
    wait()
seen = {}
main = threading.main_thread().ident
for way, wait in ways.items():
    begin = threading.Barrier(2)

    def look(way: str = way, begin: threading.Barrier = begin) -> None:
        begin.wait()
        time.sleep(0.5)
        progress = progress_of(main)
        seen[way] = [progress.collectives, progress.waits]

    thread = threading.Thread(target=look)
    thread.start()
    begin.wait()
    if rank == 1:
        time.sleep(1.0)
    wait()
    thread.join()
print(json.dumps({"rank": rank, "seen": seen}) + "\n", end="", flush=True)  # in one write, so that lines stay whole
dist.destroy_process_group()
os._exit(0)
