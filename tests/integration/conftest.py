"""Real backends with the configuration that users run, on free ports, each ended by its process id.

The variable MONITEL_BACKENDS names the folder of the programs ``otelcol``, ``prometheus`` and ``loki``.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.loki import COMPOSE, Loki, loki_program
from tests.integration.services import Program, answer_of, free_port, sixty_times_faster
from tests.support.receiver import Receiver

__all__ = ["COMPOSE", "Loki", "free_port"]

#: The option with which a Prometheus stores histograms as they are.
NATIVE_HISTOGRAMS = "--enable-feature=native-histograms,exemplar-storage"


@pytest.fixture(scope="session")
def backends() -> Path:
    """The folder with the programs ``otelcol``, ``prometheus`` and ``loki``."""
    named = os.environ.get("MONITEL_BACKENDS")
    if not named:
        pytest.skip("no real backends: set MONITEL_BACKENDS to a folder with the programs otelcol, prometheus and loki")
    return Path(named)


@pytest.fixture(scope="session")
def engine() -> dict[str, str]:
    """The environment for a Docker engine that runs and has the images of the profile ``test``."""
    enable = "install Docker (Debian: apt-get install docker.io), start dockerd"
    environment = dict(os.environ)
    if shutil.which("docker") is None:
        pytest.skip(f"no Docker: {enable}, and get the images: docker compose --profile test pull")
    if _fails("docker", "info"):
        pytest.skip(f"no Docker engine answers: {enable}")
    compose = ("docker", "compose", "--project-directory", str(COMPOSE), "--profile", "test")
    if _fails(*compose, "version", environment=environment):
        pytest.skip("no Compose: install the docker-compose plugin of Docker, version 2.20 or newer")
    images = subprocess.check_output([*compose, "config", "--images"], env=environment, text=True).split()
    if missing := [image for image in images if _fails("docker", "image", "inspect", image)]:
        pytest.skip(f"no image {missing}: docker compose --profile test pull")
    return environment


def _fails(*command: str, environment: Mapping[str, str] | None = None) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode != 0


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that takes OTLP, asked by its HTTP API."""

    url: str

    @property
    def variables(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{self.url}/api/v1/otlp/v1/metrics"}

    def get(self, path: str, **parameters: object) -> Any:
        """Return the ``data`` of an answer; an error has Prometheus' own words."""
        return answer_of(f"{self.url}/api/v1/{path}", parameters)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def values(self, expression: str) -> list[str]:
        return [each["value"][1] for each in self.query(expression)]

    def samples(self, series: str, back: str = "1h") -> list[tuple[int, str]]:
        """All samples of one series in the time back: Unix milliseconds, and the value as Prometheus writes it."""
        (found,) = self.query(f"{series}[{back}]") or [{"values": []}]
        return [(round(at * 1000), value) for at, value in found["values"]]


@pytest.fixture(scope="session")
def loki_server(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Program]]:
    """The only Loki of a test session, and its URL. A test that breaks it restores it."""
    if not (backends / "loki").exists():
        pytest.skip(f"no Loki: put the program loki into {backends}")
    folder = tmp_path_factory.mktemp("loki")
    rules = folder / "rules" / "fake"
    rules.mkdir(parents=True)
    for each in (COMPOSE / "loki-rules" / "fake").iterdir():
        (rules / each.name).write_text(sixty_times_faster(each.read_text()))
    url, program = loki_program(backends, folder, rules.parent)
    with program:
        yield url, program


@pytest.fixture
def loki(loki_server: tuple[str, Program], monkeypatch: pytest.MonkeyPatch) -> Loki:
    """Loki, which then receives the log records of this test; and in it the records of the test's own run.

    The run takes its id from the environment. Without this fixture, log records are sent to the receiver.
    """
    run = f"run-{uuid.uuid4().hex}"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
    return Loki(loki_server[0], f'{{training_run_id="{run}"}}')


@dataclass(frozen=True)
class Stack:
    """The Collector and Prometheus, and Loki in a test that has it, to be broken."""

    prometheus: Prometheus
    programs: Mapping[str, Program]
    endpoint: str
    receiver: Receiver

    @property
    def variables(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint}


def prometheus_program(backends: Path, folder: Path, config: Path, *options: str) -> tuple[str, Program]:
    """The URL of a Prometheus that takes OTLP, and its program; data is in the folder."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        backends / "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        "--web.enable-otlp-receiver",
        *options,
    ]
    return f"http://{address}", Program(command, folder / "prometheus.log", f"http://{address}/-/ready")


@pytest.fixture
def prometheus(backends: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    """A real Prometheus; its parameter is the window out of order, none by default."""
    config = tmp_path / "prometheus.yml"
    window = getattr(request, "param", "0s")
    config.write_text(f"global: {{scrape_interval: 1h}}\nstorage: {{tsdb: {{out_of_order_time_window: {window}}}}}\n")
    url, program = prometheus_program(backends, tmp_path, config, NATIVE_HISTOGRAMS)
    with program:
        yield Prometheus(url)


def collector_program(
    backends: Path, folder: Path, prometheus_url: str, receiver: Receiver, *, loki_url: str = ""
) -> tuple[str, Program]:
    """The Collector with the configuration that users run, and its URL. Without a Loki, logs go to the receiver."""
    environment = {
        "OTLP_HTTP_PORT": str(free_port()),
        "OTLP_GRPC_PORT": str(free_port()),
        "PROMETHEUS_URL": prometheus_url,
        "LOKI_URL": loki_url or receiver.url,
        "TEMPO_URL": receiver.url,
    }
    url = f"http://127.0.0.1:{environment['OTLP_HTTP_PORT']}"
    command = [str(backends / "otelcol"), f"--config={COMPOSE / 'otelcol.yaml'}"]
    return url, Program(command, folder / "otelcol.log", f"{url}/", environment)


@pytest.fixture
def collector(
    backends: Path, tmp_path: Path, prometheus: Prometheus, receiver: Receiver, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The URL of a Collector, which hands on the answers of Prometheus and of the receiver."""
    loki_url = request.getfixturevalue("loki").url if "loki" in request.fixturenames else ""
    url, program = collector_program(backends, tmp_path, prometheus.url, receiver, loki_url=loki_url)
    with program:
        yield url


@pytest.fixture
def stack(backends: Path, tmp_path: Path, receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """All programs as ``compose/`` configures them."""
    url, program = prometheus_program(backends, tmp_path, COMPOSE / "prometheus.yml", NATIVE_HISTOGRAMS)
    loki_url, programs = "", {"prometheus": program}
    if "loki" in request.fixturenames:
        loki_url, programs["loki"] = request.getfixturevalue("loki_server")
    endpoint, programs["otelcol"] = collector_program(backends, tmp_path, url, receiver, loki_url=loki_url)
    try:
        with programs["prometheus"], programs["otelcol"]:
            yield Stack(Prometheus(url), programs, endpoint, receiver)
    finally:
        if loki_url:
            programs["loki"].restore()
