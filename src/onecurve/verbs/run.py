"""onecurve run: train. This side starts the ranks; what each of them does is in training.

It imports no more than that takes: the ranks wait for it.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onecurve.describe.convert import from_plain, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.summary import RunSummary
from onecurve.device.device import here
from onecurve.device.world import World
from onecurve.launch.local import launch
from onecurve.launch.stop import Stop
from onecurve.verbs.choice import as_text, ranks_for
from onecurve.verbs.folder import SUMMARY, refuse_foreign


@dataclass(frozen=True)
class RunRequest:
    """What the launcher hands to every rank."""

    script: str
    arguments: tuple[str, ...]
    plan: str
    out: str
    fresh: bool
    quiet: bool
    tensorboard: bool
    result: str = ""
    """Where rank 0 leaves the summary for the launcher."""


def run(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    plan: str | Plan = "auto",
    ranks: int | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
) -> RunSummary | None:
    """Train the job of a script: `oc.run("train.py", ["lr=1e-4"], ranks=2)`.

    Starts its ranks on this host; where torchrun has set the environment it is one of them, and returns None on all but
    rank 0.
    """
    script = Path(script)
    if not script.is_file():
        raise OnecurveError(f"{script}: no such file; give the Python file that defines job()")
    folder = Path(out) if out is not None else Path("runs") / script.stem
    request = RunRequest(str(script), tuple(arguments), as_text(plan), str(folder), fresh, quiet, tensorboard)
    alone = World.from_environment() is None
    if alone:
        ranks = ranks_for(as_text(plan), ranks, here())
        refuse_foreign(folder)
    if not alone or ranks == 1:
        from onecurve.verbs.training import train

        with Stop() as stop:
            return train(request, stop)
    assert ranks is not None
    if sys.stdout.isatty() and not quiet:
        print(f"starting {ranks} ranks", flush=True)
    with tempfile.TemporaryDirectory(prefix="onecurve-run-") as scratch:
        result = Path(scratch) / SUMMARY
        launch("onecurve.verbs.rank", ["run", to_json(replace(request, result=str(result)))], ranks)
        if not result.exists():
            raise OnecurveError("interrupted before the ranks could end by themselves; what was saved before stays")
        return from_plain(RunSummary, json.loads(result.read_text()), SUMMARY)
