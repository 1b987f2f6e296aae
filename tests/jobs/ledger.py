"""A user's own training loop that records its samples: `torchrun … ledger.py FOLDER [DIE]`.

Each rank writes one line of JSON per step with the ids of the samples that it trained on. After step DIE, rank 0 kills
itself, which ends the job.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import onecurve as oc


class Numbers:
    """Samples whose input is their own index."""

    def __len__(self) -> int:
        return 301  # not a multiple of the batch size, so the last step continues into the next epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index)]), torch.tensor([index / 301])


folder, die = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
job = oc.Job(
    model=lambda: nn.Linear(1, 1),
    loss=oc.loss.mse,
    data=Numbers,
    optimizer=oc.SGD(lr=1e-6),
    global_batch=12,
    epochs=1,
    save=oc.Save(every=4),
)
with oc.prepare(job, out=folder) as run:
    for batch in run:
        report = run.step(batch)
        run.checkpoint()
        ids = [int(index) for micro in batch.rounds for index in micro.inputs.flatten().tolist()]
        line = {"step": batch.step, "ranks": run.world.size, "ids": ids}
        with (folder / f"ledger-{run.world.size}-{run.world.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if die is not None and run.world.rank == 0 and batch.step == die:
            os.kill(os.getpid(), signal.SIGKILL)
