"""A user who keeps the loop: `torchrun --nproc-per-node 2 kept_loop.py PLAN [JOB [evaluate]]`."""

import hashlib
import sys
from importlib import import_module
from pathlib import Path

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parent))
plan, *rest = sys.argv[1:]
name, evaluates = (rest or ["small"])[0], "evaluate" in rest

with oc.prepare(import_module(name).job(), plan=plan) as run:
    for batch in run:
        report = run.step(batch)
        if evaluates:
            run.evaluate()
    local = [p.to_local() if hasattr(p, "to_local") else p for p in run.model.parameters()]
    weights = b"".join(p.detach().numpy().tobytes() for p in local)
    text = f"ranks {run.world.size} steps {report.step + 1} weights {hashlib.sha256(weights).hexdigest()}"
    print(f"{text} loss {report.loss:.6f}\n", end="", flush=True)
