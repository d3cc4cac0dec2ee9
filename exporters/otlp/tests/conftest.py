"""Fixtures of this folder: backends, pipelines, a manual clock, and scripts with a hard timeout."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

import monitel
import monitel_otlp
from monitel.variables import name_of_variable
from monitel_otlp import Pipeline
from monitel_otlp.choices import CHOICES
from monitel_otlp.config.environment import grpc_is_installed
from monitel_otlp.config.launcher import VARIABLES
from monitel_otlp.metrics import rising_sums

from .hostile import refusing_url, url_of
from .inbox import DEADLINE
from .pipelines import Start, check_accounts
from .receiver import Receiver
from .scripts import Ended, Run, Terminate, make_run, make_terminate, write_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .grpc_receiver import GrpcReceiver

#: Files that import packages for gRPC. Without these they are not collected; a test of another file is skipped.
_WITH_GRPC = [
    *("commands/test_replay_faults.py", "delivery/test_refused_records.py"),
    *("commands/test_doctor.py", "commands/test_doctor_connections.py", "config/test_secrets.py"),
    *("transport/test_answers.py", "transport/test_error_bodies.py", "transport/test_grpc.py"),
    *("transport/test_grpc_exit.py", "transport/test_grpc_faults.py", "transport/test_tls.py"),
    "validity/test_receivers.py",
]
collect_ignore = [] if grpc_is_installed() else _WITH_GRPC
_LAUNCHER = {name for names in VARIABLES.values() for name in names}
_FOR_ALL_TESTS = {"MONITEL_RUN_EVENTS", "MONITEL_BLACK_BOX_DIR"}  # set for all tests
_OWN = {"MONITEL_RUN_FOLDER", *(name_of_variable(name) for name in CHOICES)} - _FOR_ALL_TESTS


def pytest_report_header() -> list[str]:
    """Report the files that are not collected."""
    return [f"without the extra for gRPC: {len(collect_ignore)} files are not collected"] if collect_ignore else []


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, without variables of OpenTelemetry, monitel, launchers and proxies."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name in _LAUNCHER | _OWN or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    # Without code OpenTelemetry starts it where it is installed: it reads the connections of all processes.
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "system_metrics")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def new_series() -> None:
    """Forget what pipelines of other tests have sent: with a manual clock, counters of several tests have one start."""
    rising_sums._last_sent.clear()


@pytest.fixture(autouse=True)
def accounts_add_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the account of every pipeline that the test made, at its end: nothing may vanish."""
    made: list[Pipeline] = []
    initialize = Pipeline.__init__

    def keep(self: Pipeline, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(Pipeline, "__init__", keep)
    yield
    for pipeline in made:
        check_accounts(pipeline)
        pipeline.shutdown()
        check_accounts(pipeline)
        assert {0} == {each.waiting for each in pipeline.account().values()}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A backend that accepts everything over HTTP, unless the test sets other answers."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def grpc_receiver() -> Iterator[GrpcReceiver]:
    """A backend that accepts everything over gRPC, unless the test sets other answers."""
    pytest.importorskip("grpc", reason="the extra monitel-otlp[grpc] is not installed")
    from .grpc_receiver import GrpcReceiver

    with GrpcReceiver() as receiver:
        yield receiver


@pytest.fixture
def blackhole() -> Iterator[socket.socket]:
    """An endpoint that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE)
        yield listening


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, blackhole: socket.socket) -> str:
    """The URL of an endpoint that refuses connections, or with the parameter ``blackholed`` never answers."""
    return url_of(blackhole) if request.param == "blackholed" else refusing_url()


@pytest.fixture
def clock() -> Iterator[monitel.testing.ManualClock]:
    """The clock of the Stats that the test makes; it moves only when it is advanced."""
    with monitel.testing.ManualClock() as clock:
        yield clock


@pytest.fixture
def start(receiver: Receiver, tmp_path: Path) -> Iterator[Start]:
    """Return a function that configures pipelines: by default they send to the receiver when they are flushed."""
    pipelines: list[Pipeline] = []

    def start(**arguments: Any) -> Pipeline:
        usual = {"endpoint": receiver.url, "export_interval": 3600.0, "spool_dir": tmp_path / "spool"}
        pipelines.append(monitel_otlp.configure(**{**usual, **arguments}))
        return pipelines[-1]

    yield start
    for pipeline in pipelines:
        pipeline.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs Python in the folder of the test."""
    return make_run(tmp_path)


@pytest.fixture
def train(run: Run, tmp_path: Path) -> Run:
    """Return a function that runs a script, given as text, which has imported monitel and monitel_otlp."""

    def train(script: str, *arguments: object, **options: Any) -> Ended:
        return run(write_script(tmp_path, script), *arguments, **options)

    return train  # type: ignore[return-value]  # as Run, with a script in front


@pytest.fixture
def terminate(tmp_path: Path) -> Terminate:
    """Return a function that sends SIGTERM to a script."""
    return make_terminate(tmp_path)
