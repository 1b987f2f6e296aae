"""One rank of `onecurve run` for a script that has a training loop of its own: the script runs as a program.

Its `oc.prepare` finds here which rank it is, which plan it has, and what it continues from.
"""

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onecurve.describe.convert import from_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.generation import Generation
from onecurve.describe.requests import LoopRequest
from onecurve.device.rng import seed_all
from onecurve.device.world import World
from onecurve.job.script import SCRIPT_SEED
from onecurve.launch.launcher import Launcher
from onecurve.report.log import log_to_stderr
from onecurve.verbs.kept import Kept


@dataclass
class LoopRank:
    """This process as a rank of `onecurve run`."""

    world: World
    kept: Kept
    is_interrupted: bool = False
    """True if a run that the script has prepared was stopped before its last step."""

    def note_interruption(self) -> None:
        self.is_interrupted = True


_this_process: LoopRank | None = None


def loop_rank() -> LoopRank | None:
    """The rank that this process is, if `onecurve run` has started it for a script with its own loop."""
    return _this_process


class LoopWorker:
    """Runs the script, once per process: what it has built cannot be used in another generation."""

    def __init__(self, request: str, _: Callable[[str], None]) -> None:
        self._asked = from_json(LoopRequest, request.encode(), "request")
        if self._asked.verbose:
            log_to_stderr()

    def __call__(self, world: World, launcher: Launcher, generation: Generation) -> str:
        """Run the script to its end; the result is the signal that has ended its training early, or ""."""
        global _this_process  # the script's own call of `prepare` must find it
        rank = _this_process = LoopRank(world, Kept(launcher, generation))
        program = self._asked.program
        sys.argv = [program, *self._asked.arguments]
        sys.path.insert(0, str(Path(program).resolve().parent))  # as Python does for a program
        seed_all(SCRIPT_SEED)  # what the script draws before oc.prepare is the same on all ranks
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise OnecurveError(f"{program}: it ended itself with status {end.code}") from None
        return launcher.signal if rank.is_interrupted else ""
