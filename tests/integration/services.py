"""Services that tests break: programs that stop and start again."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.checks import wait_until

_MILLISECONDS = {"s": 1000, "m": 60_000, "h": 3_600_000}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that no client is given.

    Linux gives clients those from 32768 up: who asks whether a server is up yet could otherwise be connected to itself,
    by the very port that the server is about to take.
    """
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answer_of(
    url: str, parameters: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
) -> Any:
    """Return what a server answers, in JSON; an error has its own words."""
    query = urllib.parse.urlencode(parameters or {}, doseq=True)
    request = urllib.request.Request(f"{url}?{query}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}, {parameters}: {error.read().decode()}") from error


def launched(run: str, rank: object = 0, ranks: int = 1, **variables: str) -> dict[str, str]:
    """The environment of a rank: those of a launcher unless the rank is empty, given ones, none of telemetry."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if rank != "" else {}
    return {**clean, "TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": "0", **own, **variables}


def start_python(folder: Path, *arguments: object, env: Mapping[str, str], **streams: Any) -> subprocess.Popen[str]:
    """Start Python in a folder, with these variables only; ``streams`` are arguments of Popen."""
    return subprocess.Popen([sys.executable, *map(str, arguments)], cwd=folder, env=env, text=True, **streams)


def sixty_times_faster(text: str) -> str:
    """Shorten the durations in queries and rules: a minute becomes a second, and ``[5m]`` becomes ``[5000ms]``."""
    return re.sub(r"\b(\d+)([smh])\b", lambda found: f"{int(found[1]) * _MILLISECONDS[found[2]] // 60}ms", text)


@dataclass
class Program:
    """A program that counts as running from the moment that the URL ``ready`` answers, whatever it answers."""

    command: Sequence[object]
    log: Path
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Program:  # noqa: PYI034  it has no subclass
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        command = [str(each) for each in self.command]
        with self.log.open("ab") as output:
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        wait_until(self._answers, f"{self.command[0]} does not start")

    def stop(self) -> None:
        """End it in good order; nothing where it does not run."""
        if self.process is None:
            return
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)

    def pause(self) -> None:
        """Let it hang: connections are taken, by the kernel, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restore(self) -> None:
        """Let it run again, whatever a test has done to it."""
        self.resume()
        if self.process is None or self.process.poll() is not None:
            self.start()

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            urllib.request.urlopen(self.ready, timeout=5).close()
        except urllib.error.HTTPError as error:
            return error.code != 503  # Prometheus while it starts
        except OSError:
            return False
        return True
