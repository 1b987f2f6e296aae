"""A user who keeps the loop: `torchrun --nproc-per-node 2 kept_loop.py`."""

import sys
from pathlib import Path

import onecurve as oc

sys.path.insert(0, str(Path(__file__).parent))
import small

with oc.prepare(small.job(), plan=sys.argv[1]) as run:
    for batch in run:
        report = run.step(batch)
    if run.world.rank == 0:
        print(f"ranks {run.world.size} steps {report.step + 1} loss {report.loss:.6f}")
