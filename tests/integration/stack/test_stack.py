"""``compose/stack``, as a user types it: up, a run, a look, down, and up again with the data still there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.integration.conftest import COMPOSE, Prometheus, eventually, free_port
from tests.integration.training import check, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Stack = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.integration


@pytest.fixture(params=["processes", "docker"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment in which ``up`` takes this way: with an engine, or without ``docker`` in PATH."""
    own = {name: str(free_port()) for name in ("OTLP_HTTP_PORT", "OTLP_GRPC_PORT", "PROMETHEUS_PORT")}
    if request.param == "docker":
        # Loki, Tempo and Grafana may not be there.
        project = {"COMPOSE_PROJECT_NAME": f"monitel-stack-{os.getpid()}", "COMPOSE_PROFILES": "test"}
        return {**request.getfixturevalue("engine"), **own, **project, "LOGS_TO": "debug", "TRACES_TO": "debug"}
    backends: Path = request.getfixturevalue("backends")
    return {
        **own,
        "PATH": str(tmp_path),
        "MONITEL_BACKENDS": str(backends),
        "MONITEL_STACK_DIR": str(tmp_path / "stack"),
    }


@pytest.fixture
def stack(environment: dict[str, str]) -> Iterator[Stack]:
    """The command; whatever it has started is ended."""

    def stack(
        *arguments: str, status: int = 0, environment: dict[str, str] = environment
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(COMPOSE / "stack"), *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )
        assert status == done.returncode, done.stderr
        return done

    yield stack
    stack("down")
    if project := environment.get("COMPOSE_PROJECT_NAME"):
        command = ["docker", "volume", "rm", f"{project}_prometheus"]
        subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)


def listening(port: str) -> bool:
    """Return True if a port accepts connections."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(port))) == 0


def test_up_look_and_down(stack: Stack, environment: dict[str, str], tmp_path: Path) -> None:
    """``up`` prints the endpoint for a run, whose data is then stored; ``down`` ends what ``up`` has started."""
    prometheus = Prometheus(f"http://127.0.0.1:{environment['PROMETHEUS_PORT']}")
    printed = stack("up").stdout
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{environment['OTLP_HTTP_PORT']} make demo" in printed
    assert prometheus.url in printed
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{environment['OTLP_HTTP_PORT']}"}
    run = train(tmp_path, environment={**os.environ, **endpoint})
    assert {} == run.dropped
    check(prometheus, run)
    stack("down")
    eventually(lambda: not any(listening(environment[name]) for name in environment if name.endswith("_PORT")), "ports")
    stack("up")
    check(prometheus, run)


@pytest.mark.parametrize("environment", ["processes"], indirect=True)
def test_what_is_in_the_way_is_named(stack: Stack, environment: dict[str, str], tmp_path: Path) -> None:
    """A second ``up``, a port that is taken, a program that does not start, one that is missing, and a typing error."""
    assert "the stack runs already; compose/stack down ends it" in (stack("up"), stack("up", status=1))[1].stderr
    stack("down")
    with socket.create_server(("127.0.0.1", int(environment["OTLP_GRPC_PORT"]))):
        assert f"otelcol did not start, see {tmp_path / 'stack' / 'otelcol.log'}" in stack("up", status=1).stderr
    assert not listening(environment["PROMETHEUS_PORT"])
    environment["MONITEL_BACKENDS"] = str(tmp_path / "missing")
    assert "there is no program prometheus in the folder MONITEL_BACKENDS=" in stack("up", status=1).stderr
    assert not listening(environment["PROMETHEUS_PORT"])
    assert "usage: compose/stack up" in stack("start", status=1).stderr
    stack("down")


def folder_with_broken(name: str, tmp_path: Path, environment: dict[str, str]) -> Path:
    """Return a folder with the programs of the stack, one of which ends immediately."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for each in ("otelcol", "prometheus"):
        program = shutil.which("true") if each == name else f"{environment['MONITEL_BACKENDS']}/{each}"
        (folder / each).symlink_to(program or "")
    return folder


@pytest.mark.parametrize("environment", ["processes"], indirect=True)
@pytest.mark.parametrize("name", ["otelcol", "prometheus"])
def test_what_has_died_is_started_again(stack: Stack, environment: dict[str, str], tmp_path: Path, name: str) -> None:
    """``up`` leaves a running service as it is, even if the missing one does not start; ``down`` ends both."""
    stack("up")
    pids = {each: (tmp_path / "stack" / f"{each}.pid").read_text() for each in ("otelcol", "prometheus")}
    os.kill(int(pids[name]), signal.SIGKILL)
    port = environment["PROMETHEUS_PORT" if name == "prometheus" else "OTLP_HTTP_PORT"]
    eventually(lambda: not listening(port), "it is still there")
    broken = {**environment, "MONITEL_BACKENDS": str(folder_with_broken(name, tmp_path, environment))}
    assert f"{name} did not start" in stack("up", status=1, environment=broken).stderr
    stack("up")
    again = {each: (tmp_path / "stack" / f"{each}.pid").read_text() for each in pids}
    assert [name] == [each for each in pids if again[each] != pids[each]]
    assert f"{name} has ended" in stack("down").stdout
    assert [False, False] == [listening(environment[which]) for which in ("PROMETHEUS_PORT", "OTLP_HTTP_PORT")]
