"""What a run has found out about its job. Processes that join it later are told, and need not find it out again."""

from dataclasses import dataclass

from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.scalar_form import ScalarForm


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Known once a generation is ready for its first step; its plan has been proved by then, if it had to be."""

    resolved: ResolvedPlan
    """The plan of that generation, with what its execution needs to know."""
    loss_note: str | None
    """What could not be tested about the loss, for the user; None if it was not tried."""
    loss_form: ScalarForm | None
    """What a scalar of the loss means; None for other losses."""
    leaves_unused: bool | None
    """True if some steps leave a parameter without a gradient; None if it was not tried."""
