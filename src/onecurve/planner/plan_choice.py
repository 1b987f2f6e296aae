"""Which plan, how many ranks and which precisions a user asked for."""

from collections.abc import Sequence
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.units import counted

AUTO = "auto"
_PLANNED_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")


def read_plan(plan: Plan | str) -> Plan | None:
    """Read `--plan`: a Plan, its short text form, the path of a plan.toml, or `auto`, which returns None."""
    if isinstance(plan, Plan):
        return plan
    if plan == AUTO:
        return None
    return read_toml(Plan, Path(plan)) if plan.endswith(".toml") else Plan.parse(plan)


def read_precisions(words: Sequence[str]) -> list[Precision]:
    """Return the precisions that a plan may compute in; fp32 comes first."""
    for word in words:
        if word not in _PLANNED_PRECISIONS:
            raise OnecurveError(f"precision {word!r}: the planner knows {', '.join(_PLANNED_PRECISIONS)}")
    return [precision for precision in _PLANNED_PRECISIONS if precision in words]


def ranks_for(plan: Plan | None, ranks: int | None, host: Cluster | None) -> int:
    """Return how many ranks to start: the plan's, else as many as asked for, else one per accelerator or CPU host.

    `host`: needed only if neither is given.
    """
    if ranks is not None and ranks < 1:
        raise OnecurveError(f"ranks = {ranks}; it must be at least 1")
    if plan is None:
        return ranks if ranks is not None else (1 if host is None or host.device_kind == "cpu" else host.devices)
    if ranks is not None and ranks != plan.mesh.size:
        raise OnecurveError(
            f"plan {plan}: it has {counted(plan.mesh.size, 'rank')}, but {ranks} were asked for; give only one of the "
            "two"
        )
    return plan.mesh.size
