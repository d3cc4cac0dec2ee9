"""What the tests of this folder share: a backend, pipelines, a clock that stands, scripts with a hard timeout."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import monitel
import monitel_otlp
from monitel_otlp import Pipeline

from .grpc_receiver import GrpcReceiver
from .inbox import DEADLINE
from .receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run without OpenTelemetry's variables, and without a home that something could be left in."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def law(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the account of every pipeline that the test made, at its end: nothing may vanish."""
    made: list[Pipeline] = []
    initialize = Pipeline.__init__

    def keep(self: Pipeline, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(Pipeline, "__init__", keep)
    yield
    for pipeline in made:
        check_law(pipeline)
        pipeline.shutdown()
        check_law(pipeline)
        assert {0} == {each.waiting for each in pipeline.account().values()}


def check_law(pipeline: Pipeline) -> None:
    """Check that the numbers of each account add up, and that none is negative or unexplained."""
    for name, account in pipeline.account().items():
        found = account.delivered + account.on_disk + account.folded + account.lost + account.waiting
        assert account.recorded == found, (name, account)
        numbers = [account.delivered, account.on_disk, account.folded, account.waiting, *account.dropped.values()]
        assert min(numbers) >= 0, (name, account)
        assert "unaccounted" not in account.dropped, (name, account)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A healthy backend, until the test says otherwise."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def grpc_receiver() -> Iterator[GrpcReceiver]:
    """The same over gRPC."""
    with GrpcReceiver() as receiver:
        yield receiver


@pytest.fixture
def blackhole() -> Iterator[socket.socket]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE)
        yield listening


@pytest.fixture
def clock() -> Iterator[monitel.testing.ManualClock]:
    """The clock of the Stats that the test makes: it stands until advanced."""
    with monitel.testing.ManualClock() as clock:
        yield clock


class Start(Protocol):
    """What the fixture ``start`` gives."""

    def __call__(self, **arguments: Any) -> Pipeline:
        """Configure a pipeline."""


@pytest.fixture
def start(receiver: Receiver, tmp_path: Path) -> Iterator[Start]:
    """Configure pipelines that send to the receiver when they are flushed, unless told otherwise."""
    pipelines: list[Pipeline] = []

    def start(**arguments: Any) -> Pipeline:
        usual = {"endpoint": receiver.url, "export_interval": 3600.0, "spool_dir": tmp_path / "spool"}
        pipelines.append(monitel_otlp.configure(**{**usual, **arguments}))
        return pipelines[-1]

    yield start
    for pipeline in pipelines:
        pipeline.shutdown()


@dataclass(frozen=True)
class Ended:
    """How a script ended: what it said, and when (monotonic, seconds)."""

    stdout: str
    stderr: str
    at: float


class Run(Protocol):
    """What the fixture ``run`` gives."""

    def __call__(
        self, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0, timeout: float = 60
    ) -> Ended:
        """Run Python with these arguments."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python in a process group of its own, which must end in time, and as expected."""

    def run(
        *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0, timeout: float = 60
    ) -> Ended:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **(env or {})},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipes
            stdout, stderr = process.communicate()
            pytest.fail(f"the script hangs after saying {stdout!r}, {stderr!r}")
        ended = Ended(stdout, stderr, time.monotonic())
        sys.stdout.write(stdout)  # pytest shows them where something else turns out wrong
        sys.stderr.write(stderr)
        assert returncode == process.returncode, stderr
        return ended

    return run


PRELUDE = """\
import os, sys, time
import monitel, monitel_otlp
from monitel import COUNT, MEAN, SUM, Stat

"""


@pytest.fixture
def train(run: Run, tmp_path: Path) -> Run:
    """Run a script that has imported monitel and monitel_otlp."""

    def train(script: str, *arguments: object, **options: Any) -> Ended:
        path = tmp_path / "train.py"
        path.write_text(PRELUDE + script, encoding="utf-8")
        return run(path, *arguments, **options)

    return train  # type: ignore[return-value]  # as Run, with a script in front
