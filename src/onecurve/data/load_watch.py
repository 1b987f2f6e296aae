"""Measures what it takes to load samples."""

import time

from onecurve.formats.storage_time import storage_seconds
from onecurve.job.batch import LoadTime


class LoadWatch:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._seconds, self._cpu, self._storage = time.perf_counter(), time.process_time(), storage_seconds()

    def time(self) -> LoadTime:
        """What it has taken so far."""
        return LoadTime(
            time.perf_counter() - self._seconds, time.process_time() - self._cpu, storage_seconds() - self._storage
        )
