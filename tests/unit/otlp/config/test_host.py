"""Host, operating system and process in the resource: from OpenTelemetry's detectors, without what may be secret."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.resources import Resource
from tests.support.canary import assert_canary_unseen, new_canary
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.scripts import write_script
from tests.support.spools import folders

import monitel
from monitel_otlp._compat import HostResourceDetector, ProcessResourceDetector
from monitel_otlp.config import host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

    from monitel_otlp import Pipeline

SCRIPT = """\
with monitel_otlp.configure(spool_dir="spool", endpoint=sys.argv[1] if sys.argv[1] != "offline" else None) as pipeline:
    monitel.stat("loss", [COUNT], 60.0).add(1)
    monitel.emit("epoch")
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("mine"):
        pass
"""


@pytest.fixture
def hung() -> Iterator[Event]:
    """An event that a hanging detector waits for; it is set when the test ends."""
    event = Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give detectors more time than they need on a busy machine."""
    monkeypatch.setattr(host, "_TIMEOUT", DEADLINE)


def resource_of(receiver: Receiver, pipeline: Pipeline) -> Mapping[str, Any]:
    """Return the attributes of the resource of an event that is exported now."""
    monitel.emit("epoch")
    assert pipeline.force_flush(60)
    return receiver.records("epoch")[-1].resource


def test_resource_has_host_and_process(receiver: Receiver, start: Start) -> None:
    """The values are those of the system, and no other attributes of host, operating system and process are there."""
    found = resource_of(receiver, start())
    expected = {
        "host.name": socket.gethostname(),
        "host.arch": platform.machine(),
        "os.type": sys.platform,
        "os.version": os.uname().release,
        "process.pid": os.getpid(),
        "process.executable.name": os.path.basename(sys.executable),  # noqa: PTH119  a name, not a path
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": platform.python_version(),
        "process.runtime.description": sys.version,
    }
    assert expected == {name: value for name, value in found.items() if name.startswith(("host.", "os.", "process."))}
    assert {found["host.name"]} == {point.resource["host.name"] for point in receiver.all_points()}


def test_resource_has_the_distribution(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and version are in the resource of every signal. Given attributes override them."""
    pipeline = start()
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("own"):
        found = resource_of(receiver, pipeline)
    assert pipeline.force_flush(60)
    expected = {"telemetry.distro.name": "monitel-otlp", "telemetry.distro.version": monitel.__version__}
    assert expected.items() <= found.items()
    assert [found] == [span.resource for span in receiver.spans()]
    assert all(point.resource == found for point in receiver.all_points())
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "telemetry.distro.name=theirs")
    found = resource_of(receiver, start(resource_attributes={"telemetry.distro.version": "7"}))
    assert ("theirs", "7") == (found["telemetry.distro.name"], found["telemetry.distro.version"])


def test_given_attributes_override_detected_ones(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_RESOURCE_ATTRIBUTES overrides the detectors, and the argument overrides both."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=node-7,host.arch=sparc")
    found = resource_of(receiver, start(resource_attributes={"host.arch": "vax"}))
    assert ("node-7", "vax", os.getpid()) == (found["host.name"], found["host.arch"], found["process.pid"])


def test_detector_that_hangs_delays_nothing(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hung: Event
) -> None:
    """After the limit its attributes are left out; one warning is logged, and other detectors are not affected."""
    monkeypatch.setattr(host, "_TIMEOUT", 2.0)
    monkeypatch.setattr(ProcessResourceDetector, "detect", lambda _self: Resource({"late": hung.wait(DEADLINE)}))
    begin = time.monotonic()
    pipeline = start()
    assert time.monotonic() - begin < DEADLINE / 2  # of what the detector takes
    found = resource_of(receiver, pipeline)
    assert (socket.gethostname(), False) == (found["host.name"], "process.pid" in found)
    assert 1 == len(warnings_with(caplog, "a detector of host and process takes more than 2 s"))


def test_detector_that_fails_is_left_out(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning is logged, and the other attributes are there."""

    def fail(_self: object) -> None:
        raise OSError("no name")

    monkeypatch.setattr(HostResourceDetector, "detect", fail)
    found = resource_of(receiver, start())
    assert (False, os.getpid()) == ("host.name" in found, found["process.pid"])
    assert ["HostResourceDetector failed; its attributes are left out"] == warnings_with(caplog, "Detector")


def test_forked_child_has_its_process_id(receiver: Receiver, train: Run) -> None:
    """The other attributes are those of its parent."""
    script = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool")
monitel.emit("parent")
if (pid := os.fork()) == 0:
    monitel.emit("child")
    sys.exit()
assert os.waitpid(pid, 0) == (pid, 0)
print(os.getpid(), pid)
"""
    parent, child = map(int, train(script, receiver.url).stdout.split())
    found = {each.name: (each.resource["process.pid"], each.resource["host.name"]) for each in receiver.records()}
    assert {"parent": (parent, socket.gethostname()), "child": (child, socket.gethostname())} == found


@pytest.mark.parametrize("detectors", ["", "process", "host,process,os", "*"])
def test_secret_on_the_command_line_stays_in_the_process(
    receiver: Receiver, run: Run, tmp_path: Path, detectors: str
) -> None:
    """No request, file or output has it, even if the application asks the SDK for its detectors."""
    secret = new_canary()
    path = write_script(tmp_path, SCRIPT)
    variables = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": detectors, "MONITEL_RUN_EVENTS": "1"}
    for where in (receiver.url, "offline"):
        ended = run(path, where, "--api-key", secret, f"--password={secret}", env=variables)
        assert_canary_unseen(secret, ended.stdout, ended.stderr)
    assert ["epoch", "run.ended", "run.started"] == sorted(receiver.record_names())
    assert {"metrics", "logs", "traces"} == {request.signal for request in receiver.requests}
    assert folders(tmp_path / "spool")
    assert_canary_unseen(secret, *(request.body for request in receiver.requests), tmp_path / "spool")


@pytest.mark.invalid_output("the resource of the application has only a name", "resource.required", "resource.distro")
def test_resource_of_the_application_is_unchanged(receiver: Receiver, train: Run) -> None:
    """If the application has providers, the windows have its resource, to which nothing is added about the host."""
    script = """\
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
resource = Resource({"service.name": "theirs"})
metrics.set_meter_provider(MeterProvider([], resource))
trace.set_tracer_provider(TracerProvider(resource=resource))
with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool"):
    monitel.stat("loss", [COUNT], 60.0).add(1)
"""
    train(script, receiver.url)
    (point,) = receiver.points("loss.count")
    assert {"service.name": "theirs", "monitel.pipeline": "windows"} == point.resource
