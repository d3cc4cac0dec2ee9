"""``compose/stack``, as a user types it: up, a run, a look, down, and up again with the data still there."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import COMPOSE, Loki, Prometheus, free_port
from tests.integration.training import check, check_events, train
from tests.support.checks import wait_until
from tests.support.hostile import Peer

Stack = Callable[..., subprocess.CompletedProcess[str]]

PORTS = ("OTLP_HTTP_PORT", "OTLP_GRPC_PORT", "PROMETHEUS_PORT", "LOKI_PORT", "LOKI_GRPC_PORT")
NAMES = ("prometheus", "loki", "otelcol")


@pytest.fixture(params=["processes", "docker"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment in which ``up`` takes this way: with an engine, or without ``docker`` in PATH."""
    own = {name: str(free_port()) for name in PORTS}
    if request.param == "docker":
        # Tempo and Grafana may not be there.
        project = {"COMPOSE_PROJECT_NAME": f"monitel-stack-{os.getpid()}", "COMPOSE_PROFILES": "test"}
        return {**request.getfixturevalue("engine"), **own, **project, "TRACES_TO": "debug"}
    backends: Path = request.getfixturevalue("backends")
    return {
        **own,
        "PATH": str(tmp_path),
        "MONITEL_BACKENDS": str(backends),
        "MONITEL_STACK_DIR": str(data_folder(tmp_path)),
    }


@pytest.fixture
def command(environment: dict[str, str], tmp_path: Path) -> list[str]:
    """The command in a folder whose name has special characters of YAML and of URIs; Docker allows no colon."""
    folder = tmp_path / ("a clone: #1" if "MONITEL_STACK_DIR" in environment else "a clone #1") / "compose"
    shutil.copytree(COMPOSE, folder, ignore=shutil.ignore_patterns(".stack"))
    return [sys.executable, str(folder / "stack")]


def data_folder(tmp_path: Path) -> Path:
    return tmp_path / "a clone: #1" / "data"


def process_id(name: str, tmp_path: Path) -> int:
    return int((data_folder(tmp_path) / f"{name}.pid").read_text().split()[0])


@pytest.fixture
def stack(environment: dict[str, str], command: list[str]) -> Iterator[Stack]:
    """The command; whatever it has started is ended."""

    def stack(
        *arguments: str, status: int = 0, environment: dict[str, str] = environment
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert status == done.returncode, done.stderr
        return done

    yield stack
    stack("down")
    if project := environment.get("COMPOSE_PROJECT_NAME"):
        remove = ["docker", "volume", "rm", f"{project}_prometheus", f"{project}_loki"]
        subprocess.run(remove, env=environment, capture_output=True, timeout=60, check=True)


def endpoint(environment: dict[str, str]) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{environment['OTLP_HTTP_PORT']}"}


def listening(port: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(port))) == 0


def test_up_look_and_down(stack: Stack, environment: dict[str, str], tmp_path: Path) -> None:
    """``up`` prints the endpoint for a run, whose data is then stored; ``down`` ends what ``up`` has started."""
    prometheus = Prometheus(f"http://127.0.0.1:{environment['PROMETHEUS_PORT']}")
    loki = Loki(f"http://127.0.0.1:{environment['LOKI_PORT']}", '{service_name="train"}')
    printed = stack("up").stdout
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{environment['OTLP_HTTP_PORT']} make demo" in printed
    assert prometheus.url in printed
    assert loki.url in printed
    run = train(tmp_path, env=endpoint(environment))
    assert {} == run.dropped
    assert "30d or 8GiB" == prometheus.get("status/runtimeinfo")["storageRetention"]
    check(prometheus, run)
    check_events(loki, run)
    assert {"TrainingEventError", "TrainingRunFailed", "TrainingRunPreempted"} == {
        rule["name"] for rule in loki.rules()
    }
    stack("down")
    wait_until(lambda: not any(listening(environment[name]) for name in environment if name.endswith("_PORT")), "ports")
    stack("up")
    check(prometheus, run)
    check_events(loki, run)


