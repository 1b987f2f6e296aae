"""A plan together with what its execution needs to know about the model."""

from dataclasses import dataclass

from onecurve.describe.dataflow import Dataflow
from onecurve.describe.plan import Plan


@dataclass(frozen=True)
class ResolvedPlan:
    """Derived by one rank and passed to all others, so that no other rank has to trace the model."""

    plan: Plan
    """The plan with its layouts and stages."""
    blocks: tuple[str, ...] = ()
    """Names of the model's blocks; empty if the plan does not wrap blocks."""
    dataflow: Dataflow | None = None
    """Tensors that flow between the blocks; None without a pipeline axis."""
