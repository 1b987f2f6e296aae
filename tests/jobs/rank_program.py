"""A rank program for tests of the launcher: the request says what the ranks do."""

import os
import signal
import sys
import threading
import time

from onecurve.launch.launcher import Launcher


def preload(_, request, with_script):
    if "broken" in request:
        raise ImportError("libtorch.so is broken")
    if "thread" in request and (with_script or "always" in request):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def main(verb, _, socket):
    launcher = Launcher(socket)
    try:
        for assignment in launcher.assignments():
            with launcher.taking_part(assignment, None, lambda: None):
                launcher.finished(work(verb, assignment, launcher))
    except Exception as error:
        launcher.failed(error)
        return 1
    return 0


def work(verb, assignment, launcher):
    rank, generation = assignment.rank, assignment.generation
    if verb == "fail" and rank == 1:
        raise ValueError("mine")
    if verb == "exit" and rank == 1:
        sys.exit(7)
    if verb == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "lose" and rank == 0:
        time.sleep(0.2)
        raise RuntimeError("gloo/transport: Connection closed by peer")
    if verb == "lose":
        time.sleep(1)
        raise ValueError("the cause")
    if verb == "stop" and rank == 0:
        launcher.say("running")
    while verb == "ignore":
        launcher.say("running")
        time.sleep(0.3)
    while verb in ("fail", "exit", "kill", "stop", "wait") and not launcher():
        time.sleep(0.01)
    if verb == "stop":
        return launcher.signal
    if verb == "spin":
        return os.environ.get("GOMP_SPINCOUNT", "")
    if verb == "say":
        launcher.say(f"rank {rank} says it")
    return f"{os.getpid()} {os.getppid()} {rank} {generation.size} {generation.store.port > 0}"
