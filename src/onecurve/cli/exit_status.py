"""Exit statuses of commands that a signal ended."""

import os

_INTERRUPTED = 130
"""What shells show for a command that Ctrl-C ended."""


def interrupted_status(name: str) -> int:
    """The exit status after a signal."""
    return _INTERRUPTED if name == "SIGINT" else os.EX_TEMPFAIL
