"""A user who keeps the loop: `torchrun --nproc-per-node 2 kept_loop.py PLAN [JOB [evaluate | rank_seeds]]`.

`rank_seeds` is a fault: ranks that hold parts of one model draw different numbers.
"""

import hashlib
import os
import sys
from importlib import import_module
from pathlib import Path

from torch import Tensor
from torch.distributed.tensor import DTensor

import onecurve as oc
from onecurve.device.device import Device

sys.path.insert(0, str(Path(__file__).parent))
plan, *rest = sys.argv[1:]
name, evaluates = (rest or ["small"])[0], "evaluate" in rest

if "rank_seeds" in rest:
    right = Device.seed
    Device.seed = lambda self, seed: right(self, seed + int(os.environ["RANK"]))


def is_cut(parameter: Tensor) -> bool:
    return isinstance(parameter, DTensor) and not all(each.is_replicate() for each in parameter.placements)


with oc.prepare(import_module(name).job(), plan=plan) as run:
    for batch in run:
        report = run.step(batch)
        if evaluates:
            run.evaluate()
    whole = [p for p in run.model.parameters() if plan.startswith("shard") or not is_cut(p)]
    local = [p.to_local() if isinstance(p, DTensor) else p for p in whole]
    weights = b"".join(p.detach().numpy().tobytes() for p in local)
    text = f"ranks {run.world.size} steps {report.step + 1} weights {hashlib.sha256(weights).hexdigest()}"
    print(f"{text} loss {report.loss:.6f}\n", end="", flush=True)
