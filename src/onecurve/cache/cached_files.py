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
from onecurve.formats.storage_time import waiting_for_storage

_POLL_SECONDS = 0.01
_TELL_SECONDS = 5.0
"""A reader that waits for longer says so."""
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
        if found is None:
            with waiting_for_storage():
                found = self._awaited(file)
        return found or Storage(file.location).opened(file.path)

    def _awaited(self, file: RemoteFile) -> IO[bytes] | None:
        """Wait until a file is there; return None if the store is to be read instead."""
        found: IO[bytes] | None = None
        begin = seen = time.monotonic()
        has_told = False
        while found is None and not self._is_alone:
            if why := self._folder.failure(file):
                kind, _, text = why.partition(": ")
                if kind == "not cached":
                    break
                raise BadFileError(text) if kind == "bad" else OnecurveError(text)
            self._folder.wish(file)
            time.sleep(_POLL_SECONDS)
            found = self._folder.opened(file)
            if time.monotonic() - begin > _TELL_SECONDS and not has_told:
                has_told = True
                _say(f"Cache: waiting for {file.name}")
            if self._folder.has_fetcher:
                seen = time.monotonic()
            elif time.monotonic() - seen > _ALONE_SECONDS:
                self._is_alone = True
                _say(f"Cache: nobody fetches files into {self._folder.path} any more; they are read from the store")
        if has_told and found is not None:
            _say(f"Cache: {file.name} is there, after {time.monotonic() - begin:.0f} s")
        return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
