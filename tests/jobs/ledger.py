"""A user's own training loop that records its samples: `torchrun … ledger.py FOLDER [DIE [KIND DATA]]`.

Each rank writes one line of JSON per step with the numbers of the samples that it trained on. After step DIE, unless
that is 0, rank 0 kills itself, which ends the job. KIND: of the data, as in files.py, or `map` or `stream`. DATA: its
folder.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from files import numbered, open_source
from torch import Tensor, nn

import onecurve as oc

SIZE = 301
"""Samples; not a multiple of the batch size, so the last step continues into the next epoch."""
LANES = 4


class Numbers:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return numbered(index)


def lane(number: int) -> Iterator[tuple[Tensor, Tensor]]:
    for index in itertools.count(number, LANES):
        yield numbered(index)


def dataset(kind: str, folder: str) -> object:
    if kind == "map":
        return Numbers(SIZE)
    return oc.data.stream(lane, LANES) if kind == "stream" else open_source(kind, folder)


words = dict(enumerate(sys.argv))
folder, die, kind, data = Path(words[1]), int(words.get(2, "0")), words.get(3, "map"), words.get(4, "")
steps = int(os.environ.get("LEDGER_STEPS", -(-SIZE // 12)))
job = oc.Job(
    model=lambda: nn.Linear(2, 1),
    loss=oc.loss.mse,
    data=lambda: dataset(kind, data),
    optimizer=oc.SGD(lr=1e-9),
    global_batch=12,
    steps=steps,
    save=oc.Save(every=4),
)
torch.set_num_threads(1)
with oc.prepare(job, out=folder) as run:
    for batch in run:
        report = run.step(batch)
        run.checkpoint()
        ids = [round(10 * number) for micro in batch.rounds for number in micro.target.flatten().tolist()]
        start = int(os.environ.get("LEDGER_START", 0))
        line = {"step": batch.step, "ranks": run.world.size, "start": start, "ids": ids}
        with (folder / f"ledger-{start}-{run.world.size}-{run.world.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if run.world.rank == 0 and batch.step == die:
            os.kill(os.getpid(), signal.SIGKILL)
