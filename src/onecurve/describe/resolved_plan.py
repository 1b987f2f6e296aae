"""A plan together with what its execution needs to know about the model."""

from dataclasses import dataclass, field

from onecurve.describe.changed_buffers import ChangedBuffers
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
    changed_buffers: ChangedBuffers = field(default_factory=ChangedBuffers)
    """The buffers that forward changes."""

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """The buffers that are averaged over the data-parallel ranks after each round."""
        return self.changed_buffers.data_dependent if self.plan.mesh.data > 1 else ()
