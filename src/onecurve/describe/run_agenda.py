"""What the first rank of a run derives for all ranks before they join the process group."""

from dataclasses import dataclass

from onecurve.describe.resolved_plan import ResolvedPlan


@dataclass(frozen=True)
class ProofAgenda:
    """What is to be proved about a plan before training, or why nothing is."""

    key: str = ""
    """Identifies the job, its code and the plan; empty if the code cannot be read, so that no proof is remembered."""
    plan: str = ""
    """The run's plan, in its short form."""
    resolved: ResolvedPlan | None = None
    """The reduced plan; None if it is not run."""
    left_out: tuple[str, ...] = ()
    """Blocks that are left out of the proof, because they are identical to others."""
    remembered: str = ""
    """What an earlier start proved; empty if there was none."""
    obstacle: str = ""
    """Why the plan cannot be proved; empty if it can be."""


@dataclass(frozen=True)
class RunAgenda:
    """The resolved plan of a run, and the proof that comes before it."""

    resolved: ResolvedPlan
    proof: ProofAgenda | None = None
    """None if the plan is not to be proved."""
