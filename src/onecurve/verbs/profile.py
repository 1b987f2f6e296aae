"""The profile of a job's model."""

from onecurve.apply.guess import Guess
from onecurve.apply.precision import computing
from onecurve.describe.plan import Precision
from onecurve.describe.profile import Profile
from onecurve.device.device import local_cpu
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer
from onecurve.measure.profile import Forward, profile
from onecurve.verbs.tracing import Traceable


def profile_of(traceable: Traceable, samples: int, precision: Precision = "fp32") -> Profile:
    """What a micro-batch of so many samples costs."""
    micro = traceable.micro(samples)
    forward = Forward(traceable.mode, samples, lambda: micro.forward(traceable.model), lambda: traceable.loss(micro))
    with Guess(), computing(precision, local_cpu()):
        return profile(traceable.model, traceable.blocks, forward, optimizer_tensors(traceable.job))


def optimizer_tensors(job: Job) -> int:
    """Tensors of optimizer state per parameter, as far as it is known before the first step."""
    return min(each.state_tensors if isinstance(each, Optimizer) else 0 for each in job.optimizers.values())
