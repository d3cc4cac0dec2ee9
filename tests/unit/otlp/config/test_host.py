"""Host, operating system and process in the resource: from OpenTelemetry's detectors, which may fail or hang."""

import os
from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start
from tests.support.receiver import Receiver

import monitel
from monitel_otlp import Pipeline
from monitel_otlp._compat import HostResourceDetector, ProcessResourceDetector
from monitel_otlp.config import resource


@pytest.fixture
def hung() -> Iterator[Event]:
    """An event that a hanging detector waits for; it is set when the test ends."""
    event = Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "_DETECT_TIMEOUT", DEADLINE)


def resource_of(receiver: Receiver, pipeline: Pipeline) -> Mapping[str, Any]:
    """Return the attributes of the resource of an event that is exported now."""
    monitel.emit("epoch")
    assert pipeline.force_flush(DEADLINE)
    return receiver.records("epoch")[-1].resource


def test_detector_that_hangs_delays_nothing(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hung: Event
) -> None:
    """After the limit its attributes are left out; one warning is logged, and other detectors are not affected."""
    monkeypatch.setattr(resource, "_DETECT_TIMEOUT", 0.2)
    monkeypatch.setattr(ProcessResourceDetector, "detect", lambda _self: Resource({"late": hung.wait(DEADLINE)}))
    found = resource_of(receiver, start())
    assert not hung.is_set()
    assert "process.pid" not in found
    assert 1 == len(warnings_with(caplog, "a detector of host and process takes more than 0.2 s"))


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
