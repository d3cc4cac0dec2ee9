"""A server that forks jobs and collectors from one process, which has imported everything, and kills them on time.

It reads one command per line from stdin, as JSON, and prints the death of each process as one line. A job costs some
ten milliseconds this way. The server is the parent, so that the number of a process cannot belong to another one when
the process is killed. A process is killed with all processes that it has forked, unless the command has ``orphans``.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from tests.nightly.kills.backend import PACKAGE, environment
from tests.nightly.kills.collecting import collect
from tests.nightly.kills.job import run_job

import monitel_otlp.__main__

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 60.0  # seconds for everything that ends by itself
_ROLES = {"job": run_job, "collector": collect}
_FILES = 100  # more than a process has open


@dataclass(frozen=True)
class Death:
    """The end of a process that the nursery started: number of the job, its process, exit status, monotonic ns."""

    number: int
    pid: int
    status: int
    at_ns: int


class Nursery:
    """The server, as a test sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._deaths: SimpleQueue[Death | None] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def start(self, **command: Any) -> None:
        """Start a process, and kill it in ``kill_after`` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    def wait(self, timeout: float = DEADLINE) -> Death:
        """Return the next death.

        Raises:
            queue.Empty: There was none within so many seconds.
        """
        death = self._deaths.get(timeout=timeout)
        assert death is not None, "the nursery has ended"
        return death

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._deaths.put(Death(**json.loads(line)))
        self._deaths.put(None)


@contextmanager
def running_nursery(**variables: str) -> Iterator[Nursery]:
    """Run a nursery with these environment variables; what it has started is killed at the end."""
    command = [sys.executable, "-W", "ignore", "-m", f"{PACKAGE}.nursery"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={**environment(), **variables}, stdin=pipe, stdout=pipe, bufsize=0) as process:
        try:
            yield Nursery(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(DEADLINE)


class _Server:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._due: dict[int, tuple[float, dict[str, Any]]] = {}
        self._killed_ns: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until stdin is closed, then kill what is left."""
        _import_everything()
        try:
            self._serve()
        finally:
            if os.getpid() == self._pid:  # not in a child, which leaves this function to end
                for pid in self._due:
                    os.killpg(pid, signal.SIGKILL)

    def _serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(sys.stdin, selectors.EVENT_READ)
        unread = b""
        while True:
            now = time.monotonic()
            pause = min([0.01, *(at - now for pid, (at, _) in self._due.items() if pid not in self._killed_ns)])
            if selector.select(max(0.0, pause)):
                read = os.read(sys.stdin.fileno(), 1 << 16)
                if not read:
                    return
                *lines, unread = (unread + read).split(b"\n")
                for line in lines:
                    command = json.loads(line)
                    self._due[_start(command)] = time.monotonic() + command["kill_after"], command
            self._kill()
            self._report_deaths()

    def _kill(self) -> None:
        for pid, (at, command) in self._due.items():
            if time.monotonic() >= at and pid not in self._killed_ns:
                self._killed_ns[pid] = time.monotonic_ns()
                (os.kill if command.get("orphans") else os.killpg)(pid, signal.SIGKILL)

    def _report_deaths(self) -> None:
        while self._due and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            ended_ns, pid = time.monotonic_ns(), ended.si_pid
            _, command = self._due.pop(pid)
            if not command.get("orphans"):
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # it was not waited for, so that the number is its own
            _, status = os.waitpid(pid, 0)
            at_ns = self._killed_ns.pop(pid, ended_ns)
            line = {
                "number": command["number"],
                "pid": pid,
                "status": os.waitstatus_to_exitcode(status),
                "at_ns": at_ns,
            }
            print(json.dumps(line), flush=True)  # noqa: T201  to the test


def _import_everything() -> None:
    """Import what a job imports, and what a collector imports, before the first of them is forked."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as file:
            names = file.read().split()
        os.waitpid(pid, 0)
        for name in names:
            with suppress(ImportError):
                import_module(name)
        return
    try:
        with TemporaryDirectory() as folder:
            os.environ["MONITEL_BLACK_BOX_DIR"] = folder
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            pipeline = monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir=folder, spans=True)
            monitel_otlp.__main__.main(["replay", folder, "--endpoint", "http://127.0.0.1:9"])
            pipeline.shutdown()
        with os.fdopen(write, "w", encoding="utf-8") as file:
            file.write(" ".join(sys.modules))
    finally:
        os._exit(0)


def _start(command: dict[str, Any]) -> int:
    """Fork a process group for a command, and return its number."""
    pid = os.fork()
    if pid:
        with suppress(PermissionError):  # it has done that itself, and runs another program already
            os.setpgid(pid, pid)  # in both processes, because either may be first
        return pid
    os.setpgid(0, 0)
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, log, log)):
        os.dup2(file, number)
    os.closerange(3, _FILES)
    if command.get("fresh"):
        module = f"{PACKAGE}.{'job' if command['role'] == 'job' else 'collecting'}"
        os.execv(sys.executable, [sys.executable, "-W", "ignore", "-m", module, json.dumps(command)])
    sys.stdin = os.fdopen(0, encoding="utf-8")
    _ROLES[command["role"]](command)
    sys.exit()  # as a main program ends


if __name__ == "__main__":
    _Server().serve()