@pytest.mark.parametrize("environment", ["processes"], indirect=True)
def test_events_are_in_the_log_of_the_collector_without_loki(
    stack: Stack, environment: dict[str, str], tmp_path: Path
) -> None:
    """``up`` prints that there is no Loki, and starts the rest; a later ``up`` with Loki sends events to it."""
    backends = environment["MONITEL_BACKENDS"]
    folder = folder_with({name: f"{backends}/{name}" for name in ("prometheus", "otelcol")}, tmp_path)
    environment["MONITEL_BACKENDS"] = str(folder)
    assert f"there is no program loki in the folder MONITEL_BACKENDS={folder}" in stack("up").stdout
    assert not listening(environment["LOKI_PORT"])
    run = train(tmp_path, epochs=2, env=endpoint(environment))
    log = (data_folder(tmp_path) / "otelcol.log").read_text()
    assert 2 == log.count("EventName: checkpoint") == len(run.events)
    environment["MONITEL_BACKENDS"] = backends
    assert stack("up").stdout.startswith("otelcol has ended\n")
    loki = Loki(f"http://127.0.0.1:{environment['LOKI_PORT']}", '{service_name="train"}')
    check_events(loki, train(tmp_path, epochs=2, env=endpoint(environment)))
    assert [f"{name} has ended" for name in ("otelcol", "loki", "prometheus")] == stack("down").stdout.splitlines()


@pytest.mark.parametrize("environment", ["processes"], indirect=True)
def test_what_is_in_the_way_is_named(stack: Stack, environment: dict[str, str], tmp_path: Path) -> None:
    """A second ``up``, a port that is taken, a program that does not start, one that is missing, and a typing error."""
    assert "the stack runs already; compose/stack down ends it" in (stack("up"), stack("up", status=1))[1].stderr
    stack("down")
    with socket.create_server(("127.0.0.1", int(environment["OTLP_GRPC_PORT"]))):
        assert f"otelcol did not start, see {data_folder(tmp_path) / 'otelcol.log'}" in stack("up", status=1).stderr
    assert not any(listening(environment[name]) for name in PORTS)
    with Peer(lambda peer, connection: peer.send(connection, b"220 hello\r\n")) as peer:  # which is not HTTP
        taken = {**environment, "PROMETHEUS_PORT": str(peer.port)}
        assert f"something else listens at {peer.url}" in stack("up", status=1, environment=taken).stderr
    with socket.create_server(("127.0.0.1", int(environment["LOKI_GRPC_PORT"]))):
        assert f"loki did not start, see {data_folder(tmp_path) / 'loki.log'}" in stack("up", status=1).stderr
    assert not any(listening(environment[name]) for name in PORTS)
    with_word = {**environment, "LOKI_PORT": "loki"}
    assert "LOKI_PORT must be a number, got 'loki'" in stack("up", status=1, environment=with_word).stderr
    environment["MONITEL_BACKENDS"] = ""
    assert "there is no program prometheus in PATH" in stack("up", status=1).stderr
    environment["MONITEL_BACKENDS"] = str(tmp_path / "missing")
    assert "there is no program prometheus in the folder MONITEL_BACKENDS=" in stack("up", status=1).stderr
    assert not listening(environment["PROMETHEUS_PORT"])
    assert "usage: compose/stack up" in stack("start", status=1).stderr
    stack("down")


def folder_with(programs: dict[str, str], tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, path in programs.items():
        (folder / name).symlink_to(path)
    return folder


@pytest.mark.parametrize("environment", ["processes"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_what_has_died_is_started_again(stack: Stack, environment: dict[str, str], tmp_path: Path, name: str) -> None:
    """``up`` leaves a running service as it is, even if the missing one does not start; ``down`` ends them all."""
    stack("up")
    pids = {each: process_id(each, tmp_path) for each in NAMES}
    os.kill(pids[name], signal.SIGKILL)
    port = environment[{"prometheus": "PROMETHEUS_PORT", "loki": "LOKI_PORT", "otelcol": "OTLP_HTTP_PORT"}[name]]
    wait_until(lambda: not listening(port), "it is still there")
    true = shutil.which("true")
    assert true
    programs = {each: true if each == name else f"{environment['MONITEL_BACKENDS']}/{each}" for each in NAMES}
    broken = {**environment, "MONITEL_BACKENDS": str(folder_with(programs, tmp_path))}
    assert f"{name} did not start" in stack("up", status=1, environment=broken).stderr
    stack("up")
    again = {each: process_id(each, tmp_path) for each in pids}
    assert [name] == [each for each in pids if again[each] != pids[each]]
    assert f"{name} has ended" in stack("down").stdout
    assert not any(listening(environment[port]) for port in PORTS)
