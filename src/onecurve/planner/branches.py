"""Refuses models that leave out blocks by chance, or by values of the samples, where all ranks must call the same."""

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.decisions import decisions, forced_draws
from onecurve.planner.traced_model import TracedModel


def refuse_branching_blocks(plan: Plan, traced: TracedModel) -> None:
    """Refuse the plan if forward does not call the same blocks whatever it draws and decides (layer drop).

    The blocks of a sharded model are gathered by all ranks together, and pipeline stages wait for what the blocks
    before them send: a rank that leaves one out would make the others wait, or end the run.
    """
    axis = "shard" if plan.mesh.shard > 1 else "pipeline"
    called: list[set[str]] = []
    # Draws are also tried without forced decisions: a forward that validates its input may raise under these.
    for decided, largest in ((None, False), (None, True), (False, False), (True, True)):
        with decisions(decided), forced_draws(largest=largest):
            blocks = traced.called_blocks()
        if blocks is not None:  # a trace that failed says nothing
            called.append(blocks)
    names = sorted(name for name in set[str]().union(*called) if any(name not in blocks for blocks in called))
    if not names:
        return
    raise OnecurveError(
        f"plan {plan}: forward leaves out blocks ({', '.join(names[:3])}) by random numbers or by values of tensors, "
        f"as layer drop does, and under '{axis}' all ranks must call the same blocks; use a plan with 'replicate', or "
        "multiply what the block adds by 0 or 1 instead"
    )
