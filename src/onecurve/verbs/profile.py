"""The profile of a job's model."""

from torch import Tensor

from onecurve.apply.guess import Guess
from onecurve.describe.profile import Profile
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer
from onecurve.measure.profile import Forward, profile
from onecurve.train.objective import objective_of
from onecurve.verbs.data import Data
from onecurve.verbs.tracing import blocks_of, traceable


def profile_of(job: Job, data: Data, samples: int) -> Profile:
    """What a micro-batch of so many samples costs. Traced on fake tensors: nothing is computed, nothing held."""
    blueprint = traceable(job)
    assert blueprint.tape is not None
    read = data.micro(0, samples)
    micro, model = blueprint.faked(read), blueprint.module

    def loss() -> Tensor:
        return objective_of(job.loss)(micro.forward(model), micro).sum

    forward = Forward(blueprint.tape.mode, samples, lambda: micro.forward(model), loss)
    with Guess():
        return profile(model, blocks_of(blueprint, read), forward, optimizer_tensors(job))


def optimizer_tensors(job: Job) -> int:
    """Tensors of optimizer state per parameter, as far as it is known before the first step."""
    return min(each.state_tensors if isinstance(each, Optimizer) else 0 for each in job.optimizers.values())
