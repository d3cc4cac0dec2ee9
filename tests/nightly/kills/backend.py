"""A backend in a separate process. A request arrives as a whole, by one write to a file, or not at all.

``POST /mode`` with one of these words changes what it does from then on:

* ``healthy``: a request is stored and acknowledged.
* ``late``: a request is stored, and acknowledged 0.2 seconds later, so that its sender may die in between.
* ``refuse``: a request is refused with 503.
* ``stall``: nothing is read, and the connection is closed when the mode changes.
"""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SIGNALS = ("metrics", "logs", "traces")
_HEAD = struct.Struct("=qBI")  # time (monotonic ns), signal, length of the body
_DELAY = 0.2  # seconds
_ROOT = __file__.partition("/tests/")[0]
PACKAGE = "tests.nightly.kills"


class Arrival(NamedTuple):
    """One stored request."""

    time_ns: int
    signal: str
    body: bytes


def read_arrivals(path: Path) -> list[Arrival]:
    """Return all requests that a backend has stored, in their order."""
    content, found, at = path.read_bytes(), [], 0
    while at < len(content):
        time_ns, signal, length = _HEAD.unpack_from(content, at)
        at += _HEAD.size + length
        found.append(Arrival(time_ns, _SIGNALS[signal], content[at - length : at]))
    return found


class Backend:
    """A running backend, as the test sees it.

    Attributes:
        url: Its endpoint.
        path: The file of the arrivals.
    """

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path

    def behave(self, mode: str) -> None:
        """Set the mode."""
        request = urllib.request.Request(f"{self.url}/mode", mode.encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
            pass


@contextmanager
def running_backend(path: Path) -> Iterator[Backend]:
    """Run a backend that stores requests in a new file."""
    command = [sys.executable, "-m", f"{PACKAGE}.backend", str(path)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Backend(process.stdout.readline().strip(), path)
        finally:
            process.kill()


def environment() -> dict[str, str]:
    """Return the environment of a process that imports the modules of this folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = "healthy"
        self.changed = Condition()
        self.storing = Lock()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients die."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        server, mode = self.server, self.server.mode
        length = int(self.headers["Content-Length"])
        if self.path == "/mode":
            with server.changed:
                server.mode = self.rfile.read(length).decode()
                server.changed.notify_all()
            self._answer(200)
            return
        if mode == "stall":
            with server.changed:
                server.changed.wait_for(lambda: server.mode != "stall")
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if mode == "refuse":
            self._answer(503)
            return
        if len(body) < length:  # the client has died
            self.close_connection = True
            return
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        signal = _SIGNALS.index(self.path.rpartition("/")[2])
        with server.storing:
            os.write(server.file, _HEAD.pack(time.monotonic_ns(), signal, len(body)) + body)
        if mode == "late":
            with server.changed:
                server.changed.wait(_DELAY)
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    _SERVING = _Server(sys.argv[1])
    sys.stdout.write(f"http://127.0.0.1:{_SERVING.server_address[1]}\n")
    sys.stdout.flush()
    _SERVING.serve_forever(0.01)
