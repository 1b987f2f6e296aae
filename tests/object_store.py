"""An object store with the protocol of S3 (moto), behind a proxy that counts what is read and can fail."""

import http.client
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_BLOCK = 1 << 16


class Faults:
    """What goes wrong."""

    refused = 0.0
    """Share of requests that are answered with 503."""
    cut = 0.0
    """Share of answers that break off."""
    is_stopped = False
    """Nobody answers."""
    rate = 0.0
    """Bytes per second of an answer; 0: as fast as it can."""


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client has gone: that is meant to happen."""


class ObjectStore:
    """A store; `url` for its clients."""

    def __init__(self, server: str, address: str) -> None:
        self.server, self.faults = server, Faults()
        self.read: dict[str, int] = {}
        """Bytes of each object that were sent."""
        self._random, self._lock = random.Random(0), threading.Lock()
        self.failures = 0
        handler = type("Handler", (_Handler,), {"store": self})
        self._proxy = _Proxy((address, 0), handler)
        self.url = f"http://{address}:{self._proxy.server_address[1]}"
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """For processes that read the store."""
        return {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": self.url}

    def put(self, name: str, content: bytes) -> None:
        """Write an object, `bucket/path`."""
        target = urlsplit(self.server)
        connection = http.client.HTTPConnection(str(target.hostname), target.port)
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
        for path, body in ((f"/{name.partition('/')[0]}", b""), (f"/{name}", content)):
            connection.request("PUT", path, body, headers)
            connection.getresponse().read()
        connection.close()

    def stop(self, after: int, seconds: float) -> None:
        """Once so many bytes were read, answer nobody for a while."""
        while sum(self.read.values()) < after:
            time.sleep(0.02)
        self.faults.is_stopped = True
        time.sleep(seconds)
        self.faults.is_stopped = False

    def draws(self, share: float) -> bool:
        with self._lock:
            fails = self._random.random() < share
            self.failures += fails
        return fails

    def count(self, path: str, sent: int) -> None:
        with self._lock:
            self.read[path] = self.read.get(path, 0) + sent


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._forward()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass

    def _forward(self) -> None:
        faults = self.store.faults
        while faults.is_stopped:
            time.sleep(0.05)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if faults.refused and self.store.draws(faults.refused):
            self.send_response(503, "Slow Down")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        target = urlsplit(self.store.server)
        connection = http.client.HTTPConnection(str(target.hostname), target.port)
        connection.request(self.command, self.path, body or None, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if faults.cut and content and self.store.draws(faults.cut):
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        if faults.rate:
            time.sleep(len(content) / faults.rate)
        if self.command != "HEAD":
            for begin in range(0, len(content), _BLOCK):
                while faults.is_stopped:
                    time.sleep(0.05)
                self.wfile.write(content[begin : begin + _BLOCK])
        if self.command == "GET":
            self.store.count(urlsplit(self.path).path, len(content))


@contextmanager
def object_store(folder: Path, address: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Start a store; `folder` is for its log."""
    log = folder / "store.log"  # not a pipe: the server would block when nobody reads its many lines
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("w") as lines, subprocess.Popen(command, stdout=lines, stderr=lines) as server:
        try:
            while "Running on" not in log.read_text():
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
            yield ObjectStore(log.read_text().split("Running on")[1].split()[0], address)
        finally:
            server.kill()
