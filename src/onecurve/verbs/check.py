"""onecurve check: does the split job compute the same as one device? This side starts the ranks once, for all plans."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.describe.convert import from_plain, to_json
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.requests import CheckRequest
from onecurve.describe.verdict import CheckResult
from onecurve.device.device import local_cluster
from onecurve.device.world import World
from onecurve.job.script import Script, script_path
from onecurve.launch.local import launch
from onecurve.launch.stop import StopRequest
from onecurve.planner.plan_choice import read_plan
from onecurve.report.log import is_verbose

_STEPS: dict[Precision, int] = {"fp64": 4, "fp32": 50}
_MAX_DEFAULT_RANKS = 4


def check(
    script: Script,
    arguments: Sequence[str] = (),
    *,
    plans: Sequence[str | Plan] = (),
    ranks: int | None = None,
    steps: int | None = None,
    precision: Precision = "fp64",
    quiet: bool = False,
) -> CheckResult | None:
    """Compare the job of a script, split by each plan, with one device: `oc.check("train.py", ranks=2)`.

    `script`: the Python file that defines job(), or that function itself; the ranks import the file.
    Without `plans` it tries a matrix of plans for worlds of up to `ranks` (default: 4, at most the number of devices).
    In fp64 every weight, buffer and gradient is compared after every step; in fp32 the loss curve. Under torchrun it
    returns None on all ranks but the first.
    """
    path = script_path(script, "check")
    if precision not in _STEPS:
        raise OnecurveError(f"check: precision {precision!r} (known: {', '.join(_STEPS)})")
    if (ranks is not None and ranks < 1) or (steps is not None and steps < 1):
        raise OnecurveError(f"check: ranks = {ranks}, steps = {steps}; both must be at least 1")
    chosen = tuple(_read(plan, precision) for plan in plans)
    launched = World.from_environment()
    world_size = max((plan.mesh.size for plan in chosen), default=_default_ranks(ranks, launched))
    if launched is not None and world_size > launched.size:
        raise OnecurveError(
            f"check: a plan needs {world_size} ranks, but this world has {launched.size}; start more ranks"
        )
    request = CheckRequest(
        script=str(path),
        arguments=tuple(arguments),
        plans=chosen,
        ranks=world_size,
        steps=steps or _STEPS[precision],
        precision=precision,
        quiet=quiet,
        verbose=is_verbose(),
    )
    if launched is not None or world_size == 1:
        from onecurve.verbs.check_worker import check_plans

        with StopRequest(alone=launched is None) as stop:
            return check_plans(request, stop)
    with tempfile.TemporaryDirectory(prefix="onecurve-check-") as folder:
        result = Path(folder) / "result.json"
        request = replace(request, result=str(result))
        stopped = launch("onecurve.verbs.rank", ["check", to_json(request)], world_size)
        if stopped is not None:
            raise InterruptError(f"interrupted by {stopped} before all plans were checked", stopped)
        return from_plain(CheckResult, json.loads(result.read_text()), "check")


def _read(plan: str | Plan, precision: Precision) -> Plan:
    chosen = read_plan(plan)
    if chosen is None:
        raise OnecurveError("check: give a plan, or no --plan at all for a matrix of plans; 'auto' is for onecurve run")
    return replace(chosen, precision=precision)


def _default_ranks(ranks: int | None, launched: World | None) -> int:
    if ranks is not None:
        return ranks
    if launched is not None:
        return launched.size
    host = local_cluster()
    return _MAX_DEFAULT_RANKS if host.device_kind == "cpu" else min(_MAX_DEFAULT_RANKS, host.devices)
