"""The limit of open files of this process."""

import resource
from contextlib import suppress


def raise_file_limit() -> None:
    """Allow as many open files as the system does.

    A process that accepts connections may get thousands, also from strangers, and must not run out of descriptors.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems forbid even that
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
