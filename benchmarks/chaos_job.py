"""The job of chaos.py: the GPT of the examples, whose forward does what a file asks for, on the rank that it names.

The file is `rank-N` in the folder CHAOS_FOLDER. It holds one command:
- `sleep SECONDS`: a long call, as of a user's own code.
- `lock SECONDS`: a call in C that holds the interpreter lock.
- `flip`: one bit of the last weight changes, as by a fault of the hardware.

While there is a file `hold` in that folder, each forward of every rank takes a second longer.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import gpt

_FOLDER = os.environ.get("CHAOS_FOLDER", "")


class FaultyGPT(gpt.GPT):
    def forward(self, text_BT: Tensor) -> Tensor:
        if _FOLDER and not torch.compiler.is_compiling():
            do_what_is_asked(self)
        return super().forward(text_BT)


def do_what_is_asked(model: nn.Module) -> None:
    if (Path(_FOLDER) / "hold").exists():
        sleep(1.0)
    path = Path(_FOLDER) / f"rank-{os.environ.get('RANK', '0')}"
    if not path.exists():
        return
    command, *values = path.read_text().split()
    path.unlink()
    if command == "sleep":
        sleep(float(values[0]))
    elif command == "lock":
        hold_lock(float(values[0]))
    elif command == "flip":
        weight = [*model.parameters()][-1].data
        weight.view(torch.int32 if weight.dtype == torch.float32 else torch.int64).flatten()[0].bitwise_xor_(1 << 20)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def hold_lock(seconds: float) -> None:
    """One call in C, which does not release the interpreter lock."""
    count = 10_000_000
    begin = time.perf_counter()
    sum(range(count))
    sum(range(round(count * seconds / (time.perf_counter() - begin))))


def job(width: int = 64, batch: int = 8, steps: int = 120, context: int = 64, depth: int = 2, every: int = 0) -> oc.Job:
    found = gpt.job(width=width, batch=batch, steps=steps, context=context, depth=depth)
    return replace(
        found,
        model=lambda: FaultyGPT(width, depth, heads=4, context=context),
        evaluate=None,
        save=oc.Save(every=every or None),
    )
