"""Why one plan is not as good as another, in one clause."""

from onecurve.describe.estimate import Estimate
from onecurve.describe.units import bytes_text, seconds_text

_CAUSES = {
    "forward": "its devices compute more of each sample",
    "backward": "its devices compute more of each sample",
    "recompute": "it computes more again",
    "tensor": "products wait for the sums of other ranks",
    "host": "the host cannot start its operations fast enough",
    "shard": "it waits for parameters to be gathered and gradients to be scattered",
    "pipeline": "it sends activations between stages",
    "bubble": "stages wait for each other",
    "replicate": "it sums gradients over its copies",
    "update": "every rank updates more parameters",
    "other": "it takes more rounds",
    "data": "its ranks cannot read samples fast enough",
}
_HELD = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered parameters",
    "activations": "activations",
    "overhead": "what every rank takes",
}


def reason(estimate: Estimate, best: Estimate | None) -> str:
    """`best` None: nothing fits."""
    if not estimate.fits:
        most = max(estimate.memory, key=lambda name: estimate.memory[name])
        over = bytes_text(estimate.used - estimate.available)
        return f"does not fit: {bytes_text(estimate.used)} per rank, {over} too much; most of it {_HELD[most]}"
    assert best is not None
    slower = estimate.step / best.step - 1
    if slower < 0.005:
        return "as fast" + _beside(estimate, best)
    more = {name: value - best.seconds.get(name, 0.0) for name, value in estimate.seconds.items()}
    worst = max(more, key=lambda name: more[name])
    return f"{_times(slower)} slower: {_CAUSES[worst]} (+{seconds_text(more[worst])})"


def _times(slower: float) -> str:
    return f"{slower:.0%}" if slower < 2 else f"{slower + 1:.0f} times"


def _beside(estimate: Estimate, best: Estimate) -> str:
    if estimate.used > best.used * 1.01:
        return f", but takes {bytes_text(estimate.used - best.used)} more memory"
    return ""
