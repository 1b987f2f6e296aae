"""Findings about settings that slow a run down: threads, synchronized batch norm."""

import math
import re

from onecurve.describe.diagnosis import Finding, StepTimes
from onecurve.describe.units import counted, seconds_text
from onecurve.diagnose.gains import saved
from onecurve.diagnose.history import RunHistory

_READS = re.compile(r"\.(item|tolist|cpu|numpy)\(")
"""Calls that bring values of tensors to the host."""
_LEAST_SAMPLES = 40
_SAMPLING_SPREAD = 0.2
_THREADS_SPREAD = 0.5
"""What too many threads cost differs much between models."""


def batch_norm(times: StepTimes) -> Finding | None:
    """Batch norm whose statistics are exchanged over a slow link."""
    spent = times.communication.get("batch_norm", 0.0)
    if not spent:
        return None
    return Finding(
        cause="batch_norm",
        limit=(
            f"synchronized batch norm waits for other ranks in every layer: {spent / times.total:.0%} of the time "
            f"({seconds_text(spent)} of {seconds_text(times.total)})"
        ),
        change="batch_norm='local' in the job (each rank then uses the statistics of its own samples: other results)",
        gain=saved(times.total, times.total - spent),
        job={"batch_norm": "local"},
    )


def host_reads(history: RunHistory, times: StepTimes) -> Finding | None:
    """A line of the user's code that reads values of tensors, for which the host waits."""
    lines = history.lines
    if lines is None or lines.samples < _LEAST_SAMPLES:
        return None
    reads = [(line, match[1]) for line in lines.lines if (match := _READS.search(line.text)) is not None]
    if not reads:
        return None
    line, call = max(reads, key=lambda read: read[0].samples)
    share = line.samples / lines.samples
    # On an accelerator a read also waits for work that must be done anyway. Without it the device would not have idled.
    gained = share if history.start.device == "cpu" else min(share, times.own.get("other", 0.0) / times.total)
    return Finding(
        cause="host_reads",
        limit=f"{line.function} in {line.place} reads values of tensors with .{call}(): {share:.0%} of the time",
        change=f"leave the values in tensors: no .{call}() in {line.place} ({line.text})",
        gain=saved(times.total, times.total * (1 - gained), max(_SAMPLING_SPREAD, 1 / math.sqrt(line.samples))),
    )


def threads(history: RunHistory, times: StepTimes, compute: float | None) -> Finding | None:
    """More threads than cores. `compute`: predicted seconds of forward and backward of a step; None if unknown."""
    start = history.start
    if start.device != "cpu" or not start.cores or start.threads <= start.cores:
        return None
    computed = sum(times.own.get(cause, 0.0) for cause in ("forward", "backward", "recompute"))
    expected = min(computed, compute) if compute is not None else computed * start.cores / start.threads
    return Finding(
        cause="threads",
        limit=(f"too many threads: each rank computes with {start.threads} threads on {counted(start.cores, 'core')}"),
        change=f"leave torch.set_num_threads and OMP_NUM_THREADS alone, or set them to {start.cores}",
        gain=saved(times.total, times.total - computed + expected, _THREADS_SPREAD),
        job={"threads": start.cores},
    )
