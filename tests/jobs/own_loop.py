"""A user's own training loop: `torchrun --nproc-per-node 2 own_loop.py PLAN [JOB [evaluate | rank_seeds]]`.

Each rank prints a hash of its weights and the last loss. `rank_seeds` injects a fault: tensor and pipeline ranks of one
model draw different random numbers.
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
plan, *options = sys.argv[1:]
job_name, evaluates = (options or ["small"])[0], "evaluate" in options

if "rank_seeds" in options:
    original = Device.seed
    Device.seed = lambda self, seed: original(self, seed + int(os.environ["RANK"]))


def is_split(parameter: Tensor) -> bool:
    return isinstance(parameter, DTensor) and not all(p.is_replicate() for p in parameter.placements)


with oc.prepare(import_module(job_name).job(), plan=plan) as run:
    for batch in run:
        report = run.step(batch)
        if evaluates:
            run.evaluate()
    # Under tensor parallelism only the replicated parameters are equal on all ranks.
    hashed = [p for p in run.model.parameters() if plan.startswith("shard") or not is_split(p)]
    local = [p.to_local() if isinstance(p, DTensor) else p for p in hashed]
    weights = b"".join(p.detach().numpy().tobytes() for p in local)
    text = f"ranks {run.world.size} steps {report.step} weights {hashlib.sha256(weights).hexdigest()}"
    print(f"{text} loss {report.loss:.6f}\n", end="", flush=True)
