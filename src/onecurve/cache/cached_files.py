"""Remote files as readers see them: from the cache, where they wait for what is not there yet."""

import os
import sys
import time
from typing import IO

from onecurve.cache.cache_counts import CacheCounts
from onecurve.cache.cache_folder import CacheFolder
from onecurve.cache.remote_file import RemoteFile
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError
from onecurve.formats.storage import Storage

_POLL_SECONDS = 0.01
_ALONE_SECONDS = 5.0
"""If nobody fetches for so long, files are read from the store directly."""


class CachedFiles:
    """Opens files. Any process of the host may have one."""

    def __init__(self, folder: CacheFolder, counts: CacheCounts, waits: bool = True) -> None:
        """`waits`: False if this process does not wait for files yet, and reads those of the store, because nobody
        fetches before the hosts of the job have met. Processes that are forked from it always wait."""
        self._folder, self._counts = folder, counts
        self.waits, self._process = waits, os.getpid()
        self._is_alone = False

    def opened(self, file: RemoteFile) -> IO[bytes]:
        """Open a file; wait until it is there."""
        if not self.waits and self._process == os.getpid():
            return Storage(file.location).opened(file.path)
        found = self._folder.opened(file)
        self._counts.add(hits=found is not None, waits=found is None)
        self._is_alone = self._is_alone and not self._folder.has_fetcher
        seen = time.monotonic()
        while found is None and not self._is_alone:
            if why := self._folder.failure(file):
                kind, _, text = why.partition(": ")
                raise BadFileError(text) if kind == "bad" else OnecurveError(text)
            self._folder.wish(file)
            time.sleep(_POLL_SECONDS)
            found = self._folder.opened(file)
            if self._folder.has_fetcher:
                seen = time.monotonic()
            elif time.monotonic() - seen > _ALONE_SECONDS:
                self._is_alone = True
                print(
                    f"Cache: no process fetches files into {self._folder.path} any more; they are read from the store",
                    file=sys.stderr,
                    flush=True,
                )
        return found or Storage(file.location).opened(file.path)
