"""The program of every launched rank: what its template imports before it is forked, and what it does then."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onecurve.describe.generation import Generation
from onecurve.launch.failure_report import report_failure as report_failure
from onecurve.launch.failure_report import report_to
from onecurve.launch.launcher import Launcher
from onecurve.launch.message_socket import MessageSocket

if TYPE_CHECKING:
    from onecurve.device.world import World
    from onecurve.launch.rank_store import RankStore

Worker = Callable[["World", Launcher, Generation], str]
"""(world, launcher, generation) → result. Called once per generation."""
Say = Callable[[str], None]
"""Shows a short text to the user."""


def preload(verb: str, request: str, with_script: bool) -> None:
    """Import what the ranks need. Called in a template, which must stay a process that can be forked."""
    from onecurve.device.threads import use_one_thread
    from onecurve.job.optimizer import load_optimizers
    from onecurve.job.script import preload_script

    use_one_thread()
    _worker_maker(verb)
    load_optimizers()
    script = json.loads(request).get("script")
    if with_script and script:
        preload_script(Path(script))


def main(verb: str, request: str, socket: MessageSocket) -> int:
    """Work in one generation after the other until the launcher has no more; return the exit status."""
    launcher = Launcher(socket)
    report_to(launcher.failed)
    try:
        from onecurve.device.process_name import set_process_name
        from onecurve.device.threads import use_all_threads
        from onecurve.device.waiting import progress_of
        from onecurve.device.world import World, abandon_process_groups
        from onecurve.launch.rank_store import store_of

        use_all_threads()
        worker = _worker_maker(verb)(request, launcher.say)
        for assignment in launcher.assignments():
            set_process_name(f"oc-rank-{assignment.rank}")
            with (
                store_of(assignment) as store,
                launcher.taking_part(assignment, store, partial(_disconnect, store), progress_of),
            ):
                world = World.of(assignment, store, launcher.on_join)
                launcher.finished(worker(world, launcher, assignment.generation))
                world.leave()
            abandon_process_groups()  # of a generation that was broken off
    except Exception as error:  # the outermost frame of a rank: whatever it was, the launcher reports it
        report_failure(error)
        return 1
    return 0


def _disconnect(store: "RankStore | None") -> None:
    """Make every collective of this rank raise."""
    from onecurve.device.disconnect import disconnect

    if store is not None:
        disconnect(store.exchanged)
        store.close()


def _worker_maker(verb: str) -> Callable[[str, Say], Worker]:
    if verb == "run":
        from onecurve.verbs.run_worker import RunWorker

        return RunWorker
    if verb == "loop":
        from onecurve.verbs.loop_worker import LoopWorker

        return LoopWorker
    if verb == "check":
        from onecurve.verbs.check_worker import check_worker

        return check_worker
    if verb in ("evaluate", "predict"):
        from onecurve.verbs.inference_worker import evaluate_worker, predict_worker

        return evaluate_worker if verb == "evaluate" else predict_worker
    if verb == "probe":
        from onecurve.verbs.probe_worker import probe_worker

        return probe_worker
    if verb == "link":
        from onecurve.verbs.probe_worker import link_worker

        return link_worker
    from onecurve.verbs.host_worker import answer_maker

    return answer_maker(verb)
