"""The thread behind a watch in etcd."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from onecurve.coordination.errors import CoordinationError, UnreachableError
from onecurve.coordination.etcd_entry import changed, key_range, listed
from onecurve.coordination.etcd_gateway import EtcdGateway, EtcdRetryError, EtcdStream
from onecurve.coordination.watch import Watch

_PAUSE_SECONDS = 0.05
_SETTLED_SECONDS = 1.0
"""A stream that lived this long was no failure when it was opened."""


class EtcdWatcher(threading.Thread):
    """Lists the keys, then follows etcd's stream of changes from the next revision on.

    When the stream breaks, it is started again after the last revision that was seen, so that no change is left out. If
    etcd has compacted that revision away, the keys are listed again and the watch reports what differs.
    """

    def __init__(self, gateway: EtcdGateway, namespace: str, watch: Watch, timeout: float) -> None:
        super().__init__(name=f"etcd watch {watch.prefix}", daemon=True)
        self._gateway, self._namespace, self._watch, self._timeout = gateway, namespace, watch, timeout
        self._range = key_range(namespace + watch.prefix)
        self._loop = asyncio.get_running_loop()
        self._revision = 0
        """The last revision that was seen."""
        self._stream: EtcdStream | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """End the thread soon."""
        with self._lock:
            self._closed.set()
            if self._stream is not None:
                self._stream.interrupt()

    def run(self) -> None:
        try:
            self._list()
            self._follow()
        except CoordinationError as error:
            self._report(self._watch.fail, error)

    def _list(self) -> None:
        """Report the present keys."""
        answer = self._gateway.call("/v3/kv/range", self._range)
        self._revision = int(answer["header"]["revision"])
        present = [listed(plain, self._namespace) for plain in answer.get("kvs", ())]
        self._report(self._watch.add_listing, sorted(present), self._revision)

    def _follow(self) -> None:
        failing_since: float | None = None
        while not self._closed.is_set():
            opened = time.monotonic()
            try:
                self._read_stream()
                reason = "it ended the stream"
            except EtcdRetryError as error:
                reason = str(error)
            now = time.monotonic()
            if failing_since is None or now - opened > _SETTLED_SECONDS:
                failing_since = now
            if now - failing_since > self._timeout and not self._closed.is_set():
                raise UnreachableError(f"{self._gateway.address} ended a watch for {self._timeout:g} s: {reason}")
            self._closed.wait(_PAUSE_SECONDS)

    def _read_stream(self) -> None:
        """Report the changes after the last revision that was seen, until the stream ends."""
        stream = self._open({"create_request": {**self._range, "start_revision": str(self._revision + 1)}})
        try:
            for message in stream:
                result = message.get("result", {"canceled": True})
                if "compact_revision" in result:
                    self._list()
                    return
                if result.get("canceled"):
                    return
                self._take(result)
        finally:
            stream.close()

    def _open(self, request: dict[str, Any]) -> EtcdStream:
        stream = self._gateway.stream("/v3/watch", request)
        with self._lock:
            self._stream = stream
            if self._closed.is_set():
                stream.interrupt()
        return stream

    def _take(self, result: dict[str, Any]) -> None:
        """Report the events of a message."""
        changes = [changed(event, self._namespace) for event in result.get("events", ())]
        if changes:
            self._report(self._watch.add_changes, changes)
            self._revision = changes[-1].version

    def _report(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._closed.set()  # the event loop has ended
