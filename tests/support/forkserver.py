"""Python processes that are forked from a server, which has imported what monitel depends on, in a tenth of the time.

The server imports nothing of monitel, so that a script finds the package as in a fresh interpreter. What only a fresh
interpreter has (its command line in ``/proc``, variables such as ``PYTHONPATH``) is not there.
"""

import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

_OTLP = "opentelemetry.exporter.otlp.proto.common"
_SERVICES = "opentelemetry.proto.collector"
#: Imported by the server: foreign packages only.
_PRELOADED = (
    *("asyncio", "concurrent.futures", "ctypes", "logging.handlers", "multiprocessing", "queue", "sqlite3", "uuid"),
    *("http.client", "numpy", "requests", "torch", "google.protobuf.json_format", "opentelemetry.trace.propagation"),
    *(f"opentelemetry.sdk.{name}.export" for name in ("metrics", "_logs", "trace")),
    *(f"{_OTLP}.{name}" for name in ("metrics_encoder", "_log_encoder", "trace_encoder")),
    *(f"{_SERVICES}.{name}.v1.{name}_service_pb2" for name in ("metrics", "logs", "trace")),
)
#: Variables that are read when an interpreter starts, or when these packages are imported.
_OF_INTERPRETERS = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OTEL_PYTHON_CONTEXT", "OTEL_PROPAGATORS")
_LONGEST = 1 << 20  # bytes of a request


class Forked(subprocess.Popen[str]):
    """A process that the server has forked, as :class:`subprocess.Popen`: in a new session, with pipes of text."""

    def __init__(self, folder: Path, arguments: list[str], environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        super().__init__(arguments, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """Let the server fork instead of this process; see ``subprocess.Popen`` for the positions."""
        folder, environment = rest[4], rest[5]
        reads, _, _, writes, _, errors = rest[9:15]
        self._status, status = os.pipe()
        request = json.dumps([args, str(folder), dict(environment)]).encode()
        server = _server()
        socket.send_fds(server, [request], [reads, writes, errors, status])
        for descriptor in (reads, writes, errors, status):
            os.close(descriptor)
        self.pid = int(server.recv(64))
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._try_wait(0)
        return self.returncode

    def _try_wait(self, _flags: int) -> tuple[int, int]:
        status = os.read(self._status, 64)
        assert status, "the server has ended"
        os.close(self._status)
        self.returncode = int(status)
        return self.pid, self.returncode


def can_fork(arguments: list[str], environment: Mapping[str, str]) -> bool:
    """Return whether the server can run Python with these arguments and variables."""
    changed = {
        name
        for name in {*environment, *os.environ}
        if name.startswith(_OF_INTERPRETERS) and environment.get(name) != os.environ.get(name)
    }
    rest = arguments[2:] if arguments[:2] == ["-W", "ignore"] else arguments
    return not changed and bool(rest) and (rest[0] in {"-c", "-m"} or rest[0].endswith(".py"))


_connection: socket.socket | None = None


def _server() -> socket.socket:
    """Return the connection to the server of this process; it ends when this process closes it."""
    global _connection
    if _connection is None:
        _connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"from tests.support import forkserver; forkserver.serve({other.fileno()})"
        with other:
            subprocess.Popen(
                [sys.executable, "-c", program], cwd=ROOT, pass_fds=[other.fileno()], start_new_session=True
            ).returncode = 0  # it is not waited for
    return _connection


def serve(descriptor: int) -> None:
    """Fork processes for the requests of a connection, until it is closed; return in each process that was forked."""
    for name in _PRELOADED:
        with suppress(ImportError):
            import_module(name)
    connection = socket.socket(fileno=descriptor)
    waiting: dict[int, tuple[int, int]] = {}  # process and descriptor for its status, by its pidfd
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in waiting:
                    selector.unregister(key.fd)
                    pid, status = waiting.pop(key.fd)
                    os.close(key.fd)
                    with suppress(BrokenPipeError):
                        os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(status)
                    continue
                request, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 4)
                if not request:
                    os._exit(0)
                arguments, folder, environment = json.loads(request)
                pid = os.fork()
                if not pid:
                    selector.close()
                    connection.close()
                    for other in waiting:
                        os.close(other)
                    for _, status in waiting.values():
                        os.close(status)
                    _become(descriptors, folder, environment)
                    return _run(arguments)
                for number in descriptors[:3]:
                    os.close(number)
                number = os.pidfd_open(pid)
                waiting[number] = pid, descriptors[3]
                selector.register(number, selectors.EVENT_READ)
                connection.send(b"%d" % pid)


def _become(descriptors: list[int], folder: str, environment: dict[str, str]) -> None:
    os.setsid()
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # that of the server is about another file
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def _run(arguments: list[str]) -> None:
    """Do what ``python ARGUMENTS`` does, in the main module of this process."""
    sys.dont_write_bytecode = True  # a script that limits the size of files would leave a part of a module
    if arguments[:2] == ["-W", "ignore"]:
        warnings.simplefilter("ignore")
        sys.warnoptions.append("ignore")
        arguments = arguments[2:]
    sys.orig_argv = [sys.executable, *arguments]
    main = sys.modules["__main__"].__dict__
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = ["-m", *arguments[2:]], str(Path.cwd())
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        return
    if arguments[0] == "-c":
        sys.argv, sys.path[0], source, name = ["-c", *arguments[2:]], "", arguments[1], "<string>"
    else:
        path = Path(arguments[0])
        sys.argv, sys.path[0], source, name = arguments, str(path.parent), path.read_text(encoding="utf-8"), str(path)
        main["__file__"] = name
    del main["forkserver"]
    exec(compile(source, name, "exec"), main)
