"""The real programs, on ports of their own, each ended by its own process id.

They come from ``../shared/backends/unpack``, or from the folder that MONITEL_BACKENDS names. Nothing but monitel is
imported when tests are collected: the other legs of CI collect this folder too.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exporters.otlp.tests.receiver import Receiver

ROOT = Path(__file__).parents[2]
UNPACK = ROOT.parent / "shared" / "backends" / "unpack"
DEADLINE = 60.0


@pytest.fixture(scope="session")
def backends() -> Path:
    """The folder with the programs ``otelcol`` and ``prometheus``."""
    named = os.environ.get("MONITEL_BACKENDS")
    if named:
        return Path(named)
    if not UNPACK.exists():
        pytest.skip("no real backends: set MONITEL_BACKENDS to a folder with the programs otelcol and prometheus")
    done = subprocess.run([str(UNPACK)], capture_output=True, text=True, timeout=300, check=True)
    return Path(done.stdout.strip())


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without OpenTelemetry's variables."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds, with a deadline."""
    deadline, pause = time.monotonic() + DEADLINE, Signal()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.02)


@contextmanager
def running(*command: object, log: Path, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program from the moment that the URL ``ready`` answers, whatever it answers."""

    def answers() -> bool:
        assert program.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(ready, timeout=5).close()
        except urllib.error.HTTPError as error:
            return error.code != 503  # Prometheus while it starts
        except OSError:
            return False
        return True

    with log.open("ab") as output:
        program = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
    try:
        eventually(answers, f"{command[0]} does not start")
        yield program
    finally:
        program.terminate()
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait(10)


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that takes OTLP; in its default configuration it refuses what comes out of order."""

    url: str

    def samples(self, series: str, back: str = "1h") -> list[tuple[int, str]]:
        """All samples of one series in the time back: Unix milliseconds, and the value as Prometheus writes it."""
        query = urllib.parse.urlencode({"query": f"{series}[{back}]"})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
            (found,) = json.load(answer)["data"]["result"] or [{"values": []}]
        return [(round(at * 1000), value) for at, value in found["values"]]


@pytest.fixture
def prometheus(backends: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    """A real Prometheus; its parameter is the window out of order, none by default."""
    url = f"http://127.0.0.1:{free_port()}"
    config = tmp_path / "prometheus.yml"
    window = getattr(request, "param", "0s")
    config.write_text(
        f"global: {{scrape_interval: 1h}}\nstorage: {{tsdb: {{out_of_order_time_window: {window}}}}}\n"
    )
    command = [
        backends / "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--web.enable-otlp-receiver",
    ]
    with running(*command, log=tmp_path / "prometheus.log", ready=f"{url}/-/ready"):
        yield Prometheus(url)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """The backend of the exporters' own tests: what the Collector forwards to it can be looked at."""
    monkeypatch.syspath_prepend(str(ROOT))
    from exporters.otlp.tests.receiver import Receiver

    with Receiver() as receiver:
        yield receiver


@dataclass(frozen=True)
class Collector:
    """A Collector that forwards metrics to Prometheus, and everything to the receiver, and hands their answers back."""

    url: str
    run: Callable[[], Any]


@pytest.fixture
def collector(backends: Path, tmp_path: Path, prometheus: Prometheus, receiver: Receiver) -> Collector:
    """A real Collector; ``with collector.run():`` it is up."""
    port = free_port()
    plain = {"sending_queue": {"enabled": False}, "retry_on_failure": {"enabled": False}}
    metrics = {"metrics_endpoint": f"{prometheus.url}/api/v1/otlp/v1/metrics"}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlp_http/prometheus": {**metrics, **plain}, "otlp_http": {"endpoint": receiver.url, **plain}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {
                "metrics": {"receivers": ["otlp"], "exporters": ["otlp_http/prometheus", "otlp_http"]},
                "logs": {"receivers": ["otlp"], "exporters": ["otlp_http"]},
                "traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]},
            },
        },
    }
    path = tmp_path / "otelcol.yaml"
    path.write_text(json.dumps(config))  # which is YAML too
    url = f"http://127.0.0.1:{port}"
    command = (backends / "otelcol", "--config", path)
    return Collector(url, lambda: running(*command, log=tmp_path / "otelcol.log", ready=f"{url}/"))


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python to its end, which must be a good one."""

    def python(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done

    return python
