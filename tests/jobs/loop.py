"""A training loop of its own, for `onecurve run loop.py FOLDER STEPS`: it prints each step that rank 0 does."""

import sys
import time

from small import job as small_job

import onecurve as oc

folder, epochs, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

with oc.prepare(small_job(epochs=epochs), out=folder) as run:
    for batch in run:
        report = run.step(batch)
        run.checkpoint()
        time.sleep(pause)
        if run.world.rank == 0:
            print(f"step {report.step} of {run.steps} on {run.world.size}", flush=True)
    run.save(f"{folder}/weights.safetensors")
