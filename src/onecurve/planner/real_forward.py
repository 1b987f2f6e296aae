"""Finds the changed buffers of a model that cannot be traced on fake tensors, by a real forward on this host."""

from onecurve.data.training_data import TrainingData
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.device.rng import preserve_rng_state
from onecurve.job.job import Job
from onecurve.measure.changed_buffers import find_changed_buffers
from onecurve.model.recorder import build_real
from onecurve.planner.traced_model import TRACE_SAMPLES


def try_real_forward(job: Job, data: TrainingData) -> ChangedBuffers:
    """Build the model once more, run it on a few samples, and return the buffers that this changed."""
    model = build_real(job.model, job.seed)
    micro = data.trial_micro(0, min(TRACE_SAMPLES, job.global_batch))
    with preserve_rng_state():
        return find_changed_buffers(model, micro.inputs, lambda: micro.forward(model))
