"""The compose file itself, in a Docker engine: what ``docker compose --profile test up`` starts, used and broken."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.conftest import COMPOSE, Loki, Prometheus, eventually, free_port
from tests.integration.training import check, check_accounts, check_events, train, training


@dataclass(frozen=True)
class Project:
    """The services of the profile ``test``, under a separate project name and on free ports."""

    name: str
    environment: Mapping[str, str]

    def compose(self, *arguments: str) -> str:
        command = ("docker", "compose", "--project-directory", str(COMPOSE), "--project-name", self.name)
        return self._run(*command, "--profile", "test", *arguments)

    def up(self) -> None:
        """Start what does not run, and wait until it is healthy."""
        self.compose("up", "--detach", "--wait", "--wait-timeout", "60", "--pull", "never")

    def state(self, service: str) -> dict[str, object]:
        (state,) = json.loads(self._run("docker", "inspect", f"{self.name}-{service}-1"))
        return dict(state["State"], restarts=state["RestartCount"])

    def prometheus(self, run: str) -> Prometheus:
        url = f"http://127.0.0.1:{self.environment['PROMETHEUS_PORT']}"
        return Prometheus(url, f'{{training_run_id="{run}"}}')

    def loki(self, run: str) -> Loki:
        return Loki(f"http://127.0.0.1:{self.environment['LOKI_PORT']}", f'{{training_run_id="{run}"}}')

    def run_environment(self, run: str) -> dict[str, str]:
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


def test_crashed_container_is_started_again(project: Project, tmp_path: Path) -> None:
    """By its restart policy: each window and each event is stored once, with its values, and nothing was dropped."""
    prometheus, loki = project.prometheus("crash"), project.loki("crash")
    restarts = project.state("otelcol")["restarts"]
    environment = {**project.run_environment("crash"), "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with training(tmp_path, environment) as under_way:
        windows = f"train_loss_count_total{prometheus.selector}"
        under_way.until(lambda: prometheus.query(windows) and loki.records(), "nothing has arrived")
        crash(project, "otelcol")
        under_way.go_on(4)
        eventually(lambda: project.state("otelcol")["restarts"] != restarts, "it was not started again")
        run = under_way.end()
    check_accounts(run)
    check(prometheus, run)
    check_events(loki, run)
