"""onecurve run: train. This side starts the ranks; what each of them does is in training.

Where a plan is given it imports no more than that takes: the ranks wait for it.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.describe.convert import from_plain, read_toml, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.requests import RunRequest
from onecurve.describe.summary import RunSummary
from onecurve.device.device import local_cluster
from onecurve.device.world import World
from onecurve.launch.local import launch
from onecurve.launch.stop import StopRequest
from onecurve.planner.plan_choice import AUTO, allowed, as_text, ranks_for
from onecurve.runs.folder import CHECKPOINTS, PLAN, SUMMARY, refuse_foreign_folder

_ENOUGH = 20
"""Steps from which something can be learned."""


def run(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    plan: str | Plan = "auto",
    ranks: int | None = None,
    out: str | Path | None = None,
    precision: Sequence[str] | None = None,
    fresh: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RunSummary | None:
    """Train the job of a script: `oc.run("train.py", ["lr=1e-4"], ranks=2)`.

    Without a plan it plans by itself, in one of these precisions; with a number of ranks alone each holds a copy.
    Starts its ranks on this host; where torchrun has set the environment it is one of them, and returns None on all but
    rank 0.
    """
    script = Path(script)
    if not script.is_file():
        raise OnecurveError(f"{script}: no such file; give the Python file that defines job()")
    folder = Path(out) if out is not None else Path("runs") / script.stem
    alone = World.from_environment() is None
    estimate = None
    if alone:
        refuse_foreign_folder(folder)
        if plan == AUTO and ranks is None:
            plan, estimate = _planned(script, arguments, allowed(precision or ["fp32"]), folder, fresh, say)
        elif precision is not None:
            raise OnecurveError("precision: it is for runs that plan by themselves; write it into the plan instead")
        ranks = ranks_for(as_text(plan), ranks, local_cluster())
    predicted = estimate.seconds if estimate is not None else {}
    request = RunRequest(
        str(script), tuple(arguments), as_text(plan), str(folder), fresh, quiet, tensorboard, predicted
    )
    # A process that has planned has threads, from which loader processes must not be forked.
    if not alone or (ranks == 1 and estimate is None):
        from onecurve.verbs.run_worker import train

        with StopRequest() as stop:
            return train(request, stop)
    assert ranks is not None
    if sys.stdout.isatty() and not quiet:
        print(f"starting {ranks} rank{'s' if ranks > 1 else ''}", flush=True)
    with tempfile.TemporaryDirectory(prefix="onecurve-run-") as scratch:
        result = Path(scratch) / SUMMARY
        launch("onecurve.verbs.rank", ["run", to_json(replace(request, result=str(result)))], ranks)
        if not result.exists():
            raise OnecurveError("interrupted before the ranks could end by themselves; what was saved before stays")
        summary = from_plain(RunSummary, json.loads(result.read_text()), SUMMARY)
    if estimate is not None and summary.steps >= _ENOUGH:
        from onecurve.verbs.auto import learn

        learn(estimate, summary)
    return summary


def _planned(
    script: Path,
    arguments: Sequence[str],
    precision: Sequence[Precision],
    folder: Path,
    fresh: bool,
    say: Callable[[str], None],
) -> tuple[Plan | str, Estimate | None]:
    """What a run in this folder went by before it goes on with; otherwise the best plan that is found."""
    before = folder / PLAN
    if before.exists() and (folder / CHECKPOINTS).exists() and not fresh:
        return read_toml(Plan, before), None
    from onecurve.verbs.auto import plan_here

    estimate = plan_here(script, arguments, precision, say)
    return (AUTO, None) if estimate is None else (estimate.plan, estimate)
