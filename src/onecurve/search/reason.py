"""Why one plan is worse than another, in one clause."""

from onecurve.describe.estimate import Estimate
from onecurve.describe.units import bytes_text, seconds_text
from onecurve.search.simplicity import why_less_simple

AS_FAST = 0.005
"""Relative difference of step times below which two plans count as equally fast."""
_CAUSES = {
    "forward": "its devices compute more per sample",
    "backward": "its devices compute more per sample",
    "recompute": "it recomputes more activations",
    "tensor": "matrix products wait for collectives between tensor ranks",
    "batch_norm": "synchronized batch norm waits for the statistics of all ranks",
    "host": "the host cannot launch its operations fast enough",
    "shard": "it waits for parameters to be gathered and gradients to be scattered",
    "pipeline": "it sends activations between stages",
    "bubble": "stages wait for each other",
    "replicate": "it reduces gradients over its replicas",
    "update": "every rank updates more parameters",
    "other": "it has more rounds",
    "data": "its ranks cannot read samples fast enough",
    "tables": "the rows of embedding tables take longer",
}
_MEMORY_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered parameters",
    "activations": "activations",
    "overhead": "fixed overhead of every rank",
    "snapshots": "snapshots of the training state",
    "tables": "rows of embedding tables",
}


def reason(estimate: Estimate, best: Estimate | None) -> str:
    """Return why `estimate` lost against `best`, the chosen plan; it is None only if no plan fits."""
    if not estimate.fits:
        largest = max(estimate.memory, key=lambda name: estimate.memory[name])
        excess = bytes_text(estimate.memory_bytes - estimate.available_bytes)
        total = bytes_text(estimate.memory_bytes)
        return f"does not fit: {total} per rank, {excess} too much; most of it {_MEMORY_NAMES[largest]}"
    assert best is not None
    slower = estimate.step / best.step - 1
    if slower < AS_FAST:
        words = "as fast" if slower > -AS_FAST else f"predicted {-slower:.1%} faster"
        return words + _disadvantage(estimate, best)
    differences = {name: value - best.seconds.get(name, 0.0) for name, value in estimate.seconds.items()}
    worst = max(differences, key=lambda name: differences[name])
    return f"{_slowdown_text(slower)} slower: {_CAUSES[worst]} (+{seconds_text(differences[worst])})"


def _slowdown_text(slower: float) -> str:
    return f"{slower:.0%}" if slower < 2 else f"{slower + 1:.0f} times"


def _disadvantage(estimate: Estimate, best: Estimate) -> str:
    """Return what speaks against a plan that is about as fast as the chosen one."""
    if less_simple := why_less_simple(estimate.plan, best.plan):
        return f", but less simple: {less_simple}"
    if estimate.memory_bytes > best.memory_bytes * 1.01:
        return f", but needs {bytes_text(estimate.memory_bytes - best.memory_bytes)} more memory"
    return ""
