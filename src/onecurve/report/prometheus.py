"""Serves the newest values of a run to Prometheus, on this host alone."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from onecurve.describe.errors import OnecurveError

_HOST = "127.0.0.1"


class Prometheus:
    """A tracker that answers GET /metrics. Its port is open on the loopback address only."""

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._labels = ""
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = tracker.text().encode() if self.path == "/metrics" else b""
                self.send_response(200 if content else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((_HOST, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OnecurveError(f"--metrics {port}: {reason}; give another port") from None
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="onecurve metrics", daemon=True).start()

    def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
        labels = {"run": folder, "plan": str(facts["plan"])}
        self._labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())

    def log(self, values: Mapping[str, float], step: int) -> None:
        with self._lock:
            self._values |= {**values, "step": float(step)}

    def end(self, how: str) -> None:
        del how
        self._server.shutdown()
        self._server.server_close()

    def text(self) -> str:
        """The newest values in the exposition format."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, value in values.items():
            metric = "onecurve_" + "".join(letter if letter.isalnum() else "_" for letter in name)
            lines += [f"# TYPE {metric} gauge", f"{metric}{{{self._labels}}} {value!r}"]
        return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
