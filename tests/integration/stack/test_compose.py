"""The compose file itself, in a Docker engine: what ``docker compose --profile test up`` starts, used and broken."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.integration.conftest import COMPOSE, Loki, Prometheus, eventually, free_port
from tests.integration.training import check, check_accounts, check_events, train, training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

OUTAGES = [("otelcol", "crash"), ("otelcol", "disconnect"), ("prometheus", "pause"), ("loki", "kill")]


@dataclass(frozen=True)
class Project:
    """The services of the profile ``test``, under a separate project name and on free ports."""

    name: str
    environment: Mapping[str, str]

    def compose(self, *arguments: str) -> str:
        """Run docker compose."""
        command = ("docker", "compose", "--project-directory", str(COMPOSE), "--project-name", self.name)
        return self._run(*command, "--profile", "test", *arguments)

    def docker(self, *arguments: str) -> str:
        """Run docker."""
        return self._run("docker", *arguments)

    def up(self) -> None:
        """Start what does not run, and wait until it is healthy."""
        self.compose("up", "--detach", "--wait", "--wait-timeout", "60", "--pull", "never")

    def state(self, service: str) -> dict[str, object]:
        """Return the engine's description of a container."""
        (state,) = json.loads(self.docker("inspect", self.container(service)))
        return dict(state["State"], restarts=state["RestartCount"])

    def container(self, service: str) -> str:
        """A container's name."""
        return f"{self.name}-{service}-1"

    def prometheus(self, run: str) -> Prometheus:
        """Prometheus, and in it the series of one run."""
        url = f"http://127.0.0.1:{self.environment['PROMETHEUS_PORT']}"
        return Prometheus(url, f'{{training_run_id="{run}"}}')

    def loki(self, run: str) -> Loki:
        """Loki, and in it the events of one run."""
        return Loki(f"http://127.0.0.1:{self.environment['LOKI_PORT']}", f'{{training_run_id="{run}"}}')

    def run_environment(self, run: str) -> dict[str, str]:
        """The environment of a run."""
        endpoint = f"http://127.0.0.1:{self.environment['OTLP_HTTP_PORT']}"
        return {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "TORCHELASTIC_RUN_ID": run}

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=dict(self.environment), capture_output=True, text=True, timeout=120, check=False
        )
        assert 0 == done.returncode, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def project(engine: dict[str, str]) -> Iterator[Project]:
    """The services, up."""
    names = ("OTLP_HTTP_PORT", "OTLP_GRPC_PORT", "PROMETHEUS_PORT", "LOKI_PORT")
    ports = {name: str(free_port()) for name in names}
    project = Project(f"monitel-test-{os.getpid()}", {**engine, **ports, "TRACES_TO": "debug"})
    try:
        project.up()
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout", "5")


def test_a_run_is_stored_and_outlives_the_containers(project: Project, tmp_path: Path) -> None:
    """All three signals arrive, and the data of Prometheus and Loki is in volumes."""
    assert {"otelcol", "prometheus", "loki"} == set(project.compose("ps", "--services").split())
    run = train(tmp_path, environment=project.run_environment("first"))
    check_accounts(run)
    check(project.prometheus("first"), run)
    check_events(project.loki("first"), run)
    rules = project.loki("first").rules()
    assert {"TrainingEventError", "TrainingRunFailed", "TrainingRunPreempted"} == {rule["name"] for rule in rules}
    printed = project.compose("logs", "--no-log-prefix", "otelcol")
    assert len(run.checkpoints) == len(re.findall(r"^ +Name +: epoch$", printed, re.MULTILINE))
    project.compose("down", "--timeout", "5")
    project.up()
    check(project.prometheus("first"), run)
    check_events(project.loki("first"), run)


def crash(project: Project, service: str) -> None:
    """Kill the process, as the OOM killer would."""
    pid = project.state(service)["Pid"]
    assert isinstance(pid, int)
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        pytest.skip("a crash of a container's process: run as root")


def fault(project: Project, service: str, kind: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the function that breaks a service, and the one that restores it."""
    network = ("network", f"{project.name}_default", project.container(service))
    return {
        "stop": (lambda: project.compose("stop", service), lambda: project.compose("start", service)),
        "kill": (lambda: project.compose("kill", service), lambda: project.compose("start", service)),
        "crash": (lambda: crash(project, service), lambda: None),  # its restart policy does
        "pause": (lambda: project.compose("pause", service), lambda: project.compose("unpause", service)),
        "disconnect": (
            lambda: project.docker(network[0], "disconnect", *network[1:]),
            lambda: project.docker(network[0], "connect", "--alias", service, *network[1:]),
        ),
    }[kind]


@pytest.mark.parametrize(("service", "kind"), OUTAGES)
def test_everything_is_stored_after_an_outage(project: Project, service: str, kind: str, tmp_path: Path) -> None:
    """Each window and each event is there once, with its values, and nothing was dropped."""
    break_it, mend_it = fault(project, service, kind)
    name = f"{service}-{kind}"
    prometheus, loki = project.prometheus(name), project.loki(name)
    restarts = project.state(service)["restarts"]
    environment = {**project.run_environment(name), "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with training(tmp_path, environment) as under_way:
        windows = f"train_loss_count_total{prometheus.selector}"
        under_way.until(lambda: prometheus.query(windows) and loki.records(), "nothing has arrived")
        break_it()
        try:
            under_way.go_on(4)
            if kind != "crash":  # which may be over before anything is sent
                under_way.until(lambda: "everything is kept" in under_way.stderr, "the outage was not noticed")
        finally:
            mend_it()
        if kind == "crash":
            eventually(lambda: project.state(service)["restarts"] != restarts, "it was not started again")
        run = under_way.end()
    check_accounts(run)
    check(prometheus, run)
    check_events(loki, run)
