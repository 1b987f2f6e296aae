"""An example's job with a constant learning rate after a short warm-up, for `noise_scale.py`."""

from dataclasses import replace
from pathlib import Path

import onecurve as oc
from onecurve.job.script import load_job


def job(example: str, lr: float, batch: int, steps: int) -> oc.Job:
    script = Path(__file__).parent.parent / "examples" / f"{example}.py"
    made = load_job(script, [f"lr={lr}", f"batch={batch}"])
    return replace(made, steps=steps, epochs=None, evaluate=None, metrics={}, schedule=oc.constant(warmup=10))
