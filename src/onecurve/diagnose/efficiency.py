"""time = work ÷ (rate of one device × devices × efficiency), with the efficiency as a product of factors."""

from collections.abc import Mapping

from onecurve.describe.diagnosis import Factor, StepTimes, TimeIdentity

_COMPUTE = ("forward", "backward")


def identity(
    times: StepTimes,
    wall: Mapping[str, float],
    predicted: Mapping[str, float],
    *,
    step_flops: float,
    rate: float,
    devices: int,
    steps: int,
) -> TimeIdentity:
    """`step_flops`: FLOPs of a step; `rate`: peak FLOPs per second of one device; `steps`: those that count."""
    total = sum(wall.values())
    # The first steps of a run are slower. That is a part of its start.
    useful = times.total * steps / total
    factors = [Factor("no startup, repeated steps or shutdown", useful)]
    left = times.total
    left_predicted = sum(predicted.values()) if predicted else None
    for name, causes in _taken(times).items():
        taken = sum(times.by_cause.get(cause, 0.0) for cause in causes)
        expected = None
        if left_predicted:
            rest = left_predicted - sum(predicted.get(cause, 0.0) for cause in causes)
            expected, left_predicted = rest / left_predicted, rest
        factors.append(Factor(name, (left - taken) / left if left else 0.0, expected))
        left -= taken
    flops_rate = step_flops / (rate * devices)
    predicted_kernels = flops_rate / left_predicted if left_predicted else None
    factors.append(
        Factor("rate of computing over the device's peak", flops_rate / left if left else 0.0, predicted_kernels)
    )
    return TimeIdentity(work=step_flops * steps, rate=rate, devices=devices, factors=tuple(factors), seconds=total)


def _taken(times: StepTimes) -> dict[str, tuple[str, ...]]:
    """Which causes each factor takes away, in order; what is left in the end is forward and backward."""
    other = [cause for cause in times.own if cause not in (*_COMPUTE, "data", "recompute", "update")]
    return {
        "no evaluations and checkpoints": tuple(times.pauses),
        "no waiting for data": ("data",),
        "no waiting for slow ranks": ("slowest", "uneven", "interrupted"),
        "no communication": tuple(
            dict.fromkeys((*times.communication, "replicate", "shard", "tensor", "batch_norm", "tables"))
        ),
        "no pipeline bubble": ("bubble", "pipeline"),
        "no recomputation": ("recompute",),
        "no optimizer update or overhead": ("update", "host", *other),
    }
