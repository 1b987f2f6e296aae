"""How ranks that srun or mpirun started find each other: the first one leaves the address of their store in a file."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onecurve.describe.assignment import Assignment
from onecurve.describe.errors import OnecurveError
from onecurve.describe.generation import Generation, StoreAddress
from onecurve.device.environment import LauncherTask
from onecurve.device.network import address_towards, device_of, own_address
from onecurve.hosts.meeting import Meeting, call_meeting, end_meeting
from onecurve.hosts.store_process import start_store

_WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.05


@contextmanager
def rank_meeting(task: LauncherTask, folder: Path) -> Iterator[Assignment]:
    """Yield this rank's assignment. `folder`: a folder that all ranks see."""
    file = folder / f".meeting-{task.name}"
    if task.rank > 0:
        meeting = _wait_for(file)
        address = address_towards(meeting.host, meeting.port)
        yield _assignment(task, meeting, device_of(address))
        return
    address = own_address() if task.hosts > 1 else "127.0.0.1"
    listener = socket.create_server((address, 0))
    called = call_meeting(file, listener)
    if called is None:
        raise OnecurveError(f"{file}: it exists already; remove it if no run uses this folder")
    with listener:
        store = start_store(listener, called.key)
    try:
        yield _assignment(task, called, device_of(address))
    finally:
        end_meeting(file, called)
        store.kill()
        store.wait()


def _wait_for(file: Path) -> Meeting:
    deadline = time.monotonic() + _WAIT_SECONDS
    while (meeting := Meeting.read(file)) is None:
        if time.monotonic() > deadline:
            raise OnecurveError(
                f"{file}: rank 0 has not written it for {_WAIT_SECONDS:.0f} s; does every host see this folder?"
            )
        time.sleep(_POLL_SECONDS)
    return meeting


def _assignment(task: LauncherTask, meeting: Meeting, interface: str) -> Assignment:
    store = StoreAddress(meeting.host, meeting.port, meeting.key.hex())
    return Assignment(
        generation=Generation(number=1, size=task.size, hosts=task.hosts, store=store),
        rank=task.rank,
        local_rank=task.local_rank,
        local_size=task.local_size,
        interface=interface,
    )
