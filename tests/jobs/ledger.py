"""Who keeps the loop and an account of it: `torchrun … ledger.py FOLDER [DIE]`. One line per step and rank: which
samples it took. The first rank kills itself, and with it the job, after DIE steps."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import onecurve as oc


class Numbers:
    def __len__(self) -> int:
        return 301  # no multiple of the batch: the last step runs over into the next pass

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
        ids = [int(number) for micro in batch.rounds for number in micro.inputs.flatten().tolist()]
        line = {"step": batch.step, "life": run.first_step, "ranks": run.world.size, "ids": ids}
        with (folder / f"ledger-{run.world.size}-{run.world.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if die is not None and run.world.rank == 0 and batch.step + 1 == die:
            os.kill(os.getpid(), signal.SIGKILL)
