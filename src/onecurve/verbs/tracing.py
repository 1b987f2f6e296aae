"""A job's model on fake tensors, to be looked at."""

from onecurve.apply.blueprint import Blueprint, draw
from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import Micro
from onecurve.job.job import Job
from onecurve.measure.blocks import called_modules, find_blocks
from onecurve.measure.call import alike_once


def traceable(job: Job) -> Blueprint:
    """The model recorded, which a constructor may not allow."""
    blueprint = draw(job.model, job.seed)
    if blueprint.tape is None:
        raise OnecurveError(f"model: {blueprint.warning}; to be split it needs a constructor that can be recorded")
    blueprint.tape.mode.allow_non_fake_inputs = True
    return blueprint


def blocks_of(blueprint: Blueprint, micro: Micro) -> list[str]:
    """The names of the blocks that a forward calls. The blueprint is spent."""
    model = blueprint.module
    likely = find_blocks(model)
    with alike_once({name: model.get_submodule(name) for name in likely}):
        called = called_modules(model, lambda _: blueprint.forward(micro))
    if called is None or called.issuperset(likely):
        return likely
    return find_blocks(model, called_modules(model, lambda _: blueprint.forward(micro)))
