"""Starts the ranks of a check by forking this process, which has imported torch and the model libraries already.

A fresh interpreter needs seconds for these imports. A process may be forked as long as it has one thread and has run no
parallel loop.
"""

import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from onecurve.launch.failure_file import write_failure
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from onecurve.describe.convert import to_json
from onecurve.describe.requests import CheckRequest
from onecurve.launch.failure import RankFailedError, first_failure
from onecurve.launch.stop import StopRequest
from onecurve.verbs.check_worker import check_as_rank

_SECONDS = 900
"""Time limit of one start of the ranks; the ranks' own watch ends a plan without progress earlier."""


def fork_ranks(request: CheckRequest) -> None:
    """Run a check in forked ranks; raise RankFailedError if one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        ranks = {_fork(request, rank, port, Path(folder)): rank for rank in range(request.ranks)}
        failures: dict[int, ProcessFailure] = {}
        deadline = time.monotonic() + _SECONDS
        running = dict(ranks)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                time.sleep(0.05)
                if time.monotonic() > deadline:
                    _kill(running)
                    raise RankFailedError(f"no progress: the ranks did not end within {_SECONDS} s")
                continue
            if pid not in running:
                continue
            rank = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code:
                failures[rank] = ProcessFailure(rank, pid, code, str(Path(folder) / f"error-{rank}"))
                time.sleep(0.5)  # ranks that fail by themselves write why
                _kill(running)
        if failures:
            raise first_failure(failures)


def _fork(request: CheckRequest, rank: int, port: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(request.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_ERROR_FILE": str(folder / f"error-{rank}"),
    }
    log = os.open(Path(request.folder) / f"log-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    status = 0
    try:
        check_as_rank(to_json(request), StopRequest())
    except Exception as error:
        traceback.print_exc()
        write_failure(error)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _kill(running: dict[int, int]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
