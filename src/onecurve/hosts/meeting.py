"""How hosts find each other in the run's folder: the first one leaves its address and the job's key in a file."""

import asyncio
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.errors import CoordinationError
from onecurve.describe.errors import OnecurveError

_SILENT_SECONDS = 10.0
"""A leader that does not answer for this time is replaced."""
_RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class Meeting:
    """Where the leader listens, and the key of the job. Only the user's processes can read the file."""

    host: str
    port: int
    key: bytes = field(repr=False)

    @staticmethod
    def read(path: Path) -> "Meeting | None":
        """Read the file; return None if it is absent or not complete yet."""
        try:
            content = json.loads(path.read_text())
            return Meeting(content["host"], content["port"], bytes.fromhex(content["key"]))
        except (OSError, ValueError, KeyError):
            return None


def call_meeting(file: Path, listener: socket.socket) -> Meeting | None:
    """Leave this host's address in the file, if no other host has; return None if one has.

    The file appears under its name complete, because it is linked there: readers never see a part of it.
    """
    host, port = listener.getsockname()[:2]
    meeting = Meeting(host, port, secrets.token_bytes(JOB_KEY_BYTES))
    text = json.dumps({"host": host, "port": port, "key": meeting.key.hex()})
    draft = file.with_name(f"{file.name}-{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(text)
        os.link(draft, file)
    except FileExistsError:
        if not file.parent.is_dir():
            raise OnecurveError(f"{file.parent}: it is a file; give another --out") from None
        return None
    except OSError as error:
        raise OnecurveError(f"{file.parent}: cannot be written ({error.strerror}); give another --out") from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return meeting


def end_meeting(file: Path, meeting: Meeting) -> None:
    """Remove the file, if it is still this meeting's."""
    if Meeting.read(file) == meeting:
        with suppress(OSError):
            file.unlink()


async def join_meeting(file: Path) -> RemoteCoordination | None:
    """Connect to the host that called the meeting; return None if it does not answer, after removing its file."""
    begin = time.monotonic()
    meeting = Meeting.read(file)
    while meeting is not None and time.monotonic() < begin + _SILENT_SECONDS:
        try:
            return await RemoteCoordination.connect(meeting.host, meeting.port, meeting.key, timeout=_SILENT_SECONDS)
        except CoordinationError:
            await asyncio.sleep(_RETRY_SECONDS)
        now = Meeting.read(file)
        if now != meeting:
            meeting, begin = now, time.monotonic()
    if meeting is not None:
        end_meeting(file, meeting)
    return None
