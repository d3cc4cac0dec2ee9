"""The pipeline without the packages of the extra ``monitel-otlp[grpc]``: only the protocol ``grpc`` is missing."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import RECORD, TRAIN

import monitel_otlp
from monitel_otlp.config import environment
from monitel_otlp.config.settings import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

_COMMAND = "pip install 'monitel-otlp[grpc]'"
_URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}
_GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}

#: Read by every Python below it: the packages cannot be found.
_SITE = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    missing = name.split(".")[0] == "grpc" or name.startswith("google.rpc")
    return None if missing else found(name, path, target)
PathFinder.find_spec = find_spec
"""


@pytest.fixture
def without_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find neither gRPC nor the messages for it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name in {"grpc", "google.rpc"} else find(name))


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a process in which the packages cannot be found."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.usefixtures("without_grpc")
def test_argument_is_refused() -> None:
    """``protocol="grpc"`` raises an error that names the command."""
    with pytest.raises(ValueError, match=re.escape("protocol='grpc': the protocol 'grpc' needs the packages")) as error:
        monitel_otlp.configure(endpoint="http://localhost:4317", protocol="grpc")
    assert _COMMAND in str(error.value)


@pytest.mark.usefixtures("without_grpc")
def test_variable_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The variable does not stop the job: all signals are offline, and one warning names the command."""
    for name, value in {**_URL, **_GRPC}.items():
        monkeypatch.setenv(name, value)
    settings = resolve()
    assert ({}, ["metrics", "logs", "traces"]) == (settings.endpoints, settings.offline)
    (warning,) = caplog.messages
    assert warning.startswith("OTEL_EXPORTER_OTLP_PROTOCOL=grpc: ")
    assert _COMMAND in warning
    assert warning.endswith("; telemetry for it is kept on disk")


@pytest.mark.usefixtures("without_grpc")
def test_other_signals_are_sent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Only the signals with this protocol are offline."""
    for name, value in {**_URL, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}.items():
        monkeypatch.setenv(name, value)
    assert ["metrics"] == resolve().offline
    assert ["OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=grpc"] == [each.split(":")[0] for each in caplog.messages]


@pytest.mark.usefixtures("without_grpc")
def test_protocol_without_an_endpoint_is_not_a_problem(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``opentelemetry-instrument`` sets the variable whenever it is not set: without an endpoint nothing is sent."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert ({}, []) == (resolve().endpoints, caplog.messages)


def test_http_works(receiver: Receiver, train: Run, site: dict[str, str]) -> None:
    """Windows and events are delivered over HTTP."""
    check = "from importlib.util import find_spec\nassert find_spec('grpc') is None\n"
    train(check + TRAIN, receiver.url, env=site)
    assert [*range(1, 12)] == receiver.values("loss.count")
    assert ["checkpoint"] == receiver.record_names()


def test_telemetry_on_disk_is_replayed_over_http(
    receiver: Receiver, train: Run, run: Run, site: dict[str, str]
) -> None:
    """Telemetry of a job whose variable names gRPC is on disk, and ``replay`` sends it over HTTP."""
    configure = 'pipeline = monitel_otlp.configure(spool_dir="spool")\n'
    ended = train(configure + RECORD, env={**site, **_GRPC, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert 1 == ended.stderr.count(_COMMAND)
    assert [] == receiver.requests
    run("-m", "monitel_otlp", "replay", "spool", "--endpoint", receiver.url, env=site)
    assert [*range(1, 12)] == receiver.values("loss.count")


def test_command_names_the_extra(run: Run, site: dict[str, str]) -> None:
    """``--protocol grpc`` ends a command with one line, which names the command that installs the packages."""
    ended = run(
        "-m",
        "monitel_otlp",
        "doctor",
        "--protocol",
        "grpc",
        "--endpoint",
        "http://localhost:4317",
        env=site,
        returncode=1,
    )
    (line,) = ended.stderr.splitlines()
    assert line.startswith("monitel: protocol='grpc': ")
    assert _COMMAND in line


def test_doctor_shows_the_problem(run: Run, site: dict[str, str]) -> None:
    """``doctor`` prints the problem with the variable."""
    ended = run("-m", "monitel_otlp", "doctor", env={**site, **_URL, **_GRPC}, returncode=1)
    assert 1 == ended.stdout.count(_COMMAND)
    assert "0 of 0 endpoints accept telemetry" in ended.stdout
